"""One ledger, many threads, processes and names: no lock is lost, no charge is overwritten, and nobody is sent away."""

import builtins
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from tests.reference.ledger_runs import DELTA, EVENT, run, statuses

import dpinfer as dpi
from dpinfer.accounting import SelfComposed
from dpinfer.accounting import _ledger_file as access
from dpinfer.accounting import _ledger_file as storage
from dpinfer.errors import BudgetExceededError, LedgerError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="locks, forks and links are those of POSIX")

OTHER_PROCESS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
    print("admitted")
except sqlite3.OperationalError as error:
    print(error)
"""


def other_process_begins(path):
    """Return what another process, with nothing but SQLite, is told when it wants to write."""
    command = [sys.executable, "-c", OTHER_PROCESS, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def in_a_thread(work):
    """Do `work` in another thread, and return what it returned or raised."""
    found = []

    def kept():
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=kept)
    thread.start()
    thread.join()
    return found[0]


READERS = {
    "spent": lambda account: account.spent().epsilon,
    "runs": lambda account: account.runs(),
    "remaining": lambda account: account.remaining(),
    "opened": lambda account: dpi.PrivacyLedger(account.path),
    "entries": lambda account: dpi.PrivacyLedger(account.path).entries(),
    "check": lambda account: account.check(EVENT, adjacency="add_remove"),
    "made again": lambda account: make_again(account.path),
}


def make_again(path):
    with contextlib.suppress(FileExistsError):
        dpi.PrivacyLedger.create(path)


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_in_another_thread_leaves_the_writers_lock(account, reader):
    """POSIX drops all locks of a process on a file when any descriptor of it is closed."""
    with storage.EntryFile(account.path).appending():
        assert other_process_begins(account.path) == "database is locked"
        found = in_a_thread(lambda: READERS[reader](account))
        assert not isinstance(found, Exception)
        assert other_process_begins(account.path) == "database is locked"
    assert other_process_begins(account.path) == "admitted"


def test_the_power_of_that(account):
    """The fault it is for: one plain open and close, and the other process is let in."""
    with storage.EntryFile(account.path).appending():
        in_a_thread(lambda: account.path.open("rb").close())
        assert other_process_begins(account.path) == "admitted"


CHARGE = """
import sys
import dpinfer as dpi
from dpinfer.accounting import GaussianEvent, charge_run
account = dpi.PrivacyLedger(sys.argv[1]).dataset("census")
print("waits", flush=True)
sys.stdin.readline()
try:
    with charge_run(account, GaussianEvent(8.0), adjacency="add_remove", mechanism="x", secure=True, delta=1e-5) as charge:
        charge.begin()
    print("granted")
except dpi.errors.BudgetExceededError:
    print("refused")
"""  # noqa: E501


def test_two_runs_of_nine_tenths_are_not_both_granted(ledger, monkeypatch):
    """One thread inside a charge, one that reads, and a second process that charges."""
    one = dpi.account(EVENT, delta=DELTA).epsilon
    account = ledger.add_dataset("census", budget=(one / 0.9, DELTA))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CHARGE, str(account.path)]
    inside, go_on, admit = threading.Event(), threading.Event(), dpi.accounting.LedgerAccount.admit

    def slowly(self, *arguments):
        bound = admit(self, *arguments)
        inside.set()
        go_on.wait(10)
        return bound

    monkeypatch.setattr(dpi.accounting.LedgerAccount, "admit", slowly)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout.readline() == "waits\n"
        charging = threading.Thread(target=lambda: in_a_thread(lambda: run(account)))
        charging.start()
        assert inside.wait(10)
        account.spent()
        other.stdin.write("\n")
        other.stdin.flush()
        for _ in range(5):
            assert account.spent().epsilon == 0.0
            time.sleep(0.02)
        go_on.set()
        charging.join()
        assert other.stdout.read() == "refused\n"
    assert statuses(account) == ["finished"]


def test_nothing_opens_the_file_but_sqlite(account, monkeypatch):
    opened = []

    def watched(function):
        def watch(path, *arguments, **options):
            if not isinstance(path, int) and Path(path).exists() and Path(path).samefile(account.path):
                opened.append(path)
            return function(path, *arguments, **options)

        return watch

    for place in (builtins, io, os):
        monkeypatch.setattr(place, "open", watched(place.open))
    account.path.open("rb").close()
    assert len(opened) == 1
    opened.clear()
    run(account)
    for reader in READERS.values():
        reader(account)
    assert opened == []


# Waiting


def test_many_waiters_are_admitted_one_after_the_other(account, monkeypatch):
    """Each waits for longer than the limit in all, but never so long without a change to the file."""
    monkeypatch.setattr(storage, "_LOCK_SECONDS", 0.25)
    admit = dpi.accounting.LedgerAccount.admit

    def slowly(self, *arguments):
        time.sleep(0.08)
        return admit(self, *arguments)

    monkeypatch.setattr(dpi.accounting.LedgerAccount, "admit", slowly)
    outcomes = []

    def charge():
        try:
            outcomes.append(run(account).run)
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=charge) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {type(outcome) for outcome in outcomes} <= {str, BudgetExceededError}
    assert sorted(item for item in outcomes if isinstance(item, str)) == sorted(item.run for item in account.runs())


def test_a_thread_that_keeps_the_lock_is_given_up(account, monkeypatch):
    monkeypatch.setattr(storage, "_LOCK_SECONDS", 0.1)
    with storage.EntryFile(account.path).appending():
        found = in_a_thread(lambda: run(account))
    assert isinstance(found, LedgerError)
    assert "another process or thread has kept it locked" in str(found)
    assert account.runs() == ()


STRESS = """
import sys, threading
import dpinfer as dpi
from dpinfer.accounting import GaussianEvent, charge_run
account = dpi.PrivacyLedger(sys.argv[1]).dataset("census")
print("ready", flush=True)
sys.stdin.readline()
stop, outcomes = threading.Event(), []
def charge():
    try:
        with charge_run(account, GaussianEvent(8.0), adjacency="add_remove", mechanism="x", secure=True, delta=1e-5) as charge:
            charge.begin()
        outcomes.append(charge.run)
    except dpi.errors.BudgetExceededError:
        outcomes.append("refused")
    except Exception as error:
        outcomes.append(repr(error))
