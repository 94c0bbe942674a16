"""Checkpoints: nothing is computed twice, nothing damaged is trusted, no other study is mixed in."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.reference.analytic_study import AnalyticStudy, assert_same, task

import dpinfer as dpi
from dpinfer.lab.studies.checkpoint import Checkpoint, plain_settings

OPTIONS = {"n_runs": 23, "n_draws": 40, "n_repeats": 3, "chunk_size": 5, "seed": 5, "n_threads": 1}


@pytest.fixture(scope="module")
def undisturbed():
    """The result without any checkpoint."""
    return dpi.coverage_study(AnalyticStudy(), **OPTIONS)


@pytest.fixture
def study_with_log(tmp_path):
    """A study that notes each chunk it computes, and a function that returns and forgets the notes."""
    log = tmp_path / "log"
    log.mkdir()

    def computed():
        names = sorted(path.name for path in log.iterdir())
        for name in names:
            (log / name).unlink()
        return sorted(tuple(map(int, name.split("-"))) for name in names)

    return AnalyticStudy(log=str(log)), computed


def test_resuming_computes_nothing_twice(tmp_path, undisturbed, study_with_log):
    study, computed = study_with_log
    for expected in ([(0, 5), (5, 10), (10, 15), (15, 20), (20, 23)], []):
        result = dpi.coverage_study(study, checkpoint=tmp_path / "store", **OPTIONS)
        assert_same(result.runs, undisturbed.runs)
        assert computed() == expected


def test_a_study_can_be_made_longer_or_shorter_or_cut_differently(tmp_path, undisturbed, study_with_log):
    study, computed = study_with_log
    dpi.coverage_study(study, checkpoint=tmp_path / "store", **OPTIONS | {"n_runs": 13, "chunk_size": 6})
    assert computed() == [(0, 6), (6, 12), (12, 13)]
    shorter = dpi.coverage_study(study, checkpoint=tmp_path / "store", **OPTIONS | {"n_runs": 8})
    assert_same(shorter.runs, undisturbed.runs.rows(0, 8))
    assert computed() == []
    whole = dpi.coverage_study(study, checkpoint=tmp_path / "store", **OPTIONS | {"chunk_size": 4})
    assert_same(whole.runs, undisturbed.runs)
    assert computed() == [(13, 16), (16, 20), (20, 23)]


@pytest.mark.parametrize("where", ["before", "inside", "after"])
@pytest.mark.parametrize("nth", [1, 3, 5])
def test_crash_around_a_write(tmp_path, undisturbed, study_with_log, monkeypatch, where, nth):
    """The process dies (or the disk fills up) before, within and after the n-th chunk's write."""
    from dpinfer.lab.studies import checkpoint as module

    study, computed = study_with_log
    original, count = module.write_atomically, 0

    def dying(path, content):
        nonlocal count
        if Path(path).suffix != ".npz":
            return original(path, content)
        count += 1
        if count == nth:
            if where == "inside":
                # What a kill at the worst moment leaves behind: half a temporary file.
                Path(path).with_name(f".{Path(path).name}.00.part").write_bytes(content[: len(content) // 2])
            if where == "after":
                original(path, content)
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, content)

    monkeypatch.setattr(module, "write_atomically", dying)
    with pytest.raises(OSError, match="No space left"):
        dpi.coverage_study(study, checkpoint=tmp_path / "store", **OPTIONS)
    monkeypatch.undo()
    before = computed()
    result = dpi.coverage_study(study, checkpoint=tmp_path / "store", **OPTIONS)
    assert_same(result.runs, undisturbed.runs)
    chunks = [(0, 5), (5, 10), (10, 15), (15, 20), (20, 23)]
    assert before == chunks[:nth]
    assert computed() == chunks[nth if where == "after" else nth - 1 :]


def stored_file(folder, index=1):
    return sorted(folder.glob("runs-*.npz"))[index]


DAMAGE = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "without its end": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"not an archive",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_chunks_are_computed_again(tmp_path, undisturbed, study_with_log, kind):
    study, computed = study_with_log
    store = tmp_path / "store"
    dpi.coverage_study(study, checkpoint=store, **OPTIONS)
    computed()
    path = stored_file(store)
    path.write_bytes(DAMAGE[kind](path.read_bytes()))
    for expected in ([(5, 10)], []):
        assert_same(dpi.coverage_study(study, checkpoint=store, **OPTIONS).runs, undisturbed.runs)
        assert computed() == expected


def test_no_flipped_bit_is_believed(tmp_path, undisturbed):
    """A bit flipped anywhere either leaves what is read unchanged or makes the file unreadable."""
    store = Checkpoint(tmp_path, {})
    store.write(0, undisturbed.runs.rows(0, 5))
    path, good = stored_file(tmp_path, 0), stored_file(tmp_path, 0).read_bytes()
    rng = np.random.default_rng(2)
    refused = 0
    for position in rng.choice(len(good), size=400, replace=False):
        damaged = bytearray(good)
        damaged[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(damaged))
        part = store.read(0, 5)
        if part is None:
            refused += 1
        else:
            assert_same(part, undisturbed.runs.rows(0, 5))
    assert refused > 300


def test_a_chunk_under_a_wrong_name_is_not_believed(tmp_path, undisturbed, study_with_log):
    study, computed = study_with_log
    store = tmp_path / "store"
    dpi.coverage_study(study, checkpoint=store, **OPTIONS)
    computed()
    # The runs 0 ... 4 claim to be 5 ... 9.
    stored_file(store, 1).write_bytes(stored_file(store, 0).read_bytes())
    assert_same(dpi.coverage_study(study, checkpoint=store, **OPTIONS).runs, undisturbed.runs)
    assert computed() == [(5, 10)]


OTHERS = [
    ({"seed": 6}, "seed"),
    ({"epsilon": 0.2}, "epsilon"),
    ({"method": "naive"}, "method"),
    ({"recipe": "paper"}, "recipe"),
    ({"n_draws": 41}, "n_draws"),
    ({"n_repeats": 4}, "n_repeats"),
    ({"references": "uniform"}, "references"),
    ({"burn_in": 0.2}, "settings"),
]


@pytest.mark.parametrize(("change", "name"), OTHERS)
def test_another_study_is_refused(tmp_path, change, name):
    dpi.coverage_study(AnalyticStudy(), checkpoint=tmp_path, **OPTIONS)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in tmp_path.iterdir())
    with pytest.raises(ValueError, match=f"checkpoint must be a new folder or one of this study.*differs in {name}$"):
        dpi.coverage_study(AnalyticStudy(), checkpoint=tmp_path, **OPTIONS | change)
    # Even without the file that says what the study is.
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(ValueError, match="its runs were made with other settings"):
        dpi.coverage_study(AnalyticStudy(), checkpoint=tmp_path, **OPTIONS | change)
    after = sorted((path.name, path.stat().st_mtime_ns) for path in tmp_path.iterdir())
    assert [row for row in after if row[0] != "study.json"] == [row for row in before if row[0] != "study.json"]


