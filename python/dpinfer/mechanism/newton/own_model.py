"""The private Newton method for a model of the user's own: public arithmetic between passes."""

import contextlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.contributions import smat
from dpinfer.mechanism.newton.own_bounds import (
    ExpectedScore,
    NormalPosterior,
    SimulatedBounds,
    simulate_bounds,
    simulate_reach,
    simulate_shift,
    symmetric_inverse_root,
)
from dpinfer.mechanism.newton.own_rows import CentredScores, PersonScores
from dpinfer.mechanism.newton.pass_records import Passes
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.models import OwnModel
from dpinfer.models import tuning as common
from dpinfer.models.person_model import PersonModel
from dpinfer.models.whitening import shrink_to_level, steady_inverse, steady_solve

_SEED = 811  # of public draws: any number
_ROWS, _LAST_ROWS, _REACH_ROWS = 1500, 4000, 300  # made-up records: on the way, at its end, to try a step


@dataclass
class Filter:
    """A Gaussian filter of the parameters, in units of the prior."""

    mean: FloatArray
    covariance: FloatArray

    def surprise(self, moved: FloatArray, noise: FloatArray) -> float:
        """Return the squared length of a move relative to its size under a correct filter, for each parameter."""
        return float(moved @ steady_solve(self.covariance + noise, moved)) / moved.size

    def forget(self, surprise: float) -> None:
        """Widen the filter's covariance: repeated steps in one direction are not errors around a point."""
        self.covariance = self.covariance * max(surprise, 1.0)

    def update(self, observed: FloatArray, noise: FloatArray, drift: FloatArray) -> None:
        """Update by an observation with this noise; the point then moves by `drift`."""
        moved = observed - self.mean
        gain = self.covariance @ steady_inverse(self.covariance + noise)
        mean = self.mean + gain @ moved
        self.mean = np.clip(mean, -tuning.OWN.farthest, tuning.OWN.farthest)
        covariance = self.covariance - gain @ self.covariance + drift
        self.covariance = 0.5 * (covariance + covariance.T)


