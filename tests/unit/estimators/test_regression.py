"""Linear, Poisson and probit estimators: units, refusals, and what they keep."""

import functools
import pickle
import warnings

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import FallbackWarning, PrivacyLeakWarning, RecordError
from dpinfer.mechanism import private_run
from dpinfer.testing import InsecureRNG

N = 3000
SOURCE = functools.partial(InsecureRNG, 5)
LINEAR = {"data_bounds": [(0, 10), (-1, 1)], "target_bounds": (0, 100), "n_records": N, "epsilon": 3.0}
COUNT = {"data_bounds": [(0, 10), (-1, 1)], "n_records": N, "epsilon": 8.0}
CLASSES = {**COUNT, "classes": ("no", "yes")}


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0, 10, N), rng.uniform(-1, 1, N)])
    predictor = 0.2 * X[:, 0] - 0.5 * X[:, 1]
    return {
        "X": X,
        "number": 20 + 5 * X[:, 0] - 8 * X[:, 1] + rng.normal(scale=4, size=N),
        "count": rng.poisson(np.exp(predictor)).astype(float),
        "class": np.where(predictor - 1 + rng.normal(size=N) > 0, "yes", "no"),
    }


def quietly(estimator, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return estimator.fit(X, y)


@pytest.fixture(scope="module")
def linear(records):
    return dpi.BayesianLinearRegression(**LINEAR, random_source=SOURCE).fit(records["X"], records["number"])


def test_linear_coefficients_are_in_units(records, linear):
    rows = np.column_stack([records["X"], np.ones(N)])
    exact = np.linalg.lstsq(rows, records["number"], rcond=None)[0]
    assert linear.coef_ == pytest.approx(exact[:2], abs=0.5)
    assert linear.intercept_ == pytest.approx(exact[2], abs=1.5)
    points = records["X"][:5]
    mean, spread = linear.predict(points, return_std=True)
    assert mean == pytest.approx(points @ linear.coef_ + linear.intercept_, abs=0.2)
    assert np.all((spread > 3.5) & (spread < 4.5))
    assert linear.score(records["X"], records["number"]) > 0.9
    assert linear.spent().epsilon > 0.0


def test_a_pickle_predicts_the_same(linear, records):
    again = pickle.loads(pickle.dumps(linear))
    assert np.array_equal(again.predict(records["X"][:9]), linear.predict(records["X"][:9]))
    assert np.array_equal(again.posterior_.mean, linear.posterior_.mean)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(
    ("kind", "options", "response"),
    [("Linear", LINEAR, "number"), ("Poisson", COUNT, "count"), ("Probit", CLASSES, "class"),
     ("Multinomial", CLASSES, "class")],
)  # fmt: skip
def test_the_posterior_is_in_the_units_of_the_coefficients(kind, options, response, fit_intercept, records, tmp_path):
    estimator = getattr(dpi, f"Bayesian{kind}Regression")(fit_intercept=fit_intercept, random_source=SOURCE, **options)
    X, posterior = records["X"], quietly(estimator, records["X"], records[response]).posterior_
    weights = np.append(estimator.coef_, estimator.intercept_ if fit_intercept else [])
    size = len(weights)
    np.testing.assert_array_equal(posterior.mean[:size], weights)
    # The same numbers by hand: in scaled units, from draws.
    theta = posterior.sample(200, seed=1, space="unconstrained")
    scale = np.diff(options["data_bounds"], axis=1)[:, 0] / np.sqrt(12.0)
    offset = np.mean(options["data_bounds"], axis=1)
    shift, unit = (50.0, 100.0 / np.sqrt(12.0)) if kind == "Linear" else (0.0, 1.0)
    if not fit_intercept:
        scale, offset = np.hypot(scale, offset), np.zeros(2)
        shift, unit = (0.0, np.hypot(50.0, unit)) if kind == "Linear" else (0.0, 1.0)
    draws = posterior.sample(200, seed=1)
    np.testing.assert_allclose(draws[:, :2], unit * theta[:, :2] / scale, rtol=1e-12)
    if fit_intercept:
        by_hand = shift + unit * (theta[:, 2] - theta[:, :2] @ (offset / scale))
        np.testing.assert_allclose(draws[:, 2], by_hand, rtol=1e-9)
    np.testing.assert_allclose(np.diag(posterior.cov)[:2], posterior.stddev[:2] ** 2, rtol=0.05)
    low, high = posterior.interval(0.9)[:, :size]
    np.testing.assert_allclose(high - low, 2 * 1.645 * posterior.stddev[:size], rtol=0.1)
    # The causes sum to the variance, in these units.
    np.testing.assert_allclose(posterior.decompose().total[:size], posterior.stddev[:size] ** 2, rtol=1e-6)
    assert "nan" not in str(posterior.summary())
    posterior.save(tmp_path / "posterior")
    again = dpi.load_posterior(tmp_path / "posterior", model=posterior.model)
    np.testing.assert_array_equal(again.mean, posterior.mean)
    np.testing.assert_array_equal(again.sample(9, seed=2), posterior.sample(9, seed=2))
    if kind != "Multinomial":
        predicted = estimator.predict_proba(X[:5])[:, 1] if kind == "Probit" else estimator.predict(X[:5])
        # Both average over 2000 draws of their own.
        spread = estimator.predict(X[:5], return_std=True)[1]
        assert np.all(np.abs(posterior.predict_mean(X[:5]) - predicted) < 5.0 * np.sqrt(2.0 / 2000.0) * spread)
        drawn = np.mean([y.mean() for _, y in posterior.synthetic(X[:500], n_sets=20, seed=3)])
        observed = records[response] if response != "class" else records[response] == "yes"
        assert drawn == pytest.approx(observed[:500].mean(), rel=0.25)


def test_draws_for_arviz_are_in_units(linear, records):
    pytest.importorskip("arviz", reason="needs the extra dpinfer[arviz]")
    groups = linear.posterior_.to_arviz(n_samples=100, n_chains=1, X=records["X"][:3])
    assert np.all(np.abs(groups["posterior"]["coef"].values[0] - linear.coef_) < 6.0 * linear.posterior_.stddev[:2])
    # The prior's median of the noise variance is 0.025 in scaled units, of 28.9 to one of the response.
    assert 15.0 < np.median(groups["prior"]["noise_variance"]) < 30.0
    assert abs(groups["posterior_predictive"]["y"].values.mean() - linear.predict(records["X"][:3]).mean()) < 1.5


def test_counts_and_classes(records):
    count = quietly(dpi.BayesianPoissonRegression(**COUNT, random_source=SOURCE), records["X"], records["count"])
    assert np.all(count.predict(records["X"][:5]) > 0)
    assert count.coef_[0] > 0.0 > count.coef_[1]
    mean, spread = count.predict(records["X"][:5], return_std=True)
    assert np.all(spread >= np.sqrt(mean))
    probit = quietly(dpi.BayesianProbitRegression(**CLASSES, random_source=SOURCE), records["X"], records["class"])
    assert probit.score(records["X"], records["class"]) > 0.55
    assert set(probit.predict(records["X"])) == {"no", "yes"}
    assert np.allclose(probit.predict_proba(records["X"][:4]).sum(axis=1), 1.0)
    probability, spread = probit.predict_proba(records["X"][:4], return_std=True)
    assert np.array_equal(probability, probit.predict_proba(records["X"][:4]))
    assert np.all((spread > 0.0) & (spread < 0.5))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_bounds": None}, "data_bounds must be given"),
        ({"target_bounds": None}, "target_bounds must be given"),
        ({"target_bounds": (3, 3)}, "target_bounds must have low < high"),
        ({"epsilon": 0.0}, "epsilon must"),
        ({"method": "emcee"}, "method must"),
        ({"adjacency": "zero_out"}, "adjacency must"),
        ({"prior_scale": -1.0}, "prior_scale must"),
    ],
)
def test_what_is_wrong_is_refused_before_a_run(changes, words, records, monkeypatch):
    def refuse(*arguments, **named):
        raise AssertionError("a run began")

    monkeypatch.setattr(private_run.PrivateRun, "begin", refuse)
    with pytest.raises(ValueError, match=words):
        dpi.BayesianLinearRegression(**{**LINEAR, **changes}).fit(records["X"], records["number"])


