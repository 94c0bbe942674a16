"""Weights given a release of a private Newton run by chains, in place of independent proposals: the judge.

The density of weights, spread and centre is written anew, with whole matrices (docs/derivations/private-newton.md).
"""

from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton.moments_law import MomentsLaw
from dpinfer.lab.comparison.chains import hamiltonian_draws, nuts_draws

N_CHAINS, N_STEPS = 256, 500  # at a time, and after learning: seconds a release
_PART = 4096  # draws of matrices at a time: memory


def sampled_weights(
    law: MomentsLaw,
    turn: FloatArray,  # (d, d): basis of the law of errors, in the release's eigenvectors
    seen: FloatArray,  # (d,): precision of M along it, by the steps
    sampler: str = "chains",  # or "long", eight times as many draws, or "nuts" (NumPyro)
    *,
    definite: bool = True,  # whether M is held positive definite
) -> tuple[list[FloatArray], float]:
    """Return weights (S, d) of groups of chains in the release's eigenvectors, and the least acceptance of a chain."""
    rng, factor = np.random.default_rng(0), law.basis.T @ law.scores.prior_factor
    numbers = (law.scores.noise, law.scores.sampling, law.noise, *np.log(law.spreads[[0, -1]]), *law.ends)
    ends, said = np.array(numbers[3:]).reshape(2, 2), np.zeros_like(turn)
    if law.scores.steps is not None:
        said = turn.T @ law.basis.T @ law.scores.steps[1] @ law.basis @ turn * (seen > 0.0)
    whole = (turn.T * law.eigenvalues) @ turn
    arguments = law.eigenvalues, turn, whole, seen, said + said.T, law.score, law.position, factor, numbers
    values = np.maximum(law.eigenvalues, 0.1 * np.sqrt(law.noise))
    noise = law.scores.noise + law.scores.sampling * values
    root = np.linalg.inv(np.linalg.cholesky(np.diag(values**2 / noise) + law.prior_precision)).T
    mean = root @ (root.T @ (values / noise * (law.score + values * law.position)))
    u = mean + 1.5 * rng.standard_normal((N_CHAINS, len(values))) @ root.T
    spread = rng.choice(law.spreads, size=N_CHAINS, p=law.weight / law.weight.sum())
    centre = rng.normal(law.eigenvalues.mean(), 1.5 * np.sqrt((spread**2 + law.noise) / len(values)))
    share = np.clip((np.column_stack([np.log(spread), centre]) - ends[:, 0]) / (ends[:, 1] - ends[:, 0]), 0.01, 0.99)
    start = np.hstack([np.log(share / (1.0 - share)), np.linalg.solve(factor, u.T).T])
    if sampler == "nuts":
        groups, (drawn, moving) = 4, nuts_draws(_log_density, arguments, start, 4 * N_STEPS)
    else:
        times = 8 if sampler == "long" else 1
        groups, (drawn, moving) = 8, hamiltonian_draws(_log_density, arguments, start, times * N_STEPS)
    states = drawn.reshape(len(drawn), groups, -1, start.shape[1]).swapaxes(0, 1).reshape(groups, -1, start.shape[1])
    some = [x[_is_definite(x, arguments, rng)] if definite else x for x in states]
    return [x[:, 2:] @ factor.T for x in some], float(moving.min())


def _is_definite(states: FloatArray, arguments: tuple[Any, ...], rng: np.random.Generator) -> FloatArray:
    """Return whether M, drawn given weights, t and c, is positive definite, (S,)."""
    found = []
    for x in np.array_split(states, max(len(states) // _PART, 1)):
        variance, mean, noise, covariance, missed, error = (np.asarray(part) for part in _law_of(x, *arguments)[:6])
        half = np.sqrt(0.5 * variance) * rng.standard_normal(mean.shape)
        missed = missed - np.einsum("sij,sj->si", half + half.swapaxes(1, 2), error)
        missed -= np.sqrt(noise) * rng.standard_normal(error.shape)
        half += 0.5 * mean + variance * np.linalg.solve(covariance, missed[..., None]) * error[:, None]
        found.append(np.linalg.eigvalsh(half + half.swapaxes(1, 2))[:, 0] > 0.0)
    return np.concatenate(found)


def _law_of(x: Any, eig: Any, turn: Any, whole: Any, seen: Any, said: Any, *others: Any) -> tuple[Any, ...]:
    """Return variances and means of M's entries given t and c, the score's noise, covariance and residual, the error.

    And t's log, and the log density of the release and of the steps given t and c.
    """
    import jax

    xp, (score, position, factor, (noise, sampling, tau2, *ends)) = jax.numpy, others
    limits = zip(ends[::2], ends[1::2], jax.nn.sigmoid(x[:, :2]).T, strict=True)
    log_spread, centre = (low + (high - low) * part for low, high, part in limits)
    error, total = (x[:, 2:] @ factor.T - position) @ turn, xp.exp(2.0 * log_spread) + tau2
    kept = 1.0 / (1.0 + tau2 * xp.exp(-2.0 * log_spread))[:, None]
    middle, deviation = xp.clip(eig.mean(), *ends[2:]), xp.sqrt(kept * tau2)
    values = middle + kept * (eig - middle)
    log_tail = -0.5 * (values / deviation) ** 2 - jax.scipy.special.log_ndtr(values / deviation)
    values = (values + deviation * xp.exp(log_tail) / np.sqrt(2 * np.pi)) @ turn**2
    before = (2.0 / (kept * tau2))[..., None]
    usual = kept[..., None] * whole + ((1.0 - kept) * centre[:, None])[..., None] * xp.eye(eig.size)
    variance = 1.0 / (before + seen + seen[:, None])
    mean = variance * (before * usual + said)
    logs, square = xp.log(before * variance), mean**2 / variance - before * usual**2
    told = 0.25 * (xp.sum(logs + square, axis=(1, 2)) + xp.trace(logs, axis1=1, axis2=2))
    told -= 0.25 * eig.size * (eig.size + 1) * xp.log(total)
    told -= 0.5 * xp.sum((eig - centre[:, None]) ** 2, axis=1) / total
    own, missed = noise + sampling * values, score @ turn - xp.einsum("sij,sj->si", mean, error)
    covariance = (own + xp.einsum("sij,sj->si", variance, error**2))[..., None] * xp.eye(eig.size)
    covariance += variance * error[..., None] * error[:, None]
    return variance, mean, own, covariance, missed, error, log_spread, told


def _log_density(x: Any, *arguments: Any) -> Any:
    """Return the log density of t and c, on the whole line, and the weights over their prior, (S, d + 2)."""
    import jax

    xp, share = jax.numpy, jax.nn.sigmoid(x[:, :2])
    _, _, _, covariance, missed, _, log_spread, told = _law_of(x, *arguments)
    value = xp.sum(xp.log(share * (1.0 - share)), axis=1) - 0.5 * xp.sum(x[:, 2:] ** 2, axis=1) + log_spread + told
    root = xp.linalg.cholesky(covariance)
    square = xp.sum(jax.scipy.linalg.solve_triangular(root, missed[..., None], lower=True) ** 2, axis=(1, 2))
    return value - xp.sum(xp.log(xp.diagonal(root, axis1=1, axis2=2)), axis=1) - 0.5 * square
