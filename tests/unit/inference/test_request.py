"""A request is refused before anything is spent, or it leads to a posterior."""

import re
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dpinfer as dpi
from dpinfer.errors import FallbackWarning, NumericalError
from dpinfer.inference import PosteriorRequest, ReleaseFacts, TracePrior, noise_aware_posterior
from dpinfer.inference.request import NewtonRequest, TraceRequest
from dpinfer.testing import InsecureRNG

N_STEPS = 12
MODELS = {
    "Dirichlet": dpi.models.DirichletCategorical(np.full(4, 0.5)),
    "sparse": dpi.models.DirichletCategorical(np.full(20, 1.0)),
    "bernoulli": dpi.models.BetaBernoulli(),
    "binomial": dpi.models.BetaBinomial(n_trials=10),
    "exponential": dpi.models.GammaExponential(),
    "logistic": dpi.models.LogisticRegression(3),
    "probit": dpi.models.ProbitRegression(3),
    "Poisson": dpi.models.PoissonRegression(3),
    "linear": dpi.models.LinearRegression(3),
}


def run(
    name, *, recipe="tied", gradient="reparameterised", n_records=40, kind="random", epsilon=1.0, steps=N_STEPS, seed=0
):
    """Return a release of `name`; `kind` is "random", "zero" (every record 0) or "separable"."""
    rng, model = np.random.default_rng(seed), MODELS[name]
    plan = dpi.plan_privacy(target_epsilon=epsilon, target_delta=1e-5, sample_rate=0.5, n_steps=steps, accountant="rdp")
    y = None
    if name in ("Dirichlet", "sparse"):
        X = rng.integers(0, model.n_params + 1, n_records).astype(float)
    elif name in ("bernoulli", "binomial", "exponential"):
        X = rng.integers(0, 2, n_records).astype(float) + (0.5 if name == "exponential" else 0.0)
    else:
        X = rng.normal(size=(n_records, 3))
        y = (X[:, 0] > 0).astype(float) if kind == "separable" else rng.integers(0, 2, n_records).astype(float)
    if kind == "zero":
        X = np.zeros_like(X) + (0.5 if name == "exponential" else 0.0)
    return dpi.run_dpvi(
        model, X, y, plan=plan, n_records=n_records, max_grad_norm=2.0, recipe=recipe, gradient=gradient,
        random_source=InsecureRNG(seed),
    )  # fmt: skip


def planned(name, recipe="tied", gradient="reparameterised", n_steps=N_STEPS):
    return ReleaseFacts.planned(
        MODELS[name],
        n_steps=n_steps,
        n_records=40,
        fisher_scaled=recipe in ("tied", "steady"),
        gradient=gradient,
    )


@pytest.mark.parametrize("gradient", ["reparameterised", "aligned"])
@pytest.mark.parametrize("recipe", ["tied", "steady", "plain", "paper"])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_planned_is_what_is_released(name, recipe, gradient):
    release = run(name, recipe=recipe, gradient=gradient)
    found, expected = ReleaseFacts.of(release), planned(name, recipe, gradient)
    assert found.has_model_hessian == expected.has_model_hessian
    for field in ("n_params", "n_steps", "n_records", "family", "gradient", "fisher_scaled", "noise"):
        assert getattr(found, field) == getattr(expected, field)


OPTIONS = {
    "approximation": ["exact", "laplace", "naive", "averaged"],
    "hessian": ["auto", "diagonal", "full", "tied"],
    "prior": [
        "auto",
        "weak",
        "model",
        "empirical",
        TracePrior(0.0, 1.0, 3.0, 2.0),
        TracePrior(np.zeros(2), 1.0, 3.0, 2.0),
    ],
    "burn_in": ["auto", 0.2, 3, N_STEPS - 1, N_STEPS],
    "n_samples": [None, None, 30],
    "n_warmup": [None, None, 20],
    "check_convergence": [False],
}


