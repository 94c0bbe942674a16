"""Weights with unknown prior scales, given a release: groups, curves, and mostly small effects.

Given the scales, the weights are normal.  A scale of one block has its exact conditional law on a grid, all weights
integrated out (Rue, Martino and Chopin 2009); a pair of blocks with a correlation moves by Metropolis steps given the
effects and given the standardised effects in turn (Yu and Meng 2011); a horseshoe by the steps of Makalic and Schmidt
(2016).  Parallel chains run over draws of the matrices, given the weights where these say of them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from dpinfer._arrays import NEGLIGIBLE, FloatArray, IntArray
from dpinfer.inference.newton.likelihood import Likelihoods, ScoreLikelihoods, State

_CHAINS, _KEPT, _WARM_UP = 128, 4, 1  # of one scale, whose law is exact given a draw of the matrices: time
_FEWER, _WARMER = 4, 10  # chains, for as many more sweeps, and sweeps before, where a matrix follows its weights: time
_SLOW = 10  # times as many sweeps where effects are drawn between: time
_MOST_ENTRIES = 16_000_000  # of matrices in memory: 128 MB
_STEPS = 16  # Metropolis steps of a pair, each way: time
_STEP_SIZES = (math.log(0.03), 0.0)  # log of a step's length, drawn anew for each: no one length suits all scales; time
_NODES, _DEEP = 121, 18.0  # of the law of a scale, where its density is above e**-18 = 1.5e-8 of its largest
_LEAST, _MOST = math.log(1e-6), math.log(1e3)  # log of a scale over that of its prior: tolerance
_WIDEST = 8.0  # inverse tanh of a correlation: tolerance
_SCALES = 16  # draws of a scale for each state


@dataclass(frozen=True)
class ScalePrior:
    """Half-t prior of a standard deviation (Gelman 2006): half-normal where `df` is infinite."""

    scale: float
    df: float = 3.0

    def log_density(self, stddev: FloatArray) -> FloatArray:
        """Return the log density up to a constant, shaped as `stddev`."""
        square = np.square(stddev / self.scale)
        if math.isinf(self.df):
            return np.asarray(-0.5 * square)
        return np.asarray(-0.5 * (self.df + 1.0) * np.log1p(square / self.df))

    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return draws, (size,)."""
        found = rng.standard_normal(size) if math.isinf(self.df) else rng.standard_t(self.df, size)
        return self.scale * np.abs(found)


@dataclass(frozen=True, eq=False)
class Block:
    """Effects with one unknown standard deviation, or pairs of effects with two and a correlation."""

    maps: tuple[FloatArray, ...]  # tuple of one or two (d, q): from effects to weights
    priors: tuple[ScalePrior, ...]  # one for each map; a correlation is uniform on (-1, 1)

    @property
    def size(self) -> int:
        """Number of effects q of each map."""
        return int(self.maps[0].shape[1])


