"""Monte Carlo errors of printed quantiles, against ArviZ and against repeated draws."""

from functools import partial

import numpy as np
import pytest
from scipy import stats
from tests.reference import inference_oracles as oracle

from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.posterior.monte_carlo import effective_draws
from dpinfer.lab.comparison import sampled_posterior


def autoregression(rng, size, coefficient):
    values = rng.standard_normal(size)
    for t in range(1, size):
        values[t] = coefficient * values[t - 1] + np.sqrt(1.0 - coefficient**2) * values[t]
    return values


@pytest.mark.parametrize("coefficient", [-0.5, 0.0, 0.7, 0.95])
def test_effective_draws_are_those_of_arviz(rng, coefficient):
    arviz = pytest.importorskip("arviz")
    series = np.column_stack([autoregression(rng, size, coefficient) for size in (400, 400, 400)])
    expected = [arviz.ess(column[None], method="mean") for column in series.T]
    # Equal in all but 3% of 300 series, where they are off by less than 2%, but for the last lags of a slow chain.
    np.testing.assert_allclose(effective_draws(series), expected, rtol=0.05 if coefficient > 0.9 else 0.03)


def test_halves_that_disagree_count_and_a_constant_is_no_chain(rng):
    drifting = np.linspace(0.0, 5.0, 200) + rng.normal(size=200)
    assert effective_draws(drifting[:, None])[0] < 10.0
    assert effective_draws(np.ones((50, 1)))[0] == 50.0
    # The last digit, at first one way and then the other.
    rounded = np.repeat([0.3, np.nextafter(0.3, 1.0)], 25)
    assert effective_draws(rounded[:, None])[0] == 50.0


@pytest.fixture(scope="module")
def release():
    rng = np.random.default_rng(5)
    x, g, _ = oracle.simulate(
        rng, steps=400, hessian=np.array([30.0, 8.0]), optimum=np.array([0.3, -0.2]), noise_stddev=np.array([1.0, 2.0])
    )
    return oracle.point_release(x, g, np.array([1.0, 2.0]))


@pytest.mark.parametrize(
    "options",
    [
        {"hessian": "full", "n_samples": 150},
        {"sampler": "emcee", "n_samples": 40, "n_warmup": 20, "check_convergence": False},
    ],
)
def test_the_error_is_the_spread_over_seeds(release, options):
    """Spread of quantiles and means over 32 seeds over their stated errors, at a false-positive rate of 1e-6 for all.

    An error may be half as large again as it should be: of short chains it errs on the safe side, and there that of a
    quantile now and then reaches the end of the distribution. Errors that took the walkers of an ensemble for
    successive draws were half as large as they should have been, and are rejected.
    """
    chosen = {name: value for name, value in options.items() if name != "sampler"}
    draw = noise_aware_posterior if chosen == options else partial(sampled_posterior, release, options["sampler"])
    given = (release,) if chosen == options else ()
    runs = [draw(*given, burn_in=0, seed=seed, **chosen) for seed in range(32)]
    values = np.array([np.vstack([run.quantile([0.05, 0.95]), run.mean]) for run in runs])
    found = [run.monte_carlo_error() for run in runs]
    errors = np.array([np.vstack([error.quantile, error.mean]) for error in found])
    ratio = values.std(axis=0, ddof=1) / np.sqrt(np.mean(errors**2, axis=0))
    low, high = np.sqrt(stats.chi2.ppf([1e-6 / 12.0, 1.0 - 1e-6 / 12.0], 31) / 31.0)
    assert np.all(ratio < high)
    certain = ratio if options["n_samples"] > 40 else ratio[2:]
    assert np.all(certain > low / 1.5)
    assert "mcse 5%" in str(runs[0].summary())


def test_quadrature_has_no_monte_carlo_error(release):
    posterior = noise_aware_posterior(release)
    error = posterior.monte_carlo_error([0.1])
    assert not error.drawn
    assert not np.any(error.quantile)
    assert "mcse" not in str(posterior.summary())
    with pytest.raises(ValueError, match="q must be a number or one-dimensional"):
        posterior.monte_carlo_error([0.0])
