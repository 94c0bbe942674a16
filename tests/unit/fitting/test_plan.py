"""The plan of a fit: deterministic, from public numbers, and its predicted widths against what is known of them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special
from tests.reference.own_models import EXAMPLES

import dpinfer as dpi
from dpinfer.accounting import PureEvent
from dpinfer.errors import WeakGuaranteeWarning
from dpinfer.fitting.choice import Candidate, Choice, choose
from dpinfer.fitting.plan import FitPlan
from dpinfer.models import tuning
from dpinfer.planning import predict_newton, predict_statistic
from dpinfer.testing import InsecureRNG

PUBLIC = {"epsilon": 1.0, "delta": 1e-5, "n_records": 5000}


@pytest.mark.parametrize(
    ("model", "epsilon", "method"),
    [
        (dpi.models.LinearRegression(10, fit_intercept=True), 0.3, "newton"),
        (dpi.models.LinearRegression(3), 3.0, "newton"),
        (dpi.models.LogisticRegression(5, fit_intercept=True), 1.0, "newton"),
        (dpi.models.BetaBernoulli(), 0.1, "statistic"),
        (dpi.models.BetaBinomial(5), 1.0, "statistic"),
        (dpi.models.DirichletCategorical(), 1.0, "statistic"),
        (dpi.models.GammaExponential(), 0.1, "statistic"),
        (dpi.models.GaussianMixture(2, 2), 1.0, "sep"),
    ],
)
def test_each_candidate_is_chosen_where_it_should_be(model, epsilon, method):
    plan = dpi.plan_fit(model, **(PUBLIC | {"epsilon": epsilon}))
    assert plan.method == plan.choice.chosen.method == method
    assert plan.epsilon <= epsilon
    assert plan.n_passes == plan.choice.chosen.n_passes
    assert f"* {method}" in repr(plan)


@pytest.mark.parametrize("model", [dpi.models.LogisticRegression(4), dpi.models.BetaBernoulli()])
def test_a_plan_is_deterministic_and_plain_data(model):
    plan, again = (dpi.plan_fit(model, **PUBLIC) for _ in range(2))
    assert plan.to_dict() == again.to_dict()
    rebuilt = dpi.FitPlan.from_dict(plan.to_dict())
    assert str(rebuilt) == str(plan)
    assert rebuilt.event == plan.event


def test_the_guarantee_is_under_the_adjacency_that_was_asked_for():
    routes = ((dpi.models.LogisticRegression(2), "newton"), (dpi.models.LogisticRegression(2), "dpvi"),
              (dpi.models.BetaBernoulli(), "statistic"), (dpi.models.GaussianMixture(2, 2), "sep"))  # fmt: skip
    for adjacency in ("add_remove", "zero_out", "replace_one"):
        for model, method in routes:
            if (method, adjacency) == ("dpvi", "replace_one"):
                with pytest.raises(ValueError, match="sampling is not accounted for"):
                    dpi.plan_fit(model, method=method, adjacency=adjacency, **PUBLIC)
                continue
            plan = dpi.plan_fit(model, method=method, adjacency=adjacency, **PUBLIC)
            assert plan.adjacency.value == adjacency
            found = dpi.account(plan.event, delta=plan.delta or 1e-9, adjacency=adjacency).epsilon
            assert found <= 1.0 + 1e-9
    wide = dpi.plan_fit(dpi.models.LogisticRegression(4), adjacency="replace_one", **PUBLIC).predicted_width
    assert wide > dpi.plan_fit(dpi.models.LogisticRegression(4), **PUBLIC).predicted_width


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"method": "best"}, "method"),
        (
            {"model": dpi.models.BayesianNeuralNetwork(2, 3), "adjacency": "replace_one"},
            "model must be one that some mechanism fits",
        ),
        ({"method": "statistic"}, "method must be one of auto, newton, dpvi, sep"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": 0.0}, "delta must be positive: no method fits a LogisticRegression with delta = 0"),
        ({"delta": 0.0, "target": "population"}, "delta must be positive"),
        ({"n_records": 0}, "n_records"),
        ({"response_scale": -1.0}, "response_scale"),
        ({"predictor_spread": 0.0}, "predictor_spread"),
        ({"adjacency": "near"}, "adjacency"),
    ],
)
def test_wrong_arguments_are_named(change, text):
    with pytest.raises(ValueError, match=text):
        dpi.plan_fit(**({"model": dpi.models.LogisticRegression(3)} | PUBLIC | change))


def test_a_pure_guarantee_needs_no_delta():
    public = {"epsilon": 1.0, "delta": 0.0, "n_records": 500}
    plan = dpi.plan_fit(dpi.models.BetaBernoulli(), **public)
    assert (plan.method, plan.delta, plan.event) == ("statistic", 0.0, PureEvent(1.0, "add_remove"))
    assert {item.reason for item in plan.choice.candidates if not item.applies} == {"delta must be positive"}
    fit = dpi.fit(dpi.models.BetaBernoulli(), np.tile([0.0, 1.0], 250), random_source=InsecureRNG(1), **public)
    assert fit.release.event == plan.event
    with pytest.raises(ValueError, match="delta must lie in"):
        dpi.fit(dpi.models.BetaBernoulli(), np.zeros(9), epsilon=1.0, delta=0.0, unknown=["n_records"])


def test_a_weak_delta_is_told_once():
    with pytest.warns(WeakGuaranteeWarning) as caught:
        dpi.plan_fit(dpi.models.LogisticRegression(3), epsilon=1.0, delta=1e-5, n_records=200_000)
    assert len(caught) == 1
    assert dpi.plan_fit(dpi.models.BetaBernoulli(), epsilon=1.0, delta=1e-5, n_records=200_000).delta == 0.0


def test_widths_go_to_one_with_the_budget_and_the_records():
    for model in (dpi.models.LinearRegression(5), dpi.models.LogisticRegression(5), dpi.models.BetaBernoulli()):
        widths = [
            dpi.plan_fit(model, epsilon=epsilon, delta=1e-7, n_records=n).predicted_width
            for n, epsilon in ((3000, 0.3), (10_000, 0.3), (10_000, 1.0), (1_000_000, 1.0))
        ]
        assert widths == sorted(widths, reverse=True)
        assert widths[0] > 1.01
        # The weights that bound a linear regression's features leave 11% at 5 weights, whatever the budget.
        assert 1.0 <= widths[-1] < 1.15


def test_predicted_width_of_a_linear_regression_is_that_of_its_runs():
    """11 weights at epsilon 1: bench/coverage/fit_widths.py has the table, with its Monte Carlo errors.

    Predictions hold to about 15%; the error of the mean over five runs is 2.5%.
    """
    rng = np.random.default_rng(8)
    model = dpi.models.LinearRegression(10, fit_intercept=True)
    design = np.hstack((rng.normal(size=(5000, 10)), np.ones((5000, 1))))
    y = design @ rng.normal(size=11) + rng.normal(size=5000)
    plan = dpi.plan_fit(model, response_scale=3.0, **PUBLIC)
    exact, relative = np.sqrt(np.diag(np.linalg.inv(design.T @ design + np.eye(11)))), []
    for seed in range(1, 6):
        release = plan.run(np.ascontiguousarray(design[:, :-1]), y, random_source=InsecureRNG(seed))
        relative.append(np.median(dpi.noise_aware_posterior(release, n_samples=40).stddev[:-1] / exact))
    assert np.mean(relative) == pytest.approx(plan.predicted_width, rel=0.2)


def test_declared_moments_enter_the_prediction():
    """A declared collinear pair is harder to whiten than independent features; what is declared is said."""
    moments = np.eye(5)
    moments[0, 1] = moments[1, 0] = 0.999
    linear = dpi.models.LogisticRegression(4, feature_moments=moments)
    plan = dpi.plan_fit(linear, target="model", **PUBLIC)
    assert plan.choice.assumes[0] == "the declared moments of the features"
    widths = predict_newton(linear, plan.mechanism, 5000)
    assert widths.shape == (4,)
    assert np.all(widths >= 1.0)
    assert abs(widths[0] - widths[2]) > 0.05


def test_large_predictors_are_predicted_wider():
    model = dpi.models.LogisticRegression(5)
    plan = dpi.plan_fit(model, **PUBLIC)
    small, large = (dpi.plan_fit(model, predictor_spread=s, **PUBLIC).predicted_width for s in (0.5, 4.0))
    assert small < plan.predicted_width < large
    assert "of size 4" in str(dpi.plan_fit(model, predictor_spread=4.0, **PUBLIC))


def test_statistics_cost_what_their_noise_says():
    """Beta-Bernoulli at p = 1/2: the variance of the sum, N / 4, against the Laplace noise's 2 / epsilon**2."""
    model = dpi.models.BetaBernoulli(1e6, 1e6)
    widths = predict_statistic(model, epsilon=0.05, n_records=10_000)
    data, noise, prior = 1e4 / 4.0, 2.0 / 0.05**2, 2e6
    assert np.median(widths) == pytest.approx(math.sqrt((1e4 + prior) / (1e4 * data / (data + noise) + prior)), 1e-4)
    replaced = predict_statistic(
        dpi.models.DirichletCategorical(), epsilon=0.1, n_records=500, adjacency=dpi.accounting.Adjacency.REPLACE_ONE
    )
    added = predict_statistic(dpi.models.DirichletCategorical(), epsilon=0.1, n_records=500)
    assert np.all(replaced > added)


