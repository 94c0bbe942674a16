"""The private Newton method for linear regression with unknown noise variance, and a filter over its scores."""

import math
from dataclasses import dataclass, field

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.contributions import LogScaleCounts, RobustScores
from dpinfer.mechanism.newton.glm import learn_geometry, prior_in
from dpinfer.mechanism.newton.pass_records import Passes
from dpinfer.models import LinearRegression
from dpinfer.models.clipping import chi_mean, huber_slope, huber_variance, mallows_mean
from dpinfer.models.whitening import steady_inverse, steady_solve
from dpinfer.release.newton.regression import spread_of_counts

_CLIPS = np.linspace(0.1, 3.0, 59)  # tried: of residuals, in units of their spread; tolerance
_GRID = 800  # of log sigma: 1.1% apart; tolerance
_LARGEST_SPREAD, _LEAST_SPREAD = 1.3, 2e-4  # of residuals over responses, as in the posterior (newton/scores.py)


def best_clip(noise: float, n_records: int, bound: float) -> float:
    """Return the clip, in units of the residual's spread, that minimises the predicted variance of one Newton step.

    Parameters
    ----------
    noise : float
        Noise multiplier of the pass.
    bound : float
        Bound B on the weighted features.
    """
    variance = huber_variance(_CLIPS) / n_records + np.square(noise * _CLIPS * bound / n_records)
    return float(_CLIPS[int(np.argmin(variance / np.square(huber_slope(_CLIPS))))])


@dataclass(frozen=True)
class ScoreStep:
    """One released score, per record: position u_t, score g_t, its noise, clip; scale score, its noise, its unit."""

    position: FloatArray
    score: FloatArray
    stddev: float
    clip: float
    scale: float
    scale_stddev: float
    unit: float


# Residuals are expected to be at most so many response scales long, and so long (at least ten scales): under a prior of
# standard deviation 1e30 a run that learns nothing would ask for a clip that sums do not take (1e30).  Chosen far from
# both; tolerance.
_MOST_SCALES, _LONGEST = 1e12, 1e18


