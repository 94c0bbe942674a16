"""``coverage_study`` and its result."""

import inspect
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import numpy as np
import pytest
from tests.reference.analytic_study import AnalyticStudy, assert_same

import dpinfer as dpi
from dpinfer.errors import StudyFormatError
from dpinfer.lab.studies import CoverageResult, StudyExecution, find_study
from dpinfer.lab.studies.archive import pack

OPTIONS = {"n_runs": 60, "n_draws": 50, "n_repeats": 4, "seed": 3}


@pytest.fixture(scope="module")
def result():
    """A small exact study."""
    return dpi.coverage_study(AnalyticStudy(), **OPTIONS, burn_in=0.2)


def test_public_names():
    assert dpi.coverage_study is dpi.lab.studies.coverage_study


def test_signature_as_promised():
    parameters = inspect.signature(dpi.coverage_study).parameters
    assert next(iter(parameters)) == "study"
    assert all(item.kind in (item.KEYWORD_ONLY, item.VAR_KEYWORD) for item in list(parameters.values())[1:])
    promised = {
        "method": "exact",
        "n_runs": 500,
        "epsilon": 0.1,
        "recipe": None,
        "seed": 0,
        "n_draws": 1000,
        "n_repeats": 20,
        "references": "centred",
        "execution": None,
        "progress": False,
    }
    assert {name: parameters[name].default for name in promised} == promised
    assert asdict(StudyExecution()) == {
        "n_threads": None,
        "executor": None,
        "checkpoint": None,
        "chunk_size": 50,
        "backend": "cpu",
    }


@pytest.mark.statistical
@pytest.mark.parametrize("references", ["centred", "uniform"])
def test_the_exact_posterior_passes_and_wrong_ones_do_not(references):
    """Each p-value has a false-positive rate of 1e-6; 'naive' and 'shifted' are the power twins."""
    options = {"n_runs": 2000, "n_draws": 200, "n_repeats": 4, "references": references, "seed": 11}
    exact, naive, shifted = (
        dpi.coverage_study(AnalyticStudy(), method=method, **options) for method in ("exact", "naive", "shifted")
    )
    assert exact.tarp.ks_pvalue > 1e-6
    assert exact.tarp.marginal_ks_pvalue.min() > 1e-6
    assert exact.sbc.chi2_pvalue.min() > 1e-6
    assert np.all(np.abs(exact.sbc.mean_z) < 4.9 * exact.sbc.mean_z_stderr)
    assert np.all(np.abs(exact.coverage90 - 0.9) < 4.9 * math.sqrt(0.09 / 2000))
    assert naive.tarp.ks_pvalue < 1e-6
    assert naive.tarp.excess_rmse > 0.05
    assert naive.sbc.chi2_pvalue.max() < 1e-6
    assert np.all(naive.coverage90 < 0.85)
    assert shifted.sbc.chi2_pvalue.max() < 1e-6
    assert np.all(np.abs(shifted.sbc.mean_z) > 4.9 * shifted.sbc.mean_z_stderr)


def test_what_the_result_says(result):
    ok = result.runs
    np.testing.assert_allclose(result.coverage90, np.mean(np.abs(ok.pit - 0.5) <= 0.45, axis=0))
    np.testing.assert_allclose(result.median_width, np.median(ok.width90, axis=0))
    np.testing.assert_allclose(result.relative_width, ok.width90 / ok.reference_width90)
    np.testing.assert_array_equal(result.tarp.shares, ok.joint_counts.T / 100.0)
    np.testing.assert_array_equal(result.tarp.marginal_shares[2, 5], ok.marginal_counts[5, 2] / 100.0)
    np.testing.assert_array_equal(result.sbc.pit, ok.pit)
    np.testing.assert_array_equal(result.sbc.z, ok.z)
    assert result.tarp.n_repeats == 4
    assert result.n_failed == 0
    assert 0.0 < result.seconds < 60.0
    text = repr(result)
    for part in ("analytic", "method exact", "epsilon 0.1", "60 runs", "over 4 repeats", "floor", "KS p", "mean z"):
        assert part in text
    assert f"{result.tarp.rmse:.4f}" in text
    assert all(len(line) <= 140 for line in text.splitlines())


