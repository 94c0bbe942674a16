"""Coordinates of a private Newton run: second moments that each pass whitens better, the prior, the score's zero."""

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.contributions import FeatureMeans, Query, SecondMoments, smat
from dpinfer.mechanism.newton.pass_records import NoisySum
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.models import GeneralizedLinearModel
from dpinfer.models.clipping import mallows_moment
from dpinfer.models.likely_records import ExpectedResidual, NormalDesign, PredictorLaw
from dpinfer.models.whitening import Onward, ShrunkenMoments, moments_of_means, onward, shrink_moments, steady_solve

_SWEEPS, _HALVINGS = 12, 6  # Gauss-Newton steps at most, and halvings of each
_CLOSE = 1e-4  # squared length of the last step for each weight: 1% of a posterior standard deviation


@dataclass(frozen=True)
class _Score:
    """A released score: its position, value, noise, and expectation under the model."""

    position: FloatArray
    value: FloatArray
    stddev: float
    expected: ExpectedResidual


@dataclass
class Localiser:
    """Mode and precision of the whitened weights given scores whose means are those of normal features.

    A score's error is its noise and a share of its own mean.  So the weight of a score falls with its distance from the
    zero, and the effect of features that are not normal vanishes.

    Parameters
    ----------
    prior_precision : (d, d) array
    sampling : float
        Variance of a score at its zero, per record and direction.
    position : (d,) array
        Where the first score is taken.
    prior_mean : (d,) array
    """

    design: NormalDesign
    prior_precision: FloatArray
    sampling: float
    position: FloatArray
    prior_mean: FloatArray
    _scores: list[_Score] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.precision = self.prior_precision

    @property
    def law(self) -> PredictorLaw:
        """The law of the linear predictor at `position`."""
        return self.design.law(self.position)

    def add(self, value: FloatArray, stddev: float, expected: ExpectedResidual) -> None:
        """Take in the score that was released at `position`, and move."""
        self._scores.append(_Score(self.position, value, stddev, expected))
        self._find_mode()

    def in_coordinates(self, forth: FloatArray, trusted: float) -> "Localiser":
        """Return a localiser for z' = forth z: its prior has this one's and a share of its scores' information."""
        inverse = np.asarray(np.linalg.inv(forth), dtype=np.float64)
        said = trusted * (self.precision - self.prior_precision)
        total = self.prior_precision + said
        mean = steady_solve(total, self.prior_precision @ self.prior_mean + said @ self.position)
        return Localiser(
            design=NormalDesign(forth @ self.design.mean, forth @ self.design.covariance @ forth.T),
            prior_precision=forth @ total @ forth.T,
            sampling=self.sampling,
            position=inverse.T @ self.position,
            prior_mean=inverse.T @ mean,
        )

    def _noise(self, expected: FloatArray, score: _Score) -> float:
        share = tuning.TUNING.score_error**2 * float(expected @ expected) / expected.size
        return score.stddev**2 + self.sampling + share

    def _objective(self, position: FloatArray, errors: list[FloatArray], noises: list[float]) -> float:
        away = position - self.prior_mean
        value = 0.5 * float(away @ self.prior_precision @ away)
        for error, noise in zip(errors, noises, strict=True):
            value += 0.5 * float(np.sum(np.square(error))) / noise
        return value

    def _errors(self, position: FloatArray) -> list[FloatArray]:
        """Return each score less its expectation if the zero of the scores is at `position`."""
        return [
            score.value - self.design.expected_score(score.expected, position, score.position, jacobian=False)[0]
            for score in self._scores
        ]

    def _find_mode(self) -> None:
        """Gauss-Newton steps with halving; errors are those at the start of each."""
        for _ in range(_SWEEPS):
            precision = self.prior_precision.copy()
            gradient = self.prior_precision @ (self.prior_mean - self.position)
            errors, noises = [], []
            for score in self._scores:
                expected, jacobian = self.design.expected_score(score.expected, self.position, score.position)
                noise = self._noise(expected, score)
                precision += jacobian.T @ jacobian / noise
                gradient += jacobian.T @ (score.value - expected) / noise
                errors.append(score.value - expected)
                noises.append(noise)
            step = steady_solve(precision, gradient)
            before = self._objective(self.position, errors, noises)
            for _ in range(_HALVINGS):
                if self._objective(self.position + step, self._errors(self.position + step), noises) <= before:
                    break
                step = 0.5 * step
            self.position = self.position + step
            self.precision = 0.5 * (precision + precision.T)
            if float(step @ precision @ step) < _CLOSE * step.size:
                break


# Of weights in scaled units: over what all records say, and how far apart doubles hold them.
_TIGHTEST, _RANGE = 1e6, 1e12


