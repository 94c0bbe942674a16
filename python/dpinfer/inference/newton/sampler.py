"""Markov chains over second moments, weights and noise variance, many side by side.

A step is (i) Hamiltonian Monte Carlo on the second moments with the weights integrated out at slopes that stay fixed,
(ii) an exact draw of the weights, (iii) a second acceptance of both with the slopes that they imply (delayed
acceptance, Christen and Fox 2005), (iv) Metropolis steps on log sigma, (v) an exact draw of the concentration.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer.inference.newton.matrices import cholesky_factors, transposed
from dpinfer.inference.newton.matrix_prior import FLATTEST, POWER, MatrixState
from dpinfer.inference.newton.target import (
    LeapfrogPath,
    MomentRelease,
    MomentsTarget,
    data_precision,
    draw_optimum,
    weights_given,
)
from dpinfer.inference.newton.trace_model import Linearised, Trace, TraceModel

__all__ = ["Draws", "PosteriorSampler"]

FloatArray = npt.NDArray[np.float64]

_TARGET_ACCEPTANCE = 0.8
_SCALE_ACCEPTANCE = 0.4
_SCALE_MOVES = 4
_FLATTENED, _MOST_FLATTENED = 3, 8
_FIRST_LOGIT = 2.0
_KEPT_FLOOR = 0.05  # what flat starts keep of a direction that is not told from zero
_LEAST_FACTOR = 0.02
_FIRST_STEP = 2.0
_LEAPS, _FEW_COEF, _LEAPS_OF_MANY = 12, 24, 8


@dataclass(frozen=True)
class Draws:
    """Kept states of the chains.

    Parameters
    ----------
    mean : (S, B, d) array
        Of the whitened weights given the rest of a draw.
    precision : (S, B, d, d) array
    data_precision : (S, B, d, d) array
        What it would be without privacy noise.
    log_scale : (S, B) array
        log sigma.
    misfit : (S, B, k) array
        :meth:`Trace.misfit`.
    acceptance, second_acceptance, scale_acceptance : (B,) arrays
    """

    mean: FloatArray
    precision: FloatArray
    data_precision: FloatArray
    log_scale: FloatArray
    misfit: FloatArray
    acceptance: FloatArray
    second_acceptance: FloatArray
    scale_acceptance: FloatArray


def _first_states(released: MomentRelease, rng: np.random.Generator) -> MatrixState:
    """Return where the chains start: at the shrunken matrix, every second one without what is not told from zero.

    Chains move slowly between matrices with and without a flat direction, and more slowly the more there are of them:
    both kinds are begun with, and there are as many flattened directions as may be needed.
    """
    size, d = released.noisy.shape[:2]
    unresolved = [int(np.count_nonzero(~shrunken.resolved)) for shrunken in released.shrunken]
    most = _MOST_FLATTENED if d <= _FEW_COEF else _FLATTENED
    flattened = min(max(_FLATTENED, min(max(unresolved), most)), d - 1)
    factor, direction = released.start.copy(), rng.standard_normal((size, flattened, d))
    logit = np.full((size, flattened), _FIRST_LOGIT)
    for chain in range(1, size, 2):
        shrunken, flat = released.shrunken[chain], min(unresolved[chain], flattened)
        if not flat or d > _FEW_COEF:
            continue
        values, vectors = shrunken.eigenvalues + _KEPT_FLOOR * shrunken.floor, shrunken.eigenvectors
        level = float(np.mean(values))
        shrink = np.clip(np.sqrt(values[:flat] / level), _LEAST_FACTOR, 1.0 - _LEAST_FACTOR)
        factor[chain] = (vectors * np.sqrt(np.append(np.full(flat, level), values[flat:]))) @ vectors.T
        direction[chain, :flat] = np.sqrt(d) * vectors[:, :flat].T
        logit[chain, :flat] = special.logit(((shrink - FLATTEST) / (1.0 - FLATTEST)) ** (1.0 / POWER))
    return MatrixState.of(factor, direction, logit)


class _Chains:
    """The states of all chains and one step of them."""

    def __init__(self, released: MomentRelease, trace: Trace, log_scale: FloatArray, seed: int) -> None:
        size, d = log_scale.size, trace.n_coef
        self.rng = np.random.default_rng(seed)
        self.trace, self.target = trace, MomentsTarget(released, trace)
        self.state = _first_states(released, self.rng)
        self.concentration = np.full(size, 2.0 * d)
        self.flatness = np.mean(self.state.logit, axis=1) if d > 1 else np.full(size, _FIRST_LOGIT)
        self.log_scale = log_scale
        self.optimum = np.asarray(trace.positions[:, -1])
        self.excess = trace.excess(self.state.moments, self.optimum)
        # In a factor of size f the matrix's error is one of stddev / (2 f); a leap is a share of it that falls with d.
        size_of_factor = np.sqrt(np.einsum("bij,bij->b", released.start, released.start) / d)
        self.step = np.clip(min(0.6, _FIRST_STEP / np.sqrt(d)) * released.stddev / (2.0 * size_of_factor), 1e-5, 0.1)
        self.ratio = np.clip(0.3 / released.stddev, 1.0, 30.0)
        self.scale_step = np.full(size, 0.05)

    def move(self, n_leaps: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Make one step; return the acceptance probabilities of its three parts, (B,) each."""
        linear = self.trace.linearised(self.log_scale, self.excess)
        proposal, accepted = self._hamiltonian(linear, n_leaps)
        moments = proposal.moments
        optimum = draw_optimum(moments, linear, self.trace, self.rng)
        second = np.ones(accepted.size)
        if isinstance(self.trace, TraceModel):
            ratio = self._surplus(self.trace, moments, optimum)
            ratio = ratio - self._surplus(self.trace, self.state.moments, self.optimum)
            second = np.exp(np.minimum(0.0, np.where(np.isfinite(ratio), ratio, -np.inf)))
        taken = self.rng.uniform(size=second.size) < second
        self.state = self.state.where(taken, proposal)
        self.optimum = np.where(taken[:, None], optimum, self.optimum)
        scale = self._move_scale(self.trace) if isinstance(self.trace, TraceModel) else np.ones(second.size)
        self.concentration = self.target.prior.draw_concentration(self.state, self.rng)
        self.flatness = self.target.prior.draw_flatness(self.state, self.rng)
        return accepted, second, scale

    def _surplus(self, trace: TraceModel, moments: FloatArray, optimum: FloatArray) -> FloatArray:
        """Return the log of the density over that with fixed slopes, (B,)."""
        products = trace.products(moments, optimum)
        value = trace.log_scores(products, self.log_scale, products.excess, self.excess)
        value = value - trace.log_scores(products, self.log_scale, self.excess, self.excess)
        return np.asarray(value + trace.log_scales(self.log_scale, products.excess))

    def _hamiltonian(self, linear: Linearised, n_leaps: int) -> tuple[MatrixState, FloatArray]:
        path = LeapfrogPath(
            self.rng.standard_normal(self.state.points.shape),
            self.step * self.rng.uniform(0.7, 1.1, size=self.step.size),
            self.ratio,
            n_leaps,
        )
        point, change = self.target.leapfrog(self.state, (self.concentration, self.flatness), linear, path)
        accepted = np.exp(np.minimum(0.0, change))
        return self.state.where(self.rng.uniform(size=accepted.size) < accepted, point), accepted

    def _move_scale(self, trace: TraceModel) -> FloatArray:
        density = _ScaleDensity(trace, self.state.moments, self.optimum, self.excess)
        current = density(self.log_scale)
        rate = np.zeros(current.size)
        for _ in range(_SCALE_MOVES):
            proposed = self.log_scale + self.scale_step * self.rng.standard_normal(current.size)
            value = density(proposed)
            change = np.where(np.isfinite(value), value - current, -np.inf)
            taken = np.log(self.rng.uniform(size=current.size)) < change
            self.log_scale = np.where(taken, proposed, self.log_scale)
            current = np.where(taken, value, current)
            rate += np.exp(np.minimum(0.0, change)) / _SCALE_MOVES
        return rate

    def adapt(self, rates: tuple[FloatArray, FloatArray, FloatArray], gain: float) -> None:
        """Adapt the steps and the slopes that stay fixed; only before draws are kept."""
        self.step = self.step * np.exp(gain * (rates[0] - _TARGET_ACCEPTANCE))
        self.scale_step = self.scale_step * np.exp(gain * (rates[2] - _SCALE_ACCEPTANCE))
        own = self.trace.excess(self.state.moments, self.optimum)
        tiny = 1e-12 * np.exp(2.0 * self.log_scale)[:, None]
        mixed = (1.0 - gain) * np.log(self.excess + tiny) + gain * np.log(own + tiny)
        self.excess = np.exp(mixed)


