"""Chains until the Monte Carlo error of what will be printed is small, and what is said of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpinfer.errors import NumericalError
from dpinfer.inference.newton.monte_carlo import MonteCarloError
from dpinfer.inference.newton.sampler import Draws, PosteriorSampler
from dpinfer.inference.posterior.theta import DrawnTheta
from dpinfer.inference.request import PosteriorRequest

__all__ = ["SettledDraws", "draw_until_settled"]

_KEPT, _MOST_ROUNDS = 40, 8
_LARGEST_ERROR = 0.05


@dataclass(frozen=True)
class SettledDraws:
    """A posterior distribution, its Monte Carlo error, and both in words.

    Parameters
    ----------
    distribution : DrawnTheta
    error : MonteCarloError
    words : str
    """

    distribution: DrawnTheta
    error: MonteCarloError
    words: str


def draw_until_settled(
    sampler: PosteriorSampler,
    distribution_of: Callable[[Sequence[Draws]], tuple[DrawnTheta, MonteCarloError]],
    request: PosteriorRequest,
    *,
    warm_up: int,
) -> SettledDraws:
    """Draw until the error of both quantiles is below 5% of the posterior standard deviation, 320 steps at most.

    Parameters
    ----------
    sampler : PosteriorSampler
    distribution_of : callable
        Makes a distribution of all draws so far.
    request : PosteriorRequest
        `n_samples` fixes the number of steps, `n_warmup` that of the warm-up.
    warm_up : int
        Of no `n_warmup`.

    Raises
    ------
    NumericalError
        If the error stays larger, unless `check_convergence` is False or `fallback` lets the words say it.
    """
    sampler.warm_up(warm_up if request.n_warmup is None else request.n_warmup)
    kept = _KEPT if request.n_samples is None else request.n_samples
    found: list[Draws] = []
    for _ in range(_MOST_ROUNDS if request.n_samples is None else 1):
        found.append(sampler.draw(kept))
        distribution, error = distribution_of(found)
        if np.max(error.quantile) < _LARGEST_ERROR:
            break
    worst = float(np.max(error.quantile))
    said = (
        f"Monte Carlo error of the 5% and 95% quantiles: at most {worst:.1%} of a posterior standard deviation "
        f"(effective draws: at least {np.min(error.ess):.0f})"
    )
    if worst < _LARGEST_ERROR:
        return SettledDraws(distribution, error, f"{said}.")
    if request.check_convergence and not request.fallback:
        raise NumericalError(f"{said}: ask for more n_samples, or pass check_convergence=False")
    return SettledDraws(distribution, error, f"{said}: more than {_LARGEST_ERROR:.0%}, ask for more n_samples.")