def test_the_error_of_a_median_width_is_what_repeats_of_the_study_show(result):
    skewed = np.exp(np.random.default_rng(0).standard_normal((2000, *result.runs.width90.shape)))
    spread = np.std(np.median(skewed, axis=1), axis=0)
    runs = [replace(result.runs, width90=w, reference_width90=np.ones_like(w)) for w in skewed[:300]]
    found = np.mean([replace(result, runs=part).relative_width_stderr for part in runs], axis=0)
    np.testing.assert_allclose(found, spread, rtol=0.1)
    error_of_a_mean = skewed.std() / math.sqrt(result.n_runs)
    assert np.all(np.abs(found / error_of_a_mean - 1.0) > 0.2)


def test_to_dict_is_plain_and_strict_json(result):
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain == result.to_dict()
    assert plain["joint"]["rmse"] == result.tarp.rmse
    assert [row["name"] for row in plain["parameters"]] == ["a", "b"]
    assert plain["parameters"][1]["mean_z"] == result.sbc.mean_z[1]
    assert plain["settings"] == {"burn_in": 0.2}


def test_save_and_load(result, tmp_path):
    result.save(tmp_path / "x.npz")
    loaded = CoverageResult.load(tmp_path / "x.npz")
    assert_same(loaded.runs, result.runs)
    assert repr(loaded) == repr(result)
    assert loaded.to_dict() == result.to_dict()
    content = (tmp_path / "x.npz").read_bytes()
    loaded.save(tmp_path / "y.npz")
    assert (tmp_path / "y.npz").read_bytes() == content
    with np.load(tmp_path / "x.npz", allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["pit"], result.runs.pit)


