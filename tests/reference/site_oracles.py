"""Sites by brute force: moments of the tilted distribution, then natural parameters by inverting matrices."""

import numpy as np
from scipy import special


def site_from_moments(mean, cov, cavity_loc, cavity_cov):
    """Natural parameters (eta, Lambda) of the site that turns the cavity into N(mean, cov)."""
    precision, cavity = np.linalg.inv(cov), np.linalg.inv(cavity_cov)
    return precision @ mean - cavity @ cavity_loc, precision - cavity


def mixture_site(x, weights, covariances, cavity_loc, cavity_cov):
    """Sites of every component's mean: the tilted marginal of mu_j is a mixture of its cavity and its update."""
    log_z = []
    for j, weight in enumerate(weights):
        total = cavity_cov[j] + covariances[j]
        gap = x - cavity_loc[j]
        log_z.append(np.log(weight) - 0.5 * np.linalg.slogdet(total)[1] - 0.5 * gap @ np.linalg.solve(total, gap))
    share = np.exp(log_z - special.logsumexp(log_z))
    sites = []
    for j, r in enumerate(share):
        m, v = cavity_loc[j], cavity_cov[j]
        gain = v @ np.linalg.inv(v + covariances[j])
        updated = m + gain @ (x - m)
        mean = (1.0 - r) * m + r * updated
        second = (1.0 - r) * (v + np.outer(m, m)) + r * (v - gain @ v + np.outer(updated, updated))
        sites.append(site_from_moments(mean, second - np.outer(mean, mean), m, v))
    return sites


def binary_site(x, y, likelihood, cavity_loc, cavity_cov, points=20_001):
    """The site of a binary response: tilted moments of the linear predictor on a fine grid."""
    mean, variance = x @ cavity_loc, x @ cavity_cov @ x
    eta = mean + np.sqrt(variance) * np.linspace(-12.0, 12.0, points)
    sign = 2.0 * y - 1.0
    log_p = special.log_ndtr(sign * eta) if likelihood == "probit" else -np.logaddexp(0.0, -sign * eta)
    log_p = log_p - 0.5 * (eta - mean) ** 2 / variance
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    tilted = p @ eta
    spread = p @ (eta - tilted) ** 2
    gain = cavity_cov @ x / variance
    new_mean = cavity_loc + gain * (tilted - mean)
    new_cov = cavity_cov + np.outer(gain, gain) * (spread - variance)
    return site_from_moments(new_mean, new_cov, cavity_loc, cavity_cov)


def svec(matrix):
    """Upper triangle with off-diagonal entries times sqrt(2)."""
    d = matrix.shape[0]
    return np.array([matrix[i, j] * (1.0 if i == j else np.sqrt(2.0)) for i in range(d) for j in range(i, d)])


def contribution(sites, centres, weight):
    """What a record contributes: linear terms relative to the centres, then weighted precisions."""
    linear = [eta - precision @ centre for (eta, precision), centre in zip(sites, centres, strict=True)]
    return np.concatenate([*linear, *(weight * svec(precision) for _, precision in sites)])
