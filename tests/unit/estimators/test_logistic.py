"""The estimator: conventions, refusals, and what it keeps."""

import functools
import pickle

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import Composed
from dpinfer.errors import (
    BudgetExceededError,
    FallbackWarning,
    PrivacyLeakWarning,
    RecordError,
    RepeatedSpendingWarning,
)
from dpinfer.estimators import logistic, private
from dpinfer.estimators.logistic import RECIPES
from dpinfer.estimators.records import typical_norm
from dpinfer.mechanism import private_run
from dpinfer.testing import InsecureRNG

SECRET = 987654.321


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(2000, 3))
    y = rng.uniform(size=2000) < 1.0 / (1.0 + np.exp(-(2.0 * X[:, 0] - X[:, 1] + 0.5)))
    return X, np.where(y, "yes", "no")


def make(**changes):
    settings = {
        "n_records": 2000,
        "classes": ("no", "yes"),
        "data_bounds": (-1.0, 1.0),
        "epsilon": 2.0,
        "random_source": functools.partial(InsecureRNG, 5),
        "n_threads": 1,
    }
    if changes.get("method", "dpvi") not in ("auto", "newton"):
        settings |= {"method": "dpvi", "n_steps": 1000}
    return dpi.BayesianLogisticRegression(**{**settings, **changes})


@pytest.fixture(scope="module")
def fitted(records):
    return make().fit(*records)


