"""The ledger: counted before the data are touched, never overspent, and nothing undone once noise is drawn."""

import copy
import pickle

import pytest
from tests.reference.ledger_runs import DELTA, EVENT, charging, run, statuses

import dpinfer as dpi
from dpinfer.accounting import Composed, GaussianEvent, NonPrivateEvent, SelfComposed
from dpinfer.accounting import _ledger_file as storage
from dpinfer.accounting._ledger_file import run_of_token
from dpinfer.accounting.charging import REFUSED_AND_CHARGED
from dpinfer.errors import (
    BudgetExceededError,
    CheckpointError,
    InsecureReleaseError,
    LedgerError,
    LedgerFormatError,
    PrivacyLeakWarning,
    RecordError,
    SchemaError,
)


def test_a_new_ledger(ledger, tmp_path):
    assert ledger.datasets == ()
    account = ledger.add_dataset("census", budget=(2, 1e-6), adjacency="zero_out")
    other = ledger.add_dataset("other")
    assert ledger.datasets == ("census", "other")
    assert account == ledger.dataset("census") == dpi.PrivacyLedger(tmp_path / "spent.ledger").dataset("census")
    assert account.budget == (2.0, 1e-6)
    assert account.adjacency is dpi.accounting.Adjacency.ZERO_OUT
    assert account.spent().epsilon == 0.0
    assert account.remaining() == 2.0
    assert other.budget is None
    assert other.remaining() is None
    with pytest.raises(ValueError, match="delta must be given"):
        other.spent()
    assert other.spent(1e-5).epsilon == 0.0
    assert "spent.ledger" in repr(ledger)
    assert list(tmp_path.iterdir()) == [tmp_path / "spent.ledger"]


def test_runs_are_composed_and_not_added_up(account):
    for count in (1, 2, 3):
        charge = run(account)
        expected = dpi.account(SelfComposed(EVENT, count), delta=DELTA).epsilon
        assert account.spent().epsilon == expected
        assert charge.settings["composed_epsilon"] == expected
        assert account.remaining() == pytest.approx(1.0 - expected, rel=1e-15)
    one = dpi.account(EVENT, delta=DELTA).epsilon
    assert account.spent().epsilon < 3 * one
    assert statuses(account) == ["finished"] * 3
    assert account.spent(1e-3).epsilon == dpi.account(SelfComposed(EVENT, 3), delta=1e-3).epsilon
    plan = dpi.plan_privacy(target_epsilon=0.2, target_delta=DELTA, sample_rate=0.1, n_steps=50)
    mixed = dpi.account(Composed([SelfComposed(EVENT, 3), plan.event]), delta=DELTA)
    assert account.preview(plan.event).epsilon == mixed.epsilon
    assert len(account.runs()) == 3


def test_a_run_that_would_exceed_the_budget_is_refused_before_anything_happens(account):
    fits = 0
    while dpi.account(SelfComposed(EVENT, fits + 1), delta=DELTA).epsilon <= 1.0:
        fits += 1
    for _ in range(fits):
        account.check(EVENT, adjacency="add_remove")
        run(account)
    before = account.path.read_bytes()
    with pytest.raises(BudgetExceededError, match="'census' to epsilon"):
        run(account)
    assert account.path.read_bytes() == before
    assert fits == len(account.runs()) == 4
    assert account.spent().epsilon <= 1.0 < account.preview(EVENT).epsilon
    with pytest.raises(BudgetExceededError):
        account.check(EVENT, adjacency="add_remove")
    # What fits may still run.
    run(account, GaussianEvent(200.0))
    assert account.spent().epsilon <= 1.0


def test_exactly_the_budget_fits(ledger):
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=DELTA, sample_rate=0.1, n_steps=100)
    account = ledger.add_dataset("tight", budget=(plan.epsilon, DELTA))
    run(account, plan.event)
    assert account.remaining() == 0.0
    with pytest.raises(BudgetExceededError):
        run(account, GaussianEvent(100.0))


