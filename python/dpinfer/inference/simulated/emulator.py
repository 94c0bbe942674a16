"""Draws of a model's parameters given a noisy mean score whose expectation under each truth is simulated.

The expectation is simulated at some hundred truths, a polynomial is fitted to it, and the polynomial's error counts
as noise.
"""

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Protocol

import numpy as np

from dpinfer._arrays import NEGLIGIBLE, FloatArray
from dpinfer.inference.trace import tuning
from dpinfer.models import tuning as common

_TRUTHS = 400  # two hundred pairs, or enough for the polynomial's coefficients (docs/derivations/any-model.md)
_SWEEPS, _FIRST_SWEEPS = 40, 15  # of slice sampling; each chain starts at its own draw of the truth; tolerance
_MOST_SHRINKS = 40  # brackets shrink by half on average: 40 exhaust double precision
_NEWTON_STEPS = 6  # of Gauss-Newton: public arithmetic, time only
_RIDGE = 1e-3  # of the polynomial, per truth: keeps it solvable; its error is measured by leave-one-out
_CUBIC_UP_TO = 3  # cubics of more parameters need more coefficients than truths: formula


@dataclass(frozen=True)
class Prior:
    """Independent normal priors of the unconstrained parameters, (n,) each."""

    mean: FloatArray
    scale: FloatArray

    def log_density(self, theta: FloatArray) -> FloatArray:
        """Return it up to a constant, (S,) for (S, n)."""
        return np.asarray(-0.5 * np.sum(((theta - self.mean) / self.scale) ** 2, axis=-1))


