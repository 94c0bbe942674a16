"""Releases: checked, frozen, saved and loaded without loss, damaged files refused, the NOT PRIVATE mark kept."""

import contextlib
import copy
import errno
import io
import json
import os
import pickle
import subprocess
import sys
import time
import zipfile
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpinfer as dpi
from dpinfer.accounting import GaussianEvent, NonPrivateEvent, PoissonSampled, SelfComposed
from dpinfer.errors import InsecureReleaseError, ReleaseFormatError
from dpinfer.release import GradientTrace, load_release, release_from_arrays, save_release
from dpinfer.release import files as release_files

EVENT = SelfComposed(PoissonSampled(0.1, GaussianEvent(4.0)), 30)


@pytest.fixture
def release(rng):
    params = rng.normal(size=(30, 4))
    return GradientTrace(
        params=params,
        positions=params,
        noisy_gradients=rng.normal(size=(30, 4)),
        noise_stddev=np.array([1.0, 2.0, 3.0, 4.0]),
        final_params=rng.normal(size=4),
        sample_rate=0.1,
        names=("age", "dose"),
        n_records=500,
        grad_scale=np.ones((30, 4)),
        learning_rate=np.full(4, 0.1),
        max_grad_norm=2.0,
        noise_multiplier=4.0,
        event=EVENT,
        delta=1e-5,
        model_spec=dpi.models.LogisticRegression(2, feature_names=("age", "dose")).to_dict(),
        settings={"loss": "split"},
    )


def test_the_base_is_called_release():
    assert issubclass(GradientTrace, dpi.Release)
    assert issubclass(dpi.NewtonRelease, dpi.Release)
    with pytest.warns(DeprecationWarning, match="AnyRelease is now Release"):
        assert dpi.release.AnyRelease is dpi.Release


def test_the_trace_is_made_by_its_old_name_with_a_warning(release):
    values = {item.name: getattr(release, item.name) for item in fields(GradientTrace)}
    with pytest.warns(DeprecationWarning, match="GradientTrace"):
        old = dpi.Release(**values)
    assert type(old) is GradientTrace
    assert old.epsilon == release.epsilon


def equal(a, b):
    for name in GradientTrace.__dataclass_fields__:
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype
        else:
            assert left == right, name
    return True


def test_round_trip(release, tmp_path):
    path = tmp_path / "adult.release"
    release.save(path)
    loaded = load_release(path)
    assert equal(release, loaded)
    assert loaded.positions is loaded.params
    assert list(tmp_path.iterdir()) == [path]
    release.replace(positions=release.params + 1.0, learning_rate=None).save(path)
    np.testing.assert_array_equal(load_release(path).positions, release.params + 1.0)


def test_equal_releases_give_equal_files(release, tmp_path):
    save_release(release, tmp_path / "a")
    save_release(release, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_frozen(release):
    with pytest.raises(AttributeError):
        release.delta = 0.5
    for array in (release.params, release.noisy_gradients, release.noise_stddev):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
    with pytest.raises(TypeError):
        release.settings["loss"] = "x"


def test_pickle_and_copy(release):
    assert equal(pickle.loads(pickle.dumps(release)), release)
    assert equal(copy.deepcopy(release), release)


@pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")
def test_saved_files_follow_the_umask(release, tmp_path):
    old = os.umask(0o027)
    try:
        release.save(tmp_path / "r")
    finally:
        os.umask(old)
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o640


def test_guarantee_in_words(release):
    assert release.epsilon == dpi.account(EVENT, delta=1e-5).epsilon == pytest.approx(0.52652, abs=1e-5)
    assert "(0.5266, 1e-05)" in release.guarantee
    assert "adding or removing one record" in release.guarantee
    assert "LogisticRegression" in repr(release)
    external = release.replace(event=NonPrivateEvent(), delta=0.0)
    assert external.epsilon == np.inf
    assert "No privacy guarantee" in external.guarantee


def test_the_insecure_mark_survives(release, tmp_path):
    release.replace(secure=False).save(tmp_path / "r")
    loaded = load_release(tmp_path / "r")
    with pytest.raises(InsecureReleaseError):
        _ = loaded.epsilon
    assert "NOT PRIVATE" in repr(loaded)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"names": ("a",)}, ValueError, "params"),
        ({"names": ("a", "a")}, ValueError, "names"),
        ({"names": (1, 2)}, TypeError, "names"),
        ({"noisy_gradients": np.zeros((29, 4))}, ValueError, "noisy_gradients"),
        ({"noisy_gradients": np.full((30, 4), np.nan)}, ValueError, "noisy_gradients"),
        ({"noise_stddev": np.zeros(4)}, ValueError, "noise_stddev"),
        ({"noise_stddev": np.ones(3)}, ValueError, "noise_stddev"),
        ({"sample_rate": 0.0}, ValueError, "sample_rate"),
        ({"sample_rate": 1.5}, ValueError, "sample_rate"),
        ({"n_records": 0}, ValueError, "n_records"),
        ({"family": "full"}, ValueError, "family"),
        ({"gradient": "aligned"}, ValueError, "shape"),
        ({"delta": 1.0}, ValueError, "delta"),
        ({"certified_epsilon": -1.0}, ValueError, "certified_epsilon"),
        ({"event": NonPrivateEvent(), "certified_epsilon": 1.0}, ValueError, "certified_epsilon"),
        ({"colour": 1}, TypeError, "colour"),
    ],
)
def test_bad_fields(release, change, error, message):
    with pytest.raises(error, match=message):
        release.replace(**change)


