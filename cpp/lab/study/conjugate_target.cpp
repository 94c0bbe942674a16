#include "lab/study/conjugate_target.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace dpinfer::study {

namespace {

// The distribution function of Binomial(count, rate) from the smallest value whose probability matters (1e-18).
std::vector<double> binomial_distribution(std::int64_t count, double rate, std::int64_t& first) {
  first = 0;
  if (rate >= 1.0) {
    first = count;
    return {1.0};
  }
  const auto n = static_cast<double>(count);
  const double odds = std::log(rate) - std::log1p(-rate);
  const double head = std::lgamma(n + 1.0) + n * std::log1p(-rate);
  const auto probability = [&](double k) {
    return std::exp(head - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0) + k * odds);
  };
  constexpr double kNegligible = 1e-18;
  const auto mode = static_cast<std::int64_t>(std::floor((n + 1.0) * rate));
  first = std::min(mode, count);
  while (first > 0 && probability(static_cast<double>(first - 1)) > kNegligible) --first;
  std::vector<double> cumulative;
  double total = 0.0;
  for (std::int64_t k = first; k <= count; ++k) {
    const double p = probability(static_cast<double>(k));
    if (k > mode && p < kNegligible) break;
    cumulative.push_back(total += p);
  }
  for (double& value : cumulative) value /= total;
  return cumulative;
}

}  // namespace

ConjugateTarget::ConjugateTarget(const ConjugateModel& model, const ConjugateData& data, GradientKind kind,
                                 std::span<const double> nodes, std::span<const double> weights,
                                 const KernelTable& kernels, double sample_rate, double max_grad_norm,
                                 const RandomKey& key)
    : model_(model),
      data_(data),
      kind_(kind),
      n_(static_cast<std::size_t>(model.n_params)),
      width_(kind == GradientKind::aligned ? n_ : 2 * n_),
      kernels_(kernels),
      key_(key),
      rate_(SampleThreshold::from_rate(sample_rate).effective_rate()),
      session_(kernels, data.statistics, static_cast<std::int64_t>(data.statistics.size() / n_), model.n_params,
               static_cast<int>(width_), sample_rate, max_grad_norm, key, 1),
      slope_(2 * n_ * n_),
      constant_(2 * n_),
      prior_(2 * n_),
      matrix_(width_ * n_),
      scaled_(width_) {
  // The tensor product of the one-dimensional rule where parameters interact, else the same nodes for each of them.
  const std::size_t m = nodes.size();
  const bool interact = model.family == ConjugateFamily::softmax;
  std::size_t total = m;
  for (std::size_t j = 1; interact && j < n_; ++j) total *= m;
  for (std::size_t k = 0; k < total; ++k) {
    double weight = interact ? 1.0 : weights[k];
    for (std::size_t j = 0, rest = k; j < n_; ++j) {
      nodes_.push_back(nodes[rest % m]);
      if (!interact) continue;
      weight *= weights[rest % m];
      rest /= m;
    }
    weights_.push_back(weight);
  }
  for (const std::int64_t count : data_.counts) {
    std::int64_t first = 0;
    sampled_.push_back(binomial_distribution(count, rate_, first));
    first_.push_back(first);
  }
}

void ConjugateTarget::information(const Iterate& q, std::span<double> out) {
  switch (model_.family) {
    case ConjugateFamily::exponential: {
      const double ratio = sigmoid(q.loc(0)) / std::max(softplus(q.loc(0)), 1e-300);
      out[0] = ratio * ratio;
      break;
    }
    case ConjugateFamily::binomial:
      out[0] = model_.n_trials * sigmoid(q.loc(0)) * sigmoid(-q.loc(0));
      break;
    case ConjugateFamily::sticks: {
      double left = 1.0;
      for (std::size_t j = 0; j < n_; ++j) {
        out[j] = left * sigmoid(q.loc(j)) * sigmoid(-q.loc(j));
        left *= sigmoid(-q.loc(j));
      }
      break;
    }
    case ConjugateFamily::softmax: {
      double top = 0.0;
      for (std::size_t j = 0; j < n_; ++j) top = std::max(top, q.loc(j));
      double total = std::exp(-top);
      for (std::size_t j = 0; j < n_; ++j) total += std::exp(q.loc(j) - top);
      for (std::size_t j = 0; j < n_; ++j) {
        const double p = std::exp(q.loc(j) - top) / total;
        out[j] = p * (1.0 - p);
      }
      break;
    }
  }
  for (std::size_t j = 0; j < n_; ++j) out[j] = std::max(out[j], 1e-12);
}

void ConjugateTarget::prepare(const Iterate& q, std::span<const double> draws) {
  for (auto* values : {&slope_, &constant_, &prior_}) std::fill(values->begin(), values->end(), 0.0);
  if (kind_ == GradientKind::quadrature) {
    for (std::size_t k = 0; k < weights_.size(); ++k) add_node(q, {nodes_.data() + k * n_, n_}, weights_[k]);
  } else {
    const std::size_t n_draws = draws.size() / n_;
    for (std::size_t k = 0; k < n_draws; ++k)
      add_node(q, draws.subspan(k * n_, n_), 1.0 / static_cast<double>(n_draws));
  }
  for (std::size_t j = 0; j < n_; ++j) {  // d theta / d raw = z s'
    for (auto* values : {&constant_, &prior_}) (*values)[n_ + j] *= q.slope[j];
    for (std::size_t i = 0; i < n_; ++i) slope_[(n_ + j) * n_ + i] *= q.slope[j];
  }
}

