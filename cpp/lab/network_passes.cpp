#include "lab/network_passes.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/simd_dispatch.hpp"

DPINFER_SIMD_COPIES(dpinfer::NetworkUpdates, kNetworkUpdates)

namespace dpinfer {

const NetworkUpdates* network_updates() { return kNetworkUpdatesCopies.best(); }

namespace {

// A precision that leaves no variance: padding must not look like a weight.
constexpr double kNoWeight = 1e300;
constexpr double kLeastPrecision = 1e-10;  // of q

void strip(const NetworkShape& shape, const AlignedVector<double>& source, std::span<double> target) {
  const auto n = static_cast<std::size_t>(shape.n_hidden);
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.n_rows()); ++row) {
    std::copy_n(source.data() + row * static_cast<std::size_t>(shape.pad), n, target.data() + row * n);
  }
  target.back() = source[static_cast<std::size_t>(shape.bias_place())];
}

}  // namespace

NetworkPasses::NetworkPasses(const NetworkUpdates& updates, const NetworkRecords& records, NetworkShape shape,
                             bool own_sites, double clip_norm, double site_weight, std::span<const double> eta,
                             std::span<const double> precision, std::span<const double> prior_precision,
                             std::span<const double> gamma, std::span<const double> prior_gamma)
    : updates_(updates), records_(records) {
  pad(shape, eta, 0.0, eta_);
  pad(shape, precision, kNoWeight, precision_);
  pad(shape, prior_precision, kNoWeight, prior_precision_);
  prior_eta_.assign(eta_.size(), 0.0);
  std::copy_n(gamma.data(), 2, gamma_);
  std::copy_n(prior_gamma.data(), 2, prior_gamma_);
  pass_.task = {.shape = shape,
                .hidden_scale = 1.0 / std::sqrt(shape.n_features + 1.0),
                .output_scale = 1.0 / std::sqrt(shape.n_hidden + 1.0),
                .site_weight = site_weight};
  pass_.eta = eta_.data();
  pass_.precision = precision_.data();
  pass_.prior_eta = prior_eta_.data();
  pass_.prior_precision = prior_precision_.data();
  pass_.noise_gamma = gamma_;
  pass_.prior_gamma = prior_gamma_;
  pass_.clip_norm = clip_norm;
  scratch_.assign(static_cast<std::size_t>(pass_.scratch_length()), 0.0);
  if (own_sites) sites_.assign(static_cast<std::size_t>(records.n_rows) * (2 * eta_.size() + 8), 0.0);
}

void NetworkPasses::run(std::span<const std::int64_t> order, double share, double step) {
  pass_.site_share = share;
  pass_.step = step;
  const std::size_t width = 2 * eta_.size() + 8;
  for (const std::int64_t row : order) {
    double* site = sites_.empty() ? nullptr : sites_.data() + static_cast<std::size_t>(row) * width;
    updates_.update(pass_, records_.features + row * pass_.task.shape.n_features, records_.response[row], site,
                    scratch_.data());
  }
}

void NetworkPasses::set_prior(std::span<const double> prior_precision) {
  AlignedVector<double> old = prior_precision_;
  pad(pass_.task.shape, prior_precision, kNoWeight, prior_precision_);
  pass_.prior_precision = prior_precision_.data();
  for (std::size_t k = 0; k < old.size(); ++k) {
    const double moved = precision_[k] + (prior_precision_[k] - old[k]);
    if (moved > kLeastPrecision) precision_[k] = moved;
  }
}

void NetworkPasses::add(std::span<const double> eta, std::span<const double> precision) {
  AlignedVector<double> eta_change(eta_.size()), change(precision_.size());
  pad(pass_.task.shape, eta, 0.0, eta_change);
  pad(pass_.task.shape, precision, 0.0, change);
  for (std::size_t k = 0; k < change.size(); ++k) {
    eta_[k] += eta_change[k];
    if (precision_[k] + change[k] > kLeastPrecision) precision_[k] += change[k];
  }
}

void NetworkPasses::state(std::span<double> eta, std::span<double> precision, std::span<double> gamma) const {
  strip(pass_.task.shape, eta_, eta);
  strip(pass_.task.shape, precision_, precision);
  std::copy_n(gamma_, 2, gamma.data());
}

}  // namespace dpinfer
