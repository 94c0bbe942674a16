"""What run_network_sep and run_network_dp_sep refuse and what they must live with: bad gammas, records, precisions."""

from functools import partial

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import RecordError
from dpinfer.inference import network_posterior
from dpinfer.lab.baselines import run_network_sep, run_published_network_dp_sep
from dpinfer.mechanism import NetworkSettings, run_network_dp_sep
from dpinfer.testing import InsecureRNG

MODEL = dpi.models.BayesianNeuralNetwork(2, 4, prior_precision=2.0)


@pytest.fixture
def data(rng):
    X = rng.normal(size=(50, 2))
    return X, np.maximum(X[:, 0], 0.0) - X[:, 1]


def plan(noise=5.0, steps=5):
    return dpi.PrivacyPlan.from_noise_multiplier(noise, 1.0, steps, 1e-5)


def finite(weights):
    assert np.all(np.isfinite(weights.loc))
    assert np.all(np.isfinite(weights.variance))
    assert np.all(weights.variance > 0.0)
    mean, variance = weights.predict(np.ones((3, 2)))
    assert np.all(np.isfinite(mean))
    assert np.all(variance > 0.0)


@pytest.mark.parametrize("gamma", [0.0, -1.0, 50.1, np.nan, np.inf])
def test_gamma_lies_between_zero_and_the_number_of_records(data, gamma):
    with pytest.raises(ValueError, match="gamma"):
        run_network_sep(MODEL, *data, n_passes=1, gamma=gamma)


def test_gamma_is_how_far_an_update_moves(data):
    """gamma = N is the standard update, and a tenth of it moves less."""
    standard = run_network_sep(MODEL, *data, n_passes=1, learn_prior=False)
    full = run_network_sep(MODEL, *data, n_passes=1, gamma=50.0, learn_prior=False)
    np.testing.assert_array_equal(full.loc, standard.loc)
    slow = run_network_sep(MODEL, *data, n_passes=1, gamma=5.0, learn_prior=False)
    start = MODEL.start_loc(0)
    assert np.linalg.norm(slow.loc - start) < 0.5 * np.linalg.norm(standard.loc - start)


@pytest.mark.parametrize("method", ["sep", "ep", "adf"])
def test_one_record_and_wild_records(data, method):
    finite(run_network_sep(MODEL, data[0][:1], data[1][:1], method=method, n_passes=3))
    X, y = data[0].copy(), data[1].copy()
    X[3], y[5] = 1e200, -1e300
    finite(run_network_sep(MODEL, X, y, method=method, n_passes=3))


def test_one_record_is_enough_for_a_private_run(data):
    release = run_network_dp_sep(
        MODEL, data[0][:1], data[1][:1], plan=plan(), n_records=1, random_source=InsecureRNG(1)
    )
    assert np.all(np.isfinite(release.noisy_sums))
    finite(network_posterior(release))


def test_precisions_that_the_noise_made_negative_are_floored(data):
    """The raw precision is released as it is; what is used, and what predicts, is positive."""
    release = run_network_dp_sep(
        MODEL, *data, plan=plan(noise=50.0), n_records=50, settings=NetworkSettings(), random_source=InsecureRNG(2)
    )
    assert release.precision[-1].min() < 0.0
    assert np.all(release.floor > MODEL.prior_precision)
    finite(network_posterior(release))


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda X, y: (np.where(np.arange(50)[:, None] == 37, np.nan, X), y), "X"),
        (lambda X, y: (X, np.where(np.arange(50) == 37, np.inf, y)), "y"),
        (lambda X, y: (X[:, :1], y), "X"),
        (lambda X, y: (X[0], y), "X"),
        (lambda X, y: (X, y[:-1]), "y"),
        (lambda X, y: (X, y[:, None]), "y"),
    ],
)
def test_bad_records_are_refused_without_naming_a_row(data, private, change, name):
    X, y = change(*data)
    source = InsecureRNG(3)
    run = run_network_sep
    if private:
        run = partial(run_network_dp_sep, plan=plan(), n_records=50, random_source=source)
    with pytest.raises(RecordError, match=name) as caught:
        run(MODEL, X, y)
    assert "37" not in str(caught.value)
    # Nothing was drawn, nothing was spent.
    assert source.take_key() == InsecureRNG(3).take_key()


def test_dimension_mismatches_are_named(data):
    for name, call in {
        "start": lambda: run_network_sep(MODEL, *data, start=np.zeros(3)),
        "model": lambda: run_network_sep(dpi.models.ProbitRegression(2), *data),
        "plan": lambda: run_network_dp_sep(MODEL, *data, plan=1.0, n_records=50),
    }.items():
        with pytest.raises((TypeError, ValueError), match=name):
            call()
    uniform = dpi.PrivacyPlan.from_noise_multiplier(5.0, None, 10, 1e-5, sampling="uniform", n_records=50)
    with pytest.raises(ValueError, match="poisson"):
        run_network_dp_sep(MODEL, *data, plan=uniform, n_records=50)


def test_the_published_noise_is_that_of_its_formula(data):
    """q's natural parameters get independent normal noise of 2 C sigma / N an update, which later updates shrink."""
    X, y = np.repeat(data[0], 4, axis=0), np.repeat(data[1], 4)
    n, norm, sigma = 200, 1e-9, 1e9  # so clipped that no record moves q

    def natural(noise, seed):
        options = {"n_passes": 1, "max_site_norm": norm, "learn_prior": False, "start": np.zeros(MODEL.n_params)}
        weights = run_published_network_dp_sep(MODEL, X, y, noise_multiplier=noise, seed=seed, **options)
        return weights.loc / weights.variance

    assert np.all(np.abs(natural(0.0, 0)) < 1e-6)
    drawn = np.concatenate([natural(sigma, seed) for seed in range(40)])
    # Updates of the mean of sites forget 1 / N each: the variance after N of them is (1 - exp(-2)) N / 2 times one's.
    expected = 2.0 * norm * sigma / n * np.sqrt(0.5 * n * (1.0 - np.exp(-2.0)))
    # 680 draws: an error of 2.7%; five of them.
    assert abs(drawn.std() / expected - 1.0) < 0.14


def test_the_published_noise_is_not_private(data):
    weights = run_published_network_dp_sep(MODEL, *data, n_passes=1, max_site_norm=1.0, noise_multiplier=1.0)
    assert not weights.private
    with pytest.raises(ValueError, match="noise_multiplier"):
        run_published_network_dp_sep(MODEL, *data, max_site_norm=1.0, noise_multiplier=-1.0)
