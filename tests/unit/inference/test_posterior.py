"""The posterior object: moments, quantiles, draws, spaces, predictions, tables, exports, refusals."""

import builtins
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import integrate, special, stats
from tests.reference import inference_oracles as oracle

from dpinfer.errors import BackendUnavailableError
from dpinfer.inference import Posterior, TracePrior, noise_aware_posterior
from dpinfer.inference.posterior.arviz_export import arrays_of
from dpinfer.inference.posterior.mixture import NormalMixtures, ThetaMarginals, gauss_rule
from dpinfer.lab.replays.mechanisms import own_logistic
from dpinfer.mechanism import run_statistic
from dpinfer.models import (
    BetaBernoulli,
    GaussianMixture,
    LinearRegression,
    LogisticRegression,
    Model,
    PoissonRegression,
)
from dpinfer.models.base import sigmoid, softplus
from dpinfer.release import release_from_arrays
from dpinfer.testing import InsecureRNG

RATE = 0.1


def mean_field_release(model=None, seed=7, n=2, steps=1500):
    rng = np.random.default_rng(seed)
    hessian = np.concatenate([np.linspace(30.0, 60.0, n), np.linspace(5.0, 9.0, n)])
    tau = np.concatenate([np.full(n, 1.0), np.full(n, 0.4)])
    x, g, _ = oracle.simulate(
        rng,
        steps=steps,
        hessian=hessian,
        optimum=np.concatenate([np.linspace(-0.5, 0.8, n), np.full(n, -1.0)]),
        noise_stddev=tau,
        learning_rate=100.0 / (steps * RATE * hessian),
    )
    names = None if model is None else model.names
    release = release_from_arrays(x, g, noise_stddev=tau, sample_rate=RATE, names=names)
    return release if model is None else release.replace(model_spec=model.to_dict())


@pytest.fixture(scope="module")
def posterior():
    return noise_aware_posterior(mean_field_release(LogisticRegression(n_features=1, fit_intercept=True)))


def test_draws_follow_the_quantiles(posterior):
    """Kolmogorov-Smirnov at a false-positive rate of 1e-6; the table of quantiles adds less than 1e-4."""
    size = 100_000
    z = np.linspace(-5.5, 5.5, 441)
    table = posterior.quantile(special.ndtr(z))
    critical = oracle.ks_critical(size, 1e-6) + 1e-4
    draws = posterior.sample(size, seed=5)
    for index in range(2):
        values = special.ndtr(np.interp(draws[:, index], table[:, index], z))
        assert stats.kstest(values, "uniform").statistic < critical
        # Power twin: draws that are too narrow by 6%, as without a part of the noise, must fail.
        short = posterior.mean[index] + 0.94 * (draws[:, index] - posterior.mean[index])
        values = special.ndtr(np.interp(short, table[:, index], z))
        assert stats.kstest(values, "uniform").statistic > critical


def test_draws_are_seeded_and_shaped(posterior):
    assert posterior.sample(7, seed=1).shape == (7, 2)
    assert posterior.sample(7, seed=1).tobytes() == posterior.sample(7, seed=1).tobytes()
    assert posterior.sample(7, seed=1).tobytes() != posterior.sample(7, seed=2).tobytes()
    generator = np.random.default_rng(1)
    assert posterior.sample(7, seed=generator).tobytes() == posterior.sample(7, seed=1).tobytes()


def test_moments_match_draws_and_numerical_integration(posterior):
    draws = posterior.sample(200_000, seed=2)
    error = posterior.stddev / np.sqrt(200_000)
    assert np.all(np.abs(draws.mean(axis=0) - posterior.mean) < 6.0 * error)
    np.testing.assert_allclose(draws.std(axis=0), posterior.stddev, rtol=0.02)
    np.testing.assert_allclose(np.diag(posterior.cov), posterior.stddev**2, rtol=1e-12)
    marginals = posterior.distribution.marginals
    for index in range(2):
        low, high = posterior.mean[index] + np.array([-14.0, 14.0]) * posterior.stddev[index]
        tail = integrate.quad(lambda t: 1.0 - marginals.cdf(index, np.array(t)), low, high, limit=200)[0]  # noqa: B023
        assert low + tail == pytest.approx(posterior.mean[index], abs=1e-7)


