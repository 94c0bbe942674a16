"""Posteriors that were saved, copied or pickled are the same, and a file that was changed is refused."""

import copy
import json
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import PosteriorFormatError
from dpinfer.mechanism import run_network_dp_sep
from dpinfer.release.archive import pack_archive, unpack_archive, unpack_array
from dpinfer.testing import InsecureRNG

PLAN = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.5, n_steps=40, accountant="rdp")


# The release is private and so differs from run to run: now and then a posterior of it is a fallback.
pytestmark = pytest.mark.filterwarnings("ignore::dpinfer.errors.FallbackWarning")


@pytest.fixture(scope="module")
def release():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(300, 2))
    y = (X[:, 0] > rng.normal(size=300)).astype(float)
    model = dpi.models.LogisticRegression(2)
    return dpi.run_dpvi(model, X, y, plan=PLAN, n_records=300, max_grad_norm=2.0, recipe="plain")


def posteriors(release):
    """Return posteriors of every kind of distribution and diagnostics."""
    options = {"n_samples": 20, "n_warmup": 10, "check_convergence": False}
    yield dpi.noise_aware_posterior(release, **options)
    yield dpi.noise_aware_posterior(release, hessian="diagonal")
    yield dpi.noise_aware_posterior(release, approximation="averaged")
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 2))
    g = x @ np.array([[4.0, 1.0], [1.0, 3.0]]) + rng.normal(size=(200, 2))
    external = dpi.release_from_arrays(x, g, noise_stddev=1.0, sample_rate=0.1, family="point")
    yield dpi.noise_aware_posterior(external, hessian="full", burn_in=0, n_samples=20)


