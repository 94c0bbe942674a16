"""Rows on a GPU: the bits of the CPU, refusals.  Without a GPU, `-DDPINFER_CUDA=EMULATED` runs its code on the host."""

import functools
import sys
import types

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.errors import BackendUnavailableError
from dpinfer.mechanism import _native
from dpinfer.testing import InsecureRNG

N, D = 500, 3
MODELS = {
    "linear": dpi.models.LinearRegression(D),
    "logistic": dpi.models.LogisticRegression(D, fit_intercept=True),
    "probit": dpi.models.ProbitRegression(D),
    "poisson": dpi.models.PoissonRegression(D, fit_intercept=True),
}
NO_TABLE = {"centre": np.empty(0), "slope": np.empty(0), "first_node": 0.0, "spacing": 1.0}


@pytest.fixture
def cuda():
    module = pytest.importorskip("dpinfer.mechanism._cuda", reason="built without -DDPINFER_CUDA=ON or EMULATED")
    if module.device_count() == 0:
        pytest.skip("there is no GPU")
    return module


@pytest.fixture
def way(monkeypatch):
    """The module; without one, the host's rows stand in for the GPU's, so that the way to them is always tested."""
    try:
        from dpinfer.mechanism import _cuda as module

        if module.device_count() > 0:
            return module
    except ImportError:
        pass
    module = types.ModuleType("dpinfer.mechanism._cuda")
    module.device_count, module.free_bytes = lambda: 1, lambda: 2**32
    module.DeviceRows = _native.RegressionRows
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(mechanism, "_cuda", module, raising=False)
    return module


def records(name):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(N, D))
    eta = X @ [0.5, -0.5, 0.2]
    if name == "linear":
        return X, eta + rng.normal(size=N)
    return X, rng.poisson(np.exp(eta)).astype(float) if name == "poisson" else (eta > rng.normal(size=N)).astype(float)


def run_of(name, X, y, *, target="model", **options):
    model = options.pop("model", MODELS[name])
    plan = dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=N, target=target)
    given = {"plan": plan, "n_records": N, "random_source": InsecureRNG(5), "n_threads": 1}
    if name == "linear":
        given["response_scale"] = 1.0
    return dpi.run_newton(model, X, y, **(given | options))


def bits(release):
    arrays = {name: value.tobytes() for name, value in vars(release).items() if isinstance(value, np.ndarray)}
    assert {"moments", "scores"} <= arrays.keys()
    return arrays


@pytest.mark.parametrize("target", ["model", "population"])
@pytest.mark.parametrize("name", MODELS)
def test_a_run_has_the_bits_of_the_cpu(way, name, target):
    X, y = records(name)
    run = functools.partial(run_of, target=target)
    assert bits(run(name, mechanism.CudaRows(X), y)) == bits(run(name, X, y))
    narrow = X.astype(np.float32)
    assert bits(run(name, mechanism.CudaRows(narrow), y)) == bits(run(name, narrow, y))
    # Power: other records have other bits.
    assert bits(run(name, mechanism.CudaRows(narrow), y)) != bits(run(name, X, y))


def test_fit_makes_its_passes_there(way, monkeypatch):
    made = []
    rows = way.DeviceRows
    monkeypatch.setattr(way, "DeviceRows", lambda **arrays: (made.append(1), rows(**arrays))[1])
    X, y = records("logistic")
    options = {"epsilon": 2.0, "delta": 1e-5, "n_records": N}
    one, other = (
        dpi.fit(MODELS["logistic"], *given, random_source=InsecureRNG(5), **options, **backend)
        for given, backend in (((X, y), {"method": "newton"}), ((X, y), {"backend": "cuda"}))
    )
    assert made == [1]
    assert one.plan.mechanism.target == other.plan.mechanism.target == "population"
    assert bits(one.release) == bits(other.release)
    given = dpi.fit(MODELS["logistic"], mechanism.CudaRows(X), y, random_source=InsecureRNG(5), **options)
    assert bits(given.release) == bits(one.release)
    with pytest.raises(ValueError, match="method must be 'auto' or 'newton'"):
        dpi.fit(MODELS["logistic"], X, y, backend="cuda", method="dpvi", **options)


def test_a_backend_that_is_not_there_is_refused_before_anything_is_spent(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "dpinfer.mechanism._cuda", None)
    monkeypatch.delattr("dpinfer.mechanism._cuda", raising=False)
    people = dpi.PrivacyLedger.create(tmp_path / "spent").add_dataset("people", budget=(5.0, 1e-5))
    options = {"epsilon": 2.0, "delta": 1e-5, "n_records": N, "ledger": people, "path": tmp_path / "fit"}
    with pytest.raises(BackendUnavailableError, match="DPINFER_CUDA=ON"):
        dpi.fit(MODELS["logistic"], *records("logistic"), backend="cuda", **options)
    with pytest.raises(ValueError, match="backend must be 'cpu' or 'cuda', got 'gpu'"):
        dpi.fit(MODELS["logistic"], *records("logistic"), backend="gpu", **options)
    assert list(people.runs()) == []
    assert not (tmp_path / "fit").exists()


