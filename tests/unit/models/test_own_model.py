"""Models from the user's own code: parameters, trials before anything is spent, and the frameworks against NumPy."""

import pickle
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special

import dpinfer as dpi
from dpinfer.errors import BackendUnavailableError, CheckpointError
from dpinfer.mechanism import RunCheckpoint
from dpinfer.models import from_gradient, from_jax, from_numpyro, from_torch, model_from_dict
from dpinfer.models.adapters.frameworks import OLDEST, framework
from dpinfer.models.adapters.parameters import ParameterSet
from dpinfer.testing import InsecureRNG

PARAMETERS = {"intercept": (), "coef": (2,)}
PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PLAN = dpi.PrivacyPlan.from_noise_multiplier(2.0, 0.3, 6, 1e-5)


def predictor(params, X):
    return params[0] + np.sum(X * params[1:], axis=1)


def gradient(params, X, y):
    residual = y - special.expit(predictor(params, X))
    return np.concatenate((residual[:, None], X * residual[:, None]), axis=1)


def log_likelihood(params, X, y):
    eta = predictor(params, X)
    return y * eta - np.logaddexp(0.0, eta)


def sampler(params, X, u):
    return (u[:, 0] < special.expit(predictor(params, X))).astype(float)


def made(gradient=gradient, parameters=PARAMETERS, **changes):
    options = {"n_features": 2, "log_likelihood": log_likelihood, "sampler": sampler, "response": "binary"}
    return from_gradient(gradient, parameters, **options | changes)


def records(n=200):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(n, 2))
    return X, sampler(np.array([0.3, 1.0, -0.5]), X, rng.random((n, 1)))


def release(model, **options):
    given = {"plan": PLAN, "n_records": 200, "max_grad_norm": 1.0, "random_source": InsecureRNG(1), "n_threads": 1}
    return dpi.run_dpvi(model, *records(), **given | options)


# Parameters


def test_arrays_keep_their_names_and_shapes_up_to_the_posterior(tmp_path):
    model = made()
    assert model.names == ("intercept", "coef[0]", "coef[1]")
    path = tmp_path / "own"
    release(model).save(path)
    loaded = dpi.load_release(path)
    assert model_from_dict(loaded.model_spec) == model
    draws = dpi.noise_aware_posterior(loaded).model.unflatten(np.arange(12.0).reshape(4, 3))
    assert draws["intercept"].tolist() == [0.0, 3.0, 6.0, 9.0]
    assert draws["coef"].shape == (4, 2)
    with pytest.raises(TypeError, match="no code"):
        release(model_from_dict(loaded.model_spec))


@pytest.mark.parametrize("kind", ["identity", "exp", "softplus", "sigmoid"])
def test_maps_their_inverses_and_slopes(kind):
    kept = ParameterSet({"a": (2,), "b": ()}, {"a": kind}, 0.0, 1.0)
    theta, step = np.array([-0.7, 1.3, 0.4]), 1e-6
    np.testing.assert_allclose(kept.unconstrain(kept.constrain(theta)), theta, atol=1e-12)
    slopes = (kept.constrain(theta + step) - kept.constrain(theta - step)) / (2.0 * step)
    np.testing.assert_allclose(kept.slopes(theta), slopes, rtol=1e-8)
    assert kept.constrain(np.zeros((5, 3))).shape == (5, 3)


def test_a_mapped_parameter_has_the_gradient_of_its_own_line():
    """The rate of an exponential law, positive: d log p / d log rate = 1 - rate y."""
    model = from_gradient(
        lambda params, X, y: (1.0 / params[0] - y)[:, None],
        ["rate"],
        n_features=1,
        log_likelihood=lambda params, X, y: np.log(params[0]) - params[0] * y,
        bijectors={"rate": "exp"},
        response="positive",
    )
    y = np.array([0.5, 2.0])
    np.testing.assert_allclose(model.scores(np.zeros((2, 1)), y, np.log([3.0]))[:, 0], 1.0 - 3.0 * y)
    assert model.sample_prior(100, 1).min() > 0.0