class _ScaleDensity:
    """log p(log sigma | M, u*, releases) up to a constant, at any number of points.

    With M = L L' and L' Q L = V diag(values) V', the prior covariance v Q + kappa**2 M^-1 of u* is
    L^-T V diag(v values + kappa**2) V' L^-1.
    """

    def __init__(self, trace: TraceModel, moments: FloatArray, optimum: FloatArray, known: FloatArray) -> None:
        self._trace, self._known = trace, known
        self._products = trace.products(moments, optimum)
        root = cholesky_factors(moments)
        self._values, vectors = np.linalg.eigh(transposed(root) @ trace.prior_covariance @ root)
        rotated = transposed(vectors) @ (transposed(root) @ optimum[..., None])
        self._squares = np.square(rotated[..., 0])

    def __call__(self, log_scale: FloatArray) -> FloatArray:
        """Return the log density, (B,), of one point for each chain."""
        trace, products = self._trace, self._products
        value = trace.log_scale_prior.log_density(log_scale) + trace.log_scales(log_scale, products.excess)
        value = value + trace.log_scores(products, log_scale, products.excess, self._known)
        spread = np.sqrt(np.exp(2.0 * log_scale) + self._known[:, -1])
        variance = trace.prior_variance(log_scale)[:, None] * self._values + trace.sampling(spread)[:, None]
        return np.asarray(value - 0.5 * np.sum(np.log(variance) + self._squares / variance, axis=1))


