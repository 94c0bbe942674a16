"""The planner: predictions against simulated studies of the real mechanism, recommendations, refusals."""

import dataclasses
import json
import re

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.lab.studies.study import find_study
from dpinfer.planning import PlanSettings, plan_inference, tuning, widening_grid
from dpinfer.planning.trace import settings
from dpinfer.planning.trace.drift import LogisticPilot, QuadraticLoss
from dpinfer.planning.trace.settings import PlanOptions
from dpinfer.planning.trace.simulated import PlainRun, simulate_trace
from dpinfer.testing import InsecureRNG

DEFAULT = {"sample_rate": 0.1, "n_steps": 2500, "target_delta": 1e-5}


def observed(study, epsilon, runs, seed=3, **settings):
    result = find_study(study).run_chunk(
        0, runs, method="exact", epsilon=epsilon, seed=seed, settings={"n_draws": 2, "n_threads": 1, **settings}
    )
    return np.median(result.width90 / result.reference_width90, axis=0)


@pytest.mark.parametrize(
    ("study", "epsilon", "runs"),
    [("gamma-exponential", 0.3, 8), ("beta-bernoulli", 0.1, 12), ("dirichlet-categorical", 0.3, 8)],
)
def test_tied_widths_are_those_of_the_mechanism(study, epsilon, runs):
    # 15% is the promise; the median over the runs has a Monte Carlo error of 2 to 4% of that.
    plan = plan_inference(find_study(study).model, n_records=5000, target_epsilon=epsilon, **DEFAULT)
    seen = observed(study, epsilon, runs)
    np.testing.assert_allclose(plan.widening, seen, rtol=0.15)
    # The same comparison rejects a plan for half the records or for a noise that is twice as large.
    if epsilon == 0.1:
        wrong = plan_inference(find_study(study).model, n_records=1250, target_epsilon=epsilon, **DEFAULT)
        assert np.all(np.abs(wrong.widening / seen - 1.0) > 0.15)


def test_widening_falls_with_epsilon_and_with_records():
    grid = widening_grid(
        dpi.models.GammaExponential(), n_records=[1000, 10_000], target_epsilon=[0.1, 1.0, 100.0], **DEFAULT
    )
    widening, limit = grid.widening[:, :2], grid.widening[:, 2:]  # clipping widens, however large epsilon is
    assert np.all(np.diff(grid.widening, axis=0) < 0)
    assert np.all(np.diff(grid.widening, axis=1) < 0)
    # The noise is of the order 1 / epsilon and the records' own spread of the order 1 / sqrt(N): (w**2 - 1) eps**2 N.
    unit = (widening**2 - limit**2) * np.array([0.1, 1.0]) ** 2 * np.array([[1000], [10_000]])
    assert unit.max() / unit.min() < 2.5
    assert grid.epsilon_for(1.2)[1] == 1.0
    assert grid.epsilon_for(1.0001) == (None, None)
    assert "eps 0.1" in str(grid)
    ax = dpi.plots.widening(grid)
    assert len(ax.lines) == 3
    with pytest.raises(TypeError, match="grid must be a PlanGrid"):
        dpi.plots.widening(3)


def test_recommended_settings_run_and_give_the_predicted_width():
    model = dpi.models.GammaExponential()
    plan = plan_inference(model, n_records=3000, target_epsilon=0.5, target_delta=1e-5)
    assert plan.recommended == ("sample_rate", "n_steps", "max_grad_norm")
    assert plan.privacy.sample_rate * plan.privacy.n_steps <= 100
    rng = np.random.default_rng(4)
    ratios = []
    for seed in range(2):
        rate = float(model.sample_prior(1, rng)[0, 0])
        release = dpi.run_dpvi(
            model,
            rng.exponential(1 / rate, 3000),
            random_source=InsecureRNG(seed),
            n_threads=1,
            **plan.run_arguments(),
        )
        low, high = np.log(dpi.noise_aware_posterior(release, n_threads=1).quantile([0.05, 0.95])[:, 0])
        ratios.append((high - low) / (2 * 1.645 / np.sqrt(3000)))
    assert np.mean(ratios) == pytest.approx(plan.widening[0], rel=0.15)