def candidates(*rows):
    return [
        Candidate(method=name, applies=True, predicted_width=width, n_passes=passes, allowance=allowance)
        for name, width, passes, allowance in rows
    ]


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ([("newton", 1.5, 13, 1.0), ("dpvi", 1.3, 125, 1.0)], "dpvi"),
        ([("newton", 1.38, 13, 1.0), ("dpvi", 1.3, 125, 1.0)], "newton"),
        ([("newton", 1.5, 13, 1.0), ("dpvi", 1.3, 125, 1.5)], "newton"),
        ([("newton", 4.0, 13, 1.0), ("dpvi", 1.3, 125, 1.5)], "dpvi"),
        ([("newton", 40.0, 13, 1.0), ("dpvi", math.nan, 125, 1.0)], "newton"),
        ([("newton", math.nan, 13, 1.0), ("dpvi", math.nan, 125, 1.0)], "newton"),
        ([("newton", math.nan, 13, 1.0), ("dpvi", 9.0, 125, 1.5)], "dpvi"),
    ],
)
def test_the_rule_of_choice(rows, chosen):
    found = choose(candidates(*rows), "auto")
    assert [item.method for item in found if item.chosen] == [chosen]
    assert choose(candidates(*rows), rows[-1][0])[-1].chosen


def twins(model, population):
    return [
        Candidate(method="newton", applies=True, predicted_width=model, n_passes=14, target="model"),
        Candidate(method="newton", applies=True, predicted_width=population, n_passes=15, target="population"),
        Candidate(method="dpvi", applies=True, predicted_width=2.0, n_passes=125),
    ]


