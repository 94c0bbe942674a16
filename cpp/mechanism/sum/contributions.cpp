#include "mechanism/sum/contributions.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "common/parallel.hpp"
#include "mechanism/sum/private_sum.hpp"

namespace dpinfer {

namespace {

// A plain sum is cut into so many runs of rows, each added in order, and the runs in order: the same for any threads.
constexpr std::int64_t kPlainRuns = 64;

template <typename RowAt>
void sum_of_runs(const KernelTable& kernels, const Contributions& contributions, std::int64_t n_rows,
                 const RowAt& row_at, double max_norm, int requested, std::span<double> sum) {
  const std::size_t length = sum.size();
  const std::size_t padded = (length + kRowGroup - 1) / kRowGroup * kRowGroup;
  const std::size_t width = padded + kRowGroup;
  const std::size_t scratch_width = static_cast<std::size_t>(contributions.scratch_length()) + 2 * kRowGroup;
  const std::int64_t n_runs = std::clamp<std::int64_t>(n_rows, 1, kPlainRuns);
  const int n_threads = static_cast<int>(std::clamp<std::int64_t>(n_runs, 1, resolve_threads(requested)));
  AlignedVector<double> totals(static_cast<std::size_t>(n_runs) * width, 0.0);
  AlignedVector<double> values(static_cast<std::size_t>(n_threads) * width, 0.0);
  AlignedVector<double> scratch(static_cast<std::size_t>(n_threads) * scratch_width);
  std::atomic<std::int64_t> next{0};
  run_threads(n_threads, [&](int thread) {
    const auto t = static_cast<std::size_t>(thread);
    double* const value = values.data() + t * width;
    for (std::int64_t run = next.fetch_add(1); run < n_runs; run = next.fetch_add(1)) {
      double* const total = totals.data() + static_cast<std::size_t>(run) * width;
      for (std::int64_t i = n_rows * run / n_runs; i < n_rows * (run + 1) / n_runs; ++i) {
        contributions.contribution(row_at(i), scratch.data() + t * scratch_width, value);
        std::fill(value + length, value + padded, 0.0);
        kernels.plain_vector(value, static_cast<int>(padded), max_norm, total);
      }
    }
  });
  std::fill(sum.begin(), sum.end(), 0.0);
  for (std::size_t run = 0; run < static_cast<std::size_t>(n_runs); ++run) {
    for (std::size_t j = 0; j < length; ++j) sum[j] += totals[run * width + j];
  }
}

}  // namespace

void ClippedContributions::add(const RowBatch& batch, double* scratch, std::uint64_t* sums) const noexcept {
  const int length = contributions_.length();
  const int padded = padded_length();
  for (int i = 0; i < batch.count; ++i) {
    contributions_.contribution(batch.rows[i], scratch + padded + kRowGroup, scratch);
    std::fill(scratch + length, scratch + padded, 0.0);
    kernels_.clipped_vector(scratch, padded, inverse_step_, clip_norm_, sums);
  }
}

void plain_sum(const KernelTable& kernels, const Contributions& contributions, std::int64_t n_rows, double max_norm,
               int n_threads, std::span<double> sum) {
  sum_of_runs(kernels, contributions, n_rows, [](std::int64_t i) { return i; }, max_norm, n_threads, sum);
}

void plain_sum(const KernelTable& kernels, const Contributions& contributions, std::span<const std::int64_t> rows,
               double max_norm, int n_threads, std::span<double> sum) {
  const auto row_at = [rows](std::int64_t i) { return rows[static_cast<std::size_t>(i)]; };
  sum_of_runs(kernels, contributions, static_cast<std::int64_t>(rows.size()), row_at, max_norm, n_threads, sum);
}

}  // namespace dpinfer
