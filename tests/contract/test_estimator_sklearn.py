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