@pytest.mark.parametrize("study", [AnalyticStudy(name="other"), AnalyticStudy(parameters=("a", "c"))])
def test_another_name_is_refused(tmp_path, study):
    dpi.coverage_study(AnalyticStudy(), checkpoint=tmp_path, **OPTIONS)
    with pytest.raises(ValueError, match="checkpoint must be"):
        dpi.coverage_study(study, checkpoint=tmp_path, **OPTIONS)


def test_another_version_is_refused(tmp_path, monkeypatch):
    dpi.coverage_study(AnalyticStudy(), checkpoint=tmp_path, **OPTIONS)
    monkeypatch.setattr("dpinfer.lab.studies.coverage.__version__", "999.0")
    with pytest.raises(ValueError, match="differs in version"):
        dpi.coverage_study(AnalyticStudy(), checkpoint=tmp_path, **OPTIONS)


def test_threads_chunks_and_length_are_not_part_of_a_study(tmp_path):
    dpi.coverage_study(AnalyticStudy(), checkpoint=tmp_path, **OPTIONS)
    change = {"n_threads": 2, "chunk_size": 3, "n_runs": 25}
    dpi.coverage_study(AnalyticStudy(), checkpoint=tmp_path, **OPTIONS | change)
    manifest = json.loads((tmp_path / "study.json").read_text())["study"]
    assert not set(manifest) & set(change)


