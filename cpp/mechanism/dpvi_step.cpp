#include "mechanism/dpvi_step.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/aligned.hpp"
#include "common/parallel.hpp"
#include "mechanism/rounded_gaussian.hpp"

namespace dpinfer {

namespace {

// One thread's share of the rows: sampled rows queue up until a group is full.
class GroupedRows {
 public:
  GroupedRows(const KernelTable& kernels, const GradientTask& task, double* scratch, std::uint64_t* sums)
      : kernels_(kernels), task_(task), scratch_(scratch), sums_(sums) {}

  void add(const std::int64_t* rows, int count) {
    for (int i = 0; i < count; ++i) {
      pending_[n_pending_++] = rows[i];
      if (n_pending_ == 2 * kRowGroup) {
        kernels_.clipped_rows(task_, pending_, kRowGroup, pending_ + kRowGroup, kRowGroup, scratch_, sums_);
        std::copy(pending_ + kRowGroup, pending_ + 2 * kRowGroup, pending_);
        n_pending_ = kRowGroup;
      }
    }
  }

  void flush() {
    const int head = std::min(n_pending_, kRowGroup);
    const int tail = n_pending_ - head;
    if (head > 0) kernels_.clipped_rows(task_, pending_, head, pending_ + head, tail, scratch_, sums_);
    if (tail > 0) kernels_.clipped_rows(task_, pending_ + head, tail, pending_, 0, scratch_, sums_);
    n_pending_ = 0;
  }

 private:
  const KernelTable& kernels_;
  const GradientTask& task_;
  double* scratch_;
  std::uint64_t* sums_;
  std::int64_t pending_[2 * kRowGroup];
  int n_pending_ = 0;
};

}  // namespace

int released_length(const GradientTask& task) {
  const int n = task.n_coef + (task.has_dispersion ? 1 : 0);
  return task.has_raw ? 2 * n : n;
}

void clipped_gradient_sum(const KernelTable& kernels, const GradientTask& task, const SumRequest& request,
                          std::int64_t* sum) {
  const std::int64_t n_blocks = (task.records.n_rows + kRowBlock - 1) / kRowBlock;
  const int n_threads = static_cast<int>(std::clamp<std::int64_t>(n_blocks, 1, resolve_threads(request.n_threads)));
  const auto length = static_cast<std::size_t>(task.gradient_length());
  // Allocated before the parallel region, in which nothing may throw; padded so that threads share no cache line.
  const std::size_t sums_stride = (length + 7) / 8 * 8 + 8;
  const std::size_t scratch_stride = (static_cast<std::size_t>(task.scratch_length()) + 7) / 8 * 8 + 8;
  const auto threads = static_cast<std::size_t>(n_threads);
  AlignedVector<std::uint64_t> sums(threads * sums_stride, 0);
  AlignedVector<double> scratch(threads * scratch_stride);
  std::vector<std::int64_t> rows(threads * static_cast<std::size_t>(kRowBlock));

#pragma omp parallel for schedule(static, 1) num_threads(n_threads)
  for (int thread = 0; thread < n_threads; ++thread) {
    const auto t = static_cast<std::size_t>(thread);
    std::int64_t* mine = rows.data() + t * static_cast<std::size_t>(kRowBlock);
    GroupedRows grouped(kernels, task, scratch.data() + t * scratch_stride, sums.data() + t * sums_stride);
    const std::int64_t first = n_blocks * thread / n_threads;
    const std::int64_t last = n_blocks * (thread + 1) / n_threads;
    for (std::int64_t block = first; block < last; ++block) {
      const int count =
          poisson_sample(kernels, request.key, request.step, block, task.records.n_rows, request.threshold, mine);
      grouped.add(mine, count);
    }
    grouped.flush();
  }

  // Integer addition is associative: any order gives the same sum.
  for (std::size_t t = 1; t < threads; ++t) {
    for (std::size_t j = 0; j < length; ++j) sums[j] += sums[t * sums_stride + j];
  }
  const auto at = [&](int index) { return static_cast<std::int64_t>(sums[static_cast<std::size_t>(index)]); };
  const int extra = task.gradient_length() - kRowGroup;
  int out = 0;
  for (int j = 0; j < task.n_coef; ++j) sum[out++] = at(j);
  if (task.has_dispersion) sum[out++] = at(extra);
  if (!task.has_raw) return;
  for (int j = 0; j < task.n_coef; ++j) sum[out++] = at(task.n_pad + j);
  if (task.has_dispersion) sum[out++] = at(extra + 1);
}

void noisy_gradient_sum(const KernelTable& kernels, const GradientTask& task, const SumRequest& request,
                        double noise_steps, std::int64_t* sum) {
  clipped_gradient_sum(kernels, task, request, sum);
  add_rounded_gaussian(kernels, request.key, request.step, noise_steps, released_length(task), sum);
}

}  // namespace dpinfer