def test_quantile_shapes_levels_and_interval(posterior):
    assert posterior.quantile(0.3).shape == (2,)
    assert posterior.quantile([0.3]).shape == (1, 2)
    np.testing.assert_array_equal(posterior.quantile([0.3])[0], posterior.quantile(0.3))
    np.testing.assert_allclose(posterior.interval(0.9), posterior.quantile([0.05, 0.95]), rtol=1e-10)
    spread = posterior.quantile([1e-12, 0.5, 1.0 - 1e-12])
    assert np.all(np.diff(spread, axis=0) > 0.0)
    marginals = posterior.distribution.marginals
    assert marginals.cdf(0, spread[0, :1])[0] == pytest.approx(1e-12, rel=1e-6)


@pytest.mark.parametrize("bad", [0.0, 1.0, [0.5, 1.5], np.nan])
def test_bad_levels_are_refused(posterior, bad):
    with pytest.raises(ValueError, match="q must"):
        posterior.quantile(bad)


def test_other_refusals(posterior):
    with pytest.raises(ValueError, match="q must be a number or one-dimensional"):
        posterior.quantile([[0.5]])
    with pytest.raises(ValueError, match="level"):
        posterior.interval(1.0)
    with pytest.raises(ValueError, match="n_samples"):
        posterior.sample(0)
    with pytest.raises(ValueError, match="space must be one of"):
        posterior.sample(3, space="theta")
    with pytest.raises(ValueError, match="read-only"):
        posterior.optimum_mean[0] = 1.0


def test_decomposition_sums_to_the_variance(posterior):
    parts = posterior.decompose()
    np.testing.assert_allclose(parts.total, posterior.stddev**2, rtol=1e-12)
    np.testing.assert_allclose(parts.shares.sum(axis=0), 1.0, rtol=1e-12)
    assert np.all(parts.shares > 0.0)
    # The noise's part is split as it is without a prior of its own.
    plain = posterior.distribution.variance_parts()
    np.testing.assert_allclose(posterior.optimum_stddev[:2] ** 2, plain.privacy + plain.approximation, rtol=1e-9)
    np.testing.assert_allclose(parts.privacy / parts.approximation, plain.privacy / plain.approximation, rtol=1e-9)
    assert "theta" not in repr(parts)
    assert "coef[0]" in repr(parts)


def test_elementwise_map_by_quadrature():
    model = LinearRegression(n_features=1)
    posterior = noise_aware_posterior(mean_field_release(model))
    theta = posterior.sample(400_000, seed=1, space="unconstrained")
    constrained = softplus(theta[:, 1])
    error = constrained.std() / np.sqrt(400_000)
    assert posterior.mean[1] == pytest.approx(constrained.mean(), abs=6.0 * error)
    assert posterior.stddev[1] == pytest.approx(constrained.std(), rel=0.01)
    np.testing.assert_allclose(
        posterior.quantile([0.1, 0.9])[:, 1], softplus(posterior.quantile([0.1, 0.9], space="unconstrained")[:, 1])
    )
    np.testing.assert_allclose(np.diag(posterior.cov), posterior.stddev**2)
    assert posterior.cov[0, 1] == 0.0


class MappedModel(Model):
    """A model whose map is given, for the test alone."""

    def __init__(self, map_):
        self._map = map_

    names = ("a", "b")

    def constrain(self, theta):
        return self._map(np.asarray(theta, dtype=float))

    def log_prior(self, theta):
        return np.zeros(np.shape(theta)[:-1])

    def log_prior_gradient(self, theta):
        return np.zeros_like(theta)

    def expected_log_prior_gradient(self, loc, raw_scale):
        return np.zeros_like(loc), np.zeros_like(loc)

    def prior_moments(self):
        return np.zeros(2), np.ones(2)

    def default_start(self):
        return np.zeros(2), np.zeros(2)

    def to_dict(self):
        return {}