@pytest.fixture
def unspent(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the mechanism started")

    monkeypatch.setattr(logistic, "run_dpvi", refuse)


@pytest.fixture
def undrawn(monkeypatch):
    """Fail the test if the private mechanism gets as far as drawing."""

    def refuse(*args, **kwargs):
        raise AssertionError("the mechanism drew")

    monkeypatch.setattr(private_run.PrivateRun, "begin", refuse)


def test_attributes(fitted, records):
    X, y = records
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.n_features_in_ == 3
    assert not hasattr(fitted, "feature_names_in_")
    assert fitted.coef_.shape == (1, 3)
    assert fitted.intercept_.shape == (1,)
    np.testing.assert_array_equal(fitted.coef_[0], fitted.posterior_.mean[:3])
    assert fitted.privacy_.epsilon <= 2.0
    assert fitted.release_.n_records == 2000
    proba = fitted.predict_proba(X)
    assert proba.shape == (2000, 2)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    again, spread = fitted.predict_proba(X[:5], return_std=True)
    np.testing.assert_array_equal(again, proba[:5])
    assert np.all((spread > 0.0) & (spread < 0.5))
    np.testing.assert_array_equal(fitted.predict(X), np.where(proba[:, 1] > 0.5, "yes", "no"))
    assert fitted.score(X, y) == pytest.approx(np.mean(fitted.predict(X) == y))
    weights = np.zeros(2000)
    weights[0] = 1.0
    assert fitted.score(X, y, sample_weight=weights) == float(fitted.predict(X[:1])[0] == y[0])


def test_learns_the_signs(fitted):
    assert fitted.coef_[0, 0] > 0.5
    assert fitted.coef_[0, 1] < 0.0


def test_same_source_same_fit_and_default_source_differs(fitted, records):
    again = make().fit(*records)
    np.testing.assert_array_equal(again.coef_, fitted.coef_)
    private = [make(random_source=None, n_steps=50).fit(*records) for _ in range(2)]
    assert not np.array_equal(private[0].coef_, private[1].coef_)
    assert private[0].release_.epsilon <= 2.0
    with pytest.raises(dpi.errors.InsecureReleaseError):
        _ = fitted.release_.epsilon


def test_what_is_read_from_the_data_is_named_in_a_warning(records):
    with pytest.warns(PrivacyLeakWarning, match="n_records and classes were"):
        model = make(n_records=None, classes=None, n_steps=20).fit(*records)
    for name in ("classes were", "number of records was"):
        for text in (model.release_.guarantee, repr(model.posterior_)):
            assert f"the {name} read from the private records" in text
    with pytest.warns(PrivacyLeakWarning, match="^n_records was"):
        model = make(n_records=None, n_steps=20).fit(*records)
    assert model.release_.n_records == 2000
    assert len(model.release_.leaks) == 1
    # Neighbours under the other relations have as many records: there is nothing to mark.
    with pytest.warns(PrivacyLeakWarning):
        whole = make(n_records=None, n_steps=20, sample_rate=1.0, adjacency="replace_one").fit(*records)
    assert whole.release_.leaks == ()


def test_clipping_norm_is_data_independent(records):
    X, y = records
    bounds = np.array([[-1.0, 1.0]] * 3)
    expected = np.sqrt(3 / 3 + 1.0)
    assert typical_norm(bounds, fit_intercept=True) == pytest.approx(expected)
    draws = np.random.default_rng(1).uniform(-2.0, 5.0, size=(200_000, 2))
    simulated = np.sqrt(np.mean(np.sum(draws**2, axis=1)))
    assert typical_norm(np.array([[-2.0, 5.0]] * 2), fit_intercept=False) == pytest.approx(simulated, rel=0.01)
    for scale in (1.0, 0.01):
        assert make(n_steps=20).fit(scale * X, y).release_.max_grad_norm == pytest.approx(expected)
    assert make(n_steps=20, recipe="tied").fit(X, y).release_.max_grad_norm == pytest.approx(2.0 * expected)


def test_values_are_clipped_to_the_bounds(fitted, records):
    X, y = records
    outside = X.copy()
    outside[:, 2] = np.where(X[:, 2] > 0, 1.0, -1.0)
    far = outside.copy()
    far[:, 2] *= SECRET
    np.testing.assert_array_equal(make(n_steps=50).fit(far, y).coef_, make(n_steps=50).fit(outside, y).coef_)
    with pytest.warns(UserWarning, match="X has points beyond the public bounds in '2'"):
        beyond = fitted.predict_proba(far)
    np.testing.assert_array_equal(beyond, fitted.predict_proba(outside))


def test_no_intercept(records):
    model = make(fit_intercept=False, n_steps=20).fit(*records)
    assert model.intercept_.tolist() == [0.0]
    assert model.coef_.shape == (1, 3)


def corrupted(X, change):
    X = X.copy()
    if change == "nan":
        X[7, 1] = np.nan
    elif change == "inf":
        X[7, 1] = np.inf
    elif change == "text":
        X = X.astype(object)
        X[7, 1] = f"text {SECRET}"
    elif change == "one dimension":
        X = X[:, 0]
    elif change == "no columns":
        X = X[:, :0]
    elif change == "complex":
        X = X + 1j
    return X


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("change", ["nan", "inf", "text", "one dimension", "no columns", "complex"])
def test_bad_records_are_refused_undrawn_and_unquoted(records, change):
    X, y = records
    X = X.copy()
    X[0, 0] = SECRET
    bad = corrupted(X, change)
    with pytest.raises(RecordError, match="X") as caught:
        make().fit(bad, y[: len(bad)])
    error = caught.value
    assert "987654" not in repr(error)
    assert error.__context__ is None
    assert "7" not in str(error)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("labels", "word"),
    [
        (lambda y: y[:-1], "as many entries"),
        (lambda y: np.where(np.arange(len(y)) == 3, "SECRET", y), "labels in classes"),
        (lambda y: None, "requires y"),
        (lambda y: np.column_stack([y, y]), "one-dimensional"),
    ],
)
def test_bad_labels_are_refused_undrawn(records, labels, word):
    X, y = records
    with pytest.raises(RecordError, match=word) as caught:
        make().fit(X, labels(y))
    assert "SECRET" not in repr(caught.value)


