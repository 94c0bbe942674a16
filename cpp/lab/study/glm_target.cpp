#include "lab/study/glm_target.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace dpinfer::study {

GlmTarget::GlmTarget(const GlmModel& model, const Records& records, GradientKind kind, std::span<const double> nodes,
                     std::span<const double> weights, const KernelTable& kernels, double sample_rate,
                     double max_grad_norm, const RandomKey& key)
    : model_(model),
      kind_(kind),
      n_(static_cast<std::size_t>(model.n_coef) + (model.gaussian ? 1 : 0)),
      n_coef_(static_cast<std::size_t>(model.n_coef)),
      nodes_(nodes.begin(), nodes.end()),
      weights_(weights.begin(), weights.end()),
      session_(kernels, records, model.gaussian ? Likelihood::gaussian : Likelihood::logistic,
               kind == GradientKind::aligned, sample_rate, max_grad_norm, key, 1),
      variance_(n_coef_),
      multiplier_(2 * n_) {}

void GlmTarget::information(const Iterate& q, std::span<double> out) {
  double level = 0.0;
  if (model_.gaussian) {
    const double variance = std::max(softplus(q.loc(n_coef_)), 1e-300);
    const double ratio = sigmoid(q.loc(n_coef_)) / variance;
    level = 1.0 / variance;
    out[n_coef_] = 0.5 * ratio * ratio;
  } else {
    double spread = 0.0;
    for (std::size_t j = 0; j < n_coef_; ++j) {
      spread += model_.second_moments[j] * (q.loc(j) * q.loc(j) + q.scale[j] * q.scale[j]);
    }
    level = 0.25 / std::sqrt(1.0 + std::numbers::pi * spread / 8.0);
  }
  for (std::size_t j = 0; j < n_coef_; ++j) out[j] = level * model_.second_moments[j];
}

void GlmTarget::linear_coordinates(const Iterate& q, std::span<double> position, std::span<double> slope) const {
  Target::linear_coordinates(q, position, slope);
  if (!model_.gaussian) return;
  position[n_coef_] = kind_ == GradientKind::aligned ? softplus(q.loc(n_coef_)) : 1.0 / dispersion_.moments.precision;
  slope[n_coef_] = sigmoid(q.loc(n_coef_));
}

void GlmTarget::prepare(const Iterate& q, std::span<const double> draws) {
  if (kind_ == GradientKind::quadrature || model_.gaussian) {
    if (model_.gaussian) dispersion_ = dispersion_expectations(q.loc(n_coef_), q.raw(n_coef_), nodes_, weights_);
  }
  if (kind_ == GradientKind::quadrature) {
    for (std::size_t j = 0; j < n_coef_; ++j) variance_[j] = q.scale[j] * q.scale[j];
    const DispersionMoments& m = dispersion_.moments;
    const double moments[5] = {m.precision, m.precision_loc, m.precision_raw, m.log_variance_loc, m.log_variance_raw};
    session_.set_quadrature({q.params.data(), n_coef_}, variance_, nodes_, weights_,
                            {moments, model_.gaussian ? std::size_t{5} : std::size_t{0}});
    return;
  }
  const std::size_t n_draws = draws.size() / n_;
  theta_.resize(draws.size());
  standard_.resize(n_draws * n_coef_);
  std::vector<double> weights(n_draws * n_coef_);
  draw_dispersion_.assign(model_.gaussian ? 3 * n_draws : 0, 0.0);
  for (std::size_t k = 0; k < n_draws; ++k) {
    for (std::size_t j = 0; j < n_; ++j) theta_[k * n_ + j] = q.loc(j) + q.scale[j] * draws[k * n_ + j];
    for (std::size_t j = 0; j < n_coef_; ++j) {
      weights[k * n_coef_ + j] = theta_[k * n_ + j];
      standard_[k * n_coef_ + j] = draws[k * n_ + j];
    }
    if (model_.gaussian) {
      const double rho = theta_[k * n_ + n_coef_];
      const double variance = std::max(softplus(rho), 1e-300);
      draw_dispersion_[k] = 1.0 / variance;
      draw_dispersion_[n_draws + k] = sigmoid(rho) / variance;
      draw_dispersion_[2 * n_draws + k] = draws[k * n_ + n_coef_];
    }
  }
  session_.set_draws(static_cast<int>(n_draws), weights, standard_, draw_dispersion_);
}

void GlmTarget::point_prior(std::span<const double> theta, std::span<double> out) const {
  const double scale2 = model_.prior_scale * model_.prior_scale;
  if (!model_.gaussian) {
    for (std::size_t j = 0; j < n_coef_; ++j) out[j] = theta[j] / scale2;
    return;
  }
  const double rho = theta[n_coef_];
  const double variance = std::max(softplus(rho), 1e-300);
  double squares = 0.0;
  for (std::size_t j = 0; j < n_coef_; ++j) {
    squares += theta[j] * theta[j];
    out[j] = theta[j] / (scale2 * variance);
  }
  const double quadratic = 0.5 * squares / scale2 + model_.variance_rate;
  const double power = 0.5 * model_.n_coef + model_.variance_shape + 1.0;
  out[n_coef_] = -(quadratic / (variance * variance) - power / variance) * sigmoid(rho) - sigmoid(-rho);
}

void GlmTarget::prior_gradient(const Iterate& q, std::span<double> out) {
  if (kind_ == GradientKind::aligned) {
    point_prior(theta_, out);
    return;
  }
  // Exact rather than averaged over the draws, as in run_dpvi.
  const double scale2 = model_.prior_scale * model_.prior_scale;
  const double level = model_.gaussian ? dispersion_.moments.precision / scale2 : 1.0 / scale2;
  double squares = 0.0;
  for (std::size_t j = 0; j < n_coef_; ++j) {
    squares += q.loc(j) * q.loc(j) + q.scale[j] * q.scale[j];
    out[j] = level * q.loc(j);
    out[n_ + j] = level * q.scale[j] * q.slope[j];
  }
  if (!model_.gaussian) return;
  const double quadratic = 0.5 * squares / scale2 + model_.variance_rate;
  const double power = 0.5 * model_.n_coef + model_.variance_shape + 1.0;
  const DispersionMoments& m = dispersion_.moments;
  out[n_coef_] = quadratic * m.precision_loc + power * m.log_variance_loc - dispersion_.log_slope_loc;
  out[n_ + n_coef_] = quadratic * m.precision_raw + power * m.log_variance_raw - dispersion_.log_slope_raw;
}

void GlmTarget::set_scales(const Iterate& q, std::span<const double> beta, std::span<const double> offset) {
  const std::size_t width = beta.size();
  std::copy_n(beta.begin(), width, multiplier_.begin());
  if (kind_ == GradientKind::quadrature) {
    for (std::size_t j = 0; j < n_coef_; ++j) multiplier_[n_ + j] *= q.scale[j] * q.slope[j];
  } else if (kind_ == GradientKind::draws) {
    const std::size_t n_draws = theta_.size() / n_;
    for (std::size_t j = 0; j < n_; ++j) multiplier_[n_ + j] *= q.slope[j] / static_cast<double>(n_draws);
  }
  session_.set_scales({multiplier_.data(), width}, offset);
}

void GlmTarget::noisy_sum(std::uint64_t step, double noise_multiplier, std::span<double> out) {
  session_.noisy_sum(step, noise_multiplier, out);
}

}  // namespace dpinfer::study
