"""Log density of the second moments of a private Newton run, weights integrated out: an oracle for the compiled kernel.

Written from docs/derivations/private-newton.md for one chain, by conditioning nothing: the scores' joint covariance is
built whole, of size T d.
"""

import numpy as np
from scipy import special, stats

POWER, FLATTEST = 3.0, 0.003
LEVEL, LEVEL_STDDEV, STDDEV = 0.9, 0.4, 0.2


def moments_of(factor, direction, logit):
    """Return M = C F F' C', F the lower triangle of `factor`."""
    factor = np.tril(factor)
    d = len(factor)
    flattening = np.eye(d)
    for v, t in zip(direction, logit, strict=True):
        unit = v / np.linalg.norm(v)
        shrink = (1.0 - FLATTEST) * (1.0 - special.expit(t) ** POWER)
        flattening = (np.eye(d) - shrink * np.outer(unit, unit)) @ flattening
    return flattening @ factor @ factor.T @ flattening.T


def log_density(point, hyper, released, scores):
    """Return the log density up to a constant.

    Parameters
    ----------
    point : (factor, direction, logit)
    hyper : (concentrations (2, K) with their log weights, flatnesses (2, G) with their weights)
    released : dict of noisy, stddev, to_declared, diagonal, diagonal_stddev of one chain (diagonal may be None)
    scores : dict of measured (T, d), positions (T, d), precision (T,), sampling, prior_covariance of one chain
    """
    factor, direction, logit = point
    (concentration, log_weight), (flatness, weight) = hyper
    factor, d = np.tril(factor), len(factor)
    M = moments_of(factor, direction, logit)
    log_diagonal = np.log(np.abs(np.diag(factor)))
    wishart = (concentration[:, None] - np.arange(1, d + 1)) @ log_diagonal
    wishart -= 0.5 * concentration * d * np.log(np.trace(factor @ factor.T))
    value = special.logsumexp(log_weight + wishart) + stats.norm.logpdf(direction).sum()
    value += special.logsumexp(np.log(weight) + stats.logistic.logpdf(logit[:, None], loc=flatness).sum(axis=0))
    value -= 0.5 * np.sum((released["noisy"] - M) ** 2) / released["stddev"] ** 2
    if released["diagonal"] is not None:
        declared = np.diag(released["to_declared"] @ M @ released["to_declared"].T)
        value += stats.norm.logpdf(released["diagonal"], declared, released["diagonal_stddev"]).sum()
        spread = STDDEV**2 * np.eye(d) + LEVEL_STDDEV**2 * np.ones((d, d))
        value += stats.multivariate_normal.logpdf(declared, np.full(d, LEVEL), spread)
    # y_t = M (u* - u_t) + noise, u* ~ N(0, prior + sampling M^-1)
    steps = len(scores["precision"])
    stacked = np.tile(M, (steps, 1))
    optimum = scores["prior_covariance"] + scores["sampling"] * np.linalg.inv(M)
    covariance = stacked @ optimum @ stacked.T + np.kron(np.diag(1.0 / scores["precision"]), np.eye(d))
    residual = (scores["measured"] + scores["positions"] @ M).ravel()
    return value - 0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * residual @ np.linalg.solve(covariance, residual)