@dataclass
class OwnSteps(ABC):
    """Base of the runs of models with and without a sampler: Newton steps, and measurements at their end."""

    model: OwnModel
    plan: NewtonPlan
    n_records: int
    _kept: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._prior = self.model.parameters

    @abstractmethod
    def run(self, passes: Passes) -> dict[str, Any]:
        """Make the plan's passes and return the arrays of the release."""

    @abstractmethod
    def localised(self, passes: Passes) -> tuple[FloatArray, FloatArray, dict[str, Any]]:
        """Make the steps; return the point in units of the prior, coordinates that whiten there, and what was kept."""

    def _kept_arrays(self) -> dict[str, Any]:
        return {name: np.array(values) for name, values in self._kept.items()} | {"score_share": tuning.OWN.score_share}

    @abstractmethod
    def _query(self, passes: Passes, phase: str, units: FloatArray, white: FloatArray, bounds: Any) -> dict[str, Any]:
        """Release a pass: the score, the matrix, or both, each divided by the number of records."""

    def _theta(self, units: FloatArray) -> FloatArray:
        return np.asarray(self._prior.prior_mean + self._prior.prior_scale * units)

    def _held(self, units: FloatArray) -> FloatArray:
        """Return the nearest point at which the model is defined, in units of the prior."""
        clipped = np.clip(units, -tuning.OWN.farthest, tuning.OWN.farthest)
        theta = self._theta(clipped)
        held = self.model.held(theta)
        return clipped if held is theta else np.asarray((held - self._prior.prior_mean) / self._prior.prior_scale)

    def _keep(self, **values: Any) -> None:
        for name, value in values.items():
            self._kept.setdefault(name, []).append(value)

    def _keep_localised(self, released: dict[str, Any], units: FloatArray, white: FloatArray) -> None:
        self._keep(
            localise_positions=self._theta(units),
            localise_transforms=white * self._prior.prior_scale,
            localise_scores=released["score"],
            localise_stddev=released["score_stddev"],
            localise_bounds=released["score_bound"],
            matrices=smat(released["matrix"], self.model.n_params),
            matrix_stddev=released["matrix_stddev"],
            matrix_bounds=released["matrix_bound"],
        )

    def _arrays(
        self, units: FloatArray, white: FloatArray, released: dict[str, Any], measured: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arrays of the release, from the slope's pass at `units` and the measurements."""
        return {
            **self._kept_arrays(),
            **measured,
            "transform": white * self._prior.prior_scale,
            "slope": smat(released["matrix"], self.model.n_params),
            "slope_stddev": released["matrix_stddev"],
            "slope_bound": released["matrix_bound"],
            "slope_position": self._theta(units),
            "prior_mean": self._prior.prior_mean.copy(),
            "prior_scale": self._prior.prior_scale.copy(),
        }

    def _step(self, filtered: Filter, white: FloatArray, slope: FloatArray, released: dict[str, Any]) -> None:
        """Take a Newton step inside the trust region, and filter its end."""
        n = self.model.n_params
        floor = tuning.OWN.floor * math.sqrt(n) * released["matrix_stddev"]
        eigenvalues, eigenvectors = np.linalg.eigh(0.5 * (slope + slope.T))
        held = np.maximum(eigenvalues, max(floor, 1e-3 * float(eigenvalues[-1]), 1e-9))
        inverse = (eigenvectors / held) @ eigenvectors.T
        step = inverse @ released["score"]
        length = float(np.linalg.norm(step))
        if length > tuning.OWN.trust:
            step, length = step * (tuning.OWN.trust / length), tuning.OWN.trust
        own = inverse @ inverse * released["score_stddev"] ** 2

        def observed(length: float) -> tuple[FloatArray, FloatArray]:
            noise = own + np.eye(n) * ((tuning.OWN.model_error * length) ** 2 / n + 1e-6)
            return white.T @ noise @ white, white.T @ white * ((0.5 * tuning.OWN.model_error * length) ** 2 / n)

        noise, drift = observed(length)
        if filtered.surprise(white.T @ step, noise) > tuning.OWN.surprise:
            reach = min(self._reach(filtered.mean, white, step, released), max(tuning.OWN.farthest_reach / length, 1.0))
            step = reach * step
            noise, drift = observed(reach * length)
            filtered.forget(filtered.surprise(white.T @ step, noise))
        filtered.update(filtered.mean + white.T @ step, noise, drift)
        filtered.mean = self._held(filtered.mean)

    def _reach(self, units: FloatArray, white: FloatArray, step: FloatArray, released: dict[str, Any]) -> float:
        """Return by how much to lengthen a step that the filter did not expect."""
        return 1.0

    def _measure(
        self, passes: Passes, units: FloatArray, white: FloatArray, bounds: Any, slope: FloatArray, ratio: float
    ) -> dict[str, Any]:
        """Measure the score near the posterior's mode, with fixed settings except for the point.

        The prior counts in each step: with little information in the records, the zero of the score is far away, and
        the score is not linear there.
        """
        level = float(np.trace(slope)) / len(slope)
        points, scores, stddevs, norms = [], [], [], []
        for number, _ in enumerate(self.plan.indices("measure")):
            released = self._query(passes, "measure", units, white, bounds)
            points.append(units)
            scores.append(released["score"])
            stddevs.append(released["score_stddev"])
            norms.append(released["score_bound"])
            centre = np.mean(points, axis=0)
            covariance = slope * (ratio / self.n_records) + np.eye(len(slope)) * (stddevs[-1] ** 2 / len(points))
            weighted = steady_solve(covariance, slope).T
            precision = weighted @ slope + white @ white.T
            step = steady_solve(precision, weighted @ np.mean(scores, axis=0) - white @ centre)
            length = float(np.linalg.norm(step))
            if number == 0 or length >= 2.0 * stddevs[-1] / level:
                moved = centre + white.T @ (step * min(1.0, tuning.OWN.short_trust / max(length, 1e-12)))
                units = self._held(moved)
            else:
                units = self._held(centre)
        return {
            "positions": np.array([self._theta(point) for point in points]),
            "scores": np.array(scores),
            "score_stddev": np.array(stddevs),
            "score_bounds": np.array(norms),
        }


@dataclass
class OwnNewton(OwnSteps):
    """A run of a model with a sampler.

    Made-up records at the prior's mean come first: whatever the model's code raises there is raised, and nothing spent.
    """

    _number: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        measured = math.fsum(self.plan.shares[index] for index in self.plan.indices("measure"))
        self._noise = self.plan.noise_multiplier / math.sqrt(measured * (1.0 - tuning.OWN.tally_share))
        self._rng = np.random.default_rng(_SEED)
        self._last = self._simulated(np.zeros(self.model.n_params), _ROWS)

    def run(self, passes: Passes) -> dict[str, Any]:
        """Make the plan's passes and return the arrays of the release."""
        n = self.model.n_params
        filtered = Filter(np.zeros(n), np.eye(n))
        ratio, ratio_stddev = self._localise(passes, filtered)
        bounds = self._bounds(filtered.mean, _LAST_ROWS)
        white = symmetric_inverse_root(ratio) @ symmetric_inverse_root(bounds.information)
        released = self._query(passes, "slope", filtered.mean, white, bounds)
        mean, _ = shrink_to_level(smat(released["matrix"], n), released["matrix_stddev"], ratio_stddev)
        measured = self._measure(passes, filtered.mean, white, bounds, mean, bounds.variance_ratio)
        return self._arrays(filtered.mean, white, released, measured) | {
            "slope_spread": ratio_stddev,
            "variance_ratio": bounds.variance_ratio,
            "centre_share": bounds.share,
            "count_shares": np.array([0.0, 0.0, tuning.OWN.tally_share]),
            "square": bounds.square,
            # The truth behind the whitening is that of the transformed score by its inverse transpose.
            "square_slope": bounds.square_slope
            @ np.linalg.inv(symmetric_inverse_root(bounds.information))
            / self._prior.prior_scale,
            "square_variance": bounds.square_variance,
            "squared_shift": self._squared_shift(filtered.mean, white, bounds, mean, measured),
        }

    def localised(self, passes: Passes) -> tuple[FloatArray, FloatArray, dict[str, Any]]:
        """Make the steps, as the run of the model's own target does."""
        filtered = Filter(np.zeros(self.model.n_params), np.eye(self.model.n_params))
        ratio, _ = self._localise(passes, filtered)
        information = self._bounds(filtered.mean, _LAST_ROWS).information
        self._kept.pop("expected_slopes")
        return (
            filtered.mean,
            symmetric_inverse_root(ratio) @ symmetric_inverse_root(information),
            self._kept_arrays() | {"count_share": 0.0},
        )

    def _reach(self, units: FloatArray, white: FloatArray, step: FloatArray, released: dict[str, Any]) -> float:
        """Simulate how far the truth is whose expected score was released; 1 where the model's code fails."""
        transform, theta = white * self._prior.prior_scale, self._theta(units)
        with contextlib.suppress(Exception):
            score = ExpectedScore(self.model, theta, transform, self._last, self._rng, _REACH_ROWS)
            # Steps in the coordinates of the transformed score are steps of theta by the transposed transform.
            return simulate_reach(score, theta, transform.T @ step, released["score"], released["score_stddev"])
        return 1.0

    def _squared_shift(
        self, units: FloatArray, white: FloatArray, bounds: SimulatedBounds, slope: FloatArray, measured: dict[str, Any]
    ) -> float:
        """Simulate how far the posterior is from a normal one; 0 where the model's code fails: the run is paid for."""
        noise = 1.0 / np.sum(1.0 / measured["score_stddev"] ** 2)
        with contextlib.suppress(Exception):
            eigenvalues, eigenvectors = np.linalg.eigh(slope)
            held = np.maximum(eigenvalues, common.TUNING.least_slope * np.mean(eigenvalues))
            slope = (eigenvectors * held) @ eigenvectors.T
            covariance = slope * (bounds.variance_ratio / self.n_records) + np.eye(len(slope)) * noise
            posterior = NormalPosterior.of(slope, covariance, white @ white.T)
            transform = white * self._prior.prior_scale
            points = measured["positions"][-1], self._theta(units)
            return simulate_shift(self.model, *points, transform, bounds, posterior, self._rng)
        return 0.0

    def _bounds(self, units: FloatArray, n_rows: int) -> SimulatedBounds:
        """Return the bounds at a point, or the last ones where the model's code fails there: the run is paid for."""
        with contextlib.suppress(Exception):
            self._last = self._simulated(units, n_rows)
        return self._last

    def _simulated(self, units: FloatArray, n_rows: int) -> SimulatedBounds:
        return simulate_bounds(
            self.model,
            self._theta(units),
            self._prior.prior_scale,
            noise=self._noise,
            n_records=self.n_records,
            rng=self._rng,
            n_rows=n_rows,
        )

    def _query(self, passes: Passes, phase: str, units: FloatArray, white: FloatArray, bounds: Any) -> dict[str, Any]:
        weights = {
            "localise": (tuning.OWN.score_share, 1.0 - tuning.OWN.score_share, 0.0),
            "slope": (0.0, 1.0, 0.0),
            "measure": (1.0 - tuning.OWN.tally_share, 0.0, tuning.OWN.tally_share),
        }[phase]
        query = (PersonScores if isinstance(self.model, PersonModel) else CentredScores)(
            self.model,
            self._theta(units),
            # The score in the parameters' own units is that in the prior's, divided by them.
            white * self._prior.prior_scale,
            bounds.clip,
            bounds.share,
            bounds.weight_bound,
            self._number,
            *map(math.sqrt, weights),
        )
        self._number += 1
        noisy = passes.noisy_sum(phase, query)
        if phase == "measure":
            tally_unit = math.sqrt(2.0 / tuning.OWN.tally_share) / self.n_records
            self._keep(tallies=noisy.values[-2:] * tally_unit, tally_stddev=noisy.stddev * tally_unit)
        else:
            self._keep(expected_slopes=bounds.slope)
        n = self.model.n_params if weights[0] else 0
        score_unit = query.score_bound / math.sqrt(weights[0]) / self.n_records if weights[0] else 0.0
        matrix_unit = query.matrix_bound / math.sqrt(weights[1]) / self.n_records if weights[1] else 0.0
        return {
            "score": noisy.values[:n] * score_unit,
            "score_stddev": noisy.stddev * score_unit,
            "score_bound": query.score_bound,
            "matrix": noisy.values[n:] * matrix_unit,
            "matrix_stddev": noisy.stddev * matrix_unit,
            "matrix_bound": query.matrix_bound,
        }

    def _localise(self, passes: Passes, filtered: Filter) -> tuple[FloatArray, float]:
        """Step toward the zero of the score; return the ratio of the records' slope to the simulated one, its error.

        The whitening of a pass is the simulated information at the point, corrected by the ratio that the passes before
        have released; each pass's matrix is brought into the coordinates of the simulated one, and averaged.
        """
        n = self.model.n_params
        ratio, stddev = np.eye(n), 0.0
        found: list[FloatArray] = []
        for _ in self.plan.indices("localise"):
            bounds = self._bounds(filtered.mean, _ROWS)
            simulated = symmetric_inverse_root(bounds.information)
            white = symmetric_inverse_root(ratio) @ simulated
            released = self._query(passes, "localise", filtered.mean, white, bounds)
            matrix = smat(released["matrix"], n)
            self._keep_localised(released, filtered.mean, white)
            back = simulated @ np.linalg.inv(white)
            found.append(back @ (matrix / bounds.slope) @ back.T)
            stddev = released["matrix_stddev"] / bounds.slope / math.sqrt(len(found))
            ratio, _ = shrink_to_level(np.mean(found, axis=0), stddev)
            forth = np.linalg.inv(back)
            slope = bounds.slope * forth @ ratio @ forth.T
            self._step(filtered, white, slope, released)
        return ratio, stddev