def test_external_traces(rng):
    params = rng.normal(size=(20, 4))
    release = release_from_arrays(params, 2 * params, noise_stddev=0.5, sample_rate=0.1)
    assert release.names == ("theta[0]", "theta[1]")
    assert release.epsilon == np.inf
    np.testing.assert_array_equal(release.noise_stddev, np.full(4, 0.5))
    point = release_from_arrays(
        params, params, noise_stddev=np.ones(4), sample_rate=0.1, family="point", event=EVENT, delta=1e-5
    )
    assert point.n_params == 4
    assert point.epsilon == pytest.approx(dpi.account(EVENT, delta=1e-5).epsilon)
    with pytest.raises(ValueError, match="delta"):
        release_from_arrays(params, params, noise_stddev=1.0, sample_rate=0.1, event=EVENT)
    with pytest.raises(ValueError, match="even number"):
        release_from_arrays(params[:, :3], params[:, :3], noise_stddev=1.0, sample_rate=0.1)
    with pytest.raises(ValueError, match="names"):
        release_from_arrays(params, params, noise_stddev=1.0, sample_rate=0.1, names=["a"])


def test_files_that_are_not_releases(release, tmp_path):
    path = tmp_path / "r"
    release.save(path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ReleaseFormatError):
            load_release(path)
    with pytest.raises(FileNotFoundError):
        load_release(tmp_path / "missing")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("release.json", json.dumps({"format": "other"}))
    with pytest.raises(ReleaseFormatError, match=r"/r': .*another kind"):
        load_release(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("release.json", json.dumps({"format": "dpinfer-release", "version": 99}))
    with pytest.raises(ReleaseFormatError, match=r"/r': .*version 99"):
        load_release(path)


def test_pickled_arrays_are_refused(release, tmp_path):
    path = tmp_path / "r"
    release.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    members["params.npy"] = buffer.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ReleaseFormatError):
        load_release(path)


@settings(max_examples=150, deadline=None)
@given(position=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_damaged_files_never_crash(tmp_path_factory, position, byte):
    """A changed byte gives the same release, another valid one, or a ReleaseFormatError; nothing else."""
    folder = tmp_path_factory.getbasetemp()
    path, good = folder / "damaged", folder / "good"
    if not good.exists():
        trace = np.arange(12.0).reshape(6, 2)
        release_from_arrays(trace, trace, noise_stddev=1.0, sample_rate=0.5).save(good)
    content = bytearray(good.read_bytes())
    content[int(position * len(content))] = byte
    path.write_bytes(bytes(content))
    with contextlib.suppress(ReleaseFormatError):
        assert isinstance(load_release(path), GradientTrace)


def test_a_full_disk_leaves_the_old_file(release, tmp_path, monkeypatch):
    path = tmp_path / "r"
    path.write_bytes(b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        release.save(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


SAVING = """
import sys
import numpy as np
import dpinfer as dpi
trace = np.arange(60_000.0).reshape(-1, 2)
releases = [dpi.release_from_arrays(trace[:n], trace[:n], noise_stddev=1.0, sample_rate=0.5) for n in (7, 900, 30_000)]
releases[0].save(sys.argv[1])
print("ready", flush=True)
while True:
    for release in releases:
        release.save(sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_process_killed_while_it_saves_leaves_a_whole_release(tmp_path):
    path = tmp_path / "r"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for delay in (0.05, 0.12):
        with subprocess.Popen(
            [sys.executable, "-c", SAVING, str(path)], stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(delay)
            process.kill()
        steps = load_release(path).n_steps
        assert steps in (7, 900, 30_000)
        np.testing.assert_array_equal(load_release(path).params, np.arange(2.0 * steps).reshape(-1, 2))


def test_interruption_while_saving_leaves_the_old_file(release, tmp_path, monkeypatch):
    path = tmp_path / "r"

    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(release_files.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        release.save(path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_an_error(release, tmp_path):
    with pytest.raises(FileNotFoundError):
        release.save(tmp_path / "no" / "r")
    with pytest.raises(TypeError, match="release"):
        save_release("release", tmp_path / "r")
