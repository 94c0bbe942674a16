#include "mechanism/dpvi_step.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <numeric>

#include "common/float_environment.hpp"
#include "common/parallel.hpp"
#include "mechanism/rounded_gaussian.hpp"

namespace dpinfer {

namespace {

// Rows that a thread keeps listed: a block of samples behind what waits for its group to fill or to be fetched.
constexpr std::int64_t kListedRows = kRowBlock + 2 * kRowGroup;

// The row blocks of a step, given out a few at a time, so that a thread which is held up leaves the rest to the others.
struct BlockQueue {
  std::int64_t n_blocks;
  std::int64_t n_taken;  // at a time
  std::atomic<std::int64_t> next{0};
};

// One thread's share of the sum: whatever blocks it takes.
void add_blocks(const KernelTable& kernels, const GradientTask& task, const SumRequest& request, BlockQueue& queue,
                std::int64_t* rows, double* scratch, std::uint64_t* sums) {
  int listed = 0;
  for (;;) {
    const std::int64_t first = queue.next.fetch_add(queue.n_taken, std::memory_order_relaxed);
    if (first >= queue.n_blocks) break;
    for (std::int64_t block = first; block < std::min(first + queue.n_taken, queue.n_blocks); ++block) {
      listed += poisson_sample(kernels, request.key, request.step, block, task.records.n_rows, request.threshold,
                               rows + listed);
      // Whole groups only, and one stays behind, so that the rows after it are known when it is worked on.
      const int ready = listed / kRowGroup * kRowGroup - kRowGroup;
      if (ready <= 0) continue;
      kernels.clipped_rows(task, rows, ready, listed, scratch, sums);
      std::copy(rows + ready, rows + listed, rows);
      listed -= ready;
    }
  }
  if (listed > 0) kernels.clipped_rows(task, rows, listed, listed, scratch, sums);
}

}  // namespace

int released_length(const GradientTask& task) {
  const int n = task.n_coef + (task.has_dispersion ? 1 : 0);
  return task.has_raw ? 2 * n : n;
}

void clipped_gradient_sum(const KernelTable& kernels, const GradientTask& task, const SumRequest& request,
                          SumWorkspace& workspace, std::int64_t* sum) {
  const std::int64_t n_blocks = (task.records.n_rows + kRowBlock - 1) / kRowBlock;
  const int n_threads = static_cast<int>(std::clamp<std::int64_t>(n_blocks, 1, resolve_threads(request.n_threads)));
  const auto length = static_cast<std::size_t>(task.sums_length());
  // Allocated before the parallel region, in which nothing may throw; padded so that threads share no cache line.
  const std::size_t sums_stride = (length + 7) / 8 * 8 + 8;
  const std::size_t scratch_stride = (static_cast<std::size_t>(task.scratch_length()) + 7) / 8 * 8 + 8;
  const auto threads = static_cast<std::size_t>(n_threads);
  AlignedVector<std::uint64_t>& sums = workspace.sums;
  sums.assign(threads * sums_stride, 0);
  workspace.scratch.resize(threads * scratch_stride);
  workspace.rows.resize(threads * static_cast<std::size_t>(kListedRows));
  BlockQueue queue{n_blocks, std::clamp<std::int64_t>(n_blocks / (4 * n_threads), 1, 4)};
  const auto work = [&](int thread) {
    const auto t = static_cast<std::size_t>(thread);
    add_blocks(kernels, task, request, queue, workspace.rows.data() + t * static_cast<std::size_t>(kListedRows),
               workspace.scratch.data() + t * scratch_stride, sums.data() + t * sums_stride);
  };
  if (n_threads == 1) {
    work(0);
  } else {
#pragma omp parallel for schedule(static, 1) num_threads(n_threads)
    for (int thread = 0; thread < n_threads; ++thread) {
      const FloatEnvironment standard;
      work(thread);
    }
  }

  // Integer addition is associative: any order gives the same sum.
  for (std::size_t t = 1; t < threads; ++t) {
    for (std::size_t j = 0; j < length; ++j) sums[j] += sums[t * sums_stride + j];
  }
  const bool narrow = task.is_narrow();
  const auto at = [&](int index) {
    if (!narrow) return static_cast<std::int64_t>(sums[static_cast<std::size_t>(index)]);
    const std::uint64_t* lanes = sums.data() + static_cast<std::ptrdiff_t>(index) * kRowGroup;
    return static_cast<std::int64_t>(std::accumulate(lanes, lanes + kRowGroup, std::uint64_t{0}));
  };
  const int raw = narrow ? task.n_coef : task.n_pad;
  const int extra = narrow ? 2 * task.n_coef : task.gradient_length() - kRowGroup;
  int out = 0;
  for (int j = 0; j < task.n_coef; ++j) sum[out++] = at(j);
  if (task.has_dispersion) sum[out++] = at(extra);
  if (!task.has_raw) return;
  for (int j = 0; j < task.n_coef; ++j) sum[out++] = at(raw + j);
  if (task.has_dispersion) sum[out++] = at(extra + 1);
}

void noisy_gradient_sum(const KernelTable& kernels, const GradientTask& task, const SumRequest& request,
                        double noise_steps, SumWorkspace& workspace, std::int64_t* sum) {
  clipped_gradient_sum(kernels, task, request, workspace, sum);
  add_rounded_gaussian(kernels, request.key, request.step, noise_steps, released_length(task), sum);
}

}  // namespace dpinfer
