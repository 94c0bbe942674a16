"""A rounding mode or flush-to-zero that some library has set changes neither draws nor guarantees."""

import contextlib
import ctypes
import platform
import sys
import threading

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer import _surroundings as environment
from dpinfer.accounting import (
    Adjacency,
    GaussianEvent,
    PoissonSampled,
    SelfComposed,
    accountant,
    calibrate_noise_multiplier,
    curve,
    delta_for,
    gaussian_dp_mu,
    privacy_curve,
    zcdp_rho,
)  # fmt: skip
from dpinfer.accounting.rdp import RenyiFilter
from dpinfer.lab._native import tarp_counts
from dpinfer.mechanism import _native
from dpinfer.testing import InsecureRNG

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="sets the modes by the numbers that Linux gives them on x86-64",
)

ROUNDING = {"upward": 0x800, "downward": 0x400, "toward zero": 0xC00}
# Of the control word of SSE: flush-to-zero for results, denormals-are-zero for operands.
FLUSHING = {"flushed results": 0x8000, "flushed operands": 0x40, "as -ffast-math": 0x8040}
MODES = (*ROUNDING, *FLUSHING)
KEY = bytes(range(32))


@contextlib.contextmanager
def mode(name):
    library = ctypes.CDLL("libm.so.6")
    saved = ctypes.create_string_buffer(32)
    library.fegetenv(saved)
    changed = bytearray(saved.raw)
    word = int.from_bytes(changed[28:32], "little")
    # Rounding has two bits in the control word of SSE, three places above those of the older unit.
    word |= FLUSHING[name] if name in FLUSHING else ROUNDING[name] << 3
    changed[28:32] = word.to_bytes(4, "little")
    library.fesetenv(ctypes.create_string_buffer(bytes(changed), 32))
    try:
        yield
    finally:
        library.fesetenv(saved)


def words(name):
    """Return numbers that this thread's arithmetic gives, and that each mode changes."""
    numbers = np.array([1.0, -1.0, 1.0, sys.float_info.min, 5e-324])
    return np.concatenate([numbers[:3] / 3.0, numbers[:3] / 10.0, numbers[3:4] / 2.0, numbers[4:] * 2.0**60]).tobytes()


@pytest.mark.parametrize("name", MODES)
def test_the_modes_are_really_set(name):
    """The power twin: unguarded arithmetic differs in every mode, and is put back."""
    usual = words(name)
    assert environment.is_standard()
    with mode(name):
        assert words(name) != usual
        assert not environment.is_standard()
        with environment.standard_arithmetic():
            assert environment.is_standard()
            assert words(name) == usual
        assert words(name) != usual
    assert words(name) == usual


def draws():
    normals = _native.box_muller(np.random.default_rng(3).integers(0, 2**64, 4096, dtype=np.uint64))
    rounded, _ = _native.rounded_gaussian(KEY, 5, 1e10, 1000)
    return normals.tobytes(), rounded.tobytes(), _native.monte_carlo_normals(KEY, 1, 1000).tobytes()


@pytest.mark.parametrize("name", MODES)
def test_draws_do_not_change(name):
    usual = draws()
    with mode(name):
        assert draws() == usual
        # What was there is put back.
        assert not environment.is_standard()


@pytest.fixture(scope="module")
def plan():
    return dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.3, n_steps=20)


def release(plan, threads, **options):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(3000, 3)), (rng.random(3000) < 0.5).astype(float)
    made = dpi.run_dpvi(
        dpi.models.LogisticRegression(3), X, y, plan=plan, n_records=3000, max_grad_norm=2.0, n_threads=threads,
        random_source=InsecureRNG(3), **options,
    )  # fmt: skip
    return made.noisy_gradients.tobytes(), made.final_params.tobytes()


@pytest.mark.parametrize(("recipe", "names"), [("plain", MODES), ("tied", ("downward", "as -ffast-math"))])
def test_a_release_does_not_change(plan, recipe, names):
    usual = release(plan, 1, recipe=recipe)
    for name in names:
        with mode(name):
            assert release(plan, 1, recipe=recipe) == usual, name


def test_nor_when_the_team_of_threads_was_made_in_a_mode(plan):
    """Threads keep the mode of whoever made them: here unguarded code that counts coverage, in a team of its own."""
    usual, found = release(plan, 1), []

    def run():
        with mode("upward"):
            tarp_counts(
                np.zeros((256, 2000, 2)),
                np.ones((2000, 2)),
                np.full((1, 2000, 2), 0.5),
                np.ones((2000, 2)),
                n_threads=3,
            )
        found.append(release(plan, 3))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [usual]


def test_sites_do_not_change():
    rng = np.random.default_rng(1)
    points = np.concatenate([rng.normal(-2.0, 1.0, (200, 2)), rng.normal(2.0, 1.0, (200, 2))])
    plan = dpi.PrivacyPlan.from_noise_multiplier(5.0, 0.2, 6, 1e-5)

    def sums():
        return dpi.run_dp_sep(
            dpi.models.GaussianMixture(2, 2),
            points,
            plan=plan,
            n_records=400,
            random_source=InsecureRNG(3),
            n_threads=2,
        ).noisy_sums.tobytes()

    usual = sums()
    with mode("toward zero"):
        assert sums() == usual


# Accounting

EVENT = SelfComposed(PoissonSampled(0.01, GaussianEvent(2.0)), 10)


def bounds():
    # Answers are kept; here each is to be computed anew.
    for kept in (accountant._certify, curve._curve):
        kept.cache_clear()
    points = privacy_curve(EVENT)
    filtered = RenyiFilter(1.0, 1e-5).bound(EVENT, Adjacency.ADD_REMOVE)
    return (
        *(dpi.account(EVENT, delta=1e-5, accountant=name).epsilon for name in ("pld", "rdp")),
        dpi.account(GaussianEvent(3.0), delta=1e-5).epsilon,
        delta_for(GaussianEvent(3.0), epsilon=1.0),
        filtered.epsilon,
        points.deltas.tobytes(),
        points.delta([0.1, 0.2]).tobytes(),
        points.true_positive_rate([0.01, 0.3]).tobytes(),
        gaussian_dp_mu(EVENT, slack=1e-5),
        zcdp_rho(EVENT),
        calibrate_noise_multiplier(GaussianEvent, target_epsilon=1.0, target_delta=1e-5),
    )


def test_bounds_do_not_change():
    usual = bounds()
    for name in MODES:
        with mode(name):
            assert bounds() == usual, name


def test_where_the_mode_cannot_be_set_nothing_is_certified(monkeypatch):
    monkeypatch.setattr(environment, "_library", lambda: None)
    with mode("downward"):
        for certify in (
            lambda: dpi.account(EVENT, delta=1e-5),
            lambda: delta_for(EVENT, epsilon=1.0),
            lambda: dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.3, n_steps=20),
        ):
            with pytest.raises(FloatingPointError, match="must round to nearest"):
                certify()
        assert not environment.is_standard()
    assert dpi.account(GaussianEvent(3.0), delta=1e-5).epsilon > 0.0
