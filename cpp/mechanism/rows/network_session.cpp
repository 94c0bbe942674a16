#include "mechanism/rows/network_session.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace dpinfer {

namespace {

// A precision that leaves no variance: padding must not look like a weight.
constexpr double kNoWeight = 1e300;

void pad(const NetworkShape& shape, std::span<const double> source, double filling, AlignedVector<double>& target) {
  target.assign(static_cast<std::size_t>(shape.padded_length()), filling);
  const auto n = static_cast<std::size_t>(shape.n_hidden);
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.n_rows()); ++row) {
    std::copy_n(source.data() + row * n, n, target.data() + row * static_cast<std::size_t>(shape.pad));
  }
  target[static_cast<std::size_t>(shape.bias_place())] = source.back();
}

void strip(const NetworkShape& shape, const AlignedVector<double>& source, std::span<double> target) {
  const auto n = static_cast<std::size_t>(shape.n_hidden);
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.n_rows()); ++row) {
    std::copy_n(source.data() + row * static_cast<std::size_t>(shape.pad), n, target.data() + row * n);
  }
  target.back() = source[static_cast<std::size_t>(shape.bias_place())];
}

}  // namespace

NetworkSession::NetworkSession(const KernelTable& kernels, const NetworkKernelTable& network,
                               const NetworkRecords& records, NetworkShape shape, double hidden_scale,
                               double output_scale, double sample_rate, double max_norm, const RandomKey& key,
                               int n_threads)
    : sum_(kernels, max_norm, key, n_threads),
      threshold_(SampleThreshold::from_rate(sample_rate)),
      network_(network),
      records_(records),
      task_{.shape = shape, .hidden_scale = hidden_scale, .output_scale = output_scale} {
  const std::vector<double> ones(static_cast<std::size_t>(n_params()), 1.0);
  set_sites(ones, ones, 1.0, SiteWeights{});
}

void NetworkSession::set_state(std::span<const double> mean, std::span<const double> variance, double noise_variance) {
  pad(task_.shape, mean, 0.0, mean_);
  pad(task_.shape, variance, 0.0, variance_);
  task_.mean = mean_.data();
  task_.variance = variance_.data();
  task_.noise_variance = noise_variance;
}

void NetworkSession::set_sites(std::span<const double> mean, std::span<const double> variance, double noise_variance,
                               const SiteWeights& weights) {
  set_state(mean, variance, noise_variance);
  task_.output = NetworkOutput::site;
  task_.eta_weight = weights.eta;
  task_.site_weight = weights.precision;
  task_.noise_weight = weights.noise;
  task_.site_norm = weights.norm;
  task_.noise_limit = weights.noise_limit;
}

void NetworkSession::set_gradients(std::span<const double> mean, std::span<const double> variance,
                                   double noise_variance, std::span<const double> mean_scale,
                                   std::span<const double> variance_scale, double noise_weight) {
  set_state(mean, variance, noise_variance);
  pad(task_.shape, mean_scale, 0.0, mean_scale_);
  pad(task_.shape, variance_scale, 0.0, variance_scale_);
  task_.output = NetworkOutput::gradient;
  task_.mean_scale = mean_scale_.data();
  task_.variance_scale = variance_scale_.data();
  task_.noise_weight = noise_weight;
  task_.noise_limit = NetworkTask::kNone;
}

void NetworkSession::clipped_sum(std::uint64_t step, std::span<std::int64_t> sum) {
  const NetworkContribution records = contribution();
  sum_.clipped(ClippedContributions(sum_.kernels(), records, sum_.lattice()), records_.n_rows, step, threshold_, sum);
}

void NetworkSession::noisy_sum(std::uint64_t step, double noise_multiplier, std::span<double> released) {
  const NetworkContribution records = contribution();
  sum_.noisy(ClippedContributions(sum_.kernels(), records, sum_.lattice()), records_.n_rows, step, threshold_,
             noise_multiplier, released);
}

void NetworkSession::plain_sum(std::span<const std::int64_t> rows, double max_norm, std::span<double> sum) {
  dpinfer::plain_sum(sum_.kernels(), contribution(), rows, max_norm, sum_.n_threads(), sum);
}

NetworkPasses::NetworkPasses(const NetworkKernelTable& network, const NetworkRecords& records, NetworkShape shape,
                             bool own_sites, double clip_norm, double site_weight, std::span<const double> eta,
                             std::span<const double> precision, std::span<const double> prior_precision,
                             std::span<const double> gamma, std::span<const double> prior_gamma)
    : network_(network), records_(records) {
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
    network_.update(pass_, records_.features + row * pass_.task.shape.n_features, records_.response[row], site,
                    scratch_.data());
  }
}

void NetworkPasses::set_prior(std::span<const double> prior_precision) {
  AlignedVector<double> old = prior_precision_;
  pad(pass_.task.shape, prior_precision, kNoWeight, prior_precision_);
  pass_.prior_precision = prior_precision_.data();
  for (std::size_t k = 0; k < old.size(); ++k) {
    const double moved = precision_[k] + (prior_precision_[k] - old[k]);
    if (moved > 1e-10) precision_[k] = moved;
  }
}

void NetworkPasses::state(std::span<double> eta, std::span<double> precision, std::span<double> gamma) const {
  strip(pass_.task.shape, eta_, eta);
  strip(pass_.task.shape, precision_, precision);
  std::copy_n(gamma_, 2, gamma.data());
}

}  // namespace dpinfer
