"""How wide the posterior of a private Newton run will be: the covariance that its plan's noise leaves, without records.

Features are normal with the model's public moments, which are independent unless the model declares otherwise.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from dpinfer._arrays import TINY, FloatArray
from dpinfer.inference.newton import tuning as posterior
from dpinfer.mechanism.newton import NewtonPlan, tuning
from dpinfer.mechanism.newton.contributions import FeatureMeans, Query, SecondMoments
from dpinfer.mechanism.newton.glm import learn_geometry
from dpinfer.mechanism.newton.linear import best_clip
from dpinfer.mechanism.newton.own_bounds import NormalPosterior, simulate_bounds, simulate_shift, symmetric_inverse_root
from dpinfer.mechanism.newton.own_population import OwnCurvatures
from dpinfer.mechanism.newton.pass_records import NoisySum
from dpinfer.models import GeneralizedLinearModel, LinearRegression, OwnModel
from dpinfer.models import tuning as common
from dpinfer.models.clipping import (
    SIZE_EDGES,
    SizeShares,
    combined,
    huber_slope,
    huber_variance,
    response_grid,
)
from dpinfer.models.likely_records import PredictorLaw
from dpinfer.models.likely_records import best_clip as choose_clip
from dpinfer.models.whitening import shrink_moments

_SINGULAR = 1e-12  # least eigenvalue of columns that do not determine each other, over about 1: rounding; tolerance
_POINTS = 8  # parameters from the prior: a plan's time is proportional to them
_SHIFTED, _ROWS = 3, 500  # those of them with a simulated shift, and rows: seconds of a plan (docs/any-model.md)
_SANDWICH_RECORDS = 20_000  # simulated moments err by 1 / sqrt(20 000), 0.7%
_OWN_RECORDS = 2000  # a plan's time is proportional to them
_DRAWS = 16  # draws of the noise: the plan's time is proportional to them
_SANDWICH_SEED = 20_261_123  # a date


def _is_singular(products: FloatArray) -> bool:
    """Return whether columns determine each other up to rounding, by the matrix of their products."""
    unit = np.sqrt(np.maximum(np.diag(products), TINY))
    return bool(np.linalg.eigvalsh(products / np.outer(unit, unit))[0] < _SINGULAR)


def predict_population(
    model: GeneralizedLinearModel, plan: NewtonPlan, n_records: int, *, predictor_spread: float = 1.0
) -> FloatArray:
    """Return by which factor privacy widens the interval of every coefficient, (n_coef,), where the model is true.

    That is relative to the robust interval without privacy, for features with the model's public moments.

    Raises ValueError if columns determine each other, as all categories beside an intercept do.

    Parameters
    ----------
    model : GeneralizedLinearModel
    plan : NewtonPlan
        Of target "population".
    n_records : int
        Public.
    predictor_spread : float
        Root mean square of the linear predictor of a logistic, probit or Poisson regression.

    Notes
    -----
    docs/derivations/population.md: the run's own bounds and noise, at simulated records.
    """
    rng = np.random.default_rng(_SANDWICH_SEED)
    design = model.reference_design(_SANDWICH_RECORDS, rng)
    residual, slope = _records(model, design, predictor_spread, rng)
    bread = (design * slope[:, None]).T @ design / len(design)
    if _is_singular(bread):
        raise ValueError("columns determine each other: without a prior there is no single solution")
    root = np.linalg.inv(np.linalg.cholesky(bread))
    z = design @ root.T
    lengths = np.sqrt(slope) * np.linalg.norm(z, axis=1)
    scale = np.full(model.n_coef, model.prior_scale)
    likely, weighted = not isinstance(model, LinearRegression), model.response == "binary"
    return _widths(z * residual[:, None], lengths, root, scale, plan, n_records, likely=likely, weighted=weighted)


def predict_own_population(model: OwnModel, plan: NewtonPlan, n_records: int) -> FloatArray:
    """Return by which factor privacy widens the interval of every parameter, (n,), before the maps.

    These are medians over parameters that the prior draws, with made-up features and the model's own responses.

    Raises whatever the model's code raises on made-up records.

    Parameters
    ----------
    model : OwnModel
        With a sampler.
    plan : NewtonPlan
        Of target "population".
    n_records : int
        Public.
    """
    rng = np.random.default_rng(_SANDWICH_SEED)
    prior, found = model.parameters, []
    for _ in range(_POINTS):
        theta = prior.prior_mean + prior.prior_scale * rng.standard_normal(model.n_params)
        X = model.made_up_features(_OWN_RECORDS, rng)
        y = model.draw_responses(theta, X, rng.integers(0, 2**64, (len(X), model.n_words), dtype=np.uint64))
        scores = model.scores(X, y, theta)
        white = symmetric_inverse_root(scores.T @ scores * np.outer(prior.prior_scale, prior.prior_scale) / len(X))
        root = white * prior.prior_scale
        lengths = np.sqrt(np.linalg.norm(OwnCurvatures(model, theta, root, 1.0).of_records(X, y), axis=1))
        found.append(_widths(scores @ root.T, lengths, root, prior.prior_scale, plan, n_records, likely=True))
    return np.asarray(np.median(found, axis=0))


def _widths(
    scores: FloatArray,
    lengths: FloatArray,
    root: FloatArray,
    prior_scale: FloatArray,
    plan: NewtonPlan,
    n_records: int,
    *,
    likely: bool,
    weighted: bool = False,
) -> FloatArray:
    """Return the widening for records with these scores, in coordinates `root` that whiten the bread, (d,)."""
    rng, d = np.random.default_rng(_SANDWICH_SEED), len(root)
    noise = {phase: [plan.noise_multipliers[k] / n_records for k in plan.indices(phase)] for phase in set(plan.phases)}
    long = _shares(lengths / math.sqrt(d), noise["lengths"][0])
    (bread,) = noise["bread"]
    reach = long.best_bound(lambda a: bread * a**2 * d * math.sqrt(2.0 * d) + long.lost_square(a))
    sizes = _shares(np.linalg.norm(scores, axis=1) / math.sqrt(d), noise["sizes"][0], likely=likely)
    measured = np.array([*noise.get("approach", [])[::2], *noise["measure"]])
    clips = sizes.best_clips(measured, d, n_records, weighted=weighted)
    clipped = sizes.weight_covariance(clips) if weighted else sizes.clip_covariance(clips)
    added = combined(np.diag(np.square(measured * clips) * d) + clipped)[1]
    sampling = scores.T @ scores / len(scores) / n_records
    matrices = np.eye(d) * (sizes.weighted(clips[-1]) if weighted else 1.0) + _symmetric(rng, d, bread * d * reach**2)
    values, vectors = np.linalg.eigh(matrices)
    inverse = (vectors / np.maximum(values, common.TUNING.least_slope)[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    private = (inverse @ (sampling + added * np.eye(d)) @ inverse).mean(axis=0)
    prior = (root / np.square(prior_scale)) @ root.T
    widths = [np.diag(root.T @ np.linalg.inv(np.linalg.inv(found) + prior) @ root) for found in (private, sampling)]
    return np.asarray(np.sqrt(widths[0] / widths[1]))


def _records(
    model: GeneralizedLinearModel, design: FloatArray, spread: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return minus the derivatives of log-likelihoods in the predictor, both, of responses that the model draws."""
    if isinstance(model, LinearRegression):
        return rng.normal(size=len(design)), np.ones(len(design))
    weights = rng.normal(size=model.n_coef)
    if model.response_mean is not None and model.fit_intercept:
        weights[-1] = 0.0  # what the constant says is public
    eta = design @ weights
    weights *= spread / max(math.sqrt(float(np.mean(np.square(eta)))), 1e-300)
    eta = design @ weights + model.usual_predictor(spread)
    return model.loss_slopes(eta, model.draw_response(eta, weights, rng), weights)


