"""From a release of a user's own model to a posterior of any shape, by the model's own simulator."""

from dataclasses import replace

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference.newton.own_checks import check_own
from dpinfer.inference.newton.simulated_scores import NewtonScore
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import OwnNewtonRequest, model_of, parse_burn_in
from dpinfer.inference.simulated.emulator import MeanScore, Prior, simulated_draws
from dpinfer.inference.trace.analysis import Analysis
from dpinfer.inference.trace.simulated_scores import AlignedScore
from dpinfer.models import OwnModel
from dpinfer.release import OwnNewtonRelease

_DRAWS = 1000  # Monte Carlo error 2% of a standard deviation (1 / sqrt(2 * 1000))
_BURN_IN = 0.2  # share of the trace; of few steps, which begin near the optimum; chosen by hand
_KERNEL = 0.2  # bandwidth in posterior standard deviations; draws are shrunk so that their covariance stays
_WORDS = (
    "Intervals rest on the model: its simulations at each truth are compared with the mean score; the "
    "emulator's error is {error:.0%} of the noise. This release cannot show a wrong likelihood."
)


def simulated_posterior(
    analysis: Analysis,  # of an aligned trace, with a model of the user's own that has a sampler
) -> Posterior:
    """Infer parameters by simulating the expected mean clipped score of the trace under each truth.

    Raises NumericalError if the simulation leads to no posterior.
    """
    release, request, model = analysis.release, analysis.request, analysis.model
    if not isinstance(model, OwnModel):
        raise TypeError("model must be one of your own")
    share = _BURN_IN if request.burn_in == "auto" else request.burn_in
    first = int(parse_burn_in(share, release.n_steps) or 0)
    rng = np.random.default_rng(request.seed)
    draws, error = _draws(AlignedScore(model, release, first, rng), model, request.n_samples, rng)
    posterior = analysis.posterior(
        burn_in=first,
        distribution=_smoothed(draws),
        diagnostics=PosteriorDiagnostics(n_steps_used=release.n_steps - first, verdict=_WORDS.format(error=error)),
    )
    return replace(posterior, hessian="none", prior="model")


def simulated_newton_posterior(
    release: OwnNewtonRelease,
    request: OwnNewtonRequest,  # its model has a sampler
) -> Posterior:
    """Infer parameters by simulating the expected scores of a few-pass run under each truth.

    **Privacy.** Post-processing of an OwnNewtonRelease.

    Raises NumericalError if the simulation leads to no posterior.
    """
    model = model_of(release, request.model)
    if not isinstance(model, OwnModel):
        raise TypeError("model must be one of your own")
    rng = np.random.default_rng(request.seed)
    draws, error = _draws(NewtonScore(model, release, rng), model, request.n_samples, rng)
    checks = check_own(release, draws.mean(axis=0), np.atleast_2d(np.cov(draws, rowvar=False)))
    return Posterior(
        names=release.names,
        method="newton",
        approximation="simulated",
        prior="model",
        distribution=_smoothed(draws),
        model=model,
        guarantee=release.guarantee,
        diagnostics=PosteriorDiagnostics(
            n_steps_used=len(release.scores),
            verdict=f"{_WORDS.format(error=error)} {checks.verdict}",
            warnings=", ".join(checks.warnings),
        ),
    )


def _draws(
    score: MeanScore, model: OwnModel, n_samples: int | None, rng: np.random.Generator
) -> tuple[FloatArray, float]:
    prior = Prior(model.parameters.prior_mean, model.parameters.prior_scale)
    size = _DRAWS if n_samples is None else n_samples
    try:
        draws, error = simulated_draws(score, prior, size, rng)
    except np.linalg.LinAlgError as failure:
        raise NumericalError("the model's simulation leads to no posterior near the prior") from failure
    if not np.all(np.isfinite(draws)):
        raise NumericalError("the model's simulation leads to no posterior near the prior")
    return draws, error


def _smoothed(draws: FloatArray) -> DrawnTheta:
    """Return a mixture of normals around the draws, contracted so that its covariance is that of the draws."""
    covariance = np.atleast_2d(np.cov(draws, rowvar=False))
    centre = draws.mean(axis=0)
    location = centre + np.sqrt(1.0 - _KERNEL**2) * (draws - centre)
    factor = np.linalg.cholesky(np.linalg.inv(_KERNEL**2 * covariance))
    nothing = np.zeros(len(centre))
    parts = VarianceParts(nothing, nothing, np.diag(covariance).copy())
    return DrawnTheta(location, None, np.broadcast_to(factor, (len(draws), *factor.shape)), parts)