@pytest.fixture(scope="module")
def releases():
    shapes = (
        ("logistic", "plain", "reparameterised"),
        ("logistic", "tied", "aligned"),
        ("linear", "tied", "reparameterised"),
        ("bernoulli", "plain", "aligned"),
        ("exponential", "tied", "reparameterised"),
    )
    return {shape: run(shape[0], recipe=shape[1], gradient=shape[2]) for shape in shapes}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_check_refuses_exactly_what_the_posterior_refuses(releases, data):
    """Before the run, from the plan alone: what passes gives a posterior, what does not is a ValueError afterwards."""
    shape = data.draw(st.sampled_from(list(releases)))
    options = {name: data.draw(st.sampled_from(values), label=name) for name, values in OPTIONS.items()}
    request = PosteriorRequest(**options)
    refused = None
    try:
        request.check(planned(*shape))
    except ValueError as error:
        refused = str(error)
    if refused is not None:
        with pytest.raises(ValueError, match=f"^{re.escape(refused)}$"):
            noise_aware_posterior(releases[shape], request)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        posterior = noise_aware_posterior(releases[shape], request)
    assert np.all(np.isfinite(posterior.quantile([0.05, 0.5, 0.95])))


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"approximation": "vi"}, ValueError, "approximation must be one of"),
        ({"hessian": "block"}, ValueError, "hessian must be one of"),
        ({"prior": 3.0}, TypeError, "prior must be a string or a TracePrior"),
        ({"burn_in": "late"}, ValueError, "burn_in must be"),
        ({"burn_in": 1.5}, ValueError, "burn_in must lie in"),
        ({"burn_in": True}, TypeError, "burn_in must be an integer"),
        ({"fallback": 1}, TypeError, "fallback must be a bool"),
        ({"level": 1.0}, ValueError, "level must lie in"),
        ({"model": "logistic"}, TypeError, "model must be a Model"),
        ({"n_samples": 0}, ValueError, "n_samples must be at least 1"),
        ({"n_warmup": -1}, ValueError, "n_warmup must be at least 0"),
        ({"seed": 1.5}, TypeError, "seed must be an integer"),
        ({"no_such_setting": 1}, TypeError, "no_such_setting"),
    ],
)
def test_a_wrong_setting_is_named_when_the_request_is_made(changes, error, match):
    with pytest.raises(error, match=match):
        PosteriorRequest(**changes)


def test_the_request_of_a_posterior_is_checked_like_the_settings_of_a_run(releases):
    release = releases["logistic", "plain", "reparameterised"]
    with pytest.raises(TypeError, match="request must be a PosteriorRequest, got dict"):
        noise_aware_posterior(release, {"approximation": "laplace"})
    with pytest.raises(TypeError, match=r"noise_aware_posterior\(\) got an unexpected keyword argument 'burnin'"):
        noise_aware_posterior(release, burnin=3)


