"""From the release of a private Newton run of a regression to a posterior of its weights, and of its noise variance."""

import math

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.checks import check_draws
from dpinfer.inference.newton.glm_scores import BoundedScores
from dpinfer.inference.newton.mixture import Mixture, mixture_of
from dpinfer.inference.newton.scores import LinearScores, NoiseScalePrior
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.request import NewtonRequest, model_of
from dpinfer.models import GeneralizedLinearModel, LinearRegression
from dpinfer.models.base import softplus
from dpinfer.release import GlmNewtonRelease, NewtonRelease

_TAIL = 0.05  # of a prior, on either side of what the summary says of it


def newton_posterior(release: NewtonRelease, request: NewtonRequest) -> Posterior:
    """Infer weights and noise variance from the release of a private Newton run.

    **Privacy.** Post-processing of a NewtonRelease: it costs nothing.

    Parameters
    ----------
    request : NewtonRequest
        `prior` is that of the noise variance: "weak" (default), log-normal around the spread of the responses that the
        run has found, over four powers of ten of the standard deviation (95%); "model", the model's inverse gamma.
        `n_samples` and `n_warmup` change nothing: the posterior is a mixture of normal laws over as many draws of the
        second moments as the Monte Carlo error needs, which is below 5% of the posterior standard deviation in the 5%
        and 95% quantiles.  Draws of the posterior come from the mixture.

    Returns
    -------
    Posterior
        With ``diagnostics.mcse``, the larger Monte Carlo error of the two quantiles in posterior standard deviations,
        and ``diagnostics.equivalent_draws``, both (n,); ``diagnostics.warnings``, ``fit_pvalue``, ``prior_pvalue`` and
        ``n_unresolved`` of :class:`Checks`, whose verdict the summary prints.

    Raises
    ------
    TypeError, ValueError
        If a setting does not fit.
    NumericalError
        If the error stays larger and the request has no fallback.

    Notes
    -----
    docs/derivations/private-newton.md.  Given the second moments M and the noise variance the scores are linear in the
    weights, which are integrated out; M and the noise variance are drawn.
    """
    model = model_of(release, request.model)
    if not isinstance(model, LinearRegression):
        raise TypeError(f"model must be a LinearRegression, got {type(model).__name__}")
    name = "weak" if request.prior == "auto" else request.prior_name
    density, said = noise_prior(release, model, name)
    scores = LinearScores(release, model, density)
    found = mixture_of(scores, request)
    variance = softplus(found.distribution.location[:, -1]) * model.prior_scale**2
    if model.fit_intercept:
        said += ", and of the intercept, whose standard deviation is the spread of the responses more"
    return _posterior(release, model, scores, found, prior=name, words=f"{said}.\n{found.words}", variance=variance)


def glm_newton_posterior(release: GlmNewtonRelease, request: NewtonRequest) -> Posterior:
    """Infer the weights from the release of a private Newton run of a logistic, probit or Poisson regression.

    **Privacy.** Post-processing of a GlmNewtonRelease: it costs nothing.

    Parameters
    ----------
    request : NewtonRequest
        As for a linear regression.

    Returns
    -------
    Posterior
        With ``diagnostics.mcse``, ``diagnostics.equivalent_draws`` and the checks, as for a linear regression.

    Raises
    ------
    TypeError, ValueError
        If a setting does not fit.
    NumericalError
        If the Monte Carlo error stays large and the request has no fallback.

    Notes
    -----
    docs/derivations/private-newton.md, "The posterior".
    """
    model = model_of(release, request.model)
    if not isinstance(model, GeneralizedLinearModel):
        raise TypeError(f"model must be the regression of the release, got {type(model).__name__}")
    if type(model).__name__ != release.model_spec.get("kind", type(model).__name__):
        raise TypeError(f"model must be a {release.model_spec['kind']}, got {type(model).__name__}")
    scores = BoundedScores(release, model)
    found = mixture_of(scores, request)
    variance = np.full(len(found.distribution.location), model.prior_scale**2)
    return _posterior(release, model, scores, found, prior="model", words=found.words, variance=variance)


def noise_prior(release: NewtonRelease, model: LinearRegression, name: str) -> tuple[NoiseScalePrior, str]:
    """Return the prior of the noise variance, with its text for the summary."""
    shape, rate = model.variance_shape, model.variance_rate
    if name == "weak":
        loc, stddev = math.log(release.response_spread) + tuning.TUNING.log_scale_shift, tuning.TUNING.log_scale_stddev
        tail = float(special.ndtri(1.0 - _TAIL))
        low, high = (math.exp(2.0 * (loc + sign * tail * stddev)) for sign in (-1.0, 1.0))
        words = f"Prior of the noise variance: weak, 90% of it between {low:.3g} and {high:.3g}"
        return lambda eta: -0.5 * np.square((eta - loc) / stddev), f"{words} (squared units of the response)"
    low, high = model.variance_prior_quantile([_TAIL, 1.0 - _TAIL])
    words = f"Prior of the noise variance: the model's inverse gamma, 90% of it between {low:.3g} and {high:.3g}"
    return lambda eta: -2.0 * shape * eta - rate * np.exp(-2.0 * eta), words


def _posterior(
    release: NewtonRelease | GlmNewtonRelease,
    model: GeneralizedLinearModel,
    scores: LinearScores | BoundedScores,
    found: Mixture,
    *,
    prior: str,
    words: str,
    variance: FloatArray,
) -> Posterior:
    d = release.n_coef
    # The prior of a linear regression's intercept has the spread of the responses, too.
    n_checked = d - (isinstance(model, LinearRegression) and model.fit_intercept and d > 1)
    checks = check_draws(
        release,
        misfit=found.misfit,
        freedom=scores.freedom,
        location=found.distribution.location[:, :n_checked],
        variance=found.variance[:, :n_checked],
        prior_variance=variance,
    )
    return Posterior(
        names=release.names,
        method="newton",
        prior=prior,
        distribution=found.distribution,
        model=model,
        guarantee=release.guarantee,
        diagnostics=PosteriorDiagnostics(
            n_steps_used=release.scores.shape[0],
            mcse=found.error.quantile,
            equivalent_draws=found.error.equivalent_draws,
            prior_pvalue=checks.prior_pvalue,
            fit_pvalue=checks.fit_pvalue,
            n_unresolved=checks.n_unresolved,
            warnings=", ".join(checks.warnings),
            verdict=f"{words}\n{checks.verdict}",
        ),
    )