def read():
    while not stop.is_set():
        try:
            account.spent(), dpi.PrivacyLedger(account.path).entries()
        except Exception as error:
            outcomes.append(repr(error))
            return
threads = [threading.Thread(target=charge) for _ in range(3)]
reader = threading.Thread(target=read)
for thread in (reader, *threads):
    thread.start()
for thread in threads:
    thread.join()
stop.set()
reader.join()
print("\\n".join(outcomes), flush=True)
"""  # noqa: E501


def test_processes_with_threads_and_readers_lose_no_charge(ledger):
    """A round of processes with threads that charge and threads that read."""
    budget = dpi.account(SelfComposed(EVENT, 5), delta=DELTA).epsilon * (1 + 1e-9)
    account = ledger.add_dataset("census", budget=(budget, DELTA))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", STRESS, str(account.path)]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    processes = [subprocess.Popen(command, **options) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    outcomes = []
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        outcomes += process.communicate(timeout=60)[0].split("\n")[:-1]
    assert outcomes.count("refused") == 1
    assert sorted(item for item in outcomes if item != "refused") == sorted(item.run for item in account.runs())
    assert statuses(account) == ["finished"] * 5


# Names


def test_a_second_name_is_refused(account, tmp_path, monkeypatch):
    """SQLite looks for the journal of a writer that died beside the name it is given."""
    monkeypatch.setattr(storage, "_NAME_SECONDS", 0.05)
    other = tmp_path / "elsewhere.ledger"
    os.link(account.path, other)
    for path in (account.path, other):
        with pytest.raises(LedgerError, match="must have one name"):
            dpi.PrivacyLedger(path)
    with pytest.raises(LedgerError, match="must have one name"):
        run(account)
    other.unlink()
    run(account)


def test_a_name_that_goes_away_is_waited_for(account, tmp_path):
    """A new ledger has two names while it is put in place, and may be opened by another process meanwhile."""
    other = tmp_path / "elsewhere.ledger"
    os.link(account.path, other)
    timer = threading.Timer(0.1, other.unlink)
    timer.start()
    assert account.runs() == ()
    timer.join()


def test_symbolic_links_lead_to_one_ledger(account, tmp_path):
    link = tmp_path / "link.ledger"
    link.symlink_to(account.path)
    (tmp_path / "folder").symlink_to(tmp_path, target_is_directory=True)
    for path in (link, tmp_path / "folder" / account.path.name):
        run(dpi.PrivacyLedger(path).dataset("census"))
    assert statuses(account) == ["finished"] * 2
    with storage.EntryFile(account.path).appending():
        assert other_process_begins(link) == "database is locked"


@pytest.mark.parametrize("written", [False, True])
def test_a_file_that_is_replaced_while_it_is_written_to_admits_nothing(account, tmp_path, written):
    """Else the charge would be in a file that nobody finds."""
    shutil.copy(account.path, tmp_path / "older")

    def charge():
        with storage.EntryFile(account.path).appending() as (_, append):
            if written:
                append("finish", {})
            (tmp_path / "older").replace(account.path)
            if not written:
                append("finish", {})

    with pytest.raises(LedgerError, match=r"moved or replaced|cannot be used"):
        charge()
    run(account)


# Forks


def forked(work):
    """Return the exit status of a fork that does `work`: 0 if it returned, 3 for a LedgerError."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks next to threads, which is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        # A child that hangs ends with another status.
        signal.alarm(30)
        status = 1
        try:
            work()
            status = 0
        except LedgerError:
            status = 3
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.forks
def test_a_fork_waits_for_a_charge_in_another_thread(account):
    """The child would take over SQLite's table of locks, and not the locks."""
    inside, order = threading.Event(), []

    def charge():
        with storage.EntryFile(account.path).appending():
            inside.set()
            time.sleep(0.2)
            order.append("charged")

    thread = threading.Thread(target=charge)
    thread.start()
    inside.wait(10)
    assert forked(lambda: run(account)) == 0
    order.append("forked")
    thread.join()
    assert order == ["charged", "forked"]
    assert statuses(account) == ["finished"]
    run(account)


@pytest.mark.forks
def test_a_fork_that_could_not_wait_is_refused(account, monkeypatch):
    """Because a charge takes longer than a fork waits, or because the charging thread itself forks."""
    monkeypatch.setattr(access, "_FORK_SECONDS", 0.01)
    with storage.EntryFile(account.path).appending():
        assert forked(account.spent) == 3
        assert in_a_thread(lambda: forked(account.spent)) == 3
        assert forked(lambda: None) == 0
    assert forked(account.spent) == 0