def _shares(sizes: FloatArray, stddev: float, *, likely: bool = False) -> SizeShares:
    exact = np.histogram(sizes, [0.0, *SIZE_EDGES, np.inf])[0] / sizes.size
    # A run knows what its model makes likely where there is a law of responses without a scale.
    return SizeShares(exact, stddev, exact if likely else None)


def _symmetric(rng: np.random.Generator, d: int, stddev: float) -> FloatArray:
    noise = rng.normal(scale=0.5 * stddev, size=(_DRAWS, d, d))
    return noise + np.swapaxes(noise, 1, 2)


_REFERENCE_RECORDS = 2000  # simulated moments err by 1 / sqrt(2000), 2%
_GEOMETRIES = 4  # simulated runs in the average
_SEED = 20_261_122  # a date
_SPACING = 1.0 / 8.0  # of the table of responses, as in a run


def predict_newton(
    model: GeneralizedLinearModel, plan: NewtonPlan, n_records: int, *, predictor_spread: float = 1.0
) -> FloatArray:
    """Return the factor by which privacy widens the interval of every weight, (n_coef,).

    Raises ValueError if there is no prediction for models of this kind.

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
        learned = learn_geometry(model, passes, n_records)
        noise = float(learned.arrays["moment_stddev"][-1])
        geometry = _Geometry(design, learned.transform, learned.bound, learned.moments.error, noise, n_records)
        widths.append(
            _linear(model, passes.plan, geometry)
            if linear
            else _bounded(model, passes.plan, geometry, predictor_spread)
        )
    return np.asarray(np.median(widths, axis=0))


def widest_newton(
    model: GeneralizedLinearModel, plan: NewtonPlan, n_records: int, *, predictor_spread: float = 1.0
) -> float:
    """Return the largest factor by which privacy widens the median weight's interval if correlations are not public.

    Arguments are those of :func:`predict_newton`, which is for the design that the model declares.

    docs/derivations/planner.md, "The widest interval": that of a direction with the largest second moment that noise
    can hide, along which the posterior is the prior.  A round of whitening leaves a direction whose second moment is
    below its floor, and expands it by the floor; what the last matrix then has below the threshold of
    :class:`dpinfer.inference.newton.checks.Checks` is hidden.
    """
    rng = np.random.default_rng(_SEED)
    # A direction that noise hides stops no round.
    fixed = replace(plan, stops=False)
    passes = _ExpectedPasses(fixed, model.reference_design(_REFERENCE_RECORDS, rng), n_records, rng)
    learned = learn_geometry(model, passes, n_records)
    noise = np.array(learned.arrays["moment_stddev"], dtype=np.float64)
    spread = math.sqrt(2.0 * model.n_coef)
    last, information = float(noise[-1]), 1.0
    if model.residual_link is not None:
        law = PredictorLaw(model.usual_predictor(predictor_spread), predictor_spread)
        grid = response_grid(model, _SPACING)
        information = law.mean(grid, grid.information)
    # The slope of the scores, or the bread, is the last measurement of directions.
    for at in (*plan.indices("slope"), *plan.indices("bread")):
        last = max(last, plan.noise_multipliers[at] * learned.bound**2 / n_records)
    seen = np.minimum(1.0, common.TUNING.floor * spread * noise[:-1])
    hidden = min(1.0, posterior.TUNING.unresolved * spread * last) * float(np.prod(seen))
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

    def widening(
        self,
        # (d, d): covariance of the whitened weights about the truth, of the score's noise and of sampling
        optimum: FloatArray,
        prior: FloatArray,  # (d, d): prior precision of the whitened weights
        information: FloatArray,  # (d, d): precision of the weights without privacy
    ) -> FloatArray:
        """Return the widths of the weights over those without privacy; nan where no double holds them."""
        private = self.transform.T @ np.linalg.inv(np.linalg.inv(optimum) + prior) @ self.transform
        if _is_singular(information):
            return np.full(len(information), np.nan)
        squared = np.diag(private) / np.diag(np.linalg.inv(information))
        return np.sqrt(np.where(squared > 0.0, squared, np.nan))  # below zero by rounding


class _ExpectedPasses:
    """Passes over the reference records, as if there were `n_records` of them, with noise of a fixed seed."""

    def __init__(self, plan: NewtonPlan, design: FloatArray, n_records: int, rng: np.random.Generator) -> None:
        self.plan, self._made = plan, {"means": 0, "geometry": 0}
        self._design, self._n_records, self._rng = design, n_records, rng

    def leave_out(self, passes: Collection[int]) -> None:
        """As a run does."""
        self.plan = self.plan.without(passes)

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
        stddev = self.plan.noise_multipliers[self.plan.indices(phase)[self._made[phase]]] * query.max_norm
        self._made[phase] += 1
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
    # E (I + E)**-2, E's eigenvalues a semicircle: the posterior does not shrink second moments, and some are small.
    reach = 2.0 * (len(prior) + 1.0) * geometry.noise**2
    inner = math.sqrt(max(1.0 - reach, common.TUNING.least_level))
    unknown = max(2.0 / (inner + inner**2), 1.0 + 0.75 * reach)
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
    grid, law = response_grid(model, _SPACING), PredictorLaw(loc, predictor_spread)
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


def predict_own_newton(model: OwnModel, plan: NewtonPlan, n_records: int) -> tuple[FloatArray, float]:
    """Return the factor by which privacy widens each parameter's interval, (n,), before the maps, and a squared shift.

    The shift is that by curvature, as in the release; both are medians over parameters drawn from the prior.

    Raises any error of the model's code on simulated records.

    Parameters
    ----------
    model : OwnModel
        With a sampler.
    plan : NewtonPlan
    n_records : int
        Public.

    Notes
    -----
    docs/derivations/any-model.md, "The posterior", with the slope known and the bounds that a run would choose there.
    """
    rng = np.random.default_rng(_SANDWICH_SEED)
    prior = model.parameters
    measured = math.fsum(plan.shares[index] for index in plan.indices("measure"))
    noise = plan.noise_multiplier / math.sqrt(measured * (1.0 - tuning.OWN.tally_share))
    widths: list[FloatArray] = []
    shifts: list[float] = []
    for _ in range(_POINTS):
        theta = prior.prior_mean + prior.prior_scale * rng.standard_normal(model.n_params)
        bounds = simulate_bounds(
            model, theta, prior.prior_scale, noise=noise, n_records=n_records, rng=rng, n_rows=_ROWS
        )
        white = symmetric_inverse_root(bounds.information)
        stddev = noise * (1.0 + bounds.share) * bounds.clip / n_records
        variance = bounds.variance_ratio / (bounds.slope * n_records) + (stddev / bounds.slope) ** 2
        private, plain = (_spread(white, 1.0 / own) for own in (variance, 1.0 / n_records))
        widths.append(private / plain)
        if len(shifts) < _SHIFTED:
            one = np.eye(len(white))
            normal = NormalPosterior.of(bounds.slope * one, bounds.slope**2 * variance * one, white @ white.T)
            shifts.append(simulate_shift(model, theta, theta, white * prior.prior_scale, bounds, normal, rng))
    shift = float(np.median(shifts))
    return np.median(widths, axis=0) * math.sqrt(1.0 + shift), shift


def _spread(white: FloatArray, precision: float) -> FloatArray:
    """Return standard deviations, in prior units, of parameters measured alike in all whitened directions."""
    inner = precision * np.eye(len(white)) + white @ white.T
    return np.asarray(np.sqrt(np.diag(white.T @ np.linalg.solve(inner, white))))