def test_decreasing_and_mixing_maps():
    release = mean_field_release()
    plain = noise_aware_posterior(release)
    falling = noise_aware_posterior(release, model=MappedModel(lambda theta: np.exp(-theta)))
    np.testing.assert_allclose(falling.quantile([0.1, 0.8]), np.exp(-plain.quantile([0.9, 0.2])), rtol=1e-9)
    mixing = noise_aware_posterior(release, model=MappedModel(lambda theta: special.softmax(theta, axis=-1)))
    draws = special.softmax(plain.sample(100_000, seed=8), axis=-1)
    np.testing.assert_allclose(mixing.mean, draws.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(mixing.cov, np.cov(draws.T), atol=0.01)
    np.testing.assert_allclose(mixing.quantile(0.7), np.quantile(draws, 0.7, axis=0), atol=0.03)
    assert mixing.mean.tobytes() == noise_aware_posterior(release, model=mixing.model).mean.tobytes()
    with pytest.raises(ValueError, match="as many parameters"):
        _ = noise_aware_posterior(release, model=MappedModel(lambda theta: theta[..., :1])).mean


def test_predictions_of_a_classifier(posterior, rng):
    points = rng.normal(size=(50, 1))
    probability = posterior.predict_proba(points)
    assert probability.shape == (50, 2)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    theta = posterior.sample(200_000, seed=3)
    want = sigmoid(theta[:, :1] @ points.T + theta[:, 1:]).mean(axis=0)
    np.testing.assert_allclose(probability[:, 1], want, atol=6.0 * 0.5 / np.sqrt(2000))
    assert posterior.predict_proba(points).tobytes() == probability.tobytes()
    np.testing.assert_array_equal(posterior.predict(points), probability[:, 1] > 0.5)
    with pytest.raises(ValueError, match="X must have shape"):
        posterior.predict_proba(rng.normal(size=(5, 3)))


def test_predictions_do_not_depend_on_the_chunks(posterior, rng, monkeypatch):
    points = rng.normal(size=(37, 1))
    whole = posterior.predict_mean(points)
    monkeypatch.setattr("dpinfer.inference.posterior.predictive.CHUNK_CELLS", 10_000)
    np.testing.assert_allclose(posterior.predict_mean(points), whole, rtol=1e-13)


def test_predictions_of_a_count_model(rng):
    posterior = noise_aware_posterior(mean_field_release(PoissonRegression(n_features=2)))
    points = 0.1 * rng.normal(size=(5, 2))
    theta = posterior.sample(100_000, seed=1)
    np.testing.assert_allclose(posterior.predict(points), np.exp(theta @ points.T).mean(axis=0), rtol=0.02)
    with pytest.raises(ValueError, match="use predict_mean"):
        posterior.predict_proba(points)


def test_predictions_without_a_model_say_what_to_do():
    posterior = noise_aware_posterior(mean_field_release())
    with pytest.raises(ValueError, match="pass model="):
        posterior.predict_mean(np.ones((1, 1)))
    with pytest.raises(ValueError, match="generalised linear model"):
        noise_aware_posterior(mean_field_release(), model=MappedModel(lambda theta: theta)).predict_mean([[1.0]])


def test_summary_and_repr(posterior):
    summary = posterior.summary()
    text = str(summary)
    assert text == repr(summary)
    assert "coef[0]" in text
    assert "intercept" in text
    assert posterior.guarantee in text
    np.testing.assert_allclose(summary.lower, posterior.quantile(0.05), rtol=1e-12)
    assert summary.flags == ("", "")
    assert summary.warnings == ()
    assert "method 'dpvi'" in repr(posterior)
    assert posterior.guarantee in repr(posterior)
    assert posterior.safe_to_publish is True


def test_arviz_export(posterior):
    pytest.importorskip("arviz", reason="needs the extra dpinfer[arviz]")
    data = posterior.to_arviz(n_samples=50, n_chains=2, seed=3)
    assert list(data["posterior"].data_vars) == ["coef", "intercept"]
    assert data["posterior"]["coef"].dims == ("chain", "draw", "feature")
    assert data["posterior"]["coef"].shape == (2, 50, 1)
    assert data["posterior"]["feature"].values.tolist() == ["coef[0]"]
    assert data.attrs["guarantee"] == data["posterior"].attrs["guarantee"] == str(posterior.guarantee)
    draws = posterior.sample(100, seed=3)
    np.testing.assert_array_equal(data["posterior"]["intercept"].values.ravel(), draws[:, 1])
    np.testing.assert_array_equal(data["posterior"]["coef"].values.reshape(100, 1), draws[:, :1])
    # The model's prior: N(0, 1). False alarms: 1 in 10**6 of 200 draws; draws of the posterior would fail.
    spread = data["prior"]["coef"].values.std() ** 2 * 100
    assert stats.chi2(99).ppf(1e-6) < spread < stats.chi2(99).isf(1e-6)
    assert "posterior_predictive" not in data


def test_arviz_predictive_groups_hold_responses_at_the_callers_points(posterior, tmp_path):
    arviz = pytest.importorskip("arviz", reason="needs the extra dpinfer[arviz]")
    X = np.array([[-3.0], [0.0], [3.0]])
    data = posterior.to_arviz(n_samples=500, n_chains=4, seed=3, X=X)
    for group in ("posterior_predictive", "prior_predictive"):
        assert data[group]["y"].dims == ("chain", "draw", "point")
        assert set(np.unique(data[group]["y"].values)) == {0.0, 1.0}
        assert data[group].attrs["leaks"] == ""
    np.testing.assert_array_equal(data["constant_data"]["X"].values, X)
    rate = data["posterior_predictive"]["y"].values.mean(axis=(0, 1))
    expected = posterior.predict_mean(X)
    assert np.all(np.abs(rate - expected) < 5.0 * np.sqrt(expected * (1.0 - expected) * 2.0 / 2000))
    # The power twin: responses of the prior at the same points are not those.
    prior = data["prior_predictive"]["y"].values.mean(axis=(0, 1))
    assert np.any(np.abs(prior - expected) > 5.0 * np.sqrt(expected * (1.0 - expected) * 2.0 / 2000))
    for module in ("h5netcdf", "h5py"):
        pytest.importorskip(module, reason="needs a reader of netCDF files")
    if hasattr(data, "to_netcdf"):
        data.to_netcdf(str(tmp_path / "draws.nc"))
        again = arviz.from_netcdf(str(tmp_path / "draws.nc"))
        np.testing.assert_array_equal(again["posterior"]["coef"].values, data["posterior"]["coef"].values)


def test_arviz_arrays_of_other_models():
    pytest.importorskip("arviz", reason="needs the extra dpinfer[arviz]")
    found = arrays_of(GaussianMixture(2, 2), GaussianMixture(2, 2).names)
    assert [(item.name, item.shape, item.labels) for item in found] == [
        ("mean", (4,), ("0, 0", "0, 1", "1, 0", "1, 1"))
    ]
    own = own_logistic()
    (coef,) = arrays_of(own, own.names)
    assert (coef.name, coef.shape, coef.dims) == ("coef", (2,), ("coef_dim_0",))
    release = run_statistic(
        BetaBernoulli(), np.arange(200) % 2.0, epsilon=1.0, n_records=200, random_source=InsecureRNG(1)
    )
    data = noise_aware_posterior(release).to_arviz(n_samples=20, n_chains=2, n_records=7)
    assert data["posterior"]["probability"].shape == (2, 20)
    assert data["prior_predictive"]["y"].shape == (2, 20, 7)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_records": 5}, "X must be given"),
        ({"X": np.zeros((2, 3))}, "X must have shape"),
        ({"X": np.zeros((0, 1))}, "at least one"),
        ({"X": np.zeros((2, 1)), "n_records": 2}, "n_records must not be given"),
        ({"n_chains": 0}, "n_chains"),
    ],
)
def test_arviz_refuses_points_that_the_model_does_not_take(posterior, options, match):
    pytest.importorskip("arviz", reason="needs the extra dpinfer[arviz]")
    with pytest.raises(ValueError, match=match):
        posterior.to_arviz(n_samples=2, **options)


