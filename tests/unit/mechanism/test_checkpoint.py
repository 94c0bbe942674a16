"""Interrupted runs: resumed bit for bit, charged once, and never with other records or settings."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import BudgetExceededError, CheckpointError, LedgerError, PrivacyLeakWarning, RecordError
from dpinfer.mechanism import FisherScaling, OSRandomSource, RunCheckpoint, private_run
from dpinfer.mechanism import checkpoint as module
from dpinfer.mechanism.trace import dpvi
from dpinfer.testing import InsecureRNG


@pytest.fixture(scope="module", autouse=True)
def streams_of_steps():
    """Noise of the query, as in every run outside of the tests."""


STEPS = 24


@pytest.fixture(scope="module")
def plan():
    return dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.3, n_steps=STEPS)


@pytest.fixture
def records(rng):
    return rng.normal(size=(80, 2)), (rng.random(80) < 0.5).astype(float)


@pytest.fixture
def account(tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger")
    return ledger.add_dataset("people", budget=(1.2, 1e-5))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.checkpoint"


class Stopped(Exception):  # noqa: N818
    pass


def stop_after(count):
    def report(done, total):
        if done == count:
            raise Stopped

    return report


def run(plan, records, **options):
    model = options.pop("model", dpi.models.LogisticRegression(2))
    defaults = {"n_records": 80, "max_grad_norm": 2.0, "random_source": InsecureRNG(3)}
    return dpi.run_dpvi(model, *records, plan=plan, **(defaults | options))


def assert_equal(one, other):
    for name in ("params", "positions", "noisy_gradients", "noise_stddev", "final_params", "grad_scale"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    assert one.learning_rate.tobytes() == other.learning_rate.tobytes()
    assert one.settings == other.settings


def every_step(path):
    return RunCheckpoint(path, interval=0.0)


VARIANTS = {
    "plain": {},
    "paper": {"recipe": "paper"},
    "aligned": {"gradient": "aligned"},
    "per example": {"loss": "per_example"},
    "rates": {"learning_rate": np.array([0.1, 0.2, 0.001, 0.002]), "grad_scale": (1.0, 30.0)},
    "start": {"start": (0.5, -1.0)},
    "tied": {"recipe": "tied"},
    "linear": {"model": dpi.models.LinearRegression(2)},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stop", [1, 11, STEPS])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(plan, records, path, variant, stop):
    options = VARIANTS[variant]
    whole = run(plan, records, **options)
    with pytest.raises(Stopped):
        run(plan, records, checkpoint=every_step(path), progress=stop_after(stop), **options)
    assert path.exists()
    # The source is not asked again: another seed changes nothing.
    resumed = run(plan, records, checkpoint=path, random_source=InsecureRNG(99), **options)
    assert_equal(resumed, whole)
    assert not path.exists()


def test_nothing_is_computed_twice(plan, records, path, monkeypatch):
    with pytest.raises(Stopped):
        run(plan, records, checkpoint=every_step(path), progress=stop_after(11))
    steps, query = [], dpvi._Gradients.query
    monkeypatch.setattr(dpvi._Gradients, "query", lambda self, step: steps.append(step) or query(self, step))
    run(plan, records, checkpoint=path)
    assert steps == list(range(11, STEPS))


def test_a_conjugate_model_is_resumed_too(plan, path, rng):
    records, model = (rng.exponential(size=80),), dpi.models.GammaExponential()
    whole = run(plan, records, model=model)
    with pytest.raises(Stopped):
        run(plan, records, model=model, checkpoint=every_step(path), progress=stop_after(5))
    assert_equal(run(plan, records, model=model, checkpoint=path), whole)


def test_steps_since_the_last_save_are_repeated_and_not_drawn_anew(plan, records, path):
    whole = run(plan, records)
    seldom = RunCheckpoint(path, interval=1e9)
    with pytest.raises(Stopped):
        run(plan, records, checkpoint=seldom, progress=stop_after(13))
    assert seldom.load().step == 0
    assert_equal(run(plan, records, checkpoint=seldom), whole)


def test_several_interruptions_and_threads(plan, records, path):
    whole = run(plan, records)
    for stop, threads in ((3, 1), (4, 2), (17, 3)):
        with pytest.raises(Stopped):
            run(plan, records, checkpoint=every_step(path), progress=stop_after(stop), n_threads=threads)
    assert_equal(run(plan, records, checkpoint=path), whole)


def test_the_release_stays_in_reach_until_it_is_safe(plan, records, path):
    place = RunCheckpoint(path, interval=1e9)
    whole = run(plan, records, checkpoint=place)
    assert place.load().step == STEPS
    assert_equal(run(plan, records, checkpoint=place, random_source=InsecureRNG(8)), whole)
    place.discard()
    place.discard()
    assert not place.exists()
    assert "run.checkpoint" in repr(place)


def test_with_a_secure_source_too(plan, records, path):
    place = every_step(path)
    with pytest.raises(Stopped):
        run(plan, records, checkpoint=place, progress=stop_after(9), random_source=OSRandomSource())
    before = place.load()
    release = run(plan, records, checkpoint=place, random_source=OSRandomSource())
    assert release.secure
    assert release.noisy_gradients[:9].tobytes() == before.arrays["gradients"].tobytes()
    assert place.load().key == before.key


# The ledger


def secure(plan, records, account, **options):
    return run(plan, records, ledger=account, random_source=OSRandomSource(), **options)


def test_one_charge_for_an_interrupted_run(plan, records, path, account):
    for stop in (2, 7):
        with pytest.raises(Stopped):
            secure(plan, records, account, checkpoint=every_step(path), progress=stop_after(stop))
    release = secure(plan, records, account, checkpoint=path)
    (entry,) = account.runs()
    assert entry.status == "finished"
    assert release.settings["ledger"]["run"] == entry.run
    with pytest.raises(BudgetExceededError):
        secure(plan, records, account, checkpoint=path)
    assert not path.exists()


class Killed(BaseException):
    """Ends a run without any of its own clean-up being able to write, as a kill does."""


@pytest.mark.parametrize("point", ["token saved", "charged", "records checked", "bound", "begun", "end"])
def test_killed_between_any_two_steps_there_is_one_charge(plan, records, path, account, monkeypatch, point):
    """After the kill the same call finishes the run, and the ledger holds it once; nothing is drawn under two keys."""

    def kill(*arguments, **options):
        raise Killed

    with monkeypatch.context() as patch:
        # Nothing that runs after the kill may tidy up.
        if point == "token saved":
            patch.setattr(private_run, "charge_run", kill)
        elif point == "charged":
            patch.setattr(dpvi, "load_source", kill)
        elif point == "records checked":
            patch.setattr(dpvi._Gradients, "start", kill)
        elif point == "bound":
            patch.setattr("dpinfer.accounting.charging.Charge.begin", kill)
        elif point == "begun":
            patch.setattr(dpvi._Gradients, "query", kill)
        else:
            patch.setattr("dpinfer.accounting.charging.Charge._finish", kill)
        patch.setattr("dpinfer.accounting.charging.Charge._cancel", lambda self, error: None)
        patch.setattr(RunCheckpoint, "discard", lambda self: None)
        with pytest.raises(Killed):
            secure(plan, records, account, checkpoint=path)
    assert path.exists()
    saved = RunCheckpoint(path).load()
    # A key is on the disk only together with the tag of its records.
    bound = point in ("bound", "begun", "end")
    assert (len(saved.key), saved.tag is not None) == ((32, True) if bound else (0, False))
    assert len(account.runs()) == (0 if point == "token saved" else 1)
    place = RunCheckpoint(path)
    secure(plan, records, account, checkpoint=place)
    assert place.load().run == saved.run
    assert not bound or place.load().key == saved.key
    assert [item.status for item in account.runs()] == ["finished"]


def test_a_cancelled_run_is_not_gone_on_with(plan, records, path, account, monkeypatch):
    bad = (records[0], records[1] + 0.5)
    with pytest.warns(PrivacyLeakWarning):
        account = dpi.PrivacyLedger(account.path).dataset(account.dataset, refund_refused=True)
    with monkeypatch.context() as patch:
        patch.setattr(RunCheckpoint, "discard", lambda self: None)
        with pytest.raises(RecordError):
            secure(plan, bad, account, checkpoint=path)
    cancelled = RunCheckpoint(path).load()
    place = RunCheckpoint(path)
    secure(plan, records, account, checkpoint=place)
    assert place.load().run != cancelled.run
    assert [item.status for item in account.runs()] == ["cancelled", "finished"]


def test_refused_runs_leave_no_file(plan, records, path, account):
    with pytest.raises(RecordError):
        secure(plan, (records[0], records[1] + 0.5), account, checkpoint=path)
    assert not path.exists()
    # The refused run stays charged.
    with pytest.raises(BudgetExceededError):
        secure(plan, records, account, checkpoint=path)
    with pytest.raises(dpi.errors.InsecureReleaseError):
        run(plan, records, ledger=dpi.PrivacyLedger(account.path).add_dataset("x"), checkpoint=path)
    with pytest.raises(ValueError, match="is a function"):
        run(plan, records, checkpoint=path, learning_rate=lambda step, params: 0.1)
    assert sorted(item.name for item in path.parent.iterdir()) == ["spent.ledger"]


def test_a_ledger_that_does_not_hold_the_run(plan, records, path, account, tmp_path):
    with pytest.raises(Stopped):
        secure(plan, records, account, checkpoint=every_step(path), progress=stop_after(2))
    other = dpi.PrivacyLedger.create(tmp_path / "other.ledger").add_dataset("people")
    with pytest.raises(LedgerError, match="must hold the run"):
        secure(plan, records, other, checkpoint=path)
    with pytest.raises(CheckpointError, match="differs in dataset"):
        run(plan, records, random_source=OSRandomSource(), checkpoint=path)
    assert path.exists()
    secure(plan, records, account, checkpoint=path)


def test_a_busy_ledger_does_not_cost_the_run(plan, records, path, account, monkeypatch):
    from dpinfer.accounting import _ledger_file as storage

    with monkeypatch.context() as patch:
        patch.setattr(storage, "_LOCK_SECONDS", 0.05)
        with storage.EntryFile(account.path).appending(), pytest.raises(LedgerError, match="locked"):
            secure(plan, records, account, checkpoint=path)
    secure(plan, records, account, checkpoint=path)
    assert [item.status for item in account.runs()] == ["finished"]


def test_two_runs_cannot_share_a_checkpoint(plan, records, path):
    """Else two data sets could meet one key: the first run has not yet tied it to its records."""
    refused = []

    def another(done, total):
        if done == 3:
            with pytest.raises(CheckpointError, match="in use by another run"):
                run(plan, (records[0] + 1.0, records[1]), checkpoint=path)
            refused.append(done)

    run(plan, records, checkpoint=path, progress=another)
    assert refused == [3]
    assert list(path.parent.iterdir()) == []
    # What a killed process leaves of the lock holds nobody up.
    path.with_name(f".{path.name}.lock").touch()
    run(plan, records, checkpoint=path)
    assert list(path.parent.iterdir()) == []


# What must be the same


@pytest.mark.parametrize("change", ["value", "row", "type", "order"])
def test_other_records_are_refused_without_a_word_about_them(plan, records, path, change):
    X, y = records
    with pytest.raises(Stopped):
        run(plan, records, checkpoint=every_step(path), progress=stop_after(4))
    before = path.read_bytes()
    if change == "value":
        X = X.copy()
        X[7, 1] = np.nextafter(X[7, 1], 9.0)
    elif change == "row":
        X, y = X[:-1], y[:-1]
    elif change == "type":
        X = X.astype(np.float32)
    else:
        X = X[::-1]
    with pytest.raises(RecordError, match="must be those of the interrupted run") as caught:
        run(plan, (X, y), checkpoint=path)
    assert not any(character.isdigit() for character in str(caught.value))
    assert path.read_bytes() == before
    run(plan, records, checkpoint=path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"max_grad_norm": 2.5}, "max_grad_norm, numbers"),
        ({"n_records": 81}, "n_records"),
        ({"loss": "per_example"}, "settings"),
        ({"grad_scale": (1.0, 2.0)}, "numbers"),
        ({"learning_rate": 0.5}, "numbers"),
        ({"start": (0.0, 1.0)}, "numbers"),
        ({"model": dpi.models.LogisticRegression(2, prior_scale=3.0)}, "model"),
        ({"model": dpi.models.ProbitRegression(2)}, "model"),
        ({"random_source": OSRandomSource()}, "secure"),
        ({"recipe": "tied"}, "numbers, scaling"),
    ],
)
def test_other_settings_are_refused(plan, records, path, change, told):
    with pytest.raises(Stopped):
        run(plan, records, checkpoint=every_step(path), progress=stop_after(4))
    with pytest.raises(CheckpointError, match=f"differs in {told}"):
        run(plan, records, checkpoint=path, **change)
    assert path.exists()


def test_another_plan_or_version_is_refused(plan, records, path, monkeypatch):
    with pytest.raises(Stopped):
        run(plan, records, checkpoint=every_step(path), progress=stop_after(4))
    more = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.3, n_steps=STEPS + 1)
    with pytest.raises(CheckpointError, match="plan"):
        run(more, records, checkpoint=path)
    monkeypatch.setattr("dpinfer.mechanism.run.__version__", "999")
    with pytest.raises(CheckpointError, match="differs in version"):
        run(plan, records, checkpoint=path)


def test_two_fisher_scalings_are_told_apart(plan, records, path):
    model = dpi.models.LogisticRegression(2)
    one, other = (FisherScaling(model, 80, 0.3, STEPS, raw_ratio=ratio) for ratio in (0.2, 0.3))
    with pytest.raises(Stopped):
        run(plan, records, grad_scale=one, checkpoint=every_step(path), progress=stop_after(4))
    with pytest.raises(CheckpointError, match="scaling"):
        run(plan, records, grad_scale=other, checkpoint=path)


# The file


@pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")
def test_the_file_is_secret(plan, records, path):
    old = os.umask(0)
    try:
        with pytest.raises(Stopped):
            run(plan, records, checkpoint=every_step(path), progress=stop_after(4))
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"SECRET" in path.read_bytes()[:100]
    record = RunCheckpoint(path).load()
    for secret in (record.key, record.tag_key, record.tag):
        assert secret.hex() not in repr(record)
        assert repr(secret) not in repr(record)


def test_what_a_killed_save_leaves_is_removed(plan, records, path):
    leftover = path.with_name(f".{path.name}.0123456789abcdef.part")
    leftover.write_bytes(b"half a key")
    run(plan, records, checkpoint=path)
    assert list(path.parent.iterdir()) == []


def test_files_that_are_not_checkpoints_are_left_alone(plan, records, path):
    with pytest.raises(Stopped):
        run(plan, records, checkpoint=every_step(path), progress=stop_after(4))
    whole = path.read_bytes()
    for content in (b"", b"a diary", whole[:-1], whole + b"x", whole[:200], whole[:150] + b"\x00" + whole[151:]):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"another file|damaged"):
            run(plan, records, checkpoint=path)
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        {"step": -1},
        {"step": STEPS + 1},
        {"step": "x"},
        {"token": "00" * 32},
        {"key": "00"},
        {"arrays": {"next": [-1]}},
        {"arrays": {"next": [1, 2, 3]}},
        {"arrays": {"next": [10**12]}},
        {"arrays": [1]},
        {"description": 3},
    ],
)
def test_headers_that_no_run_writes(plan, records, path, change):
    with pytest.raises(Stopped):
        run(plan, records, checkpoint=every_step(path), progress=stop_after(4))
    content = path.read_bytes()
    start = len(module._MAGIC) + 32
    length = int.from_bytes(content[start : start + 8], "little")
    header = json.loads(content[start + 8 : start + 8 + length]) | change
    text = json.dumps(header).encode()
    body = len(text).to_bytes(8, "little") + text + content[start + 8 + length :]
    path.write_bytes(module._MAGIC + module.hashlib.sha256(body).digest() + body)
    with pytest.raises(CheckpointError, match=r"damaged|differs in"):
        run(plan, records, checkpoint=path)


def test_bad_arguments(plan, records, path):
    for bad in (3, 1.5, ["a"]):
        with pytest.raises(TypeError, match="checkpoint must be a path"):
            run(plan, records, checkpoint=bad)
    with pytest.raises(ValueError, match="interval"):
        RunCheckpoint(path, interval=-1.0)
    with pytest.raises(FileNotFoundError, match="in a folder that exists"):
        run(plan, records, checkpoint=path.parent / "absent" / "x")


# A process that is killed

KILLED = """
import sys
import numpy as np
import dpinfer as dpi
from dpinfer.mechanism import RunCheckpoint
rng = np.random.default_rng(5)
X = rng.normal(size=(300, 3))
y = (rng.random(300) < 0.5).astype(float)
plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.3, n_steps=1500)
account = dpi.PrivacyLedger(sys.argv[1] + "/spent.ledger").dataset("people")
print("ready", flush=True)
release = dpi.run_dpvi(
    dpi.models.LogisticRegression(3), X, y, plan=plan, n_records=300, max_grad_norm=2.0, n_threads=1,
    checkpoint=RunCheckpoint(sys.argv[1] + "/run.checkpoint", interval=0.05), ledger=account)
release.save(sys.argv[1] + "/fit.release")
RunCheckpoint(sys.argv[1] + "/run.checkpoint").discard()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_processes(tmp_path):
    """Kill the process twice; in the end there is one whole release, one charge, and no secret."""
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(1.0, 1e-5))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    keys = []
    for kill in (True, True, False):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdout.readline() == "ready\n"
            if kill:
                deadline = time.monotonic() + 60.0
                while not (tmp_path / "run.checkpoint").exists() and time.monotonic() < deadline:
                    time.sleep(0.001)
                time.sleep(0.03)
                process.send_signal(signal.SIGKILL)
            process.wait(timeout=120)
        assert process.returncode == (-signal.SIGKILL if kill else 0)
        if kill:
            keys.append(RunCheckpoint(tmp_path / "run.checkpoint").load().key)
    # Empty where the first kill came before the run was bound to its records.
    assert len({key for key in keys if key}) <= 1
    assert dpi.load_release(tmp_path / "fit.release").n_steps == 1500
    assert [item.status for item in account.runs()] == ["finished"]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["fit.release", "spent.ledger"]
