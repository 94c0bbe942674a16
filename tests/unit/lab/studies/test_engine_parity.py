"""In its default mode every study runs what a user runs: the engine's trace is that of run_dpvi with nothing given."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.lab.studies.recipes import DELTA, find
from dpinfer.lab.studies.simulation import N_NODES, RunData, Settings, engine_runs
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.models.base import sigmoid
from dpinfer.recipes import GradientArguments, GradientSettings, choose_gradient_run

KEY = bytes(range(3, 35))
N, STEPS = 600, 60
STUDIES = (
    "gamma-exponential",
    "beta-bernoulli",
    "beta-binomial",
    "dirichlet-categorical",
    "linear-regression",
    "logistic-regression",
)


class KnownKey(RandomSource):
    secure = False

    def take_key(self):
        return KEY


def data_of(model, rng):
    """Return one run's records, each of them kept: studies draw counts of values instead, where there are few."""
    truth = model.sample_prior(1, rng)[0]
    empty, none = np.empty((0, 0, 0)), np.empty((0, 0), dtype=np.int64)
    if isinstance(model, dpi.models.ConjugateModel):
        X = model.simulate(truth, N, rng)
        statistics = model.sufficient_statistics(X)[None]
        return RunData(truth[None], statistics, none, empty, np.empty((0, 0)), np.empty((1, 1))), (X,)
    X = model.simulate_features(N, rng, np.square(model.feature_scale))
    y = model.simulate(truth, X, rng)
    return RunData(truth[None], np.empty((0, model.n_params)), none, X[None], y[None], np.empty((1, 1))), (X, y)


def engine_trace(model, data, settings):
    runs = engine_runs(model, data, settings, [KEY], n_threads=1, keep_trace=True)
    assert runs["finite"].all()
    return runs["trace"][0], runs["final_params"][0]


def assert_same(trace, final, release, tolerance=1e-7):
    width, shown = release.params.shape[1], release.noisy_gradients.shape[1]
    gradients = trace[:, width : width + shown]
    noise = np.broadcast_to(release.noise_stddev, gradients.shape)
    np.testing.assert_allclose(trace[:, :width], release.params, rtol=tolerance, atol=1e-9)
    np.testing.assert_allclose(gradients / noise, release.noisy_gradients / noise, rtol=tolerance, atol=tolerance)
    n = width // 2
    expected = noise.copy()
    if release.settings["scaling"] == "fisher":
        # The engine keeps that of gradients over the information, sigma C / sqrt(I), and of the variance, not of rho.
        expected[:, :n] = (release.noise_multiplier * release.max_grad_norm) ** 2 / noise[:, :n]
        if release.names[-1] == "noise_variance":
            expected[:, n - 1] *= sigmoid(release.positions[:, n - 1])
    np.testing.assert_allclose(trace[:, width + shown :], expected, rtol=tolerance)
    np.testing.assert_allclose(final, release.final_params, rtol=tolerance, atol=1e-9)
    assert np.ptp(release.params, axis=0).min() > 0.0


@pytest.mark.parametrize("name", STUDIES)
def test_the_default_mode(name, rng):
    study = find(name)
    model = study.model
    recipe = "tied" if model.natural_steps else "plain"
    model = model if recipe == "tied" else study.published_model
    norm = {} if name == "beta-bernoulli" or recipe != "tied" else {"max_grad_norm": 2.0}
    settings, _ = study._settings(model, recipe, 1.0, N, {"n_steps": STEPS} | norm)
    data, records = data_of(model, rng)
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=DELTA, sample_rate=0.1, n_steps=STEPS)
    options = {"n_nodes": N_NODES} | norm
    if recipe == "plain":
        # The published preconditioner and rates are the study's; that the recipe is the library's is what is shown.
        options |= {
            "grad_scale": settings.grad_scale,
            "learning_rate": settings.learning_rate,
            "max_grad_norm": settings.max_grad_norm,
            "start": tuple(np.split(settings.start, 2)),
        }
    release = dpi.run_dpvi(model, *records, plan=plan, n_records=N, random_source=KnownKey(), **options)
    assert release.settings["recipe"] == recipe
    assert release.max_grad_norm == settings.max_grad_norm
    assert_same(*engine_trace(model, data, settings), release)


@pytest.mark.parametrize("name", STUDIES[:5])
@pytest.mark.parametrize("recipe", ["tied", "aligned", "steady", "per example", "draws"])
def test_every_mode_of_the_scaled_runs(name, recipe, rng):
    """Settings that a caller of run_dpvi asks for, handed to the engine as they are."""
    model = find(name).model
    asked = {
        "tied": {},
        "aligned": {"gradient": "aligned", "recipe": "tied"},
        "steady": {"recipe": "steady"},
        "per example": {"loss": "per_example"},
        "draws": {"expectation": "monte_carlo"},
    }[recipe] | {"max_grad_norm": 2.0, "n_nodes": N_NODES}
    plan = dpi.PrivacyPlan.from_noise_multiplier(4.0, 0.2, STEPS, 1e-5)
    data, records = data_of(model, rng)
    run = choose_gradient_run(model, plan, N, GradientArguments(**asked))
    release = dpi.run_dpvi(model, *records, plan=plan, n_records=N, random_source=KnownKey(), **asked)
    assert_same(*engine_trace(model, data, Settings.of(run)), release)
    assert GradientSettings.from_dict(release.settings, release.gradient) == run.settings


def test_the_comparison_can_fail(rng):
    """One setting changed by a ten-thousandth is seen."""
    model = dpi.models.GammaExponential()
    plan = dpi.PrivacyPlan.from_noise_multiplier(4.0, 0.2, STEPS, 1e-5)
    data, records = data_of(model, rng)
    options = {"max_grad_norm": 2.0, "n_nodes": N_NODES}
    release = dpi.run_dpvi(model, *records, plan=plan, n_records=N, random_source=KnownKey(), **options)
    other = choose_gradient_run(model, plan, N, GradientArguments(**options | {"max_grad_norm": 2.0002}))
    with pytest.raises(AssertionError):
        assert_same(*engine_trace(model, data, Settings.of(other)), release)


def test_functions_of_the_callers_are_not_for_the_engine():
    plan = dpi.PrivacyPlan.from_noise_multiplier(4.0, 0.2, STEPS, 1e-5)
    asked = GradientArguments(learning_rate=lambda step, params: 0.1, max_grad_norm=1.0)
    run = choose_gradient_run(dpi.models.GammaExponential(), plan, N, asked)
    with pytest.raises(ValueError, match="must not be functions"):
        Settings.of(run)
