"""scikit-learn's own checks of the estimator."""

import functools
import warnings

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import Composed
from dpinfer.errors import PrivacyLeakWarning, RepeatedSpendingWarning
from dpinfer.estimators.regression import PlannedRegression
from dpinfer.inference import PosteriorRequest
from dpinfer.testing import InsecureRNG

checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="needs the extra dpinfer[sklearn]")

# Checks that a private estimator cannot pass, each with the reason.
EXPECTED_FAILURES = {"check_estimators_empty_data_messages": "a fit without records is released as any other"}


def test_check_estimator():
    # The seeded source makes the checks repeatable; a private fit has no seed.  The number of records differs between
    # the checks, so it is left to the data, which warns.  The checks are of fits and arguments, not of posteriors, and
    # the full Hessian takes half a second in each of them; the test below fits with it.
    model = dpi.BayesianLogisticRegression(
        epsilon=8.0,
        method="dpvi",
        n_steps=200,
        sample_rate=0.5,
        hessian="diagonal",
        data_bounds=(-10.0, 10.0),
        random_source=functools.partial(InsecureRNG, 1),
        n_threads=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        # scikit-learn warns that the class is not derived from its own base, which would make it a dependency.
        warnings.simplefilter("ignore", UserWarning)
        results = checks.check_estimator(model, expected_failed_checks=EXPECTED_FAILURES, on_fail=None, on_skip=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert sum(result["status"] == "passed" for result in results) > 40


REGRESSIONS = [
    (dpi.BayesianLinearRegression, {"target_bounds": (-500.0, 500.0)}),
    (dpi.BayesianPoissonRegression, {}),
    (dpi.BayesianProbitRegression, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), REGRESSIONS)
def test_check_estimator_of_planned_regressions(kind, options, monkeypatch):
    # A fit of few records takes seconds where its posterior is sampled well; the checks compare fits, not posteriors.
    few = PosteriorRequest(n_samples=40, n_warmup=20)
    monkeypatch.setattr(PlannedRegression, "_posterior_request", lambda self: few)
    model = kind(
        epsilon=8.0,
        data_bounds=(-10.0, 10.0),
        random_source=functools.partial(InsecureRNG, 1),
        n_threads=1,
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        results = checks.check_estimator(model, expected_failed_checks=EXPECTED_FAILURES, on_fail=None, on_skip=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert sum(result["status"] == "passed" for result in results) > 40


def test_clone_and_model_selection():
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(600, 2))
    y = (X[:, 0] > 0).astype(int)
    model = dpi.BayesianLogisticRegression(
        n_records=600, classes=(0, 1), data_bounds=(-1, 1), method="dpvi", n_steps=300, epsilon=20.0, sample_rate=0.5
    )
    assert is_classifier(model)
    assert clone(model).get_params() == model.get_params()
    pipeline = make_pipeline(FunctionTransformer(), model)
    with pytest.warns(RepeatedSpendingWarning, match="number 2") as caught:
        scores = cross_val_score(pipeline, X, y, cv=3)
    assert scores.shape == (3,)
    # Said once, with what was spent; the pipeline's clones count with its estimator.
    assert len(caught) == 1
    assert "Without ledger= nothing adds up" in str(caught[0].message)
    one = dpi.plan_privacy(target_epsilon=20.0, target_delta=1e-5, sample_rate=0.5, n_steps=300)
    assert model.spent().epsilon == dpi.account(Composed((one.event,) * 3), delta=1e-5).epsilon
    assert model.spent().epsilon > 1.5 * one.epsilon


def test_grid_search_charges_each_fit(tmp_path):
    from sklearn.model_selection import GridSearchCV

    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people")
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(300, 2))
    model = dpi.BayesianLogisticRegression(
        n_records=300,
        classes=(0, 1),
        data_bounds=(-1, 1),
        method="dpvi",
        n_steps=20,
        hessian="diagonal",
        ledger=account,
    )
    search = GridSearchCV(model, {"prior_scale": [0.5, 1.0]}, cv=2)
    with pytest.warns(RepeatedSpendingWarning, match="data set 'people' is at"):
        search.fit(X, (X[:, 0] > 0).astype(int))
    # Two candidates on two folds, and the best one on all records.
    assert [item.status for item in account.runs()] == ["finished"] * 5
    assert search.best_estimator_.spent().epsilon == pytest.approx(account.spent(1e-5).epsilon, rel=1e-9)


def seeded(**options):
    given = {"epsilon": 8.0, "delta": 1e-5, "n_records": 400, "data_bounds": [(-1, 1)] * 2, "target_bounds": (-6, 6)}
    return dpi.BayesianLinearRegression(**(given | {"random_source": InsecureRNG(1), "n_threads": 1} | options))


def linear_records(seed=0, size=600):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(size, 2))
    return X, X @ [2.0, -1.0] + 0.5 * rng.normal(size=size)


@pytest.mark.filterwarnings("ignore::dpinfer.errors.RepeatedSpendingWarning")
def test_a_seeded_estimator_is_cloned_and_no_key_is_used_twice():
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate

    X, y = linear_records()
    model = seeded()
    first, second = clone(model), clone(clone(model))
    assert first.get_params() == model.get_params()
    one, two = (each.fit(X, y).release_ for each in (first, second))
    assert not np.allclose(one.scores, two.scores)
    assert not one.secure
    # Studies are repeatable: the same seed gives the same keys, in the order of the fits.
    scores = [cross_val_score(seeded(), X, y, cv=4) for _ in range(2)]
    np.testing.assert_array_equal(*scores)
    assert np.min(scores) > 0.5
    found = cross_validate(seeded(), X, y, cv=3, return_estimator=True)["estimator"]
    assert len({each.release_.scores.tobytes() for each in found}) == 3
    search = GridSearchCV(seeded(), {"prior_scale": [0.5, 2.0], "random_source": [InsecureRNG(5)]}, cv=2).fit(X, y)
    again = GridSearchCV(seeded(), {"prior_scale": [0.5, 2.0], "random_source": [InsecureRNG(5)]}, cv=2).fit(X, y)
    np.testing.assert_array_equal(search.cv_results_["mean_test_score"], again.cv_results_["mean_test_score"])


# Weights

WEIGHTS = dpi.models.SurveyWeights(largest=4.0, mean=2.0)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (dpi.BayesianLinearRegression, {"target_bounds": (-6, 6)}),
        (dpi.BayesianPoissonRegression, {}),
        (dpi.BayesianLogisticRegression, {"classes": (0, 1)}),
        (dpi.BayesianProbitRegression, {"classes": (0, 1)}),
    ],
)
def test_sample_weight_gives_the_weighted_population(kind, options):
    """Half of the records have another slope and a third of the weight: the weighted answer is that of copies."""
    rng = np.random.default_rng(3)
    x, heavy = rng.uniform(-1, 1, 6000), rng.random(6000) < 0.5
    eta = np.where(heavy, 2.0, -1.0) * x
    y = {
        "BayesianLinearRegression": eta + 0.3 * rng.normal(size=6000),
        "BayesianPoissonRegression": rng.poisson(np.exp(eta)),
    }.get(kind.__name__, (rng.random(6000) < 1.0 / (1.0 + np.exp(-eta))).astype(int))
    given = {"epsilon": 50.0, "delta": 1e-5, "data_bounds": [(-1, 1)], "n_threads": 1} | options
    weight = np.where(heavy, 3.0, 1.0)
    weighted = kind(n_records=6000, survey_weights=WEIGHTS, random_source=InsecureRNG(1), **given)
    plain = kind(n_records=6000, random_source=InsecureRNG(1), **given).fit(x[:, None], y)
    copied = kind(n_records=12_000, random_source=InsecureRNG(2), **given)
    rows = np.repeat(np.arange(6000), weight.astype(int))
    found = np.ravel(weighted.fit(x[:, None], y, sample_weight=weight).coef_)[0]
    wanted = np.ravel(copied.fit(x[rows, None], np.asarray(y)[rows]).coef_)[0]
    assert abs(found - wanted) < 0.06
    assert abs(np.ravel(plain.coef_)[0] - wanted) > 0.2


