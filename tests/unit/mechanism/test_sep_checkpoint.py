"""Interrupted runs of DP-SEP, networks included: resumed bit for bit, charged once, never with other records."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.reference.site_runs import run_sites

import dpinfer as dpi
from dpinfer.errors import CheckpointError, RecordError
from dpinfer.mechanism import NetworkSettings, OSRandomSource, RunCheckpoint, run_network_dp_sep
from dpinfer.mechanism.sites import dpsep, network_dpsep
from dpinfer.release import NetworkRelease, SiteRelease
from dpinfer.testing import InsecureRNG


@pytest.fixture(scope="module", autouse=True)
def streams_of_steps():
    """Noise of the query, as in every run outside of the tests."""


N, STEPS = 60, 12
MIXTURE = dpi.models.GaussianMixture(2, 2, covariance=0.25, prior_scale=2.0)
NETWORK = dpi.models.BayesianNeuralNetwork(2, 4, prior_precision=2.0)


def plan_of(sampling="poisson", steps=STEPS):
    if sampling == "poisson":
        return dpi.PrivacyPlan.from_noise_multiplier(5.0, 0.4, steps, 1e-5)
    # The orders of an epoch and a half: a run is resumed within an epoch too.
    return dpi.PrivacyPlan.from_noise_multiplier(5.0, None, 90, 1e-5, sampling=sampling, n_records=N)


VARIANTS = {
    "mixture, annealed": {},
    "mixture, natural": {"sites": "natural", "max_site_norm": 4.0, "isotropic": False, "start": np.eye(2)},
    "mixture, trust radius": {"trust_radius": 0.05, "damping": lambda step: 0.5 / (1.0 + step)},
    "mixture, uniform": {"sampling": "uniform"},
    "mixture, permutation": {"sampling": "permutation"},
    "probit": {"model": dpi.models.ProbitRegression(2)},
    "logistic": {"model": dpi.models.LogisticRegression(2)},
    "network": {"model": NETWORK},
}
ARRAYS = {
    SiteRelease: ("loc", "precision", "noisy_sums", "damping", "floor"),
    NetworkRelease: ("loc", "precision", "noise_variance", "noisy_sums", "weights", "damping", "floor"),
}


class Stopped(Exception):  # noqa: N818
    pass


class Killed(BaseException):
    """Ends a run without any of its own clean-up being able to write, as a kill does."""


def stop_after(count):
    def report(done, total):
        if done == count:
            raise Stopped

    return report


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.checkpoint"


@pytest.fixture
def data(rng):
    return rng.normal(size=(N, 2)), (rng.random(N) < 0.5).astype(float)


def run(data, **options):
    options = {"model": MIXTURE, "n_records": N, "random_source": InsecureRNG(3)} | options
    model = options.pop("model")
    records = data[:1] if model is MIXTURE else data
    if "plan" not in options:
        options["plan"] = plan_of(options.get("sampling", "poisson"))
    return run_sites(model, *records, **options)


def assert_equal(one, other):
    for name in ARRAYS[type(one)]:
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    assert one.settings == other.settings


def every_step(path):
    return RunCheckpoint(path, interval=0.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(data, path, variant):
    options = VARIANTS[variant]
    whole = run(data, **options)
    for stop in (1, 7, whole.n_steps):
        with pytest.raises(Stopped):
            run(data, checkpoint=every_step(path), progress=stop_after(stop), n_threads=2, **options)
        assert path.exists()
        # The source is not asked again: another seed changes nothing.
        resumed = run(data, checkpoint=path, random_source=InsecureRNG(99), n_threads=1, **options)
        assert_equal(resumed, whole)
        assert not path.exists()


@pytest.mark.parametrize("variant", ["mixture, annealed", "network"])
def test_nothing_is_computed_twice(data, path, monkeypatch, variant):
    with pytest.raises(Stopped):
        run(data, checkpoint=every_step(path), progress=stop_after(7), **VARIANTS[variant])
    calls = []
    run(data, checkpoint=path, progress=lambda done, total: calls.append(done), **VARIANTS[variant])
    assert calls == list(range(8, STEPS + 1))


@pytest.mark.parametrize("variant", ["logistic", "network"])
def test_steps_since_the_last_save_are_repeated_and_not_drawn_anew(data, path, variant):
    whole = run(data, **VARIANTS[variant])
    seldom = RunCheckpoint(path, interval=1e9)
    with pytest.raises(Stopped):
        run(data, checkpoint=seldom, progress=stop_after(5), **VARIANTS[variant])
    assert seldom.load().step == 0
    assert_equal(run(data, checkpoint=seldom, **VARIANTS[variant]), whole)
    # The release stays in reach until it is safe.
    assert seldom.load().step == STEPS
    assert_equal(run(data, checkpoint=seldom, random_source=InsecureRNG(8), **VARIANTS[variant]), whole)


@pytest.mark.parametrize("variant", ["mixture, annealed", "network"])
def test_with_a_secure_source_the_key_and_the_released_part_stay(data, path, variant):
    place = every_step(path)
    options = VARIANTS[variant] | {"random_source": OSRandomSource(), "checkpoint": place}
    with pytest.raises(Stopped):
        run(data, progress=stop_after(6), **options)
    before = place.load()
    release = run(data, **options)
    assert release.secure
    assert release.noisy_sums[:6].tobytes() == before.arrays["sums"].tobytes()
    assert place.load().key == before.key


# The ledger


@pytest.fixture
def account(tmp_path):
    return dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(5.0, 1e-5))


@pytest.mark.parametrize("variant", ["mixture, annealed", "network"])
@pytest.mark.parametrize("point", ["token saved", "charged", "records checked", "bound", "begun", "end"])
def test_killed_between_any_two_steps_there_is_one_charge(data, path, account, monkeypatch, variant, point):
    """After the kill the same call finishes the run, and the ledger holds it once; nothing is drawn under two keys."""

    def kill(*arguments, **options):
        raise Killed

    module, network = (network_dpsep, True) if variant == "network" else (dpsep, False)
    options = VARIANTS[variant] | {"random_source": OSRandomSource(), "ledger": account}
    with monkeypatch.context() as patch:
        if point == "token saved":
            patch.setattr("dpinfer.mechanism.private_run.charge_run", kill)
        elif point == "charged":
            patch.setattr(module, "check_network_records" if network else "check_site_records", kill)
        elif point == "records checked":
            patch.setattr(module._NetworkSites if network else module._Sites, "start", kill)
        elif point == "bound":
            patch.setattr("dpinfer.accounting.charging.Charge.begin", kill)
        elif point == "begun":
            patch.setattr(module._NetworkSites if network else module._Sites, "query", kill)
        else:
            patch.setattr("dpinfer.accounting.charging.Charge._finish", kill)
        # Nothing that runs after the kill may tidy up.
        patch.setattr("dpinfer.accounting.charging.Charge._cancel", lambda self, error: None)
        patch.setattr(RunCheckpoint, "discard", lambda self: None)
        with pytest.raises(Killed):
            run(data, checkpoint=path, **options)
    assert path.exists()
    saved = RunCheckpoint(path).load()
    # A key is on the disk only together with the tag of its records.
    bound = point in ("bound", "begun", "end")
    assert (len(saved.key), saved.tag is not None) == ((32, True) if bound else (0, False))
    assert len(account.runs()) == (0 if point == "token saved" else 1)
    place = RunCheckpoint(path)
    run(data, checkpoint=place, **options)
    assert place.load().run == saved.run
    assert not bound or place.load().key == saved.key
    assert [item.status for item in account.runs()] == ["finished"]


@pytest.mark.parametrize("variant", ["logistic", "network"])
def test_refused_records_leave_no_file_and_stay_charged(data, path, account, variant):
    bad = data[0].copy()
    bad[4, 0] = np.nan
    options = VARIANTS[variant] | {"random_source": OSRandomSource(), "ledger": account, "checkpoint": path}
    with pytest.raises(RecordError):
        run((bad, data[1]), **options)
    assert not path.exists()
    assert [item.status for item in account.runs()] == ["started"]


# What must be the same


@pytest.mark.parametrize(
    ("variant", "change"),
    [
        *itertools.product(("mixture, annealed", "logistic", "network"), ("value", "row", "order")),
        ("logistic", "response"),
        ("network", "response"),
    ],
)
def test_other_records_are_refused_without_a_word_about_them(data, path, variant, change):
    X, y = data
    if change == "response":
        y = y.copy()
        y[7] = 1.0 - y[7]
    elif change == "value":
        X = X.copy()
        X[7, 1] = np.nextafter(X[7, 1], 9.0)
    elif change == "row":
        X, y = X[:-1], y[:-1]
    else:
        X = X[::-1]
    options = VARIANTS[variant]
    with pytest.raises(Stopped):
        run(data, checkpoint=every_step(path), progress=stop_after(4), **options)
    before = path.read_bytes()
    with pytest.raises(RecordError, match="must be those of the interrupted run") as caught:
        run((X, y), checkpoint=path, **options)
    assert not any(character.isdigit() for character in str(caught.value))
    assert path.read_bytes() == before
    run(data, checkpoint=path, **options)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"plan": plan_of(steps=STEPS + 1)}, "annealing, damping, plan"),
        ({"n_records": N + 1}, "n_records"),
        ({"model": dpi.models.ProbitRegression(2)}, "max_site_norm, model"),
        ({"max_site_norm": 2.5}, "max_site_norm"),
        ({"damping": 0.2}, "damping"),
        ({"sites": "natural", "max_site_norm": 2.5}, "max_site_norm, sites"),
        ({"block_weight": 0.5, "max_site_norm": 1.0}, "block_weight, max_site_norm"),
        ({"isotropic": True}, "isotropic"),
        ({"floor": 2.0}, "floor"),
        ({"trust_radius": 1.0}, "trust_radius"),
        ({"n_nodes": 21}, "n_nodes"),
        ({"start": [[0.1, 0.0]]}, "start"),
        ({"random_source": OSRandomSource()}, "secure"),
    ],
)
def test_other_settings_are_refused(data, path, change, told):
    options = {"model": dpi.models.LogisticRegression(2)}
    with pytest.raises(Stopped):
        run(data, checkpoint=every_step(path), progress=stop_after(4), **options)
    with pytest.raises(CheckpointError, match=f"differs in {told}"):
        run(data, checkpoint=path, **(options | change))
    assert path.exists()


def test_another_annealing_is_refused(data, path):
    with pytest.raises(Stopped):
        run(data, checkpoint=every_step(path), progress=stop_after(4))
    with pytest.raises(CheckpointError, match="differs in annealing"):
        run(data, checkpoint=path, annealing=(4.0, 0.6))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"plan": plan_of(steps=STEPS + 1)}, "plan"),
        ({"n_records": N + 1}, "n_records"),
        ({"model": dpi.models.BayesianNeuralNetwork(2, 4, prior_precision=3.0)}, "model"),
        ({"settings": NetworkSettings(max_site_norm=0.3)}, "settings"),
        ({"start_seed": 1}, "start"),
        ({"random_source": OSRandomSource()}, "secure"),
    ],
)
def test_other_settings_of_a_network_are_refused(data, path, change, told):
    options = {"plan": plan_of(), "n_records": N, "settings": NetworkSettings(), "random_source": InsecureRNG(1)}
    with pytest.raises(Stopped):
        run_network_dp_sep(NETWORK, *data, checkpoint=every_step(path), progress=stop_after(4), **options)
    options |= change
    with pytest.raises(CheckpointError, match=f"differs in {told}"):
        run_network_dp_sep(options.pop("model", NETWORK), *data, checkpoint=path, **options)


@pytest.mark.parametrize("variant", ["mixture, annealed", "network"])
def test_another_version_is_refused(data, path, monkeypatch, variant):
    with pytest.raises(Stopped):
        run(data, checkpoint=every_step(path), progress=stop_after(4), **VARIANTS[variant])
    monkeypatch.setattr("dpinfer.mechanism.run.__version__", "999")
    with pytest.raises(CheckpointError, match="differs in version"):
        run(data, checkpoint=path, **VARIANTS[variant])


def test_a_run_of_another_mechanism_is_refused(data, path):
    model = dpi.models.LogisticRegression(2)
    with pytest.raises(Stopped):
        run(data, model=model, checkpoint=every_step(path), progress=stop_after(4))
    with pytest.raises(CheckpointError, match="mechanism"):
        dpi.run_dpvi(
            model, *data, plan=plan_of(), n_records=N, max_grad_norm=1.0, checkpoint=path, random_source=InsecureRNG(3)
        )


@pytest.mark.parametrize("variant", ["mixture, annealed", "logistic", "network"])
def test_the_file_holds_no_record(data, path, variant):
    with pytest.raises(Stopped):
        run(data, checkpoint=every_step(path), progress=stop_after(4), **VARIANTS[variant])
    content = path.read_bytes()
    assert b"SECRET" in content[:100]
    assert not any(value.tobytes() in content for value in data[0].ravel())
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600


# A process that is killed


def killable(folder, progress=False):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(300, 3))
    y = (rng.random(300) < 0.5).astype(float)
    plan = dpi.PrivacyPlan.from_noise_multiplier(20.0, 0.3, 60, 1e-5)
    account = dpi.PrivacyLedger(folder / "spent.ledger").dataset("people")
    model, place = dpi.models.BayesianNeuralNetwork(3, 5), RunCheckpoint(folder / "run.checkpoint", interval=0.0)
    return run_network_dp_sep(
        model, X, y, plan=plan, n_records=300, checkpoint=place, ledger=account, progress=progress, n_threads=1
    )


def wait_to_be_killed(done, total):
    if done == 40:
        print("there", flush=True)
        time.sleep(300.0)


@pytest.mark.pinned  # another process, with seeds of its own
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_process(tmp_path):
    """Killed in the middle; this process goes on with it: one charge, and the key and the sums that it had saved."""
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(30.0, 1e-5))
    place = RunCheckpoint(tmp_path / "run.checkpoint")
    program = (
        f"from pathlib import Path\nimport {__name__} as here\n"
        f"here.killable(Path({str(tmp_path)!r}), here.wait_to_be_killed)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    before = place.load()
    assert before.step == 40
    release = killable(tmp_path)
    assert release.noisy_sums[:40].tobytes() == before.arrays["sums"].tobytes()
    assert place.load().key == before.key
    assert [item.status for item in account.runs()] == ["finished"]