def test_records_are_looked_at_after_the_charge(records, tmp_path):
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(4.0, 1e-5))
    seen = []

    class Watched:
        def __init__(self, values):
            self._values, self.shape = values, values.shape

        def __array__(self, dtype=None, copy=None):
            seen.append(len(account.runs()))
            return np.asarray(self._values, dtype=dtype)

    model = dpi.BayesianLinearRegression(**LINEAR, ledger=account)
    model.fit(Watched(records["X"]), Watched(records["number"]))
    assert seen
    assert set(seen) == {1}
    with pytest.raises(ValueError, match="n_records must be given with ledger"):
        dpi.BayesianLinearRegression(**{**LINEAR, "n_records": None, "ledger": account}).fit(records["X"], [0.0])


def test_a_count_of_records_from_the_data_is_a_leak(records):
    model = dpi.BayesianLinearRegression(**{**LINEAR, "n_records": None})
    with pytest.warns(PrivacyLeakWarning, match="n_records was read"):
        model.fit(records["X"], records["number"])
    assert "number of records was read" in str(model.release_.guarantee)
    with pytest.raises(RecordError, match="y must hold numbers"):
        dpi.BayesianLinearRegression(**LINEAR).fit(records["X"], np.array(["a"] * N))


def test_several_classes(records):
    X, rng = records["X"], np.random.default_rng(8)
    weights = np.exp(np.column_stack([np.zeros(N), 0.4 * X[:, 0] - 2.0, -2.0 * X[:, 1]]))
    codes = (rng.random((N, 1)) * weights.sum(axis=1, keepdims=True) > weights.cumsum(axis=1)).sum(axis=1)
    y = np.array(["b", "a", "c"])[codes]
    options = {**COUNT, "classes": ("b", "a", "c"), "random_source": SOURCE}
    model = quietly(dpi.BayesianMultinomialRegression(**options), X, y)
    assert model.release_.names[:3] == ("a:x0", "a:x1", "a:intercept")
    assert model.classes_.tolist() == ["b", "a", "c"]
    assert model.coef_ == pytest.approx(np.array([[0.4, 0.0], [0.0, -2.0]]), abs=0.4)
    assert model.intercept_ == pytest.approx([-2.0, 0.0], abs=0.6)
    probability, spread = model.predict_proba(X[:50], return_std=True)
    truth = weights[:50] / weights[:50].sum(axis=1, keepdims=True)
    assert probability.sum(axis=1) == pytest.approx(np.ones(50))
    assert np.abs(probability - truth).max() < 0.2
    assert spread.shape == (50, 3)
    assert np.array_equal(model.predict(X[:50]), model.classes_[np.argmax(probability, axis=1)])
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(X[:9]), model.predict_proba(X[:9]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes": ("a",)}, "classes must hold at least two distinct labels"),
        ({"classes": ("a", "b", "a")}, "classes must hold at least two distinct labels"),
        ({"method": "dpvi"}, "method"),
        ({"data_bounds": None}, "data_bounds must be given"),
    ],
)
def test_what_is_wrong_of_several_classes_is_refused_before_a_run(options, words, records, monkeypatch):
    def refuse(*arguments, **named):
        raise AssertionError("a run began")

    monkeypatch.setattr(private_run.PrivateRun, "begin", refuse)
    model = dpi.BayesianMultinomialRegression(**{**COUNT, "classes": ("a", "b", "c"), **options})
    with pytest.raises(ValueError, match=words):
        model.fit(records["X"], records["class"])


def test_labels_that_are_not_public_classes_are_refused_without_a_value(records):
    model = dpi.BayesianMultinomialRegression(**{**COUNT, "classes": ("no", "maybe", "never")})
    with pytest.raises(RecordError, match="only the labels in classes") as caught:
        model.fit(records["X"], records["class"])
    assert "yes" not in str(caught.value)
    open_model = dpi.BayesianMultinomialRegression(**COUNT, random_source=SOURCE)
    with pytest.warns(PrivacyLeakWarning, match="classes was read"):
        quietly(open_model, records["X"], records["class"])
    assert open_model.classes_.tolist() == ["no", "yes"]


@pytest.mark.parametrize("name", ["Linear", "Poisson", "Probit", "Multinomial"])
def test_what_is_not_fitted_predicts_nothing(name):
    with pytest.raises(ValueError, match="not fitted"):
        getattr(dpi, f"Bayesian{name}Regression")().predict([[1.0]])
