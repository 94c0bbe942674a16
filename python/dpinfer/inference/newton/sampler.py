"""Markov chains over second moments, weights and noise variance, many side by side.

A step is (i) Hamiltonian Monte Carlo on the second moments with the weights integrated out at slopes and a noise
variance that stay fixed, between Metropolis steps on what is flattened; (ii) an exact draw of the weights; (iii) a
second acceptance of both with the slopes that they imply and the noise variance integrated out (delayed acceptance,
Christen and Fox 2005); (iv) a draw of log sigma.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer.inference.newton.matrices import FactoredMoments, cholesky_factors, transposed
from dpinfer.inference.newton.matrix_prior import FLATTEST, POWER, MatrixState
from dpinfer.inference.newton.scale_law import ScaleLaw
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
_FLATTENED, _MOST_FLATTENED = 3, 8
_FIRST_LOGIT = 2.0
_KEPT_FLOOR = 0.05  # what flat starts keep of a direction that is not told from zero
_LEAST_FACTOR = 0.02
_FIRST_STEP = 0.4
_STIFF = 2.0  # times the released matrix's own precision
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
    acceptance, second_acceptance : (B,) arrays
    """

    mean: FloatArray
    precision: FloatArray
    data_precision: FloatArray
    log_scale: FloatArray
    misfit: FloatArray
    acceptance: FloatArray
    second_acceptance: FloatArray

    @property
    def n_steps(self) -> int:
        """S."""
        return len(self.mean)

    def after(self, n_steps: int) -> "Draws":
        """Return the same without the first `n_steps`."""
        return dataclasses.replace(self, **{name: getattr(self, name)[n_steps:] for name in _BY_STEP})

    @staticmethod
    def joined(parts: Sequence["Draws"]) -> "Draws":
        """Return consecutive draws of the same chains as one."""
        if len(parts) == 1:
            return parts[0]
        steps = [part.n_steps for part in parts]
        by_step = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _BY_STEP}
        rates = {name: np.average([getattr(part, name) for part in parts], axis=0, weights=steps) for name in _RATES}
        return Draws(**by_step, **rates)


_BY_STEP = ("mean", "precision", "data_precision", "log_scale", "misfit")
_RATES = ("acceptance", "second_acceptance")


def _basis(released: MomentRelease, linear: Linearised) -> FloatArray:
    """Return orthogonal coordinates (B, d, d) in which a triangular factor is easily sampled, stiffest first.

    First what the scores tell better than the released matrix, then its eigenvectors from the largest eigenvalue on.
    """
    d = released.noisy.shape[1]
    bases = []
    for chain, shrunken in enumerate(released.shrunken):
        moved = np.sqrt(linear.precision[chain])[:, None] * linear.moved[chain] * released.stddev[chain]
        values, vectors = np.linalg.eigh(moved.T @ moved)
        stiff = vectors[:, ::-1][:, : np.count_nonzero(values > _STIFF)]
        away = np.eye(d) - stiff @ stiff.T
        rest = np.linalg.eigh(away @ shrunken.matrix @ away)[1][:, ::-1]
        bases.append(np.linalg.qr(np.hstack((stiff, rest))[:, :d])[0])
    return np.stack(bases)


def _first_states(released: MomentRelease, rng: np.random.Generator) -> MatrixState:
    """Return where the chains start: at the shrunken matrix, every second one without what is not told from zero.

    Chains move slowly between matrices with and without a flat direction, and more slowly the more there are of them:
    both kinds are begun with, and there are as many flattened directions as may be needed.
    """
    size, d = released.noisy.shape[:2]
    unresolved = [int(np.count_nonzero(~shrunken.resolved)) for shrunken in released.shrunken]
    most = _MOST_FLATTENED if d <= _FEW_COEF else _FLATTENED
    flattened = min(max(_FLATTENED, min(max(unresolved), most)), d - 1)
    factor = cholesky_factors(np.stack([shrunken.matrix for shrunken in released.shrunken]))
    direction = rng.standard_normal((size, flattened, d))
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
    return MatrixState.of(cholesky_factors(factor @ transposed(factor)), direction, logit)