def test_what_cannot_be_certified_never_fits_a_budget(ledger, account):
    with pytest.raises(BudgetExceededError, match="inf"):
        run(account, NonPrivateEvent())
    free = ledger.add_dataset("free")
    charge = run(free, NonPrivateEvent())
    assert charge.settings["composed_epsilon"] is None
    assert free.spent(DELTA).epsilon == float("inf")


def test_another_adjacency_is_refused(account):
    with pytest.raises(ValueError, match=r"adjacency must be 'add_remove'.*got 'zero_out'"):
        run(account, adjacency="zero_out")
    with pytest.raises(ValueError, match="adjacency must be"):
        account.check(EVENT, adjacency="replace_one")
    assert account.runs() == ()


def test_a_run_is_on_the_disk_while_it_runs(account):
    with charging(account) as charge:
        assert statuses(account) == ["started"]
        assert account.spent().epsilon > 0.0
        charge.begin()
        assert account.status(charge.run) == "started"
    assert account.status(charge.run) == "finished"
    assert account.status("0" * 64) is None


def refunding(account):
    with pytest.warns(PrivacyLeakWarning, match="no guarantee covers"):
        return dpi.PrivacyLedger(account.path).dataset(account.dataset, refund_refused=True)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit, CheckpointError])
def test_a_run_that_was_stopped_from_outside_and_drew_nothing_is_cancelled(account, error):
    with pytest.raises(error), charging(account):
        raise error("disk")
    assert statuses(account) == ["cancelled"]
    assert account.spent().epsilon == 0.0
    assert [entry.kind for entry in dpi.PrivacyLedger(account.path).entries()][-2:] == ["charge", "cancel"]


@pytest.mark.parametrize("error", [RecordError, SchemaError, ValueError, MemoryError])
def test_a_run_whose_records_may_have_been_refused_stays_charged_unless_the_account_refunds(account, error):
    with pytest.raises(error) as caught, charging(account):
        raise error("records")
    assert statuses(account) == ["started"]
    assert caught.value.__notes__ == [REFUSED_AND_CHARGED]
    with pytest.raises(error) as caught, charging(refunding(account)):
        raise error("records")
    assert statuses(account) == ["started", "cancelled"]
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(TypeError, match="refund_refused"):
        dpi.PrivacyLedger(account.path).dataset(account.dataset, refund_refused=1)


def fail_after_begin(account, error, **options):
    with charging(account, **options) as charge:
        charge.begin()
        assert charge.token is None
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_run_that_began_stays_counted(account, error):
    with pytest.raises(error):
        fail_after_begin(account, error)
    assert statuses(account) == ["started"]
    assert account.spent().epsilon > 0.0


def test_nobody_else_can_cancel(account):
    """A cancel entry needs the secret behind the run's identity, which the first draw destroys."""
    with charging(account) as charge:
        charge.begin()
        with storage.EntryFile(account.path).appending() as (_, append):
            append("cancel", {"run": charge.run, "token": "00" * 32, "time": "now"})
        with pytest.raises(LedgerFormatError, match="no meaning"):
            account.runs()


def test_a_cancelled_run_frees_its_share(account):
    for _ in range(4):
        with pytest.raises(OSError, match="disk"), charging(account):
            raise OSError("disk")
    run(account)
    assert statuses(account) == ["cancelled"] * 4 + ["finished"]


def test_a_charge_that_cannot_be_cancelled_stays_and_says_so(account, monkeypatch):
    def full(self):
        raise LedgerError("full")

    def fail():
        with charging(account):
            monkeypatch.setattr(storage.EntryFile, "appending", full)
            raise OSError("disk")

    with pytest.raises(OSError, match="disk") as caught:
        fail()
    assert "still counts this run" in caught.value.__notes__[0]
    assert statuses(account) == ["started"]


def test_a_release_is_not_lost_because_the_ledger_cannot_be_written_at_the_end(account, monkeypatch):
    def full(self):
        raise LedgerError("full")

    with charging(account) as charge:
        charge.begin()
        monkeypatch.setattr(storage.EntryFile, "appending", full)
    monkeypatch.undo()
    assert statuses(account) == ["started"]


