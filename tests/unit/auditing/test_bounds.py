"""Confidence bounds of the audit against their definitions and against simulated mechanisms."""

import math

import numpy as np
import pytest
from scipy import stats

from dpinfer.auditing import bounds


@pytest.mark.parametrize(("count", "trials"), [(0, 10), (3, 10), (10, 10), (120, 1000)])
def test_clopper_pearson_is_the_inverse_of_the_binomial_tail(count, trials):
    """At the bound, so few successes have probability alpha; a fully successful sample bounds nothing."""
    upper = float(bounds.binomial_upper(count, trials, 0.01))
    if count == trials:
        assert upper == 1.0
    else:
        assert stats.binom.cdf(count, trials, upper) == pytest.approx(0.01, rel=1e-9)


def test_the_bound_on_mu_holds_and_is_near():
    """Over 300 Gaussian mechanisms with mu = 1 it exceeds 1 no more often than it says; median within 10%."""
    rng = np.random.default_rng(5)
    alpha = 0.05
    found = [bounds.gaussian_lower_bound(rng.normal(size=4000), 1.0 + rng.normal(size=4000), alpha) for _ in range(300)]
    assert np.sum(np.array(found) > 1.0) <= stats.binom.ppf(1 - 1e-6, 300, alpha)
    assert np.median(found) > 0.9
    # The power twin: a mechanism with mu = 1.2 is found out.
    assert np.mean([bounds.gaussian_lower_bound(rng.normal(size=4000), 1.2 + rng.normal(size=4000), alpha) > 1.0
                    for _ in range(20)]) > 0.5  # fmt: skip


def exceeds(trials, alpha, mu, rate, fnr, bound=bounds.mu_from_total_errors):
    """Return the probability that the bound exceeds mu when the two error rates are `rate` and `fnr`: a finite sum."""
    errors = np.arange(2 * trials + 1)
    law = np.convolve(*(stats.binom.pmf(np.arange(trials + 1), trials, p) for p in (rate, fnr)))
    return float(law[bound(errors, trials, alpha) > mu].sum())


@pytest.mark.parametrize("alpha", [0.3, 0.05, 1e-3])
@pytest.mark.parametrize("trials", [7, 60, 500])
def test_total_errors_bound_mu_exactly(trials, alpha):
    """Wherever on the trade-off curve the test stands, the probability of exceeding mu is a sum, and at most alpha."""
    for mu in (0.01, 0.3, 1.0, 2.5, 5.0):
        rates = stats.norm.sf(np.linspace(mu / 2 - 3.0, mu / 2 + 3.0, 25))
        probabilities = [exceeds(trials, alpha, mu, p, stats.norm.cdf(stats.norm.isf(p) - mu)) for p in rates]
        assert max(probabilities) <= alpha * (1 + 1e-9)
        if trials == 500 and mu == 1.0:  # and it is not idle: in the middle nearly all of alpha is used
            assert max(probabilities) > 0.8 * alpha


def test_errors_without_their_interval_bound_nothing():
    """The power twins: the bound without its interval, and the same bound on a mechanism below the curve."""

    def plain(errors, trials, alpha):
        return -2.0 * stats.norm.ppf(np.clip(errors / (2 * trials), 1e-12, 0.5))

    middle = stats.norm.sf(0.5)
    assert exceeds(500, 0.05, 1.0, middle, middle, plain) > 0.4
    assert exceeds(500, 0.05, 1.0, stats.norm.sf(0.65), stats.norm.sf(0.65)) > 0.9


def test_errors_together_are_sharper_than_apart_and_apart_finds_rare_leaks():
    rng = np.random.default_rng(9)
    count = round(20_000 * stats.norm.sf(0.5))
    together = float(bounds.mu_from_total_errors(2 * count, 20_000, 1e-3))
    apart = float(bounds.mu_from_error_rates(count, count, 20_000, 1e-3))
    assert 1.0 - together < 0.72 * (1.0 - apart)  # (3.09 / sqrt 2) / 3.29 = 0.66 of it, and discreteness
    # The canary shows in one of twenty trials, unmistakably: together, mu >= 2 Phi^-1(0.525) = 0.13 at most.
    hidden = rng.normal(size=20_000) + np.where(rng.random(20_000) < 0.05, 40.0, 0.0)
    assert bounds.gaussian_lower_bound(rng.normal(size=20_000), hidden, 1e-3) > 0.8


def test_the_bound_on_mu_knows_no_sign_and_no_scale():
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=2000), 2.0 + rng.normal(size=2000)
    assert bounds.gaussian_lower_bound(-a, -b, 0.01) == pytest.approx(bounds.gaussian_lower_bound(a, b, 0.01), rel=0.05)
    assert bounds.gaussian_lower_bound(8.0 * a, 8.0 * b, 0.01) == bounds.gaussian_lower_bound(a, b, 0.01)
    assert bounds.gaussian_lower_bound(a, a, 0.01) == 0.0


def test_one_run_bound_on_randomised_response():
    """Randomised response on m bits is epsilon-private and guessed right at the rate that epsilon allows."""
    rng, m, epsilon = np.random.default_rng(7), 2000, 1.5
    rate = 1 / (1 + math.exp(-epsilon))
    lower = np.array([bounds.one_run_lower_bound(m, m, rng.binomial(m, rate), 0.0, 0.05) for _ in range(40)])
    assert np.sum(lower > epsilon) <= stats.binom.ppf(1 - 1e-6, 40, 0.05)
    assert np.median(lower) > 0.88 * epsilon


def test_one_run_pvalue():
    exact = stats.binom.sf(79, 100, 1 / (1 + math.exp(-1.0)))
    assert bounds.one_run_pvalue(100, 100, 80, 1.0, 0.0) == pytest.approx(exact, rel=1e-12)
    # The term in delta: 2 m delta max_i P[v - i <= W < v] / i.
    law = stats.binom(100, 1 / (1 + math.exp(-1.0)))
    slope = max((law.cdf(79) - law.cdf(79 - i)) / i for i in range(1, 81))
    assert bounds.one_run_pvalue(1000, 100, 80, 1.0, 1e-5) == pytest.approx(exact + 2000 * 1e-5 * slope, rel=1e-9)
    assert bounds.one_run_pvalue(10, 10, 0, 1.0, 1e-5) == 1.0
    assert bounds.one_run_lower_bound(100, 100, 50, 1e-5, 0.05) == 0.0
