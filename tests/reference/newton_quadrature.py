"""The posterior of a private Newton run with one weight, by quadrature: an oracle for the sampler.

Written from docs/derivations/private-newton.md with loops over a grid of (log M, u*, log sigma); the weight given these
is normal.  With one weight there is nothing to flatten, and the prior of M is flat in log M, as the Wishart's scale is
integrated out: |F|^(nu - 1) (F^2)^(-nu / 2) dF = dF / |F|.
"""

import math

import numpy as np
from scipy import integrate, special

SLOPE_ERROR, SLOPE_ERROR_OF_EXCESS, SCALE_ERROR_OF_EXCESS, SAMPLING_SHARE = 0.05, 0.15, 0.05, 0.15
WEIGHT_ERROR = 0.05
LEVEL, LEVEL_STDDEV, DECLARED_STDDEV, REWEIGHTING = 0.9, 0.4, 0.2, 0.1


def _normal(x, loc, stddev):
    return -0.5 * ((x - loc) / stddev) ** 2 - np.log(stddev)


def _chi_mean(bound):
    inside = integrate.quad(lambda r: r / bound * math.exp(-0.5 * r * r), 0.0, bound)[0]
    return 2.0 * inside / math.sqrt(2.0 * math.pi) + 2.0 * special.ndtr(-bound)


def _huber_variance(bound):
    inside = integrate.quad(lambda r: r * r * math.exp(-0.5 * r * r), 0.0, bound)[0]
    return 2.0 * inside / math.sqrt(2.0 * math.pi) + 2.0 * bound**2 * special.ndtr(-bound)


def _mean_weight(bound):
    inside = integrate.quad(lambda z: bound**2 / z**2 * math.exp(-0.5 * z * z), bound, np.inf)[0]
    return 1.0 - 2.0 * special.ndtr(-bound) + 2.0 * inside / math.sqrt(2.0 * math.pi)


def log_density(release, prior_scale, moments, optimum, log_scale, excess_for_errors):
    """Return log p(M, u*, eta | release) up to a constant; model errors at the given excess (T,)."""
    r = release
    n, W = r.n_records, float(r.transforms[-1][0, 0])
    sigma = math.exp(log_scale)
    weight = _mean_weight(float(r.moment_bounds[-1]))
    first = float(r.moments[0][0, 0])
    declared = float(r.transforms[0][0, 0]) ** 2 / W**2 * moments
    first_error = math.hypot(float(r.moment_stddev[0]), REWEIGHTING * max(first, 0.3))
    value = _normal(log_scale, math.log(r.response_spread) - 1.0, 2.0)
    value += _normal(float(r.moments[-1][0, 0]), moments, float(r.moment_stddev[-1]))
    value += _normal(first, declared, first_error)
    value += _normal(declared, LEVEL, math.hypot(LEVEL_STDDEV, DECLARED_STDDEV))
    for t in range(len(r.clips)):
        position = float(r.positions[t][0])
        excess = moments * (position - optimum) ** 2
        spread = math.sqrt(sigma**2 + excess)
        slope = 2.0 * special.ndtr(r.clips[t] / spread) - 1.0
        known = excess_for_errors[t]
        relative = SLOPE_ERROR**2 + (SLOPE_ERROR_OF_EXCESS * known / (sigma**2 + known)) ** 2
        shared = relative * known + (SAMPLING_SHARE * sigma**2 / n if t < len(r.clips) - 1 else 0.0)
        noise = math.sqrt(r.score_stddev[t] ** 2 + slope**2 * shared)
        value += _normal(float(r.scores[t][0]), slope * moments * (optimum - position), noise)
        spread = math.sqrt(sigma**2 + excess / weight)
        expected = weight * (_chi_mean(r.scale_units[t] / spread) - r.scale_centre)
        error = math.hypot(r.scale_stddev[t], SCALE_ERROR_OF_EXCESS * excess / spread**2, WEIGHT_ERROR * expected)
        value += _normal(r.scale_scores[t], expected, error)
    bound = r.clips[-1] / math.sqrt(sigma**2 + excess_for_errors[-1])
    kappa2 = (sigma**2 + excess_for_errors[-1]) * _huber_variance(bound)
    kappa2 /= n * (2.0 * special.ndtr(bound) - 1.0) ** 2
    prior = (prior_scale * sigma / W) ** 2
    value += _normal(optimum, 0.0, math.sqrt(prior + kappa2 / moments))
    mean = optimum * prior / (prior + kappa2 / moments)
    variance = 1.0 / (1.0 / prior + moments / kappa2)
    return value, W * mean, W * W * variance


def moments_of_posterior(release, prior_scale, centre, reach, excess_for_errors, size=13):
    """Return means and standard deviations of (weight, log sigma) on a grid around `centre` = (log M, u*, eta)."""
    axes = [c + h * np.linspace(-1.0, 1.0, size) for c, h in zip(centre, reach, strict=True)]
    found = np.array(
        [
            (*log_density(release, prior_scale, math.exp(a), u, eta, excess_for_errors), eta)
            for a in axes[0]
            for u in axes[1]
            for eta in axes[2]
        ]
    )
    weight = np.exp(found[:, 0] - found[:, 0].max())
    weight /= weight.sum()
    edge = weight.reshape(size, size, size)
    outside = max(edge[[0, -1]].sum(), edge[:, [0, -1]].sum(), edge[:, :, [0, -1]].sum())
    mean = weight @ found[:, 1]
    variance = weight @ (found[:, 2] + (found[:, 1] - mean) ** 2)
    eta = weight @ found[:, 3]
    return (mean, math.sqrt(variance)), (eta, math.sqrt(weight @ (found[:, 3] - eta) ** 2)), outside
