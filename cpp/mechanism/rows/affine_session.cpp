#include "mechanism/rows/affine_session.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace dpinfer {

void AffineRows::add(const RowBatch& batch, double* scratch, std::uint64_t* sums) const noexcept {
  const int n = task_.n_statistics;
  for (int first = 0; first < batch.count; first += kRowGroup) {
    const int count = std::min(kRowGroup, batch.count - first);
    // Statistic by statistic, a record in each lane.
    for (int r = 0; r < count; ++r) {
      const double* record = statistics_ + batch.rows[first + r] * n;
      for (int s = 0; s < n; ++s) scratch[s * kRowGroup + r] = record[s];
    }
    kernels_.affine_rows(task_, scratch, count, sums);
  }
}

AffineSession::AffineSession(const KernelTable& kernels, std::span<const double> statistics, std::int64_t n_rows,
                             int n_statistics, int length, double sample_rate, double max_grad_norm,
                             const RandomKey& key, int n_threads)
    : SampledSession(kernels, sample_rate, max_grad_norm, key, n_threads),
      statistics_(statistics.data()),
      n_rows_(n_rows),
      matrix_(static_cast<std::size_t>(length) * static_cast<std::size_t>(n_statistics), 0.0),
      offset_(static_cast<std::size_t>(length), 0.0),
      task_{length, n_statistics, matrix_.data(), offset_.data(), sum_.lattice().clip_norm / sum_.lattice().step} {}

void AffineSession::set_map(std::span<const double> matrix, std::span<const double> offset) {
  for (std::size_t i = 0; i < matrix_.size(); ++i) matrix_[i] = matrix[i] / lattice_step();
  for (std::size_t i = 0; i < offset_.size(); ++i) offset_[i] = offset[i] / lattice_step();
}

void AffineSession::contribution(std::span<const double> statistics, std::span<std::int64_t> gradient) const {
  alignas(kCacheLine) std::array<double, static_cast<std::size_t>(kMaxStatistics * kRowGroup)> group{};
  for (std::size_t s = 0; s < statistics.size(); ++s) group[s * kRowGroup] = statistics[s];
  std::array<std::uint64_t, kMaxAffineLength> sums{};
  sum_.kernels().affine_rows(task_, group.data(), 1, sums.data());
  for (std::size_t j = 0; j < gradient.size(); ++j) gradient[j] = static_cast<std::int64_t>(sums[j]);
}

}  // namespace dpinfer
