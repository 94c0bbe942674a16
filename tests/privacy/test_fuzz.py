"""A short, seeded run of the fuzzers of ``bench/privacy/fuzz.py``, and inputs that once were findings."""

import io
import pickle
import random
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.reference.fuzzed_bindings import BINDINGS
from tests.reference.fuzzed_loaders import LOADERS, a_release
from tests.reference.fuzzed_runs import RUNS
from tests.reference.fuzzed_sessions import SESSIONS
from tests.reference.fuzzed_tables import TABLES
from tests.reference.fuzzing import Target, UndocumentedError

import dpinfer as dpi
from dpinfer.errors import LedgerFormatError, ReleaseFormatError, SchemaError, StudyFormatError
from dpinfer.inference import _native as inference
from dpinfer.lab import _native as study
from dpinfer.lab.studies import CoverageResult
from dpinfer.mechanism import _native as mechanism
from dpinfer.release.archive import pack_archive, parse_json, unpack_archive, unpack_array
from dpinfer.tabular import Schema

ROOT = Path(__file__).parents[2]
INPUTS = {
    "Study": 40,
    "StudyFile": 60,
    "StudyRuns": 60,
    "StudyManifest": 60,
    "NewtonSettings": 15,
    "SiloSettings": 12,
    "TableSettings": 25,
}


@pytest.mark.parametrize("kind", [*LOADERS, *BINDINGS, *SESSIONS, *RUNS, *TABLES], ids=lambda kind: kind.__name__)
def test_broken_inputs_are_refused_and_nothing_else(kind, tmp_path):
    target = kind(tmp_path)
    accepted = sum(
        target.one(random.Random(f"{kind.__name__} {number}")) for number in range(INPUTS.get(kind.__name__, 120))
    )
    # Some inputs must get through, or the mutations are too coarse to reach anything.
    assert accepted > 0


def test_the_fuzzer_finds_an_undocumented_error(tmp_path):
    """The power twin: a loader that lets a KeyError out on one input in some hundred is found."""

    class Careless(Target):
        documented = (ValueError,)

        def feed(self, rng):
            text = rng.randbytes(1)
            if text == b"\x00":
                {}["missing"]
            raise ValueError("documented")

    def all_inputs():
        return [Careless().one(random.Random(number)) for number in range(3000)]

    with pytest.raises(UndocumentedError, match="KeyError"):
        all_inputs()


# No loader executes what it reads