@pytest.mark.usefixtures("unspent")
def test_label_sets_read_from_the_data(records):
    X, _ = records
    for y, word in (
        (np.zeros(2000), "one class"),
        (np.arange(2000) % 3, "Only binary"),
        (np.linspace(0, 1, 2000), "Unknown label type"),
    ):
        with pytest.raises(RecordError, match=word):
            make(classes=None).fit(X, y)


@pytest.mark.usefixtures("unspent")
@pytest.mark.parametrize(
    ("settings", "error", "word"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon"),
        ({"epsilon": -1.0}, ValueError, "epsilon"),
        ({"epsilon": "1"}, TypeError, "epsilon"),
        ({"delta": 0.0}, ValueError, "delta"),
        ({"delta": 1.0}, ValueError, "delta"),
        ({"sample_rate": 0.0}, ValueError, "sample_rate"),
        ({"sample_rate": 1.5}, ValueError, "sample_rate"),
        ({"n_steps": 0}, ValueError, "n_steps"),
        ({"prior_scale": 0.0}, ValueError, "prior_scale"),
        ({"max_grad_norm": 0.0}, ValueError, "max_grad_norm"),
        ({"max_grad_norm": "big"}, ValueError, "max_grad_norm"),
        ({"data_bounds": None}, ValueError, "max_grad_norm"),
        ({"data_bounds": (1.0, 1.0)}, ValueError, "data_bounds"),
        ({"data_bounds": [[0, 1]] * 2}, ValueError, "data_bounds"),
        ({"data_bounds": (0.0, np.inf)}, ValueError, "data_bounds"),
        ({"data_bounds": (0.0, 5e-324)}, ValueError, "data_bounds"),
        ({"data_bounds": (-1e200, 1e200)}, ValueError, "data_bounds"),
        ({"prior_scale": 1e-31}, ValueError, "prior_scale"),
        ({"prior_scale": 1e200}, ValueError, "prior_scale"),
        ({"prior_scale": 1e-6}, ValueError, "prior_scale must be at least"),
        ({"max_grad_norm": 1e-20}, ValueError, "steps would diverge"),
        ({"learning_rate": -1.0}, ValueError, "learning_rate must"),
        ({"max_grad_norm": 1e31}, ValueError, "max_grad_norm"),
        ({"recipe": "magic"}, ValueError, "recipe"),
        ({"classes": ("a",)}, ValueError, "classes"),
        ({"classes": ("a", "a")}, ValueError, "classes"),
        ({"method": "magic"}, ValueError, "method"),
        ({"hessian": "round"}, ValueError, "hessian"),
        ({"method": "dpvi", "approximation": "laplace", "hessian": "tied"}, ValueError, "hessian"),
        ({"prior": "magic"}, ValueError, "prior"),
        ({"prior": 3}, TypeError, "prior"),
        ({"prior": "empirical", "hessian": "full"}, ValueError, "prior"),
        ({"burn_in": "soon"}, ValueError, "burn_in"),
        ({"burn_in": 1.5}, ValueError, "burn_in"),
        ({"burn_in": 999}, ValueError, "burn_in"),
        ({"n_steps": 1}, ValueError, "burn_in"),
        ({"epsilon": 1e-9, "n_steps": 10**6}, BudgetExceededError, None),
    ],
)
def test_bad_parameters_are_refused_unspent(records, settings, error, word):
    with pytest.raises(error, match=word) as caught:
        make(**settings).fit(*records)
    # The estimator's own names, not those of what it calls.
    assert "target_" not in str(caught.value)


def test_failed_post_processing_keeps_the_release(records, monkeypatch):
    def fail(*args, **kwargs):
        raise dpi.errors.NumericalError("no")

    monkeypatch.setattr(private, "noise_aware_posterior", fail)
    model = make(n_steps=20)
    with pytest.raises(dpi.errors.NumericalError):
        model.fit(*records)
    assert model.release_.n_steps == 20
    with pytest.raises(ValueError, match="not fitted"):
        model.predict(records[0])


