#include "mechanism/record_sum.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "common/float_environment.hpp"
#include "common/parallel.hpp"
#include "mechanism/rounded_gaussian.hpp"

namespace dpinfer {

namespace {

// A plain sum is cut into so many runs of rows, each added in order, and the runs in order: the same for any threads.
constexpr std::int64_t kPlainRuns = 64;

std::size_t padded(int length) { return (static_cast<std::size_t>(length) + 7) / 8 * 8; }

// Strides that leave a cache line between threads.
std::size_t stride(int length) { return padded(length) + 8; }

// Rows are given out a few at a time, so that a thread which is held up leaves the rest to the others.
struct RowQueue {
  std::int64_t size;
  std::int64_t n_taken;  // at a time
  std::atomic<std::int64_t> next{0};

  RowQueue(std::int64_t size_, int n_threads, std::int64_t most)
      : size(size_), n_taken(std::clamp<std::int64_t>(size_ / (8 * n_threads), 1, most)) {}
};

// share(thread) on each of n_threads threads; on the caller's own when there is one.
template <typename Share>
void run_threads(int n_threads, const Share& share) {
  if (n_threads == 1) {
    share(0);
    return;
  }
#pragma omp parallel for schedule(static, 1) num_threads(n_threads)
  for (int thread = 0; thread < n_threads; ++thread) {
    const FloatEnvironment standard;
    share(thread);
  }
}

int threads_for(std::int64_t pieces, int requested) {
  return static_cast<int>(std::clamp<std::int64_t>(pieces, 1, resolve_threads(requested)));
}

// What a thread needs to turn rows into integers; allocated before the parallel region, in which nothing may throw.
class LatticeAdder {
 public:
  LatticeAdder(const KernelTable& kernels, const ContributionKernel& kernel, const Lattice& lattice,
               RecordSumWorkspace& workspace, int n_threads)
      : kernels_(kernels),
        kernel_(kernel),
        workspace_(workspace),
        length_(static_cast<int>(padded(kernel.length()))),
        stride_(stride(kernel.length())),
        scratch_stride_(stride(kernel.scratch_length())),
        inverse_step_(1.0 / lattice.step),
        clip_norm_(lattice.clip_norm / lattice.step) {
    const auto threads = static_cast<std::size_t>(n_threads);
    workspace.sums.assign(threads * stride_, 0);
    workspace.values.assign(threads * stride_, 0.0);
    workspace.scratch.resize(threads * scratch_stride_);
  }

  void add(std::size_t thread, std::int64_t row) const {
    double* values = workspace_.values.data() + thread * stride_;
    kernel_.contribution(row, workspace_.scratch.data() + thread * scratch_stride_, values);
    std::fill(values + kernel_.length(), values + length_, 0.0);
    kernels_.clipped_vector(values, length_, inverse_step_, clip_norm_, workspace_.sums.data() + thread * stride_);
  }

  // Integer addition is associative: any order gives the same sum.
  void total(int n_threads, std::int64_t* sum) const {
    for (std::size_t j = 0; j < static_cast<std::size_t>(kernel_.length()); ++j) {
      std::uint64_t all = 0;
      for (std::size_t t = 0; t < static_cast<std::size_t>(n_threads); ++t) all += workspace_.sums[t * stride_ + j];
      sum[j] = static_cast<std::int64_t>(all);
    }
  }

