"""A release has the same bits for any number of threads, storage of equal values, and instruction set.

Sums also for any order of the rows (samples are drawn by row, so that a release depends on the order).
"""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from tests.reference.site_runs import run_sites

import dpinfer as dpi
from dpinfer.mechanism import _native
from dpinfer.testing import InsecureRNG


@pytest.fixture(scope="module", autouse=True)
def streams_of_steps():
    """Noise of the query, as in every run outside of the tests."""


N = 5000
KEY = bytes(range(32))
MODELS = {
    "logistic, short rows": dpi.models.LogisticRegression(5),
    "logistic, long rows": dpi.models.LogisticRegression(31),
    "Poisson": dpi.models.PoissonRegression(3),
    "linear": dpi.models.LinearRegression(4),
    "exponential": dpi.models.GammaExponential(),
    "categorical": dpi.models.DirichletCategorical((1.0, 2.0, 3.0)),
    "sites, probit": dpi.models.ProbitRegression(5),
    "sites, mixture": dpi.models.GaussianMixture(2, 2),
    "sites, network": dpi.models.BayesianNeuralNetwork(4, 9),
}


def make_records(name):
    """Values that float32 holds exactly."""
    generator, model = np.random.default_rng(6), MODELS[name]
    if name == "exponential":
        return (generator.exponential(0.4, N).astype(np.float32).astype(np.float64),)
    if name == "categorical":
        return (generator.integers(0, 3, N).astype(np.float64),)
    X = generator.normal(size=(N, model.n_features)).astype(np.float32).astype(np.float64)
    y = generator.integers(0, 2, N).astype(np.float64)
    return (X,) if name == "sites, mixture" else (X, y)


def digest(name, records, **options):
    """The hash of every number of a release."""
    plan = dpi.PrivacyPlan(
        noise_multiplier=2.0, epsilon=5.0, delta=1e-5, sample_rate=0.3, n_steps=4, adjacency="add_remove",
        accountant="pld",
    )  # fmt: skip
    options |= {"plan": plan, "n_records": N, "random_source": InsecureRNG(2)}
    if name.startswith("sites"):
        sites = run_sites(MODELS[name], *records, **options)
        parts = (sites.noisy_sums, sites.loc, sites.precision)
    else:
        release = dpi.run_dpvi(MODELS[name], *records, max_grad_norm=1.7, **options)
        parts = (release.params, release.positions, release.noisy_gradients, release.final_params)
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


@pytest.mark.parametrize("name", MODELS)
def test_threads(name):
    records = make_records(name)
    assert len({digest(name, records, n_threads=n_threads) for n_threads in (1, 2, 3, 7)}) == 1


@pytest.mark.parametrize("name", MODELS)
def test_storage(name):
    """Float32, columns stored one after another, a slice of a larger array, and read-only arrays of equal values."""
    records = make_records(name)
    reference = digest(name, records)
    single = (records[0].astype(np.float32), *records[1:])
    columns = tuple(np.asfortranarray(array) for array in records)
    sliced = tuple(np.repeat(array, 2, axis=0)[::2] for array in records)
    frozen = tuple(array.copy() for array in records)
    for array in frozen:
        array.flags.writeable = False
    for other in (single, columns, sliced, frozen):
        assert digest(name, other) == reference


def test_other_values_and_other_orders_give_other_bits():
    """The power twin of both tests above."""
    records = make_records("linear")
    changed = (records[0].copy(), records[1])
    changed[0][:, 0] *= 1.0 + 2.0**-20
    assert digest("linear", changed) != digest("linear", records)
    assert digest("linear", tuple(array[::-1] for array in records)) != digest("linear", records)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 7])
@pytest.mark.parametrize("n_features", [5, 31])
def test_sums_do_not_depend_on_the_order_of_the_rows(n_features, n_threads):
    generator = np.random.default_rng(8)
    X, y = generator.normal(size=(N, n_features)), generator.integers(0, 2, N).astype(np.float64)

    def total(order):
        session = _native.StepSession(
            features=np.ascontiguousarray(X[order]), response=y[order], likelihood="logistic", intercept=True,
            aligned=False, sample_rate=1.0, max_grad_norm=1.7, key=KEY, n_threads=n_threads,
        )  # fmt: skip
        n = n_features + 1
        session.set_quadrature(np.full(n, 0.1), np.full(n, 0.2), np.array([-1.0, 1.0]), np.full(2, 0.5), np.empty(0))
        session.set_scales(np.ones(2 * n), np.zeros(2 * n))
        return session.clipped_sum(0)

    reference = total(np.arange(N))
    for _ in range(3):
        np.testing.assert_array_equal(total(generator.permutation(N)), reference)


@pytest.mark.pinned  # another process, with seeds of its own
def test_instruction_sets():
    """The whole release, in a process of its own for each variant that this processor runs."""
    script = (
        "from tests.unit.mechanism.test_release_bits import MODELS, digest, make_records\n"
        "from dpinfer.mechanism import _native\n"
        "print(_native.simd_variant(), *[digest(name, make_records(name)) for name in MODELS])\n"
    )
    found = {}
    for variant in ("portable", "avx2", "avx512"):
        run = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"DPINFER_SIMD": variant, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            capture_output=True,
            text=True,
            check=False,
        )
        if "DPINFER_SIMD names a variant" in run.stderr:
            continue
        assert run.returncode == 0, run.stderr
        name, *digests = run.stdout.split()
        assert name == variant
        found[variant] = digests
    assert "portable" in found
    assert all(digests == found["portable"] for digests in found.values())
    assert found["portable"] == [digest(name, make_records(name)) for name in MODELS]