def prior_in(transform: FloatArray, variance: FloatArray, sizes: FloatArray, informed: float) -> FloatArray:
    """Return the prior's precision of weights in the coordinates z = transform x, within a relevant range, (d, d).

    A weight of a feature in another unit can have a precision of 1e24 times that of others, and no double holds both
    once they are mixed.  In units of the features' sizes a precision of a million times that of all records is as good
    as a larger one, and a millionth of a millionth of it as good as a smaller one.

    Parameters
    ----------
    transform : (d, d) array
    variance : (d,) array
        Prior variances of the weights.
    sizes : (d,) array
        Declared root mean squares of the features.
    informed : float
        About the precision that the records give a weight in units of its feature's size.
    """
    precision = 1.0 / (variance * np.square(sizes))
    largest = min(float(precision.max()), _TIGHTEST * informed)
    held = np.clip(precision, largest / _RANGE, largest)
    if np.array_equal(held, precision):
        return np.asarray((transform / variance) @ transform.T)
    scaled = transform * (sizes * np.sqrt(held))
    return np.asarray(scaled @ scaled.T)


_DECLARED_FLOOR = 1e-3  # of the eigenvalues of the declared correlations


class NoisySums(Protocol):
    """The passes of a run, or their expectation in a plan."""

    def noisy_sum(self, phase: str, query: Query) -> NoisySum:
        """Release a sum over all records."""


@dataclass(frozen=True)
class Geometry:
    """Results of the geometry passes.

    Parameters
    ----------
    arrays : dict
        Of the release.
    moments : ShrunkenMoments
        The shrunken last matrix.
    onward : Onward
        The way to the next coordinates.
    """

    arrays: dict[str, FloatArray]
    moments: ShrunkenMoments
    onward: Onward

    @property
    def transform(self) -> FloatArray:
        """The last coordinates, (d, d)."""
        return np.asarray(self.arrays["transforms"][-1])

    @property
    def bound(self) -> float:
        """B there."""
        return float(self.arrays["moment_bounds"][-1])


def _first_coordinates(model: GeneralizedLinearModel, moments: FloatArray) -> tuple[FloatArray, float]:
    """Return the first coordinates of the geometry, (d, d), and the expected trace there.

    Declared moments are whitened: directions without variance, as for indicators of all categories beside a
    constant, then have a scale in which their prior is narrow.
    """
    scale = 1.0 / np.sqrt(np.diag(moments))
    if model.residual_link is None and model.feature_moments is None:
        return np.diag(scale), float(model.n_coef)
    values, vectors = np.linalg.eigh(moments * scale[:, None] * scale)
    values = np.maximum(values, 0.0)
    transform = (vectors / np.sqrt(values + _DECLARED_FLOOR)).T * scale
    return transform, float(np.sum(values / (values + _DECLARED_FLOOR)))


def _declared_moments(
    model: GeneralizedLinearModel, plan: NewtonPlan, passes: NoisySums, n_records: int
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Make the pass for the means, where the plan has one; return its arrays and the moments to begin with, (d, d)."""
    if not plan.indices("means"):
        return {}, model.design_moments
    d, n = model.n_coef, model.n_features
    declared = np.asarray(model.feature_moments, dtype=np.float64)
    units = np.sqrt(model.second_moments)
    bound = math.sqrt(tuning.TUNING.bound * d)
    released = passes.noisy_sum("means", FeatureMeans(np.diag(1.0 / units), bound))
    values, stddev = released.values / n_records, released.stddev / n_records
    arrays = {"means": values[None], "means_stddev": np.array([stddev]), "means_bounds": np.array([bound])}
    return arrays, moments_of_means(declared, values[:n] * units[:n], stddev * units[:n])[:d, :d]


def learn_geometry(model: GeneralizedLinearModel, plan: NewtonPlan, passes: NoisySums, n_records: int) -> Geometry:
    """Make the plan's passes for means and second moments."""
    d = model.n_coef
    means, declared = _declared_moments(model, plan, passes, n_records)
    transform, trace = _first_coordinates(model, declared)
    transforms, matrices, stddevs, bounds = [], [], [], []
    rounds = plan.indices("geometry")
    ahead = Onward(transform, np.zeros((d, d)), None)
    for index in rounds:
        bound = math.sqrt(tuning.TUNING.bound * trace)
        released = passes.noisy_sum("geometry", SecondMoments(transform, bound))
        noisy, stddev = smat(released.values, d) / n_records, released.stddev / n_records
        transforms.append(transform)
        matrices.append(noisy)
        stddevs.append(stddev)
        bounds.append(bound)
        shrunken = shrink_moments(noisy, stddev, trace)
        ahead = onward(shrunken, ahead.foretold * mallows_moment(d, bound), ahead.wanted)
        if index != rounds[-1]:
            transform, trace = ahead.transform @ transform, shrunken.whitened_trace
    arrays = {
        **means,
        "transforms": np.array(transforms),
        "moments": np.array(matrices),
        "moment_stddev": np.array(stddevs),
        "moment_bounds": np.array(bounds),
    }
    return Geometry(arrays, shrunken, ahead)