def same(first, second):
    for name in ("optimum_mean", "optimum_stddev", "hessian_mean", "hessian_stddev", "mean", "stddev", "cov"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    assert first.quantile([0.05, 0.5]).tobytes() == second.quantile([0.05, 0.5]).tobytes()
    assert first.sample(5, seed=1).tobytes() == second.sample(5, seed=1).tobytes()
    assert first.decompose().shares.tobytes() == second.decompose().shares.tobytes()
    for name in (
        "names",
        "optimum_names",
        "method",
        "approximation",
        "hessian",
        "prior",
        "burn_in",
        "model",
        "guarantee",
    ):
        assert getattr(first, name) == getattr(second, name)
    assert first.guarantee.leaks == second.guarantee.leaks
    assert first.guarantee.epsilon == second.guarantee.epsilon
    assert first.guarantee.event == second.guarantee.event
    told, again = first.diagnostics.to_dict(), second.diagnostics.to_dict()
    assert told.keys() == again.keys()
    for name, value in told.items():
        assert type(value) is type(again[name])
        np.testing.assert_array_equal(value, again[name])
        assert np.ndim(value) == np.ndim(again[name])


def test_a_saved_copied_or_pickled_posterior_is_the_same(release, tmp_path):
    for posterior in posteriors(release):
        posterior.save(tmp_path / "one.posterior")
        loaded = dpi.load_posterior(tmp_path / "one.posterior")
        same(loaded, posterior)
        loaded.save(tmp_path / "two.posterior")
        assert (tmp_path / "one.posterior").read_bytes() == (tmp_path / "two.posterior").read_bytes()
        same(pickle.loads(pickle.dumps(posterior)), posterior)
        same(copy.copy(posterior), posterior)
        same(copy.deepcopy(posterior), posterior)
        with pytest.raises(FrozenInstanceError):
            loaded.diagnostics.verdict = ""
        for one in (loaded, copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
            arrays = [value for value in one.diagnostics.to_dict().values() if isinstance(value, np.ndarray)]
            assert not any(array.flags.writeable for array in arrays)


@pytest.mark.parametrize("mark", [{"leaks": ("bounds were read from the records",)}, {"secure": False}])
def test_marks_of_leakage_stay(release, tmp_path, mark):
    posterior = dpi.noise_aware_posterior(release.replace(**mark), hessian="diagonal")
    posterior.save(tmp_path / "one.posterior")
    loaded = dpi.load_posterior(tmp_path / "one.posterior")
    assert str(loaded.guarantee) == str(posterior.guarantee)
    assert "NOT PRIVATE" in str(loaded.guarantee)
    assert np.isinf(loaded.guarantee.epsilon)
    assert str(pickle.loads(pickle.dumps(posterior)).guarantee) == str(posterior.guarantee)


def changed(path, change):
    """Write the file with its document changed and its checksum made anew."""
    from dpinfer.inference.posterior import archive

    members = unpack_archive(path.read_bytes())
    document = json.loads(members.pop("posterior.json"))
    arrays = {name: unpack_array(value) for name, value in members.items()}
    change(document, arrays)
    document["digest"] = archive._digest(document["posterior"], arrays)
    path.write_bytes(pack_archive({"posterior.json": json.dumps(document)} | arrays))


def put(*keys, value):
    def change(document, arrays):
        place = document
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def drop(document, arrays):
    del arrays["distribution.optimum.weight.npy"]


@pytest.mark.parametrize(
    "change",
    [
        put("posterior", "guarantee", "epsilon", value=0.1),
        put("posterior", "guarantee", "event", value={"kind": "no such"}),
        put("posterior", "guarantee", "delta", value=1e-9),
        put("posterior", "distribution", value="drawn"),
        put("posterior", "names", value=["only one"]),
        put("version", value=2),
        put("format", value="dpinfer-release"),
        drop,
    ],
)
def test_a_file_that_contradicts_itself_is_refused(release, tmp_path, change):
    path = tmp_path / "one.posterior"
    dpi.noise_aware_posterior(release, hessian="diagonal").save(path)
    changed(path, change)
    with pytest.raises(PosteriorFormatError):
        dpi.load_posterior(path)


def test_a_changed_number_or_a_broken_file_is_refused(release, tmp_path):
    path = tmp_path / "one.posterior"
    dpi.noise_aware_posterior(release, hessian="diagonal").save(path)
    whole = path.read_bytes()
    members = unpack_archive(whole)
    text = members.pop("posterior.json").decode()
    arrays = {name: unpack_array(value) for name, value in members.items()}
    arrays["optimum_mean.npy"][0] += 1.0
    path.write_bytes(pack_archive({"posterior.json": text} | arrays))
    with pytest.raises(PosteriorFormatError, match="changed after it was written"):
        dpi.load_posterior(path)
    for content in (b"", b"not a file", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(PosteriorFormatError):
            dpi.load_posterior(path)
    release.save(path)
    with pytest.raises(PosteriorFormatError):
        dpi.load_posterior(path)


class OwnModel(dpi.models.LogisticRegression):
    """A user's model, which no file can hold."""

    def to_dict(self):
        return super().to_dict() | {"kind": "OwnModel"}


def test_a_model_of_ones_own_is_given_when_loading(release, tmp_path):
    model = OwnModel(2)
    posterior = dpi.noise_aware_posterior(release, model=model, hessian="diagonal")
    posterior.save(tmp_path / "one.posterior")
    with pytest.raises(ValueError, match="model must be given"):
        dpi.load_posterior(tmp_path / "one.posterior")
    same(dpi.load_posterior(tmp_path / "one.posterior", model=model), posterior)


def test_a_network_s_trace_has_a_posterior_with_the_same_interface(tmp_path):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(200, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=200)
    plan = dpi.plan_privacy(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.5, n_steps=6, accountant="rdp")
    model = dpi.models.BayesianNeuralNetwork(2, 4)
    release = run_network_dp_sep(model, X, y, plan=plan, n_records=200, random_source=InsecureRNG(1))
    weights = dpi.inference.network_posterior(release)
    posterior = dpi.noise_aware_posterior(release, approximation="naive")
    np.testing.assert_array_equal(posterior.mean, weights.loc)
    np.testing.assert_allclose(posterior.stddev**2, weights.variance, rtol=1e-12)
    np.testing.assert_allclose(posterior.predict_mean(X[:5]), weights.predict(X[:5])[0], rtol=1e-12)
    averaged = dpi.noise_aware_posterior(release, approximation="averaged")
    np.testing.assert_array_equal(averaged.mean, release.loc[-3:].mean(axis=0))
    assert "ignores the privacy noise" in averaged.summary().warnings[0]
    averaged.save(tmp_path / "one.posterior")
    same(dpi.load_posterior(tmp_path / "one.posterior"), averaged)