def test_prediction_refusals(fitted, records):
    with pytest.raises(ValueError, match="not fitted"):
        make().predict(records[0])
    with pytest.raises(ValueError, match="2 features"):
        fitted.predict(records[0][:, :2])
    with pytest.raises(RecordError, match="finite"):
        fitted.predict_proba(np.full((1, 3), np.nan))


class Frame:
    """The part of a data frame that matters here."""

    def __init__(self, values, columns):
        self.values, self.columns = values, columns

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype=dtype)


def test_column_names(records):
    X, y = records
    model = make(n_steps=20).fit(Frame(X, ["a", "b", "c"]), y)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert model.release_.names == ("a", "b", "c", "intercept")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(Frame(X, ["a", "c", "b"]))
    with pytest.warns(RepeatedSpendingWarning):
        model.fit(X, y)
    assert not hasattr(model, "feature_names_in_")


def test_parameters():
    model = make(epsilon=3.0)
    assert model.get_params()["epsilon"] == 3.0
    assert model.set_params(delta=1e-6) is model
    assert model.delta == 1e-6
    with pytest.raises(ValueError, match="epsilonn"):
        model.set_params(epsilonn=1.0)
    assert "epsilon=3.0" in repr(model)
    assert "hessian" not in repr(model)


def test_pickles(fitted, records):
    model = pickle.loads(pickle.dumps(make()))
    assert model.random_source() is not None
    assert repr(model) == repr(make())
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(records[0]), fitted.predict_proba(records[0]))
    assert not again.release_.secure
    assert again.privacy_ == fitted.privacy_


def test_without_scikit_learn(records, monkeypatch):
    import builtins

    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    X, y = records
    model = make(n_steps=20)
    with pytest.raises(ValueError, match="not fitted"):
        model.predict(X)
    with pytest.warns(UserWarning, match="column-vector"):
        model.fit(X, y[:, None])
    assert model.predict(X[:2]).shape == (2,)


def test_all_recipes_run_and_have_steps_of_their_own(records):
    X, y = records
    norms = {}
    for recipe in RECIPES:
        model = make(recipe=recipe, n_steps=40).fit(X, y)
        assert model.release_.settings["recipe"] == recipe
        norms[recipe] = model.release_.max_grad_norm
    assert norms["steady"] == norms["tied"] == 2.0 * norms["plain"] == 2.0 * norms["paper"]


@pytest.mark.parametrize(
    "settings",
    [
        *({"approximation": name} for name in ("exact", "laplace", "naive", "averaged")),
        *({"hessian": hessian} for hessian in ("auto", "diagonal", "full", "tied")),
        *({"prior": prior} for prior in ("auto", "weak", "model")),
        {"prior": "model", "hessian": "full"},
        {"prior": "empirical", "hessian": "diagonal"},
        *({"burn_in": burn_in} for burn_in in ("auto", 0, 0.5, 20)),
        *({"accountant": accountant} for accountant in ("pld", "rdp")),
        *({"loss": loss} for loss in ("split", "per_example")),
        *({"expectation": expectation} for expectation in ("quadrature", "monte_carlo")),
        {"fit_intercept": False},
        {"learning_rate": 0.01, "grad_scale": 1.0},
        # The least that is stable is 0.054.
        {"prior_scale": 0.056},
        {"prior_scale": 1e30},
    ],
)
def test_every_accepted_value_gives_a_posterior(records, settings):
    quick = {"method": "dpvi", "approximation": "exact", "hessian": "diagonal", "n_steps": 60, "sample_rate": 0.5}
    model = make(**{**quick, **settings}).fit(*records)
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.predict_proba(records[0][:5])).all()


def test_the_name_of_an_approximation_before_0_2_still_works(records):
    with pytest.warns(DeprecationWarning, match="method= is now approximation="):
        model = make(method="averaged", hessian="diagonal", n_steps=60, sample_rate=0.5).fit(*records)
    assert isinstance(model.release_, dpi.GradientTrace)
    assert model.posterior_.approximation == "averaged"