def test_plain_plans_are_simulated_and_reproducible():
    model = dpi.models.LogisticRegression(2, fit_intercept=True)
    options = {"n_records": 4000, "target_epsilon": 1.0, "learning_rate_factor": 2.0, **DEFAULT, "n_steps": 500}
    plan = plan_inference(model, n_simulations=1, **options)
    again = plan_inference(model, n_simulations=1, **options)
    assert plan.recipe == "plain"
    assert np.array_equal(plan.widening, again.widening)
    assert plan.learning_rate_factor == 2.0
    heuristic = 1.0 / (plan.noise_multiplier * plan.max_grad_norm * np.sqrt(500))
    assert plan.learning_rate[0] == pytest.approx(2.0 * heuristic)
    arguments = plan.run_arguments()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 2))
    y = (rng.random(4000) < 0.5).astype(float)
    release = dpi.run_dpvi(model, X, y, random_source=InsecureRNG(1), **arguments)
    assert np.array_equal(release.learning_rate, plan.learning_rate)
    assert json.loads(json.dumps(plan.to_dict()))["learning_rate_factor"] == 2.0
    for text in (str(plan), repr(plan)):
        assert "intercept" in text
        assert "2 times the heuristic" in text
        assert "+-" not in text  # one simulated run has no error to show
    several = dataclasses.replace(plan, prediction=dataclasses.replace(plan.prediction, typical_stderr=0.123))
    assert "+- 0.12 (of the simulation)" in str(several)


@pytest.fixture
def seen(monkeypatch):
    """Every prediction behind a plan that chooses between two learning rates."""
    from dpinfer.planning.trace import planner

    found = []
    simulate = planner.predict_simulated

    def recording(*arguments, **options):
        found.extend(simulate(*arguments, **options))
        return found[-len(arguments[3]) :]

    monkeypatch.setattr(planner, "predict_simulated", recording)
    monkeypatch.setattr(tuning, "TUNING", dataclasses.replace(tuning.TUNING, factors=(0.25, 1.0)))
    return found


def test_the_posterior_of_a_fit_is_planned(seen):
    options = {**DEFAULT, "n_steps": 400, "n_records": 2000, "target_epsilon": 1.0, "n_simulations": 1}
    model, done = dpi.models.LogisticRegression(2), []
    plan = plan_inference(model, progress=lambda own, total: done.append(own / total), **options)
    assert plan.posterior == {}
    assert plan.recommended == ("max_grad_norm", "learning_rate")
    assert len(seen) == 3  # two rates, and the better one again with as many draws as a fit takes
    assert plan.prediction is seen[2]
    assert np.isnan(plan.prediction.coverage_stderr)  # one simulated run has no error
    assert done == sorted(done)
    assert done[-1] == 1.0
    assert "the default of a fit" in str(plan)
    diagonal = plan_inference(model, learning_rate_factor=1.0, prior="weak", **options)
    assert diagonal.posterior == {"hessian": "diagonal", "prior": "weak"}
    with pytest.raises(KeyboardInterrupt):
        plan_inference(model, progress=_interrupt, **options)


def _interrupt(done, total):
    raise KeyboardInterrupt


def test_the_narrowest_setting_that_covers_is_recommended(seen, monkeypatch):

    options = {**DEFAULT, "n_steps": 400, "n_records": 2000, "target_epsilon": 1.0, "n_simulations": 2}
    options["hessian"] = "diagonal"
    plan = plan_inference(dpi.models.LogisticRegression(2), **options)
    assert plan.recommended == ("max_grad_norm", "learning_rate", "prior")
    assert len(seen) == 4
    good = [each for each in seen if each.coverage90 >= 0.88]
    if good:
        assert plan.prediction.typical_widening == min(each.typical_widening for each in good)
    # Nothing covers that much.
    monkeypatch.setattr(tuning, "TUNING", dataclasses.replace(tuning.TUNING, least_coverage=2.0))
    fallback = plan_inference(dpi.models.LogisticRegression(2), **options).prediction
    assert fallback.coverage90 >= max(each.coverage90 for each in seen) - 0.03
    fixed = plan_inference(dpi.models.LogisticRegression(2), learning_rate_factor=1.0, prior="model", **options)
    assert fixed.posterior == {"hessian": "diagonal", "prior": "model"}
    assert fixed.recommended == ("max_grad_norm",)


def test_a_pilot_changes_what_is_expected():
    model = dpi.models.LogisticRegression(2)
    rng = np.random.default_rng(1)
    pilot = rng.normal(size=(300, 2))
    options = {"n_records": 4000, "target_epsilon": 1.0, "learning_rate_factor": 1.0, "n_simulations": 1, **DEFAULT}
    options |= {"n_steps": 500, "hessian": "diagonal"}
    small = plan_inference(model, pilot=0.1 * pilot, **options)
    large = plan_inference(model, pilot=pilot, **options)
    assert np.all(small.prediction.reference_width90 > 2.0 * large.prediction.reference_width90)
    assert small.max_grad_norm < 0.2 * large.max_grad_norm
    # Without a pilot, what the model was told of its features' moments.
    told = dpi.models.LogisticRegression(2, feature_moments=np.diag([0.01, 0.01, 1.0]))
    np.testing.assert_allclose(
        plan_inference(told, **options).prediction.reference_width90, small.prediction.reference_width90, rtol=0.1
    )
    guessed = plan_inference(model, curvature=[0.2, 0.2], max_grad_norm=2.0, **options)
    expected = 3.2897 / np.sqrt(4000 * 0.2 + 1.0)
    np.testing.assert_allclose(guessed.prediction.reference_width90, expected, rtol=1e-3)