@pytest.mark.parametrize(
    ("model", "population", "chosen"), [(1.2, 1.0, "population"), (1.2, 1.9, "population"), (1.2, 2.0, "model")]
)
@pytest.mark.parametrize("asked", ["auto", "newton"])
def test_the_populations_coefficients_are_taken_where_they_cost_little(model, population, chosen, asked):
    found = choose(twins(model, population), asked)
    assert [item.target for item in found if item.chosen] == [chosen]
    assert [item.method for item in found] == ["newton", "newton", "dpvi"]
    assert Choice(found)["newton"].target == chosen
    assert Choice(found)["newton, model"].target == "model"
    assert "true" in " ".join(item.reason for item in found)


def test_what_assumes_a_true_model_is_not_planned_where_nothing_must():
    """A narrower trace is not preferred to intervals that hold on any table; it is planned where it is asked for."""
    narrow = [replace(item, predicted_width=0.5) if item.method == "dpvi" else item for item in twins(1.2, 1.9)]
    chosen = Choice(choose(narrow, "auto"))
    assert chosen.chosen.target == "population"
    assert chosen["dpvi"].reason.startswith("assumes that the model is true")
    model = dpi.models.LinearRegression(3)
    usual, of_model, by_name = (
        dpi.plan_fit(model, **PUBLIC, **given) for given in ({}, {"target": "model"}, {"method": "dpvi"})
    )
    assert usual.choice["dpvi"].reason == "not planned: it would assume that the model is true"
    assert math.isnan(usual.choice["dpvi"].predicted_width)
    assert of_model.choice["dpvi"].predicted_width > 1.0
    assert by_name.method == "dpvi"
    assert by_name.choice["newton, population"].predicted_width == usual.predicted_width


