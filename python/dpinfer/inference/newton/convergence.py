"""Chains until the Monte Carlo error of what will be printed is small, and what is said of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpinfer._progress import resolve_progress
from dpinfer.errors import NumericalError
from dpinfer.inference.newton.monte_carlo import MonteCarloError
from dpinfer.inference.newton.sampler import Draws, PosteriorSampler
from dpinfer.inference.posterior.theta import DrawnTheta
from dpinfer.inference.request import PosteriorRequest

__all__ = ["ChainLengths", "SettledDraws", "draw_until_settled"]

_AIM, _LEAST_GROWTH, _MOST_GROWTH = 0.045, 1.3, 4.0
_DROPPED = 0.2  # of all steps after the warm-up
_LARGEST_ERROR, _UNTOLD = 0.05, 10.0


@dataclass(frozen=True)
class ChainLengths:
    """How many chains, how many steps they adapt, and how many they make then, at first and at most.

    A chain of many weights costs more and moves less: the weights given a draw of the second moments are a normal
    distribution already, and the more of them there are the less one draw of the matrix says.
    """

    chains: int
    warm_up: int
    kept: int
    most: int

    @classmethod
    def of(cls, d: int) -> "ChainLengths":
        """Return the defaults for `d` weights."""
        few, many = 24, 120
        if d <= few:
            return cls(chains=8, warm_up=50, kept=20, most=2560)
        if d <= many:
            return cls(chains=4, warm_up=28, kept=16, most=640)
        return cls(chains=3, warm_up=16, kept=10, most=160)


@dataclass(frozen=True)
class SettledDraws:
    """A posterior distribution, its Monte Carlo error, and both in words.

    Parameters
    ----------
    distribution : DrawnTheta
    error : MonteCarloError
    words : str
    draws : Draws
        Those that the distribution is made of.
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

    The chains go on for as long as the error so far says; the first fifth of their steps is always dropped.

    Parameters
    ----------
    sampler : PosteriorSampler
    distribution_of : callable
        Makes a distribution of draws.
    request : PosteriorRequest
        `n_samples` fixes the number of steps, `n_warmup` that of the warm-up.
    lengths : ChainLengths
        Where the request names none.

    Raises
    ------
    NumericalError
        If the error stays larger, unless `check_convergence` is False or `fallback` lets the words say it.
    """
    report = resolve_progress(bool(request.progress), "posterior")
    most = lengths.most if request.n_samples is None else request.n_samples
    report(0, most)
    sampler.warm_up(lengths.warm_up if request.n_warmup is None else request.n_warmup)
    drawn = [sampler.draw(lengths.kept if request.n_samples is None else request.n_samples)]
    while True:
        steps = sum(draws.n_steps for draws in drawn)
        report(min(steps, most - 1), most)
        kept = _without_first(drawn, int(_DROPPED * steps) if request.n_samples is None else 0)
        distribution, error = distribution_of(kept)
        worst = float(np.max(error.quantile))
        # Errors of short chains are told too small: a share of their steps is still on the way from the start.
        if worst * (1.0 + _UNTOLD / steps) < _LARGEST_ERROR or steps >= most:
            break
        growth = float(np.clip((worst / _AIM) ** 2, _LEAST_GROWTH, _MOST_GROWTH))
        drawn.append(sampler.draw(min(math.ceil(growth * steps), most) - steps))
    report(most, most)
    said = (
        f"Monte Carlo error of the 5% and 95% quantiles: at most {worst:.1%} of a posterior standard deviation "
        f"(means as exact as of {np.min(error.equivalent_draws):.0f} independent draws or more)"
    )
    if worst < _LARGEST_ERROR:
        return SettledDraws(distribution, error, f"{said}.", Draws.joined(kept))
    if request.check_convergence and not request.fallback:
        raise NumericalError(f"{said}: ask for more n_samples, or pass check_convergence=False")
    words = f"{said}: more than {_LARGEST_ERROR:.0%}, ask for more n_samples."
    return SettledDraws(distribution, error, words, Draws.joined(kept))


def _without_first(drawn: Sequence[Draws], n_steps: int) -> list[Draws]:
    """Return what is left of consecutive draws without their first steps."""
    left = []
    for draws in drawn:
        cut = min(n_steps, draws.n_steps)
        n_steps -= cut
        if cut < draws.n_steps:
            left.append(draws.after(cut))
    return left