@dataclass(frozen=True, eq=False)
class Pooled:
    """A mixture of normal laws of the coefficients u, with their scales; weights are ``columns @ u``."""

    columns: FloatArray  # (d, m): fixed coefficients first, then block by block
    place: IntArray  # (C,): the posterior's draw behind each component
    mean: FloatArray  # (C, m)
    covariance: FloatArray  # (C, m, m)
    data: FloatArray  # (m, m): covariance without privacy noise, averaged over some scales
    stddev: tuple[FloatArray, ...]  # tuple of (C,) or (C, 2): of the effects of each block, by component
    correlation: tuple[FloatArray, ...]  # tuple of (C,): correlation of each block, empty if it has one map
    stddev_draws: tuple[FloatArray, ...]  # tuple of (k,) or (k, 2): further draws of the standard deviations
    log_ratio_at_zero: tuple[float, ...]  # log evidence without each block, over the largest with it; NaN for pairs
    chains: int  # components and draws are in the order of these

    def error(self, draws: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return Monte Carlo errors of means of draws (N, ...), chain by chain, and how many independent ones do it."""
        each = draws[: len(draws) // self.chains * self.chains].reshape(self.chains, -1, *draws.shape[1:])
        error = each.mean(axis=1).std(axis=0, ddof=1) / math.sqrt(self.chains)
        return error, np.clip(draws.var(axis=0) / np.maximum(np.square(error), 1e-300), 1.0, len(self.mean))


def pooled(
    likelihoods: Likelihoods | ScoreLikelihoods,
    fixed: FloatArray,  # (d, f): from coefficients with a known prior to weights
    priors: IntArray,  # (f,): the weight that has the prior of each
    blocks: Sequence[Block],
    shrunk: IntArray,  # (h,): places of the coefficients that have a horseshoe prior, on top of their own
    seed: int,
) -> Pooled:
    """Return the posterior of fixed coefficients and effects with unknown scales.

    **Privacy.** Post-processing of a Release: it costs nothing.

    Notes
    -----
    docs/derivations/levels.md.
    """
    fewer, warm = (_FEWER, _WARMER) if isinstance(likelihoods, ScoreLikelihoods) else (1, _WARM_UP)
    chains = _Chains(likelihoods, fixed, priors, blocks, shrunk, np.random.default_rng(seed), _CHAINS // fewer)
    slow = bool(shrunk.size) or any(len(block.maps) > 1 for block in blocks)
    every = _SLOW // min(fewer, 2) if slow else 1
    for _ in range(max(warm, every)):
        chains.sweep()
    found = []
    for step in range(every * fewer * _KEPT):
        chains.sweep()
        chains.keep_scales()
        if (step + 1) % every == 0:
            found.append(chains.component())
    place, mean, covariance, scales, data = zip(*found, strict=True)
    joined = [_by_chain(each) for each in zip(*scales, strict=True)]
    stddev = tuple(np.exp(each[:, 0] if each.shape[1] == 1 else each[:, :2]) for each in joined)
    correlation = tuple(np.tanh(each[:, 2]) if each.shape[1] == 3 else np.empty(0) for each in joined)
    return Pooled(
        columns=chains.columns,
        place=likelihoods.place[_by_chain(place)],
        mean=_by_chain(mean),
        covariance=_by_chain(covariance),
        data=np.mean(data, axis=0),
        stddev=stddev,
        correlation=correlation,
        stddev_draws=chains.scales(),
        log_ratio_at_zero=chains.log_ratio_at_zero(),
        chains=len(place[0]),
    )


def _by_chain(steps: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return values (C, ...) of steps one chain after the other, (C * steps, ...)."""
    return np.stack(steps, axis=1).reshape(-1, *steps[0].shape[1:])


class _Chains:
    """States side by side: a draw of the matrices, log scales and correlations, and the scales of a horseshoe."""

    def __init__(
        self,
        likelihoods: Likelihoods | ScoreLikelihoods,
        fixed: FloatArray,
        priors: IntArray,
        blocks: Sequence[Block],
        shrunk: IntArray,
        rng: np.random.Generator,
        most: int,
    ) -> None:
        self._rng, self._blocks, self._shrunk = rng, blocks, shrunk
        self.columns = np.hstack([fixed, *(each for block in blocks for each in block.maps)])
        self._n_fixed = fixed.shape[1]
        self._likelihoods, self._prior = likelihoods, likelihoods.prior_precision[:, priors]
        self._data = self.columns.T @ likelihoods.data @ self.columns
        size = min(most, max(16, _MOST_ENTRIES // (self.columns.shape[1] ** 2 * _KEPT)))
        self._take(likelihoods.start(size, self._rng))
        # Scales begin spread out over two powers of ten below that of their prior.
        self._scales = [
            np.column_stack(
                [
                    *(math.log(prior.scale) - self._rng.uniform(0.0, 4.6, size) for prior in block.priors),
                    *([np.zeros(size)] if len(block.maps) > 1 else []),
                ]
            )
            for block in blocks
        ]
        self._local = np.ones((size, shrunk.size))
        self._global = np.ones(size)
        self._latest = list(self._scales)
        self._kept: list[list[FloatArray]] = [[] for _ in blocks]
        self._at_zero: list[list[FloatArray]] = [[] for _ in blocks]

    def _take(self, state: State) -> None:
        """Set the likelihood of every chain."""
        self._state, self._draw = state, state.draw
        self._precision = self.columns.T @ state.precision @ self.columns
        self._information = state.information @ self.columns

    def _places(self, number: int) -> slice:
        """Return the coefficients of a block."""
        widths = [block.size * len(block.maps) for block in self._blocks]
        first = self._n_fixed + sum(widths[:number])
        return slice(first, first + widths[number])

    def _with_prior(self, left_out: int = -1) -> FloatArray:
        """Return the precision of all coefficients given their scales, (C, m, m), without the prior of one block."""
        precision: FloatArray = self._precision.copy()
        index = np.arange(self._n_fixed)
        precision[:, index, index] += self._prior[self._draw]
        index = self._shrunk
        precision[:, index, index] += 1.0 / np.maximum(np.square(self._local) * self._global[:, None] ** 2, NEGLIGIBLE)
        for number, (block, scales) in enumerate(zip(self._blocks, self._scales, strict=True)):
            if number == left_out:
                continue
            inverse, _ = _inverse_prior(scales)
            index = np.arange(self._places(number).start, self._places(number).start + block.size)
            for row in range(len(block.maps)):
                for column in range(len(block.maps)):
                    at = index + row * block.size, index + column * block.size
                    precision[:, at[0], at[1]] += inverse[:, row, column, None]
        return precision

    def sweep(self) -> None:
        """Update every chain, at another draw of the matrices."""
        weights = _normal(self._with_prior(), self._information, self._rng) @ self.columns.T
        self._take(self._likelihoods.again(self._state, weights, self._rng))
        for number, block in enumerate(self._blocks):
            (self._update_scale if len(block.maps) == 1 else self._update_pair)(number)
        if self._shrunk.size:
            self._update_horseshoe()

    def _left(self, number: int) -> tuple[FloatArray, FloatArray]:
        """Return precision and information of a block's effects from everything but their own prior."""
        own = self._places(number)
        precision = self._with_prior(left_out=number)
        information = self._information
        rest = np.ones(precision.shape[1], dtype=bool)
        rest[own] = False
        across = precision[:, rest, own]
        solved = np.linalg.solve(
            precision[:, rest][:, :, rest], np.concatenate([across, information[:, rest, None]], axis=2)
        )
        across = np.swapaxes(across, 1, 2)
        left = precision[:, own, own] - across @ solved[..., :-1]
        return 0.5 * (left + np.swapaxes(left, 1, 2)), information[:, own] - (across @ solved[..., -1:])[..., 0]

    def _update_scale(self, number: int) -> None:
        """Draw the standard deviation of a block from its law given the matrices and the other scales."""
        prior = self._blocks[number].priors[0]
        diagonal, off, length = _tridiagonal(*self._left(number))

        def log_ratio(grid: FloatArray) -> FloatArray:
            # Pivots of I + square * precision, the last one first; an inverse's first entry is that of the first.
            square = np.exp(2.0 * grid)
            pivots = 1.0 + square * diagonal[..., None]
            for at in range(len(off) - 1, -1, -1):
                pivots[at] = np.maximum(pivots[at] - np.square(square * off[at, :, None]) / pivots[at + 1], 1.0)
            return np.asarray(0.5 * (square * length[:, None] / pivots[0] - np.log(pivots).sum(axis=0)))

        size = len(length)
        share = np.linspace(0.0, 1.0, _NODES)
        low, high = (np.full((size, 1), math.log(prior.scale) + end) for end in (_LEAST, _MOST))
        for _ in range(2):
            grid = low + (high - low) * share
            ratio = log_ratio(grid)
            density = ratio + prior.log_density(np.exp(grid)) + grid
            near = density > density.max(axis=1, keepdims=True) - _DEEP
            first, last = near.argmax(axis=1), _NODES - 1 - near[:, ::-1].argmax(axis=1)
            rows = np.arange(size)
            low = grid[rows, np.maximum(first - 1, 0)][:, None]
            high = grid[rows, np.minimum(last + 1, _NODES - 1)][:, None]
        # Without effects the ratio is 1.
        self._at_zero[number].append(np.minimum(-ratio.max(axis=1), 0.0))
        self._latest[number] = _drawn(grid, density, self._rng)
        self._scales[number] = self._latest[number][:, :1]

    def _update_pair(self, number: int) -> None:
        """Move two standard deviations and a correlation, given the effects and given the standardised effects."""
        block = self._blocks[number]
        precision, information = self._left(number)
        size, q = len(precision), block.size
        scales = self._scales[number]
        inverse, _ = _inverse_prior(scales)
        conditional = precision + np.kron(inverse, np.eye(q))
        effects = _normal(conditional, information, self._rng).reshape(size, 2, q)
        squares = effects @ np.swapaxes(effects, 1, 2)

        def given_effects(at: FloatArray) -> FloatArray:
            inverse, log_det = _inverse_prior(at)
            return np.asarray(0.5 * q * log_det - 0.5 * np.sum(inverse * squares, axis=(1, 2)))

        scales = self._moved(scales, given_effects, block)
        standard = np.linalg.solve(_triangle(scales), effects)
        # Effects are linear in the entries of the triangle: (l00 v0, l10 v0 + l11 v1).
        parts = np.zeros((size, 3, 2, q))
        parts[:, 0, 0], parts[:, 1, 1], parts[:, 2, 1] = standard[:, 0], standard[:, 0], standard[:, 1]
        columns = parts.reshape(size, 3, 2 * q)
        square, linear = columns @ precision @ np.swapaxes(columns, 1, 2), (columns @ information[..., None])[..., 0]

        def given_standardised(at: FloatArray) -> FloatArray:
            entries = _triangle(at)[:, (0, 1, 1), (0, 0, 1)]
            quadratic = np.einsum("ci,cij,cj->c", entries, square, entries)
            return np.asarray(np.sum(linear * entries, axis=1) - 0.5 * quadratic)

        self._scales[number] = self._moved(scales, given_standardised, block)
        self._latest[number] = self._scales[number]

    def _moved(
        self, scales: FloatArray, log_likelihood: Callable[[FloatArray], FloatArray], block: Block
    ) -> FloatArray:
        """Return log scales and the correlation's inverse tanh after Metropolis steps of mixed sizes."""

        def log_target(at: FloatArray) -> FloatArray:
            found = log_likelihood(at) - 2.0 * np.log(np.cosh(at[:, 2]))
            for place, prior in enumerate(block.priors):
                found = found + prior.log_density(np.exp(at[:, place])) + at[:, place]
            away = at[:, :2] - np.log([prior.scale for prior in block.priors])
            inside = np.all((away > _LEAST) & (away < _MOST), axis=1) & (np.abs(at[:, 2]) < _WIDEST)
            return np.where(inside, found, -np.inf)

        now = log_target(scales)
        for _ in range(_STEPS):
            step = np.exp(self._rng.uniform(*_STEP_SIZES, size=(len(scales), 1)))
            other = scales + step * self._rng.standard_normal(scales.shape)
            then = log_target(other)
            taken = np.log(self._rng.uniform(size=len(scales))) < then - now
            scales, now = np.where(taken[:, None], other, scales), np.where(taken, then, now)
        return scales

    def _update_horseshoe(self) -> None:
        """Draw the coefficients, then their scales given them, through inverse gamma laws."""
        precision = self._with_prior()
        weights = _normal(precision, self._information, self._rng)[:, self._shrunk]
        squares, rng = np.square(weights), self._rng
        local, common = np.square(self._local), np.square(self._global)[:, None]
        other = (1.0 + 1.0 / local) / rng.standard_exponential(local.shape)
        local = (1.0 / other + 0.5 * squares / common) / rng.standard_exponential(local.shape)
        local = np.clip(local, NEGLIGIBLE, 1.0 / NEGLIGIBLE)
        shape = 0.5 * (self._shrunk.size + 1)
        other = (1.0 + 1.0 / common) / rng.standard_exponential(common.shape)
        rate = 1.0 / other + 0.5 * np.sum(squares / local, axis=1, keepdims=True)
        common = rate / rng.gamma(shape, size=common.shape)
        self._local, self._global = np.sqrt(local), np.sqrt(np.clip(common, NEGLIGIBLE, 1.0 / NEGLIGIBLE))[:, 0]

    def keep_scales(self) -> None:
        """Keep draws of the standard deviations of these states."""
        for kept, latest, block in zip(self._kept, self._latest, self._blocks, strict=True):
            kept.append(np.exp(latest if len(block.maps) == 1 else latest[:, :2]))

    def scales(self) -> tuple[FloatArray, ...]:
        """Return the draws of standard deviations that were kept."""
        parts = zip(self._kept, self._blocks, strict=True)
        return tuple(_by_chain(kept) if len(block.maps) > 1 else _by_chain(kept).ravel() for kept, block in parts)

    def log_ratio_at_zero(self) -> tuple[float, ...]:
        """Return the log of the evidence without each block over the largest with it; NaN for pairs."""
        return tuple(float(np.mean(found)) if found else math.nan for found in self._at_zero)

    def component(self) -> tuple[IntArray, FloatArray, FloatArray, list[FloatArray], FloatArray]:
        """Return draw, mean, covariance and scales of every chain, and their mean covariance without privacy noise."""
        precision = self._with_prior()
        covariance = np.asarray(np.linalg.inv(precision))
        mean = np.asarray((covariance @ self._information[..., None])[..., 0])
        covariance = np.asarray(0.5 * (covariance + np.swapaxes(covariance, 1, 2)))
        without_noise = np.linalg.inv(precision - self._precision + self._data).mean(axis=0)
        return self._draw, mean, covariance, list(self._scales), without_noise


def _tridiagonal(matrices: FloatArray, vectors: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the diagonal (q, C) and the next one (q - 1, C) of similar matrices, and squared lengths (C,) of vectors.

    Orthogonal maps take each vector to the first axis: its reflection, then LAPACK's, which keep that axis.
    """
    length = np.linalg.norm(vectors, axis=1)
    normal = vectors.copy()
    normal[:, 0] += np.copysign(length, normal[:, 0])
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-300)
    pushed = (matrices @ normal[..., None])[..., 0]
    pushed -= np.sum(normal * pushed, axis=1, keepdims=True) * normal
    across = 2.0 * normal[:, :, None] * pushed[:, None]
    found = [lapack.dsytrd(matrix, lower=1)[1:3] for matrix in matrices - across - np.swapaxes(across, 1, 2)]
    diagonal, off = (np.stack(part, axis=1) for part in zip(*found, strict=True))
    return diagonal, off, np.square(length)


def _triangle(scales: FloatArray) -> FloatArray:
    """Return the lower Cholesky factors of the covariances of pairs, (C, 2, 2)."""
    first, second = np.exp(scales[:, 0]), np.exp(scales[:, 1])
    rho = np.tanh(scales[:, 2])
    found = np.zeros((len(scales), 2, 2))
    found[:, 0, 0], found[:, 1, 0], found[:, 1, 1] = first, second * rho, second / np.cosh(scales[:, 2])
    return found


def _inverse_prior(scales: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the inverse covariance of one effect, or of a pair, (C, k, k), and its log determinant."""
    if scales.shape[1] == 1:
        return np.exp(-2.0 * scales)[..., None], -2.0 * scales[:, 0]
    inverse = np.linalg.inv(_triangle(scales))
    log_det = 2.0 * (np.log(np.cosh(scales[:, 2])) - scales[:, 0] - scales[:, 1])
    return np.swapaxes(inverse, 1, 2) @ inverse, log_det


def _normal(precision: FloatArray, information: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return a draw of each normal law, (C, m)."""
    factor = np.linalg.cholesky(precision)
    half = np.linalg.solve(factor, information[..., None]) + rng.standard_normal((*information.shape, 1))
    return np.asarray(np.linalg.solve(np.swapaxes(factor, 1, 2), half)[..., 0])


def _drawn(grid: FloatArray, log_density: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return draws from densities on even grids, (C, _SCALES), linear between the nodes of their distribution."""
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    mass = np.concatenate([np.zeros((len(grid), 1)), np.cumsum(density[:, 1:] + density[:, :-1], axis=1)], axis=1)
    levels = rng.uniform(size=(len(grid), _SCALES)) * mass[:, -1:]
    return np.stack([np.interp(*each) for each in zip(levels, mass, grid, strict=True)])
