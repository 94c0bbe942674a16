"""The compiled kernels: awkward lengths, threads, layouts, and refusals."""

import numpy as np
import pytest
from mpmath import mp, mpf
from tests.reference import inference_oracles as oracle

from dpinfer.inference import _native
from dpinfer.inference.trace.statistics import merge_segments

LENGTHS = (1, 2, 3, 7, 63, 64, 65, 255, 256, 257, 1000)


def trace(rng, steps, k, varying=False):
    x = rng.normal(3.0, 1e-2, (steps, k))
    g = rng.normal(0.0, 5.0, (steps, k)) + 20.0 * (x - 3.0)
    tau = rng.uniform(0.5, 2.0, (steps, k)) if varying else rng.uniform(0.5, 2.0, k)
    return x, g, tau


@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize("varying", [False, True])
def test_statistics_match_extended_precision(rng, steps, varying):
    x, g, tau = trace(rng, steps, 3, varying)
    reference = np.ascontiguousarray(tau[0]) if varying else tau
    got = _native.trace_statistics(x, g, tau, reference, np.array([0, steps]), 1)[0]
    want = oracle.weighted_statistics(x, g, tau)
    scale = np.abs(want) + np.array([1.0, 1.0, 1.0, 1e-4, 1e-2, 1.0])[:, None] * steps
    np.testing.assert_array_less(np.abs(got - want) / scale, 1e-12)


