"""Exact confidence bounds that turn an audit's counts into statements about a mechanism.

**Privacy.** Functions of counts; nothing here reads records.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpinfer._arrays import FloatArray
from dpinfer.accounting.gaussian import bisected
from dpinfer.auditing import tuning

_MAX_EPSILON = 50.0  # a larger refuted epsilon is reported as this one: format


def binomial_upper(
    count: npt.ArrayLike,  # successes, in [0, trials]
    trials: int,
    alpha: float,  # in (0, 1): probability with which the bound may be below the truth
) -> FloatArray:  # in (0, 1]
    """Return the one-sided upper bound of a probability of Clopper and Pearson (1934).

    Examples
    --------
    >>> round(float(binomial_upper(0, 100, 0.05)), 4)
    0.0295
    """
    counted = np.asarray(count, dtype=np.float64)
    upper = stats.beta.ppf(1.0 - alpha, counted + 1.0, np.maximum(trials - counted, 1e-300))
    return np.asarray(np.where(counted >= trials, 1.0, upper))


def mu_from_total_errors(
    errors: npt.ArrayLike,  # false positives plus false negatives of a test that was fixed beforehand
    trials: int,  # trials without the canary, and as many with it
    alpha: float,  # in (0, 1): probability with which the bound may exceed the truth
) -> FloatArray:  # at least 0
    """Return a lower bound on mu from the number of errors of both kinds together.

    Under mu-GDP the two error rates sum to at least 2 Phi(-mu / 2), and one or more below the mean the lower tail of a
    sum of independent trials is at most that of the binomial with the same mean (Hoeffding, 1956).  Proof in
    docs/derivations/audit.md.

    Examples
    --------
    >>> round(float(mu_from_total_errors(6000, 10_000, 1e-3)), 3)
    0.991
    """
    counted = np.asarray(errors, dtype=np.float64)
    upper = binomial_upper(counted, 2 * trials, alpha)
    holds = (counted <= 2 * trials * upper - 1.0) & (upper < 0.5)
    return np.asarray(np.where(holds, -2.0 * stats.norm.ppf(np.where(holds, upper, 0.5)), 0.0))


def mu_from_error_rates(
    # false_positives, false_negatives: errors of a test that was fixed beforehand
    false_positives: npt.ArrayLike,
    false_negatives: npt.ArrayLike,
    trials: int,  # trials without the canary, and as many with it
    alpha: float,  # in (0, 1): probability with which the bound may exceed the truth
) -> FloatArray:  # may be negative
    """Return a lower bound on mu from upper bounds of the two error rates, alpha / 2 each.

    mu >= Phi^-1(1 - FPR) - Phi^-1(FNR) (Dong, Roth and Su, 2022, Definition 2.4; the estimator of Nasr et al., 2023).

    Examples
    --------
    >>> round(float(mu_from_error_rates(3000, 3000, 10_000, 1e-3)), 3)
    0.962
    """
    positive = binomial_upper(false_positives, trials, alpha / 2)
    negative = binomial_upper(false_negatives, trials, alpha / 2)
    return np.asarray(stats.norm.isf(positive) - stats.norm.ppf(negative))


def gaussian_lower_bound(without: FloatArray, with_canary: FloatArray, alpha: float) -> float:
    """Return a lower bound on mu, at least 0: no mu-GDP mechanism with a smaller mu separates the two samples as well.

    **Privacy.** Reads the outcomes of trials on artificial records.

    Parameters
    ----------
    without, with_canary : (n,) float64
        The statistic over trials without and with the canary.  The first tenth of each chooses a threshold and how
        errors are counted, together or apart; the rest is counted.
    alpha : float in (0, 1)
        Probability with which the bound may exceed the truth.

    Notes
    -----
    Together, at the middle of the two medians (:func:`mu_from_total_errors`), is the sharper for two Gaussians.  Apart,
    at the best of 49 thresholds (:func:`mu_from_error_rates`), finds a leak that is rare and gross.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> bound = gaussian_lower_bound(rng.normal(size=20_000), 1.0 + rng.normal(size=20_000), 1e-3)
    >>> 0.9 < bound < 1.0
    True
    """
    pilot = max(1, int(tuning.TUNING.pilot_share * without.size))
    sign = 1.0 if np.mean(with_canary[:pilot]) >= np.mean(without[:pilot]) else -1.0
    first, second = np.sort(sign * without[:pilot]), np.sort(sign * with_canary[:pilot])

    def errors(threshold: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        above = pilot - np.searchsorted(first, threshold, side="right")
        return np.asarray(above), np.asarray(np.searchsorted(second, threshold, side="right"))

    # At a level at which the pilot's own noise keeps thresholds in the tails from looking good by luck.
    candidates = np.quantile(np.concatenate((first, second)), np.linspace(0.02, 0.98, 49))
    apart = mu_from_error_rates(*errors(candidates), pilot, tuning.TUNING.pilot_level)
    middle = 0.5 * (np.median(first) + np.median(second))
    together = float(mu_from_total_errors(sum(errors(middle)), pilot, tuning.TUNING.pilot_level))
    by_total = together >= tuning.TUNING.in_favour * float(np.max(apart))
    threshold = middle if by_total else candidates[int(np.argmax(apart))]

    trials = without.size - pilot
    positives = int(np.count_nonzero(sign * without[pilot:] > threshold))
    negatives = int(np.count_nonzero(sign * with_canary[pilot:] <= threshold))
    if by_total:
        return float(mu_from_total_errors(positives + negatives, trials, alpha))
    return max(0.0, float(mu_from_error_rates(positives, negatives, trials, alpha)))


def one_run_pvalue(n_canaries: int, n_guesses: int, n_correct: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many correct guesses under (epsilon, delta)-differential privacy.

    Of `n_canaries` records, each was included or not by a fair coin; `n_guesses` are those without abstention.  Source:
    Steinke, Nasr and Jagielski (2023), Theorem 3.1 with its bound on the term in delta, by the program of their
    Appendix D.
    """
    rate = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(stats.binom.sf(n_correct - 1, n_guesses, rate))
    masses = stats.binom.pmf(np.arange(n_correct - 1, -1, -1), n_guesses, rate)
    slope = float(np.max(np.cumsum(masses) / np.arange(1, n_correct + 1))) if n_correct else 0.0
    return min(1.0, tail + 2.0 * n_canaries * delta * slope)


def one_run_lower_bound(n_canaries: int, n_guesses: int, n_correct: int, delta: float, alpha: float) -> float:
    """Return the largest epsilon up to 50 that so many correct guesses refute at level `alpha`; 0 if they refute none.

    The numbers are as for :func:`one_run_pvalue`.

    Examples
    --------
    >>> 1.8 < one_run_lower_bound(1000, 1000, 900, 0.0, 0.05) < math.log(9.0)
    True
    """

    def stands(epsilon: float) -> bool:
        return one_run_pvalue(n_canaries, n_guesses, n_correct, epsilon, delta) > alpha

    return 0.0 if stands(0.0) else bisected(stands, 0.0, _MAX_EPSILON, halvings=30)[0]