class MeanScore(Protocol):
    """A released noisy mean score, and its expectation."""

    observed: FloatArray  # (n,)
    noise: FloatArray  # (n, n): covariance of the privacy noise
    n_records: int

    def expected(self, truth: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the mean of a record's score, (n,), and its covariance, (n, n), when `truth` is the truth."""

    def ratios(self, truth: FloatArray, size: int, rng: np.random.Generator) -> FloatArray:
        """Return draws (size, n, n) of the map from expected means of simulated records to those of the records."""


@dataclass(frozen=True)
class _Region:
    """A normal distribution around which truths are tried."""

    centre: FloatArray
    factor: FloatArray

    def standard(self, theta: FloatArray) -> FloatArray:
        return np.asarray(np.linalg.solve(self.factor, (theta - self.centre).T).T)


def simulated_draws(score: MeanScore, prior: Prior, size: int, rng: np.random.Generator) -> tuple[FloatArray, float]:
    """Return draws of the unconstrained parameters, (size, n), and the error of the emulator.

    That is the root mean square error of the polynomial, over the noise of the observed mean score.

    **Privacy.** Reads a release's numbers alone.

    ``observed ~ N(R expected(theta), R covariance(theta) R' / N + noise)``.  Elliptical slice sampling (Murray, Adams
    and MacKay 2010) around the region in which the emulator was fitted; two rounds, the second where the first has led.
    """
    region, ratios = _first_region(score, prior, size, rng)
    draws = np.empty((size, prior.mean.size))
    error = 0.0
    for sweeps in (_FIRST_SWEEPS, _SWEEPS):
        emulator = _Emulator.fitted(score, region, ratios, rng)
        error = emulator.error
        draws = _sampled(emulator, prior, size, sweeps, rng)
        spread = np.atleast_2d(np.cov(draws, rowvar=False)) * tuning.TUNING.wider
        region = _Region(draws.mean(axis=0), _factor(spread))
    return draws, error


def _factor(covariance: FloatArray) -> FloatArray:
    symmetric = 0.5 * (covariance + covariance.T)
    return np.asarray(np.linalg.cholesky(symmetric + NEGLIGIBLE * np.trace(symmetric) * np.eye(len(symmetric))))


def _first_region(score: MeanScore, prior: Prior, size: int, rng: np.random.Generator) -> tuple[_Region, FloatArray]:
    """Return where truths are plausible, by Gauss-Newton steps with a quarter of the information; and the ratios."""
    n = prior.mean.size
    centre, covariance = prior.mean.copy(), np.diag((0.5 * prior.scale) ** 2)
    for _ in range(_NEWTON_STEPS):
        step = np.minimum(np.sqrt(np.diag(covariance)), 0.5 * prior.scale)
        mean, own = score.expected(centre)
        columns = [
            (score.expected(centre + step * unit)[0] - score.expected(centre - step * unit)[0]) / (2.0 * step[index])
            for index, unit in enumerate(np.eye(n))
        ]
        slope = np.stack(columns, axis=1)
        weighted = tuning.TUNING.temper * np.linalg.solve(own / score.n_records + score.noise, slope).T
        precision = weighted @ slope + np.diag(prior.scale**-2.0)
        covariance = np.linalg.inv(0.5 * (precision + precision.T))
        move = covariance @ (weighted @ (score.observed - mean) + (prior.mean - centre) / prior.scale**2)
        length = float(np.sqrt(move @ precision @ move))
        moved = centre + move * min(1.0, tuning.TUNING.longest_step / max(length, NEGLIGIBLE))
        reach = tuning.TUNING.farthest * prior.scale
        centre = np.clip(moved, prior.mean - reach, prior.mean + reach)
    return _Region(centre, _factor(covariance)), score.ratios(centre, size, rng)


def _features(points: FloatArray) -> FloatArray:
    """Return 1, the coordinates and their products of degree 2, with few coordinates also 3: (S, features)."""
    n = points.shape[1]
    degrees = (2, 3) if n <= _CUBIC_UP_TO else (2,)
    products = [
        np.prod(points[:, list(chosen)], axis=1)
        for degree in degrees
        for chosen in combinations_with_replacement(range(n), degree)
    ]
    return np.column_stack((np.ones(len(points)), points, *products))


@dataclass(frozen=True)
class _Emulator:
    """Polynomials of expected mean and size of the covariance, and the likelihood that they give."""

    region: _Region
    observed: FloatArray
    ratios: FloatArray
    coefficients: FloatArray
    sizes: FloatArray
    sampled: FloatArray
    fixed: FloatArray
    error: float

    @classmethod
    def fitted(cls, score: MeanScore, region: _Region, ratios: FloatArray, rng: np.random.Generator) -> "_Emulator":
        n = region.centre.size
        points = rng.standard_normal((max(_TRUTHS // 2, n * (n + 3)), n))
        expected = [score.expected(truth) for truth in region.centre + points @ region.factor.T]
        means, covariances = np.stack([mean for mean, _ in expected]), np.stack([own for _, own in expected])
        features = _features(points)
        ridge = np.full(features.shape[1], _RIDGE * len(points))
        ridge[: n + 1] *= _RIDGE
        inverse = np.linalg.inv(features.T @ features + np.diag(ridge))
        coefficients = inverse @ features.T @ means
        leverage = np.minimum(np.einsum("ij,jk,ik->i", features, inverse, features), 0.9)
        missed = (means - features @ coefficients) / (1.0 - leverage)[:, None]
        missing = missed.T @ missed / len(points)
        traces = np.maximum(np.trace(covariances, axis1=1, axis2=2), NEGLIGIBLE)
        sizes = np.linalg.lstsq(features[:, : n + 1], np.log(traces), rcond=None)[0]
        shape = np.mean(covariances / traces[:, None, None], axis=0) / score.n_records
        other = np.swapaxes(ratios, 1, 2)
        around = np.exp(sizes[0]) * shape + score.noise
        return cls(
            region,
            score.observed,
            ratios,
            coefficients,
            sizes,
            ratios @ shape @ other,
            ratios @ missing @ other + score.noise,
            float(np.sqrt(np.trace(np.linalg.solve(around, missing)) / n)),
        )

    def log_likelihood(self, theta: FloatArray) -> FloatArray:
        """Return log N(observed; ...) of each draw with its own ratio, (S,)."""
        n = self.observed.size
        points = self.region.standard(theta)
        features = _features(points)
        missed = self.observed - np.einsum("sab,sb->sa", self.ratios, features @ self.coefficients)
        size = np.exp(np.clip(features[:, : n + 1] @ self.sizes, -100.0, 100.0))
        factor = np.linalg.cholesky(self.sampled * size[:, None, None] + self.fixed)
        white = np.linalg.solve(factor, missed[:, :, None])[:, :, 0]
        return np.asarray(-0.5 * np.sum(white**2, axis=1) - np.sum(np.log(np.einsum("sii->si", factor)), axis=1))


def _sampled(emulator: _Emulator, prior: Prior, size: int, sweeps: int, rng: np.random.Generator) -> FloatArray:
    """Return one draw of each of `size` chains of elliptical slice sampling, all moved at once."""
    region = emulator.region
    n = region.centre.size

    def height(theta: FloatArray) -> FloatArray:
        base = 0.5 * np.sum(region.standard(theta) ** 2, axis=1)
        return np.asarray(emulator.log_likelihood(theta) + prior.log_density(theta) + base)

    theta = region.centre + rng.standard_normal((size, n)) @ region.factor.T
    here = height(theta)
    for _ in range(sweeps):
        other = rng.standard_normal((size, n)) @ region.factor.T
        level = here + np.log(rng.random(size))
        angle = 2.0 * np.pi * rng.random(size)
        low, high = angle - 2.0 * np.pi, angle.copy()
        waiting = np.ones(size, dtype=bool)
        moved = theta.copy()
        for _ in range(_MOST_SHRINKS):
            tried = region.centre + (theta - region.centre) * np.cos(angle)[:, None] + other * np.sin(angle)[:, None]
            heights = height(tried)
            accepted = waiting & (heights > level)
            moved[accepted], here[accepted] = tried[accepted], heights[accepted]
            waiting &= ~accepted
            if not np.any(waiting):
                break
            low = np.where(waiting & (angle < 0.0), angle, low)
            high = np.where(waiting & (angle >= 0.0), angle, high)
            angle = np.where(waiting, low + (high - low) * rng.random(size), angle)
        theta = moved
    return theta


def ratio_draws(
    # released, simulated: (n, n): symmetric slopes; the simulated one is positive definite, or held so
    released: FloatArray,
    simulated: FloatArray,
    stddev: float,  # of the noise in the diagonal of `released`; beside it 1 / sqrt(2) of that
    size: int,
    rng: np.random.Generator,
) -> FloatArray:  # (size, n, n)
    """Draw the matrix R with released = R simulated, near the identity.

    In coordinates in which the simulated slope is the identity: a level with a normal prior (mean 1, standard deviation
    1/4), and deviations from it with a spread that is learned, less the part that noise alone exceeds with probability
    1/6.
    """
    n = len(simulated)
    eigenvalues, eigenvectors = np.linalg.eigh(simulated)
    eigenvalues = np.maximum(eigenvalues, common.TUNING.least_slope * float(np.mean(np.abs(eigenvalues))))
    inverse = (eigenvectors / np.sqrt(eigenvalues)) @ eigenvectors.T
    root = (eigenvectors * np.sqrt(eigenvalues)) @ eigenvectors.T
    ratio = inverse @ released @ inverse
    noise = stddev * float(np.mean(1.0 / eigenvalues))
    mean = float(np.trace(ratio)) / n
    level_variance = 1.0 / (tuning.TUNING.level_spread**-2 + n / noise**2)
    level = level_variance * (tuning.TUNING.level_spread**-2 + n * mean / noise**2)
    variance = np.where(np.eye(n) > 0.0, noise**2, 0.5 * noise**2)
    deviation = ratio - mean * np.eye(n)
    free = max(0.5 * n * (n + 1) - 1.0, 1.0)
    hidden = float(np.mean(variance)) * (1.0 + math.sqrt(2.0 / free))
    energy = max(float(np.sum(deviation**2)) / n**2 - hidden, tuning.TUNING.least_spread**2)
    share = energy / (energy + variance)
    upper = np.triu(rng.standard_normal((size, n, n)))
    symmetric = upper + np.triu(upper, 1).swapaxes(1, 2)
    levels = level + math.sqrt(level_variance) * rng.standard_normal(size)
    drawn = levels[:, None, None] * np.eye(n) + share * deviation + np.sqrt(share * variance) * symmetric
    values, vectors = np.linalg.eigh(drawn)
    bounded = np.maximum(values, tuning.TUNING.least_ratio * max(level, tuning.TUNING.level_spread))
    return np.asarray(root @ (vectors * bounded[:, None, :]) @ vectors.swapaxes(1, 2) @ inverse)