def test_prior_densities_are_normal_before_the_map():
    model = made(prior_mean={"intercept": 1.0, "coef": 0.0}, prior_scale={"intercept": 2.0, "coef": [0.5, 1.0]})
    theta = np.array([0.3, -0.2, 0.8])
    from scipy.stats import norm

    expected = norm.logpdf(theta, [1.0, 0.0, 0.0], [2.0, 0.5, 1.0]).sum()
    assert model.log_prior(theta) == pytest.approx(expected)
    step = 1e-6 * np.eye(3)
    slope = [(model.log_prior(theta + e) - model.log_prior(theta - e)) / 2e-6 for e in step]
    np.testing.assert_allclose(model.log_prior_gradient(theta), slope, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior_scale": np.inf}, "improper"),
        ({"prior_scale": 0.0}, "positive"),
        ({"prior_scale": {"coef": 1.0}}, "a number for each array"),
        ({"bijectors": {"slope": "exp"}}, "bijectors must name"),
        ({"bijectors": {"coef": "log"}}, "one of 'identity'"),
        ({"parameters": {}}, "at least one array"),
        ({"parameters": 0}, "at least 1"),
        ({"parameters": ["a", "a", "b"]}, "distinct"),
        ({"n_features": 0}, "at least 1"),
        ({"response": "label"}, "response must be one of"),
        ({"gradient": None}, "gradient must be callable"),
        ({"n_uniforms": 0}, "n_uniforms"),
        ({"features": np.zeros((4, 3))}, "rows of 2 numbers"),
        ({"public_data": np.zeros((4, 3))}, r"pair \(X, y\)"),
        ({"public_data": (np.zeros((4, 2)), np.full(4, 0.5))}, "zeros and ones"),
    ],
    ids=str,
)
def test_wrong_declarations_are_refused_by_name(changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        made(**changes)


# Trials


def standardised(params, X, y):
    return gradient(params, (X - X.mean(axis=0)) / (X.std(axis=0) + 1e-9), y)


def of_the_sorted(params, X, y):
    return gradient(params, np.sort(X, axis=0), y)


def rounded_together(params, X, y):
    residual = y - special.expit(params[0] + X @ params[1:])
    return np.concatenate((residual[:, None], X * residual[:, None] + 1e-14 * X.mean()), axis=1)


def exploding(params, X, y):
    return gradient(params, X, y) / 0.0


def silent(params, X, y):
    return gradient(params, X, y) * [1.0, 1.0, 0.0]


def shifting(params, X, y):
    X += 1.0
    return gradient(params, X, y)


def clearing(params, X, y):
    y[:] = 0.0
    return gradient(params, X, y)


BAD_CODE = {
    "writing to X": (shifting, "gradients must not write"),
    "writing to y": (clearing, "gradients must not write"),
    "a scalar for the batch": (lambda p, X, y: gradient(p, X, y).sum(), "a row for each of B records"),
    "a sum over the batch": (lambda p, X, y: gradient(p, X, y).sum(axis=0), "a row for each of B records"),
    "a column too few": (lambda p, X, y: gradient(p, X, y)[:, 1:], r"shape \(B, 3\)"),
    "complex": (lambda p, X, y: gradient(p, X, y) + 0j, "real numbers"),
    "objects": (lambda p, X, y: np.full((len(X), 3), None), "real numbers"),
    "NaN": (lambda p, X, y: gradient(p, X, y) * np.nan, "finite at the prior's mean"),
    "exploding": (exploding, "finite at the prior's mean"),
    "random": (lambda p, X, y: gradient(p, X, y) + np.random.rand(), "draws random numbers"),  # noqa: NPY002
    "standardised": (standardised, "records are mixed"),
    "sorted": (of_the_sorted, "records are mixed"),
    "rounded together": (rounded_together, "rows are rounded together"),
    "the wrong sign": (lambda p, X, y: -gradient(p, X, y), "differ from its slope"),
    "one parameter's factor": (lambda p, X, y: gradient(p, X, y) * [1.0, 1.01, 1.0], "coef\\[0\\]"),
}


@pytest.mark.parametrize("case", BAD_CODE)
def test_bad_code_is_refused_with_the_reason(case):
    code, message = BAD_CODE[case]
    with pytest.raises((TypeError, ValueError), match=message):
        made(code)


def test_a_parameter_that_no_record_informs_is_named():
    with pytest.raises(ValueError, match=r"'coef\[1\]' is 0 for all"):
        made(silent, log_likelihood=None, sampler=None)


def test_a_group_of_few_records_is_no_parameter_without_any():
    """Of 40 groups some have none of the first trial records, of which there are 33."""
    groups = 40

    def of_groups(params, X, y):
        own = X[:, 0, None] == np.arange(groups)
        return own * (y - np.sum(own * params, axis=1))[:, None]

    features = lambda size, rng: rng.integers(0, groups, (size, 1)).astype(float)  # noqa: E731
    given = {"n_features": 1, "response": "real"}
    assert from_gradient(of_groups, groups, features=features, **given).n_params == groups
    X = np.arange(groups, dtype=float)[:, None]
    assert from_gradient(of_groups, groups, public_data=(X, np.ones(groups)), **given).n_params == groups
    with pytest.raises(ValueError, match="is 0 for all"):
        from_gradient(of_groups, groups, public_data=(X[:-1], np.ones(groups - 1)), **given)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (lambda p, X, u: sampler(-p, X, u), "sampler must draw from the likelihood"),
        (lambda p, X, u: sampler(p, X, u) + 0.5, "zeros and ones"),
        (lambda p, X, u: sampler(p, X, u)[:, None], "B real numbers"),
        (lambda p, X, u: sampler(p, X, np.random.random(u.shape)), "draws random numbers"),  # noqa: NPY002
        (lambda p, X, u: sampler(p, X, u[::-1]), "draws of a record must not depend"),
        (lambda p, X, u: sampler(p, np.abs(X, out=X), u), "sampler must not write"),
    ],
)
def test_a_sampler_that_does_not_fit_is_refused(code, message):
    with pytest.raises(ValueError, match=message):
        made(sampler=code)


