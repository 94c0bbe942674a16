"""From the release of a private Newton run of a regression without a scale to a posterior of its weights."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpinfer.inference.newton.convergence import ChainLengths, DistributionOf, draw_until_settled
from dpinfer.inference.newton.monte_carlo import MonteCarloError, monte_carlo_error
from dpinfer.inference.newton.posterior import (
    checks_of,
    posterior_of_draws,
    theta_of_draws,
    weights_in_declared_units,
)
from dpinfer.inference.newton.sampler import Draws, PosteriorSampler
from dpinfer.inference.newton.target import MomentRelease
from dpinfer.inference.newton.trace_model import FixedSlopeTrace
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta
from dpinfer.inference.request import PosteriorRequest, model_of
from dpinfer.models import GeneralizedLinearModel
from dpinfer.models.clipped_residuals import ResponseGrid
from dpinfer.models.normal_design import NormalDesign
from dpinfer.models.whitening import shrink_moments
from dpinfer.release import GlmNewtonRelease

__all__ = ["glm_distribution", "glm_newton_posterior", "glm_sampler", "sampling_ratio"]

FloatArray = npt.NDArray[np.float64]

_SPACING = 1.0 / 8.0


def glm_newton_posterior(release: GlmNewtonRelease, request: PosteriorRequest) -> Posterior:
    """Infer the weights from the release of a private Newton run of a logistic, probit or Poisson regression.

    **Privacy.** Post-processing of a GlmNewtonRelease: it costs nothing.

    Parameters
    ----------
    release : GlmNewtonRelease
    request : PosteriorRequest
        `n_samples` and `n_warmup` are kept and dropped steps of each chain, by default as for a linear regression.

    Returns
    -------
    Posterior
        With ``diagnostics.mcse``, ``diagnostics.equivalent_draws`` and what was checked, as for a linear regression.

    Raises
    ------
    TypeError, ValueError
        If a setting does not fit.
    NumericalError
        If the chains did not converge and the request has no fallback.

    Notes
    -----
    docs/derivations/private-newton.md, "The posterior".
    """
    request.check(release)
    model = model_of(release, request.model)
    if not isinstance(model, GeneralizedLinearModel):
        raise TypeError(f"model must be the regression of the release, got {type(model).__name__}")
    if type(model).__name__ != release.model_spec.get("kind", type(model).__name__):
        raise TypeError(f"model must be a {release.model_spec['kind']}, got {type(model).__name__}")

    def begin(n_chains: int) -> tuple[PosteriorSampler, DistributionOf]:
        sampler = glm_sampler([release], [model], n_chains=n_chains, seed=request.seed, n_threads=request.threads)
        return sampler, lambda found: glm_distribution(release, found)

    settled = draw_until_settled(begin, request, ChainLengths.of(release.n_coef))
    size = len(settled.distribution.location)
    freedom = np.array([float(release.scores.size)])
    variance = np.full(size, model.prior_scale**2)
    checks = checks_of(release, settled.distribution, settled.draws, freedom, variance)
    return posterior_of_draws(release, model, settled, prior="model", words=settled.words, checks=checks)


def glm_sampler(
    releases: Sequence[GlmNewtonRelease],
    models: Sequence[GeneralizedLinearModel],
    *,
    n_chains: int,
    seed: int,
    n_threads: int = 0,
) -> PosteriorSampler:
    """Return the chains of releases of one shape, side by side: chain c of release i is number i n_chains + c."""
    repeated = [release for release in releases for _ in range(n_chains)]
    scales = [model.prior_scale for model in models for _ in range(n_chains)]
    sampling = [sampling_ratio(*pair) / pair[0].n_records for pair in zip(releases, models, strict=True)]
    trace = FixedSlopeTrace.from_releases(repeated, scales, np.repeat(sampling, n_chains).tolist())
    released = MomentRelease.from_slopes(repeated)
    return PosteriorSampler(released, trace, log_scale=np.zeros(len(repeated)), seed=seed, n_threads=n_threads)


def sampling_ratio(release: GlmNewtonRelease, model: GeneralizedLinearModel) -> float:
    """Return the variance of a clipped residual over its slope, each expected at the predictors where the run ended."""
    whitening = release.transforms[-1]
    trace = float(release.moment_bounds[-1]) ** 2
    moments = shrink_moments(release.moments[-1], float(release.moment_stddev[-1]), trace).matrix
    constant = np.linalg.solve(whitening.T, np.eye(model.n_coef)[-1]) if model.fit_intercept else None
    position = np.linalg.solve(whitening.T, release.score_transform.T @ release.positions[-1])
    law = NormalDesign.of_moments(moments, constant).law(position)
    grid = ResponseGrid(model, _SPACING)
    residual = grid.clipped(release.clip).with_slope_at_most(release.slope_bound)
    return law.mean(grid, residual.variance) / max(law.mean(grid, residual.slope), 1e-300)


def glm_distribution(
    release: GlmNewtonRelease, found: Sequence[Draws], columns: slice = slice(None)
) -> tuple[DrawnTheta, MonteCarloError]:
    """Return the distribution of the weights and its Monte Carlo error from the chains in `columns`."""
    mean, precision, from_data = weights_in_declared_units(release.score_transform, found, columns)
    d = mean.shape[2]
    variance = np.diagonal(np.linalg.inv(precision), axis1=2, axis2=3)
    factor = np.asarray(np.linalg.cholesky(precision), dtype=np.float64).reshape(-1, d, d)
    return theta_of_draws(mean, variance, factor, from_data), monte_carlo_error(mean, variance)