@dataclass
class Tracker:
    """Posterior mean and precision of the whitened weights, and the noise variance, after each released score.

    Every past step is taken at its present linearisation: the slope of Huber's score follows the present guess of
    the residual's spread at that step.

    Parameters
    ----------
    moments : (d, d) array
        Shrunken second moments of the whitened features.
    error : float
        Standard deviation of their entries' error.
    transform : (d, d) array
        The whitening W.
    prior_scale : float
        Prior standard deviation of a weight over that of the noise.
    fit_intercept : bool
        Whether the last weight is an intercept, whose prior has the spread of the responses more.
    sizes : (d,) array
        Declared root mean squares of the features.
    response_scale : float
        Spread of the responses.
    mean_weight : float
        Mean of the records' weights w.
    """

    moments: FloatArray
    error: float
    transform: FloatArray
    prior_scale: float
    fit_intercept: bool
    sizes: FloatArray
    response_scale: float
    n_records: int
    mean_weight: float
    steps: list[ScoreStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        d = self.moments.shape[0]
        self.position: FloatArray = np.zeros(d)
        gram = self.transform @ self.transform.T
        predicted = self.prior_scale**2 * max(float(np.trace(steady_solve(gram, self.moments))), 0.0)
        self.noise_variance = self.response_scale**2 / (1.0 + predicted)
        self.precision = self._prior_precision()
        self.spread = self.response_scale
        log_scale = np.log(self.response_scale)
        low, high = log_scale + np.log(_LEAST_SPREAD), log_scale + np.log(_LARGEST_SPREAD)
        self._grid = np.linspace(low, high, _GRID)
        chosen = tuning.TUNING
        self._log_prior = -0.5 * np.square((self._grid - log_scale - chosen.log_scale_shift) / chosen.log_scale_stddev)

    def _prior_precision(self) -> FloatArray:
        """Return the prior precision of the whitened weights at the present noise variance, (d, d)."""
        variance = np.full(len(self.moments), self.prior_scale**2 * self.noise_variance)
        if self.fit_intercept:
            variance[-1] += self.response_scale**2
        return prior_in(self.transform, variance, self.sizes, self.n_records / self.noise_variance)

    def add(self, step: ScoreStep) -> None:
        """Take in a released score and move."""
        self.steps.append(step)
        for sweep in range(2):
            covariance = steady_inverse(self.precision)
            if sweep == 0 and len(self.steps) == 1:
                excess = np.array([max(self.response_scale**2 - self.noise_variance, 0.0)])
            else:
                excess = self._excess(covariance)
            self.noise_variance = self._scale_posterior(excess)
            self._relinearise(excess, float(np.trace(covariance)))
        covariance = steady_inverse(self.precision)
        spread = float(np.sqrt(self.noise_variance + np.sum(covariance * self.moments)))
        self.spread = min(spread, max(10.0 * self.response_scale, min(_MOST_SCALES * self.response_scale, _LONGEST)))

    def _excess(self, covariance: FloatArray) -> FloatArray:
        """Return the expected squared error of the predictor at each step, (steps,)."""
        moved = np.stack([self.position - step.position for step in self.steps])
        bent = np.einsum("ti,ij,tj->t", moved, self.moments, moved)
        return np.asarray(bent + np.sum(covariance * self.moments))

    def _scale_posterior(self, excess: FloatArray) -> float:
        log_density = self._log_prior.copy()
        variance = np.exp(2.0 * self._grid)
        for step, more in zip(self.steps, excess, strict=True):
            spread = np.sqrt(variance + more / self.mean_weight)
            expected = self.mean_weight * (chi_mean(step.unit / spread) - chi_mean(tuning.TUNING.scale_unit))
            spread2 = step.scale_stddev**2 + tuning.TUNING.scale_error**2
            log_density -= 0.5 * np.square(step.scale - expected) / spread2
        weight = np.exp(log_density - log_density.max())
        return float(weight @ variance / weight.sum())

    def _relinearise(self, excess: FloatArray, covariance_trace: float) -> None:
        d = self.moments.shape[0]
        precision = self._prior_precision()
        information = np.zeros(d)
        identity = np.eye(d)
        for step, more in zip(self.steps, excess, strict=True):
            slope = float(huber_slope(step.clip / np.sqrt(self.noise_variance + more)))
            moved = self.position - step.position
            wrong = 0.5 * self.error**2 * (moved @ moved + covariance_trace)
            noise = (step.stddev**2 + slope**2 * wrong) * identity
            noise += slope**2 * self.noise_variance / self.n_records * self.moments
            jacobian = slope * self.moments
            weighted = steady_solve(noise, jacobian).T
            precision = precision + weighted @ jacobian
            information += weighted @ (step.score + jacobian @ step.position)
        self.precision = 0.5 * (precision + precision.T)
        self.position = steady_solve(self.precision, information)


@dataclass
class LinearNewton:
    """One run: its releases so far, and its current state."""

    model: LinearRegression
    n_records: int
    response_scale: float

    def run(self, passes: Passes) -> dict[str, FloatArray | float | int]:
        """Make the plan's passes and return the arrays of the release."""
        counts = self._count_scales(passes)
        spread = spread_of_counts(np.asarray(counts["counts"]), np.asarray(counts["edges"]))
        geometry = learn_geometry(self.model, passes, self.n_records)
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
        for step, index in enumerate(passes.plan.indices("localise")):
            # Residuals of records of a rare category are far larger than others', and move a score by a clip at most.
            least = min(spread, tuning.TUNING.largest_clip * tracker.spread) * tuning.TUNING.clip_decay**step
            tracker.add(self._score(passes, index, transform, bound, tracker, least))
        for index in passes.plan.indices("measure"):
            tracker.add(self._score(passes, index, transform, bound, tracker))
        measured = {"n_measured": len(passes.plan.indices("measure")), "response_scale": self.response_scale}
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
        released = passes.noisy_sum(passes.plan.phases[index], query)
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