class Tree:
    """What both versions return, as far as it is used."""

    def __init__(self, groups):
        self.attrs = {}
        self.groups = {name: Tree(()) for name in groups}

    def __getitem__(self, name):
        return self.groups[name]


@pytest.mark.parametrize("version", ["0.23.4", "1.0.0"])
def test_arviz_calls_fit_both_major_versions(posterior, monkeypatch, version):
    calls = []

    def from_dict(*args, dims, coords, **kwargs):
        calls.append((args, kwargs, dims, coords))
        return Tree(args[0] if args else kwargs)

    monkeypatch.setitem(__import__("sys").modules, "arviz", SimpleNamespace(__version__=version, from_dict=from_dict))
    data = posterior.to_arviz(n_samples=3, n_chains=1)
    assert data.attrs == data["posterior"].attrs == data["prior"].attrs
    assert data.attrs["guarantee"] == str(posterior.guarantee)
    ((args, kwargs, dims, coords),) = calls
    groups = args[0] if args else kwargs
    assert bool(kwargs) == version.startswith("0")
    assert set(groups["posterior"]) == {"coef", "intercept"}
    assert (dims, coords) == ({"coef": ["feature"]}, {"feature": ["coef[0]"]})


def test_arviz_missing_names_the_extra(posterior, monkeypatch):
    real = builtins.__import__

    def fake(name, *args, **kwargs):
        if name == "arviz":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(BackendUnavailableError, match=r"dpinfer\[arviz\]"):
        posterior.to_arviz()


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"approximation": "vi"}, ValueError, "approximation must be one of"),
        ({"hessian": "block"}, ValueError, "hessian must be one of"),
        ({"prior": "flat"}, ValueError, "prior must be one of"),
        ({"prior": 3.0}, TypeError, "prior must be a string or a TracePrior"),
        ({"extra_noise": 1}, TypeError, "extra_noise must be a bool"),
        ({"progress": "yes"}, TypeError, "progress must be a bool"),
        ({"seed": -1}, ValueError, "seed"),
        ({"n_threads": 0}, ValueError, "n_threads"),
        ({"n_samples": 10}, ValueError, "n_samples must not be given"),
        ({"n_warmup": 10}, ValueError, "n_warmup must not be given"),
        ({"hessian": "full", "n_samples": 0}, ValueError, "n_samples must be at least 1"),
        (
            {"approximation": "laplace", "hessian": "full", "prior": "model"},
            ValueError,
            "approximation must be 'exact' with hessian='full'",
        ),
        (
            {"approximation": "naive", "hessian": "tied"},
            ValueError,
            "approximation must be 'exact' with hessian='tied'",
        ),
        ({"hessian": "full", "prior": "empirical"}, ValueError, "prior must be 'model' or 'weak' with hessian='full'"),
        ({"model": "logistic"}, TypeError, "model must be a Model"),
        ({"model": LogisticRegression(n_features=3)}, ValueError, "model must have 2 parameters"),
        ({"prior": TracePrior(np.zeros(3), 1.0, 0.0, 1.0)}, ValueError, "prior.optimum_loc must have length 4, got 3"),
    ],
)
def test_bad_arguments_are_named(changes, error, match):
    with pytest.raises(error, match=match):
        noise_aware_posterior(mean_field_release(steps=50), **changes)


