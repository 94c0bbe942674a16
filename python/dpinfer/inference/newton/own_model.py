"""From the release of a private Newton run of a user's own model to a posterior of its parameters, and its checks.

Thresholds of checks were chosen on the seen half of the design of bench/coverage/newton_warnings.py; docs/any-model.md
has the rates.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.persons import NOT_TOLD, BoundedEffects, bounded_effects
from dpinfer.inference.newton.posterior import mixture_error
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import OwnNewtonRequest, model_of
from dpinfer.models import tuning as common
from dpinfer.models.person_model import PersonModel
from dpinfer.models.whitening import at_least, shrink_to_level
from dpinfer.release import OwnNewtonRelease

# Draws of the slope: at first, at most, and entries of matrices at most; sets whose differences show the error.
_DRAWS, _MOST_DRAWS, _MOST_ENTRIES, _SETS = 1000, 32_000, 10_000_000, 8
_SLOPE_ERROR = 2.0 / 8.0  # squared error of a slope's entry over its level, from eight draws: normal law of scores
_EFFECTS = ("the intercept", "the slope")
_NOT_TOLD = (
    "The standard deviation of {effects} between persons is not told from zero: read the upper end of its interval."
)
_CLIPPED = (
    "The model has no sampler, so nothing centres the clipped scores. Of the scores {share:.1%} (noise {noise:.1%}) "
    "were clipped. A sampler takes the bias away."
)


def own_newton_posterior(
    release: OwnNewtonRelease,
    # `n_samples` has no effect: the slope is drawn until the Monte Carlo error of the 5% and 95% quantiles is below 5%
    # of the posterior standard deviation, at most 32 000 times
    request: OwnNewtonRequest,
) -> Posterior:
    """Infer the parameters of a user's own model from the release of its private Newton run.

    **Privacy.** Post-processing of an OwnNewtonRelease: it costs nothing.

    Returns
    -------
    Posterior
        Normal given the slope of the scores, which is integrated over its own noise; before the maps of the parameters.

    Raises
    ------
    TypeError, ValueError
        If a setting does not fit.

    Notes
    -----
    docs/derivations/any-model.md, "The posterior".  With T the transform and J the slope, score t is J T^-T (u* - u_t)
    plus noise, and u* given u is normal with mean u and covariance T' J^-1 V J^-1 T / N, V = variance_ratio J.
    The information of the scores is divided by 1 plus the simulated square of the shift by curvature; and by the
    square of the distance between the centre and the last measurement, if it is so long that the run has not converged.
    """
    model = model_of(release, request.model)
    n, steps = release.n_params, len(release.scores)
    rng = np.random.default_rng(request.seed)
    location, precisions, data, inside, squared_shift = _laws(release, model, rng)
    told: tuple[str, ...] = ()
    variance = np.diagonal(np.linalg.inv(precisions), axis1=1, axis2=2)
    alone = variance.mean(axis=0) - inside
    error: FloatArray | None = mixture_error(location, variance, _SETS).quantile
    if isinstance(model, PersonModel):
        error = None  # of what is drawn below
        bounded = bounded_effects(model, location, precisions, rng)
        location, precisions = bounded.location, bounded.precision
        told = tuple(name for name, far in zip(_EFFECTS, bounded.distance, strict=False) if far < NOT_TOLD)
    factor = np.asarray(np.linalg.cholesky(precisions), dtype=np.float64)
    covariance = np.mean(np.linalg.inv(precisions), axis=0)
    covariance = covariance + np.cov(location, rowvar=False, bias=True).reshape(n, n)
    checks = check_own(release, location.mean(axis=0), covariance)
    from_data = np.minimum(np.minimum(np.diag(data), inside), np.diag(covariance))
    alone = np.minimum(alone, np.diag(covariance) - from_data)
    verdict, share = checks.verdict, None
    if release.clipped:
        share, stddev = release.clipped_share()
        verdict = f"{_CLIPPED.format(share=share, noise=stddev)} {verdict}"
    # The uncertainty of the slope is due to the privacy noise; that of curvature belongs to the approximation.
    parts = VarianceParts(from_data, np.diag(covariance) - from_data - alone, alone)
    if told:
        verdict = f"{_NOT_TOLD.format(effects=' and '.join(told))} {verdict}"
    distribution = DrawnTheta(location, None, factor, parts, None if squared_shift > 0.0 else data)
    return Posterior(
        names=release.names,
        method="newton",
        prior="model",
        distribution=distribution,
        model=model,
        guarantee=release.guarantee,
        diagnostics=PosteriorDiagnostics(
            n_steps_used=steps,
            mcse=error,
            verdict=verdict,
            warnings=tuple(checks.warnings),
            prior_pvalue=checks.prior_pvalue,
            fit_pvalue=None if math.isnan(checks.spread_pvalue) else checks.spread_pvalue,
            clipped_share=share,
            clipping_uncounted=None if share is None else True,
            curvature_shift=math.sqrt(squared_shift) if squared_shift > release.large_shift else None,
        ),
    )


def _laws(
    release: OwnNewtonRelease, model: Any, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, float]:
    """Return normal laws of theta given draws of the slope, the records' part of the covariance, and what bends.

    The variances within the laws before they are widened, and the square of what curvature shifts, come last.
    """
    n, bounded = release.n_params, isinstance(model, PersonModel)
    shrunken, spread = shrink_to_level(release.slope, release.slope_stddev, release.slope_spread)
    level = float(np.trace(shrunken)) / n
    flat = model.first_effect if bounded else None
    noise = _noise_and_distance(release, shrunken, spread)
    slopes = np.empty((0, n, n))
    # Each law of a model of persons is drawn from several times: as many laws as at first.
    most = _DRAWS if bounded else int(np.clip(_MOST_ENTRIES // n**2, _DRAWS, _MOST_DRAWS)) // _SETS * _SETS
    while True:
        drawn = shrunken + spread * _symmetric_normal(rng, min(max(_DRAWS, 3 * len(slopes)), most - len(slopes)), n)
        slopes = np.concatenate((slopes, at_least(drawn, common.TUNING.least_slope * level)))
        location, precisions, data = _given_slopes(release, slopes, noise, 1.0, flat)
        within = np.diagonal(np.linalg.inv(precisions), axis1=1, axis2=2)
        if len(slopes) >= most or np.max(mixture_error(location, within, _SETS).quantile) < tuning.TUNING.aim:
            break
    inside = within.mean(axis=0)
    squared_shift = release.squared_shift + _not_arrived(release, location, inside)
    if squared_shift > 0.0:
        location, precisions, _ = _given_slopes(release, slopes, noise, 1.0 / (1.0 + squared_shift), flat)
    return location, precisions, data, inside, squared_shift


def _noise_and_distance(release: OwnNewtonRelease, slope: FloatArray, spread: FloatArray) -> FloatArray:
    """Return the variance of each measured score: its noise, and what the slope's error makes of a point's distance."""
    noise = np.square(release.score_stddev)
    white = np.linalg.inv(release.transform)
    # In the coordinates of the transformed score: where each measurement puts the zero, less where it was made.
    steps = np.linalg.solve(slope, release.scores.T).T
    points = release.positions @ white
    away = np.sum(np.square((1.0 / noise) @ (points + steps) / np.sum(1.0 / noise) - points), axis=1)
    level = float(np.trace(slope)) / len(slope)
    error = float(np.mean(np.square(spread))) + _SLOPE_ERROR * level**2 / release.n_records
    return np.asarray(noise + error * away)


def law_of_effects(release: OwnNewtonRelease, model: PersonModel) -> BoundedEffects:
    """Return the posterior of a model of persons as a mixture of normals, with its evidence about zero.

    **Privacy.** Post-processing of a release.
    """
    rng = np.random.default_rng(0)
    location, precisions, *_ = _laws(release, model, rng)
    return bounded_effects(model, location, precisions, rng)


def _not_arrived(release: OwnNewtonRelease, location: FloatArray, inside: FloatArray) -> float:
    """Return the mean square of how far the last measurement was from the posterior's centre, 0 if that is not far."""
    variance = inside + location.var(axis=0)
    square = float(np.mean((location.mean(axis=0) - release.positions[-1]) ** 2 / variance))
    return square if square > tuning.TUNING.clear**2 else 0.0


