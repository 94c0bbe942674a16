"""Private runs for networks: what is released, how it follows from the sums, and what is refused."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from tests.reference import network_oracles as oracle

import dpinfer as dpi
from dpinfer.errors import InsecureReleaseError, RecordError
from dpinfer.inference import network_posterior
from dpinfer.lab.baselines import NetworkVISettings, run_network_sep, run_network_vi
from dpinfer.mechanism import (
    NetworkSettings,
    _native,
    network_plan_arguments,
    run_network_dp_sep,
)
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.models import BayesianNeuralNetwork
from dpinfer.testing import InsecureRNG

KEY = bytes(range(32))
MODEL = BayesianNeuralNetwork(2, 5, prior_precision=2.0)


class KnownKey(RandomSource):
    secure = False

    def take_key(self):
        return KEY


@pytest.fixture(scope="module")
def plan():
    return dpi.plan_privacy(target_epsilon=5.0, target_delta=1e-5, sample_rate=0.2, n_steps=30)


def records(n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.maximum(X[:, 0], 0.0) - 0.5 * X[:, 1] + 0.1 * rng.normal(size=n)


def run(plan, X=None, y=None, model=MODEL, **options):
    if X is None:
        X, y = records()
    defaults = {"plan": plan, "n_records": 400, "random_source": InsecureRNG(1)}
    return run_network_dp_sep(model, X, y, **(defaults | options))


def noise_of(step, model, plan, norm):
    """The noise of one step under the known key: one record that is never sampled."""
    session = _native.NetworkSession(
        features=np.zeros((1, model.n_features)), response=np.zeros(1), n_hidden=model.n_hidden, hidden_scale=1.0,
        output_scale=1.0, sample_rate=1e-12, max_norm=norm, key=KEY, n_threads=1,
    )  # fmt: skip
    return session.noisy_sum(step, plan.noise_multiplier)


def clip(vector, norm):
    return vector * min(1.0, norm / np.linalg.norm(vector))


@pytest.mark.parametrize("step", [0, 29])
def test_a_released_sum_is_the_clipped_sites_plus_noise(plan, step):
    """Record by record through the NumPy moments, with the noise taken away, at the released state."""
    X, y = records()
    settings = NetworkSettings(max_site_norm=0.3, block_weight=0.5)
    release = run(plan, X, y, settings=settings, random_source=KnownKey())
    loc, noise = release.loc[step], release.noise_variance[step]
    used = np.maximum(release.precision[step], release.floor[step])
    variance = 1 / (used - (used - MODEL.prior_precision) / 400)
    total = np.zeros(2 * MODEL.n_params + 1)
    for i in _native.poisson_sample(KEY, step, plan.sample_rate, 400):

        def evidence(m, v, i=i):
            return oracle.log_evidence(m, v, noise, X[i], y[i], MODEL.n_hidden)

        a, b = oracle.centred_sites(loc, variance, *oracle.numeric_gradient(evidence, loc, variance))
        f, s = oracle.output_moments(loc, variance, X[i], MODEL.n_hidden)
        share = noise * (y[i] - f) / (s + noise)
        statistic = 0.5 * (share**2 + s * noise / (s + noise))
        sites = clip(np.concatenate((np.sqrt(noise) * a, 0.5 * noise * b)), 0.3 * np.sqrt(1 - 0.25**2))
        total += np.append(sites, min(0.1 * 0.3 * statistic / noise, 0.25 * 0.3))
    got = release.noisy_sums[step] - noise_of(step, MODEL, plan, 0.3)
    np.testing.assert_allclose(got, total, rtol=2e-5, atol=2e-6)


def test_the_trace_follows_from_the_sums(plan):
    """Everything else in the release is recomputed from the noisy sums and public numbers."""
    release = run(plan)
    n, prior = MODEL.n_params, MODEL.prior_precision
    for t in range(plan.n_steps):
        used = np.maximum(release.precision[t], release.floor[t])
        linear = release.noisy_sums[t, :n] / (plan.sample_rate * release.weights[t, 0])
        sites = release.noisy_sums[t, n:-1] / (plan.sample_rate * release.weights[t, 1])
        r = release.damping[t]
        np.testing.assert_allclose(
            release.loc[t + 1], release.loc[t] + r * (linear - prior * release.loc[t]) / used, rtol=1e-12
        )
        np.testing.assert_allclose(release.precision[t + 1], (1 - r) * release.precision[t] + r * (prior + sites))
    np.testing.assert_allclose(release.noise_stddev, plan.noise_multiplier * release.max_site_norm)


def test_the_floor_is_the_known_deviation_of_the_precision(plan):
    """At least one standard deviation of the accumulated noise; without records the scatter says the same."""
    release = run(plan)
    accumulated = 0.0
    for t in range(plan.n_steps):
        unit = release.noise_stddev / (plan.sample_rate * release.weights[t, 1])
        accumulated = (1 - release.damping[t]) ** 2 * accumulated + (release.damping[t] * unit) ** 2
    np.testing.assert_allclose(release.floor[-1], MODEL.prior_precision + np.sqrt(accumulated))


def test_noise_is_that_of_the_sum_whatever_the_damping(plan):
    """Honesty: a slower rate must not shrink the noise in what is released (the published factor 1 / N would)."""
    stddevs = []
    for movement in ((1.0, 1.0), (25.0, 25.0)):
        release = run(plan, settings=NetworkSettings(movement=movement), random_source=KnownKey())
        stddevs.append(release.noise_stddev)
        np.testing.assert_allclose(release.noise_stddev, plan.noise_multiplier * release.max_site_norm, rtol=1e-12)
    assert stddevs[0] == stddevs[1]


def test_learning_beats_the_mean(plan):
    X, y = records(4000, 1)
    better = dpi.plan_privacy(target_epsilon=5.0, target_delta=1e-5, sample_rate=0.1, n_steps=300)
    release = run(better, X, y, n_records=4000, model=BayesianNeuralNetwork(2, 20, prior_precision=2.0))
    weights = network_posterior(release)
    test_X, test_y = records(1000, 2)
    mean, variance = weights.predict(test_X)
    assert np.sqrt(np.mean((mean - test_y) ** 2)) < 0.35 * test_y.std()
    assert weights.log_predictive_density(test_X, test_y).mean() > -0.5
    assert np.all(variance > weights.noise_variance)
    averaged = network_posterior(release, average=0.2)
    assert np.sqrt(np.mean((averaged.predict(test_X)[0] - test_y) ** 2)) < 0.35 * test_y.std()


@pytest.mark.parametrize("threads", [2, 3])
def test_the_release_does_not_depend_on_the_number_of_threads(plan, threads):
    np.testing.assert_array_equal(run(plan, n_threads=1).noisy_sums, run(plan, n_threads=threads).noisy_sums)


def test_releases_are_saved_and_loaded(plan, tmp_path):
    release = run(plan)
    release.save(tmp_path / "network.release")
    loaded = dpi.load_release(tmp_path / "network.release")
    for name in ("loc", "precision", "noisy_sums", "weights", "damping", "floor", "noise_variance"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(release, name))
    assert loaded.model_spec == release.model_spec
    assert network_posterior(loaded).model == MODEL
    assert "NOT PRIVATE" in repr(loaded)
    with pytest.raises(InsecureReleaseError):
        _ = loaded.epsilon


def test_a_secure_run_states_its_epsilon(plan):
    release = run(plan, random_source=None)
    assert release.epsilon == plan.epsilon
    assert network_posterior(release).safe_to_publish


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_bad_records_are_refused_before_anything_is_spent(plan, poison):
    X, y = records()
    X[3, 1] = poison
    with pytest.raises(RecordError, match="X must be finite") as error:
        run(plan, X, y)
    assert "3" not in str(error.value)
    with pytest.raises(RecordError, match="2 columns"):
        run(plan, X[:, :1], y)


def test_one_extreme_record_does_not_stop_a_run(plan):
    X, y = records()
    X[7], y[9] = 1e200, -1e300
    assert np.all(np.isfinite(run(plan, X, y).noisy_sums))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_records": 0}, "n_records"),
        ({"settings": 3}, "NetworkSettings"),
        ({"start": np.zeros(3)}, "start"),
        ({"n_threads": 0}, "n_threads"),
        ({"random_source": 1}, "RandomSource"),
    ],
)
def test_bad_arguments_are_named(plan, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        run(plan, **options)


@pytest.mark.parametrize(
    "values", [{"max_site_norm": 0.0}, {"block_weight": -1.0}, {"movement": (1.0, 0.0)}, {"floor": 0.0}]
)
def test_bad_settings_are_named(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        NetworkSettings(**values)


def test_the_rule_depends_on_public_numbers_only():
    assert NetworkSettings.rule(8000, 1.0) == NetworkSettings.rule(80_000, 0.1)
    assert NetworkSettings.rule(100, 1.0).max_site_norm == 0.4
    assert NetworkSettings.rule(10**6, 1.0).max_site_norm == 0.8
    assert network_plan_arguments(100)["sample_rate"] == 1.0


def test_private_variational_inference_runs_and_refuses(plan):
    X, y = records()
    settings = NetworkVISettings(1e-2, 10.0, 1.0, 0.1)
    private = run_network_vi(
        MODEL, X, y, settings=settings, plan=plan, n_records=400, max_grad_norm=1.0, random_source=InsecureRNG(2)
    )
    assert not private.private
    with pytest.raises(ValueError, match="max_grad_norm"):
        run_network_vi(MODEL, X, y, settings=settings, plan=plan, n_records=400)
    with pytest.raises(ValueError, match="without a plan"):
        run_network_vi(MODEL, X, y, settings=settings, n_records=400)


def test_the_runs_of_other_sites_name_those_of_networks(plan):
    X, y = records()
    for call in (partial(dpi.run_dp_sep, plan=plan, n_records=400), dpi.run_sep):
        with pytest.raises(TypeError, match="for a network call run_network_dp_sep or run_network_sep"):
            call(MODEL, X, y)


@pytest.mark.parametrize("method", ["sep", "ep", "adf"])
def test_methods_without_privacy_learn(method):
    X, y = records(600, 3)
    weights = run_network_sep(BayesianNeuralNetwork(2, 10), X, y, method=method, n_passes=15)
    test_X, test_y = records(500, 4)
    mean, variance = weights.predict(test_X)
    assert np.sqrt(np.mean((mean - test_y) ** 2)) < 0.25
    assert np.all(variance > 0.005)
    assert not weights.private


def test_ep_does_not_learn_the_prior():
    with pytest.raises(ValueError, match="learn_prior"):
        run_network_sep(MODEL, *records(), method="ep", learn_prior=True)
    with pytest.raises(ValueError, match="gamma"):
        run_network_sep(MODEL, *records(), method="adf", gamma=2.0)


def test_a_release_refuses_the_event_of_another_run():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    plan = dpi.plan_privacy(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.5, n_steps=3)
    release = run_network_dp_sep(dpi.models.BayesianNeuralNetwork(2, 2), X, y, plan=plan, n_records=40)
    fields = {item.name: getattr(release, item.name) for item in dataclasses.fields(release)}
    assert type(release)(**fields).epsilon == plan.epsilon
    other = dpi.plan_privacy(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.5, n_steps=1)
    for change in ({"event": other.event}, {"sample_rate": 0.25}, {"noise_stddev": 0.5 * release.noise_stddev}):
        with pytest.raises(ValueError, match=r"event must be|noise_stddev must be"):
            type(release)(**(fields | change))