def test_a_simulated_trace_is_the_recursion_several_steps_at_a_time():
    curvature = np.array([[500.0, 300.0], [300.0, 400.0]])
    drift = QuadraticLoss(np.zeros((400, 2)), np.tile(curvature, (400, 1, 1)), np.ones(2))
    scale = np.repeat([1.0, 10.0], 2)
    run = PlainRun(
        n_steps=20_000,
        sample_rate=0.1,
        noise_multiplier=3.0,
        max_grad_norm=2.0,
        grad_scale=scale,
        learning_rate=1e-4 * scale,
        start=np.repeat([0.0, -3.0], 2),
    )
    traces = simulate_trace(run, drift, np.random.default_rng(3))
    merged = traces.merged
    assert merged > 1
    assert traces.positions.shape == traces.gradients.shape == (20_000 // merged, 400, 4)
    # Seen as single steps: the privacy noise and, correlated like the features, the sampling's.
    rate = traces.sample_rate
    positions, gradients = traces.positions[..., :2], traces.gradients[..., :2]
    noise = (gradients - rate * positions @ (curvature + np.eye(2))).reshape(-1, 2)
    want = np.diag(traces.noise_stddev[:2] ** 2) + rate * (1.0 - rate) * curvature
    seen = noise.T @ noise / len(noise)
    assert np.allclose(seen, want, rtol=0.01)  # about 10**5 independent draws
    assert not np.allclose(seen, np.diag(traces.noise_stddev[:2] ** 2) + 0.09 * curvature, rtol=0.2)
    # As often as the run's own steps, and with its stationary law.
    late = positions[positions.shape[0] // 4 :].reshape(-1, 2)
    own = np.diag(np.full(2, 36.0)) + 0.09 * curvature
    values, vectors = np.linalg.eigh(curvature + np.eye(2))
    turned = vectors.T @ own @ vectors
    step = merged * 1e-5 * values
    exact = merged * 1e-8 * turned / (step[:, None] + step - np.outer(step, step))
    assert np.allclose(np.diag(vectors.T @ (late.T @ late / len(late)) @ vectors), np.diag(exact), rtol=0.03)


def test_the_pilot_gradient_is_that_of_the_loss():
    rng = np.random.default_rng(5)
    design, truth = rng.normal(size=(50, 3)), rng.normal(size=(2, 3))
    pilot = LogisticPilot(design, truth, scale_up=4.0, prior_precision=0.5)
    scale = np.full((2, 3), 1e-6)
    at = rng.normal(size=(2, 3))

    def loss(w, r):
        eta, p = design @ w, 1 / (1 + np.exp(-design @ truth[r]))
        return 4.0 * np.sum(np.logaddexp(0.0, eta) - p * eta) + 0.25 * np.sum(w**2)

    slope, second = pilot.gradient(at, scale)
    for r in range(2):
        for j in range(3):
            e = 1e-4 * np.eye(3)[j]
            low, mid, high = loss(at[r] - e, r), loss(at[r], r), loss(at[r] + e, r)
            assert slope[r, j] == pytest.approx((high - low) / 2e-4, rel=1e-5, abs=1e-6)
            assert second[r, j] == pytest.approx((high + low - 2 * mid) / 1e-8, rel=1e-3)
    mode = pilot.optima()
    assert np.max(np.abs(pilot.gradient(mode, scale)[0])) < 0.2 * np.max(np.abs(pilot.gradient(truth, scale)[0]))
    clipped = LogisticPilot(design, truth, 4.0, 0.0, max_grad_norm=0.05)
    assert np.all(np.linalg.norm(clipped.gradient(at, scale)[0], axis=1) <= 200 * 0.05)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": 3}, TypeError, "model must be a model with"),
        ({"n_records": 0}, ValueError, "n_records must be at least 1"),
        ({"target_epsilon": 0.0}, ValueError, "target_epsilon must lie"),
        ({"recipe": "own"}, ValueError, "recipe must be one of"),
        ({"recipe": "paper"}, ValueError, "must be given with recipe 'paper'"),
        ({"learning_rate_factor": 2.0}, ValueError, "learning_rate_factor must not be given with recipe 'tied'"),
        ({"hessian": "full"}, ValueError, "hessian must be one of"),
        ({"hessian": "diagonal"}, ValueError, "hessian must not be given with recipe 'tied'"),
        ({"prior": "weak"}, ValueError, "prior must not be given with recipe 'tied'"),
        ({"pilot": np.ones((3, 1))}, ValueError, "pilot must not be given with a conjugate model"),
        ({"curvature": [1.0, 2.0]}, ValueError, r"curvature must have shape \(1,\)"),
        ({"curvature": [-1.0]}, ValueError, "curvature must be positive"),
        ({"n_simulations": 0}, ValueError, "n_simulations must be at least 1"),
        ({"max_grad_norm": 0.0}, ValueError, "max_grad_norm must lie"),
    ],
)
def test_bad_arguments(arguments, error, message):
    good = {"model": dpi.models.GammaExponential(), "n_records": 100, "target_epsilon": 1.0, "target_delta": 1e-5}
    arguments = good | arguments
    with pytest.raises(error, match=message):
        plan_inference(arguments.pop("model"), **arguments)


