"""Site traces as releases: checked, frozen, saved and loaded without anything that could be executed."""

import dataclasses
import json
import pickle
import zipfile

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import NonPrivateEvent
from dpinfer.errors import InsecureReleaseError, ReleaseFormatError
from dpinfer.release import Release
from dpinfer.release.sites.trace import smat, svec
from dpinfer.testing import InsecureRNG

MODEL = dpi.models.GaussianMixture(2, 2, covariance=[[0.3, 0.1], [0.1, 0.2]], weights=(0.4, 0.6), prior_loc=(0.0, 1.0))


@pytest.fixture(scope="module")
def release():
    rng = np.random.default_rng(5)
    plan = dpi.PrivacyPlan.from_noise_multiplier(3.0, 0.5, 6, 1e-5)
    return dpi.run_dp_sep(
        MODEL, rng.normal(size=(60, 2)), plan=plan, n_records=60, annealing=(2.0, 0.5), random_source=InsecureRNG(2)
    )


def test_round_trip(release, tmp_path):
    path = tmp_path / "mixture.release"
    release.save(path)
    loaded = dpi.load_release(path)
    assert isinstance(loaded, dpi.SiteRelease)
    for item in dataclasses.fields(release):
        ours, theirs = getattr(release, item.name), getattr(loaded, item.name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs)
        elif item.name == "model_spec":
            assert json.loads(json.dumps(dict(ours))) == dict(theirs)
        else:
            assert ours == theirs, item.name
    assert not loaded.secure
    with pytest.raises(InsecureReleaseError):
        _ = loaded.epsilon
    model = dpi.models.model_from_dict(loaded.model_spec)
    assert model == MODEL
    again = tmp_path / "again.release"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_files_hold_no_key_and_no_pickle(release, tmp_path):
    path = tmp_path / "mixture.release"
    release.save(path)
    key = InsecureRNG(2).take_key()
    with zipfile.ZipFile(path) as archive:
        assert set(archive.namelist()) == {
            "release.json", "loc.npy", "precision.npy", "noisy_sums.npy", "damping.npy", "floor.npy", "prior_loc.npy",
        }  # fmt: skip
        for name in archive.namelist():
            content = archive.read(name)
            assert key not in content
            assert key.hex().encode() not in content
            assert b"pickle" not in content


@pytest.mark.parametrize("damage", ["version", "kind", "array", "event", "truncate"])
def test_damaged_files_are_refused(release, tmp_path, damage):
    path = tmp_path / "mixture.release"
    release.save(path)
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:-200])
    else:
        with zipfile.ZipFile(path) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        document = json.loads(content["release.json"])
        if damage == "version":
            document["version"] = 99
        elif damage == "kind":
            document["format"] = "dpinfer-release"
        elif damage == "event":
            document["release"]["event"]["count"] = 5
        else:
            del content["loc.npy"]
        content["release.json"] = json.dumps(document).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, value in content.items():
                archive.writestr(name, value)
    with pytest.raises(ReleaseFormatError):
        dpi.load_release(path)


def test_a_file_of_another_kind_is_refused_by_name(release, tmp_path):
    path = tmp_path / "mixture.release"
    release.save(path)
    assert dpi.load_release(path, dpi.SiteRelease).loc.tobytes() == release.loc.tobytes()
    assert isinstance(dpi.load_release(path, Release), dpi.SiteRelease)
    with pytest.raises(ReleaseFormatError, match="path must name a GradientTrace, got a SiteRelease"):
        dpi.load_release(path, dpi.GradientTrace)
    for kind in ("GradientTrace", dict, release):
        with pytest.raises(TypeError, match="kind must be a class of releases"):
            dpi.load_release(path, kind)


def test_releases_are_frozen_and_survive_pickling(release):
    with pytest.raises(dataclasses.FrozenInstanceError):
        release.secure = True
    with pytest.raises(ValueError, match="read-only"):
        release.loc[0, 0, 0] = 1.0
    assert not pickle.loads(pickle.dumps(release)).secure
    assert (release.n_steps, release.n_blocks, release.block_size, release.n_params) == (6, 2, 2, 4)
    np.testing.assert_array_equal(release.linear_sums()[3].ravel(), release.noisy_sums[3, :4])
    np.testing.assert_allclose(release.precision_sums()[3].ravel(), release.noisy_sums[3, 4:] / 0.1)


def test_svec_keeps_norms(rng):
    root = rng.normal(size=(5, 3, 4, 4))
    matrices = root + np.swapaxes(root, -1, -2)
    vectors = svec(matrices)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), np.linalg.norm(matrices, axis=(-2, -1)))
    np.testing.assert_allclose(smat(vectors, 4), matrices)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"loc": np.zeros((6, 2, 2))}, "loc"),
        ({"precision": np.zeros((7, 2, 2))}, "precision"),
        ({"noisy_sums": np.zeros((6, 9))}, "noisy_sums"),
        ({"noisy_sums": np.zeros((0, 10))}, "noisy_sums"),
        ({"noisy_sums": np.full((6, 10), np.nan)}, "noisy_sums"),
        ({"damping": np.zeros(6)}, "damping"),
        ({"floor": np.zeros(7)}, "floor"),
        ({"noise_stddev": 0.0}, "noise_stddev"),
        ({"names": ("a",) * 4}, "names"),
        ({"sites": "raw"}, "sites"),
        ({"sampling": "shuffle"}, "sampling"),
        ({"isotropic": 1}, "isotropic"),
        ({"certified_epsilon": -1.0}, "certified_epsilon"),
        ({"certified_epsilon": 1.0, "event": NonPrivateEvent()}, "certified_epsilon"),
        ({"noise_multiplier": 4.0}, "event"),
    ],
)
def test_fields_are_checked(release, changes, name):
    with pytest.raises((TypeError, ValueError), match=name):
        dataclasses.replace(release, **changes)


def test_no_guarantee_is_claimed_without_an_event(release):
    bare = dataclasses.replace(release, event=NonPrivateEvent(), certified_epsilon=np.inf, secure=True)
    assert bare.epsilon == np.inf
    assert "No privacy guarantee" in bare.guarantee
