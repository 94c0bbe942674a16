"""Steps before an estimator: those that look at all records are told, and marked."""

import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs the extra dpinfer[sklearn]")

from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, PolynomialFeatures, StandardScaler

import dpinfer as dpi
from dpinfer.errors import FallbackWarning, PrivacyLeakWarning, RepeatedSpendingWarning

N = 400


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(N, 2))
    return X, (rng.random(N) < 0.5).astype(float)


def estimator(kind=dpi.BayesianProbitRegression):
    options = {"method": "newton"} if kind is dpi.BayesianLogisticRegression else {}
    return kind(epsilon=8.0, n_records=N, data_bounds=(-10, 10), classes=(0, 1), **options)


def public():
    return StandardScaler().fit(np.array([[0.0, 0.0], [1.0, 2.0]]))


@pytest.mark.parametrize("kind", [dpi.BayesianProbitRegression, dpi.BayesianLogisticRegression])
def test_a_step_that_looks_at_all_records_is_told_and_marked(kind, records):
    nested = Pipeline([("union", FeatureUnion([("scale", StandardScaler()), ("same", "passthrough")]))])
    pipeline = Pipeline([("scaler", StandardScaler()), ("inner", nested), ("fit", make_pipeline(estimator(kind)))])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipeline.fit(*records)
    (told,) = [str(item.message) for item in caught if item.category is PrivacyLeakWarning]
    assert told.startswith("'scaler' and 'inner' of the pipeline learned from all private records")
    release = pipeline[-1][-1].release_
    assert release.leaks == tuple(
        f"step {name!r} of the pipeline learned from the private records" for name in ("scaler", "inner")
    )
    assert release.epsilon == np.inf
    # The same estimator by itself is as private as ever.
    alone = pipeline[-1][-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        warnings.simplefilter("ignore", RepeatedSpendingWarning)
        alone.fit(*records)
    assert not alone.release_.leaks


@pytest.mark.filterwarnings("ignore::dpinfer.errors.FallbackWarning")
@pytest.mark.parametrize(
    "step",
    [
        "passthrough",
        FunctionTransformer(np.tanh),
        PolynomialFeatures(2, include_bias=False),
        Normalizer(),
        FrozenEstimator(public()),
        ColumnTransformer([("a", FunctionTransformer(np.tanh), [0]), ("b", "passthrough", [1])]),
    ],
)
def test_a_step_that_looks_at_single_rows_keeps_the_guarantee(step, records):
    model = make_pipeline(step, estimator())
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        warnings.simplefilter("ignore", FallbackWarning)
        model.fit(*records)
    assert 7.9 < model[-1].release_.epsilon <= 8.0


@pytest.mark.filterwarnings("ignore::dpinfer.errors.FallbackWarning", "ignore:.*A single label:UserWarning")
def test_cross_validation_of_a_pipeline_warns_of_both(records):
    model = make_pipeline(StandardScaler(), estimator().set_params(n_records=None, data_bounds=(-10, 10)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cross_val_score(model, *records, cv=2)
    kinds = {item.category for item in caught}
    assert {PrivacyLeakWarning, RepeatedSpendingWarning} <= kinds
    assert model[-1].spent().epsilon > 8.0