void ConjugateTarget::add_node(const Iterate& q, std::span<const double> z, double weight) {
  constexpr std::size_t kMaxParams = 16;
  std::array<double, kMaxParams> slope{};    // on the diagonal
  std::array<double, kMaxParams> earlier{};  // sticks: on every earlier statistic
  std::array<double, kMaxParams> constant{};
  std::array<double, kMaxParams> prior{};
  switch (model_.family) {
    case ConjugateFamily::exponential: {
      const double theta = q.loc(0) + q.scale[0] * z[0];
      const double rate = std::max(softplus(theta), 1e-300);
      const double derivative = sigmoid(theta);
      slope[0] = derivative;
      constant[0] = -derivative / rate;
      prior[0] = -((model_.prior[0] - 1.0) / rate - model_.prior[1]) * derivative - sigmoid(-theta);
      break;
    }
    case ConjugateFamily::binomial: {
      const double p = sigmoid(q.loc(0) + q.scale[0] * z[0]);
      slope[0] = -1.0;
      constant[0] = model_.n_trials * p;
      prior[0] = (model_.prior[0] + model_.prior[1]) * p - model_.prior[0];
      break;
    }
    case ConjugateFamily::sticks: {
      double rest = 0.0;
      for (const double alpha : model_.prior) rest += alpha;
      for (std::size_t j = 0; j < n_; ++j) {
        const double share = sigmoid(q.loc(j) + q.scale[j] * z[j]);
        prior[j] = rest * share - model_.prior[j];
        rest -= model_.prior[j];
        slope[j] = -1.0;
        earlier[j] = -share;
        constant[j] = share;
      }
      break;
    }
    case ConjugateFamily::softmax: {
      std::array<double, kMaxParams> power{};
      double top = 0.0;
      for (std::size_t j = 0; j < n_; ++j) {
        power[j] = q.loc(j) + q.scale[j] * z[j];
        top = std::max(top, power[j]);
      }
      double total = std::exp(-top);
      for (std::size_t j = 0; j < n_; ++j) total += (power[j] = std::exp(power[j] - top));
      double concentration = 0.0;
      for (const double alpha : model_.prior) concentration += alpha;
      for (std::size_t j = 0; j < n_; ++j) {
        const double p = power[j] / total;
        slope[j] = -1.0;
        constant[j] = p;
        prior[j] = concentration * p - model_.prior[j];
      }
      break;
    }
  }
  for (std::size_t j = 0; j < n_; ++j) {
    for (std::size_t i = 0; i <= j; ++i) {
      const double value = i == j ? slope[j] : earlier[j];
      slope_[j * n_ + i] += weight * value;
      slope_[(n_ + j) * n_ + i] += weight * z[j] * value;
    }
    constant_[j] += weight * constant[j];
    prior_[j] += weight * prior[j];
    constant_[n_ + j] += weight * z[j] * constant[j];
    prior_[n_ + j] += weight * z[j] * prior[j];
  }
}

void ConjugateTarget::prior_gradient(const Iterate&, std::span<double> out) {
  std::copy_n(prior_.begin(), out.size(), out.begin());
}

void ConjugateTarget::set_scales(const Iterate&, std::span<const double> beta, std::span<const double> offset) {
  for (std::size_t k = 0; k < width_; ++k) {
    for (std::size_t i = 0; i < n_; ++i) matrix_[k * n_ + i] = beta[k] * slope_[k * n_ + i];
    scaled_[k] = beta[k] * constant_[k] + offset[k];
  }
  session_.set_map(matrix_, scaled_);
}

void ConjugateTarget::noisy_sum(std::uint64_t step, double noise_multiplier, std::span<double> out) {
  if (data_.counts.empty()) {
    session_.noisy_sum(step, noise_multiplier, out);
    return;
  }
  std::array<std::int64_t, kMaxAffineLength> sum{};
  grouped_sum(step, {sum.data(), width_});
  session_.release(step, noise_multiplier, {sum.data(), width_}, out);
}

void ConjugateTarget::grouped_sum(std::uint64_t step, std::span<std::int64_t> sum) {
  // One 64-bit word per distinct value, from the stream that samples records otherwise.
  const std::size_t n_values = data_.counts.size();
  std::array<std::uint8_t, 8 * kChaChaBlockBytes> bytes{};
  std::array<std::int64_t, kMaxAffineLength> gradient{};
  for (std::size_t v = 0; v < n_values; ++v) {
    const std::size_t slot = v % kChaChaBlockBytes;
    if (slot == 0) {
      keystream(kernels_, key_, RandomDomain::subsample, step, static_cast<std::uint32_t>(v / 8), 8, bytes.data());
    }
    std::uint64_t word = 0;
    for (std::size_t byte = 0; byte < 8; ++byte) {
      word |= static_cast<std::uint64_t>(bytes[8 * slot + byte]) << (8 * byte);
    }
    const double uniform = static_cast<double>(word >> 11U) * 0x1p-53;
    const auto& cumulative = sampled_[v];
    const auto found = std::upper_bound(cumulative.begin(), cumulative.end() - 1, uniform);
    const std::int64_t count = first_[v] + (found - cumulative.begin());
    if (count == 0) continue;
    session_.contribution(data_.statistics.subspan(v * n_, n_), {gradient.data(), width_});
    for (std::size_t k = 0; k < width_; ++k) sum[k] += count * gradient[k];
  }
}

}  // namespace dpinfer::study
