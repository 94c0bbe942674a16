"""The ledger's file: damage shows, a full disk or a lock refuses the run, and any number of processes may write."""

import errno
import os
import sqlite3
import subprocess
import sys
import time

import pytest
from tests.reference.ledger_runs import DELTA, EVENT, run, statuses

import dpinfer as dpi
from dpinfer.accounting import SelfComposed
from dpinfer.accounting import _ledger_file as storage
from dpinfer.errors import LedgerError, LedgerFormatError

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