def _given_slopes(
    release: OwnNewtonRelease, slopes: FloatArray, noise: FloatArray, temper: float, flat: int | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return means (S, n) and precisions of the normal posteriors given each slope, and the data's covariance (n, n).

    The likelihood is raised to the power `temper`: curvature reduces its information.  Parameters from `flat` on have
    no prior.  `noise` has the variance of each measured score's entries.
    """
    flat = release.n_params if flat is None else flat
    n = release.n_params
    back = np.linalg.inv(release.transform).T
    gain, prior = 1.0 / noise / np.sum(1.0 / noise), np.diag(1.0 / np.square(release.prior_scale))
    prior[flat:, flat:] = 0.0
    jacobian = slopes @ back
    turned = np.swapaxes(jacobian, 1, 2)
    sampling = release.variance_ratio / release.n_records * slopes
    released = np.einsum("t,sti->si", gain, release.scores + release.positions @ turned)
    weighted = temper * np.swapaxes(np.linalg.solve(sampling + np.eye(n) / np.sum(1.0 / noise), jacobian), 1, 2)
    precision = weighted @ jacobian + prior
    precision = 0.5 * (precision + np.swapaxes(precision, 1, 2))
    right = np.einsum("sij,sj->si", weighted, released) + prior @ release.prior_mean
    location = np.linalg.solve(precision, right[..., None])[..., 0]
    data = np.linalg.inv(turned @ np.linalg.solve(sampling, jacobian) + prior).mean(axis=0)
    return location, precision, np.asarray(data)


def _symmetric_normal(rng: np.random.Generator, size: int, n: int) -> FloatArray:
    """Return symmetric matrices of independent standard normal entries, (size, n, n)."""
    upper = np.triu(rng.standard_normal((size, n, n)))
    return upper + np.swapaxes(np.triu(upper, 1), 1, 2)


@dataclass(frozen=True)
class OwnChecks:
    """Results of the checks; nan without data in the release."""

    saturation: float  # how far the first slope is on the way from the expected one, 0, to the largest, 1
    saturation_stddev: float
    beyond: float  # without a sampler: share of the first scores beyond the last edge, less three times its noise
    spread: float  # mean squared norm of the clipped scores over that of the model's own draws
    spread_pvalue: float  # of that, if the model holds
    prior_pvalue: float  # of the parameters' distance from the prior's mean

    @property
    def warnings(self) -> dict[str, str]:
        """Failed checks, by name."""
        found = {}
        if self.saturation > max(tuning.TUNING.own_saturated, tuning.TUNING.sure * self.saturation_stddev):
            found["features"] = (
                "the features are far larger than the declared ones: standardise the columns by public numbers, or "
                "give features= like them"
            )
        if self.beyond > tuning.TUNING.own_beyond:
            found["scores"] = (
                "scores are far larger than those of made-up records: standardise the columns and the responses by "
                "public numbers, or give features= like them"
            )
        if self.spread_pvalue < tuning.TUNING.fit_level:
            found["spread"] = (
                f"scores vary {max(self.spread, 0.0):.2g} times as much as those of the model's own draws (p = "
                f"{self.spread_pvalue:.2g}): the responses have another coding, unit, range or law than the model's"
            )
        if self.prior_pvalue < tuning.TUNING.prior_level:
            found["prior"] = (
                f"parameters are farther from the prior's mean than it expects (p = {self.prior_pvalue:.2g}): check "
                "the units of columns and responses, or use a larger prior_scale"
            )
        return found

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        found = self.warnings
        if found:
            return "The release does not fit its model: " + "; ".join(found.values()) + ". Intervals may not hold."
        if math.isnan(self.spread_pvalue):
            return "No check of scores, number of records or prior fails."
        return (
            f"No check of features, number of records, spread of scores or prior fails (p = {self.spread_pvalue:.2g} "
            "of the spread). This does not prove the model: intervals rest on its likelihood."
        )


def check_own(
    release: OwnNewtonRelease,
    mean: FloatArray,  # (n,): of the unconstrained parameters
    covariance: FloatArray,  # (n, n)
) -> OwnChecks:
    """Check a release and its posterior.

    **Privacy.** Post-processing of a release.

    Notes
    -----
    docs/derivations/any-model.md, "Checks of the model".
    """
    count, _ = _counted(release)
    saturation, saturation_stddev = _saturation(release, count)
    spread, pvalue = _spread(release, count, mean, covariance)
    away = float(np.sum((np.square(mean - release.prior_mean) + np.diag(covariance)) / release.prior_scale**2))
    beyond = math.nan
    if release.clipped:
        beyond = float(release.norm_shares[0, -1] - tuning.TUNING.sure * release.norm_stddev[0])
    return OwnChecks(
        saturation=saturation,
        saturation_stddev=saturation_stddev,
        beyond=beyond,
        spread=spread,
        spread_pvalue=pvalue,
        prior_pvalue=float(special.chdtrc(release.n_params, away)),
    )


def _mean(values: FloatArray, stddev: FloatArray) -> tuple[float, float]:
    """Return the mean by precision, and its standard deviation."""
    precision = 1.0 / np.square(stddev)
    return float(precision @ values / precision.sum()), float(1.0 / np.sqrt(precision.sum()))


def _counted(release: OwnNewtonRelease) -> tuple[float, float]:
    if release.clipped:
        shares = release.norm_shares
        return _mean(shares.sum(axis=1), release.norm_stddev * math.sqrt(shares.shape[1]))
    return _mean(release.tallies[:, 1], release.tally_stddev) if release.tallied else (math.nan, math.nan)


def _saturation(release: OwnNewtonRelease, count: float) -> tuple[float, float]:
    """Compare the first slope, which nothing was adapted for, with the expected and the largest one."""
    if not release.tallied or count <= 0.0:
        return math.nan, math.nan
    n, expected = release.n_params, float(release.expected_slopes[0])
    room = release.largest_trace / (n * expected) - 1.0
    if not room > 0.0:
        return math.nan, math.nan
    found = float(np.trace(release.matrices[0])) / (n * expected * count) - 1.0
    return found / room, float(release.matrix_stddev[0]) / (math.sqrt(n) * expected * count) / room


def _spread(release: OwnNewtonRelease, count: float, mean: FloatArray, covariance: FloatArray) -> tuple[float, float]:
    """Return the ratio of mean squares, and the p-value of its excess over the effect of a distant truth."""
    if not release.tallied or count <= 0.0:
        return math.nan, math.nan
    excess, noise = _mean(release.tallies[:, 0], release.tally_stddev)
    weights = 1.0 / np.square(release.tally_stddev)
    moved = mean - weights @ release.positions / weights.sum()
    explained = count * float(release.square_slope @ moved)
    variance = noise**2 + count * release.square_variance / release.n_records
    variance += count**2 * float(release.square_slope @ covariance @ release.square_slope)
    return 1.0 + excess / (count * release.square), 2.0 * float(special.ndtr(-abs(excess - explained) / variance**0.5))