@pytest.mark.parametrize("column", range(3))
@pytest.mark.parametrize("factor", [-1.0, 2.5, 0.3])
def test_a_wrong_sign_or_factor_of_one_column_is_refused_by_its_name(column, factor):
    """The score has mean zero all the same: its variance and its slope do not agree."""
    factors = np.where(np.arange(3) == column, factor, 1.0)
    name = ("intercept", "coef[0]", "coef[1]")[column]
    with pytest.raises(ValueError, match=f"gradient in '{re.escape(name)}' must be .* check this column's sign and"):
        made(lambda p, X, y: gradient(p, X, y) * factors, log_likelihood=None)


def laplace(params, X, y):
    missed = (y - params[0]) / params[1]
    return np.column_stack((np.sign(missed), np.abs(missed) - 1.0)) / params[1]


def cauchy(params, X, y):
    missed = (y - params[0]) / params[1]
    return np.column_stack((2.0 * missed, missed**2 - 1.0)) / ((1.0 + missed**2) * params[1])[:, None]


def far_features(size, rng):
    """Log-normal; all but a few rows have hardly an outcome that is open."""
    return np.exp(3.0 * rng.standard_normal((size, 2)))


def test_likelihoods_that_are_not_smooth_have_long_tails_or_far_features_pass_the_trials():
    """False-positive rate: seven errors of a mean, and a quarter of the variance more."""
    laws = {
        laplace: lambda p, X, u: p[0] - p[1] * np.sign(u[:, 0] - 0.5) * np.log1p(-2.0 * np.abs(u[:, 0] - 0.5)),
        cauchy: lambda p, X, u: p[0] + p[1] * np.tan(np.pi * (u[:, 0] - 0.5)),
    }
    for score, draw in laws.items():
        located = {"parameters": ["mean", "scale"], "bijectors": {"scale": "exp"}, "n_features": 1}
        assert from_gradient(score, sampler=draw, prior_scale=3.0, **located).n_params == 2
    for declared in (far_features, lambda size, rng: 1e4 * rng.standard_normal((size, 2))):
        assert made(features=declared, log_likelihood=None).n_params == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sampler": lambda p, X, rng: rng.random(len(X))},
            "sampler raised AttributeError: .* called as .* no gener",
        ),
        ({"sampler": lambda p, X: X[:, 0]}, "sampler raised TypeError: .* is called as sampler"),
        ({"n_features": 3, "sampler": None}, r"gradient raised ValueError: .*; n = 3 and p = 3 here"),
        (
            {"gradient": lambda p, X, y: [[1.0, 2.0], [1.0]], "sampler": None},
            "gradient raised ValueError: setting",
        ),
        ({"log_likelihood": lambda p, X: X[:, 0]}, "log_likelihood raised TypeError"),
        ({"features": lambda size: np.zeros((size, 2))}, r"features raised TypeError: .* as features\(size, rng\)"),
        (
            {"features": lambda size, rng: np.zeros((size, 3))},
            r"rows of 2 numbers.* got shape \(33, 3",
        ),
        ({"respons": "binary"}, "respons is no argument"),
        ({"parameters": {"intercept": (), "coef": 2}}, r"parameters\['coef'\] must be a shape"),
        (
            {"prior_scale": {"intercept": 1.0, "coef": [1.0] * 3}},
            r"prior_scale\['coef'\] .* shape \(2,\), got shape",
        ),
    ],
    ids=range(10),
)
def test_code_that_raises_is_refused_by_the_arguments_name(changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        made(**changes)


def test_a_log_likelihood_that_writes_is_refused():
    with pytest.raises(ValueError, match="log_likelihood must not write"):
        made(log_likelihood=lambda p, X, y: log_likelihood(p, np.sort(X, axis=1, kind="stable"), np.abs(y, out=y)))


def test_code_that_writes_for_some_records_alone_leaves_them_as_they_are():
    """What the trials cannot find: it fails for that record, which contributes nothing."""

    def sometimes(params, X, y):
        if np.any(X > 50.0):
            X[:] = 0.0
        return gradient(params, X, y)

    X, y = records()
    X[3] = 100.0
    before, public = X.tobytes(), {"plan": PLAN, "n_records": 200, "max_grad_norm": 1.0, "n_threads": 1}
    found = dpi.run_dpvi(made(sometimes), X, y, random_source=InsecureRNG(1), **public)
    assert X.tobytes() == before
    model = made(sometimes, sampler=None)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=200)
    dpi.run_newton(model, X, y, plan=plan, n_records=200, random_source=InsecureRNG(1))
    assert X.tobytes() == before
    assert np.all(np.isfinite(found.noisy_gradients))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (lambda p, X, y: log_likelihood(p, X, y).sum(), "log_likelihood must return a real number for each record"),
        (lambda p, X, y: log_likelihood(p, X, y)[:, None], "log_likelihood must return a real number for each record"),
        (lambda p, X, y: log_likelihood(p, X, y) + 0j, "log_likelihood must return a real number for each record"),
    ],
)
def test_a_log_likelihood_of_another_shape_or_kind_is_refused(code, message):
    with pytest.raises(ValueError, match=message):
        made(log_likelihood=code)


