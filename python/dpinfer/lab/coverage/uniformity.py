"""Tests of uniformity shared by the coverage checks: exact, and valid for any number of posterior draws."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray

__all__ = [
    "chi_square_pvalue",
    "combine_dependent_pvalues",
    "ecdf_band",
    "ks_pvalue",
    "randomised_ranks",
    "rmse_of_uniforms",
]

_SIMULATIONS = 5000  # the mean of the simulated RMSE then has a relative standard error of about 0.5 %
_SIMULATION_SEED = 20_230_206  # an arbitrary seed


def randomised_ranks(shares: FloatArray, n_draws: int, generator: np.random.Generator) -> FloatArray:
    """Spread each share k / S uniformly over its cell (k + U) / (S + 1).

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    shares : array in [0, 1]
        Shares of `n_draws` draws.
    n_draws : int
    generator : numpy.random.Generator

    Returns
    -------
    array of the same shape in [0, 1)

    Notes
    -----
    If the truth and its S draws are exchangeable, the rank k is uniform on 0, ..., S (Talts et al. 2018, theorem 1), so
    (k + U) / (S + 1) is exactly uniform on (0, 1): a test of it is exact for any S, where a test of k / S is not.
    """
    return np.asarray((shares * n_draws + generator.random(shares.shape)) / (n_draws + 1.0))


def ks_pvalue(values: FloatArray) -> FloatArray:
    """Return two-sided Kolmogorov-Smirnov p-values of uniformity on (0, 1), along the last axis.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    values : (..., K) array in [0, 1]

    Returns
    -------
    (...) array
        From the exact distribution of the statistic for K independent uniforms (Simard and L'Ecuyer 2011).

    Examples
    --------
    >>> import numpy as np
    >>> float(ks_pvalue(np.array([0.5])))
    1.0
    """
    from scipy import stats  # a second to import, so only if needed

    ordered = np.sort(values, axis=-1)
    count = ordered.shape[-1]
    steps = np.arange(count + 1) / count
    above = np.max(steps[1:] - ordered, axis=-1)
    below = np.max(ordered - steps[:-1], axis=-1)
    return np.asarray(stats.kstwo.sf(np.maximum(above, below), count))


def chi_square_pvalue(values: FloatArray, n_bins: int) -> tuple[npt.NDArray[np.int64], float]:
    """Return counts in equal bins of (0, 1) and the chi-square p-value of uniformity.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    values : (K,) array in [0, 1]
    n_bins : int
        At least 2.

    Returns
    -------
    counts : (n_bins,) int64
    pvalue : float
        From the chi-square distribution with n_bins - 1 degrees of freedom (Pearson 1900).

    Examples
    --------
    >>> import numpy as np
    >>> counts, pvalue = chi_square_pvalue(np.array([0.1, 0.2, 0.7, 0.9]), 2)
    >>> counts.tolist(), round(pvalue, 6)
    ([2, 2], 1.0)
    """
    counts = np.histogram(values, bins=n_bins, range=(0.0, 1.0))[0].astype(np.int64)
    expected = len(values) / n_bins
    statistic = float(np.sum((counts - expected) ** 2) / expected)
    return counts, float(special.chdtrc(n_bins - 1, statistic))


def combine_dependent_pvalues(pvalues: FloatArray) -> FloatArray:
    """Combine p-values along the first axis into one that is valid however they depend on each other.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    pvalues : (R, ...) array

    Returns
    -------
    (...) array
        ``min(1, (R / k) p_(k))`` with k = ceil(R / 2): twice the (lower) median.

    Notes
    -----
    Rueger (1978).  The p-values themselves would be needed to be independent for any sharper rule.

    Examples
    --------
    >>> import numpy as np
    >>> float(combine_dependent_pvalues(np.array([0.01, 0.02, 0.5, 0.9])))
    0.04
    """
    count = pvalues.shape[0]
    middle = (count + 1) // 2
    ordered = np.sort(pvalues, axis=0)
    return np.asarray(np.minimum(1.0, (count / middle) * ordered[middle - 1]))


def ecdf_band(n_sims: int, level: float = 0.95) -> float:
    """Return the half width of the simultaneous band of the empirical distribution of `n_sims` uniforms.

    **Privacy.** No data.

    Parameters
    ----------
    n_sims : int
    level : float in (0, 1)
        Probability that the whole empirical distribution function stays inside.

    Returns
    -------
    float
        The exact Kolmogorov-Smirnov quantile.

    Examples
    --------
    >>> round(ecdf_band(500), 4)
    0.0604
    """
    from scipy import stats

    return float(stats.kstwo.ppf(level, n_sims))


@lru_cache(maxsize=64)
def rmse_of_uniforms(n_sims: int, n_draws: int | None, levels: tuple[float, ...]) -> tuple[float, float]:
    """Return mean and standard deviation of the coverage RMSE of an exactly calibrated posterior.

    **Privacy.** No data.

    Parameters
    ----------
    n_sims : int
        Number of simulations K.
    n_draws : int or None
        Number of posterior draws S; None: infinitely many.
    levels : tuple of float
        Credibility levels, increasing.

    Returns
    -------
    mean, stddev : float

    Notes
    -----
    The numbers of shares between consecutive levels are multinomial, with cell probabilities from the uniform ranks
    0, ..., S; the RMSE (NA-DPVI 2025, eq. 27) of 5000 seeded multinomial draws is averaged, so the mean is right to
    about 0.5 %.  The root mean square is about sqrt(1 / (6 K)) for a fine grid (the Cramer-von Mises statistic); the
    mean is about 10 % lower.
    """
    grid = np.asarray(levels)
    below = grid if n_draws is None else np.searchsorted(np.arange(n_draws + 1) / n_draws, grid) / (n_draws + 1.0)
    cells = np.diff(np.concatenate([[0.0], below, [1.0]]))
    generator = np.random.default_rng(_SIMULATION_SEED)
    counts = generator.multinomial(n_sims, np.maximum(cells, 0.0), size=_SIMULATIONS)
    coverage = np.cumsum(counts[:, :-1], axis=1) / n_sims
    rmse = np.sqrt(np.mean((coverage - grid) ** 2, axis=1))
    return float(np.mean(rmse)), float(np.std(rmse, ddof=1))
