// The kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
//
// One record worked into q, without noise: ADF, SEP and EP differ in what is removed from q first and how far it moves.
#include "common/simd.hpp"
#include "common/special.hpp"
#include "lab/network_passes.hpp"
#include "mechanism/simd/network_contribution-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// log of the normal density of a residual, up to a constant.
DPINFER_INLINE double log_normal(double residual, double variance) {
  double lanes[kLanes] = {variance, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0};
  store(lanes, log(load(lanes)));
  return -0.5 * (lanes[0] + residual * residual / variance);
}

DPINFER_INLINE double exp_one(double x) {
  double lanes[kLanes];
  store(lanes, exp(splat(x)));
  return lanes[0];
}

// Shape and rate of the gamma distribution that has the first two moments of gamma(shape, rate) times the density of
// the residual, whose variance is that of f plus the noise's expectation (Hernandez-Lobato and Adams, 2015, eq. 13).
DPINFER_INLINE bool tilted_gamma(double shape, double rate, double residual, double spread, double* tilted) {
  const double z0 = log_normal(residual, spread + rate / (shape - 1.0));
  const double z1 = log_normal(residual, spread + rate / shape);
  const double z2 = log_normal(residual, spread + rate / (shape + 1.0));
  const double ratio = exp_one(z2 - 2.0 * z1 + z0) * (shape + 1.0) / shape;
  const double new_shape = 1.0 / (ratio - 1.0);
  const double new_rate = 1.0 / (exp_one(z2 - z1) * (shape + 1.0) / rate - exp_one(z1 - z0) * shape / rate);
  tilted[0] = new_shape;
  tilted[1] = new_rate;
  return new_shape > 1.0 && new_shape < 1e300 && new_rate > 0.0 && new_rate < 1e300;
}

void update(const NetworkPass& pass, const double* x, double y, double* site, double* scratch) {
  const NetworkShape& shape = pass.task.shape;
  const int length = shape.padded_length();
  const int pad = shape.pad;
  double* const mean = scratch;
  double* const variance = mean + length;
  double* const site_eta = variance + length;
  double* const site_precision = site_eta + length;
  double* const out = site_precision + length;
  double* const rest = out + 2 * length;

  // The cavity; a weight whose cavity has no variance stays as it is.
  const Vec share = splat(pass.site_share);
  const Vec zero = splat(0.0);
  for (int k = 0; k < length; k += kLanes) {
    const Vec eta = load(pass.eta + k);
    const Vec precision = load(pass.precision + k);
    const Vec own_eta = site != nullptr ? load(site + k) : share * (eta - load(pass.prior_eta + k));
    const Vec own_precision =
        site != nullptr ? load(site + length + k) : share * (precision - load(pass.prior_precision + k));
    const Vec left = precision - own_precision;
    const Vec valid = select_less(zero, left, splat(1.0), zero);
    const Vec v = splat(1.0) / select_less(zero, left, left, precision);
    store(site_eta + k, own_eta * valid);
    store(site_precision + k, own_precision * valid);
    store(variance + k, v);
    store(mean + k, (eta - own_eta * valid) * v);
  }
  double* const gamma = pass.noise_gamma;
  const double own_shape = site != nullptr ? site[2 * length] : pass.site_share * (gamma[0] - pass.prior_gamma[0]);
  const double own_rate = site != nullptr ? site[2 * length + 1] : pass.site_share * (gamma[1] - pass.prior_gamma[1]);
  double cavity_shape = gamma[0] - own_shape;
  double cavity_rate = gamma[1] - own_rate;
  const bool gamma_valid = cavity_shape > 1.0 && cavity_rate > 0.0;
  if (!gamma_valid) {
    cavity_shape = gamma[0];
    cavity_rate = gamma[1];
  }

  NetworkTask task = pass.task;
  task.mean = mean;
  task.variance = variance;
  task.noise_variance = cavity_rate / (cavity_shape - 1.0);
  // Padded like the state: the seven places behind the bias are not weights.
  for (int k = 0; k < 2 * length; k += kLanes) store(out + k, zero);
  const OutputMoments f = contribute(task, x, y, {pad, pad, length}, rest, out);
  Vec squares = zero;
  for (int k = 0; k < 2 * length; k += kLanes) squares = fused(load(out + k), load(out + k), squares);
  double norms[kLanes];
  store(norms, square_root(splat(lane_sum(squares))));
  if (!(norms[0] <= 1e300)) return;
  const Vec factor = splat(norms[0] > pass.clip_norm ? pass.clip_norm / norms[0] : 1.0);
  const Vec precision_factor = factor * splat(1.0 / task.site_weight);
  const Vec step = splat(pass.step);
  for (int k = 0; k < length; k += kLanes) {
    const Vec b = precision_factor * load(out + length + k);
    const Vec precision = load(pass.precision + k);
    const Vec eta = load(pass.eta + k);
    const Vec eta_change = step * (fused(load(mean + k), b, factor * load(out + k)) - load(site_eta + k));
    const Vec precision_change = step * (b - load(site_precision + k));
    // A weight that would be left without a variance keeps its place.
    const Vec moved = precision + precision_change;
    const Vec least = splat(1e-10);
    store(pass.precision + k, select_less(least, moved, moved, precision));
    store(pass.eta + k, select_less(least, moved, eta + eta_change, eta));
    if (site != nullptr) {
      const Vec own = load(site_precision + k);
      const Vec own_eta = load(site_eta + k);
      store(site + length + k, select_less(least, moved, own + precision_change, own));
      store(site + k, select_less(least, moved, own_eta + eta_change, own_eta));
    }
  }
  double tilted[2];
  if (!gamma_valid || !tilted_gamma(cavity_shape, cavity_rate, y - f.mean, f.variance, tilted)) return;
  const double shape_moved = gamma[0] + pass.step * (tilted[0] - cavity_shape - own_shape);
  const double rate_moved = gamma[1] + pass.step * (tilted[1] - cavity_rate - own_rate);
  if (!(shape_moved > 1.0 && rate_moved > 0.0)) return;
  gamma[0] = shape_moved;
  gamma[1] = rate_moved;
  if (site != nullptr) {
    site[2 * length] = own_shape + pass.step * (tilted[0] - cavity_shape - own_shape);
    site[2 * length + 1] = own_rate + pass.step * (tilted[1] - cavity_rate - own_rate);
  }
}

}  // namespace

extern const NetworkUpdates kNetworkUpdates;
const NetworkUpdates kNetworkUpdates = {DPINFER_VARIANT_NAME, update};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT
