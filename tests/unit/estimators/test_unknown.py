"""Parameters of estimators that nobody knows in public: planned, charged and stated with the fit."""

import dataclasses
import pickle

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import Adjacency, Composed
from dpinfer.accounting import account as certified
from dpinfer.errors import FallbackWarning, RecordError, RepeatedSpendingWarning
from dpinfer.fitting.unknown import split_arguments
from dpinfer.mechanism.unknowns.releases import resolved_probability
from dpinfer.testing import InsecureRNG

N = 8000
KNOWN = {"n_records": N, "target_bounds": (0, 1)}
EVERYTHING = ["n_records", "data_bounds", "target_bounds"]


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(7)
    X = np.column_stack([rng.normal(40.0, 8.0, N), rng.normal(-1.0, 0.01, N)])
    mean = 300.0 + 5.0 * (X[:, 0] - 40.0) - 2000.0 * (X[:, 1] + 1.0)
    return X, mean + rng.normal(scale=30.0, size=N)


@pytest.fixture
def account(tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger")
    return ledger.add_dataset("people", budget=(2.0, 1e-5))


def test_one_guarantee_counts_everything(records, account):
    model = dpi.BayesianLinearRegression(epsilon=2.0, unknown=EVERYTHING, ledger=account).fit(*records)
    assert 1.98 < model.release_.epsilon <= 2.0
    assert [part.name for part in model.release_.parts][:2] == ["number of records", "quantiles for bounds"]
    assert certified(Composed(tuple(run.event for run in account.runs())), delta=1e-5).epsilon == pytest.approx(
        model.release_.epsilon, rel=1e-6
    )
    assert model.spent().epsilon == pytest.approx(model.release_.epsilon, rel=1e-6)
    assert not model.release_.leaks
    values = model.unknown_.values
    assert set(values) == set(EVERYTHING)
    # Its noise is discrete Laplace of scale 1/epsilon, epsilon = 0.1 or so: 1e-15 of it beyond 400.
    assert abs(values["n_records"] - N) < 400
    centre, half = values["data_bounds"].mean(axis=1), 0.5 * np.diff(values["data_bounds"])[:, 0]
    assert np.all(np.abs(centre - [40.0, -1.0]) < [8.0, 0.01])
    assert np.all((half > [16.0, 0.02]) & (half < [64.0, 0.08]))
    posterior = model.posterior_.stddev[:2]
    assert np.all(np.abs(model.coef_ - [5.0, -2000.0]) < 5.0 * posterior)
    assert np.all(5.0 * posterior < [1.0, 800.0])
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(records[0][:5]), model.predict(records[0][:5]))


@pytest.mark.filterwarnings("ignore::dpinfer.errors.FallbackWarning")
@pytest.mark.parametrize(
    "name",
    [
        "BayesianLogisticRegression",
        "BayesianProbitRegression",
        "BayesianPoissonRegression",
        "BayesianMultinomialRegression",
    ],
)
def test_every_estimator_takes_unknown_parameters(name, records, account):
    y = (records[1] > 300.0).astype(float)
    options = {} if "Poisson" in name else {"classes": (0, 1)}
    model = getattr(dpi, name)(method="auto", unknown=["n_records", "data_bounds"], ledger=account, **options)
    model.fit(records[0], y)
    assert 0.99 < model.release_.epsilon <= 1.0
    assert len(account.runs()) == 3
    assert model.predict(records[0][:4]).shape == (4,)


def test_a_fit_that_released_what_is_unknown_counts_as_its_parts(records, account):
    model = dpi.BayesianProbitRegression(
        method="auto", unknown=["n_records", "data_bounds"], ledger=account, classes=(0, 1)
    )
    y = (records[1] > 300.0).astype(float)
    model.fit(records[0], y)
    with pytest.warns(RepeatedSpendingWarning, match="number 3"):
        model.fit(records[0], y)


@pytest.mark.filterwarnings("ignore::dpinfer.errors.FallbackWarning")
@pytest.mark.parametrize("kind", ["Linear", "Logistic", "Probit"])
def test_the_posterior_is_that_of_one_call(kind, records):
    """So the coverage that was measured of `dpi.fit` with `unknown` is theirs."""
    X, y = records
    bounds = np.array([(0.0, 80.0), (-1.1, -0.9)])
    options = {"data_bounds": bounds, "unknown": ["n_records"], "random_source": InsecureRNG(3)}
    seen = (X - bounds.mean(axis=1)) / (np.diff(bounds)[:, 0] / np.sqrt(12.0))
    given = {"epsilon": 1.0, "delta": 1e-5, "unknown": ["n_records"]}
    if kind == "Linear":
        options["target_bounds"] = (0.0, 600.0)
        responses, given["response_scale"] = (y - 300.0) / (600.0 / np.sqrt(12.0)), 1.0
    else:
        y = responses = (y > 300.0).astype(float)
        options |= {"method": "auto", "classes": (0, 1)}
        seen = X if kind == "Logistic" else seen  # it leaves the columns' units
    model = getattr(dpi, f"Bayesian{kind}Regression")(**options).fit(X, y)
    # A posterior's model has the prior that was used, which is a wider one where the coefficients contradict it.
    declared = dataclasses.replace(model.posterior_.model, prior_scale=2.0 if kind == "Linear" else 1.0)
    fit = dpi.fit(declared, seen, responses, random_source=InsecureRNG(3), **given)
    assert fit.posterior.model == model.posterior_.model
    # The estimator changes the units alone: the unconstrained space is the scaled model's.
    for levels in ([0.05, 0.95], [0.5]):
        scaled = (each.quantile(levels, space="unconstrained") for each in (fit.posterior, model.posterior_))
        np.testing.assert_array_equal(*scaled)