def test_settings_in_one_object():
    model, target = dpi.models.GammaExponential(), {"n_records": 100, "target_epsilon": 1.0, "target_delta": 1e-5}
    named = plan_inference(model, sample_rate=0.1, n_steps=2500, max_grad_norm=3.0, **target)
    settings = PlanSettings(sample_rate=0.5, n_steps=2500, max_grad_norm=3)
    plan = plan_inference(model, settings, sample_rate=0.1, **target)
    assert json.dumps(plan.to_dict()) == json.dumps(named.to_dict())
    assert plan.recommended == ()
    targets = {"n_records": [100], "target_epsilon": [1.0], "target_delta": 1e-5}
    grid = widening_grid(model, settings, sample_rate=0.1, **targets)
    assert json.dumps(grid.plans[0][0].to_dict()) == json.dumps(named.to_dict())
    assert settings.sample_rate == 0.5
    for function, arguments in ((plan_inference, target), (widening_grid, targets)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'steps'"):
            function(model, steps=3, **arguments)
        with pytest.raises(TypeError, match="settings must be a PlanSettings, got dict"):
            function(model, {"n_steps": 3}, **arguments)


def test_settings_are_keyword_arguments_and_documented():
    names = [field.name for field in dataclasses.fields(PlanSettings)]
    assert names == list(PlanOptions.__annotations__)
    documented = plan_inference.__doc__.partition("Returns")[0]
    assert all(re.search(rf"^    (\w+, )*{name}\b", documented, re.MULTILINE) for name in names)


@pytest.mark.parametrize(
    ("field", "error", "message"),
    [
        ({"recipe": "own"}, ValueError, "recipe must be one of"),
        ({"hessian": "full"}, ValueError, "hessian must be one of"),
        ({"prior": "own"}, ValueError, "prior must be one of"),
        ({"sample_rate": 1.5}, ValueError, "sample_rate must lie"),
        ({"n_steps": 0}, ValueError, "n_steps must be at least 1"),
        ({"max_grad_norm": -1.0}, ValueError, "max_grad_norm must lie"),
        ({"learning_rate_factor": 0.0}, ValueError, "learning_rate_factor must lie"),
        ({"n_simulations": 1.5}, TypeError, "n_simulations must be an integer"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
    ],
)
def test_settings_are_checked_when_made(field, error, message):
    with pytest.raises(error, match=message):
        PlanSettings(**field)


def test_bad_pilots():
    model = dpi.models.LogisticRegression(2)
    options = {"n_records": 100, "target_epsilon": 1.0, "target_delta": 1e-5}
    with pytest.raises(ValueError, match="pilot must have shape"):
        plan_inference(model, pilot=np.ones((5, 3)), **options)
    with pytest.raises(ValueError, match="pilot must have at least 2 rows"):
        plan_inference(model, pilot=np.ones((1, 2)), **options)
    with pytest.raises(ValueError, match="symmetric and positive definite"):
        plan_inference(model, curvature=-np.eye(2), **options)
    with pytest.raises(ValueError, match="must not be empty"):
        widening_grid(model, n_records=[], target_epsilon=[1.0], target_delta=1e-5)


def test_counts_of_many_columns_have_a_clipping_norm():
    """Of eight columns and more, a draw of the prior leads where no count can be drawn: the nearest stand for it."""
    features = np.random.default_rng(4).normal(size=(400, 12)) * 5.0
    model = dpi.models.PoissonRegression(12, prior_scale=5.0)
    assert 0.0 < settings._clipping_norm(model, "plain", features) < np.inf
