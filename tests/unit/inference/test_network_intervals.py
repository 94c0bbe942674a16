"""Predictions of a network from a private run: replicas show how far the privacy noise moves them."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi
from dpinfer.errors import NumericalError
from dpinfer.inference import network_posterior
from dpinfer.mechanism import run_network_dp_sep
from dpinfer.mechanism.private_run import RunControl
from dpinfer.mechanism.sites import network_dpsep
from dpinfer.models import BayesianNeuralNetwork, NetworkWeights
from dpinfer.testing import InsecureRNG

MODEL = BayesianNeuralNetwork(2, 6)
POINTS = np.random.default_rng(3).normal(size=(200, 2))


def truth(X):
    return np.maximum(X[:, 0], 0.0) - 0.5 * X[:, 1]


def run(seed, *, n_steps=60, n_records=1500, **options):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(n_records, 2))
    y = truth(X) + 0.4 * rng.normal(size=n_records)
    plan = dpi.plan_privacy(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.2, n_steps=n_steps, accountant="rdp")
    return run_network_dp_sep(
        MODEL, X, y, plan=plan, n_records=n_records, random_source=InsecureRNG(seed), n_threads=1, **options
    )


@pytest.fixture(scope="module")
def release():
    return run(1)


def test_the_default_posterior_counts_the_privacy_noise(release):
    posterior, naive = dpi.noise_aware_posterior(release), dpi.noise_aware_posterior(release, approximation="naive")
    np.testing.assert_array_equal(posterior.mean, naive.mean)
    added = release.replica_loc.var(axis=0, ddof=1)
    np.testing.assert_allclose(posterior.stddev**2 - naive.stddev**2, added, rtol=1e-9)
    np.testing.assert_allclose(posterior.decompose().privacy, added, rtol=1e-9)
    np.testing.assert_array_equal(posterior.predict_mean(POINTS), naive.predict_mean(POINTS))


def test_replicas_are_post_processing_of_the_release(release):
    plan = dpi.plan_privacy(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.2, n_steps=60, accountant="rdp")
    settings = network_dpsep.NetworkSettings.rule(1500, plan.epsilon)
    start = MODEL.start_loc(0, hidden=settings.hidden_start, output=settings.output_start)
    bare = release.replace(replica_loc=np.zeros((0, 0)), replica_noise=np.zeros(0))
    runs = [network_dpsep._NetworkSites(MODEL, plan, settings, start, 1500) for _ in range(12)]
    again = network_dpsep._with_replicas(bare, MODEL, runs, RunControl.checked(n_threads=1))
    np.testing.assert_array_equal(again.replica_loc, release.replica_loc)
    np.testing.assert_array_equal(again.replica_noise, release.replica_noise)


def test_a_release_without_replicas_says_how_to_go_on(tmp_path):
    bare = run(1, n_steps=6, n_replicas=0)
    with pytest.raises(NumericalError, match="approximation='naive' or 'averaged'"):
        dpi.noise_aware_posterior(bare)
    bare.save(tmp_path / "bare.release")
    assert dpi.load_release(tmp_path / "bare.release").replica_loc.size == 0
    with pytest.raises(ValueError, match="without replicas"):
        network_posterior(bare).interval(POINTS, kind="retrained")


def test_a_replica_that_does_not_end_loses_no_release(monkeypatch):
    def interrupted(self, *_, rate=None, **__):
        if rate is not None:
            raise KeyboardInterrupt
        return started(self, *_, **__)

    started = network_dpsep._NetworkSites.start
    monkeypatch.setattr(network_dpsep._NetworkSites, "start", interrupted)
    with pytest.warns(RuntimeWarning, match="the release has none"):
        release = run(1, n_steps=6)
    assert release.replica_loc.size == 0
    assert release.n_steps == 6


def test_more_records_than_replicas_have_are_as_informative(monkeypatch):
    monkeypatch.setattr(
        network_dpsep.tuning, "TUNING", dataclasses.replace(network_dpsep.tuning.TUNING, replica_rows=700)
    )
    few = network_posterior(run(1)).interval(POINTS, kind="retrained")
    monkeypatch.undo()
    all_of_them = network_posterior(run(1)).interval(POINTS, kind="retrained")
    ratio = np.median((few[1] - few[0]) / (all_of_them[1] - all_of_them[0]))
    # Twelve replicas each: the ratio of medians over points has a spread of about 0.15 (20 seeds).
    assert 0.5 < ratio < 2.0


@pytest.mark.parametrize("count", [0, 12])
def test_intervals_have_their_probability(count):
    rng = np.random.default_rng(5)
    n = MODEL.n_params
    replicas = 0.5 * rng.normal(size=(count, n)) if count else np.zeros((0, 0))
    noise = rng.uniform(0.1, 0.4, count)
    weights = NetworkWeights(MODEL, rng.normal(size=n), np.full(n, 0.1), 0.2, replicas=replicas, replica_noise=noise)
    mean, variance = weights.predict(POINTS)
    for level in (0.5, 0.9):
        low, high = weights.interval(POINTS, level)
        np.testing.assert_allclose(0.5 * (low + high), mean, rtol=1e-9)
        spread = variance[:, None] - 0.2 + (0.2 * noise.mean() / noise if count else 0.2)
        inside = 2.0 * stats.norm.cdf((high - mean)[:, None] / np.sqrt(spread)).mean(axis=1) - 1.0
        np.testing.assert_allclose(inside, level, atol=1e-9)
    function = weights.interval(POINTS, kind="mean")
    if count:
        ends = [NetworkWeights(MODEL, loc, weights.variance, 0.2).predict(POINTS)[0] for loc in replicas]
        alone = weights.interval(POINTS, kind="retrained")
        half = stats.t.ppf(0.95, count - 1) * np.std(ends, axis=0, ddof=1)
        np.testing.assert_allclose(0.5 * (alone[1] - alone[0]), half, rtol=1e-9)
        assert np.all(function[1] - function[0] > alone[1] - alone[0])


def test_wrong_arguments_are_named(release):
    with pytest.raises(ValueError, match="n_replicas must be 0 or at least 4"):
        run(1, n_replicas=3)
    with pytest.raises(ValueError, match="kind must be"):
        network_posterior(release).interval(POINTS, kind="both")
    with pytest.raises(ValueError, match="level"):
        network_posterior(release).interval(POINTS, 1.5)
    with pytest.raises(ValueError, match="n_samples must not be given with a network"):
        dpi.noise_aware_posterior(release, n_samples=10)


def test_one_call_fits_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr(dpi.mechanism, "network_plan_arguments", lambda n_records: {"sample_rate": 0.5, "n_steps": 20})
    rng = np.random.default_rng(2)
    X = rng.normal(size=(400, 2))
    y = truth(X) + 0.4 * rng.normal(size=400)
    fit = dpi.fit(MODEL, X, y, epsilon=2.0, delta=1e-5, n_records=400, path=tmp_path / "fit")
    assert fit.posterior.method == "sep"
    assert fit.posterior.predict(POINTS).shape == (200,)
    assert len(dpi.load_fit(tmp_path / "fit").release.replica_loc) == 12


@pytest.mark.statistical
def test_replicas_spread_as_far_as_retrained_networks():
    retrained = np.array([network_posterior(run(100 + k, n_replicas=0)).predict(POINTS)[0] for k in range(16)])
    logs, inside = [], []
    for seed in range(4):
        low, high = network_posterior(run(seed)).interval(POINTS, kind="retrained")
        spread = 0.5 * (high - low) / stats.t.ppf(0.95, 11)
        logs.append(0.5 * np.log(np.mean(spread**2) / np.mean(retrained.var(axis=0, ddof=1))))
        inside.append(np.mean((low < retrained.mean(axis=0)) & (retrained.mean(axis=0) < high)))
    # The logarithm of a ratio has a spread of 0.31 (20 seeds, mean -0.03): five of its errors are 0.78.
    assert abs(np.mean(logs)) < 0.78
    assert np.mean(inside) > 0.6
    # The power twin: noise counted at a quarter.
    assert abs(np.mean(logs) + np.log(0.25)) > 0.78
