"""Runs of the mechanism and their place in the ledger."""

import numpy as np
import pytest
from tests.reference.site_runs import run_sites

import dpinfer as dpi
from dpinfer.accounting.charging import REFUSED_AND_CHARGED
from dpinfer.errors import (
    BudgetExceededError,
    CheckpointError,
    InsecureReleaseError,
    PrivacyLeakWarning,
    RecordError,
    RepeatedSpendingWarning,
)
from dpinfer.mechanism.noise_keys import OSRandomSource
from dpinfer.mechanism.trace import dpvi

SECRET = 8675309.25


@pytest.fixture(scope="module")
def plan():
    return dpi.plan_privacy(target_epsilon=0.8, target_delta=1e-5, sample_rate=0.3, n_steps=10)


@pytest.fixture
def records(rng):
    return rng.normal(size=(60, 2)), (rng.random(60) < 0.5).astype(float)


@pytest.fixture
def ledger(tmp_path):
    return dpi.PrivacyLedger.create(tmp_path / "spent.ledger")


@pytest.fixture
def account(ledger):
    return ledger.add_dataset("people", budget=(1.0, 1e-5))


def run(account, plan, records, **options):
    model = options.pop("model", dpi.models.LogisticRegression(2))
    return dpi.run_dpvi(model, *records, plan=plan, n_records=60, **({"max_grad_norm": 2.0} | options), ledger=account)


def test_a_run_is_charged_and_its_release_says_where(account, plan, records, tmp_path):
    release = run(account, plan, records)
    (entry,) = account.runs()
    assert (entry.status, entry.mechanism, entry.event) == ("finished", "dpvi", plan.event)
    told = release.settings["ledger"]
    assert told["dataset"] == "people"
    assert told["run"] == entry.run
    assert told["composed_epsilon"] == account.spent().epsilon == plan.epsilon
    release.save(tmp_path / "r")
    told = dpi.load_release(tmp_path / "r").settings["ledger"]
    assert dpi.PrivacyLedger(account.path).holds(told["entry"], told["digest"])
    assert "ledger" not in run(None, plan, records).settings


def test_the_charge_is_there_before_the_records_are_looked_at(account, plan, records, monkeypatch):
    seen = []
    check, query = dpvi.load_source, dpvi._Gradients.query

    def looking(*arguments):
        seen.append([item.status for item in account.runs()])
        return check(*arguments)

    def drawing(self, step):
        seen.append("draw")
        return query(self, step)

    monkeypatch.setattr(dpvi, "load_source", looking)
    monkeypatch.setattr(dpvi._Gradients, "query", drawing)
    run(account, plan, records)
    assert seen == [["started"], *["draw"] * plan.n_steps]


def test_a_refused_budget_touches_neither_records_nor_randomness(account, plan, records, monkeypatch):
    run(account, plan, records)

    def touched(*arguments):
        raise AssertionError("touched")

    monkeypatch.setattr(dpvi, "load_source", touched)
    monkeypatch.setattr(OSRandomSource, "take_key", touched)
    before = account.path.read_bytes()
    with pytest.raises(BudgetExceededError, match="its budget is 1"):
        run(account, plan, records)
    assert account.path.read_bytes() == before


@pytest.mark.parametrize("value", [np.nan, np.inf, SECRET])
@pytest.mark.parametrize("refund", [False, True])
def test_bad_records_stay_charged_unless_refunded_and_are_not_quoted(account, plan, records, value, refund):
    if refund:
        with pytest.warns(PrivacyLeakWarning, match="refund_refused"):
            account = dpi.PrivacyLedger(account.path).dataset(account.dataset, refund_refused=True)
    X, y = records
    if value == SECRET:
        y = y.copy()
        y[3] = value
    else:
        X = X.copy()
        X[3, 1] = value
    with pytest.raises(RecordError) as caught:
        run(account, plan, (X, y))
    assert str(SECRET).encode() not in account.path.read_bytes()
    if refund:
        assert not hasattr(caught.value, "__notes__")
        assert [item.status for item in account.runs()] == ["cancelled"]
        assert account.remaining() == 1.0
        run(account, plan, records)
    else:
        assert "charge of the run stands" in caught.value.__notes__[0]
        assert [item.status for item in account.runs()] == ["started"]
        with pytest.raises(BudgetExceededError):
            run(account, plan, records)


class Watched:
    """Records that tell when they are looked at."""

    def __init__(self, values, look):
        self.values, self.look = values, look

    def __array__(self, dtype=None, copy=None):
        self.look()
        return self.values


def test_the_charge_is_on_the_disk_when_records_are_looked_at(account, plan, records):
    seen = []

    def look():
        seen.append([item.status for item in account.runs()])

    run(account, plan, [Watched(array, look) for array in records])
    assert len(seen) >= 2
    assert all(status == ["started"] for status in seen)


def raising(*error):
    def stop():
        raise error[0](*error[1:])

    return stop


def test_an_interrupted_run_is_not_charged(account, plan, records):
    with pytest.raises(KeyboardInterrupt):
        run(account, plan, [Watched(array, raising(KeyboardInterrupt)) for array in records])
    assert [item.status for item in account.runs()] == ["cancelled"]


