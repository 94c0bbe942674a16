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
    """Over 300 Gaussian mechanisms with mu = 1 it exceeds 1 no more often than it says; median within 15%."""
    rng = np.random.default_rng(5)
    alpha = 0.05
    found = [bounds.gaussian_lower_bound(rng.normal(size=4000), 1.0 + rng.normal(size=4000), alpha) for _ in range(300)]
    assert np.sum(np.array(found) > 1.0) <= stats.binom.ppf(1 - 1e-6, 300, alpha)
    assert np.median(found) > 0.85
    # The power twin: a mechanism with mu = 1.2 is found out.
    assert np.mean([bounds.gaussian_lower_bound(rng.normal(size=4000), 1.2 + rng.normal(size=4000), alpha) > 1.0
                    for _ in range(20)]) > 0.5  # fmt: skip


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
