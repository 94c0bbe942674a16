"""Studies on a GPU: the bits of the CPU, refusals.  `-DDPINFER_CUDA=EMULATED` runs its code on the host."""

import sys

import pytest

from dpinfer.errors import BackendUnavailableError
from dpinfer.lab.studies import ModelStudy, coverage_study
from dpinfer.models import ProbitRegression

SHORT = {"n_runs": 3, "epsilon": 1.0, "n_draws": 20, "n_threads": 1, "n_records": 700, "n_steps": 40}


@pytest.fixture
def cuda():
    module = pytest.importorskip("dpinfer.lab._cuda", reason="built without -DDPINFER_CUDA=ON or EMULATED")
    if module.device_count() == 0:
        pytest.skip("there is no GPU")
    return module


def bits(result):
    return {name: array.tobytes() for name, array in result.runs.arrays.items()}


@pytest.mark.parametrize("study", ["linear-regression", "logistic-regression"])
def test_a_study_has_the_bits_of_the_cpu(cuda, study):
    one = bits(coverage_study(study, **SHORT))
    assert bits(coverage_study(study, **SHORT, backend="cuda", chunk_size=2)) == one
    # Power: another study has other bits.
    assert bits(coverage_study(study, **SHORT, backend="cuda", seed=1)) != one


def test_what_a_gpu_does_not_take_is_refused(cuda, monkeypatch):
    with pytest.raises(ValueError, match="backend must be 'cpu' for this recipe"):
        coverage_study("linear-regression", **SHORT, backend="cuda", recipe="paper")
    with pytest.raises(ValueError, match="backend must be 'cpu' with method 'gibbs-ss-noisy'"):
        coverage_study("linear-regression", **SHORT, backend="cuda", method="gibbs-ss-noisy")
    monkeypatch.setattr(cuda, "free_bytes", lambda: 2**28)
    with pytest.raises(BackendUnavailableError, match="smaller chunk_size"):
        coverage_study("linear-regression", **SHORT, backend="cuda")


def test_a_study_that_has_no_records_there_is_refused():
    probit = ModelStudy(ProbitRegression(1))
    for study in ("gamma-exponential", probit):
        with pytest.raises(ValueError, match="backend must be 'cpu' for the study"):
            coverage_study(study, n_runs=2, backend="cuda")
    with pytest.raises(ValueError, match="backend must be one of"):
        coverage_study("linear-regression", n_runs=2, backend="gpu")


def test_without_the_module_it_says_how_to_build_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dpinfer.lab._cuda", None)
    monkeypatch.delattr("dpinfer.lab._cuda", raising=False)
    with pytest.raises(BackendUnavailableError, match="DPINFER_CUDA=ON"):
        coverage_study("linear-regression", **SHORT, backend="cuda")