class _Chains:
    """The states of all chains and one step of them."""

    def __init__(self, released: MomentRelease, trace: Trace, log_scale: FloatArray, seed: int, n_threads: int) -> None:
        size = log_scale.size
        self.rng = np.random.default_rng(seed)
        first = np.stack([shrunken.matrix for shrunken in released.shrunken])
        linear = trace.linearised(log_scale, trace.excess(first, np.asarray(trace.positions[:, -1])))
        self.basis = _basis(released, linear)
        released, trace = released.rotated(self.basis), trace.rotated(self.basis)
        self.trace, self.target = trace, MomentsTarget(released, trace, n_threads)
        self.state = _first_states(released, self.rng)
        self.log_scale = log_scale
        self.optimum = np.asarray(trace.positions[:, -1])
        self.excess = trace.excess(self.state.moments, self.optimum)
        self.step = np.full(size, _FIRST_STEP)
        self.reference = log_scale
        self.linear: Linearised
        self.law: ScaleLaw
        self._hold()
        self.scale = self.target.scales(self.state, self.linear)

    def move(self, n_leaps: int) -> tuple[FloatArray, FloatArray]:
        """Make one step; return the acceptance probabilities of its two parts, (B,) each."""
        path = LeapfrogPath(
            self.rng.standard_normal(self.state.points.shape),
            self.step * self.rng.uniform(0.7, 1.1, size=self.step.size),
            self.scale,
            n_leaps,
        )
        proposal, accepted = self.target.step(self.state, self.linear, path, self.rng)
        moments = FactoredMoments.of(proposal.moments)
        optimum = draw_optimum(moments, self.linear, self.trace, self.rng)
        second = np.where(moments.regular, 1.0, 0.0)
        if isinstance(self.trace, TraceModel):
            law = ScaleLaw.given(self.trace, moments, optimum, self.excess, self.reference)
            ratio = law.surplus - self.law.surplus
            second = second * np.exp(np.minimum(0.0, np.where(np.isfinite(ratio), ratio, -np.inf)))
        taken = self.rng.uniform(size=second.size) < second
        self.state = self.state.where(taken, proposal)
        self.optimum = np.where(taken[:, None], optimum, self.optimum)
        if isinstance(self.trace, TraceModel):
            self.law = self.law.where(taken, law)
            self.log_scale = self.law.draw(self.rng)
        return accepted, second

    def adapt(self, rate: FloatArray, gain: float) -> None:
        """Adapt the steps, and where slopes and noise variance are held; only before draws are kept."""
        self.step = self.step * np.exp(gain * (rate - _TARGET_ACCEPTANCE))
        own = self.trace.excess(self.state.moments, self.optimum)
        tiny = 1e-12 * np.exp(2.0 * self.log_scale)[:, None]
        mixed = (1.0 - gain) * np.log(self.excess + tiny) + gain * np.log(own + tiny)
        self.excess = np.exp(mixed)
        self.reference = (1.0 - gain) * self.reference + gain * self.log_scale
        self._hold()
        scale = self.target.scales(self.state, self.linear)
        self.scale = np.power(self.scale, 1.0 - gain) * np.power(scale, gain)

    def _hold(self) -> None:
        """Linearise the trace at the excess and the noise variance that are held."""
        self.linear = self.trace.linearised(self.reference, self.excess)
        if isinstance(self.trace, TraceModel):
            moments = FactoredMoments.of(self.state.moments)
            self.law = ScaleLaw.given(self.trace, moments, self.optimum, self.excess, self.reference)


class PosteriorSampler:
    """The chains of a batch: a warm-up, then as many draws as are asked for, at any number of times.

    Parameters
    ----------
    released, trace
        Of B chains.
    log_scale : (B,) array
        Where log sigma starts.
    seed, n_threads : int
    """

    def __init__(
        self, released: MomentRelease, trace: Trace, *, log_scale: FloatArray, seed: int, n_threads: int = 0
    ) -> None:
        self._chains = _Chains(released, trace, log_scale, seed, n_threads)
        self._trace = self._chains.trace
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
            rate, _ = self._chains.move(self._n_leaps)
            self._chains.adapt(rate, gains[2 * step >= n_steps])

    def draw(self, n_steps: int, thin: int = 1) -> Draws:
        """Keep `n_steps` steps, the last one of every `thin`."""
        chains, trace = self._chains, self._trace
        size, d = chains.log_scale.size, trace.n_coef
        mean, precision = np.empty((n_steps, size, d)), np.empty((n_steps, size, d, d))
        data = np.empty((n_steps, size, d, d))
        scales, misfit = np.empty((n_steps, size)), np.empty((n_steps, size, trace.misfit_sizes.size))
        rates = np.zeros((2, size))
        for row in range(n_steps):
            for _ in range(thin):
                rates += np.stack(chains.move(self._n_leaps)) / (n_steps * thin)
            moments = chains.state.moments
            linear = trace.linearised(chains.log_scale, trace.excess(moments, chains.optimum))
            mean[row], precision[row] = weights_given(moments, linear, trace)
            data[row] = data_precision(moments, linear, trace)
            scales[row] = chains.log_scale
            misfit[row] = trace.misfit(moments, chains.optimum, chains.log_scale)
        basis = chains.basis
        mean = np.einsum("bij,sbj->sbi", basis, mean)
        precision, data = (basis @ array @ transposed(basis) for array in (precision, data))
        return Draws(mean, precision, data, scales, misfit, *rates)
