#include "mechanism/site_session.hpp"

#include <cstddef>
#include <utility>

#include "mechanism/row_draws.hpp"

namespace dpinfer {

SiteSession::SiteSession(const KernelTable& kernels, std::unique_ptr<SiteKernel> sites, std::int64_t n_rows,
                         double max_site_norm, const RandomKey& key, int n_threads)
    : kernels_(kernels),
      sites_(std::move(sites)),
      n_rows_(n_rows),
      lattice_(Lattice::from_max_norm(max_site_norm)),
      noise_unit_(max_site_norm / lattice_.step),
      key_(key),
      n_threads_(n_threads),
      noisy_(static_cast<std::size_t>(sites_->length())) {}

void SiteSession::to_units(std::span<double> sum) const {
  for (std::size_t j = 0; j < sum.size(); ++j) sum[j] = static_cast<double>(noisy_[j]) * lattice_.step;
}

void SiteSession::poisson_sum(std::uint64_t step, double sample_rate, double noise_multiplier, std::span<double> sum) {
  noisy_record_sum(kernels_, *sites_, n_rows_, lattice_,
                   {key_, step, SampleThreshold::from_rate(sample_rate), n_threads_}, noise_multiplier * noise_unit_,
                   workspace_, noisy_.data());
  to_units(sum);
}

void SiteSession::noisy_row(std::int64_t row, std::uint64_t step, double noise_multiplier, std::span<double> sum) {
  noisy_listed_sum(kernels_, *sites_, {&row, 1}, lattice_, key_, step, 1, noise_multiplier * noise_unit_, workspace_,
                   noisy_.data());
  to_units(sum);
}

void SiteSession::uniform_sum(std::uint64_t step, double noise_multiplier, std::span<double> sum) {
  noisy_row(uniform(step), step, noise_multiplier, sum);
}

void SiteSession::permuted_sum(std::uint64_t step, double noise_multiplier, std::span<double> sum) {
  const auto n = static_cast<std::uint64_t>(n_rows_);
  noisy_row(order(step / n)[static_cast<std::size_t>(step % n)], step, noise_multiplier, sum);
}

std::int64_t SiteSession::uniform(std::uint64_t step) const { return uniform_row(kernels_, key_, step, n_rows_); }

const std::vector<std::int64_t>& SiteSession::order(std::uint64_t epoch) {
  if (order_.empty() || epoch != order_epoch_) {
    order_ = row_order(kernels_, key_, epoch, n_rows_);
    order_epoch_ = epoch;
  }
  return order_;
}

void SiteSession::clipped_poisson_sum(std::uint64_t step, double sample_rate, std::span<std::int64_t> sum) {
  clipped_record_sum(kernels_, *sites_, n_rows_, lattice_,
                     {key_, step, SampleThreshold::from_rate(sample_rate), n_threads_}, workspace_, sum.data());
}

void SiteSession::clipped_sum(std::span<const std::int64_t> rows, std::span<std::int64_t> sum) {
  clipped_listed_sum(kernels_, *sites_, rows, lattice_, n_threads_, workspace_, sum.data());
}

void SiteSession::plain_sum(double max_norm, std::span<double> sum) {
  plain_record_sum(*sites_, n_rows_, max_norm, n_threads_, workspace_, sum.data());
}

void SiteSession::contributions(std::span<const std::int64_t> rows, std::span<double> out) const {
  std::vector<double> scratch(static_cast<std::size_t>(sites_->scratch_length()));
  const auto width = static_cast<std::size_t>(sites_->length());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sites_->contribution(rows[i], scratch.data(), out.data() + i * width);
  }
}

}  // namespace dpinfer
