#include "mechanism/sum/private_sum.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "common/parallel.hpp"
#include "mechanism/rounded_gaussian.hpp"

namespace dpinfer {

namespace {

// Rows that a thread keeps listed: a block of samples behind what waits for its group to fill or to be fetched.
constexpr std::int64_t kListedRows = kRowBlock + 2 * kRowGroup;

// Strides that leave a cache line between threads.
std::size_t stride(int length) { return (static_cast<std::size_t>(length) + 7) / 8 * 8 + 8; }

// Pieces are given out a few at a time, so that a thread which is held up leaves the rest to the others.
class Queue {
 public:
  // n_threads: at most size, or 1.
  Queue(std::int64_t size, int n_threads, std::int64_t most)
      : size_(size), n_taken_(std::clamp<std::int64_t>(size / (8 * n_threads), 1, most)), next_(n_threads * n_taken_) {}

  // take(first, last) until nothing is left; each thread begins with a turn of its own.
  template <typename Take>
  void run(int thread, const Take& take) {
    for (std::int64_t first = thread * n_taken_; first < size_;
         first = next_.fetch_add(n_taken_, std::memory_order_relaxed)) {
      take(first, std::min(first + n_taken_, size_));
    }
  }

 private:
  std::int64_t size_;
  std::int64_t n_taken_;  // at a time
  std::atomic<std::int64_t> next_;
};

// Each thread's sums and scratch; allocated before the parallel region, in which nothing may throw.
class ThreadSums {
 public:
  ThreadSums(const RowKernel& kernel, std::int64_t n_pieces, int requested, SumWorkspace& workspace)
      : kernel_(kernel),
        n_threads_(static_cast<int>(std::clamp<std::int64_t>(n_pieces, 1, resolve_threads(requested)))),
        sums_stride_(stride(kernel.sums_length())),
        scratch_stride_(stride(kernel.scratch_length())),
        workspace_(workspace) {
    const auto threads = static_cast<std::size_t>(n_threads_);
    workspace.sums.assign(threads * sums_stride_, 0);
    workspace.scratch.resize(threads * scratch_stride_);
    workspace.rows.resize(threads * static_cast<std::size_t>(kListedRows));
  }

  int n_threads() const { return n_threads_; }
  std::int64_t* rows(int thread) const { return workspace_.rows.data() + thread * kListedRows; }
  void add(int thread, const RowBatch& batch) const {
    const auto t = static_cast<std::size_t>(thread);
    kernel_.add(batch, workspace_.scratch.data() + t * scratch_stride_, workspace_.sums.data() + t * sums_stride_);
  }

  void collect(std::span<std::int64_t> total) const {
    std::uint64_t* all = workspace_.sums.data();
    const auto length = static_cast<std::size_t>(kernel_.sums_length());
    for (std::size_t t = 1; t < static_cast<std::size_t>(n_threads_); ++t) {
      for (std::size_t j = 0; j < length; ++j) all[j] += all[t * sums_stride_ + j];
    }
    // Signed and unsigned integers of one size may stand for each other.
    kernel_.collect(all, reinterpret_cast<std::uint64_t*>(total.data()));
  }

 private:
  const RowKernel& kernel_;
  int n_threads_;
  std::size_t sums_stride_, scratch_stride_;
  SumWorkspace& workspace_;
};

// One thread's share of a sampled sum: whatever blocks it takes.
void add_blocks(const KernelTable& kernels, const SampledRows& sample, const ThreadSums& sums, int thread,
                Queue& queue) {
  std::int64_t* const rows = sums.rows(thread);
  const std::int64_t first_row = sample.first_block * kRowBlock;
  int listed = 0;
  queue.run(thread, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t block = first; block < last; ++block) {
      const int found = poisson_sample(kernels, sample.key, sample.step, sample.first_block + block,
                                       first_row + sample.n_rows, sample.threshold, rows + listed);
      for (int i = 0; first_row != 0 && i < found; ++i) rows[listed + i] -= first_row;
      listed += found;
      // Whole groups only, and one stays behind, so that the rows after it are known when it is worked on.
      const int ready = listed / kRowGroup * kRowGroup - kRowGroup;
      if (ready <= 0) continue;
      sums.add(thread, {rows, ready, listed});
      std::copy(rows + ready, rows + listed, rows);
      listed -= ready;
    }
  });
  if (listed > 0) sums.add(thread, {rows, listed, listed});
}

}  // namespace