def test_tied_refuses_other_releases(rng):
    x = rng.normal(size=(50, 2))
    with pytest.raises(ValueError, match="hessian='tied' needs"):
        noise_aware_posterior(oracle.point_release(x, x, 1.0), hessian="tied")


def test_only_releases_are_taken():
    with pytest.raises(TypeError, match="release must be a Release"):
        noise_aware_posterior(np.zeros(3))
    with pytest.raises(ValueError, match="kind"):
        noise_aware_posterior(mean_field_release(steps=50).replace(model_spec={"kind": "Unknown"}))
    assert isinstance(noise_aware_posterior(mean_field_release(steps=50)), Posterior)


@pytest.mark.parametrize(
    ("fields", "error", "match"),
    [
        ((0.0, 0.0, 0.0, 1.0), ValueError, "optimum_scale must be positive"),
        ((0.0, 1.0, 0.0, -1.0), ValueError, "raw_hessian_scale must be positive"),
        ((0.0, 1.0, -1e4, 1.0), ValueError, "raw_hessian_loc must be at least"),
        ((np.inf, 1.0, 0.0, 1.0), ValueError, "optimum_loc must be finite"),
        (("zero", 1.0, 0.0, 1.0), TypeError, "optimum_loc must be an array"),
        ((np.zeros((2, 2)), 1.0, 0.0, 1.0), ValueError, "one-dimensional"),
    ],
)
def test_bad_priors_are_named(fields, error, match):
    with pytest.raises(error, match=match):
        TracePrior(*fields)


