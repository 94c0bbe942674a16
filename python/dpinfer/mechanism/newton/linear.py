"""The private Newton method for linear regression with unknown noise variance: public arithmetic between passes."""

import math
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.contributions import LogScaleCounts, RobustScores
from dpinfer.mechanism.newton.geometry import learn_geometry
from dpinfer.mechanism.newton.pass_records import Passes
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.mechanism.newton.tracker import ScoreStep, Tracker, best_clip
from dpinfer.models import LinearRegression
from dpinfer.models.clipping import chi_mean, mallows_mean
from dpinfer.release.newton.linear import spread_of_counts


@dataclass
class LinearNewton:
    """One run: its releases so far, and its current state."""

    model: LinearRegression
    plan: NewtonPlan
    n_records: int
    response_scale: float

    def run(self, passes: Passes) -> dict[str, FloatArray | float | int]:
        """Make the plan's passes and return the arrays of the release."""
        counts = self._count_scales(passes)
        spread = spread_of_counts(np.asarray(counts["counts"]), np.asarray(counts["edges"]))
        geometry = learn_geometry(self.model, self.plan, passes, self.n_records)
        transform, bound = geometry.transform, geometry.bound
        tracker = Tracker(
            moments=geometry.moments.matrix,
            error=geometry.moments.error,
            transform=transform,
            prior_scale=self.model.prior_scale,
            fit_intercept=self.model.fit_intercept,
            sizes=np.sqrt(self.model.second_moments),
            response_scale=spread,
            n_records=self.n_records,
            mean_weight=mallows_mean(transform.shape[0], bound),
        )
        for step, index in enumerate(self.plan.indices("localise")):
            # Residuals of records of a rare category are far larger than others', and move a score by a clip at most.
            least = min(spread, tuning.TUNING.largest_clip * tracker.spread) * tuning.TUNING.clip_decay**step
            tracker.add(self._score(passes, index, transform, bound, tracker, least))
        for index in self.plan.indices("measure"):
            tracker.add(self._score(passes, index, transform, bound, tracker))
        measured = {"n_measured": len(self.plan.indices("measure")), "response_scale": self.response_scale}
        return {**counts, **geometry.arrays, **_trace(tracker.steps), **measured}

    def _count_scales(self, passes: Passes) -> dict[str, FloatArray | float]:
        edges: FloatArray = np.ldexp(self.response_scale, np.arange(-tuning.TUNING.octaves, tuning.TUNING.octaves + 1))
        counts = passes.noisy_sum("scale", LogScaleCounts(edges))
        return {
            "counts": counts.values / self.n_records,
            "counts_stddev": counts.stddev / self.n_records,
            "edges": edges,
        }

    def _score(
        self, passes: Passes, index: int, transform: FloatArray, bound: float, tracker: Tracker, least: float = 0.0
    ) -> ScoreStep:
        multiplier = passes.noise_multiplier(index)
        clip = best_clip(multiplier, self.n_records, bound)
        clip = (
            max(clip, tuning.TUNING.least_clip) * max(tracker.spread, least) if least > 0.0 else clip * tracker.spread
        )
        unit = tuning.TUNING.scale_unit * tracker.spread
        centre = float(chi_mean(tuning.TUNING.scale_unit))
        weight = clip * bound * math.sqrt(tuning.TUNING.scale_weight) / max(centre, 1.0 - centre)
        coefficients = transform.T @ tracker.position
        query = RobustScores(transform, bound, coefficients, clip=clip, unit=unit, centre=centre, scale_weight=weight)
        released = passes.noisy_sum(self.plan.phases[index], query)
        values, stddev = released.values / self.n_records, released.stddev / self.n_records
        return ScoreStep(tracker.position, values[:-1], stddev, clip, float(values[-1]) / weight, stddev / weight, unit)


def _trace(steps: list[ScoreStep]) -> dict[str, FloatArray | float]:
    return {
        "positions": np.stack([step.position for step in steps]),
        "scores": np.stack([step.score for step in steps]),
        "score_stddev": np.array([step.stddev for step in steps]),
        "clips": np.array([step.clip for step in steps]),
        "scale_scores": np.array([step.scale for step in steps]),
        "scale_stddev": np.array([step.scale_stddev for step in steps]),
        "scale_units": np.array([step.unit for step in steps]),
        "scale_centre": float(chi_mean(tuning.TUNING.scale_unit)),
    }