def test_the_request_of_a_kind_has_its_settings_alone(releases):
    release = releases["logistic", "plain", "reparameterised"]
    asked = {"hessian": "diagonal", "burn_in": 3}
    wide, own = noise_aware_posterior(release, **asked), noise_aware_posterior(release, TraceRequest(**asked))
    np.testing.assert_array_equal(wide.quantile([0.05, 0.95]), own.quantile([0.05, 0.95]))
    with pytest.raises(TypeError, match="sampler"):
        TraceRequest(sampler=None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'sampler'; see TraceRequest"):
        noise_aware_posterior(release, TraceRequest(), sampler=None)
    with pytest.raises(ValueError, match="prior_scale must be left at its default for a gradient trace"):
        NewtonRequest(prior_scale=2.0).check(release)
    with pytest.raises(ValueError, match="prior must be one of"):
        NewtonRequest(prior="flat")


def test_the_name_before_0_2_still_works(releases):
    release = releases["logistic", "plain", "reparameterised"]
    with pytest.warns(DeprecationWarning, match="method= is now approximation="):
        assert PosteriorRequest(method="laplace") == PosteriorRequest(approximation="laplace")
    with pytest.warns(DeprecationWarning, match="method= is now approximation="):
        posterior = noise_aware_posterior(release, method="naive")
    assert posterior.approximation == "naive"
    np.testing.assert_array_equal(posterior.mean, noise_aware_posterior(release, approximation="naive").mean)


def test_one_step_is_refused_before_the_run():
    with pytest.raises(ValueError, match="burn_in must leave at least 2"):
        PosteriorRequest().check(planned("logistic", n_steps=1))
    PosteriorRequest(approximation="naive").check(planned("logistic", n_steps=1))


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([name for name in MODELS if name != "sparse"]),
    st.sampled_from(["tied", "steady", "plain", "paper"]),
    st.sampled_from(["reparameterised", "aligned"]),
    st.sampled_from(["random", "zero", "separable"]),
    st.sampled_from([1, 3, 40]),
    st.sampled_from([0.01, 1.0, 20.0]),
    st.sampled_from([2, 5, 20]),
    st.sampled_from(["auto", "full", "diagonal"]),
    st.integers(0, 1000),
)
@example("bernoulli", "tied", "aligned", "random", 1, 1.0, 20, "auto", 0)  # a coordinate without a single node
@example("Poisson", "tied", "aligned", "random", 1, 1.0, 5, "auto", 0)  # rates that nothing can be drawn at
def test_every_valid_release_has_a_proper_posterior(name, recipe, gradient, kind, n, epsilon, steps, hessian, seed):
    # Whatever the noise does to the iterate: what is paid for is released.
    release = run(
        name, recipe=recipe, gradient=gradient, kind=kind, n_records=n, epsilon=epsilon, steps=steps, seed=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        posterior = noise_aware_posterior(release, hessian=hessian, n_threads=1)
    low, high = posterior.quantile([0.05, 0.95], space="unconstrained")
    assert np.all(np.isfinite(low) & np.isfinite(high) & (high > low))
    assert np.all(np.isfinite(posterior.stddev))
    assert np.all(posterior.decompose().total > 0.0)


@pytest.mark.parametrize(("kind", "n_records", "steps"), [("random", 3, 20), ("zero", 200, 2)])
def test_sparse_categories_have_a_proper_posterior(kind, n_records, steps):
    """20 categories, most of them never seen."""
    release = run("sparse", kind=kind, n_records=n_records, steps=steps, epsilon=10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        posterior = noise_aware_posterior(release, n_threads=1)
    low, high = posterior.quantile([0.05, 0.95], space="unconstrained")
    assert np.all(np.isfinite(low) & np.isfinite(high) & (high > low))
    low, high = posterior.quantile([0.05, 0.95])
    assert np.all((low >= 0.0) & (high >= low) & (high <= 1.0))


def frozen(release, coordinates):
    """Return the release as if some coordinates had not moved."""
    params = np.array(release.params)
    params[:, coordinates] = 0.25
    return release.replace(params=params, positions=params)


def test_a_parameter_that_the_trace_says_nothing_about_keeps_its_prior():
    # Records enough to tell of all others.
    release = run("logistic", recipe="plain", steps=30, epsilon=20.0, n_records=400)
    still = frozen(release, [1])
    with pytest.raises(NumericalError, match=r"'loc\[coef\[1\]\]' do not change"):
        noise_aware_posterior(still, hessian="diagonal", burn_in=0, fallback=False)
    with pytest.warns(FallbackWarning, match="1 of 3 parameters keep their prior"):
        posterior = noise_aware_posterior(still, hessian="diagonal", burn_in=0)
    whole = noise_aware_posterior(release, hessian="diagonal", burn_in=0)
    np.testing.assert_allclose(posterior.quantile([0.05, 0.95])[:, 1], [-1.6448536, 1.6448536], rtol=1e-6)
    assert posterior.diagnostics.prior_only.tolist() == [False, True, False]
    assert posterior.optimum_mean[0] == whole.optimum_mean[0]
    assert posterior.stddev[0] <= whole.stddev[0]
    assert "prior only" in posterior.summary().flags[1]
    # Of a scale alone: the location keeps what the trace says.
    with pytest.warns(FallbackWarning, match="0 of 3 parameters keep their prior"):
        posterior = noise_aware_posterior(frozen(release, [4]), hessian="diagonal", burn_in=0)
    assert posterior.optimum_mean[1] == whole.optimum_mean[1]


def test_a_fisher_scaled_run_that_fails_keeps_the_prior_of_every_parameter():
    release = frozen(run("logistic", recipe="tied", steps=30), [1])
    with pytest.warns(FallbackWarning, match="hessian='tied'.*3 of 3 parameters keep their prior"):
        posterior = noise_aware_posterior(release)
    np.testing.assert_allclose(posterior.stddev, 1.0)


def test_without_a_model_there_is_no_prior_to_fall_back_to():
    still = frozen(run("logistic", recipe="plain", steps=30), [1]).replace(model_spec={})
    with pytest.raises(NumericalError, match="do not change"):
        noise_aware_posterior(still)
