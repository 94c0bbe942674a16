// What one record contributes to a private sum: its sites centred at the cavity's mean, or its gradients.
#pragma once

#include <cstddef>

#include "common/simd.hpp"
#include "mechanism/simd/network_kernels.hpp"
#include "mechanism/simd/network_moments-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Where a contribution's numbers go: row j of the first block at j * stride, the second block after `second` numbers.
// Padded rows have stride = count = pad.
struct SiteLayout {
  int count;
  int stride;
  int second;
};

// Writes value(h, first, second) for the `n` places of a row to both blocks.  Of the last vector a row gets what
// belongs to it; unless `exact`, what is written past its end is overwritten by the next row, which must be as long as
// a vector.
template <typename Value>
DPINFER_INLINE void write_rows(int n, bool exact, double* first, double* second, const Value& value) {
  Vec a;
  Vec b;
  const int whole = n / kLanes * kLanes;
  for (int h = 0; h < whole; h += kLanes) {
    value(h, a, b);
    store(first + h, a);
    store(second + h, b);
  }
  if (whole == n) return;
  value(whole, a, b);
  if (!exact && n > kLanes) {
    store(first + whole, a);
    store(second + whole, b);
    return;
  }
  double rest[2 * kLanes];
  store(rest, a);
  store(rest + kLanes, b);
  for (int h = whole; h < n; ++h) {
    first[h] = rest[h - whole];
    second[h] = rest[kLanes + h - whole];
  }
}

// 1 / (1 - v b), the factor between a derivative and the site that has it; 0 where the tilted variance would not be
// positive: the record then says nothing about the weight (a neutral site).  One record of many moves a weight little:
// for |v b| <= 2^-8 in all lanes the geometric series to the sixth power is exact to 2^-56 and cheaper than a division.
DPINFER_INLINE Vec site_factor(const Vec& variance, const Vec& curvature) {
  const Vec one = splat(1.0);
  const Vec t = variance * curvature;
  if (all_at_most(absolute(t), splat(0x1p-8))) {
    const Vec t2 = t * t;
    const Vec pairs = fused(t2, fused(t2, t2, t2), t2);  // t^2 + t^4 + t^6
    return fused(one + t, pairs, one + t);
  }
  const Vec left = one - t;
  return select_less(splat(1e-6), left, one / left, splat(0.0));
}

// The derivatives of the record's log Z, or of E_q log p(y), in the output's mean and variance.
struct OutputSlopes {
  double mean;
  double variance;
  double noise;  // the noise variance's statistic
};

DPINFER_INLINE OutputSlopes output_slopes(const NetworkTask& task, const OutputMoments& f, double y) {
  const double residual = y - f.mean;
  if (task.output == NetworkOutput::gradient) {
    const double precision = 1.0 / task.noise_variance;
    return {residual * precision, -0.5 * precision, 0.5 * (residual * residual + f.variance)};
  }
  const double total = 1.0 / (f.variance + task.noise_variance);
  const double slope = residual * total;
  // Half the second moment of y - f(x) under the tilted distribution.
  const double share = task.noise_variance * slope;
  return {slope, 0.5 * (slope * slope - total), 0.5 * (share * share + f.variance * task.noise_variance * total)};
}

DPINFER_INLINE void write_sites(const NetworkTask& task, const double* x, const HiddenRows& rows,
                                const SiteLayout& layout, double* out) {
  const int pad = task.shape.pad;
  const int n = layout.count;
  const int d = task.shape.n_features;
  const double* const variance = task.variance;
  double* const second = out + layout.second;
  const Vec weight = splat(task.site_weight);
  const Vec eta_weight = splat(task.eta_weight);
  for (int j = 0; j <= d; ++j) {
    const double input = task.hidden_scale * (j < d ? x[j] : 1.0);
    const Vec scale = splat(input);
    const Vec square = splat(input * input);
    const double* const v = variance + static_cast<std::ptrdiff_t>(j) * pad;
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(j) * layout.stride;
    write_rows(n, false, out + row, second + row, [&](int h, Vec& eta, Vec& precision) {
      const Vec b = square * load(rows.curvature + h);
      const Vec factor = site_factor(load(v + h), b);
      eta = eta_weight * (scale * load(rows.mean_slope + h)) * factor;
      precision = weight * b * factor;
    });
  }
  const double* const v = variance + static_cast<std::ptrdiff_t>(d + 1) * pad;
  const std::ptrdiff_t last = static_cast<std::ptrdiff_t>(d + 1) * layout.stride;
  write_rows(n, true, out + last, second + last, [&](int h, Vec& eta, Vec& precision) {
    const Vec a = load(rows.output_mean_slope + h);
    const Vec b = fused(a, a, splat(-2.0) * load(rows.output_variance_slope + h));
    const Vec factor = site_factor(load(v + h), b);
    eta = eta_weight * a * factor;
    precision = weight * b * factor;
  });
}

