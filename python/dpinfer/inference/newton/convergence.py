"""Chains until the Monte Carlo error of what will be printed is small, and what is said of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpinfer.errors import NumericalError
from dpinfer.inference.newton.monte_carlo import MonteCarloError
from dpinfer.inference.newton.sampler import Draws, PosteriorSampler
from dpinfer.inference.posterior.theta import DrawnTheta
from dpinfer.inference.request import PosteriorRequest

__all__ = ["ChainLengths", "SettledDraws", "draw_until_settled"]

_MOST_ROUNDS = 7
_LATER_GAINS = (0.08, 0.03)
_LARGEST_ERROR = 0.05


@dataclass(frozen=True)
class ChainLengths:
    """How many chains, how many steps they drop and how many they keep at first.

    A chain of many weights costs more and moves less: the weights given a draw of the second moments are a normal
    distribution already, and the more of them there are the less one draw of the matrix says.
    """

    chains: int
    warm_up: int
    kept: int

    @classmethod
    def of(cls, d: int) -> "ChainLengths":
        """Return the defaults for `d` weights."""
        few, many = 24, 120
        if d <= few:
            return cls(chains=8, warm_up=50, kept=20)
        return cls(chains=4, warm_up=24, kept=10) if d <= many else cls(chains=3, warm_up=16, kept=10)


@dataclass(frozen=True)
class SettledDraws:
    """A posterior distribution, its Monte Carlo error, and both in words.

    Parameters
    ----------
    distribution : DrawnTheta
    error : MonteCarloError
    words : str
    draws : Draws
        The last round.
    """

    distribution: DrawnTheta
    error: MonteCarloError
    words: str
    draws: Draws


def draw_until_settled(
    sampler: PosteriorSampler,
    distribution_of: Callable[[Sequence[Draws]], tuple[DrawnTheta, MonteCarloError]],
    request: PosteriorRequest,
    lengths: ChainLengths,
) -> SettledDraws:
    """Draw until the error of both quantiles is below 5% of the posterior standard deviation.

    After a round whose error is larger the chains adapt for as long again, and the next is twice as long; there are
    seven at most.

    Parameters
    ----------
    sampler : PosteriorSampler
    distribution_of : callable
        Makes a distribution of all draws so far.
    request : PosteriorRequest
        `n_samples` fixes the number of steps, `n_warmup` that of the warm-up.
    lengths : ChainLengths
        Where the request names none.

    Raises
    ------
    NumericalError
        If the error stays larger, unless `check_convergence` is False or `fallback` lets the words say it.
    """
    sampler.warm_up(lengths.warm_up if request.n_warmup is None else request.n_warmup)
    kept = lengths.kept if request.n_samples is None else request.n_samples
    for round_ in range(_MOST_ROUNDS if request.n_samples is None else 1):
        draws = sampler.draw(kept << round_)
        distribution, error = distribution_of([draws])
        if np.max(error.quantile) < _LARGEST_ERROR:
            break
        if request.n_samples is None and round_ < _MOST_ROUNDS - 1:
            sampler.warm_up(kept << round_, _LATER_GAINS)
    worst = float(np.max(error.quantile))
    said = (
        f"Monte Carlo error of the 5% and 95% quantiles: at most {worst:.1%} of a posterior standard deviation "
        f"(effective draws: at least {np.min(error.ess):.0f})"
    )
    if worst < _LARGEST_ERROR:
        return SettledDraws(distribution, error, f"{said}.", draws)
    if request.check_convergence and not request.fallback:
        raise NumericalError(f"{said}: ask for more n_samples, or pass check_convergence=False")
    words = f"{said}: more than {_LARGEST_ERROR:.0%}, ask for more n_samples."
    return SettledDraws(distribution, error, words, draws)
