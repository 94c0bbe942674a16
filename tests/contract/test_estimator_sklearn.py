"""scikit-learn's own checks of the estimator."""

import functools
import warnings

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import PrivacyLeakWarning
from dpinfer.testing import InsecureRNG

checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="needs the extra dpinfer[sklearn]")

# Checks that a private estimator cannot pass, each with the reason.
EXPECTED_FAILURES: dict[str, str] = {}


def test_check_estimator():
    # The seeded source makes the checks repeatable; a private fit has no seed.  The number of records differs between
    # the checks, so it is left to the data, which warns.  The checks are of fits and arguments, not of posteriors, and
    # the full Hessian takes half a second in each of them; the test below fits with it.
    model = dpi.BayesianLogisticRegression(
        epsilon=8.0,
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


def test_clone_and_model_selection():
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(600, 2))
    y = (X[:, 0] > 0).astype(int)
    model = dpi.BayesianLogisticRegression(
        n_records=600, classes=(0, 1), data_bounds=(-1, 1), n_steps=300, epsilon=20.0, sample_rate=0.5
    )
    assert is_classifier(model)
    assert clone(model).get_params() == model.get_params()
    scores = cross_val_score(make_pipeline(FunctionTransformer(), model), X, y, cv=2)
    assert scores.shape == (2,)