def test_few_records_have_the_models_coefficients_by_default():
    """Noise would hide how large scores are: at N = 100 the population's intervals covered 0.70 of 40 slopes."""
    model = dpi.models.LinearRegression(1, fit_intercept=True)
    few = dpi.plan_fit(model, epsilon=4.9, delta=1e-6, n_records=100, adjacency="replace_one")
    assert few.mechanism.target == "model"
    assert "hide how large scores are" in few.choice["newton, population"].reason
    assert FitPlan.from_dict(few.to_dict()) == few
    assert dpi.plan_fit(model, epsilon=4.9, delta=1e-6, n_records=2000).mechanism.target == "population"


def test_scores_of_binary_responses_need_not_be_seen():
    """Their residuals are at most 1: by as much noise as hides the sizes of others, the population's is predicted."""
    binary = dpi.models.LogisticRegression(1, fit_intercept=True, prior_scale=5.0)
    few = dpi.plan_fit(binary, epsilon=1.0, delta=1e-6, n_records=500, adjacency="replace_one")
    assert few.mechanism.noise_of("sizes", 500) > tuning.TUNING.hidden_sizes
    assert few.mechanism.target == "population"


def test_a_target_is_asked_for_by_name():
    model = dpi.models.LinearRegression(3)
    for target in ("model", "population"):
        plan = dpi.plan_fit(model, target=target, **PUBLIC)
        assert plan.mechanism.target == target
        assert FitPlan.from_dict(plan.to_dict()) == plan
    with pytest.raises(ValueError, match="target must be 'auto' or 'model' for a BetaBernoulli"):
        dpi.plan_fit(dpi.models.BetaBernoulli(), target="population", **PUBLIC)
    with pytest.raises(ValueError, match="target must be one of"):
        dpi.plan_fit(model, target="robust", **PUBLIC)
    with pytest.raises(ValueError, match="method must be one of auto, newton"):
        dpi.plan_fit(model, target="population", method="dpvi", **PUBLIC)


def test_a_prior_that_allows_any_count_leaves_the_other_methods():
    """No clipping norm follows from draws whose counts reach e**80; the private Newton method does not need one."""
    plan = dpi.plan_fit(
        dpi.models.PoissonRegression(10, fit_intercept=True, prior_scale=20.0), target="model", **PUBLIC
    )
    assert plan.method == "newton"
    assert "max_grad_norm must be given" in plan.choice["dpvi"].reason


def test_the_table_names_every_candidate():
    rows = choose([*candidates(("newton", 1.5, 13, 1.0)), Candidate(method="sep", applies=False, reason="no")], "auto")
    table = str(Choice(rows, ("nothing",)))
    assert "* newton                     1.50      13  the only one for this model" in table
    assert "  sep                           -       -  no" in table
    assert table.endswith("assumes nothing")
    assert Choice(rows)["sep"].reason == "no"
    with pytest.raises(KeyError):
        Choice(rows)["dpvi"]


