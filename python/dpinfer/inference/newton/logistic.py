"""From the release of a private Newton run of a logistic regression to a posterior of its weights."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpinfer.inference.newton.convergence import ChainLengths, draw_until_settled
from dpinfer.inference.newton.monte_carlo import MonteCarloError, monte_carlo_error
from dpinfer.inference.newton.posterior import checks_of, posterior_of_draws, weights_in_declared_units
from dpinfer.inference.newton.sampler import Draws, PosteriorSampler
from dpinfer.inference.newton.target import MomentRelease
from dpinfer.inference.newton.trace_model import FixedSlopeTrace
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import PosteriorRequest, model_of
from dpinfer.models import LogisticRegression
from dpinfer.release import LogisticNewtonRelease

__all__ = ["logistic_distribution", "logistic_newton_posterior", "logistic_sampler"]

FloatArray = npt.NDArray[np.float64]


def logistic_newton_posterior(release: LogisticNewtonRelease, request: PosteriorRequest) -> Posterior:
    """Infer the weights from the release of a private Newton run of a logistic regression.

    **Privacy.** Post-processing of a LogisticNewtonRelease: it costs nothing.

    Parameters
    ----------
    release : LogisticNewtonRelease
    request : PosteriorRequest
        `n_samples` and `n_warmup` are kept and dropped steps of each chain, by default as for a linear regression.

    Returns
    -------
    Posterior
        With ``diagnostics.mcse``, ``diagnostics.ess`` and what was checked, as for a linear regression.

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
    if not isinstance(model, LogisticRegression):
        raise TypeError(f"model must be a LogisticRegression, got {type(model).__name__}")
    lengths = ChainLengths.of(release.n_coef)
    sampler = logistic_sampler([release], [model.prior_scale], n_chains=lengths.chains, seed=request.seed)
    settled = draw_until_settled(sampler, lambda found: logistic_distribution(release, found), request, lengths)
    size = len(settled.distribution.location)
    freedom = np.array([float(release.scores.size)])
    variance = np.full(size, model.prior_scale**2)
    checks = checks_of(release, model, settled.distribution, settled.draws, freedom, variance)
    return posterior_of_draws(release, model, settled, prior="model", words=settled.words, checks=checks)


def logistic_sampler(
    releases: Sequence[LogisticNewtonRelease], prior_scales: Sequence[float], *, n_chains: int, seed: int
) -> PosteriorSampler:
    """Return the chains of releases of one shape, side by side: chain c of release i is number i n_chains + c."""
    repeated = [release for release in releases for _ in range(n_chains)]
    scales = [scale for scale in prior_scales for _ in range(n_chains)]
    trace = FixedSlopeTrace.from_releases(repeated, scales)
    released = MomentRelease.from_slopes(repeated)
    return PosteriorSampler(released, trace, log_scale=np.zeros(len(repeated)), seed=seed)


def logistic_distribution(
    release: LogisticNewtonRelease, found: Sequence[Draws], columns: slice = slice(None)
) -> tuple[DrawnTheta, MonteCarloError]:
    """Return the distribution of the weights and its Monte Carlo error from the chains in `columns`."""
    mean, precision, from_data = weights_in_declared_units(release.transforms[-1], found, columns)
    d = mean.shape[2]
    variance = np.diagonal(np.linalg.inv(precision), axis1=2, axis2=3)
    inside = variance.mean(axis=(0, 1))
    data = np.minimum(from_data, inside)
    parts = VarianceParts(data, inside - data, mean.reshape(-1, d).var(axis=0))
    factor = np.asarray(np.linalg.cholesky(precision), dtype=np.float64).reshape(-1, d, d)
    return DrawnTheta(mean.reshape(-1, d), None, factor, parts), monte_carlo_error(mean, variance)
