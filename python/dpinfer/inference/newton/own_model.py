"""From the release of a private Newton run of a user's own model to a posterior of its parameters."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.mixture import monte_carlo_error
from dpinfer.inference.newton.own_checks import check_own
from dpinfer.inference.newton.persons import NOT_TOLD, BoundedEffects, bounded_effects
from dpinfer.inference.newton.population import at_least
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import OwnNewtonRequest, model_of
from dpinfer.models.person_model import PersonModel
from dpinfer.models.whitening import shrink_to_level
from dpinfer.release import OwnNewtonRelease

__all__ = ["law_of_effects", "own_newton_posterior"]

FloatArray = npt.NDArray[np.float64]

# Draws of the slope: at first, at most, and entries of matrices at most; sets whose differences show the error.
_DRAWS, _MOST_DRAWS, _MOST_ENTRIES, _SETS = 1000, 32_000, 10_000_000, 8
_LEAST_EIGENVALUE = 0.05  # of a slope, over their mean: as in the run (mechanism/newton/own_model.py)
_FAR = 2.0  # standard deviations
# Squared error of a slope's entry from eight draws of each record, over its level, for one record: of normal scores.
_SLOPE_ERROR = 2.0 / 8.0
_EFFECTS = ("the intercept", "the slope")
_NOT_TOLD = (
    "The standard deviation of {effects} between persons is not told from zero: read the upper end of its interval."
)
_CLIPPED = (
    "The model has no sampler, so nothing centres the clipped scores. Of the scores {share:.1%} (noise {noise:.1%}) "
    "were clipped. A sampler takes the bias away."
)


def own_newton_posterior(release: OwnNewtonRelease, request: OwnNewtonRequest) -> Posterior:
    """Infer the parameters of a user's own model from the release of its private Newton run.

    **Privacy.** Post-processing of an OwnNewtonRelease: it costs nothing.

    Parameters
    ----------
    release : OwnNewtonRelease
    request : OwnNewtonRequest
        `n_samples` has no effect: the slope is drawn until the Monte Carlo error of the 5% and 95% quantiles is below
        5% of the posterior standard deviation, at most 32 000 times.

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
    error: FloatArray | None = monte_carlo_error(location, variance, _SETS).quantile
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
            warnings=", ".join(checks.warnings),
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
        slopes = np.concatenate((slopes, at_least(drawn, _LEAST_EIGENVALUE * level)))
        location, precisions, data = _given_slopes(release, slopes, noise, 1.0, flat)
        within = np.diagonal(np.linalg.inv(precisions), axis1=1, axis2=2)
        if len(slopes) >= most or np.max(monte_carlo_error(location, within, _SETS).quantile) < tuning.TUNING.aim:
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
    return square if square > _FAR**2 else 0.0


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