void add_sampled_rows(const KernelTable& kernels, const RowKernel& kernel, const SampledRows& sample, int n_threads,
                      SumWorkspace& workspace, std::span<std::int64_t> total) {
  const std::int64_t n_blocks = (sample.n_rows + kRowBlock - 1) / kRowBlock;
  const ThreadSums sums(kernel, n_blocks, n_threads, workspace);
  Queue queue(n_blocks, sums.n_threads(), 4);
  run_threads(sums.n_threads(), [&](int thread) { add_blocks(kernels, sample, sums, thread, queue); });
  sums.collect(total);
}

void add_listed_rows(const RowKernel& kernel, std::span<const std::int64_t> rows, int n_threads,
                     SumWorkspace& workspace, std::span<std::int64_t> total) {
  const auto n_rows = static_cast<std::int64_t>(rows.size());
  const ThreadSums sums(kernel, n_rows, n_threads, workspace);
  Queue queue(n_rows, sums.n_threads(), kRowBlock);
  run_threads(sums.n_threads(), [&](int thread) {
    queue.run(thread, [&](std::int64_t first, std::int64_t last) {
      const int count = static_cast<int>(last - first);
      sums.add(thread, {rows.data() + first, count, count});
    });
  });
  sums.collect(total);
}

PrivateSum::PrivateSum(const KernelTable& kernels, double max_norm, const RandomKey& key, int n_threads)
    : kernels_(kernels),
      lattice_(Lattice::from_max_norm(max_norm)),
      noise_unit_(max_norm / lattice_.step),
      key_(key),
      n_threads_(n_threads) {}

void PrivateSum::clipped(const RowKernel& kernel, std::int64_t n_rows, std::uint64_t step,
                         const SampleThreshold& threshold, std::span<std::int64_t> sum) {
  std::fill(sum.begin(), sum.end(), 0);
  add_sampled_rows(kernels_, kernel, {key_, step, threshold, n_rows}, n_threads_, workspace_, sum);
}

void PrivateSum::clipped(const RowKernel& kernel, std::span<const std::int64_t> rows, std::span<std::int64_t> sum) {
  std::fill(sum.begin(), sum.end(), 0);
  add_listed_rows(kernel, rows, n_threads_, workspace_, sum);
}

void PrivateSum::noisy(const RowKernel& kernel, std::int64_t n_rows, std::uint64_t step,
                       const SampleThreshold& threshold, double noise_multiplier, std::span<double> released) {
  sum_.resize(released.size());
  clipped(kernel, n_rows, step, threshold, sum_);
  release(step, noise_multiplier, sum_, released);
}

void PrivateSum::noisy(const RowKernel& kernel, std::span<const std::int64_t> rows, std::uint64_t step,
                       double noise_multiplier, std::span<double> released) {
  sum_.resize(released.size());
  clipped(kernel, rows, sum_);
  release(step, noise_multiplier, sum_, released);
}

void PrivateSum::release(std::uint64_t step, double noise_multiplier, std::span<std::int64_t> sum,
                         std::span<double> released) const {
  add_rounded_gaussian(kernels_, key_, step, noise_multiplier * noise_unit_, static_cast<int>(sum.size()), sum.data());
  for (std::size_t j = 0; j < sum.size(); ++j) released[j] = static_cast<double>(sum[j]) * lattice_.step;
}

}  // namespace dpinfer