def test_a_model_of_ones_own_is_planned_by_its_own_simulation():
    """Widths of an example, measured at 1.19 over 100 runs at N = 10 000 and epsilon = 1 (docs/any-model.md)."""
    model = EXAMPLES["negative binomial"]().model
    public = {"epsilon": 1.0, "delta": 1e-5, "n_records": 10_000}
    plan = dpi.plan_fit(model, target="model", **public)
    assert (plan.method, plan.n_passes) == ("newton", 14.0)
    assert plan.predicted_width == pytest.approx(1.19, abs=0.1)
    assert plan.predicted_width == dpi.plan_fit(model, target="model", **public).predicted_width
    # Whether or not the model is true costs more.
    assert dpi.plan_fit(model, target="population", **public).predicted_width > plan.predicted_width
    tight = dpi.plan_fit(model, epsilon=1.0, delta=1e-7, n_records=1_000_000)
    assert 1.0 < tight.predicted_width < 1.06
    assert "own simulation" in str(plan)


def test_a_simulation_that_fails_leaves_a_plan_without_a_width():
    def sampler(params, X, u):
        if abs(params[0]) > 3.0:
            raise RuntimeError("too many")
        return (u[:, 0] < special.expit(X[:, 0] * params[0])) * 1.0

    def gradient(params, X, y):
        return X * (y - special.expit(X[:, 0] * params[0]))[:, None]

    model = dpi.models.from_gradient(gradient, 1, n_features=1, sampler=sampler, prior_scale=5.0, response="binary")
    plan = dpi.plan_fit(model, epsilon=1.0, delta=1e-5, n_records=5000)
    assert math.isnan(plan.predicted_width)
    assert plan.choice.chosen.reason.endswith("at parameters from the prior, sampler raised RuntimeError")
    assert "too many" not in str(plan)
    bare = dpi.models.from_gradient(lambda params, X, y: X * (y - 0.5)[:, None], 1, n_features=1, response="binary")
    assert "flagged" in str(dpi.plan_fit(bare, epsilon=1.0, delta=1e-5, n_records=5000, target="model"))


def test_a_scale_beyond_what_squares_can_hold_leaves_the_models_target():
    """As one that was released and paid for may be."""
    model = dpi.models.LinearRegression(3)
    plans = [dpi.plan_fit(model, response_scale=scale, **PUBLIC) for scale in (1.0, 1e12, 1e-12)]
    assert [plan.mechanism.target for plan in plans] == ["population", "model", "model"]


def test_a_public_mean_of_rare_outcomes_widens_what_is_predicted():
    """At 1% events intervals are 2.9 times as wide as without privacy (docs/real-tables.md)."""
    public = {"epsilon": 1.0, "delta": 1e-6, "n_records": 8000}

    def widths(**given):
        model = dpi.models.LogisticRegression(3, fit_intercept=True, prior_scale=10.0, **given)
        return {
            item.name: item.predicted_width
            for item in dpi.plan_fit(model, **public).choice.candidates
            if item.method == "newton"
        }

    balanced, half, rare = widths(), widths(response_mean=0.5), widths(response_mean=0.01)
    for name in ("newton, population", "newton, model"):
        assert half[name] == pytest.approx(balanced[name], rel=0.1)
        assert rare[name] > 1.5 * balanced[name]
    model = dpi.models.LogisticRegression(3, fit_intercept=True, response_mean=0.01)
    assert float(model.usual_predictor(0.0)) == pytest.approx(special.logit(0.01))
    assert dpi.models.model_from_dict(model.to_dict()) == model
    with pytest.raises(ValueError, match="response_mean"):
        dpi.models.LogisticRegression(3, response_mean=1.5)
    with pytest.raises(TypeError, match="response_mean must be None"):
        dpi.models.LinearRegression(3, response_mean=1.5)


def test_columns_that_determine_each_other_are_told():
    """Two indicators of which one is always 1, beside an intercept: maximum likelihood has no single solution."""
    moments = np.diag([0.5, 0.5, 1.0])
    moments[2, :2] = moments[:2, 2] = 0.5
    model = dpi.models.LogisticRegression(2, fit_intercept=True, feature_moments=moments)
    robust = next(item for item in dpi.plan_fit(model, **PUBLIC).choice.candidates if item.target == "population")
    assert math.isnan(robust.predicted_width)
    assert robust.reason.startswith("columns determine each other")