def test_code_that_cannot_be_pickled_runs_with_a_checkpoint(tmp_path):
    """A checkpoint keeps no code: a closure goes on where it stopped, with the bits of the whole run."""
    shift = np.zeros(3)

    def closure(params, X, y):
        return gradient(params, X, y) + shift

    with pytest.raises(AttributeError, match="pickle"):
        pickle.dumps(closure)
    done = []

    def stop(step, total):
        done.append(step)
        if len(done) == 3:
            raise KeyboardInterrupt

    place = RunCheckpoint(tmp_path / "run", interval=0.0)
    with pytest.raises(KeyboardInterrupt):
        release(made(closure), checkpoint=place, progress=stop)
    resumed = release(made(closure), checkpoint=place)
    assert resumed.noisy_gradients.tobytes() == release(made(closure)).noisy_gradients.tobytes()


def test_public_data_take_the_place_of_made_up_records():
    seen = []

    def watched(params, X, y):
        seen.append(X.copy())
        return gradient(params, X, y)

    made(watched, log_likelihood=None, sampler=None, public_data=records(40))
    assert np.array_equal(seen[0], records(40)[0][:33])


# Runs


def test_gradients_of_ones_own_are_those_of_the_built_in_model():
    own = release(made())
    built_in = release(
        dpi.models.LogisticRegression(2, fit_intercept=True), expectation="monte_carlo", n_draws=own.settings["n_draws"]
    )
    order = [2, 0, 1]  # the built-in intercept comes last
    ours = own.noisy_gradients[:1, :3]
    theirs = built_in.noisy_gradients[:1, :3][:, np.argsort(order)]
    assert ours.shape == theirs.shape
    assert "OwnModel" in repr(own)


def test_a_run_is_not_taken_up_with_other_code(tmp_path):
    class Stopped(Exception):  # noqa: N818
        pass

    def stop(done, total):
        raise Stopped

    place = RunCheckpoint(tmp_path / "run", interval=0.0)
    with pytest.raises(Stopped):
        release(made(), checkpoint=place, progress=stop)
    with pytest.raises(CheckpointError, match="model"):
        release(made(lambda p, X, y: 1.001 * gradient(p, X, y), log_likelihood=None), checkpoint=place)
    resumed = release(made(), checkpoint=place)
    assert resumed.noisy_gradients.tobytes() == release(made()).noisy_gradients.tobytes()


# Frameworks


