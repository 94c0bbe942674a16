"""Chains until the Monte Carlo error of what will be printed is small, and what is said of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpinfer._progress import resolve_progress
from dpinfer.errors import NumericalError
from dpinfer.inference.newton.monte_carlo import MonteCarloError
from dpinfer.inference.newton.sampler import Draws, PosteriorSampler
from dpinfer.inference.posterior.theta import DrawnTheta
from dpinfer.inference.request import PosteriorRequest

__all__ = ["ChainLengths", "DistributionOf", "SettledDraws", "draw_until_settled"]

DistributionOf = Callable[[Sequence[Draws]], tuple[DrawnTheta, MonteCarloError]]

_AIM, _LEAST_GROWTH, _MOST_GROWTH = 0.045, 1.3, 4.0
_DROPPED = 0.2  # of all steps after the warm-up
_LARGEST_ERROR, _UNTOLD = 0.05, 10.0
_HOPELESS_FROM = 0.1  # of a stage's steps: an error of fewer is no reason to give it up


@dataclass(frozen=True)
class ChainLengths:
    """How many chains, how many steps they adapt, and how many they keep then, at first and at most.

    A chain of many weights costs more and moves less: the weights given a draw of the second moments are a normal
    distribution already, and the more of them there are the less one draw of the matrix says.

    Parameters
    ----------
    chains, warm_up, kept, most : int
    thin : int
        Steps for each that is kept.
    then : ChainLengths, optional
        What takes over where these are too few.  A step of many chains of few weights costs little more than one of
        few chains.
    """

    chains: int
    warm_up: int
    kept: int
    most: int
    thin: int = 1
    then: "ChainLengths | None" = None

    @classmethod
    def of(cls, d: int) -> "ChainLengths":
        """Return the defaults for `d` weights."""
        few, some, many = 24, 64, 120
        if d <= few:
            return cls(8, 50, 20, 640, then=cls(32, 100, 20, 640, thin=16))
        if d <= many:
            # A draw holds two matrices: of more weights fewer are kept.
            return cls(4, 28, 16, 1280 if d <= some else 640, then=cls(8, 60, 20, 320, thin=8))
        return cls(3, 16, 10, 160)

    def fixed(self, n_samples: int) -> "ChainLengths":
        """Return what makes `n_samples` steps, no more of them kept than by default."""
        stage = self.then if self.then is not None and n_samples > self.most else self
        thin = math.ceil(n_samples / stage.most)
        kept = n_samples // thin
        return replace(stage, kept=kept, most=kept, thin=thin, then=None)


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
    begin: Callable[[int], tuple[PosteriorSampler, DistributionOf]],
    request: PosteriorRequest,
    lengths: ChainLengths,
) -> SettledDraws:
    """Draw until the error of both quantiles is below 5% of the posterior standard deviation.

    The chains go on for as long as the error so far says; the first fifth of their steps is always dropped.  Where more
    than `lengths` allows for would be needed, its next stage begins anew.

    Parameters
    ----------
    begin : callable
        Returns a sampler of a number of chains, and what makes a distribution of its draws.
    request : PosteriorRequest
        `n_samples` fixes the number of steps of each chain, `n_warmup` that of the warm-up.
    lengths : ChainLengths
        Where the request names none.

    Raises
    ------
    NumericalError
        If the error stays larger, unless `check_convergence` is False or `fallback` lets the words say it.
    """
    if request.n_samples is not None:
        lengths = lengths.fixed(request.n_samples)
    if request.n_warmup is not None:
        lengths = replace(lengths, warm_up=request.n_warmup)
    report = resolve_progress(bool(request.progress), "posterior")
    last = lengths.then or lengths
    total, done = last.most * last.thin, 0
    report(done, total)
    dropped = _DROPPED if request.n_samples is None else 0.0
    while True:
        found = _stage(begin, lengths, dropped, lambda steps: report(min(done + steps, total - 1), total))
        if found.settled or lengths.then is None:
            break
        lengths = lengths.then
    report(total, total)
    return _told(found, request)


@dataclass(frozen=True)
class _Stage:
    """What the chains of a stage have come to."""

    distribution: DrawnTheta
    error: MonteCarloError
    draws: Draws
    settled: bool


def _stage(
    begin: Callable[[int], tuple[PosteriorSampler, DistributionOf]],
    lengths: ChainLengths,
    dropped: float,
    report: Callable[[int], None],
) -> _Stage:
    """Run chains until they have settled, have made all their steps, or will need more of them."""
    sampler, distribution_of = begin(lengths.chains)
    sampler.warm_up(lengths.warm_up)
    drawn = [sampler.draw(lengths.kept, lengths.thin)]
    while True:
        kept = sum(draws.n_steps for draws in drawn)
        report(kept * lengths.thin)
        rest = _without_first(drawn, int(dropped * kept))
        distribution, error = distribution_of(rest)
        worst = float(np.max(error.quantile))
        # Errors of short chains are told too small: a share of their steps is still on the way from the start.
        settled = worst * (1.0 + _UNTOLD / (kept * lengths.thin)) < _LARGEST_ERROR
        needed = (worst / _AIM) ** 2 * kept
        hopeless = lengths.then is not None and needed > lengths.most and kept > _HOPELESS_FROM * lengths.most
        if settled or hopeless or kept >= lengths.most:
            return _Stage(distribution, error, Draws.joined(rest), settled)
        growth = float(np.clip(needed / kept, _LEAST_GROWTH, _MOST_GROWTH))
        drawn.append(sampler.draw(min(math.ceil(growth * kept), lengths.most) - kept, lengths.thin))


def _told(found: _Stage, request: PosteriorRequest) -> SettledDraws:
    """Return the draws with what is said of them, or raise if they are too few."""
    distribution, error, draws = found.distribution, found.error, found.draws
    worst = float(np.max(error.quantile))
    said = (
        f"Monte Carlo error of the 5% and 95% quantiles: at most {worst:.1%} of a posterior standard deviation "
        f"(means as exact as of {np.min(error.equivalent_draws):.0f} independent draws or more)"
    )
    if worst < _LARGEST_ERROR:
        return SettledDraws(distribution, error, f"{said}.", draws)
    if request.check_convergence and not request.fallback:
        raise NumericalError(f"{said}: ask for more n_samples, or pass check_convergence=False")
    return SettledDraws(distribution, error, f"{said}: more than {_LARGEST_ERROR:.0%}, ask for more n_samples.", draws)


def _without_first(drawn: Sequence[Draws], n_steps: int) -> list[Draws]:
    """Return what is left of consecutive draws without their first steps."""
    left = []
    for draws in drawn:
        cut = min(n_steps, draws.n_steps)
        n_steps -= cut
        if cut < draws.n_steps:
            left.append(draws.after(cut))
    return left