class PosteriorSampler:
    """The chains of a batch: a warm-up, then as many draws as are asked for, at any number of times.

    Parameters
    ----------
    released, trace
        Of B chains.
    log_scale : (B,) array
        Where log sigma starts.
    seed : int
    """

    def __init__(self, released: MomentRelease, trace: Trace, *, log_scale: FloatArray, seed: int) -> None:
        self._chains = _Chains(released, trace, log_scale, seed)
        self._trace = trace
        self._n_leaps = _LEAPS if trace.n_coef <= _FEW_COEF else _LEAPS_OF_MANY

    @property
    def known_excess(self) -> FloatArray:
        """The squared errors of the predictor, (B, T), at which slopes are fixed and model errors taken."""
        return self._chains.excess

    def warm_up(self, n_steps: int, gains: tuple[float, float] = (0.25, 0.08)) -> None:
        """Adapt, and forget the start.

        Parameters
        ----------
        n_steps : int
        gains : pair of float
            How far a step moves what is adapted, in the first and in the second half.
        """
        for step in range(n_steps):
            found = self._chains.move(self._n_leaps)
            self._chains.adapt(found, gains[2 * step >= n_steps])

    def draw(self, n_steps: int) -> Draws:
        """Make steps and keep each."""
        chains, trace = self._chains, self._trace
        size, d = chains.log_scale.size, trace.n_coef
        mean, precision = np.empty((n_steps, size, d)), np.empty((n_steps, size, d, d))
        data = np.empty((n_steps, size, d, d))
        scales, misfit = np.empty((n_steps, size)), np.empty((n_steps, size, trace.misfit_sizes.size))
        rates = np.zeros((3, size))
        for row in range(n_steps):
            rates += np.stack(chains.move(self._n_leaps)) / n_steps
            moments = chains.state.moments
            linear = trace.linearised(chains.log_scale, trace.excess(moments, chains.optimum))
            mean[row], precision[row] = weights_given(moments, linear, trace)
            data[row] = data_precision(moments, linear, trace)
            scales[row] = chains.log_scale
            misfit[row] = trace.misfit(moments, chains.optimum, chains.log_scale)
        return Draws(mean, precision, data, scales, misfit, *rates)