@pytest.mark.parametrize("steps", [1000, 20_000])
def test_statistics_do_not_depend_on_threads(rng, steps):
    x, g, tau = trace(rng, steps, 9, True)
    reference = np.ascontiguousarray(tau[0])
    edges = np.array([0, steps // 3, steps])
    first = _native.trace_statistics(x, g, tau, reference, edges, 1)
    gram = _native.gram_statistics(x, g, np.ones(steps), 1)
    for threads in (2, 3, 7):
        assert first.tobytes() == _native.trace_statistics(x, g, tau, reference, edges, threads).tobytes()
        for one, other in zip(gram, _native.gram_statistics(x, g, np.ones(steps), threads), strict=True):
            assert one.tobytes() == other.tobytes()


def test_segments_merge_to_the_whole(rng):
    x, g, tau = trace(rng, 1111, 2, True)
    reference = np.ascontiguousarray(tau[0])
    parts = _native.trace_statistics(x, g, tau, reference, np.array([0, 1, 200, 777, 1111]), 1)
    whole = _native.trace_statistics(x, g, tau, reference, np.array([0, 1111]), 1)[0]
    np.testing.assert_allclose(merge_segments(parts), whole, rtol=1e-11)


def test_a_large_offset_does_not_cancel(rng):
    x, g, tau = trace(rng, 4000, 1)
    far = x + 1e6
    near = _native.trace_statistics(x, g, tau, tau, np.array([0, 4000]), 1)[0, 3]
    moved = _native.trace_statistics(far, g, tau, tau, np.array([0, 4000]), 1)[0, 3]
    np.testing.assert_allclose(moved, near, rtol=1e-6)


def test_gram_matches_numpy(rng):
    x, g, _ = trace(rng, 130, 11)
    w = rng.uniform(0.1, 2.0, 130)
    mean_x, mean_g, xx, xg, gg = _native.gram_statistics(x, g, w, 2)
    mx, mg = w @ x / w.sum(), w @ g / w.sum()
    np.testing.assert_allclose(mean_x, mx, rtol=1e-12)
    np.testing.assert_allclose(mean_g, mg, rtol=1e-10)
    np.testing.assert_allclose(xx, (x - mx).T @ ((x - mx) * w[:, None]), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(xg, (x - mx).T @ ((g - mg) * w[:, None]), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(gg, w @ (g - mg) ** 2, rtol=1e-11)


def test_read_only_inputs_are_read(rng):
    x, g, tau = trace(rng, 50, 2)
    for array in (x, g, tau):
        array.flags.writeable = False
    assert _native.trace_statistics(x, g, tau, tau, np.array([0, 50]), 1).shape == (1, 6, 2)


def test_wrong_dtypes_layouts_and_shapes_are_refused(rng):
    x, g, tau = trace(rng, 50, 2)
    edges = np.array([0, 50])
    good = [x, g, tau, tau, edges]
    assert _native.trace_statistics(*good, 1).shape == (1, 6, 2)
    for place, bad in (
        (0, x.astype(np.float32)),
        (0, np.asfortranarray(x)),
        (1, g[::-1]),
        (2, tau.tolist()),
        (4, edges.astype(np.float64)),
        (4, edges.astype(np.int32)),
    ):
        with pytest.raises(TypeError):
            _native.trace_statistics(*[bad if index == place else item for index, item in enumerate(good)], 1)
    for place, bad in (
        (1, g[:49]),
        (2, np.ones(3)),
        (3, np.ones(1)),
        (4, np.array([0, 51])),
        (4, np.array([0, 0, 50])),
        (4, np.array([-1, 50])),
        (4, np.array([3])),
    ):
        with pytest.raises(ValueError, match="must"):
            _native.trace_statistics(*[bad if index == place else item for index, item in enumerate(good)], 1)
    with pytest.raises(TypeError):
        _native.collapsed_posteriors(np.ones((2, 16), dtype=np.float32), 1)
    with pytest.raises(ValueError, match="problems must"):
        _native.collapsed_posteriors(np.ones((2, 15)), 1)
    with pytest.raises(ValueError, match="weights must"):
        _native.gram_statistics(x, g, np.ones(49), 1)


@pytest.mark.parametrize(
    ("count", "residual"), [(1, 0.0), (1, 3.0), (5, 20.0), (100, 50.0), (100, 101.0), (300, 400.0)]
)
def test_marginal_over_extra_noise_is_kummers_function(count, residual):
    # With u = 1 / cosh(w)^2: the integral is B((n + 1)/2, 1/2) / 2 times 1F1((n + 1)/2; n/2 + 1; -R/2).
    mp.dps = 40
    power = mpf(count + 1)
    value = mp.beta(power / 2, 0.5) / 2 * mp.hyp1f1(power / 2, (power + 1) / 2, -mpf(residual) / 2)
    assert abs(_native.log_marginal_inflation(float(count), residual) - float(mp.log(value))) < 1e-8


def problem(**changes):
    row = {
        "count": 1000.0,
        "slope_score": 8.0,
        "residual": 1000.0,
        "mean_score": 0.5,
        "optimum_offset": 0.0,
        "optimum_scale": 10.0,
        "hessian_unit": 5.0,
        "wide_scale": 800.0,
        "wide_power": 2.0,
        "raw_loc": 0.0,
        "raw_scale": 1.0,
        "extra_noise": 1.0,
        "side_count": 0.0,
        "side_score": 0.0,
        "side_precision": 0.0,
        "side_residual": 0.0,
    }
    return np.array([list((row | changes).values())])


EXTREMES = [
    {},
    {"slope_score": 0.0},
    {"slope_score": 0.0, "wide_power": 1.0},
    {"slope_score": -60.0, "wide_power": 1.0},
    {"slope_score": -60.0},
    {"slope_score": 1e5},
    {"slope_score": 1e5, "wide_scale": 1e7},
    {"slope_score": 2.0, "mean_score": 1e4},
    {"slope_score": 1e-9, "hessian_unit": 1e-14},
    {"count": 2.0, "residual": 0.0},
    {"count": 2.0, "residual": 1e8},
    {"count": 1e6, "residual": 1.01e6},
    {"residual": 1e9},
    {"wide_scale": 0.0, "raw_loc": 40.0, "raw_scale": 1e-5},
    {"wide_scale": 0.0, "raw_loc": 400.0, "raw_scale": 1e-3},
    {"wide_scale": 0.0, "raw_loc": -300.0, "raw_scale": 3.0},
    {"wide_scale": 0.0, "raw_loc": 0.0, "raw_scale": 100.0, "slope_score": -5.0},
    {"optimum_scale": 1e-6, "optimum_offset": 3.0},
    {"optimum_scale": 1e8},
    {"side_count": 1000.0, "side_score": 4.0, "side_precision": 400.0, "side_residual": 1010.0},
]


@pytest.mark.parametrize("changes", EXTREMES)
def test_quadrature_converges_at_extremes(changes):
    offsets, cells, converged = _native.collapsed_posteriors(problem(**changes), 1)
    assert converged.all()
    assert offsets[-1] == cells.shape[1] > 0
    assert np.all(np.isfinite(cells))
    assert np.all(cells[1] >= 1.0 - 1e-12)
    assert np.all(cells[[2, 4]] > 0.0)
    assert abs(cells[2].sum() - 1.0) < 1e-12


def test_quadrature_does_not_depend_on_threads(rng):
    rows = np.concatenate([problem(slope_score=score) for score in rng.uniform(-3.0, 30.0, 50)])
    first = _native.collapsed_posteriors(rows, 1)
    for threads in (2, 3, 7):
        for one, other in zip(first, _native.collapsed_posteriors(rows, threads), strict=True):
            assert one.tobytes() == other.tobytes()


def test_impossible_problem_is_reported_not_returned():
    _, cells, converged = _native.collapsed_posteriors(problem(slope_score=np.nan), 1)
    assert not converged.any()
    assert cells.shape[1] == 0


def test_optimum_given_the_slope_is_the_conjugate_normal():
    row = problem(extra_noise=0.0, optimum_offset=0.7, optimum_scale=2.0)
    _, (slope, _, _, mean, variance), _ = _native.collapsed_posteriors(row, 1)
    precision = slope**2 + 1.0 / 2.0**2
    np.testing.assert_allclose(variance, 1.0 / precision, rtol=1e-13)
    np.testing.assert_allclose(mean, (-slope * 0.5 - 0.7 / 2.0**2) / precision, rtol=1e-13)


def test_three_gauss_nodes_say_as_much_as_the_whole_grid():
    # 150 steps leave the grid over nu uncompressed, 1000 compress it: both must give what brute force gives.
    for count, residual in ((150.0, 160.0), (1000.0, 1040.0)):
        _, (slope, nu, weight, mean, variance), _ = _native.collapsed_posteriors(
            problem(count=count, residual=residual), 1
        )
        w = np.linspace(0.0, 1.2, 3001)
        y = np.linspace(-25.0, 40.0, 2601)
        beta = np.logaddexp(0.0, y)
        inflation = np.cosh(w)[:, None] ** 2
        s = inflation + (10.0 * beta) ** 2
        log_density = (
            -count * np.log(np.cosh(w))[:, None]
            - 0.5 * ((residual + (beta - 8.0) ** 2) / inflation + np.log(s) + 0.25 / s)
            + np.log(beta)
            - 0.5 * (beta / 800.0) ** 2
            + y
            - beta
        )
        density = np.exp(log_density - log_density.max())
        density[0] *= 0.5
        density /= density.sum()
        v = 1.0 / (beta**2 / inflation + 0.01)
        m = -beta * 0.5 / inflation * v
        for got, want in (
            (weight @ slope, (density * beta).sum()),
            (weight @ nu, (density * inflation).sum()),
            (weight @ mean, (density * m).sum()),
            (weight @ (variance + mean**2), (density * (v + m**2)).sum()),
        ):
            assert got == pytest.approx(want, rel=1e-8)