def test_load_refuses_other_files(result, tmp_path):
    result.save(tmp_path / "x.npz")
    good = (tmp_path / "x.npz").read_bytes()
    for content in (b"", b"text", good[:-40], good[: len(good) // 2], pack({"format": "other"}, {}), pack({}, {})):
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(StudyFormatError, match="the file"):
            CoverageResult.load(tmp_path / "x.npz")
    (tmp_path / "x.npz").write_bytes(pack({"format": "dpinfer-coverage", "n_draws": 3}, {"z": np.zeros(2)}))
    with pytest.raises(StudyFormatError, match="another version"):
        CoverageResult.load(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError):
        CoverageResult.load(tmp_path / "absent.npz")


def test_failed_runs_are_left_out_and_told():
    broken = dpi.coverage_study(AnalyticStudy(), method="broken", **OPTIONS)
    assert broken.n_failed == 9
    assert broken.tarp.n_sims == broken.sbc.n_sims == 51
    assert "WITHOUT A POSTERIOR: 9 runs" in repr(broken)
    assert broken.to_dict()["n_failed"] == 9
    with pytest.raises(ValueError, match="at least 2 runs must have a posterior, got 1"):
        dpi.coverage_study(AnalyticStudy(), method="broken", n_runs=2)


def test_a_method_without_draws(tmp_path):
    plain = dpi.coverage_study(AnalyticStudy(), method="no-draws", **OPTIONS)
    assert plain.tarp is None
    assert "joint" not in plain.to_dict()
    assert "joint RMSE" not in repr(plain)
    plain.save(tmp_path / "x")
    assert CoverageResult.load(tmp_path / "x").tarp is None


def test_threads_and_executor_do_not_change_the_result(result):
    with ThreadPoolExecutor(3) as pool:
        other = dpi.coverage_study(AnalyticStudy(), executor=pool, chunk_size=7, **OPTIONS, burn_in=0.2)
    assert_same(other.runs, result.runs)
    assert other.to_dict() | {"seconds": 0} == result.to_dict() | {"seconds": 0}


class Spy(AnalyticStudy):
    """Keeps the settings it is called with."""

    seen = []  # noqa: RUF012

    def run_chunk(self, first, count, **options):
        self.seen.append(options)
        return super().run_chunk(first, count, **options)


def test_settings_reach_the_study():
    Spy.seen.clear()
    dpi.coverage_study(Spy(), method="naive", recipe="paper", epsilon=1, n_threads=2, burn_in=0.5, **OPTIONS)
    assert len(Spy.seen) == 2
    assert Spy.seen[0] == {
        "method": "naive",
        "epsilon": 1.0,
        "seed": 3,
        "settings": {"recipe": "paper", "n_draws": 50, "n_threads": 2, "burn_in": 0.5},
    }
    Spy.seen.clear()
    with ThreadPoolExecutor(1) as pool:
        dpi.coverage_study(Spy(), executor=pool, **OPTIONS)
    assert Spy.seen[0]["settings"]["n_threads"] == 1


def test_an_execution_and_what_changes_it(tmp_path, result):
    Spy.seen.clear()
    execution = StudyExecution(n_threads=3, checkpoint=tmp_path / "store", chunk_size=20)
    own = dpi.coverage_study(Spy(), execution=execution, n_threads=2, **OPTIONS, burn_in=0.2)
    assert [call["settings"] for call in Spy.seen] == 3 * [
        {"recipe": None, "n_draws": 50, "n_threads": 2, "burn_in": 0.2}
    ]
    assert (tmp_path / "store" / "study.json").exists()
    assert_same(own.runs, result.runs)
    assert own.settings == {"burn_in": 0.2}
    with pytest.raises(TypeError, match=r"settings must be among .*, got .*chunksize"):
        dpi.coverage_study("beta-bernoulli", n_runs=2, chunksize=3)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"study": "gamma"}, ValueError, "study must be one of 'gamma-exponential', 'beta-bernoulli'"),
        ({"study": 3}, TypeError, "study must be a name or have"),
        ({"method": ""}, TypeError, "method must be a non-empty string"),
        ({"method": "other"}, ValueError, "method must be one that this study knows"),
        ({"n_runs": 1}, ValueError, "n_runs must be at least 2"),
        ({"n_runs": "5"}, TypeError, "n_runs must be an integer"),
        ({"epsilon": 0.0}, ValueError, "epsilon must lie in"),
        ({"epsilon": float("nan")}, ValueError, "epsilon must be finite"),
        ({"recipe": 1}, TypeError, "recipe must be a string"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"n_draws": 1}, ValueError, "n_draws must be at least 2"),
        ({"n_repeats": 0}, ValueError, "n_repeats must be at least 1"),
        ({"references": "given"}, ValueError, "references must be one of 'centred', 'uniform'"),
        ({"n_threads": 0}, ValueError, "n_threads must be at least 1"),
        ({"executor": "pool"}, TypeError, "executor must be"),
        ({"execution": 3}, TypeError, "execution must be a StudyExecution, got int"),
        ({"checkpoint": 3}, TypeError, "checkpoint must be a path"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1"),
        ({"progress": 1}, TypeError, "progress must be a bool"),
        ({"burn_in": print}, TypeError, "burn_in must be plain values"),
        (
            {"study": AnalyticStudy(reference_box=None), "references": "uniform"},
            ValueError,
            "references must be 'centred'",
        ),
        (
            {"study": AnalyticStudy(reference_box=((0, 0), (1, 0))), "references": "uniform"},
            ValueError,
            "lower corner below",
        ),
        ({"study": AnalyticStudy(parameters=("a",))}, ValueError, "run_chunk must return 1 parameters, got 2"),
    ],
)
def test_bad_arguments(options, error, text):
    with pytest.raises(error, match=text):
        dpi.coverage_study(**({"study": AnalyticStudy(), "n_runs": 5} | options))


def test_what_a_chunk_must_be():
    class Wrong(AnalyticStudy):
        def run_chunk(self, first, count, **options):
            return None

    with pytest.raises(TypeError, match="run_chunk must return a ChunkResult, got NoneType"):
        dpi.coverage_study(Wrong(), n_runs=3)
    good = AnalyticStudy().run_chunk(0, 3, method="exact", epsilon=1.0, seed=0, settings={"n_draws": 4})
    values = {name: getattr(good, name) for name in good.__dataclass_fields__}
    with pytest.raises(ValueError, match=r"pit must have shape \(3, 2\), got \(3,\)"):
        type(good)(**values | {"pit": np.zeros(3)})
    with pytest.raises(ValueError, match=r"draws must have shape \(4, 3, 2\)"):
        type(good)(**values | {"draws": np.zeros((4, 2, 3))})
    with pytest.raises(ValueError, match="truth must have shape"):
        type(good)(**values | {"truth": np.zeros(3)})


def test_an_own_study_is_found():
    study = AnalyticStudy()
    assert find_study(study) is study
