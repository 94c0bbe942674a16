"""How wide the posterior of a private Newton run will be: the covariance that its plan's noise leaves, without records.

Features are normal with the model's public moments, which are independent unless the model declares otherwise.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton import NewtonPlan, tuning
from dpinfer.mechanism.newton.contributions import FeatureMeans, Query, SecondMoments
from dpinfer.mechanism.newton.geometry import learn_geometry
from dpinfer.mechanism.newton.passes import NoisySum
from dpinfer.mechanism.newton.tracker import best_clip
from dpinfer.models import GeneralizedLinearModel
from dpinfer.models.clipped_residuals import ResponseGrid
from dpinfer.models.huber import huber_slope, huber_variance
from dpinfer.models.normal_design import PredictorLaw
from dpinfer.models.normal_design import best_clip as choose_clip
from dpinfer.models.whitening import FLOOR, shrink_moments

_REFERENCE_RECORDS = 2000  # simulated moments err by 1 / sqrt(2000), 2%
_GEOMETRIES = 4  # simulated runs in the average
_SEED = 20_261_122  # a date
_SPACING = 1.0 / 8.0  # of the table of responses, as in a run
_RESOLVED = 2.0  # an eigenvalue over the largest that noise alone has, as the checks of a release count them


def predict_newton(
    model: GeneralizedLinearModel, plan: NewtonPlan, n_records: int, *, predictor_spread: float = 1.0
) -> FloatArray:
    """Return the factor by which privacy widens the interval of every weight, (n_coef,).

    **Privacy.** Reads no records.

    Parameters
    ----------
    model : GeneralizedLinearModel
        One that :func:`dpinfer.plan_newton` takes.
    plan : NewtonPlan
    n_records : int
        Public.
    predictor_spread : float
        Expected root mean square of the linear predictor of a regression without a scale, with mean 0. Larger
        predictors make responses of 0 or 1 less informative, and intervals wider.

    Returns
    -------
    (n_coef,) array

    Raises
    ------
    ValueError
        If there is no prediction for models of this kind.

    Notes
    -----
    docs/derivations/planner.md, "The private Newton method: a recursion of covariances".  The geometry's public
    arithmetic is that of a run, on expected sums with noise from a fixed seed.
    """
    rng = np.random.default_rng(_SEED)
    design = model.reference_design(_REFERENCE_RECORDS, rng)
    linear = model.residual_link is None
    widths = []
    for _ in range(_GEOMETRIES):
        passes = _ExpectedPasses(plan, design, n_records, rng)
        learned = learn_geometry(model, plan, passes, n_records)
        noise = float(learned.arrays["moment_stddev"][-1])
        geometry = _Geometry(design, learned.transform, learned.bound, learned.moments.error, noise, n_records)
        widths.append(_linear(model, plan, geometry) if linear else _bounded(model, plan, geometry, predictor_spread))
    return np.asarray(np.median(widths, axis=0))


def widest_newton(
    model: GeneralizedLinearModel, plan: NewtonPlan, n_records: int, *, predictor_spread: float = 1.0
) -> float:
    """Return the largest factor by which privacy widens the median weight's interval if correlations are not public.

    **Privacy.** Reads no records.

    Parameters
    ----------
    model, plan, n_records, predictor_spread
        As in :func:`predict_newton`, which is for the design that the model declares.

    Returns
    -------
    float
        That of a direction with the largest second moment that noise can hide, along which the posterior is the prior.

    Notes
    -----
    docs/derivations/planner.md, "The widest interval".  A round of whitening leaves a direction whose second moment is
    below its floor, and expands it by the floor; what the last matrix then has below the threshold of
    :class:`dpinfer.inference.newton.checks.Checks` is hidden.
    """
    rng = np.random.default_rng(_SEED)
    passes = _ExpectedPasses(plan, model.reference_design(_REFERENCE_RECORDS, rng), n_records, rng)
    learned = learn_geometry(model, plan, passes, n_records)
    noise = np.array(learned.arrays["moment_stddev"], dtype=np.float64)
    spread = math.sqrt(2.0 * model.n_coef)
    last, information = float(noise[-1]), 1.0
    if model.residual_link is not None:
        law = PredictorLaw(model.usual_predictor(predictor_spread), predictor_spread)
        grid = ResponseGrid(model, _SPACING)
        information = law.mean(grid, grid.information)
    # The slope of the scores, or the bread, is the last measurement of directions.
    for at in (*plan.indices("slope"), *plan.indices("bread")):
        last = max(last, plan.noise_multipliers[at] * learned.bound**2 / n_records)
    hidden = min(1.0, _RESOLVED * spread * last) * float(np.prod(np.minimum(1.0, FLOOR * spread * noise[:-1])))
    precision = n_records * information * hidden * np.asarray(model.second_moments)
    return float(np.median(np.sqrt(1.0 + precision * model.prior_scale**2)))


@dataclass(frozen=True, eq=False)
class _Geometry:
    """State of a run after its geometry: whitening, bound, error of the shrunken second moments, and their noise."""

    design: FloatArray
    transform: FloatArray
    bound: float
    error: float
    noise: float
    n_records: int

    def weighted(self, factor: FloatArray | float = 1.0) -> FloatArray:
        """Return E[factor w z z'] of the reference records, (d, d)."""
        return _weighted(self.design @ self.transform.T, self.bound, factor)

    def widening(self, optimum: FloatArray, prior: FloatArray, information: FloatArray) -> FloatArray:
        """Return the widths of the weights over those without privacy.

        Parameters
        ----------
        optimum : (d, d) array
            Covariance of the whitened weights about the truth, of the score's noise and of sampling.
        prior : (d, d) array
            Prior precision of the whitened weights.
        information : (d, d) array
            Precision of the weights without privacy.
        """
        private = self.transform.T @ np.linalg.inv(np.linalg.inv(optimum) + prior) @ self.transform
        return np.asarray(np.sqrt(np.diag(private) / np.diag(np.linalg.inv(information))))


class _ExpectedPasses:
    """Passes over the reference records, as if there were `n_records` of them, with noise of a fixed seed."""

    def __init__(self, plan: NewtonPlan, design: FloatArray, n_records: int, rng: np.random.Generator) -> None:
        learned = (*plan.indices("means"), *plan.indices("geometry"))
        self._multipliers = iter(plan.noise_multipliers[index] for index in learned)
        self._design, self._n_records, self._rng = design, n_records, rng

    def noisy_sum(self, phase: str, query: Query) -> NoisySum:
        """Return the expected means or second moments with noise."""
        if not isinstance(query, (FeatureMeans, SecondMoments)):
            raise RuntimeError(f"the {phase!r} passes are not predicted by a sum")
        z = self._design @ query.transform.T
        if isinstance(query, FeatureMeans):
            values = self._n_records * np.mean(z * _weights(z, query.bound)[:, None], axis=0)
        else:
            rows, columns = np.triu_indices(query.transform.shape[0])
            matrix = self._n_records * _weighted(z, query.bound)
            values = matrix[rows, columns] * np.where(rows == columns, 1.0, math.sqrt(2.0))
        stddev = next(self._multipliers) * query.max_norm
        return NoisySum(values + stddev * self._rng.normal(size=values.size), stddev)


def _weights(z: FloatArray, bound: float) -> FloatArray:
    return np.asarray(np.minimum(1.0, bound**2 / np.maximum(np.sum(z**2, axis=1), 1e-300)))


def _weighted(z: FloatArray, bound: float, factor: FloatArray | float = 1.0) -> FloatArray:
    weight = _weights(z, bound) * factor
    return np.asarray((z * weight[:, None]).T @ z / len(z))


def _linear(model: GeneralizedLinearModel, plan: NewtonPlan, geometry: _Geometry) -> FloatArray:
    """Return the widths for Huber's score: the noise variance is 1, and known where the steps end."""
    n, transform, bound = geometry.n_records, geometry.transform, geometry.bound
    moments = geometry.weighted()
    prior: FloatArray = transform @ transform.T / model.prior_scale**2
    precision, private, sampling = prior, np.zeros_like(prior), np.zeros_like(prior)
    for index in (*plan.indices("localise"), *plan.indices("measure")):
        covariance = np.linalg.inv(precision)
        excess = float(np.sum(covariance * moments))
        spread = math.sqrt(1.0 + excess)
        multiplier = plan.noise_multipliers[index]
        clip = best_clip(multiplier, n, bound) * spread
        stddev = multiplier * clip * bound * math.sqrt(1.0 + tuning.TUNING.scale_weight) / n
        slope = float(huber_slope(clip / spread))
        wrong = 0.5 * geometry.error**2 * float(np.trace(covariance))
        gained = slope**2 / (stddev**2 + slope**2 * wrong) * moments @ moments
        # The posterior reads the scores that measure; the others find where.
        private = private + gained * (plan.phases[index] == "measure")
        precision = precision + gained
        # The sampling error is that of the last score, at residuals of spread 1, as in the posterior.
        variance = float(huber_variance(clip)) / (n * float(huber_slope(clip)) ** 2)
        sampling = np.asarray(variance * np.linalg.inv(moments), dtype=np.float64)
    information = n * geometry.design.T @ geometry.design / len(geometry.design)
    information = information + np.eye(len(prior)) / model.prior_scale**2
    # E (I + E)**-2 to second order: the posterior does not shrink second moments, and some of those it takes are small.
    unknown = 1.0 + 1.5 * (len(prior) + 1.0) * geometry.noise**2
    return geometry.widening(unknown * np.linalg.inv(private) + sampling, prior, information)


def _bounded(
    model: GeneralizedLinearModel, plan: NewtonPlan, geometry: _Geometry, predictor_spread: float
) -> FloatArray:
    """Return the widths for clipped residuals, whose slope is released."""
    n, transform, bound, design = geometry.n_records, geometry.transform, geometry.bound, geometry.design
    # Which way the predictor points hardly matters: all weights alike, in the units of their features.
    weights = 1.0 / np.sqrt(model.second_moments)
    predictor = design @ (weights * np.where(np.arange(weights.size) % 2, 1.0, -1.0))
    loc = model.usual_predictor(predictor_spread)
    predictor = loc + predictor * predictor_spread / float(np.sqrt(np.mean(predictor**2)))
    grid, law = ResponseGrid(model, _SPACING), PredictorLaw(loc, predictor_spread)
    noise = np.array([multiplier * bound / n for multiplier in plan.noise_multipliers])
    measured = list(plan.indices("measure"))
    clip = choose_clip(grid, model.response, law, float(np.sum(noise[measured] ** -2.0) ** -0.5), n)
    residual = grid.clipped(clip)
    residual = residual.with_slope_at_most(law.largest(grid, residual.slope, tuning.TUNING.steepest))
    jacobian = geometry.weighted(np.interp(predictor, grid.nodes, residual.slope))
    prior = transform @ transform.T / model.prior_scale**2
    (at,) = plan.indices("slope")
    slope_noise = residual.slope_bound * bound * noise[at]
    slope = shrink_moments(jacobian, slope_noise, max(float(np.trace(jacobian)), 1e-9))
    noise = noise * residual.bound
    # The localising scores end in a start for those that are measured, and are not read again.
    found = np.sum(noise[list(plan.indices("localise"))] ** -2.0)
    ratio = law.mean(grid, residual.variance) / law.mean(grid, residual.slope)
    precision = prior + jacobian @ np.linalg.solve(np.eye(len(prior)) / found + ratio * jacobian / n, jacobian)
    private = np.zeros_like(prior)
    for index in measured:
        wrong = 0.5 * slope.error**2 * float(np.trace(np.linalg.inv(precision)))
        gained = jacobian @ jacobian / (noise[index] ** 2 + wrong)
        precision, private = precision + gained, private + gained
    fisher = np.interp(predictor, grid.nodes, grid.information)
    information = n * (design * fisher[:, None]).T @ design / len(design)
    information = information + np.eye(len(prior)) / model.prior_scale**2
    return geometry.widening(np.linalg.inv(private) + ratio * np.linalg.inv(jacobian) / n, prior, information)