class Evil:
    """A pickle that would leave a file behind when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def evil_members(path):
    content = io.BytesIO()
    np.save(content, np.array([Evil(path)], dtype=object), allow_pickle=True)
    return content.getvalue()


def test_the_evil_array_is_evil(tmp_path):
    """The power twin: NumPy told to trust it runs it."""
    np.load(io.BytesIO(evil_members(tmp_path / "ran")), allow_pickle=True)[0].close()
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["params.npy", "release.json"])
def test_a_malicious_release_is_not_run(tmp_path, name):
    path, ran = tmp_path / "r", tmp_path / "ran"
    a_release().save(path)
    with zipfile.ZipFile(path) as archive:
        members = {item: archive.read(item) for item in archive.namelist()}
    members[name] = evil_members(ran) if name.endswith(".npy") else pickle.dumps(Evil(ran))
    with zipfile.ZipFile(path, "w") as archive:
        for item, content in members.items():
            archive.writestr(item, content)
    with pytest.raises(ReleaseFormatError):
        dpi.load_release(path)
    path.write_bytes(pickle.dumps(Evil(ran)))
    for load, error in (
        (dpi.load_release, ReleaseFormatError),
        (CoverageResult.load, StudyFormatError),
        (dpi.PrivacyLedger, LedgerFormatError),
        (Schema.load, SchemaError),
        (lambda place: dpi.mechanism.RunCheckpoint(place).load(), dpi.errors.CheckpointError),
    ):
        with pytest.raises(error):
            load(path)
    assert not ran.exists()


def test_a_malicious_study_is_not_run(tmp_path):
    ran = tmp_path / "ran"
    np.savez(tmp_path / "s.npz", document=np.array([Evil(ran)], dtype=object))
    with pytest.raises(StudyFormatError):
        CoverageResult.load(tmp_path / "s.npz")
    assert not ran.exists()


def test_no_code_that_loads_pickles_or_runs_text():
    banned = re.compile(
        r"\bimport (pickle|dill|cloudpickle|joblib|marshal|shelve)\b|\bpickle\.loads?\b|allow_pickle=True|\bnp\.load\(|"
        r"(?<![\w.])(eval|exec)\(|yaml\.load|torch\.load|__import__\("
    )
    for path in (ROOT / "python" / "dpinfer").rglob("*.py"):
        found = banned.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path.name}: {found[0]}"
    assert banned.search("import pickle")
    assert banned.search("value = eval(text)")


# What the archive refuses


def stored(members, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def test_a_bomb_is_not_unpacked():
    bomb = stored([("release.json", bytes(5_000_000))], zipfile.ZIP_DEFLATED)
    assert len(bomb) < 10_000
    with pytest.raises(ValueError, match="compressed"):
        unpack_archive(bomb)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_are_not_ours():
    whole = pack_archive({"a.npy": np.arange(3.0), "b": "text"})
    assert set(unpack_archive(whole)) == {"a.npy", "b"}
    with pytest.raises(ValueError, match="one name"):
        unpack_archive(stored([("a", b"1"), ("a", b"2")]))
    for broken in (b"", b"PK", whole[:-3], whole[10:], whole.replace(b"text", b"tent")):
        with pytest.raises(ValueError, match=r".+"):
            unpack_archive(broken)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(3.5),
        np.empty((0, 4)),
        np.arange(4, dtype=np.int64),
        np.array([True, False]),
        np.arange(4, dtype=np.float32),
        np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    ],
)
def test_arrays_make_the_round_trip(array):
    (content,) = unpack_archive(pack_archive({"a.npy": array})).values()
    read = unpack_array(content)
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype
    assert read.flags.writeable


def npy(header):
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def test_arrays_that_are_not_plain_numbers():
    (content,) = unpack_archive(pack_archive({"a.npy": np.arange(6.0)})).values()
    (truth,) = unpack_archive(pack_archive({"a.npy": np.array([True])})).values()
    for broken in (
        b"",
        content[:-1],
        content + b"x",
        content.replace(b"(6,)", b"(9,)"),
        content.replace(b"(6,)", b"(" + b"9" * 15 + b",)"),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"9" * 50_000 + b"x), }\n"),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"1, " * 10_000 + b"x), }\n"),
        content.replace(b"<f8", b"|O8"),
        content.replace(b"<f8", b"<U8"),
        content.replace(b"False", b"print"),
        content.replace(b"\x01\x00v\x00", b"\x03\x00v\x00"),
        truth[:-1] + b"\x02",
    ):
        with pytest.raises(ValueError, match=r"array|truth"):
            unpack_array(broken)


def test_json_that_is_nested_or_no_object():
    assert parse_json(b'{"a": 1}') == {"a": 1}
    for broken in (b"[" * 100_000, b"[]", b"1", b"{", b"\xff", b'{"a": ' * 50_000):
        with pytest.raises(ValueError, match=r".+"):
            parse_json(broken)


# Findings

SESSION = {
    "likelihood": "logistic", "intercept": False, "aligned": False,
    "sample_rate": 1.0, "max_grad_norm": 1.0, "key": bytes(32), "n_threads": 1,
}  # fmt: skip


def misaligned(array):
    raw = np.frombuffer(b"\x00" + array.tobytes(), np.uint8)[1:].view(array.dtype)
    assert not raw.flags.aligned
    return raw.reshape(array.shape)


def test_a_sum_before_its_inputs_is_refused():
    session = mechanism.StepSession(features=np.ones((4, 2)), response=np.ones(4), **SESSION)
    for call in (lambda: session.clipped_sum(0), lambda: session.noisy_sum(0, 1.0)):
        with pytest.raises(ValueError, match="must be called before a sum"):
            call()
    session.set_scales(np.ones(4), np.zeros(4))
    with pytest.raises(ValueError, match="must be called before a sum"):
        session.clipped_sum(0)
    aligned = mechanism.StepSession(features=np.ones((4, 2)), response=np.ones(4), **SESSION | {"aligned": True})
    with pytest.raises(ValueError, match="must be given draws"):
        aligned.set_quadrature(np.ones(2), np.ones(2), np.ones(1), np.ones(1), np.empty(0))


def test_a_sum_of_sites_before_their_state_is_refused():
    """Once a read of memory that was not there."""
    rows = np.zeros(1, dtype=np.int64)
    common = {"max_site_norm": 1.0, "key": bytes(32), "n_threads": 1}
    sessions = [
        mechanism.mixture_sites(
            contribution="site", points=np.ones((3, 2)), log_weights=np.zeros(2),
            covariances=np.ones((2, 2, 2)), **common,
        ),
        mechanism.binary_sites(
            features=np.ones((3, 2)), response=np.ones(3), intercept=True, likelihood="probit", nodes=np.zeros(1),
            weights=np.ones(1), **common,
        ),
    ]  # fmt: skip
    for session in sessions:
        for call in (
            lambda session=session: session.clipped_sum(rows),
            lambda session=session: session.contributions(rows),
            lambda session=session: session.poisson_sum(0, 1.0, 1.0),
            lambda session=session: session.clipped_poisson_sum(0, 1.0),
            lambda session=session: session.uniform_sum(0, 1.0),
            lambda session=session: session.permuted_sum(0, 1.0),
            lambda session=session: session.plain_sum(1.0),
        ):
            with pytest.raises(ValueError, match="set_state must be called before a sum"):
                call()
    # A state that was refused is none.
    with pytest.raises(ValueError, match="positive definite"):
        sessions[0].set_state(
            cavity_loc=np.zeros(4), cavity_cov=-np.ones((2, 2, 2)), centre=np.zeros(4),
            neutral=np.zeros(sessions[0].length), block_weight=1.0,
        )  # fmt: skip
    with pytest.raises(ValueError, match="set_state must be called before a sum"):
        sessions[0].plain_sum(1.0)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_bindings_refuse_misaligned_arrays_and_runs_copy_them(kind, rng):
    X, y = rng.normal(size=(60, 2)).astype(kind), (rng.random(60) < 0.5).astype(float)
    with pytest.raises(ValueError, match="features must be aligned"):
        mechanism.StepSession(features=misaligned(X), response=y, **SESSION)
    with pytest.raises(ValueError, match="response must be aligned"):
        mechanism.StepSession(features=X, response=misaligned(y), **SESSION)
    plan = dpi.PrivacyPlan.from_noise_multiplier(2.0, 0.5, 3, 1e-5)
    releases = [
        dpi.run_dpvi(
            dpi.models.LogisticRegression(2), *records, plan=plan, n_records=60, max_grad_norm=1.0,
            random_source=dpi.testing.InsecureRNG(1),
        )
        for records in ((X, y), (misaligned(X), misaligned(y)))
    ]  # fmt: skip
    np.testing.assert_array_equal(releases[0].noisy_gradients, releases[1].noisy_gradients)


def test_sums_that_would_not_end():
    for count, residual in ((10.0, -np.inf), (np.nan, 1.0), (10.0, np.nan), (-3.0, 1.0), (np.inf, 1.0), (10.0, -5.0)):
        assert np.isnan(inference.log_marginal_inflation(count, residual))
    assert np.isfinite(inference.log_marginal_inflation(10.0, 5.0))


def test_boundaries_beyond_the_trace_allocate_nothing():
    trace = np.ones((4, 1))
    for edges in ([0, 2**62], [0, 5], [-1, 4]):
        with pytest.raises(ValueError, match="boundaries"):
            inference.trace_statistics(trace, trace, np.ones(1), np.ones(1), np.array(edges), 1)


def test_studies_name_the_setting():
    settings = dict.fromkeys(
        ("n_steps", "n_records", "sample_rate", "noise_multiplier", "max_grad_norm", "n_draws", "raw_ratio"), 1
    ) | {"excursion": 1, "kind": "quadrature", "per_example": "no", "fisher": True}
    arguments = {
        "family": "exponential", "prior": np.ones(2), "n_trials": 1.0,
        "statistics": np.ones((1, 3, 1)), "counts": np.empty((0, 0), np.int64),
        "boundaries": np.array([0, 1]), "nodes": np.ones(2), "weights": np.ones(2),
        "keys": [bytes(32)], "n_threads": 1, "keep_trace": False,
    }  # fmt: skip
    with pytest.raises(TypeError, match="per_example must be"):
        study.simulate_conjugate(settings=settings, **arguments)
    del settings["n_steps"]
    with pytest.raises(ValueError, match="settings must hold n_steps"):
        study.simulate_conjugate(settings=settings, **arguments)


def test_more_threads_than_a_machine_has(rng):
    X = rng.normal(size=(50, 2))
    session = mechanism.StepSession(features=X, response=np.ones(50), **SESSION | {"n_threads": 2**31 - 1})
    session.set_scales(np.ones(4), np.zeros(4))
    session.set_quadrature(np.zeros(2), np.ones(2), np.zeros(1), np.ones(1), np.empty(0))
    assert session.clipped_sum(0).shape == (4,)


def test_numbers_too_large_for_a_float():
    with pytest.raises(ValueError, match="noise_multiplier must be finite"):
        dpi.accounting.GaussianEvent(10**400)
    with pytest.raises(ValueError, match="known kind"):
        dpi.models.model_from_dict({"kind": ["LogisticRegression"]})
    with pytest.raises(ValueError, match="mapping"):
        dpi.models.model_from_dict(None)
    with pytest.raises(SchemaError, match="too deeply"):
        Schema.from_toml("a = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(SchemaError, match="too long"):
        Schema.from_toml("a = " + "9" * 5000)


@pytest.mark.parametrize("number", [1041, 1740])
def test_what_a_run_lost_after_its_charge(number):
    """A prior whose variance is 0 in double precision, and simulated scores that do not vary."""
    TABLES[0](None).one(random.Random(f"TableSettings 0 {number}"))
