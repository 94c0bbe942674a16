"""Where the zero of a score is, from noisy scores taken elsewhere: a filter of public arithmetic."""

from dataclasses import dataclass, field

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton import tuning
from dpinfer.models.normal_design import ExpectedResidual, NormalDesign, PredictorLaw
from dpinfer.models.steady import steady_solve

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