@pytest.mark.parametrize(
    "error", [(OSError, 5, "no such device"), (SystemExit, 1), (CheckpointError, "moved")], ids=str
)
def test_what_a_reader_of_records_raises_stays_charged(ledger, plan, records, error):
    """A source can raise an error of the system at one value of one record, and refunds would tell of it."""
    X, y = (Watched(array, raising(*error)) for array in records)
    source = dpi.mechanism.RowSource(raising(*error), 2)
    newton = dpi.plan_newton(dpi.models.LogisticRegression(2), target_epsilon=0.8, target_delta=1e-5, n_records=60)
    calls = [
        lambda account: run(account, plan, (X, y)),
        lambda account: run(account, plan, (source,)),
        lambda account: dpi.run_newton(
            dpi.models.LogisticRegression(2), source, plan=newton, n_records=60, ledger=account
        ),
        lambda account: dpi.release_count(source, epsilon=0.8, ledger=account),
        lambda account: dpi.release_categories(y, epsilon=0.8, delta=1e-6, ledger=account),
    ]
    for place, call in enumerate(calls):
        account = ledger.add_dataset(f"people {place}", budget=(1.0, 1e-5))
        with pytest.raises(error[0]) as caught:
            call(account)
        assert caught.value.__notes__ == [REFUSED_AND_CHARGED]
        assert [item.status for item in account.runs()] == ["started"]


def test_bad_arguments_never_reach_the_ledger(account, plan, records):
    before = account.path.read_bytes()
    for options in ({"max_grad_norm": -1.0}, {"n_threads": 0}, {"recipe": "none"}, {"learning_rate": -1.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            run(account, plan, records, **options)
    with pytest.raises(InsecureReleaseError, match="NOT PRIVATE"):
        run(account, plan, records, random_source=dpi.testing.InsecureRNG(1))
    with pytest.raises(TypeError, match="ledger must be a LedgerAccount"):
        run(dpi.PrivacyLedger(account.path), plan, records)
    other = dpi.plan_privacy(
        target_epsilon=0.8, target_delta=1e-5, sample_rate=1.0, n_steps=10, adjacency="replace_one"
    )
    with pytest.raises(ValueError, match="adjacency must be 'add_remove'"):
        run(account, other, records)
    assert account.path.read_bytes() == before


def test_a_run_that_is_stopped_stays_counted(account, plan, records):
    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(account, plan, records, progress=stop)
    assert [item.status for item in account.runs()] == ["started"]
    with pytest.raises(BudgetExceededError):
        run(account, plan, records)


def test_conjugate_models_are_charged_too(account, plan, rng):
    run(account, plan, (rng.exponential(size=60),), model=dpi.models.GammaExponential())
    assert [item.status for item in account.runs()] == ["finished"]


def test_the_estimator_charges_every_fit(account, records):
    model = dpi.BayesianLogisticRegression(
        epsilon=0.8,
        n_records=60,
        classes=(0, 1),
        data_bounds=(-3, 3),
        method="dpvi",
        n_steps=200,
        burn_in=0.2,
        ledger=account,
    )
    model.fit(*records)
    assert model.release_.settings["ledger"]["dataset"] == "people"
    with pytest.warns(RepeatedSpendingWarning, match="data set 'people' is at 0.8"), pytest.raises(BudgetExceededError):
        model.fit(*records)
    sklearn = pytest.importorskip("sklearn.base", reason="the estimator works without scikit-learn")
    assert sklearn.clone(model).ledger == account


SITE_MODELS = {
    "probit": lambda: dpi.models.ProbitRegression(2),
    "network": lambda: dpi.models.BayesianNeuralNetwork(2, 3),
}


@pytest.mark.parametrize("name", SITE_MODELS)
def test_runs_of_dp_sep_are_charged_before_their_records_are_looked_at(name, account, plan, records):
    model = SITE_MODELS[name]()
    release = run_sites(model, *records, plan=plan, n_records=60, ledger=account)
    (entry,) = account.runs()
    assert (entry.status, entry.mechanism, entry.event) == ("finished", "dp_sep", plan.event)
    assert release.settings["ledger"]["run"] == entry.run
    assert release.epsilon == plan.epsilon
    bad = (np.full((60, 2), np.nan), records[1])
    with pytest.raises(BudgetExceededError):  # refused before the records are found to be bad
        run_sites(model, *bad, plan=plan, n_records=60, ledger=account)
    assert len(account.runs()) == 1


@pytest.mark.parametrize("name", SITE_MODELS)
def test_bad_records_of_dp_sep_stay_charged(name, account, plan, records):
    with pytest.raises(RecordError):
        run_sites(SITE_MODELS[name](), np.full((60, 2), np.nan), records[1], plan=plan, n_records=60, ledger=account)
    assert [item.status for item in account.runs()] == ["started"]
    with pytest.raises(InsecureReleaseError):
        run_sites(
            SITE_MODELS[name](),
            *records,
            plan=plan,
            n_records=60,
            ledger=account,
            random_source=dpi.testing.InsecureRNG(1),
        )