def test_a_run_can_be_taken_up_again_without_a_second_charge(account):
    token = bytes(range(32))
    with pytest.raises(OSError, match="killed"):
        fail_after_begin(account, OSError("killed"), token=token)
    run_id = run_of_token(token)
    (first,) = account.runs()
    assert first.run == run_id
    composed = account.spent().epsilon
    run(account)
    with charging(account, run=run_id) as again:
        assert (again.settings["entry"], again.settings["digest"]) == (first.entry, first.digest)
        assert again.settings["composed_epsilon"] == composed
    assert statuses(account) == ["finished", "finished"]
    with charging(account, run=run_id) as again:
        again.begin()
    with pytest.raises(LedgerError, match="is a copy made before"), charging(account, token=token):
        pass
    assert len(account.runs()) == 2
    for wrong in ({"run": "0" * 64}, {"run": run_id, "event": GaussianEvent(9.0)}):
        with pytest.raises(LedgerError, match="ledger must hold the run"), charging(account, **wrong):
            pass
    with pytest.raises(OSError, match="disk"), charging(account, token=bytes(32)):
        raise OSError("disk")
    with pytest.raises(LedgerError, match="ledger must hold the run"), charging(account, token=bytes(32)):
        pass


def test_insecure_runs_are_refused(account):
    with pytest.raises(InsecureReleaseError, match="NOT PRIVATE"):
        run(account, secure=False)
    assert account.runs() == ()


def test_without_a_ledger_nothing_is_charged():
    with charging(None) as charge:
        charge.begin()
    assert charge.settings == {}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": 3}, TypeError, "name"),
        ({"name": ""}, ValueError, "name"),
        ({"name": "a\nb"}, ValueError, "control"),
        ({"name": "x" * 201}, ValueError, "name"),
        ({"budget": 1.0}, TypeError, "budget"),
        ({"budget": "12"}, TypeError, "budget"),
        ({"budget": (1.0, 0.0)}, ValueError, r"budget\[1\]"),
        ({"budget": (0.0, 1e-5)}, ValueError, r"budget\[0\]"),
        ({"budget": (float("inf"), 1e-5)}, ValueError, r"budget\[0\]"),
        ({"budget": (1, 1e-5, 1)}, TypeError, "budget"),
        ({"adjacency": "near"}, ValueError, "adjacency"),
    ],
)
def test_bad_data_sets(ledger, options, error, message):
    with pytest.raises(error, match=message):
        ledger.add_dataset(**({"name": "x"} | options))
    assert ledger.datasets == ()


def test_names_are_used_once_and_must_be_known(ledger, account):
    with pytest.raises(ValueError, match="must be new"):
        ledger.add_dataset("census")
    with pytest.raises(ValueError, match=r"one that was added to the ledger \('census'\), got 'cencus'"):
        ledger.dataset("cencus")
    with pytest.raises(TypeError, match="LedgerAccount"):
        run(ledger)
    with pytest.raises(TypeError, match="path"):
        dpi.PrivacyLedger(3)


def test_accounts_travel(account):
    for twin in (pickle.loads(pickle.dumps(account)), copy.deepcopy(account)):
        assert twin == account
        run(twin)
    assert len(account.runs()) == 2


def test_create_never_replaces(ledger, tmp_path):
    before = ledger.path.read_bytes()
    with pytest.raises(FileExistsError):
        dpi.PrivacyLedger.create(ledger.path)
    assert ledger.path.read_bytes() == before
    with pytest.raises(FileNotFoundError):
        dpi.PrivacyLedger.create(tmp_path / "absent" / "x.ledger")
    with pytest.raises(FileNotFoundError):
        dpi.PrivacyLedger(tmp_path / "absent.ledger")
    assert [path.name for path in tmp_path.iterdir()] == ["spent.ledger"]
