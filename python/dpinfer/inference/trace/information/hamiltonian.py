"""Hamiltonian Monte Carlo for a smooth density whose scales are known beforehand."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray

LogDensity = Callable[[FloatArray], tuple[float, FloatArray]]

_TARGET_ACCEPTANCE = 0.8  # that of dual averaging (Hoffman and Gelman 2014), for few leapfrog steps
_FIRST_STEP = 0.1  # short: adapted during the warm-up
# Dual averaging of the step size (Hoffman and Gelman 2014, section 3.2): their gamma, t_0 and kappa.
_GAMMA, _DELAY, _DECAY = 0.05, 10.0, 0.75


@dataclass(frozen=True)
class HamiltonianDraws:
    """Draws of one chain after its warm-up."""

    positions: FloatArray  # (S, m)
    log_density: FloatArray  # (S,)
    acceptance: float  # mean probability of acceptance


def hamiltonian_draws(
    log_density: LogDensity,  # position (m,) to (log density, gradient (m,)); -inf outside of the domain
    start: FloatArray,  # (m,): of positive density
    *,
    # n_warmup, n_draws: dropped steps, in which the step size is found, and kept ones
    n_warmup: int,
    n_draws: int,
    longest: int,  # leapfrog steps are drawn uniformly between half of this and this
    rng: np.random.Generator,
    report: Callable[[int, int], object],  # gets (done, total) after every step
) -> HamiltonianDraws:
    """Draw from a density on R^m whose coordinates have standard deviations of about one.

    **Privacy.** Post-processing only; reads no records.

    Notes
    -----
    Neal (2011), "MCMC using Hamiltonian dynamics", with random trajectory lengths; the step size by dual averaging
    (Hoffman and Gelman 2014) towards an acceptance of 0.8.
    """
    position = start.copy()
    value, gradient = log_density(position)
    step, averaged, error = _FIRST_STEP, 0.0, 0.0
    centre = math.log(10.0 * _FIRST_STEP)
    positions, values = np.empty((n_draws, start.size)), np.empty(n_draws)
    accepted = 0.0
    for turn in range(n_warmup + n_draws):
        momentum = rng.standard_normal(start.size)
        energy = value - 0.5 * momentum @ momentum
        new, new_value, new_gradient = position, value, gradient
        for _ in range(int(rng.integers((longest + 1) // 2, longest + 1))):
            momentum = momentum + 0.5 * step * new_gradient
            new = new + step * momentum
            new_value, new_gradient = log_density(new)
            if not np.isfinite(new_value):
                break
            momentum = momentum + 0.5 * step * new_gradient
        with np.errstate(over="ignore"):  # of a diverged trajectory
            change = new_value - 0.5 * momentum @ momentum - energy
        probability = math.exp(min(0.0, float(change))) if np.isfinite(change) else 0.0
        if rng.random() < probability:
            position, value, gradient = new, new_value, new_gradient
        if turn < n_warmup:
            count = turn + 1
            error += (_TARGET_ACCEPTANCE - probability - error) / (count + _DELAY)
            log_step = centre - math.sqrt(count) / _GAMMA * error
            averaged += count**-_DECAY * (log_step - averaged)
            step = math.exp(averaged if count == n_warmup else log_step)
        else:
            positions[turn - n_warmup], values[turn - n_warmup] = position, value
            accepted += probability / n_draws
        report(turn + 1, n_warmup + n_draws)
    return HamiltonianDraws(positions, values, accepted)


def split_rhat(draws: FloatArray) -> FloatArray:
    """Return the potential scale reduction of the two halves of one chain, (m,) for draws (S, m).

    Notes
    -----
    Gelman et al. (2013), section 11.4.
    """
    half = draws.shape[0] // 2
    parts = np.stack([draws[:half], draws[-half:]])
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    between = parts.mean(axis=1).var(axis=0, ddof=1)
    return np.asarray(np.sqrt((half - 1.0) / half + between / np.where(within > 0.0, within, np.inf)))