# Records, features, directions; from 104 directions on no tensor cores, nor for very wide records.
NARROW = [(1, 1, 1), (33, 7, 9), (300, 3, 7), (129, 8, 8), (700, 11, 15), (257, 20, 23), (128, 25, 24), (640, 31, 31)]
WIDE = [(1000, 60, 61), (500, 40, 39), (500, 45, 55), (400, 80, 87), (300, 100, 103), (300, 100, 104)]
MANY_FEATURES = [(100, 700, 20), (60, 5000, 3)]


@pytest.mark.parametrize(("n", "d", "m"), [*NARROW, *WIDE, *MANY_FEATURES])
@pytest.mark.parametrize("narrow", [False, True])
def test_sums_of_awkward_sizes(cuda, n, d, m, narrow):
    rng = np.random.default_rng(n)
    X, y, transform = rng.normal(size=(n, d)), rng.normal(size=n), rng.normal(size=(m, d + narrow))
    if n > 1:
        X[0, 0], X[n // 2, d - 1], X[n - 1] = np.nan, np.inf, 1e30
        y[n // 3] = -np.inf
    loc, edges = rng.normal(size=d + narrow) / d, np.array([1e-3, 0.1, 0.5, 0.5, 3.0, 40.0])
    residuals = _native.Residuals(link="gaussian", loc=loc, bound=1.0, **NO_TABLE)
    uncut = _native.Residuals(link="gaussian", loc=loc, bound=np.inf, **NO_TABLE)
    scale = {"scale_weight": 0.7, "scale_unit": 1.5, "scale_centre": 0.4}
    sums = []
    records = {"features": X.astype(np.float32) if narrow else X, "response": y, "intercept": narrow}
    for rows in (_native.RegressionRows(**records), cuda.DeviceRows(**records)):
        where = {"transform": transform, "bound": 2.0}
        score, scaled = (_native.PartialSum(length=length, max_norm=3.0) for length in (m, m + 1))
        matrices = [_native.PartialSum(length=m * (m + 1) // 2, max_norm=3.0) for _ in range(3)]
        sizes = [_native.PartialSum(length=len(edges) + 1, max_norm=1.0) for _ in range(2)]
        rows.add_scores(score, residuals, **where)
        rows.add_scores(scaled, residuals, **where, **scale)
        rows.add_second_moments(matrices[0], **where)
        rows.add_score_products(matrices[1], residuals, **where)
        rows.add_curvature(matrices[2], residuals, **where)
        rows.add_score_sizes(sizes[0], uncut, transform=transform, bound=np.inf, edges=edges)
        rows.add_curvature_sizes(sizes[1], uncut, **where, edges=edges)
        sums.append([total.integers for total in (score, scaled, *matrices, *sizes)])
    for one, other in zip(*sums, strict=True):
        assert np.any(one) or n == 1
        np.testing.assert_array_equal(one, other)


def test_runs_that_a_gpu_does_not_take_are_refused(way):
    X, y = records("logistic")
    rows = mechanism.CudaRows(X)
    with pytest.raises(TypeError, match="not CudaRows"):
        run_of("logistic", rows, y, unit=mechanism.Units(np.arange(N)))
    weighted = dpi.models.LogisticRegression(D, survey_weights=dpi.models.SurveyWeights(largest=4.0))
    with pytest.raises(TypeError, match="without units or weights"):
        run_of("logistic", rows, np.column_stack((y, np.ones(N))), model=weighted, target="population")
    with pytest.raises(TypeError, match="got RowSource"):
        mechanism.CudaRows(mechanism.rows_of_arrays(X, y))
    with pytest.raises(BackendUnavailableError, match="more memory"):
        mechanism.CudaRows(np.broadcast_to(0.0, (2**40, 2)))


def test_rows_that_are_too_wide_are_refused(cuda):
    device = cuda.DeviceRows(features=np.zeros((2, 6200)), response=np.zeros(2), intercept=False)
    total = _native.PartialSum(length=1, max_norm=1.0)
    with pytest.raises(ValueError, match="about 6000"):
        device.add_second_moments(total, transform=np.zeros((1, 6200)), bound=1.0)


def test_without_the_module_it_says_how_to_build_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dpinfer.mechanism._cuda", None)
    monkeypatch.delattr("dpinfer.mechanism._cuda", raising=False)
    with pytest.raises(BackendUnavailableError, match="DPINFER_CUDA=ON"):
        mechanism.CudaRows(np.zeros((2, 2)))
