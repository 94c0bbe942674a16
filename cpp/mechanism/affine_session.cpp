#include "mechanism/affine_session.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/float_environment.hpp"
#include "common/parallel.hpp"
#include "mechanism/rounded_gaussian.hpp"

namespace dpinfer {

namespace {

// Sampled records, statistic by statistic, until a group is full.
class GroupedStatistics {
 public:
  GroupedStatistics(const KernelTable& kernels, const AffineTask& task, const double* statistics, std::uint64_t* sums)
      : kernels_(kernels), task_(task), statistics_(statistics), sums_(sums) {}

  void add(const std::int64_t* rows, int count) {
    for (int i = 0; i < count; ++i) {
      const double* record = statistics_ + rows[i] * task_.n_statistics;
      for (int s = 0; s < task_.n_statistics; ++s)
        group_[static_cast<std::size_t>(s) * kRowGroup + static_cast<std::size_t>(filled_)] = record[s];
      if (++filled_ == kRowGroup) flush();
    }
  }

  void flush() {
    if (filled_ > 0) kernels_.affine_rows(task_, group_.data(), filled_, sums_);
    filled_ = 0;
  }

 private:
  alignas(kCacheLine) std::array<double, static_cast<std::size_t>(kMaxStatistics* kRowGroup)> group_{};
  const KernelTable& kernels_;
  const AffineTask& task_;
  const double* statistics_;
  std::uint64_t* sums_;
  int filled_ = 0;
};

constexpr std::size_t kSumsStride = kMaxAffineLength + 8;  // threads share no cache line

}  // namespace

AffineSession::AffineSession(const KernelTable& kernels, std::span<const double> statistics, std::int64_t n_rows,
                             int n_statistics, int length, double sample_rate, double max_grad_norm,
                             const RandomKey& key, int n_threads)
    : kernels_(kernels),
      statistics_(statistics.data()),
      n_rows_(n_rows),
      key_(key),
      threshold_(SampleThreshold::from_rate(sample_rate)),
      lattice_(Lattice::from_max_norm(max_grad_norm)),
      noise_unit_(max_grad_norm / lattice_.step) {
  const std::int64_t n_blocks = (n_rows + kRowBlock - 1) / kRowBlock;
  n_threads_ = static_cast<int>(std::clamp<std::int64_t>(n_blocks, 1, resolve_threads(n_threads)));
  matrix_.assign(static_cast<std::size_t>(length) * static_cast<std::size_t>(n_statistics), 0.0);
  offset_.assign(static_cast<std::size_t>(length), 0.0);
  task_ = {length, n_statistics, matrix_.data(), offset_.data(), lattice_.clip_norm / lattice_.step};
  sums_.assign(static_cast<std::size_t>(n_threads_) * kSumsStride, 0);
  rows_.assign(static_cast<std::size_t>(n_threads_) * static_cast<std::size_t>(kRowBlock), 0);
}

void AffineSession::set_map(std::span<const double> matrix, std::span<const double> offset) {
  for (std::size_t i = 0; i < matrix_.size(); ++i) matrix_[i] = matrix[i] / lattice_.step;
  for (std::size_t i = 0; i < offset_.size(); ++i) offset_[i] = offset[i] / lattice_.step;
}

void AffineSession::contribution(std::span<const double> statistics, std::span<std::int64_t> gradient) const {
  alignas(kCacheLine) std::array<double, static_cast<std::size_t>(kMaxStatistics * kRowGroup)> group{};
  for (std::size_t s = 0; s < statistics.size(); ++s) group[s * kRowGroup] = statistics[s];
  std::array<std::uint64_t, kMaxAffineLength> sums{};
  kernels_.affine_rows(task_, group.data(), 1, sums.data());
  for (std::size_t j = 0; j < gradient.size(); ++j) gradient[j] = static_cast<std::int64_t>(sums[j]);
}

void AffineSession::clipped_sum(std::uint64_t step, std::span<std::int64_t> sum) {
  std::fill(sums_.begin(), sums_.end(), 0);
  const std::int64_t n_blocks = (n_rows_ + kRowBlock - 1) / kRowBlock;
  const auto share = [&](int thread) {
    const auto t = static_cast<std::size_t>(thread);
    std::int64_t* rows = rows_.data() + t * static_cast<std::size_t>(kRowBlock);
    GroupedStatistics grouped(kernels_, task_, statistics_, sums_.data() + t * kSumsStride);
    const std::int64_t last = n_blocks * (thread + 1) / n_threads_;
    for (std::int64_t block = n_blocks * thread / n_threads_; block < last; ++block) {
      grouped.add(rows, poisson_sample(kernels_, key_, step, block, n_rows_, threshold_, rows));
    }
    grouped.flush();
  };
  if (n_threads_ == 1) {
    share(0);
  } else {
#pragma omp parallel for schedule(static, 1) num_threads(n_threads_)
    for (int thread = 0; thread < n_threads_; ++thread) {
      const FloatEnvironment standard;
      share(thread);
    }
  }
  for (std::size_t j = 0; j < sum.size(); ++j) {
    std::uint64_t total = 0;
    for (std::size_t t = 0; t < static_cast<std::size_t>(n_threads_); ++t) total += sums_[t * kSumsStride + j];
    sum[j] = static_cast<std::int64_t>(total);
  }
}

void AffineSession::add_noise(std::uint64_t step, double noise_multiplier, std::span<std::int64_t> sum,
                              std::span<double> noisy) const {
  add_rounded_gaussian(kernels_, key_, step, noise_multiplier * noise_unit_, task_.length, sum.data());
  for (std::size_t j = 0; j < sum.size(); ++j) noisy[j] = static_cast<double>(sum[j]) * lattice_.step;
}

void AffineSession::noisy_sum(std::uint64_t step, double noise_multiplier, std::span<double> noisy) {
  std::array<std::int64_t, kMaxAffineLength> sum{};
  const std::span<std::int64_t> used(sum.data(), noisy.size());
  clipped_sum(step, used);
  add_noise(step, noise_multiplier, used, noisy);
}

}  // namespace dpinfer