DPINFER_INLINE void write_gradients(const NetworkTask& task, const double* x, const HiddenRows& rows,
                                    const SiteLayout& layout, double* out) {
  const int pad = task.shape.pad;
  const int n = layout.count;
  const int d = task.shape.n_features;
  double* const second = out + layout.second;
  for (int j = 0; j <= d; ++j) {
    const double input = task.hidden_scale * (j < d ? x[j] : 1.0);
    const Vec scale = splat(input);
    const Vec square = splat(input * input);
    const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(j) * pad;
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(j) * layout.stride;
    write_rows(n, false, out + row, second + row, [&](int h, Vec& in_mean, Vec& in_variance) {
      in_mean = load(task.mean_scale + place + h) * (scale * load(rows.mean_slope + h));
      in_variance = load(task.variance_scale + place + h) * (square * load(rows.variance_slope + h));
    });
  }
  const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(d + 1) * pad;
  const std::ptrdiff_t last = static_cast<std::ptrdiff_t>(d + 1) * layout.stride;
  write_rows(n, true, out + last, second + last, [&](int h, Vec& in_mean, Vec& in_variance) {
    in_mean = load(task.mean_scale + place + h) * load(rows.output_mean_slope + h);
    in_variance = load(task.variance_scale + place + h) * load(rows.output_variance_slope + h);
  });
}

DPINFER_INLINE OutputMoments contribute(const NetworkTask& task, const double* x, double y, const SiteLayout& layout,
                                        double* scratch, double* out) {
  const HiddenRows rows = hidden_rows(scratch, task.shape.pad);
  const OutputMoments f = forward(task, x, rows);
  const OutputSlopes slopes = output_slopes(task, f, y);
  backward(task, slopes.mean, slopes.variance, rows);
  const int bias = task.shape.bias_place();
  const int first = task.shape.n_rows() * layout.stride;
  const double a = task.output_scale * slopes.mean;
  const double dv = task.output_scale * task.output_scale * slopes.variance;
  if (task.output == NetworkOutput::gradient) {
    write_gradients(task, x, rows, layout, out);
    out[first] = task.mean_scale[bias] * a;
    out[layout.second + first] = task.variance_scale[bias] * dv;
  } else {
    write_sites(task, x, rows, layout, out);
    const double b = a * a - 2.0 * dv;
    const double left = 1.0 - task.variance[bias] * b;
    const double t = left > 1e-6 ? 1.0 / left : 0.0;
    out[first] = task.eta_weight * a * t;
    out[layout.second + first] = task.site_weight * b * t;
  }
  const double noise = task.noise_weight * slopes.noise;
  out[layout.second + first + 1] = noise < task.noise_limit ? noise : noise > 0.0 ? task.noise_limit : noise;
  return f;
}

// The weights' block clipped on its own, so that what they contribute leaves the noise variance's statistic alone.
DPINFER_INLINE void clip_sites(int length, double bound, double* out) {
  const int whole = length / kLanes * kLanes;
  double last[kLanes] = {};
  for (int k = whole; k < length; ++k) last[k - whole] = out[k];
  Vec squares = load(last) * load(last);
  for (int k = 0; k < whole; k += kLanes) squares = fused(load(out + k), load(out + k), squares);
  double norms[kLanes];
  store(norms, square_root(splat(lane_sum(squares))));
  if (!(norms[0] > bound)) return;
  const double factor = bound / norms[0];
  const Vec factors = splat(factor);
  for (int k = 0; k < whole; k += kLanes) store(out + k, factors * load(out + k));
  for (int k = whole; k < length; ++k) out[k] *= factor;
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT
