"""Copies of a checkpoint, and second names of it: no key meets two data sets, no charge pays for two releases."""

import contextlib
import json
import os
import shutil

import pytest

import dpinfer as dpi
from dpinfer.errors import CheckpointError, LedgerError, PrivacyLeakWarning, RecordError
from dpinfer.mechanism import OSRandomSource, RunCheckpoint
from dpinfer.mechanism import checkpoint as module
from dpinfer.mechanism.trace import dpvi


@pytest.fixture(scope="module", autouse=True)
def streams_of_steps():
    """Noise of the query, as in every run outside of the tests."""


STEPS = 6


@pytest.fixture(scope="module")
def plan():
    return dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.3, n_steps=STEPS)


@pytest.fixture
def records(rng):
    return rng.normal(size=(80, 2)), (rng.random(80) < 0.5).astype(float)


@pytest.fixture
def changed(records):
    X = records[0].copy()
    X[7] += 1.0
    return X, records[1]


@pytest.fixture
def account(tmp_path):
    return dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.checkpoint"


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy.checkpoint"


class Killed(BaseException):
    """Ends a run without any of its own clean-up being able to write, as a kill does."""


def run(plan, records, **options):
    defaults = {"n_records": 80, "max_grad_norm": 2.0, "random_source": OSRandomSource()}
    return dpi.run_dpvi(dpi.models.LogisticRegression(2), *records, plan=plan, **(defaults | options))


def kill(*arguments, **options):
    raise Killed


def kill_at(monkeypatch, place, name, call):
    """Make a call whose process dies where `name` is asked for."""
    with monkeypatch.context() as patch:
        patch.setattr("dpinfer.accounting.charging.Charge._cancel", lambda self, error: None)
        patch.setattr(RunCheckpoint, "discard", lambda self: None)
        patch.setattr(place, name, kill)
        with pytest.raises(Killed):
            call()


def stop_after(count):
    def report(done, total):
        if done == count:
            raise Killed

    return report


@pytest.fixture
def unbound(plan, records, path, copy, account, monkeypatch):
    """A run that died before it was bound to its records, and a copy of its checkpoint."""
    kill_at(monkeypatch, dpvi, "load_source", lambda: run(plan, records, ledger=account, checkpoint=path))
    shutil.copy(path, copy)
    return copy


# With a ledger


def test_a_file_without_records_has_no_key(unbound):
    record = RunCheckpoint(unbound).load()
    assert (record.key, record.tag_key, record.tag) == (b"", b"", None)
    assert record.token is not None


def test_a_copy_from_before_is_refused_when_the_run_has_finished(plan, records, changed, path, unbound, account):
    run(plan, records, ledger=account, checkpoint=path)
    for data in (records, changed):
        with pytest.raises(CheckpointError, match="is an older copy"):
            run(plan, data, ledger=account, checkpoint=unbound)
    assert [item.status for item in account.runs()] == ["finished"]
    assert unbound.exists()


def test_and_when_it_has_begun(plan, records, changed, path, unbound, account):
    with pytest.raises(Killed):
        run(plan, records, ledger=account, checkpoint=path, progress=stop_after(2))
    with pytest.raises(LedgerError, match="is a copy made before"):
        run(plan, changed, ledger=account, checkpoint=unbound)
    run(plan, records, ledger=account, checkpoint=path)
    assert [item.status for item in account.runs()] == ["finished"]


def test_and_when_both_are_about_to_begin(plan, records, changed, path, unbound, account, monkeypatch):
    """The ledger takes one binding: the other file, whose process read the ledger before, draws nothing."""
    begin = module.binding

    def overtaken(record):
        monkeypatch.setattr(dpi.mechanism.private_run, "binding", begin)
        run(plan, changed, ledger=account, checkpoint=unbound)
        return begin(record)

    monkeypatch.setattr(dpi.mechanism.private_run, "binding", overtaken)
    monkeypatch.setattr(dpvi._Gradients, "query", watched := Watched(dpvi._Gradients.query))
    with pytest.raises(LedgerError, match="and is a copy"):
        run(plan, records, ledger=account, checkpoint=path)
    assert watched.calls == STEPS
    assert [item.status for item in account.runs()] == ["finished"]


class Watched:
    """A method that counts its calls."""

    def __init__(self, method):
        self.method, self.calls = method, 0

    def __get__(self, instance, owner):
        def call(*arguments):
            self.calls += 1
            return self.method(instance, *arguments)

        return call


def test_a_copy_cannot_cancel_a_run_that_has_begun(plan, records, path, unbound, account):
    with pytest.raises(Killed):
        run(plan, records, ledger=account, checkpoint=path, progress=stop_after(2))
    with pytest.raises(LedgerError):
        run(plan, (records[0], records[1] + 0.5), ledger=account, checkpoint=unbound)
    assert [item.status for item in account.runs()] == ["started"]


def test_a_copy_that_cancels_before_stops_the_run(plan, records, path, unbound, account, monkeypatch):
    """Its charge is gone, and nothing is drawn."""
    begin = module.binding

    def overtaken(record):
        monkeypatch.setattr(dpi.mechanism.private_run, "binding", begin)
        with pytest.warns(PrivacyLeakWarning):
            refunding = dpi.PrivacyLedger(account.path).dataset(account.dataset, refund_refused=True)
        with pytest.raises(RecordError):
            run(plan, (records[0], records[1] + 0.5), ledger=refunding, checkpoint=unbound)
        return begin(record)

    monkeypatch.setattr(dpi.mechanism.private_run, "binding", overtaken)
    with pytest.raises(LedgerError, match="was cancelled"):
        run(plan, records, ledger=account, checkpoint=path)
    assert [item.status for item in account.runs()] == ["cancelled"]


def test_the_ledger_refuses_what_no_run_writes(account):
    from dpinfer.accounting._ledger_file import EntryFile
    from dpinfer.accounting.charging import charge_run

    def entries(*added):
        with charge_run(
            account, dpi.accounting.GaussianEvent(50.0), adjacency="add_remove", mechanism="x", secure=True, delta=1e-5
        ) as charge:
            token, identity = charge.token, charge.run
            with EntryFile(account.path).appending() as (held, append):
                for kind, content in added:
                    append(kind, {"run": identity, "time": "now", **content(token)})
                dpi.accounting.ledger_state.read_state(held)

    begin = ("begin", lambda token: {"binding": "0" * 64})
    for wrong in (
        (("begin", lambda token: {"binding": "0" * 63}),),
        (begin, begin),
        (begin, ("cancel", lambda token: {"token": token.hex()})),
        (("begins", lambda token: {"binding": "0" * 64}),),
    ):
        with pytest.raises(dpi.errors.LedgerFormatError):
            entries(*wrong)
    entries(begin)
    assert account.runs()[-1].binding == "0" * 64


def test_an_older_copy_of_a_bound_file_is_refused_when_the_run_has_finished(plan, records, path, copy, account):
    """Where its arithmetic differed, the same noise would be on other sums."""
    place = RunCheckpoint(path, interval=0.0)
    with pytest.raises(Killed):
        run(plan, records, ledger=account, checkpoint=place, progress=stop_after(2))
    shutil.copy(path, copy)
    release = run(plan, records, ledger=account, checkpoint=place)
    with pytest.raises(CheckpointError, match="is an older copy"):
        run(plan, records, ledger=account, checkpoint=copy)
    again = run(plan, records, ledger=account, checkpoint=place)
    assert again.noisy_gradients.tobytes() == release.noisy_gradients.tobytes()


def test_a_run_that_died_after_it_had_finished_gives_its_release(plan, records, path, account, monkeypatch):
    kill_at(monkeypatch, RunCheckpoint, "discard", lambda: run(plan, records, ledger=account, checkpoint=path))
    assert [item.status for item in account.runs()] == ["finished"]
    assert RunCheckpoint(path).load().complete
    run(plan, records, ledger=account, checkpoint=path)
    assert not path.exists()


def test_a_folder_restored_from_a_backup_has_another_key(plan, records, changed, tmp_path, unbound, account):
    """Two copies of ledger and checkpoint cannot know of each other: what they share is no key."""
    other = tmp_path / "restored"
    other.mkdir()
    shutil.copy(account.path, other / "spent.ledger")
    shutil.copy(unbound, other / "run.checkpoint")
    keys = []
    for folder, data in ((tmp_path, records), (other, changed)):
        kept = RunCheckpoint(folder / "run.checkpoint")
        run(plan, data, ledger=dpi.PrivacyLedger(folder / "spent.ledger").dataset("people"), checkpoint=kept)
        keys.append(kept.load().key)
    assert len(set(keys)) == 2


# Without one


def test_without_a_ledger_there_is_no_file_before_the_records_are_bound(plan, records, path, monkeypatch):
    kill_at(monkeypatch, dpvi, "load_source", lambda: run(plan, records, checkpoint=path))
    kill_at(monkeypatch, dpvi, "open_gradients", lambda: run(plan, records, checkpoint=path))
    assert not path.exists()
    saved = []

    def kept(self, record):
        saved.append(record)

    monkeypatch.setattr(RunCheckpoint, "save", kept)
    run(plan, records, checkpoint=RunCheckpoint(path, interval=0.0))
    assert len(saved) == STEPS + 1
    assert all(record.tag is not None and len(record.key) == 32 for record in saved)


def test_a_key_that_was_saved_without_records_is_not_used(plan, records, path):
    """Files of earlier versions had one; a copy of the file may have used it."""
    with pytest.raises(Killed):
        run(plan, records, checkpoint=path, progress=stop_after(2))
    content = path.read_bytes()
    start = len(module._MAGIC) + 32
    length = int.from_bytes(content[start : start + 8], "little")
    header = json.loads(content[start + 8 : start + 8 + length])
    key = header["key"]
    header |= {"tag": None, "token": "11" * 32, "step": 0, "arrays": {}}
    text = json.dumps(header).encode()
    body = len(text).to_bytes(8, "little") + text
    path.write_bytes(module._MAGIC + module.hashlib.sha256(body).digest() + body)
    assert RunCheckpoint(path).load().key == b""
    place = RunCheckpoint(path)
    run(plan, records, checkpoint=place)
    assert place.load().key.hex() != key


def test_a_copy_of_a_bound_file_is_the_same_function(plan, records, changed, path, copy):
    """It refuses other records, and gives the one release of its own."""
    with pytest.raises(Killed):
        run(plan, records, checkpoint=RunCheckpoint(path, interval=0.0), progress=stop_after(2))
    shutil.copy(path, copy)
    with pytest.raises(RecordError, match="must be those of the interrupted run"):
        run(plan, changed, checkpoint=copy)
    one, other = run(plan, records, checkpoint=path), run(plan, records, checkpoint=copy)
    assert one.noisy_gradients.tobytes() == other.noisy_gradients.tobytes()


def test_two_new_runs_from_one_name_have_two_keys(plan, records, changed, path, monkeypatch):
    """Locks fail on some network file systems: that keys differ does not rest on them."""
    monkeypatch.setattr(RunCheckpoint, "held", lambda self: contextlib.nullcontext())
    check, save, saved = dpvi.load_source, RunCheckpoint.save, []

    def meanwhile(*arguments):
        monkeypatch.setattr(dpvi, "load_source", check)
        run(plan, changed, checkpoint=path)
        return check(*arguments)

    monkeypatch.setattr(dpvi, "load_source", meanwhile)
    monkeypatch.setattr(RunCheckpoint, "save", lambda self, record: saved.append(record) or save(self, record))
    run(plan, records, checkpoint=path)
    assert len({record.tag for record in saved}) == len({record.key for record in saved}) == 2


# Names


@pytest.mark.skipif(os.name != "posix", reason="symbolic links need a privilege on Windows")
@pytest.mark.parametrize("folder", [False, True])
def test_a_symbolic_link_leads_to_the_same_file_and_lock(plan, records, changed, path, tmp_path, folder):
    if folder:
        (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
        link = tmp_path / "link" / path.name
    else:
        link = tmp_path / "link.checkpoint"
        link.symlink_to(path)
    refused = []

    def another(done, total):
        if done == 3:
            with pytest.raises(CheckpointError, match="in use by another run"):
                run(plan, changed, checkpoint=link)
            refused.append(done)

    run(plan, records, checkpoint=path, progress=another)
    assert refused == [3]
    with pytest.raises(Killed):
        run(plan, records, checkpoint=link, progress=stop_after(2))
    assert path.exists()
    assert path.is_file()
    assert folder or link.is_symlink()
    with pytest.raises(RecordError):
        run(plan, changed, checkpoint=path)
    run(plan, records, checkpoint=link)
    assert not path.exists()


def test_a_hard_link_is_refused(plan, records, changed, path, copy):
    with pytest.raises(Killed):
        run(plan, records, checkpoint=path, progress=stop_after(2))
    os.link(path, copy)
    for place in (path, copy):
        with pytest.raises(CheckpointError, match="must have one name"):
            run(plan, changed, checkpoint=place)
    copy.unlink()
    run(plan, records, checkpoint=path)


def test_a_renamed_file_goes_on(plan, records, changed, path, copy):
    with pytest.raises(Killed):
        run(plan, records, checkpoint=path, progress=stop_after(2))
    path.rename(copy)
    with pytest.raises(RecordError):
        run(plan, changed, checkpoint=copy)
    run(plan, records, checkpoint=copy)