def jax_model(**changes):
    jax = pytest.importorskip("jax")

    def density(params, x, y):
        eta = params["intercept"] + x @ params["coef"]
        return y * eta - jax.numpy.logaddexp(0.0, eta)

    def draw(key, params, x):
        return (jax.random.uniform(key) < jax.nn.sigmoid(params["intercept"] + x @ params["coef"])) * 1.0

    return from_jax(density, PARAMETERS, **{"n_features": 2, "sampler": draw, "response": "binary"} | changes)


def torch_model(**changes):
    torch = pytest.importorskip("torch")

    def density(params, x, y):
        eta = params["intercept"] + (x * params["coef"]).sum()
        return y * eta - torch.logaddexp(torch.zeros_like(eta), eta)

    def draw(params, x, u):
        return (u < torch.sigmoid(params["intercept"] + (x * params["coef"]).sum())).double()

    return from_torch(density, PARAMETERS, **{"n_features": 2, "sampler": draw, "response": "binary"} | changes)


def numpyro_regression(X, y=None):
    import numpyro
    from numpyro import distributions as dist

    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    coef = numpyro.sample("coef", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=intercept + X @ coef), obs=y)


def numpyro_model(**changes):
    pytest.importorskip("numpyro")
    return from_numpyro(numpyro_regression, **{"n_features": 2, "response": "binary"} | changes)


FRAMEWORKS = {"jax": jax_model, "torch": torch_model, "numpyro": numpyro_model}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_gives_the_release_of_numpy(name):
    """The same lattice sums and noise with the same insecure key, within 1e-6."""
    model = FRAMEWORKS[name]()
    assert model.names == made().names
    own, numpy_own = release(model), release(made())
    scale = np.max(np.abs(numpy_own.noisy_gradients))
    np.testing.assert_allclose(own.noisy_gradients, numpy_own.noisy_gradients, rtol=0.0, atol=1e-6 * scale)
    # The test can fail: another prior moves it further.
    other = release(FRAMEWORKS["jax"](prior_scale=0.9) if name == "jax" else made(prior_scale=0.9))
    assert np.max(np.abs(other.noisy_gradients - numpy_own.noisy_gradients)) > 1e-3 * scale


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_is_not_needed_and_says_what_is_missing(name, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    calls = {
        "jax": lambda: from_jax(lambda p, x, y: 0.0, 1, n_features=1),
        "torch": lambda: from_torch(lambda p, x, y: 0.0, 1, n_features=1),
        "numpyro": lambda: from_numpyro(numpyro_regression, n_features=2),
    }
    with pytest.raises(BackendUnavailableError, match=rf"dpinfer\[{name}\]"):
        calls[name]()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_that_is_too_old_is_refused_by_its_version(name, monkeypatch):
    """The stand-in has a version and nothing else; that it is refused only when older says the last line."""
    least = ".".join(map(str, OLDEST[name]))
    needed = next(line for line in EXTRAS[name] if line.startswith(name))
    assert needed == f"{name}>={least}"
    old, enough = SimpleNamespace(__version__="0.3.25"), SimpleNamespace(__version__=least + ".post1")
    monkeypatch.setitem(sys.modules, name, old)
    with pytest.raises(BackendUnavailableError, match=rf"{name} must be at least {least}, got 0.3.25: .*\[{name}\]"):
        framework(name)
    monkeypatch.setitem(sys.modules, name, enough)
    assert framework(name) is enough


def test_jax_code_that_is_not_for_one_record_is_refused():
    jax = pytest.importorskip("jax")
    with pytest.raises(ValueError, match="one real number"):
        from_jax(lambda p, x, y: y * x, 2, n_features=2)
    with pytest.raises(ValueError, match="one real number"):
        from_jax(lambda p, x, y: (x @ p) * 1j, 2, n_features=2)
    slow = jax_model(vectorize=False)
    np.testing.assert_allclose(
        slow.scores(*records(50), np.array([0.1, 0.2, 0.3])), gradient([0.1, 0.2, 0.3], *records(50)), rtol=1e-12
    )
    assert jax.numpy.zeros(1).dtype == np.float32  # the user's own precision is left alone


def test_what_jax_raises_names_the_argument_and_what_to_write_instead():
    """A condition, a NumPy function, float(), a generator, a name and columns that are not there."""
    jax = pytest.importorskip("jax")

    def density(p, x, y):
        return jax.numpy.sum(x * p["coef"]) * y

    wrong = [
        lambda p, x, y: y if y > 0 else 0.0,
        lambda p, x, y: np.exp(np.asarray(y)),
        lambda p, x, y: float(y),
        lambda p, x, y: p["slope"],
        lambda p, x, y: x @ np.ones(3),
    ]
    for code in wrong:
        with pytest.raises(ValueError, match=r"log_likelihood raised \w+: .* as log_likelihood.*where for if.*n = 3"):
            from_jax(code, PARAMETERS, n_features=2)
    for draw in (lambda key, p, x: key.random(), lambda p, x, u: x @ p["coef"]):
        with pytest.raises(ValueError, match=r"sampler raised \w+: .* as sampler\(key, params, x\) with a key"):
            from_jax(density, PARAMETERS, n_features=2, sampler=draw)
    with pytest.raises(TypeError, match="log_likelihood must be callable"):
        from_jax(None, PARAMETERS, n_features=2)


def test_what_a_numpyro_model_raises_names_it():
    pytest.importorskip("numpyro")
    with pytest.raises(ValueError, match=r"model raised TypeError: .*X \(B, 3\)"):
        from_numpyro(numpyro_regression, n_features=3)


def test_torch_modules():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()

    def density(output, y):
        return -torch.nn.functional.softplus(-(2.0 * y - 1.0) * output[0])

    model = from_torch(density, n_features=2, module=layers, response="binary", vectorize=True)
    assert model.n_params == 13
    assert model.names[0] == "0.weight[0, 0]"
    with pytest.raises(ValueError, match="mix records"):
        from_torch(density, n_features=2, module=torch.nn.Sequential(torch.nn.BatchNorm1d(2), layers))
    dropout = torch.nn.Sequential(torch.nn.Dropout(0.5), layers)
    with pytest.raises((ValueError, RuntimeError), match=r"random"):
        from_torch(density, n_features=2, module=dropout, response="binary")
    with pytest.raises(ValueError, match="parameters must be None"):
        from_torch(density, 3, n_features=2, module=layers)


@pytest.mark.parametrize("code", [lambda p, x, y: p * x, lambda p, x, y: (p * x).sum() * 1j, lambda p, x, y: 1.0])
def test_torch_code_that_is_not_for_one_record_is_refused(code):
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match="a tensor with one real number"):
        from_torch(code, 2, n_features=2)


