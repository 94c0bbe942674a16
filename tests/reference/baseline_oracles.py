"""Exact noise-aware posteriors by summation, and small helpers, for the baselines' tests."""

import numpy as np
from scipy import special, stats


def beta_binomial_weights(noisy, scale, total, a, b):
    """p(s | z) on s = 0 ... total: Beta-Binomial prior predictive times the Laplace density."""
    s = np.arange(total + 1)
    log_prior = (
        special.gammaln(total + 1.0)
        - special.gammaln(s + 1.0)
        - special.gammaln(total - s + 1.0)
        + special.betaln(a + s, b + total - s)
    )
    log_weight = log_prior - np.abs(noisy - s) / scale
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def beta_mixture_cdf(theta, weights, a, b):
    """P(theta <= t | z), the mixture of Beta(a + s, b + total - s)."""
    total = weights.size - 1
    s = np.arange(total + 1)
    keep = weights > 1e-14
    cdf = stats.beta.cdf(np.asarray(theta)[..., None], a + s[keep], b + total - s[keep])
    return cdf @ weights[keep]


def chi2_rejects(counts, probabilities, alpha):
    """Pearson's test of counts against cell probabilities."""
    expected = counts.sum() * probabilities
    statistic = np.sum((counts - expected) ** 2 / expected)
    return statistic > stats.chi2.isf(alpha, counts.size - 1)