 private:
  const KernelTable& kernels_;
  const ContributionKernel& kernel_;
  RecordSumWorkspace& workspace_;
  int length_;
  std::size_t stride_, scratch_stride_;
  double inverse_step_, clip_norm_;
};

template <typename RowAt>
void plain_sum(const ContributionKernel& kernel, std::int64_t n_rows, const RowAt& row_at, double max_norm,
               int requested, RecordSumWorkspace& workspace, double* sum) {
  const KernelTable* const kernels = kernel_table();
  const auto length = static_cast<std::size_t>(kernel.length());
  const std::size_t whole = padded(kernel.length());
  const std::int64_t n_runs = std::clamp<std::int64_t>(n_rows, 1, kPlainRuns);
  const int n_threads = threads_for(n_runs, requested);
  const std::size_t width = stride(kernel.length());
  const std::size_t scratch_width = stride(kernel.scratch_length());
  const auto runs = static_cast<std::size_t>(n_runs);
  workspace.values.assign((runs + static_cast<std::size_t>(n_threads)) * width, 0.0);
  workspace.scratch.resize(static_cast<std::size_t>(n_threads) * scratch_width);
  RowQueue queue(n_runs, n_threads, 1);
  run_threads(n_threads, [&](int thread) {
    const auto t = static_cast<std::size_t>(thread);
    double* values = workspace.values.data() + (runs + t) * width;
    double* scratch = workspace.scratch.data() + t * scratch_width;
    for (std::int64_t run = queue.next.fetch_add(1); run < n_runs; run = queue.next.fetch_add(1)) {
      double* total = workspace.values.data() + static_cast<std::size_t>(run) * width;
      for (std::int64_t i = n_rows * run / n_runs; i < n_rows * (run + 1) / n_runs; ++i) {
        kernel.contribution(row_at(i), scratch, values);
        std::fill(values + length, values + whole, 0.0);
        kernels->plain_vector(values, static_cast<int>(whole), max_norm, total);
      }
    }
  });
  std::fill(sum, sum + length, 0.0);
  for (std::size_t run = 0; run < runs; ++run) {
    for (std::size_t j = 0; j < length; ++j) sum[j] += workspace.values[run * width + j];
  }
}

}  // namespace

void clipped_record_sum(const KernelTable& kernels, const ContributionKernel& kernel, std::int64_t n_rows,
                        const Lattice& lattice, const SumRequest& request, RecordSumWorkspace& workspace,
                        std::int64_t* sum) {
  const std::int64_t n_blocks = (n_rows + kRowBlock - 1) / kRowBlock;
  const int n_threads = threads_for(n_blocks, request.n_threads);
  const LatticeAdder adder(kernels, kernel, lattice, workspace, n_threads);
  workspace.rows.resize(static_cast<std::size_t>(n_threads * kRowBlock));
  RowQueue queue(n_blocks, n_threads, 4);
  run_threads(n_threads, [&](int thread) {
    const auto t = static_cast<std::size_t>(thread);
    std::int64_t* rows = workspace.rows.data() + t * static_cast<std::size_t>(kRowBlock);
    for (;;) {
      const std::int64_t first = queue.next.fetch_add(queue.n_taken, std::memory_order_relaxed);
      if (first >= n_blocks) break;
      for (std::int64_t block = first; block < std::min(first + queue.n_taken, n_blocks); ++block) {
        const int count = poisson_sample(kernels, request.key, request.step, block, n_rows, request.threshold, rows);
        for (int i = 0; i < count; ++i) adder.add(t, rows[i]);
      }
    }
  });
  adder.total(n_threads, sum);
}

void clipped_listed_sum(const KernelTable& kernels, const ContributionKernel& kernel,
                        std::span<const std::int64_t> rows, const Lattice& lattice, int n_threads,
                        RecordSumWorkspace& workspace, std::int64_t* sum) {
  const auto n_rows = static_cast<std::int64_t>(rows.size());
  const int threads = threads_for(n_rows, n_threads);
  const LatticeAdder adder(kernels, kernel, lattice, workspace, threads);
  RowQueue queue(n_rows, threads, kRowBlock);
  run_threads(threads, [&](int thread) {
    for (;;) {
      const std::int64_t first = queue.next.fetch_add(queue.n_taken, std::memory_order_relaxed);
      if (first >= n_rows) break;
      for (std::int64_t i = first; i < std::min(first + queue.n_taken, n_rows); ++i) {
        adder.add(static_cast<std::size_t>(thread), rows[static_cast<std::size_t>(i)]);
      }
    }
  });
  adder.total(threads, sum);
}

void noisy_record_sum(const KernelTable& kernels, const ContributionKernel& kernel, std::int64_t n_rows,
                      const Lattice& lattice, const SumRequest& request, double noise_steps,
                      RecordSumWorkspace& workspace, std::int64_t* sum) {
  clipped_record_sum(kernels, kernel, n_rows, lattice, request, workspace, sum);
  add_rounded_gaussian(kernels, request.key, request.step, noise_steps, kernel.length(), sum);
}

void noisy_listed_sum(const KernelTable& kernels, const ContributionKernel& kernel, std::span<const std::int64_t> rows,
                      const Lattice& lattice, const RandomKey& key, std::uint64_t step, int n_threads,
                      double noise_steps, RecordSumWorkspace& workspace, std::int64_t* sum) {
  clipped_listed_sum(kernels, kernel, rows, lattice, n_threads, workspace, sum);
  add_rounded_gaussian(kernels, key, step, noise_steps, kernel.length(), sum);
}

void plain_record_sum(const ContributionKernel& kernel, std::int64_t n_rows, double max_norm, int n_threads,
                      RecordSumWorkspace& workspace, double* sum) {
  plain_sum(kernel, n_rows, [](std::int64_t i) { return i; }, max_norm, n_threads, workspace, sum);
}

void plain_listed_sum(const ContributionKernel& kernel, std::span<const std::int64_t> rows, double max_norm,
                      int n_threads, RecordSumWorkspace& workspace, double* sum) {
  const auto at = [rows](std::int64_t i) { return rows[static_cast<std::size_t>(i)]; };
  plain_sum(kernel, static_cast<std::int64_t>(rows.size()), at, max_norm, n_threads, workspace, sum);
}

}  // namespace dpinfer
