"""Slow, direct versions of the trace posterior: sums over the raw trace and grids over all unknowns."""

import numpy as np

from dpinfer.release import release_from_arrays


def simulate(
    rng,
    *,
    steps,
    hessian,
    optimum,
    noise_stddev,
    sample_rate=0.1,
    learning_rate=None,
    start=None,
    omega=0.0,
):
    """Return (positions, noisy gradients, final) of the recursion with a quadratic loss; `hessian` (k,) or (k, k)."""
    hessian = np.asarray(hessian, dtype=float)
    full = hessian if hessian.ndim == 2 else np.diag(hessian)
    k = full.shape[0]
    tau = np.broadcast_to(np.asarray(noise_stddev, dtype=float), (steps, k))
    rate = 20.0 / (steps * sample_rate * np.diag(full)) if learning_rate is None else learning_rate
    x = np.array(optimum if start is None else start, dtype=float)
    positions, gradients = np.empty((steps, k)), np.empty((steps, k))
    for t in range(steps):
        noise = np.sqrt(tau[t] ** 2 + omega**2) * rng.standard_normal(k)
        positions[t] = x
        gradients[t] = sample_rate * full @ (x - optimum) + noise
        x = x - rate * gradients[t]
    return positions, gradients, x


def point_release(positions, gradients, noise_stddev, sample_rate=0.1, **changes):
    """Return a release of family "point"."""
    return release_from_arrays(
        positions, gradients, noise_stddev=noise_stddev, sample_rate=sample_rate, family="point", **changes
    )


def raw_log_likelihood(positions, gradients, tau, sample_rate, optimum, hessian, ratio=0.0):
    """Return sum_t log N(g_t; kappa a (x_t - optimum), tau_t^2 (1 + ratio^2)) for arrays of unknowns, step by step."""
    tau = np.broadcast_to(tau, positions.shape)
    shape = np.broadcast_shapes(np.shape(optimum), np.shape(hessian), np.shape(ratio))
    total = np.zeros(shape)
    for x, g, s in zip(positions, gradients, tau, strict=True):
        variance = s**2 * (1.0 + np.asarray(ratio) ** 2)
        total = total - 0.5 * (g - sample_rate * hessian * (x - optimum)) ** 2 / variance - 0.5 * np.log(variance)
    return total


def normal_on_raw_prior(hessian, loc, scale):
    """Return the log density of a when v ~ N(loc, scale^2) and a = softplus(v)."""
    raw = hessian + np.log(-np.expm1(-hessian))
    return -0.5 * ((raw - loc) / scale) ** 2 - np.log(-np.expm1(-hessian))


def wide_prior(hessian, scale, power):
    """Return the log density of a half-normal (power 1) or Rayleigh (power 2) variable, up to a constant."""
    return (power - 1.0) * np.log(hessian) - 0.5 * (hessian / scale) ** 2


def grid_posterior(
    positions, gradients, tau, sample_rate, optimum_grid, log_hessian_grid, log_prior, *, prior_loc, prior_scale, ratios
):
    """Return moments of (optimum, a) and the distribution function of the optimum, by a grid over all unknowns.

    `ratios` is the grid of omega / tau (half-Cauchy prior), or None for no extra noise.
    """
    hessian = np.exp(log_hessian_grid)
    optimum = optimum_grid
    shape_o, shape_a = optimum[:, None, None], hessian[None, :, None]
    ratio = np.zeros(1) if ratios is None else ratios
    log_density = raw_log_likelihood(positions, gradients, tau, sample_rate, shape_o, shape_a, ratio[None, None, :])
    log_density = log_density - 0.5 * ((shape_o - prior_loc) / prior_scale) ** 2
    log_density = log_density + log_prior(shape_a) + np.log(shape_a)
    log_density = log_density - np.log1p(ratio**2)
    density = np.exp(log_density - log_density.max())
    if ratios is not None:
        density[..., 0] *= 0.5
    density /= density.sum()
    over_optimum, over_hessian = density.sum(axis=(1, 2)), density.sum(axis=(0, 2))
    mean, hessian_mean = over_optimum @ optimum, over_hessian @ hessian
    return {
        "optimum_mean": mean,
        "optimum_stddev": np.sqrt(over_optimum @ (optimum - mean) ** 2),
        "hessian_mean": hessian_mean,
        "hessian_stddev": np.sqrt(over_hessian @ (hessian - hessian_mean) ** 2),
        "cdf": np.cumsum(over_optimum) - 0.5 * over_optimum,
    }


def weighted_statistics(positions, gradients, tau):
    """Return (weight, mean x, mean g, xx, xg, gg) with weights (tau_0 / tau_t)^2, in extended precision."""
    tau = np.broadcast_to(tau, positions.shape).astype(np.longdouble)
    x, g = positions.astype(np.longdouble), gradients.astype(np.longdouble)
    w = (tau[0] / tau) ** 2
    total = w.sum(axis=0)
    mx, mg = (w * x).sum(axis=0) / total, (w * g).sum(axis=0) / total
    dx, dg = x - mx, g - mg
    rows = [total, mx, mg, (w * dx * dx).sum(axis=0), (w * dx * dg).sum(axis=0), (w * dg * dg).sum(axis=0)]
    return np.stack(rows).astype(float)


def ks_critical(size, rate):
    """Return the exact critical value of the two-sided Kolmogorov-Smirnov statistic."""
    from scipy import stats

    return stats.kstwo.isf(rate, size)