def test_torch_code_that_writes_does_so_to_a_copy():
    torch = pytest.importorskip("torch")

    def writing(p, x, y):
        return (p * x).sum() * y.sub_(1.0)

    model = from_torch(writing, 2, n_features=2, vectorize=False)
    X, y = records()
    before = X.tobytes(), y.tobytes()
    assert model.scores(X, y, np.zeros(2)).any()
    assert (X.tobytes(), y.tobytes()) == before
    assert torch.zeros(1).dtype == torch.float32  # the user's own precision is left alone


@pytest.mark.filterwarnings("ignore:Passing arguments:DeprecationWarning")  # NumPyro 0.15 with JAX 0.4.30
def test_numpyro_models_that_cannot_be_taken_are_refused_with_the_reason():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def with_prior(prior, name="scale"):
        def model(X, y=None):
            value = numpyro.sample(name, prior)
            with numpyro.plate("people", X.shape[0]):
                numpyro.sample("y", dist.Normal(X[:, 0] * value.sum(), 1.0), obs=y)

        return model

    def local(X, y=None):
        with numpyro.plate("people", X.shape[0]):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)

    def nested(X, y=None):
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        coef = numpyro.sample("coef", dist.Normal(0.0, spread))
        with numpyro.plate("people", X.shape[0]):
            numpyro.sample("y", dist.Normal(X[:, 0] * coef, 1.0), obs=y)

    refused = {
        "support": with_prior(dist.Dirichlet(np.ones(3))),
        "single records": local,
        "must not depend on other parameters": nested,
        "improper": with_prior(dist.ImproperUniform(dist.constraints.real, (), ())),
        "one observed site": lambda X, y=None: numpyro.sample("a", dist.Normal(0.0, 1.0)),
    }
    for message, model in refused.items():
        with pytest.raises(ValueError, match=message):
            from_numpyro(model, n_features=2)
    taken = from_numpyro(with_prior(dist.LogNormal(0.5, 2.0)), n_features=2)
    assert taken.parameters.bijectors == {"scale": "exp"}
    assert (taken.parameters.prior_mean[0], taken.parameters.prior_scale[0]) == pytest.approx((0.5, 2.0))
