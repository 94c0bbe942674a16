"""The tied posterior of a Fisher-scaled trace by brute force: sums over the raw trace, a grid over all unknowns."""

import numpy as np
from scipy import integrate


def sums(positions, raw_scale, loc_gradients, raw_gradients, loc_noise, raw_noise, information, sample_rate):
    """Return the numbers of one coordinate's trace that the posterior needs, in extended precision."""
    x, u, g, v, tau, tau_u, info = (
        np.asarray(values, dtype=np.longdouble)
        for values in (positions, raw_scale, loc_gradients, raw_gradients, loc_noise, raw_noise, information)
    )
    g, tau = g / info, tau / info
    weight = (tau[0] / tau) ** 2
    mx, mg = (weight * x).sum() / weight.sum(), (weight * g).sum() / weight.sum()
    scale, slope = np.log1p(np.exp(u)), 1.0 / (1.0 + np.exp(-u))
    design = sample_rate * slope * scale * info / tau_u
    response = (v + sample_rate * slope / scale) / tau_u
    values = {
        "count": x.size,
        "reference_stddev": tau[0],
        "weight": weight.sum(),
        "position_mean": mx,
        "gradient_mean": mg,
        "xx": (weight * (x - mx) ** 2).sum(),
        "xg": (weight * (x - mx) * (g - mg)).sum(),
        "gg": (weight * (g - mg) ** 2).sum(),
        "side_count": x.size,
        "design_square": (design**2).sum(),
        "product": (design * response).sum(),
        "response_square": (response**2).sum(),
        "design": design.sum(),
        "response": response.sum(),
        "scale_square": (scale**2).mean(),
    }
    return {name: float(value) for name, value in values.items()}


def grid_moments(
    positions,
    raw_scale,
    loc_gradients,
    raw_gradients,
    loc_noise,
    raw_noise,
    information,
    sample_rate,
    *,
    log_eta,
    optimum,
    n_records,
    tolerance,
    prior_loc,
    prior_scale,
    slope_factor=1.0,
):
    """Return means and standard deviations of eta and of the optimum over a grid of (log eta, optimum).

    g_loc ~ N(kappa c eta I_t (mu_t - mu*), tau_t^2) with the slope factor c, g_raw ~ N(kappa s' (eta I_t s - 1 / s),
    tau_ut^2), log eta ~ N(log N, tolerance^2), mu* ~ N(prior_loc, prior_scale^2); no other noise.
    """
    eta, at = np.exp(log_eta)[:, None], optimum[None, :]
    scale, slope = np.log1p(np.exp(raw_scale)), 1.0 / (1.0 + np.exp(-raw_scale))
    log_density = -0.5 * ((log_eta[:, None] - np.log(n_records)) / tolerance) ** 2
    log_density = log_density - 0.5 * ((at - prior_loc) / prior_scale) ** 2
    rows = zip(positions, scale, slope, loc_gradients, raw_gradients, loc_noise, raw_noise, information, strict=True)
    for x, s, ds, g, v, tau, tau_u, info in rows:
        gap = (g - sample_rate * slope_factor * eta * info * (x - at)) / tau
        side = (v - sample_rate * ds * (eta * info * s - 1.0 / s)) / tau_u
        log_density = log_density - 0.5 * gap**2 - 0.5 * side**2
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    over_eta, over_optimum = density.sum(axis=1), density.sum(axis=0)
    eta = eta[:, 0]
    eta_mean, mean = over_eta @ eta, over_optimum @ optimum
    return {
        "eta_mean": eta_mean,
        "eta_stddev": np.sqrt(over_eta @ (eta - eta_mean) ** 2),
        "mean": mean,
        "stddev": np.sqrt(over_optimum @ (optimum - mean) ** 2),
        "over_optimum": over_optimum,
        "edge": max(over_eta[0], over_eta[-1], over_optimum[0], over_optimum[-1]) / max(over_eta.max(), 1e-300),
    }


def log_normal_moments(log_likelihood, loc, scale, centre, width):
    """Return mean and standard deviation of a when log a ~ N(loc, scale^2), by adaptive quadrature over log a.

    `log_likelihood` is a function of log a; the integral runs over `centre` plus and minus `width`.
    """

    def log_density(t):
        return log_likelihood(t) - 0.5 * ((t - loc) / scale) ** 2

    grid = centre + width * np.linspace(-1.0, 1.0, 4001)
    values = np.array([log_density(t) for t in grid])
    peak, top = values.max(), grid[values.argmax()]

    def moment(power):
        def integrand(t):
            return np.exp(power * (t - top) + log_density(t) - peak)

        ends = (centre - width, centre + width)
        return integrate.quad(integrand, *ends, points=[top], limit=500, epsabs=0.0, epsrel=1e-11)[0]

    total = moment(0)
    mean, square = moment(1) / total, moment(2) / total
    return np.exp(top) * mean, np.exp(top) * np.sqrt(square - mean**2)