def test_no_pickles(tmp_path, undisturbed):
    Checkpoint(tmp_path, {}).write(0, undisturbed.runs)
    with np.load(stored_file(tmp_path, 0), allow_pickle=False) as archive:
        assert all(archive[name].dtype != object for name in archive.files if name != "document.json")


def test_two_writers_agree(tmp_path, undisturbed):
    first, second = (Checkpoint(tmp_path, {"study": "x"}) for _ in range(2))
    first.write(0, undisturbed.runs)
    content = stored_file(tmp_path, 0).read_bytes()
    second.write(0, undisturbed.runs)
    assert stored_file(tmp_path, 0).read_bytes() == content


def test_an_overlapping_file_that_is_damaged_uncovers_the_good_one(tmp_path, undisturbed):
    from dpinfer.lab.studies.runner import run_chunks

    store = Checkpoint(tmp_path, {})
    store.write(0, undisturbed.runs.rows(0, 10))
    store.write(0, undisturbed.runs.rows(0, 20))
    stored_file(tmp_path, 1).write_bytes(b"")
    assert store.stored() == [(0, 10), (0, 20)]
    calls = []

    def logged(first, count):
        calls.append((first, count))
        return task()(first, count)

    assert_same(run_chunks(logged, 23, chunk_size=50, checkpoint=store), undisturbed.runs)
    assert calls == [(10, 13)]


def test_overlapping_files(tmp_path, undisturbed):
    from dpinfer.lab.studies.runner import run_chunks

    store = Checkpoint(tmp_path, {})
    for start, stop in ((0, 10), (6, 14), (3, 12), (20, 22)):
        store.write(start, undisturbed.runs.rows(start, stop))
    calls = []

    def logged(first, count):
        calls.append((first, count))
        return task()(first, count)

    assert_same(run_chunks(logged, 23, chunk_size=50, checkpoint=store), undisturbed.runs)
    assert calls == [(14, 6), (22, 1)]


def test_settings_must_be_plain():
    array = np.arange(3.0)
    plain = plain_settings("x", {"a": (1, np.float64(2.5), None, True), "b": array})
    assert plain["a"] == [1, 2.5, None, True]
    assert plain["b"] == plain_settings("x", array.copy())
    assert plain["b"] != plain_settings("x", array + 1e-16 + np.array([0.0, 0.0, 1e-15]))
    assert plain["b"] != plain_settings("x", array[None])
    with pytest.raises(TypeError, match=r"x\['f'\] must be plain values"):
        plain_settings("x", {"f": print})
    with pytest.raises(ValueError, match=r"x\[0\] must be finite"):
        plain_settings("x", [float("nan")])
    with pytest.raises(TypeError, match="checkpoint must be a path"):
        Checkpoint(3, {})


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        dpi.coverage_study(AnalyticStudy(), checkpoint=tmp_path / "file", **OPTIONS)


KILLED = """
import sys
import dpinfer as dpi
from tests.reference.analytic_study import AnalyticStudy
dpi.coverage_study(AnalyticStudy(delay=0.05), checkpoint=sys.argv[1], n_runs=2000, n_draws=40, n_repeats=3,
                   chunk_size=5, seed=5, n_threads=1, progress=lambda done, total: print(done, flush=True))
"""


@pytest.mark.pinned  # another process, with seeds of its own
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_process_is_stopped(tmp_path, undisturbed, study_with_log, number):
    study, computed = study_with_log
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "store")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    with process:
        while int(process.stdout.readline()) < 15:
            pass
        process.send_signal(number)
    assert process.returncode != 0
    result = dpi.coverage_study(study, checkpoint=tmp_path / "store", **OPTIONS)
    assert_same(result.runs, undisturbed.runs)
    assert set(computed()) <= {(15, 20), (20, 23)}
