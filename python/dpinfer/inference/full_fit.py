"""From a release to a posterior with a full Hessian: under flat priors of its rows, or under the model's own prior."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer.inference.burn_in import BurnIn
from dpinfer.inference.coupling import coupling_pvalue
from dpinfer.inference.full_hessian import full_hessian_posterior, row_regressions
from dpinfer.inference.gram import GramTrace, gram_posterior
from dpinfer.inference.information import InformationTrace, information_posterior
from dpinfer.inference.posterior import Posterior
from dpinfer.inference.tied import FisherRun
from dpinfer.inference.trace_checks import check_statistics
from dpinfer.models import GeneralizedLinearModel, LinearRegression, Model
from dpinfer.release import Release

__all__ = [
    "COUPLING_LEVEL",
    "GRAM_BURN_IN",
    "MODEL_BURN_IN",
    "coupling_findings",
    "features_coupled",
    "flat_full_posterior",
    "gram_full_posterior",
    "has_model_hessian",
    "model_full_posterior",
    "suits_model_hessian",
]

FloatArray = npt.NDArray[np.float64]

MODEL_BURN_IN = 0.15
GRAM_BURN_IN, _VARIANCE_BURN_IN = 0.1, 0.5
COUPLING_LEVEL = 0.01

_FLAT_DRAWS = 1000
_MODEL_DRAWS, _MODEL_WARMUP = 200, 100
_LARGEST_MODEL = 200


def has_model_hessian(model: Model | None) -> bool:
    """Return whether the model says what to expect of its full Hessian, and is small enough for it."""
    return isinstance(model, GeneralizedLinearModel) and not model.has_dispersion and model.n_params <= _LARGEST_MODEL


def suits_model_hessian(release: Release, model: Model | None) -> bool:
    """Return whether the release has a full Hessian under its model.

    See :func:`model_full_posterior`, and :func:`gram_full_posterior` for linear regression.
    """
    if not isinstance(model, GeneralizedLinearModel) or model.n_params > _LARGEST_MODEL:
        return False
    if release.n_records is None or release.gradient != "reparameterised":
        return False
    if not isinstance(model, LinearRegression):
        return has_model_hessian(model) and release.noise_stddev.ndim == 1
    noise = np.atleast_2d(release.noise_stddev)[:, : model.n_coef]
    return release.family == "mean_field" and bool(
        np.allclose(noise * noise[0, 0], noise[:, :1] * noise[0], rtol=1e-9, atol=0.0)
    )


def _fisher_run(release: Release, model: LinearRegression) -> FisherRun | None:
    """Return the settings of a Fisher-scaled release, None for another."""
    return FisherRun.from_release(release, model) if release.settings.get("scaling") == "fisher" else None


def features_coupled(release: Release, model: LinearRegression) -> float:
    """Return the p-value of "the weights' Hessian is as diagonal as declared"; 0 where the declared one is not.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    release : Release
        For which :func:`suits_model_hessian` holds.
    model : LinearRegression

    Notes
    -----
    From a tenth of the steps on: earlier ones are clipped more than the model expects at the optimum, later ones move
    little.  See :func:`dpinfer.inference.coupling.coupling_pvalue`.
    """
    declared = np.diag(model.design_moments)
    if np.any(np.abs(model.design_moments - np.diag(declared)) > 1e-9 * np.sqrt(np.outer(declared, declared))):
        return 0.0
    first, half = int(GRAM_BURN_IN * release.n_steps), int(_VARIANCE_BURN_IN * release.n_steps)
    trace = GramTrace.from_release(release, model, _fisher_run(release, model), first, half)
    return coupling_pvalue(trace.at(trace.variance.residual), trace.clip_slope * trace.n_records * declared)


def coupling_findings(release: Release, model: Model | None) -> tuple[dict[str, float], str]:
    """Return ``coupling_pvalue`` for the diagnostics of a diagonal posterior, and what to add to its verdict.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    release : Release
    model : Model or None
        Other than of linear regression: nothing is found.
    """
    if not isinstance(model, LinearRegression) or not suits_model_hessian(release, model):
        return {}, ""
    pvalue = features_coupled(release, model)
    finding = (
        " Features are correlated, as declared or as the trace shows: intervals with a diagonal Hessian do not hold; "
        "use hessian='full'."
    )
    return {"coupling_pvalue": pvalue}, finding if pvalue < COUPLING_LEVEL else ""


def flat_full_posterior(
    release: Release,
    start: BurnIn,
    *,
    extra_noise: bool,
    seed: int,
    n_threads: int,
    common: dict[str, Any],
    n_samples: int = _FLAT_DRAWS,
) -> Posterior:
    """Regress every gradient coordinate on all positions, with flat priors, and draw from the result.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    release : Release
    start : BurnIn
        Which steps are used.
    extra_noise : bool
    seed : int
    n_threads : int
    common : dict
        Fields of the :class:`Posterior` that the caller knows.
    n_samples : int
        Draws of the Hessian.

    Returns
    -------
    Posterior

    Raises
    ------
    NumericalError
        If the trace does not identify a full Hessian.
    """
    positions, gradients = release.positions[start.start :], release.noisy_gradients[start.start :]
    noise = release.noise_stddev if release.noise_stddev.ndim == 1 else release.noise_stddev[start.start :]
    rows = row_regressions(positions, gradients, noise, n_threads=n_threads)
    result = full_hessian_posterior(
        rows,
        sample_rate=release.sample_rate,
        n_params=release.n_params,
        family=release.family,
        aligned=release.gradient == "aligned",
        extra_noise=extra_noise,
        n_draws=n_samples,
        seed=seed,
    )
    score = np.diag(rows.coefficients) / (rows.stddev * np.sqrt(_inverse_gram_diagonal(rows.factor)))
    return Posterior(
        **common,
        burn_in=start.start,
        optimum_names=release.gradient_names,
        optimum_mean=result.optimum_mean,
        optimum_stddev=result.optimum_stddev,
        hessian_mean=result.hessian_mean,
        hessian_stddev=result.hessian_stddev,
        distribution=result.theta,
        diagnostics={
            "noise_ratio": result.noise_ratio,
            "slope_score": score,
            "n_steps_used": positions.shape[0],
            "effective_weight": rows.stddev**2 / rows.intercept_variance,
            "burn_in_holds": start.holds,
            "verdict": check_statistics(start.statistics, start.linearity_pvalue, release.gradient_names).verdict,
            "share_dropped": result.share_dropped,
        },
    )


def model_full_posterior(
    release: Release,
    start: BurnIn,
    *,
    seed: int,
    check_convergence: bool,
    report: Callable[[int, int], object],
    common: dict[str, Any],
    n_samples: int = _MODEL_DRAWS,
    n_warmup: int = _MODEL_WARMUP,
) -> Posterior:
    """Integrate over the information matrix of a generalised linear model, given the trace and the model's priors.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    release : Release
        For which :func:`suits_model_hessian` holds.
    start : BurnIn
        Which steps are used.
    seed : int
    check_convergence : bool
    report : callable
        Gets (done, total).
    common : dict
        Fields of the :class:`Posterior` that the caller knows.
    n_samples, n_warmup : int
        Kept and dropped draws of the information matrix.

    Returns
    -------
    Posterior

    Raises
    ------
    NumericalError
        If the draws did not converge and `check_convergence`.

    Notes
    -----
    See :func:`dpinfer.inference.information.information_posterior`.  The information is expected to be N times that of
    one record under the public moments of the features, its curvature that at the prior's weights.
    """
    model: GeneralizedLinearModel = common["model"]
    n, steps = release.n_params, slice(start.start, None)
    positions, gradients = release.positions[steps, :n], release.noisy_gradients[steps, :n]
    variance = model.prior_scale**2
    trace = InformationTrace.build(
        positions,
        gradients,
        release.noise_stddev[:n],
        sample_rate=release.sample_rate,
        prior_variance=variance,
    )
    result = information_posterior(
        trace,
        float(release.n_records or 0) * model.expected_information(),
        prior_variance=variance,
        moments_known=model.feature_moments_known,
        n_draws=n_samples,
        n_warmup=n_warmup,
        seed=seed,
        check_convergence=check_convergence,
        report=report,
    )
    names = release.gradient_names[:n]
    fitted = release.sample_rate * (positions - trace.position_mean) @ result.hessian_mean
    residual = gradients - gradients.mean(axis=0) - fitted
    diagonal = np.diag(result.hessian_mean)
    checked = start.statistics.take(slice(0, n))
    return Posterior(
        **common,
        burn_in=start.start,
        optimum_names=names,
        optimum_mean=result.optimum_mean,
        optimum_stddev=result.optimum_stddev,
        hessian_mean=result.hessian_mean,
        hessian_stddev=result.hessian_stddev,
        distribution=result.theta,
        diagnostics={
            "noise_ratio": residual.std(axis=0) / release.noise_stddev[:n],
            "slope_score": diagonal / np.diag(result.hessian_stddev),
            "n_steps_used": positions.shape[0],
            "effective_weight": np.full(n, trace.weight),
            "burn_in_holds": start.holds,
            "verdict": check_statistics(checked, start.linearity_pvalue[:n], names).verdict,
            "acceptance": result.acceptance,
            "rhat": result.rhat,
        },
    )


def gram_full_posterior(
    release: Release,
    start: BurnIn,
    *,
    seed: int,
    check_convergence: bool,
    report: Callable[[int, int], object],
    common: dict[str, Any],
    n_samples: int = _MODEL_DRAWS,
    n_warmup: int = _MODEL_WARMUP,
) -> Posterior:
    """Integrate over the Gram matrix of the features of a linear regression, given the trace and the model's priors.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    release : Release
        For which :func:`suits_model_hessian` holds.
    start : BurnIn
        Which steps are used for the weights; the noise variance, at first inflated by the weights' distance, takes none
        of the first half.
    seed, check_convergence, report, common, n_samples, n_warmup
        As in :func:`model_full_posterior`.

    Returns
    -------
    Posterior

    Raises
    ------
    NumericalError
        If the draws did not converge and `check_convergence`.

    Notes
    -----
    See :func:`dpinfer.inference.gram.gram_posterior`.
    """
    model: LinearRegression = common["model"]
    n = release.n_params
    run = _fisher_run(release, model)
    variance_start = max(start.start, int(_VARIANCE_BURN_IN * release.n_steps))
    trace = GramTrace.from_release(release, model, run, start.start, variance_start)
    result = gram_posterior(
        trace,
        model,
        n_draws=n_samples,
        n_warmup=n_warmup,
        seed=seed,
        check_convergence=check_convergence,
        report=report,
    )
    names = release.gradient_names[:n]
    checked = start.statistics.take(slice(0, n))
    added = {}
    if run is not None:
        centre = result.optimum_mean[None, :]
        added["expected_clipped_share"] = float(np.asarray(run.expected(centre).clipped_share)[0])
    return Posterior(
        **common,
        burn_in=start.start,
        optimum_names=names,
        optimum_mean=result.optimum_mean,
        optimum_stddev=result.optimum_stddev,
        hessian_mean=result.hessian_mean,
        hessian_stddev=result.hessian_stddev,
        distribution=result.theta,
        diagnostics={
            "noise_ratio": checked.noise_ratio,
            "slope_score": np.diag(result.hessian_mean) / np.maximum(np.diag(result.hessian_stddev), 1e-300),
            "n_steps_used": release.n_steps - start.start,
            "effective_weight": checked.weight,
            "burn_in_holds": start.holds,
            "verdict": check_statistics(checked, start.linearity_pvalue[:n], names).verdict,
            "acceptance": result.acceptance,
            "rhat": result.rhat,
            "effective_draws": result.effective_draws,
            **added,
        },
    )


def _inverse_gram_diagonal(factor: FloatArray) -> FloatArray:
    """Return the diagonal of the inverse of each row's Gram matrix, (k,)."""
    inverse = np.linalg.inv(factor)
    diagonal = np.sum(inverse**2, axis=1)
    return diagonal[0] if factor.shape[0] == 1 else np.diag(diagonal)
