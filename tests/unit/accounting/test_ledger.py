"""The ledger: counted before the data are touched, never overspent, and nothing undone once noise is drawn."""

import copy
import errno
import os
import pickle
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import dpinfer as dpi
from dpinfer.accounting import Composed, GaussianEvent, NonPrivateEvent, SelfComposed, charge_run
from dpinfer.accounting import _ledger_file as storage
from dpinfer.accounting.ledger import run_of_token
from dpinfer.errors import BudgetExceededError, InsecureReleaseError, LedgerError, LedgerFormatError

EVENT = GaussianEvent(8.0)
DELTA = 1e-5


@pytest.fixture
def tmp_path(tmp_path):
    """A folder in memory where there is one: every entry is flushed to the disk three times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def ledger(tmp_path):
    return dpi.PrivacyLedger.create(tmp_path / "spent.ledger")


@pytest.fixture
def account(ledger):
    return ledger.add_dataset("census", budget=(1.0, DELTA))


def charging(account, event=EVENT, **options):
    return charge_run(
        account, event, **({"adjacency": "add_remove", "mechanism": "test", "secure": True, "delta": DELTA} | options)
    )


def run(account, event=EVENT, **options):
    with charging(account, event, **options) as charge:
        charge.begin()
    return charge


def statuses(account):
    return [item.status for item in account.runs()]


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
        assert account.remaining() == 1.0 - expected
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


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_run_that_drew_nothing_is_cancelled(account, error):
    with pytest.raises(error), charging(account):
        raise error("records")
    assert statuses(account) == ["cancelled"]
    assert account.spent().epsilon == 0.0
    assert [entry.kind for entry in dpi.PrivacyLedger(account.path).entries()][-2:] == ["charge", "cancel"]


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
        with pytest.raises(ValueError, match="records"), charging(account):
            raise ValueError("records")
    run(account)
    assert statuses(account) == ["cancelled"] * 4 + ["finished"]


def test_a_charge_that_cannot_be_cancelled_stays_and_says_so(account, monkeypatch):
    def full(self):
        raise LedgerError("full")

    def fail():
        with charging(account):
            monkeypatch.setattr(storage.EntryFile, "appending", full)
            raise ValueError("records")

    with pytest.raises(ValueError, match="records") as caught:
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
    with charging(account, token=token):
        pass
    assert len(account.runs()) == 2
    for wrong in ({"run": "0" * 64}, {"run": run_id, "event": GaussianEvent(9.0)}):
        with pytest.raises(LedgerError, match="ledger must hold the run"), charging(account, **wrong):
            pass
    with pytest.raises(ValueError, match="records"), charging(account, token=bytes(32)):
        raise ValueError("records")
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


# Damage


def test_sql_cannot_change_what_is_there(account):
    run(account)
    with sqlite3.connect(account.path) as connection:
        for statement in (
            "DELETE FROM entries",
            "UPDATE entries SET content = '{}' WHERE number = 2",
            "INSERT INTO entries VALUES (7, 'charge', '{}', '')",
            "INSERT OR REPLACE INTO entries VALUES (2, 'charge', '{}', '')",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
    connection.close()
    assert statuses(account) == ["finished"]


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE entries SET content = replace(content, '8.0', '9.0') WHERE number = 2"],
        ["DELETE FROM entries WHERE number = 2"],
        ["DELETE FROM entries"],
        ["UPDATE entries SET kind = 'finish' WHERE number = 2"],
        ["INSERT INTO entries VALUES (4, 'charge', '{}', '')"],
        ["UPDATE entries SET number = number + 1 WHERE number = 3"],
        ["UPDATE entries SET content = x'ff' WHERE number = 3"],
    ],
)
def test_changes_by_hand_show(account, statements):
    """Whoever drops the triggers, and puts them back, still breaks the chain."""
    run(account)
    connection = sqlite3.connect(account.path)
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    for _, sql in triggers:
        connection.execute(sql)
    connection.commit()
    connection.close()
    with pytest.raises(LedgerFormatError, match="do not chain"):
        dpi.PrivacyLedger(account.path)
    with pytest.raises(LedgerFormatError):
        run(account)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER entries_are_not_deleted",
        "CREATE TRIGGER more AFTER INSERT ON entries BEGIN SELECT 1; END",
        "CREATE TABLE more (x)",
        "CREATE VIEW v AS SELECT * FROM entries",
    ],
)
def test_another_schema_is_refused(account, statement):
    connection = sqlite3.connect(account.path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(LedgerFormatError, match="not a privacy ledger of a version"):
        account.runs()


def test_a_file_put_back_is_found_out_by_a_release(account):
    old = account.path.read_bytes()
    settings = run(account).settings
    ledger = dpi.PrivacyLedger(account.path)
    assert ledger.holds(settings["entry"], settings["digest"])
    assert not ledger.holds(settings["entry"] - 1, settings["digest"])
    assert not ledger.holds(-1, settings["digest"])
    account.path.write_bytes(old)
    assert not ledger.holds(settings["entry"], settings["digest"])
    run(account)
    assert not ledger.holds(settings["entry"], settings["digest"])


def test_files_that_are_not_ledgers(account, tmp_path):
    run(account)
    whole = account.path.read_bytes()
    path = tmp_path / "other"
    others = [b"", b"SQLite format 3\x00", os.urandom(5000), whole[:50], whole[: len(whole) // 2], whole[:-1]]
    others.append(whole[:4096] + bytes(len(whole) - 4096))
    wal = bytearray(whole)
    wal[18:20] = b"\x02\x02"
    others.append(bytes(wal))
    for content in others:
        path.write_bytes(content)
        with pytest.raises(LedgerFormatError):
            dpi.PrivacyLedger(path)
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE entries (number)")
    connection.commit()
    connection.close()
    with pytest.raises(LedgerFormatError, match="is not a privacy ledger"):
        dpi.PrivacyLedger(path)
    with pytest.raises(LedgerFormatError, match="regular file"):
        dpi.PrivacyLedger(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(LedgerFormatError, match="regular file"):
            dpi.PrivacyLedger(tmp_path / "pipe")


def test_a_newer_version_is_refused(tmp_path):
    storage.EntryFile.create(tmp_path / "new", "ledger", {"format": "dpinfer-ledger", "version": 2})
    with pytest.raises(LedgerFormatError, match="newer version"):
        dpi.PrivacyLedger(tmp_path / "new")
    storage.EntryFile.create(tmp_path / "else", "ledger", {"format": "other", "version": 1})
    with pytest.raises(LedgerFormatError, match="another kind"):
        dpi.PrivacyLedger(tmp_path / "else")


# Resources


@pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")
def test_a_read_only_file_can_be_read_and_charges_nothing(account):
    run(account)
    account.path.chmod(0o444)
    folders = [parent for parent in account.path.parents if parent.stat().st_mode & 0o055 != 0o055]
    as_root = os.geteuid() == 0
    modes = {folder: folder.stat().st_mode for folder in folders}
    try:
        if as_root:
            # Root may write to any file.
            for folder in folders:
                folder.chmod(modes[folder] | 0o055)
            os.seteuid(65534)
        assert statuses(account) == ["finished"]
        with pytest.raises(LedgerError, match="read-only"):
            run(account)
        assert statuses(account) == ["finished"]
    finally:
        if as_root:
            os.seteuid(0)
            for folder, mode in modes.items():
                folder.chmod(mode)


def test_a_locked_ledger_is_waited_for_and_then_given_up(account, monkeypatch):
    monkeypatch.setattr(storage, "_LOCK_SECONDS", 0.1)
    with storage.EntryFile(account.path).appending() as (_, append):
        with pytest.raises(LedgerError, match="locked for"):
            run(account)
        append("charge", {})
    with pytest.raises(LedgerFormatError, match="no meaning"):
        dpi.PrivacyLedger(account.path)


LIMITED = """
import resource, sys, os
import dpinfer as dpi
from dpinfer.accounting import GaussianEvent, charge_run
account = dpi.PrivacyLedger(sys.argv[1]).dataset("census")
size = os.path.getsize(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
count = 0
try:
    while True:
        with charge_run(account, GaussianEvent(5000.0), adjacency="add_remove", mechanism="x", secure=True, delta=1e-5) as c:
            c.begin()
            count += 1
except dpi.errors.LedgerError as error:
    print(count, error)
"""  # noqa: E501


def test_a_full_disk_refuses_the_run_and_keeps_the_ledger(account):
    pytest.importorskip("resource", reason="file-size limits need POSIX")
    before = account.runs()
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(account.path)],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    count, message = result.stdout.split(" ", 1)
    assert "disk is full" in message
    assert "nothing was written" in message
    # Every run that began is there.
    assert len(account.runs()) - len(before) == int(count)
    run(account)
    assert not [path for path in account.path.parent.iterdir() if path != account.path]


def test_a_full_disk_when_a_ledger_is_made(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise sqlite3.OperationalError("disk I/O error")

    def no_links(source, target):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(storage, "_insert", full)
    with pytest.raises(LedgerError):
        dpi.PrivacyLedger.create(tmp_path / "x.ledger")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(os, "link", no_links)
    assert dpi.PrivacyLedger.create(tmp_path / "x.ledger").datasets == ()
    assert len(list(tmp_path.iterdir())) == 1


# Many processes

WRITER = """
import sys, time
import dpinfer as dpi
from dpinfer.accounting import GaussianEvent, charge_run
account = dpi.PrivacyLedger(sys.argv[1]).dataset("census")
print("ready", flush=True)
sys.stdin.readline()
accepted = refused = 0
for _ in range(int(sys.argv[2])):
    try:
        with charge_run(
            account, GaussianEvent(8.0), adjacency="add_remove", mechanism=sys.argv[3], secure=True, delta=1e-5
        ) as charge:
            charge.begin()
            print("began", flush=True)
        accepted += 1
    except dpi.errors.BudgetExceededError:
        refused += 1
print(accepted, refused, flush=True)
"""


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def start_writer(account, count, name):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(account.path), str(count), name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def test_concurrent_writers_never_overspend(ledger):
    budget = dpi.account(SelfComposed(EVENT, 5), delta=DELTA).epsilon
    account = ledger.add_dataset("census", budget=(budget * (1 + 1e-9), DELTA))
    writers = [start_writer(account, 3, f"writer {index}") for index in range(3)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    outputs = [writer.communicate(timeout=60)[0].splitlines()[-1] for writer in writers]
    accepted = sum(int(line.split()[0]) for line in outputs)
    assert accepted == 5
    assert sum(int(line.split()[1]) for line in outputs) == 4
    assert statuses(account) == ["finished"] * 5
    assert account.spent().epsilon <= budget * (1 + 1e-9)
    ledger.entries()


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("delay", [0.005])
def test_a_killed_writer_leaves_a_whole_ledger_with_every_begun_run(ledger, delay):
    account = ledger.add_dataset("census")
    writer = start_writer(account, 10_000, "victim")
    assert writer.stdout.readline() == "ready\n"
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == "began\n"
    time.sleep(delay)
    writer.kill()
    # Not communicate(): it would not see what readline() has read ahead.
    began = 1 + writer.stdout.read().count("began\n")
    writer.communicate()
    found = statuses(account)
    assert began <= len(found) <= began + 1
    assert found.count("started") <= 2
    run(account)
    assert statuses(account)[-1] == "finished"
