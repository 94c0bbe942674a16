// Moments of the output of the network, and the derivatives of a function of them, for one record.
#pragma once

#include <cstddef>

#include "common/simd.hpp"
#include "common/special.hpp"
#include "mechanism/simd/network_kernels.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Where each hidden unit's numbers stand in the scratch memory: rows of shape.pad.
struct HiddenRows {
  double* activation;           // mean of a_h
  double* activation_variance;  // variance of a_h
  double* positive;             // Phi(alpha_h), the probability that g_h is positive
  double* density;              // phi(alpha_h) / sd of g_h
  double* mean_slope;           // d / d mean of g_h
  double* curvature;            // of the hidden layer's sites: mean_slope^2 - 2 d / d variance of g_h
  double* variance_slope;       // d / d variance of g_h
  double* output_mean_slope;    // d / d mean of w_h
  double* output_variance_slope;
};

DPINFER_INLINE HiddenRows hidden_rows(double* scratch, int pad) {
  const auto at = [&](int i) { return scratch + static_cast<std::ptrdiff_t>(i) * pad; };
  return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8)};
}

struct OutputMoments {
  double mean;
  double variance;
};

// Moments of max(g, 0), g ~ N(mean, variance): with alpha = mean / sd,
//   E = sd (phi + alpha Phi),  Var = sd^2 (Phi + alpha^2 Phi (1 - Phi) - alpha phi (2 Phi - 1) - phi^2),
// which for large alpha subtracts nothing large from anything large.  For very negative alpha both vanish with phi,
// long before their relative error matters; rounding below zero is cut off.
DPINFER_INLINE void rectified(const Vec& mean, const Vec& variance, Vec& activation, Vec& activation_variance,
                              Vec& positive, Vec& density) {
  const Vec one = splat(1.0);
  const Vec zero = splat(0.0);
  const Vec v = maximum(variance, splat(1e-290));
  const Vec inverse = square_root(one / v);
  const Vec sd = v * inverse;
  // Beyond 20 standard deviations (5e-89) the small numbers are zero: smaller ones would soon be subnormal, and slow.
  const Vec alpha = mean * inverse;
  const Vec magnitude = absolute(alpha);
  const Vec limit = splat(20.0);
  const Vec near = minimum(magnitude, limit);
  const Vec scaled = near * splat(0.70710678118654752440);
  const Vec gauss = select_less(magnitude, limit, exp(zero - scaled * scaled), zero);
  const Vec tail = splat(0.5) * gauss * erfcx(scaled);
  const Vec rest = one - tail;
  const Vec phi = splat(0.39894228040143267794) * gauss;
  positive = select_less(alpha, zero, tail, rest);
  density = phi * inverse;
  // |alpha| Phi for negative alpha: `near` is right there, and elsewhere the mean itself is used.
  const Vec small = sd * maximum(phi - near * tail, zero);
  activation = select_less(alpha, zero, small, fused(mean, positive, sd * phi));
  const Vec cross = near * near * (tail * rest);
  const Vec spread = (positive + cross) - near * phi * (one - (tail + tail)) - phi * phi;
  activation_variance = v * maximum(spread, zero);
}

// Fills activation, activation_variance, positive and density.
DPINFER_INLINE OutputMoments forward(const NetworkTask& task, const double* x, const HiddenRows& rows) {
  const int pad = task.shape.pad;
  const int d = task.shape.n_features;
  const double hidden = task.hidden_scale;
  const double output = task.output_scale;
  const double* const mean = task.mean;
  const double* const variance = task.variance;
  const double* const output_mean = mean + static_cast<std::ptrdiff_t>(d + 1) * pad;
  const double* const output_variance = variance + static_cast<std::ptrdiff_t>(d + 1) * pad;
  Vec total = splat(0.0);
  Vec spread = splat(0.0);
  for (int h = 0; h < pad; h += kLanes) {
    Vec m = load(mean + static_cast<std::ptrdiff_t>(d) * pad + h);
    Vec v = load(variance + static_cast<std::ptrdiff_t>(d) * pad + h);
    for (int j = 0; j < d; ++j) {
      const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(j) * pad + h;
      m = fused(splat(x[j]), load(mean + place), m);
      v = fused(splat(x[j] * x[j]), load(variance + place), v);
    }
    Vec activation;
    Vec activation_variance;
    Vec positive;
    Vec density;
    rectified(m * splat(hidden), v * splat(hidden * hidden), activation, activation_variance, positive, density);
    store(rows.activation + h, activation);
    store(rows.activation_variance + h, activation_variance);
    store(rows.positive + h, positive);
    store(rows.density + h, density);
    const Vec w = load(output_mean + h);
    total = fused(w, activation, total);
    spread = fused(load(output_variance + h), fused(activation, activation, activation_variance),
                   fused(w * w, activation_variance, spread));
  }
  const double bias = output_mean[pad];
  const double bias_variance = output_variance[pad];
  return {output * (lane_sum(total) + bias), output * output * (lane_sum(spread) + bias_variance)};
}

// The derivatives of F(mean, variance of the output) with respect to those of w_h and of g_h, given those of F.
DPINFER_INLINE void backward(const NetworkTask& task, double mean_slope, double variance_slope,
                             const HiddenRows& rows) {
  const int pad = task.shape.pad;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(task.shape.n_features + 1) * pad;
  const double* const output_mean = task.mean + row;
  const double* const output_variance = task.variance + row;
  const Vec first = splat(task.output_scale * mean_slope);
  const Vec second = splat(task.output_scale * task.output_scale * variance_slope);
  const Vec one = splat(1.0);
  for (int h = 0; h < pad; h += kLanes) {
    const Vec a = load(rows.activation + h);
    const Vec va = load(rows.activation_variance + h);
    const Vec w = load(output_mean + h);
    const Vec vw = load(output_variance + h);
    const Vec positive = load(rows.positive + h);
    const Vec density = load(rows.density + h);
    store(rows.output_mean_slope + h, fused(first, a, (second + second) * w * va));
    store(rows.output_variance_slope + h, second * fused(a, a, va));
    // By Price's theorem d E[max(g, 0)] / d(mean, variance) = (Phi, phi / (2 sd)), and d E[max(g, 0)^2] is
    // (2 E[max(g, 0)], Phi).
    const Vec to_activation = fused(first, w, (second + second) * vw * a);
    const Vec to_variance = second * fused(w, w, vw);
    const Vec to_mean = fused(to_activation, positive, (to_variance + to_variance) * a * (one - positive));
    const Vec to_spread = fused(to_activation, splat(0.5) * density, to_variance * (positive - a * density));
    store(rows.mean_slope + h, to_mean);
    store(rows.variance_slope + h, to_spread);
    store(rows.curvature + h, fused(to_mean, to_mean, splat(0.0) - (to_spread + to_spread)));
  }
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT
