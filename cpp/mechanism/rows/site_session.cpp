#include "mechanism/rows/site_session.hpp"

#include <cstddef>
#include <utility>

#include "mechanism/row_draws.hpp"

namespace dpinfer {

SiteSession::SiteSession(const KernelTable& kernels, std::unique_ptr<SiteKernel> sites, std::int64_t n_rows,
                         double max_site_norm, const RandomKey& key, int n_threads)
    : sum_(kernels, max_site_norm, key, n_threads), sites_(std::move(sites)), n_rows_(n_rows) {}

void SiteSession::poisson_sum(std::uint64_t step, double sample_rate, double noise_multiplier, std::span<double> sum) {
  sum_.noisy(rows(), n_rows_, step, SampleThreshold::from_rate(sample_rate), noise_multiplier, sum);
}

void SiteSession::uniform_sum(std::uint64_t step, double noise_multiplier, std::span<double> sum) {
  const std::int64_t row = uniform(step);
  sum_.noisy(rows(), {&row, 1}, step, noise_multiplier, sum);
}

void SiteSession::permuted_sum(std::uint64_t step, double noise_multiplier, std::span<double> sum) {
  const auto n = static_cast<std::uint64_t>(n_rows_);
  const std::int64_t row = order(step / n)[static_cast<std::size_t>(step % n)];
  sum_.noisy(rows(), {&row, 1}, step, noise_multiplier, sum);
}

std::int64_t SiteSession::uniform(std::uint64_t step) const {
  return uniform_row(sum_.kernels(), sum_.key(), step, n_rows_);
}

const std::vector<std::int64_t>& SiteSession::order(std::uint64_t epoch) {
  if (order_.empty() || epoch != order_epoch_) {
    order_ = row_order(sum_.kernels(), sum_.key(), epoch, n_rows_);
    order_epoch_ = epoch;
  }
  return order_;
}

void SiteSession::clipped_poisson_sum(std::uint64_t step, double sample_rate, std::span<std::int64_t> sum) {
  sum_.clipped(rows(), n_rows_, step, SampleThreshold::from_rate(sample_rate), sum);
}

void SiteSession::clipped_sum(std::span<const std::int64_t> listed, std::span<std::int64_t> sum) {
  sum_.clipped(rows(), listed, sum);
}

void SiteSession::plain_sum(double max_norm, std::span<double> sum) {
  dpinfer::plain_sum(sum_.kernels(), *sites_, n_rows_, max_norm, sum_.n_threads(), sum);
}

void SiteSession::contributions(std::span<const std::int64_t> listed, std::span<double> out) const {
  std::vector<double> scratch(static_cast<std::size_t>(sites_->scratch_length()));
  const auto width = static_cast<std::size_t>(sites_->length());
  for (std::size_t i = 0; i < listed.size(); ++i) {
    sites_->contribution(listed[i], scratch.data(), out.data() + i * width);
  }
}

}  // namespace dpinfer
