"""From the release of a private Newton run to a posterior of weights and noise variance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer.inference.newton.checks import Checks, check_draws
from dpinfer.inference.newton.convergence import ChainLengths, DistributionOf, SettledDraws, draw_until_settled
from dpinfer.inference.newton.monte_carlo import MonteCarloError, monte_carlo_error
from dpinfer.inference.newton.sampler import Draws, PosteriorSampler
from dpinfer.inference.newton.target import MomentRelease
from dpinfer.inference.newton.trace_model import ModelScalePrior, NoiseScalePrior, TraceModel, WeakScalePrior
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import PosteriorRequest, model_of
from dpinfer.models import LinearRegression, Model
from dpinfer.models.bijectors import sigmoid, softplus, softplus_inverse
from dpinfer.release import GlmNewtonRelease, NewtonRelease

__all__ = [
    "checks_of",
    "newton_distribution",
    "newton_posterior",
    "newton_sampler",
    "posterior_of_draws",
    "theta_of_draws",
    "weights_in_declared_units",
]

FloatArray = npt.NDArray[np.float64]

_LOG_SCALE_SHIFT, _LOG_SCALE_STDDEV = -1.0, 2.0
_TAIL = 0.05
_THINNED = 4  # of the draws, for a mean that varies little between them


@dataclass(frozen=True)
class _Prior:
    """The prior of the noise variance, and what the summary says of it."""

    density: NoiseScalePrior
    words: str


def newton_posterior(release: NewtonRelease, request: PosteriorRequest) -> Posterior:
    """Infer weights and noise variance from the release of a private Newton run.

    **Privacy.** Post-processing of a NewtonRelease: it costs nothing.

    Parameters
    ----------
    release : NewtonRelease
    request : PosteriorRequest
        `prior` is that of the noise variance: "weak" (default), log-normal around the spread of the responses that the
        run has found, over four powers of ten of the standard deviation (95%); "model", the model's inverse gamma.
        `n_samples` and `n_warmup` are steps of each chain, and those dropped before them.  By default the chains go on,
        the first fifth of their steps dropped, until the Monte Carlo error of the 5% and 95% quantiles is below 5% of
        the posterior standard deviation.  Up to 24 weights 8 chains adapt for 50 steps and make 640 more at most, and
        where these are too few 32 chains begin anew, for 100 and 10 240 steps; up to 120 weights 4 chains, 28 and 640
        steps, and 8 chains, 60 and 2560; then 3 chains, 16 and 160 steps.  `n_samples` beyond the first number are made
        by as many chains as the second has.

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
        If the chains did not converge and the request has no fallback.

    Notes
    -----
    docs/derivations/private-newton.md.  Given the second moments M the scores are linear in the weights, which are
    integrated out; M and the noise variance are sampled.
    """
    request.check(release)
    model = model_of(release, request.model)
    if not isinstance(model, LinearRegression):
        raise TypeError(f"model must be a LinearRegression, got {type(model).__name__}")
    name = "weak" if request.prior == "auto" else request.prior_name
    scale, chosen = model.prior_scale, _noise_prior(release, model, name)

    def begin(n_chains: int) -> tuple[PosteriorSampler, DistributionOf]:
        sampler, trace = newton_sampler(
            [release], [scale], chosen.density, n_chains=n_chains, seed=request.seed, n_threads=request.threads
        )
        return sampler, lambda found: newton_distribution(release, found, trace)

    settled = draw_until_settled(begin, request, ChainLengths.of(release.n_coef))
    variance = softplus(settled.distribution.location[:, -1]) * model.prior_scale**2
    freedom = np.array([release.scores.size, len(release.scores)], dtype=np.float64)
    checks = checks_of(release, settled.distribution, settled.draws, freedom, variance)
    words = f"Prior of the noise variance: {chosen.words}.\n{settled.words}"
    return posterior_of_draws(release, model, settled, prior=name, words=words, checks=checks)


def checks_of(
    release: NewtonRelease | GlmNewtonRelease,
    theta: DrawnTheta,
    draws: Draws,
    sizes: FloatArray,
    prior_variance: FloatArray,
    columns: slice = slice(None),
) -> Checks:
    """Return :func:`check_draws` of the distribution made of the draws in `columns`."""
    d = release.n_coef
    inverse = np.linalg.inv(np.asarray(theta.q_factor)[:, :d, :d])
    return check_draws(
        release,
        draws,
        sizes,
        location=theta.location[:, :d],
        covariance=np.swapaxes(inverse, 1, 2) @ inverse,
        prior_variance=prior_variance,
        columns=columns,
    )


def posterior_of_draws(
    release: NewtonRelease | GlmNewtonRelease,
    model: Model,
    settled: SettledDraws,
    *,
    prior: str,
    words: str,
    checks: Checks,
) -> Posterior:
    """Return the posterior of settled draws of the weights and whatever follows them.

    Parameters
    ----------
    release : NewtonRelease or GlmNewtonRelease
    model : Model
    settled : SettledDraws
    prior, words : str
    checks : Checks
    """
    d = release.n_coef
    parts = settled.distribution.parts
    unknown = np.full(d, np.nan)
    return Posterior(
        names=release.names,
        method="exact",
        hessian="full",
        prior=prior,
        burn_in=0,
        optimum_names=release.names[:d],
        optimum_mean=settled.distribution.marginals.mean[:d].copy(),
        optimum_stddev=np.sqrt(parts.privacy + parts.approximation)[:d],
        hessian_mean=unknown,
        hessian_stddev=unknown.copy(),
        distribution=settled.distribution,
        model=model,
        guarantee=release.guarantee,
        diagnostics=PosteriorDiagnostics(
            n_steps_used=release.scores.shape[0],
            mcse=settled.error.quantile,
            equivalent_draws=settled.error.equivalent_draws,
            prior_pvalue=checks.prior_pvalue,
            fit_pvalue=checks.fit_pvalue,
            n_unresolved=checks.n_unresolved,
            warnings=", ".join(checks.warnings),
            verdict=f"{words}\n{checks.verdict}",
        ),
    )


def _noise_prior(release: NewtonRelease, model: LinearRegression, name: str) -> _Prior:
    tail = special.ndtri(1.0 - _TAIL)
    if name == "weak":
        loc = math.log(release.response_spread) + _LOG_SCALE_SHIFT
        low, high = (math.exp(2.0 * (loc + sign * tail * _LOG_SCALE_STDDEV)) for sign in (-1.0, 1.0))
        words = f"weak, 90% of it between {low:.3g} and {high:.3g} (squared units of the response)"
        return _Prior(WeakScalePrior(np.array([loc]), _LOG_SCALE_STDDEV), words)
    low, high = model.variance_prior_quantile([_TAIL, 1.0 - _TAIL])
    words = f"the model's inverse gamma, 90% of it between {low:.3g} and {high:.3g}"
    return _Prior(ModelScalePrior(model.variance_shape, model.variance_rate), words)


def newton_sampler(
    releases: Sequence[NewtonRelease],
    prior_scales: Sequence[float],
    density: NoiseScalePrior | None = None,
    *,
    n_chains: int,
    seed: int,
    n_threads: int = 0,
) -> tuple[PosteriorSampler, TraceModel]:
    """Return the chains of releases of one shape, side by side: chain c of release i is number i n_chains + c.

    Parameters
    ----------
    releases : sequence of NewtonRelease
        Whose arrays have the same shapes.
    prior_scales : sequence of float
        The model's `prior_scale` for each.
    density : NoiseScalePrior, optional
        The weak prior by default.
    n_chains, seed, n_threads : int
    """
    repeated = [release for release in releases for _ in range(n_chains)]
    scales = [scale for scale in prior_scales for _ in range(n_chains)]
    if density is None:
        loc = np.log([release.response_spread for release in repeated]) + _LOG_SCALE_SHIFT
        density = WeakScalePrior(loc, _LOG_SCALE_STDDEV)
    trace = TraceModel.from_releases(repeated, scales, density)
    start = np.log([release.scale_units[-1] for release in repeated])
    sampler = PosteriorSampler(
        MomentRelease.from_releases(repeated), trace, log_scale=start - 0.5, seed=seed, n_threads=n_threads
    )
    return sampler, trace


def newton_distribution(
    release: NewtonRelease, found: Sequence[Draws], trace: TraceModel, columns: slice = slice(None)
) -> tuple[DrawnTheta, MonteCarloError]:
    """Return the distribution of (weights, rho) and its Monte Carlo error from the chains in `columns`.

    A draw is a normal distribution: of the weights given second moments and noise variance, and of rho = softplus^-1 of
    the noise variance, with what the sample's own spread leaves open.
    """
    mean, precision, from_data = weights_in_declared_units(release.transforms[-1], found, columns)
    locations, spreads = [], []
    for draws in found:
        # The residuals' spread around a fit of d weights is smaller than sigma by a factor sqrt(1 - d / N).
        shift = -0.5 * np.log1p(-min(release.n_coef / release.n_records, 0.5))
        variance = np.exp(2.0 * (draws.log_scale[:, columns] + shift))
        jitter = np.stack([trace.sampling_stddev_of_log_scale(row)[columns] for row in draws.log_scale])
        locations.append(softplus_inverse(variance))
        spreads.append(2.0 * variance * jitter / sigmoid(locations[-1]))
    rho, spread = np.concatenate(locations), np.concatenate(spreads)
    location = np.concatenate((mean, rho[..., None]), axis=2)
    variance = np.diagonal(np.linalg.inv(precision), axis1=2, axis2=3)
    variance = np.concatenate((variance, np.square(spread)[..., None]), axis=2)
    n = location.shape[2]
    factor = np.zeros((rho.size, n, n))
    factor[:, :-1, :-1] = np.linalg.cholesky(precision).reshape(rho.size, n - 1, n - 1)
    factor[:, -1, -1] = 1.0 / spread.ravel()
    data = np.zeros((n, n))
    data[:-1, :-1], data[-1, -1] = from_data, variance[..., -1].mean()
    return theta_of_draws(location, variance, factor, data), monte_carlo_error(location, variance)


def theta_of_draws(location: FloatArray, variance: FloatArray, factor: FloatArray, data: FloatArray) -> DrawnTheta:
    """Return the distribution of theta, N(location, variance) in every draw, and what its variance is made of.

    What the records do not leave open the privacy noise does, second moments that are not known among it.

    Parameters
    ----------
    location, variance : (S, C, n) arrays
    factor : (S C, n, n) array
        Lower Cholesky factors of the precisions.
    data : (n, n) array
        Covariance without privacy noise.
    """
    flat = location.reshape(-1, location.shape[2])
    total = variance.mean(axis=(0, 1)) + flat.var(axis=0)
    from_data = np.minimum(np.diag(data), total)
    parts = VarianceParts(from_data, total - from_data, np.zeros_like(total))
    return DrawnTheta(flat, None, factor, parts, data)


def weights_in_declared_units(
    whitening: FloatArray, found: Sequence[Draws], columns: slice
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return mean (S, C, d) and precision (S, C, d, d) of each draw's weights, and the data's covariance (d, d)."""
    unwhitening = np.linalg.inv(whitening)
    mean = np.concatenate([draws.mean[:, columns] @ whitening for draws in found])
    precision = np.concatenate([unwhitening @ draws.precision[:, columns] @ unwhitening.T for draws in found])
    data = np.concatenate([unwhitening @ draws.data_precision[::_THINNED, columns] @ unwhitening.T for draws in found])
    return mean, precision, np.linalg.inv(data).mean(axis=(0, 1))