def test_mixture_quantiles_invert_the_distribution_function(rng):
    """Components with very different widths, far apart and degenerate."""
    weight = np.array([0.2, 0.3, 0.5])
    mean, variance = np.array([-50.0, 0.0, 3.0]), np.array([1e-8, 4.0, 0.01])
    mixtures = NormalMixtures(np.array([0, 3]), weight, mean, variance)
    marginals = ThetaMarginals(mixtures, None)
    levels = np.array([1e-9, 0.1, 0.19999, 0.20001, 0.5, 0.999, 1.0 - 1e-9])
    got = marginals.quantile(levels)[:, 0]
    np.testing.assert_allclose(special.ndtr((got[:, None] - mean) / np.sqrt(variance)) @ weight, levels, rtol=1e-5)
    draws = mixtures.draw(50_000, rng)[:, 0]
    assert (draws < -25.0).mean() == pytest.approx(0.2, abs=6.0 * 0.4 / np.sqrt(50_000))


def test_gauss_rule_integrates_polynomials(rng):
    points, weights = rng.normal(size=200), rng.uniform(size=200)
    weights /= weights.sum()
    nodes, rule = gauss_rule(points, weights, 6)
    for degree in range(12):
        assert rule @ nodes**degree == pytest.approx(weights @ points**degree, rel=1e-10, abs=1e-12)
    single, one = gauss_rule(np.full(5, 3.0), np.full(5, 0.2))
    np.testing.assert_allclose(single, [3.0])
    np.testing.assert_array_equal(one, [1.0])


@pytest.mark.parametrize(
    ("approximation", "hessian", "computed"),
    [
        ("exact", "diagonal", "quadrature"),
        ("exact", "full", "sampled"),
        ("laplace", "diagonal", "normal"),
        ("naive", "auto", "plug-in"),
    ],
)
def test_how_a_posterior_was_computed_is_said(rng, approximation, hessian, computed):
    x = rng.normal(size=(400, 2))
    release = oracle.point_release(x, x + rng.normal(size=x.shape), 1.0)
    posterior = noise_aware_posterior(release, approximation=approximation, hessian=hessian, burn_in=0)
    assert posterior.computed == computed
    assert computed in repr(posterior)
