"""The private Newton method for logistic regression: public arithmetic between passes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer.mechanism.newton.contributions import LogisticCurvatures, LogisticScores, smat
from dpinfer.mechanism.newton.geometry import declared_whitening, learn_geometry
from dpinfer.mechanism.newton.passes import Passes
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.models import LogisticRegression
from dpinfer.models.whitening import ShrunkenMoments, shrink_moments

__all__ = ["LogisticNewton"]

FloatArray = npt.NDArray[np.float64]

_FORGETTING = 0.8
_LEAST_SIGNAL = 0.02
_LARGEST_SHARE = 0.97
_TRUSTED = 0.5  # of the localiser's information, when the measurements begin


def _normal_curvature(spreads: FloatArray) -> FloatArray:
    """Return E[p (1 - p)] for a normal predictor of each spread."""
    points = np.linspace(-8.0, 8.0, 801)
    weight = np.exp(-0.5 * points**2)
    p = 0.5 * (1.0 + np.tanh(0.5 * spreads[:, None] * points))
    return np.asarray((p * (1.0 - p)) @ (weight / weight.sum()))


_SPREADS = np.concatenate(([0.0], np.exp(np.linspace(-3.0, 3.2, 160))))
_CURVATURES = _normal_curvature(_SPREADS)


@dataclass
class LogisticNewton:
    """One run.

    Parameters
    ----------
    model : LogisticRegression
    plan : NewtonPlan
    n_records : int
    """

    model: LogisticRegression
    plan: NewtonPlan
    n_records: int

    def run(self, passes: Passes) -> dict[str, FloatArray | float | int]:
        """Make the plan's passes and return the arrays of the release."""
        whitening, trace = declared_whitening(self.model)
        geometry, moments = learn_geometry(self.plan, passes, self.n_records, transform=whitening, trace=trace)
        transform, bound = geometry["transforms"][-1], float(geometry["moment_bounds"][-1])
        position, error, localised = self._localise(passes, transform, bound, moments.matrix)
        d = self.model.n_coef
        released = passes.noisy_sum("slope", LogisticCurvatures(transform, bound, transform.T @ position))
        slope, slope_stddev = smat(released.values, d) / self.n_records, released.stddev / self.n_records
        shrunken = shrink_moments(slope, slope_stddev, max(float(np.trace(slope)), 0.01 * d))
        measured = self._measure(passes, transform, bound, shrunken, position, error)
        return {
            **geometry,
            **localised,
            **measured,
            "slope": slope,
            "slope_stddev": slope_stddev,
            "slope_position": position,
        }

    def _score(
        self, passes: Passes, phase: str, transform: FloatArray, bound: float, position: FloatArray
    ) -> tuple[FloatArray, float]:
        released = passes.noisy_sum(phase, LogisticScores(transform, bound, transform.T @ position))
        return released.values / self.n_records, released.stddev / self.n_records

    def _localise(
        self, passes: Passes, transform: FloatArray, bound: float, moments: FloatArray
    ) -> tuple[FloatArray, float, dict[str, FloatArray]]:
        """Return a point near the zero of the exact score, the noise it rests on, and what was released.

        For normal features Stein's identity makes the score h(s*) M u* - h(s_t) M u_t with h(s) = E[p (1 - p)] at a
        predictor of spread s.  So every score measures the vector h(s*) M u*, wherever it was taken; for other features
        those taken near u* do, and older ones are forgotten.
        """
        d = self.model.n_coef
        position: FloatArray = np.zeros(d)
        total, weight, weight2 = np.zeros(d), 0.0, 0.0
        noise = 0.0
        positions, scores, stddevs = [], [], []
        for step, _ in enumerate(self.plan.indices("localise")):
            score, stddev = self._score(passes, "localise", transform, bound, position)
            positions.append(position)
            scores.append(score)
            stddevs.append(stddev)
            spread = float(np.sqrt(position @ moments @ position))
            here = score + float(np.interp(spread, _SPREADS, _CURVATURES)) * (moments @ position)
            gain = (step + 1.0) / stddev**2
            total, weight = _FORGETTING * total + gain * here, _FORGETTING * weight + gain
            weight2 = _FORGETTING**2 * weight2 + (gain * stddev) ** 2
            noise = weight2 / weight**2
            position = _solve_stein(total / weight, noise, moments)
        released = {
            "localise_positions": np.array(positions),
            "localise_scores": np.array(scores),
            "localise_stddev": np.array(stddevs),
        }
        return position, float(np.sqrt(noise)), released

    def _measure(
        self,
        passes: Passes,
        transform: FloatArray,
        bound: float,
        slope: ShrunkenMoments,
        position: FloatArray,
        error: float,
    ) -> dict[str, FloatArray | float | int]:
        """Measure the score near its zero: a filter that starts from the prior and from a share of the localiser."""
        jacobian = slope.matrix
        sampling = jacobian / self.n_records
        first = jacobian @ np.linalg.solve(error**2 * np.eye(len(position)) + sampling, jacobian)
        precision = transform @ transform.T / self.model.prior_scale**2 + _TRUSTED * first
        information = _TRUSTED * first @ position
        positions, scores, stddevs = [], [], []
        for _ in self.plan.indices("measure"):
            score, stddev = self._score(passes, "measure", transform, bound, position)
            positions.append(position)
            scores.append(score)
            stddevs.append(stddev)
            # What the slope's error makes of a move to where u* may be counts as noise, so that no step is too long.
            moved = np.linalg.solve(precision, information) - position
            wrong = 0.5 * slope.error**2 * (moved @ moved + np.trace(np.linalg.inv(precision)))
            noise = stddev**2 + wrong
            precision = precision + jacobian @ jacobian / noise
            information = information + jacobian @ (score + jacobian @ position) / noise
            position = np.asarray(np.linalg.solve(precision, information), dtype=np.float64)
        return {"positions": np.array(positions), "scores": np.array(scores), "score_stddev": np.array(stddevs)}


def _solve_stein(vector: FloatArray, noise: float, moments: FloatArray) -> FloatArray:
    """Return u with h(s) M u = vector, s**2 = u'M u, with `vector` shrunken by what its size says of its noise."""
    size = float(vector @ vector)
    signal = max(size - vector.size * noise, _LEAST_SIGNAL * size)
    shrunken = vector * np.sqrt(signal / max(size, 1e-300)) * signal / (signal + vector.size * noise)
    direction = np.asarray(np.linalg.solve(moments, shrunken), dtype=np.float64)
    length = float(np.sqrt(np.maximum(direction @ moments @ direction, 0.0)))
    reach = _SPREADS * _CURVATURES
    spread = float(np.interp(min(length, _LARGEST_SHARE * float(reach.max())), np.maximum.accumulate(reach), _SPREADS))
    return direction / float(np.interp(spread, _SPREADS, _CURVATURES))
