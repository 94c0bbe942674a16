"""Arguments of a fit that nobody knows in public: planned, charged and stated with it."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.accounting import account as certified
from dpinfer.lab.replays.mechanisms import own_logistic
from dpinfer.testing import InsecureRNG

N = 8000
BUDGET = {"epsilon": 1.0, "delta": 1e-5}


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, 2))
    return X, 30.0 + 10.0 * (X @ [1.0, -0.5]) + 5.0 * rng.normal(size=N)


@pytest.fixture(scope="module")
def fitted(records, tmp_path_factory):
    place = tmp_path_factory.mktemp("unknown")
    ledger = dpi.PrivacyLedger.create(place / "spent.ledger").add_dataset("people", budget=(1.0, 1e-5))
    model = dpi.models.LinearRegression(2, fit_intercept=True, prior_scale=10.0)
    given = {"ledger": ledger, "path": place / "fit", "posterior": dpi.PosteriorRequest(n_samples=200)}
    found = dpi.fit(model, *records, unknown=["n_records", "response_scale"], **given, **BUDGET)
    return found, ledger, place / "fit"


def test_one_guarantee_counts_everything(fitted):
    fit, ledger, folder = fitted
    assert 0.99 < fit.release.epsilon <= 1.0
    assert fit.plan.epsilon < 0.96
    assert [part.name for part in fit.release.parts][:2] == ["number of records", "quantiles for bounds"]
    spent = dpi.accounting.Composed(tuple(run.event for run in ledger.runs()))
    assert len(ledger.runs()) == 3
    assert certified(spent, delta=1e-5).epsilon == pytest.approx(fit.release.epsilon, rel=1e-6)
    assert fit.plan.epsilon < certified(spent, delta=1e-5).epsilon
    assert json.loads((folder / "plan.json").read_text())["plan"]["target"]["n_records"] == fit.plan.n_records
    assert dpi.load_fit(folder).release.epsilon == fit.release.epsilon


def test_what_was_released_is_near_what_it_stands_for(fitted, records):
    fit, _, _ = fitted
    # The count's noise is discrete Laplace of scale 1/epsilon, epsilon = 0.06 or so: 1e-9 of it beyond 400.
    assert abs(fit.plan.n_records - N) < 400
    size = math.sqrt(np.mean(records[1] ** 2))
    assert size / 3.0 < fit.plan.target.response_scale < 3.0 * size
    low, high = fit.posterior.quantile([0.001, 0.999])
    assert np.all((low[:3] < [10.0, -5.0, 30.0]) & (high[:3] > [10.0, -5.0, 30.0]))


class Unseen:
    """Records that may not be looked at."""

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("looked at")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"unknown": "n_records"}, "sequence of names"),
        ({"unknown": []}, "sequence of names"),
        ({"unknown": ["n_rows"]}, "unknown must be one of"),
        ({"unknown": ["bounds"]}, "dpinfer.regression"),
        ({"unknown": ["n_records"], "n_records": N}, "n_records must not be given"),
        ({"unknown": ["response_scale"]}, "n_records must be an integer"),
        ({"unknown": ["n_records"], "response_scale": 1.0}, "response_scale must be None"),
        ({"unknown": ["n_records", "response_scale"]}, "response_scale must be None"),
        ({"unknown": ["n_records"], "method": "dpvi"}, "method must be 'auto' or 'newton'"),
        ({"unknown": ["n_records"], "checkpoint": "run"}, "checkpoint must be None"),
        ({"unknown": ["n_records"], "adjacency": "replace_one"}, "replace_one"),
        ({"unknown": ["n_records"], "adjacency": "zero_out"}, "zero_out"),
        ({"unknown": ["n_records"], "posterior": dpi.PosteriorRequest(prior="empirical")}, "prior"),
    ],
)
def test_all_that_is_wrong_is_refused_before_anything_is_spent(options, match, tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(1.0, 1e-5))
    with pytest.raises((TypeError, ValueError), match=match):
        dpi.fit(dpi.models.LogisticRegression(2), Unseen(), Unseen(), ledger=ledger, **BUDGET, **options)
    assert ledger.runs() == ()


def test_a_budget_that_covers_the_unknown_alone_is_refused(records, tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(0.5, 1e-5))
    with pytest.raises(dpi.errors.BudgetExceededError):
        dpi.fit(dpi.models.LogisticRegression(2), Unseen(), Unseen(), ledger=ledger, unknown=["n_records"], **BUDGET)
    assert ledger.runs() == ()


def test_what_was_paid_for_travels_with_the_error(records, tmp_path):
    """Responses that the model does not take are seen after the count: it is not lost."""
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(1.0, 1e-5))
    with pytest.raises(dpi.errors.RecordError) as caught:
        dpi.fit(dpi.models.LogisticRegression(2), *records, ledger=ledger, unknown=["n_records"], **BUDGET)
    released = caught.value.unknown
    assert abs(released.values["n_records"] - N) < 400
    assert [part.event for part in released.parts] == [ledger.runs()[0].event]
    assert "released and paid for" in caught.value.__notes__[-1]
    again = dpi.fit(
        dpi.models.LogisticRegression(2),
        records[0],
        (records[1] > 30.0) + 0.0,
        epsilon=0.5,
        delta=1e-5,
        **released.values,
        parts=released.parts,
        random_source=InsecureRNG(1),
    )
    assert again.release.parts[0].name == "number of records"


def streamed(X, y):
    return mechanism.RowSource(lambda: zip(np.array_split(X, 7), np.array_split(y, 7), strict=True))


def sharded(X, y):
    halves = zip(np.array_split(X, 2), np.array_split(y, 2), strict=True)
    return mechanism.ShardedRows(ThreadPoolExecutor(1), [streamed(*half) for half in halves])


@pytest.mark.filterwarnings("ignore::dpinfer.errors.FallbackWarning")
def test_a_stream_gives_the_bits_of_the_arrays(records):
    model = dpi.models.LinearRegression(2, fit_intercept=True, prior_scale=10.0)
    names = ["n_records", "response_scale"]
    held, read, spread = (
        dpi.fit(model, *own, unknown=names, random_source=InsecureRNG(3), **BUDGET)
        for own in (records, (streamed(*records),), (sharded(*records),))
    )
    for fit in (read, spread):
        assert fit.plan.to_dict() == held.plan.to_dict()
        assert [part.event for part in fit.release.parts] == [part.event for part in held.release.parts]
        assert np.array_equal(fit.release.scores, held.release.scores)


@pytest.mark.filterwarnings("ignore::dpinfer.errors.FallbackWarning")
def test_coded_rows_are_counted():
    rows = mechanism.CodedRows(np.arange(N) % 3, [3], drop_first=True)
    model = dpi.models.LogisticRegression(2, fit_intercept=True)
    fit = dpi.fit(model, rows, np.arange(N) % 2.0, unknown=["n_records"], **BUDGET)
    assert abs(fit.plan.n_records - N) < 400


class Unread:
    """Blocks that may not be read."""

    def __call__(self):
        raise AssertionError("read")


@pytest.mark.parametrize(
    ("model", "rows", "y", "match"),
    [
        (dpi.models.LogisticRegression(2), mechanism.RowSource(Unread(), 2), [0.0], "y must be None"),
        (dpi.models.LogisticRegression(2), mechanism.RowSource(Unread(), 3), None, "X must have 2 columns"),
        (dpi.models.LogisticRegression(2), mechanism.RowSource(Unread(), 2, units=True), None, "without units"),
        (own_logistic(), mechanism.RowSource(Unread(), 2), None, "X must be an array"),
        (dpi.models.LogisticRegression(2), Unseen(), None, "y must be given"),
    ],
)
def test_a_stream_that_does_not_fit_is_refused_before_anything_is_spent(model, rows, y, match, tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(1.0, 1e-5))
    with pytest.raises((TypeError, ValueError), match=match):
        dpi.fit(model, rows, y, ledger=ledger, unknown=["n_records"], **BUDGET)
    assert ledger.runs() == ()