def test_the_default_is_what_a_plan_chooses(records):
    """The published trace had wrong signs at the base rate's accuracy where nobody had asked for it."""
    model = dpi.BayesianLogisticRegression(n_records=2000, classes=("no", "yes"), data_bounds=(-1.0, 1.0))
    assert model.method == "auto"
    chosen = dpi.plan_fit(dpi.models.LogisticRegression(3, fit_intercept=True), epsilon=1.0, delta=1e-5, n_records=2000)
    assert model.fit(*records).privacy_.to_dict().keys() == chosen.mechanism.to_dict().keys()
    assert isinstance(model.release_, dpi.PopulationRelease)


@pytest.mark.parametrize("method", ["newton", "auto"])
def test_the_newton_route_is_a_fit_like_any_other(records, method):
    X, y = records
    model = make(method=method).fit(X, y)
    assert isinstance(model.release_, dpi.PopulationRelease)
    assert isinstance(model.privacy_, dpi.NewtonPlan)
    assert model.privacy_.epsilon <= 2.0
    low, high = model.posterior_.quantile([0.0005, 0.9995])
    assert np.all((low < [2.0, -1.0, 0.0, 0.5]) & (high > [2.0, -1.0, 0.0, 0.5]))
    assert model.score(X, y) > 0.7
    assert model.spent().epsilon == pytest.approx(model.privacy_.epsilon)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.coef_, model.coef_)
    cloned = model.__sklearn_clone__().set_params(method="dpvi", n_steps=60, sample_rate=0.5, hessian="diagonal")
    with pytest.warns(RepeatedSpendingWarning):
        cloned.fit(X, y)
    assert isinstance(cloned.release_, dpi.GradientTrace)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"recipe": "tied"}, "recipe must be left"),
        ({"loss": "split"}, "loss must be left"),
        ({"expectation": "quadrature"}, "expectation must be left"),
        ({"grad_scale": 1.0}, "grad_scale must be left"),
        ({"learning_rate": 0.1}, "learning_rate must be left"),
        ({"max_grad_norm": 1.0}, "max_grad_norm must be left"),
        ({"hessian": "tied"}, "hessian must be left"),
        ({"burn_in": 10}, "burn_in must be left"),
        ({"n_steps": 20}, "n_steps must be left"),
        ({"sample_rate": 0.5}, "sample_rate must be left"),
        ({"accountant": "rdp"}, "accountant must be left"),
        ({"data_bounds": None}, "data_bounds must be given"),
        ({"prior": "weak"}, "prior must be one of"),
        ({"adjacency": "zero_out"}, "adjacency"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_the_newton_route_refuses_settings_of_a_trace_unspent(records, account, settings, word):
    with pytest.raises(ValueError, match=word):
        make(method="newton", ledger=account, random_source=None, **settings).fit(*records)
    assert account.runs() == ()


class Watched:
    """Records that tell when they are looked at; their shape is public."""

    def __init__(self, values, look):
        self.values, self.shape, self.look = values, values.shape, look

    def __array__(self, dtype=None, copy=None):
        self.look()
        return self.values


@pytest.fixture
def account(tmp_path):
    return dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people")


def test_the_ledger_is_charged_before_the_records_are_looked_at(records, account):
    seen = []
    watched = [Watched(array, lambda: seen.append([item.status for item in account.runs()])) for array in records]
    make(ledger=account, random_source=None, n_steps=20).fit(*watched)
    assert len(seen) == 2
    assert all(status == ["started"] for status in seen)


@pytest.mark.parametrize("change", ["nan", "text", "label"])
def test_a_refusal_that_depends_on_records_stays_charged(records, account, change):
    X, y = records
    bad = (X, np.where(np.arange(len(y)) == 3, "SECRET", y)) if change == "label" else (corrupted(X, change), y)
    with pytest.raises(RecordError) as caught:
        make(ledger=account, random_source=None).fit(*bad)
    assert "charge of the run stands" in caught.value.__notes__[0]
    assert "SECRET" not in repr(caught.value)
    assert [item.status for item in account.runs()] == ["started"]
    with pytest.warns(PrivacyLeakWarning, match="refund_refused"):
        refunding = dpi.PrivacyLedger(account.path).dataset("people", refund_refused=True)
    with pytest.raises(RecordError):
        make(ledger=refunding, random_source=None).fit(*bad)
    assert [item.status for item in account.runs()] == ["started", "cancelled"]


def test_public_refusals_are_not_charged(records, account):
    X, y = records
    for settings, word in (
        ({"epsilon": -1.0}, "epsilon"),
        ({"data_bounds": [[0, 1]] * 2}, "data_bounds"),
        ({"classes": ("a", "a")}, "classes"),
        ({"classes": None}, "classes must be given with ledger"),
        ({"n_records": None}, "n_records must be given with ledger"),
        ({"n_threads": 0}, "n_threads"),
        ({"recipe": "tied", "learning_rate": 0.1}, "recipe"),
        ({"method": "dpvi", "approximation": "laplace", "hessian": "tied"}, "hessian"),
    ):
        with pytest.raises(ValueError, match=word):
            make(ledger=account, random_source=None, **settings).fit(X, y)
    with pytest.raises(TypeError, match="X must have a two-dimensional shape"):
        make(ledger=account, random_source=None).fit(X.tolist(), y)
    assert account.runs() == ()


def test_a_posterior_that_fails_falls_back_with_a_warning(records):
    with pytest.warns(FallbackWarning, match="hessian='full', prior='weak'.*computed instead"):
        model = make(hessian="full", prior="weak", n_steps=20).fit(*records)
    assert model.posterior_.hessian == "diagonal"
    assert np.isfinite(model.coef_).all()


def test_what_was_paid_for_survives_any_failure_after_it(records, monkeypatch):
    for failure in (ValueError, KeyboardInterrupt, MemoryError):

        def fail(*args, error=failure, **kwargs):
            raise error("no")

        model = make(n_steps=20).fit(*records)
        monkeypatch.setattr(private, "noise_aware_posterior", fail)
        with pytest.warns(RepeatedSpendingWarning), pytest.raises(failure) as caught:
            model.fit(*records)
        monkeypatch.undo()
        assert caught.value.release is model.release_
        assert "release_ of the estimator" in caught.value.__notes__[0]
        # Nothing of the fit before is left beside the new release.
        assert not hasattr(model, "coef_")
        with pytest.raises(ValueError, match="not fitted"):
            model.predict(records[0])


def test_repeated_fits_are_told_once_with_their_total(records):
    model = make(n_steps=20, hessian="diagonal")
    with pytest.raises(ValueError, match="nothing has been spent"):
        model.spent()
    model.fit(*records)
    assert model.spent().epsilon == model.privacy_.epsilon
    clone = model.__sklearn_clone__()
    assert repr(clone) == repr(model)
    assert not hasattr(clone, "release_")
    with pytest.warns(RepeatedSpendingWarning, match="number 2") as caught:
        clone.fit(*records)
    together = dpi.account(Composed((model.privacy_.event,) * 2), delta=1e-5).epsilon
    assert f"epsilon <= {together:.4g} at delta = 1e-05" in str(caught[0].message)
    assert model.spent().epsilon == clone.spent().epsilon == together
    model.fit(*records)
    assert model.spent().epsilon > together
    # Another estimator is another family; a copy in another process cannot be counted, and says so.
    make(n_steps=20, hessian="diagonal").fit(*records)
    sent = pickle.loads(pickle.dumps(clone))
    with pytest.warns(RepeatedSpendingWarning, match="another process"):
        sent.fit(*records)
