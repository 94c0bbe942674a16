#include "mechanism/rows/network_session.hpp"

#include <algorithm>
#include <cstddef>

namespace dpinfer {

void pad(const NetworkShape& shape, std::span<const double> source, double filling, AlignedVector<double>& target) {
  target.assign(static_cast<std::size_t>(shape.padded_length()), filling);
  const auto n = static_cast<std::size_t>(shape.n_hidden);
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.n_rows()); ++row) {
    std::copy_n(source.data() + row * n, n, target.data() + row * static_cast<std::size_t>(shape.pad));
  }
  target[static_cast<std::size_t>(shape.bias_place())] = source.back();
}

NetworkSession::NetworkSession(const KernelTable& kernels, const NetworkKernelTable& network,
                               const NetworkRecords& records, NetworkShape shape, double hidden_scale,
                               double output_scale, double sample_rate, double max_norm, const RandomKey& key,
                               int n_threads)
    : SampledSession(kernels, sample_rate, max_norm, key, n_threads),
      records_(records),
      task_{.shape = shape, .hidden_scale = hidden_scale, .output_scale = output_scale},
      contribution_(network, records, task_) {
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

void NetworkSession::plain_sum(std::span<const std::int64_t> rows, double max_norm, std::span<double> sum) {
  dpinfer::plain_sum(sum_.kernels(), contribution_, rows, max_norm, sum_.n_threads(), sum);
}

}  // namespace dpinfer
