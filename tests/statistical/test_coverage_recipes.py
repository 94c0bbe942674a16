"""The tied recipe is calibrated over the prior; posteriors that ignore noise or clipping are found out."""

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi

RATE = 1e-6
OPTIONS = {"n_runs": 300, "n_steps": 500, "n_draws": 200, "n_repeats": 1, "seed": 11}
STUDIES = ("gamma-exponential", "beta-bernoulli")
CRITICAL = stats.norm.isf(0.5 * RATE)
pytestmark = pytest.mark.statistical


def bias(result):
    """Mean z-score in its standard errors."""
    return np.abs(result.sbc.mean_z / result.sbc.mean_z_stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epsilon", "recipe"),
    [*((name, epsilon, "tied") for name in STUDIES for epsilon in (1.0, 0.1)), ("beta-bernoulli", 0.1, "aligned")],
)
def test_coverage(name, epsilon, recipe):
    """The joint coverage and the ranks are uniform, and z-scores have mean 0 (false-positive rate 1e-6 each)."""
    exact = dpi.coverage_study(name, epsilon=epsilon, recipe=recipe, **OPTIONS)
    assert exact.n_failed == 0
    assert exact.tarp.ks_pvalue > RATE
    assert exact.sbc.ks_pvalue.min() > RATE
    assert exact.sbc.chi2_pvalue.min() > RATE
    assert bias(exact).max() < CRITICAL
    # The interval is worth something: within a small factor of that of the posterior without privacy.
    assert 1.0 < np.median(exact.relative_width) < 4.0


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_the_naive_posterior_is_found_out(name):
    """The power twin, at epsilon = 0.1: at 1 the last iterate of the decaying steps carries little of the noise."""
    naive = dpi.coverage_study(name, epsilon=0.1, method="naive", **OPTIONS)
    assert naive.sbc.chi2_pvalue.max() < RATE
    if name == "gamma-exponential":
        assert naive.tarp.ks_pvalue < RATE


def test_clipping_must_be_corrected():
    """Where the norm clips 5% of the records, the mean z-score gives the uncorrected posterior away."""
    options = OPTIONS | {"max_grad_norm": 2.0, "n_runs": 100}
    corrected, uncorrected = (
        dpi.coverage_study("gamma-exponential", epsilon=1.0, correct=correct, **options) for correct in (True, False)
    )
    assert bias(corrected).max() < CRITICAL
    assert bias(uncorrected).min() > CRITICAL
