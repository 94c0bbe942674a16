// Expected slopes of the log-likelihood in the linear predictor, for eight rows at a time.
#pragma once

#include "common/simd.hpp"
#include "common/special.hpp"
#include "mechanism/simd/kernel_table.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// E f' and E f'' over the linear predictors of eight rows, negated: the loss is minimised.
struct Slopes {
  Vec first;
  Vec second;
};

DPINFER_INLINE Slopes logistic_slopes(const GradientTask& task, const Vec& mean, const Vec& stddev, const Vec& y) {
  Vec first = splat(0.0);
  Vec second = splat(0.0);
  const auto add = [&](const Vec& p, double weight) {
    const Vec weighted = p * splat(weight);
    first = first + weighted;
    second = fused(weighted, splat(1.0) - p, second);
  };
  int i = 0;
  for (; i + 1 < task.n_nodes; i += 2) {
    Vec p;
    Vec q;
    two_sigmoids(fused(stddev, splat(task.nodes[i]), mean), fused(stddev, splat(task.nodes[i + 1]), mean), p, q);
    add(p, task.node_weights[i]);
    add(q, task.node_weights[i + 1]);
  }
  if (i < task.n_nodes) add(sigmoid(fused(stddev, splat(task.nodes[i]), mean)), task.node_weights[i]);
  return {first - y, second};
}

DPINFER_INLINE Slopes probit_slopes(const GradientTask& task, const Vec& mean, const Vec& stddev, const Vec& y) {
  const Vec sign = y + y - splat(1.0);
  Vec first = splat(0.0);
  Vec second = splat(0.0);
  for (int i = 0; i < task.n_nodes; ++i) {
    const Vec t = sign * fused(stddev, splat(task.nodes[i]), mean);
    const Vec ratio = inverse_mills(t);
    const Vec weighted = ratio * splat(task.node_weights[i]);
    first = first + weighted;
    second = fused(weighted, t + ratio, second);
  }
  return {splat(0.0) - sign * first, second};
}

// The slopes of eight rows whose linear predictors have these means and variances under q.
DPINFER_INLINE Slopes expected_slopes(const GradientTask& task, const Vec& mean, const Vec& variance, const Vec& y) {
  switch (task.likelihood) {
    case Likelihood::logistic:
      return logistic_slopes(task, mean, square_root(variance), y);
    case Likelihood::probit:
      return probit_slopes(task, mean, square_root(variance), y);
    case Likelihood::gaussian:
      return {(mean - y) * splat(task.moments.precision), splat(task.moments.precision)};
    case Likelihood::poisson:
      break;
  }
  const Vec rate = poisson_rate(mean + variance * splat(0.5));
  return {rate - y, rate};
}

// -f'(eta) at one value of the linear predictor (draws); precision is that of the Gaussian noise.
DPINFER_INLINE Vec loss_slope(Likelihood likelihood, const Vec& eta, const Vec& y, double precision) {
  switch (likelihood) {
    case Likelihood::logistic:
      return sigmoid(eta) - y;
    case Likelihood::probit: {
      const Vec sign = y + y - splat(1.0);
      return splat(0.0) - sign * inverse_mills(sign * eta);
    }
    case Likelihood::gaussian:
      return (eta - y) * splat(precision);
    case Likelihood::poisson:
      break;
  }
  return poisson_rate(eta) - y;
}

// The preconditioned gradients of the noise variance's loc and raw_scale, for eight rows:
// loss = E[log variance] / 2 + E[1 / variance] ((y - m)^2 + v) / 2.
struct DispersionGradients {
  Vec loc;
  Vec raw;
};

DPINFER_INLINE DispersionGradients dispersion_gradients(const GradientTask& task, const Vec& mean, const Vec& variance,
                                                        const Vec& y) {
  const DispersionMoments& e = task.moments;
  const Vec residual = y - mean;
  const Vec square = residual * residual + variance;
  const Vec loc = splat(0.5) * (splat(e.log_variance_loc) + splat(e.precision_loc) * square);
  const Vec raw = splat(0.5) * (splat(e.log_variance_raw) + splat(e.precision_raw) * square);
  return {loc * splat(task.dispersion_loc_scale) + splat(task.dispersion_loc_offset),
          raw * splat(task.dispersion_raw_scale) + splat(task.dispersion_raw_offset)};
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT
