"""Monte Carlo error of printed numbers of a sampled posterior, and quantiles of linear combinations of parameters."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.posterior.causes import causes
from dpinfer.inference.posterior.mixture import HERMITE_NODES, NormalMixtures, mixture_quantile
from dpinfer.inference.posterior.theta import DrawnTheta
from dpinfer.models.base import gauss_hermite, softplus

if TYPE_CHECKING:
    from dpinfer.inference.posterior.posterior import Posterior

_DRAWS, _SEED = 16_384, 0  # Monte Carlo error below 1% of a standard deviation; the seed is arbitrary
_SAMPLERS = ("emcee", "nuts")
_FEWEST = 4  # fewer draws have no batches
_SMALLEST = 1e-12  # far above rounding, far below any printed digit


@dataclass(frozen=True)
class MonteCarloError:
    """Standard errors that come from drawing, not from the records or the privacy noise; 0 without draws."""

    levels: FloatArray  # (m,)
    quantile: FloatArray  # (m, n): of the quantiles at these levels, in the model's own space
    mean: FloatArray  # (n,): of the mean, on the unconstrained space
    # (n,): effective number of independent draws of the chain for the quantiles, the fewest over the levels; infinite
    # without draws.  If each draw is a distribution, errors are smaller than with as many points
    effective_draws: FloatArray

    def __post_init__(self) -> None:
        for part in vars(self).values():
            part.flags.writeable = False  # a posterior keeps it

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(vars(self).values())  # of which a copy's cannot be written to either

    @property
    def drawn(self) -> bool:
        """Whether anything rests on draws."""
        return bool(np.any(np.isfinite(self.effective_draws)))


def effective_draws(
    series: FloatArray,  # (S, m)
) -> FloatArray:  # (m,): at most S log10(S); S for a series that does not change
    """Return how many independent draws the mean of each series is worth, (m,) for one chain (S, m) of S >= 4 draws.

    **Privacy.** Post-processing only.

    Vehtari et al. (2021), section 3.2, as ArviZ has it: the chain is split into halves, whose difference counts, and
    autocorrelations are summed over Geyer's initial monotone sequence.
    """
    half = series.shape[0] // 2
    chains = np.stack([series[:half], series[-half:]])
    centred = chains - chains.mean(axis=1, keepdims=True)
    transform = np.fft.rfft(centred, n=1 << (2 * half - 1).bit_length(), axis=1)  # scipy.fft takes long to import
    covariance = np.fft.irfft(np.abs(transform) ** 2, axis=1)[:, :half].mean(axis=0) / half
    within = covariance[0] * half / (half - 1.0)
    total = covariance[0] + chains.mean(axis=1).var(axis=0, ddof=1)
    # Changes by rounding do not count.
    still = total <= np.square(_SMALLEST * np.abs(series).max(axis=0))
    correlation = 1.0 - (within - covariance) / np.where(still, 1.0, total)
    correlation[0] = 1.0
    pairs = correlation[: half // 2 * 2].reshape(half // 2, 2, -1).sum(axis=1)
    positive = np.cumprod(pairs > 0.0, axis=0, dtype=np.int64)
    monotone = np.minimum.accumulate(np.where(positive == 1, pairs, 0.0), axis=0)
    size = 2.0 * half
    # Of the first pair that is not positive the even lag, where that is positive.
    last = np.minimum(2 * positive.sum(axis=0), half - 1)
    rest = np.maximum(correlation[last, np.arange(last.size)], 0.0)
    time = np.maximum(2.0 * monotone.sum(axis=0) - 1.0 + rest, 1.0 / np.log10(size))
    return np.asarray(np.where(still, size, size / time))


def monte_carlo_error(posterior: "Posterior", levels: FloatArray) -> MonteCarloError:
    """Return the Monte Carlo error of quantiles at `levels` (m,); see :meth:`Posterior.monte_carlo_error`.

    The distribution function at a quantile is a mean over draws, of indicators or, where q given a draw is normal, of
    its distribution function; its standard error is the draws' spread over the root of the effective number.  As in
    ArviZ the error of the quantile is half the distance between the quantiles at the level less and plus that.
    """
    n, size = posterior.n_params, levels.size
    at = posterior.distribution.marginals.quantile(levels)
    errors, mean_error, effective = np.zeros((size, n)), np.zeros(n), np.full(n, np.inf)
    most = posterior.diagnostics.effective_draws
    cap = np.full(n, np.inf) if most is None else np.broadcast_to(np.atleast_1d(most)[:n], (n,))
    for index in range(n):
        probability = np.zeros(size)
        for function, position in _draws(posterior, index, at[:, index]):
            found = np.minimum(effective_draws(np.column_stack([function, position])), cap[index])
            probability = np.hypot(probability, function.std(axis=0) / np.sqrt(found[:-1]))
            mean_error[index] = np.hypot(mean_error[index], position.std() / np.sqrt(found[-1]))
            effective[index] = min(effective[index], float(found[:-1].min()))
        drawn = posterior.mapped_draws(index)
        if drawn is not None:
            probability = np.hypot(probability, np.sqrt(levels * (1.0 - levels) / drawn.size))
            effective[index] = min(effective[index], float(drawn.size))
        if np.any(probability > 0.0):
            ends = np.clip(np.concatenate([levels - probability, levels + probability]), _SMALLEST, 1.0 - _SMALLEST)
            low, high = _quantiles(posterior, index, ends, drawn).reshape(2, size)
            errors[:, index] = 0.5 * np.abs(high - low)
    return MonteCarloError(levels, errors, mean_error, effective)


def _quantiles(posterior: "Posterior", index: int, levels: FloatArray, drawn: FloatArray | None) -> FloatArray:
    """Return quantiles of one parameter in the model's own space, (levels,), up to the order of a decreasing map."""
    if drawn is not None:
        return np.asarray(np.quantile(drawn, levels))
    values = mixture_quantile(*posterior.distribution.marginals.components(index), levels)
    return posterior.constrain_one(index, values)


def _draws(posterior: "Posterior", index: int, at: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
    """Return P(theta <= at) given each draw behind one parameter, (S, levels), and its mean, (S,), for each set."""
    distribution = posterior.distribution
    if not isinstance(distribution, DrawnTheta) and posterior.approximation not in _SAMPLERS:
        return []
    marginals = distribution.marginals
    location = _components(marginals.location, index)
    if location is None:
        return []
    mean, variance = location
    if marginals.raw_scale is None:
        return [(special.ndtr((at - mean[:, None]) / np.sqrt(variance[:, None])), mean)]
    # Draws of the location given the typical scale, and of the scale given a normal location.
    spread = variance + marginals.scale_variance[index]
    result = [(special.ndtr((at - mean[:, None]) / np.sqrt(spread[:, None])), mean)]
    scale = _components(marginals.raw_scale, index)
    if scale is not None:
        z, weight = gauss_hermite(HERMITE_NODES)
        squares = softplus(scale[0][:, None] + np.sqrt(scale[1])[:, None] * z) ** 2
        total = np.sqrt(marginals.location.variances[index] + squares)
        function = special.ndtr((at[:, None, None] - marginals.location.means[index]) / total) @ weight
        result.append((function.T, np.zeros(scale[0].size)))
    return result


def _components(mixtures: NormalMixtures, index: int) -> tuple[FloatArray, FloatArray] | None:
    """Return mean and variance given each draw, in the order of the chain; None with few draws."""
    part = slice(int(mixtures.offsets[index]), int(mixtures.offsets[index + 1]))
    mean = mixtures.mean[part]
    return None if mean.size < _FEWEST else (mean, np.maximum(mixtures.variance[part], np.finfo(float).tiny))


@dataclass(frozen=True)
class Combined:
    """The posterior of k linear combinations."""

    quantiles: FloatArray  # (m, k)
    # mcse, ess: (k,): Monte Carlo error of the mean, and the independent draws that the quantiles rest on
    mcse: FloatArray
    ess: FloatArray
    # privacy, prior: (k,): shares of the variance due to the privacy noise, and to the prior alone; NaN if the
    # posterior does not have them
    privacy: FloatArray
    prior: FloatArray


def combine(
    posterior: "Posterior",
    rows: FloatArray,  # (k, n): the weights of the parameters in each combination
    levels: FloatArray,  # (m,) in (0, 1)
) -> Combined:
    """Return quantiles of linear combinations of the unconstrained parameters.

    Given a draw of the chain the parameters are normal, and so is a combination.  A posterior without a chain is drawn
    from, 16384 times with a fixed seed.
    """
    distribution = posterior.distribution
    _, privacy, prior = causes(posterior, rows)
    if not isinstance(distribution, DrawnTheta) or len(distribution.location) < _FEWEST:
        draws = posterior.sample(_DRAWS, seed=_SEED, space="unconstrained") @ rows.T
        ess = min(float(_DRAWS), float(posterior.monte_carlo_error(levels).effective_draws.min()))
        ends = np.quantile(draws, levels, axis=0)
        return Combined(ends, draws.std(axis=0) / np.sqrt(ess), np.full(len(rows), ess), privacy, prior)
    mean, variance = distribution.combined(rows)
    weight = np.full(len(mean), 1.0 / len(mean))
    ends = np.array([mixture_quantile(weight, *pair, levels) for pair in zip(mean.T, variance.T, strict=True)])
    worth = effective_draws(mean)
    return Combined(ends.T, mean.std(axis=0) / np.sqrt(worth), worth, privacy, prior)
