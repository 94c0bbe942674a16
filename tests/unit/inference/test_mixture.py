"""Quantiles of mixtures of normals: roots of their distribution functions, points, what is refused."""

import numpy as np
import pytest
from scipy import optimize, special

from dpinfer.errors import NumericalError
from dpinfer.inference import _native
from dpinfer.inference.posterior.mixture import NormalMixtures, mixture_quantile

LEVELS = np.array([0.01, 0.05, 0.5, 0.95])


def mixtures(rng, sizes):
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    weight = np.concatenate([rng.dirichlet(np.full(size, 0.3)) for size in sizes])
    mean = rng.normal(size=weight.size) * 10.0 ** rng.uniform(-2.0, 2.0, weight.size)
    variance = 10.0 ** rng.uniform(-4.0, 2.0, weight.size)
    variance[rng.random(weight.size) < 0.1] = 0.0
    variance[offsets[:-1]] = 1.0
    return NormalMixtures(offsets, weight, mean, variance)


def root(weight, mean, variance, level):
    scale = np.sqrt(np.maximum(variance, 1e-300))

    def gap(x):
        return weight @ special.ndtr(np.clip((x - mean) / scale, -1e3, 1e3)) - level

    reach = 10.0 * (np.abs(mean).max() + scale.max())
    return optimize.brentq(gap, -reach, reach, xtol=1e-13, rtol=1e-14)


def test_quantiles_are_roots_of_the_distribution_function():
    given = mixtures(np.random.default_rng(1), [1, 2, 7, 8, 9, 40, 300])
    found = given.quantile(LEVELS)
    for j in range(given.width):
        weight, mean, variance = given.components(j)
        spread = np.sqrt(weight @ (variance + (mean - weight @ mean) ** 2))
        for level, value in zip(LEVELS, found[:, j], strict=True):
            assert value == pytest.approx(root(weight, mean, variance, level), abs=1e-11 * spread)
        one = mixture_quantile(weight, mean, variance, LEVELS)
        np.testing.assert_allclose(one, found[:, j], rtol=1e-12, atol=1e-12 * spread)


def test_steps_that_go_to_and_fro_about_a_narrow_component_end():
    """Newton's steps alone visit two points in turn, one on each side of the second component."""
    weight, mean, stddev = np.array([0.16, 0.14, 0.7]), np.array([0.0, 0.5, -6.0]), np.array([1.0, 0.09, 0.12])
    found = mixture_quantile(weight, mean, np.square(stddev), np.array([0.82]))
    assert weight @ special.ndtr((found - mean) / stddev) == pytest.approx(0.82, abs=1e-12)


def test_one_normal_and_points_alone():
    one = mixture_quantile(np.ones(1), np.array([3.0]), np.array([4.0]), LEVELS)
    np.testing.assert_allclose(one, 3.0 + 2.0 * special.ndtri(LEVELS), rtol=1e-12)
    points = mixture_quantile(np.array([0.5, 0.2, 0.3]), np.array([2.0, 9.0, -1.0]), np.zeros(3), LEVELS)
    np.testing.assert_array_equal(points, [-1.0, -1.0, 2.0, 9.0])
    ends = mixture_quantile(np.array([0.5, 0.5]), np.array([0.0, 1.0]), np.ones(2), np.array([0.0, 1.0]))
    np.testing.assert_array_equal(ends, [-np.inf, np.inf])


def test_numbers_that_are_none_are_told():
    with pytest.raises(NumericalError, match="did not converge"):
        mixture_quantile(np.ones(1), np.array([np.nan]), np.ones(1), LEVELS)
    bad = np.array([0, 3], dtype=np.int64)
    with pytest.raises(ValueError, match="offsets must increase"):
        _native.mixture_quantiles(bad, np.ones(2), np.ones(2), np.ones(2), LEVELS, LEVELS)
    with pytest.raises(ValueError, match="mean must have 3 elements"):
        _native.mixture_quantiles(bad, *(np.ones(size) for size in (3, 2, 3)), LEVELS, LEVELS)
