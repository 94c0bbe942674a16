"""Theorems 2 to 4 of the paper, with their misprints: what is printed is held against simulated recursions."""

import math

import numpy as np
import pytest
from scipy import stats

from dpinfer.lab import stationary

KAPPA = 0.2


def run(a, rate, noise, steps, chains, rng, start=0.0):
    """Return positions and noisy gradients of x' = x - rate (kappa a x + noise eta), each (steps, chains, d)."""
    x = np.full((chains, len(a)), start)
    positions, gradients = np.empty((2, steps, chains, len(a)))
    for t in range(steps):
        g = KAPPA * a * x + noise * rng.normal(size=x.shape)
        positions[t], gradients[t] = x, g
        x = x - rate * g
    return positions, gradients


@pytest.mark.statistical
def test_theorem_2_bounds_a_standard_deviation_not_a_variance(rng):
    a, rate, noise, steps = np.array([30.0, 45.0, 60.0]), 0.05, 0.5, 400
    x, g = run(a, rate, noise, steps + 200, 1, rng)
    x, g = x[200:, 0], g[200:, 0]
    radius = np.linalg.norm(x, axis=1).max()
    spread = stationary.hessian_stddev(np.sum(x**2, axis=0), KAPPA, noise)
    bound = stationary.hessian_stddev_bound(radius, 3, steps, KAPPA, noise)
    assert np.max(spread) >= bound
    # A16 is the sd of the least-squares slope given the positions: redraw the noise at the same positions.
    fresh = KAPPA * a * x + noise * rng.normal(size=(4000, *x.shape))
    estimates = np.sum(fresh * x, axis=1) / (KAPPA * np.sum(x**2, axis=0))
    ratio = np.var(estimates, axis=0, ddof=1) * 3999 / spread**2
    assert np.all(np.abs(ratio - 3999) < stats.norm.isf(0.5e-6 / 3) * math.sqrt(2 * 3999) * 1.05)

    # In other units, phi -> phi u, the Hessian is divided by u**2 and the gradient and its noise by u.  The inequality
    # for the standard deviation holds in all of them; the printed one, for the variance, does not.
    def holds(unit, power):
        claimed = stationary.hessian_stddev_bound(radius * unit, 3, steps, KAPPA, noise / unit)
        return (
            np.max(stationary.hessian_stddev(np.sum((x * unit) ** 2, axis=0), KAPPA, noise / unit)) ** power >= claimed
        )

    units = (1e-3, 1.0, 1e3)
    assert all(holds(unit, 1) for unit in units)
    assert not all(holds(unit, 2) for unit in units)


@pytest.mark.statistical
def test_theorem_3_needs_the_kappa_in_its_last_line(rng):
    # Mean squared distance of 10**6 steps in 64 chains against the exact value and the printed one.
    a, noise = np.array([8.0, 20.0]), 0.7
    rate = 0.15 * float(stationary.max_learning_rate(a, KAPPA))
    x, _ = run(a, rate, noise, 400 + 8000, 64, rng)
    per_chain = np.mean(np.sum(x[400:] ** 2, axis=2), axis=0)
    stderr = per_chain.std(ddof=1) / 8.0
    critical = stats.t.isf(0.5e-6, 63)

    def accepted(claim):
        return abs(per_chain.mean() - claim) < critical * stderr

    energy = rate * noise**2 / KAPPA
    assert accepted(stationary.mean_square_distance(a, rate, KAPPA, noise))
    assert accepted(energy * np.sum(1.0 / (2.0 * a - rate * KAPPA * a**2)))
    assert not accepted(energy * np.sum(1.0 / (2.0 * a - rate * a**2)))  # as printed
    assert not accepted(stationary.mean_square_distance(a, rate, KAPPA, noise, "continuous"))


def test_theorem_3_rate_reaches_the_radius():
    a, noise, radius = np.array([8.0, 20.0]), 0.7, 0.15
    for A in (a, np.diag(a), np.array([[8.0, 1.0], [-1.0, 20.0]])):
        for time in ("continuous", "discrete"):
            limit = stationary.learning_rate_limit(A, radius, KAPPA, noise, time)
            assert stationary.mean_square_distance(A, limit, KAPPA, noise, time) == pytest.approx(radius**2, rel=1e-9)
    continuous = stationary.learning_rate_limit(a, radius, KAPPA, noise)
    assert continuous == pytest.approx(2 * KAPPA * radius**2 / (noise**2 * np.sum(1 / a)), rel=1e-12)
    assert stationary.learning_rate_limit(a, radius, KAPPA, noise, "discrete") < continuous
    assert stationary.learning_rate_limit(a, 100.0, KAPPA, noise, "discrete") == pytest.approx(
        float(stationary.max_learning_rate(a, KAPPA)), rel=1e-5
    )
    with pytest.raises(ValueError, match="positive real parts"):
        stationary.learning_rate_limit([1.0, -1.0], radius, KAPPA, noise)


def test_theorem_4_holds_for_a_smooth_lipschitz_loss(rng):
    # L = h sum log cosh x: gradient h tanh x, so H = h, G = h sqrt(d), inf L = 0; no subsampling error.
    h, d, noise, steps, chains, start = 3.0, 4, 2.0, 300, 200, 5.0
    known = {
        "initial_gap": d * h * math.log(math.cosh(start)),
        "smoothness": h,
        "n_steps": steps,
        "sample_rate": KAPPA,
        "n_coordinates": d,
        "noise_stddev": noise,
        "gradient_bound": h * math.sqrt(d),
    }
    best = stationary.optimal_learning_rate(**known)
    for rate in (best / 4, best, 4 * best):
        x = np.full((chains, d), start)
        total = 0.0
        for _ in range(steps):
            gradient = h * np.tanh(x)
            total += np.mean(np.sum(gradient**2, axis=1)) / steps
            x = x - rate * (KAPPA * gradient + noise * rng.normal(size=x.shape))
        assert total <= stationary.gradient_norm_bound(rate, **known)
    bounds = [stationary.gradient_norm_bound(best * factor, **known) for factor in (0.99, 1.0, 1.01)]
    assert bounds[1] == min(bounds)
    assert stationary.gradient_norm_bound(best, **known, subsampling_error=1.0) > bounds[1]


def test_the_heuristic_is_the_optimum_with_unit_constants():
    sigma, C, steps, d = 30.0, 2.0, 5000, 6
    heuristic = stationary.heuristic_learning_rate(sigma, C, steps, d)
    limit = stationary.optimal_learning_rate(
        initial_gap=1.0,
        smoothness=1.0,
        n_steps=steps,
        sample_rate=1.0,
        n_coordinates=d,
        noise_stddev=sigma * C,
        gradient_bound=0.0,
    )
    assert heuristic == pytest.approx(limit)
    assert stationary.heuristic_learning_rate(sigma, C, steps, d, math.sqrt(d / 2)) == pytest.approx(
        1 / (sigma * C * math.sqrt(steps))
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stationary.hessian_stddev(0.0, 0.1, 1.0), "square_distance must be positive"),
        (lambda: stationary.hessian_stddev_bound(0.0, 1, 1, 0.1, 1.0), "radius must lie"),
        (lambda: stationary.hessian_stddev_bound(1.0, 0, 1, 0.1, 1.0), "n_coordinates must be at least 1"),
        (lambda: stationary.learning_rate_limit([1.0], -1.0, 0.1, 1.0), "radius must lie"),
        (lambda: stationary.heuristic_learning_rate(1.0, 1.0, 0, 1), "n_steps must be at least 1"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