def test_weights_and_public_facts_about_them_go_together(tmp_path):
    X, y = linear_records(size=400)
    ledger = dpi.PrivacyLedger.create(tmp_path / "b.ledger").add_dataset("d", budget=(50.0, 1e-3))
    plain, weighted = (
        seeded(random_source=None, ledger=ledger),
        seeded(random_source=None, ledger=ledger, survey_weights=WEIGHTS),
    )
    with pytest.raises(ValueError, match="together"):
        plain.fit(X, y, sample_weight=np.ones(400))
    with pytest.raises(ValueError, match="together"):
        weighted.fit(X, y)
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        weighted.fit(X, y, weights=np.ones(400))
    with pytest.raises(TypeError, match="sample_weight"):
        weighted.fit(X, y, sample_weight=np.ma.masked_array(np.ones(400)))
    with pytest.raises(TypeError, match="SurveyWeights"):
        seeded(survey_weights={"mean": 2.0}).fit(X, y, sample_weight=np.ones(400))
    with pytest.raises(ValueError, match="survey_weights must be None"):
        dpi.BayesianMultinomialRegression(
            n_records=400, classes=(0, 1, 2), data_bounds=[(-1, 1)] * 2, survey_weights=WEIGHTS
        ).fit(X, np.arange(400) % 3, sample_weight=np.ones(400))
    assert ledger.spent().epsilon == 0.0
    for wrong in (np.ones(399), ["x"] * 400, -np.ones(400)):
        with pytest.raises(dpi.errors.RecordError, match="weight"):
            weighted.fit(X, y, sample_weight=wrong)