def test_the_posterior_is_that_of_one_release_after_another(records):
    X, y = records
    model = dpi.BayesianLinearRegression(epsilon=2.0, unknown=EVERYTHING, random_source=InsecureRNG(3)).fit(X, y)
    key = InsecureRNG(3)
    given = dict.fromkeys(EVERYTHING)
    split = split_arguments(
        EVERYTHING,
        given,
        {"n_records": 0, "data_bounds": 2, "target_bounds": 1},
        epsilon=2.0,
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
    )
    count = dpi.release_count(X, epsilon=split.parts.count_epsilon, random_source=key)
    found = dpi.release_bounds(
        np.column_stack([X, y]),
        epsilon=split.parts.n_selections * split.parts.selection_epsilon,
        names=("a", "b", "y"),
        probability=resolved_probability(count.n_records, split.parts.selection_epsilon),
        random_source=key,
    )
    low, high = (found.centre + sign * 4.0 * found.scale for sign in (-1.0, 1.0))
    seen = (np.clip(np.column_stack([X, y]), low, high) - found.centre) / found.scale
    fit = dpi.fit(
        model.posterior_.model,
        seen[:, :2],
        seen[:, 2],
        epsilon=split.fit_epsilon,
        delta=1e-5,
        n_records=count.n_records,
        response_scale=1.0,
        random_source=key,
    )
    found, scaled = (each.distribution.marginals for each in (model.posterior_, fit.posterior))
    np.testing.assert_allclose(scaled.mean, found.mean, rtol=1e-6)
    np.testing.assert_allclose(scaled.variance, found.variance, rtol=1e-6)
    # The power twin: noise of another key, which the run draws anew, gives another posterior.
    again = fit.plan.run(seen[:, :2], seen[:, 2], random_source=InsecureRNG(4))
    assert not np.allclose(dpi.noise_aware_posterior(again).mean, fit.posterior.mean, rtol=1e-6)


class Unseen:
    """Records that may not be looked at."""

    shape = (N, 2)

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("looked at")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"unknown": "n_records"}, "sequence of names"),
        ({"unknown": []}, "sequence of names"),
        ({**KNOWN, "unknown": ["n_rows"]}, "unknown must be one of"),
        ({"unknown": ["classes"]}, "has to be public"),
        ({**KNOWN, "unknown": ["n_records"]}, "n_records must not be given"),
        ({"unknown": ["data_bounds"], "target_bounds": (0, 1)}, "n_records must be given with ledger"),
        ({**KNOWN, "unknown": ["data_bounds"], "data_bounds": (0, 1)}, "data_bounds must not be given"),
        ({"unknown": ["n_records"], "target_bounds": (0, 1)}, "data_bounds must be given"),
        ({"unknown": ["n_records", "data_bounds"]}, "target_bounds must be given"),
        ({"unknown": EVERYTHING, "method": "dpvi"}, "method must be 'auto' or 'newton'"),
        ({"unknown": EVERYTHING, "adjacency": "replace_one"}, "replace_one"),
        ({"unknown": EVERYTHING, "adjacency": "zero_out"}, "zero_out"),
        ({"unknown": EVERYTHING, "epsilon": 3.0}, "budget"),
    ],
)
def test_all_that_is_wrong_is_refused_before_anything_is_spent(options, match, account):
    with pytest.raises((TypeError, ValueError), match=match):
        dpi.BayesianLinearRegression(**options, ledger=account).fit(Unseen(), Unseen())
    assert account.runs() == ()


def test_the_gradient_trace_does_not_take_them(account):
    for options, match in (
        ({"unknown": ["n_records"], "classes": (0, 1), "method": "dpvi"}, "method must be 'auto' or 'newton'"),
        ({"unknown": ["n_records"], "method": "newton"}, "classes must be given with ledger"),
        (
            {"unknown": ["target_bounds"], "method": "newton", "classes": (0, 1), "n_records": N},
            "unknown must be one of",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            dpi.BayesianLogisticRegression(**options, ledger=account).fit(Unseen(), Unseen())
    assert account.runs() == ()


def test_lists_without_a_shape_are_refused():
    with pytest.raises(TypeError, match="two-dimensional shape with unknown"):
        dpi.BayesianLinearRegression(unknown=EVERYTHING).fit([[1.0], [2.0]], [1.0, 2.0])


def test_what_was_paid_for_travels_with_the_error(records, account):
    """Responses that cannot be used are seen after the count: it is not lost, and it is counted as spent."""
    model = dpi.BayesianPoissonRegression(unknown=["n_records"], data_bounds=[(0, 80), (-2, 0)], ledger=account)
    with pytest.raises(RecordError) as caught:
        model.fit(records[0], np.full(N, np.nan))
    released = caught.value.unknown
    assert abs(released.values["n_records"] - N) < 400
    assert released.parts[0].event == account.runs()[0].event
    assert "released and paid for" in caught.value.__notes__[-1]
    assert model.spent().epsilon == pytest.approx(released.parts[0].event.epsilon, rel=1e-6)


def test_the_warning_is_not_raised_for_the_parts_of_one_fit(records, recwarn):
    dpi.BayesianLinearRegression(unknown=EVERYTHING).fit(*records)
    assert {item.category for item in recwarn} <= {FallbackWarning}
