"""The second moments that a noisy release leaves open: near a multiple of the identity, but for a few flat directions.

M = C G C', C = I - V diag(1 - sqrt(gamma)) V'.  G is c I plus a symmetric normal matrix of learned spread t, V is an
orthonormal frame of a few flattened directions, uniform, and gamma in (0, 1) is by how much each is flattened.  Given
V, gamma, c and t the entries of M are independent normal in a basis that begins with V, and so are they given the
release: G is integrated out and drawn in closed form.  Where nothing is hidden there is no frame, and draws of M are
independent; else chains move the frame, many side by side.  In the release's eigenbasis their density costs O(d).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

__all__ = ["HiddenScores", "MomentsLaw", "MomentsState", "chosen_of"]

FloatArray = npt.NDArray[np.float64]

# Levels of the flattening: gamma = (least + (1 - least) level**3)**2, level = logistic(t), t logistic around a normal
# location.  Of many directions there is always one that no score has seen: the more of them, the less flat.
_FLATTEST, _POWER = 0.003, 3.0
_LOGITS = np.linspace(-7.0, 9.0, 25)
_LOCATION, _LOCATION_STDDEV, _MANY, _GROWTH = 3.5, 2.0, 24.0, 3.0
# In units of the release's mean eigenvalue, or of its noise: t, flat, on a grid that is even in its log; ends of c.
_SPREADS = np.exp(np.linspace(math.log(0.003), math.log(1.2), 45))
_MOST = 2  # flattened directions
_LEAST_TURN = math.log(0.02)  # of a random walk of a direction: log of how far, up to 0
_CENTRES = (0.05, 5.0)
_FIRST_LEVEL = 0.01
_WIDE = 4.0


@dataclass(frozen=True)
class HiddenScores:
    """What scores say of the eigenvalue along a direction v: v'(score + eigenvalue position) is normal around zero.

    Parameters
    ----------
    score, position : (d,) arrays
        Mean of the measured scores, and of the points where they were taken.
    noise, sampling : float
        Variance of the score: of the privacy noise, and of sampling in units of the eigenvalue.
    prior_covariance : (d, d) array
        Of the weights.
    """

    score: FloatArray
    position: FloatArray
    noise: float
    sampling: float
    prior_covariance: FloatArray

    def rotated(self, basis: FloatArray) -> "HiddenScores":
        """Return the same in the coordinates of an orthogonal basis."""
        covariance = basis.T @ self.prior_covariance @ basis
        return HiddenScores(self.score @ basis, self.position @ basis, self.noise, self.sampling, covariance)

    def log_density(self, direction: FloatArray, eigenvalue: FloatArray) -> FloatArray:
        """Return the log density for unit vectors (B, d) and eigenvalues (B, K), (B, K)."""
        prior = np.sum((direction @ self.prior_covariance) * direction, axis=1)[:, None]
        variance = self.noise + self.sampling * eigenvalue + prior * np.square(eigenvalue)
        missed = (direction @ self.score)[:, None] + eigenvalue * (direction @ self.position)[:, None]
        return np.asarray(-0.5 * (np.log(variance) + np.square(missed) / variance))


@dataclass(frozen=True)
class MomentsState:
    """States of B chains, of which M is a function.

    Parameters
    ----------
    direction : (B, d, m) array
        V.
    inside, squares : (B, m, m) and (B, m) arrays
        V'SV, and the diagonal of V'SSV, S the release.
    level : (B, m) array
        gamma.
    spread, centre : (B,) arrays
        t and c.
    resolved, mixed, beside : (B, d, d), (B, m, m) and (B, d, m) arrays
        Standard normal numbers that make M.
    other : (B, 1, 1) array
        One more of them, for what else is unknown.
    """

    direction: FloatArray
    inside: FloatArray
    squares: FloatArray
    level: FloatArray
    spread: FloatArray
    centre: FloatArray
    resolved: FloatArray
    mixed: FloatArray
    beside: FloatArray
    other: FloatArray

    def outside(self, k: int) -> FloatArray:
        """Return the squared norm of direction k's entries of S beside the frame, (B,)."""
        return np.asarray(np.maximum(self.squares[:, k] - np.sum(np.square(self.inside[:, k]), axis=1), 0.0))

    def turned(self, k: int, direction: FloatArray, eigenvalues: FloatArray) -> "MomentsState":
        """Return the states with another direction k, (B, d)."""
        pushed = eigenvalues * direction
        frame, inside, squares = self.direction.copy(), self.inside.copy(), self.squares.copy()
        frame[:, :, k] = direction
        inside[:, k] = inside[:, :, k] = np.einsum("bia,bi->ba", frame, pushed)
        squares[:, k] = np.sum(np.square(pushed), axis=1)
        return replace(self, direction=frame, inside=inside, squares=squares)


class MomentsLaw:
    """The law of M given a noisy release, in the coordinates of the release's eigenvectors.

    Parameters
    ----------
    noisy : (d, d) array
        M with noise of standard deviation `stddev` in each diagonal entry, 1 / sqrt(2) of it beside the diagonal.
    stddev : float
    scores : HiddenScores
        A guide: states are moved as if levels were weighted by it, and :meth:`guided` says by how much.
    n_hidden : int
        Directions that the noise may hide: 0 where all are told from zero.
    rng : Generator
    """

    def __init__(
        self, noisy: FloatArray, stddev: float, scores: HiddenScores, *, n_hidden: int, rng: np.random.Generator
    ) -> None:
        d = len(noisy)
        self.eigenvalues, self.basis = np.linalg.eigh(noisy)
        self.n_flattened = min(n_hidden, _MOST, d - 1)
        self._noise, self._rng, self._scores = stddev**2, rng, scores.rotated(self.basis)
        self._gamma, self._log_gamma = _levels(d)
        unit = max(float(np.mean(self.eigenvalues)), stddev / math.sqrt(d))
        self.spreads, self.centres = unit * _SPREADS, (unit * _CENTRES[0], unit * _CENTRES[1])
        self._centre = unit
        # A flat direction lies near eigenvectors of small eigenvalues: sd noise / (sqrt(2) eigenvalue) toward others.
        pocket = np.minimum(1.0, 0.5 * np.square(stddev / np.maximum(self.eigenvalues, stddev)))
        pocket[self.eigenvalues < stddev] = 1.0
        self._proposals = np.stack([np.ones(d), pocket, np.minimum(1.0, _WIDE * pocket)])

    def start(self, size: int) -> MomentsState:
        """Return first states: frames near the eigenvectors of small eigenvalues, every second one flat."""
        d, m = len(self.eigenvalues), self.n_flattened
        frame, even = np.zeros((size, d, 0)), np.ones((size, d))
        for _ in range(m):
            drawn = self._rng.standard_normal((size, d)) * np.sqrt(self._proposals[1])
            frame = np.concatenate((frame, _unit(_beside(drawn, even, frame))[:, :, None]), axis=2)
        pushed = self.eigenvalues[:, None] * frame
        return MomentsState(
            direction=frame,
            inside=_transposed(frame) @ pushed,
            squares=np.sum(np.square(pushed), axis=1),
            level=np.where(np.arange(size)[:, None] % 2, 1.0, _FIRST_LEVEL) * np.ones((1, m)),
            spread=self._rng.choice(self.spreads, size),
            centre=np.full(size, self._centre),
            resolved=self._rng.standard_normal((size, d, d)),
            mixed=self._rng.standard_normal((size, m, m)),
            beside=self._rng.standard_normal((size, d, m)),
            other=self._rng.standard_normal((size, 1, 1)),
        )

    def moved(self, state: MomentsState, kept: FloatArray) -> MomentsState:
        """Return states moved reversibly: one of frames, t and c; the numbers keep a share `kept`, (B,)."""
        steps: list[Callable[[MomentsState], MomentsState]] = [
            partial(self._turned, k) for k in range(self.n_flattened)
        ]
        steps += [self._spread_again, self._centred]
        state = steps[self._rng.integers(len(steps))](state)
        kept, rest = kept[:, None, None], np.sqrt(1.0 - np.square(kept))[:, None, None]
        numbers = {name: getattr(state, name) for name in ("resolved", "mixed", "beside", "other")}
        return replace(
            state, **{name: kept * old + rest * self._rng.standard_normal(old.shape) for name, old in numbers.items()}
        )

    def moments(self, state: MomentsState) -> FloatArray:
        """Return M, (B, d, d)."""
        noise, frame, level = self._noise, state.direction, state.level
        d, m = frame.shape[1:]
        square, centre = np.square(state.spread), state.centre
        share = square / (square + noise)
        moments = np.sqrt(share * noise)[:, None, None] * _symmetric(state.resolved)
        index = np.arange(d)
        moments[:, index, index] += centre[:, None] + share[:, None] * (self.eigenvalues - centre[:, None])
        if not m:
            return moments
        own = square[:, None, None] * level[:, :, None] * level[:, None, :]
        own = own / (own + noise)
        inside = own * state.inside + np.sqrt(own * noise) * _symmetric(state.mixed)
        index = np.arange(m)
        inside[:, index, index] += (1.0 - own[:, index, index]) * centre[:, None] * level
        own = (square[:, None] * level)[:, None, :]
        own = own / (own + noise)
        beside = own * self.eigenvalues[:, None] * frame + np.sqrt(0.5 * own * noise) * state.beside
        back = _transposed(frame)
        beside -= frame @ (back @ beside)
        # P X P + V H V' + P Y V' + V Y'P with P = I - V V'.
        pushed = moments @ frame
        cross = (beside - pushed + 0.5 * frame @ (back @ pushed + inside)) @ back
        return np.asarray(moments + cross + _transposed(cross))

    def guided(self, state: MomentsState) -> FloatArray:
        """Return the log of the weight by which the guide has states moved, (B,)."""
        found = np.zeros(len(state.spread))
        for k in range(self.n_flattened):
            found += self._guide(state.direction[:, :, k], state.level[:, k, None])[:, 0]
        return found

    def _guide(self, direction: FloatArray, level: FloatArray) -> FloatArray:
        """Return what the scores say of levels (B, K) over what they say of 1."""
        there = self._scores.log_density(direction, self._centre * level)
        return there - self._scores.log_density(direction, np.array([[self._centre]]))

    def _turned(self, k: int, state: MomentsState) -> MomentsState:
        """Make Metropolis steps on direction k, its level summed out, and draw the level."""
        size, d, m = state.direction.shape
        others = np.delete(state.direction, k, axis=2)
        found = self._log_levels(k, state)
        for guided in (True, False):
            old = state.direction[:, :, k]
            drawn, proposed = self._rng.standard_normal((size, d)), np.zeros(size)
            if guided:
                spread = self._proposals[self._rng.integers(0, len(self._proposals), size)]
                new = _unit(_beside(drawn * np.sqrt(spread), spread, others))
                ratio = np.sum(np.square(new) / spread, axis=1) / np.sum(np.square(old) / spread, axis=1)
                proposed = 0.5 * (d - m + 1) * np.log(ratio)
            else:
                far = np.exp(self._rng.uniform(_LEAST_TURN, 0.0, size))[:, None] / math.sqrt(d)
                new = _unit(old + far * _beside(drawn, np.ones((size, d)), others))
            turned = state.turned(k, new, self.eigenvalues)
            there = self._log_levels(k, turned)
            change = special.logsumexp(there, axis=1) - special.logsumexp(found, axis=1) + proposed
            taken = np.log(self._rng.uniform(size=size)) < change
            state, found = chosen_of(taken, turned, state), np.where(taken[:, None], there, found)
        level = state.level.copy()
        level[:, k] = self._gamma[self._picked(found)]
        return replace(state, level=level)

    def _log_levels(self, k: int, state: MomentsState) -> FloatArray:
        """Return the log density of the states and each level of direction k, (B, K)."""
        noise, spread, level, m = self._noise, np.square(state.spread)[:, None], self._gamma, self.n_flattened
        variance = noise + spread * np.square(level)
        missed = state.inside[:, k, k, None] - state.centre[:, None] * level
        found = -0.5 * (np.log(variance) + np.square(missed) / variance)
        variance = noise + spread * level
        found -= 0.5 * (len(self.eigenvalues) - m) * np.log(variance) + state.outside(k)[:, None] / variance
        rest = -0.5 * self._resolved_energy(state) / (noise + spread[:, 0])
        for other in range(m):
            if other != k:
                square = np.square(state.inside[:, k, other])
                variance = noise + spread * level * state.level[:, other, None]
                found -= 0.5 * np.log(variance) + square[:, None] / variance
                rest += square / (noise + spread[:, 0] * state.level[:, other])
        guide = self._guide(state.direction[:, :, k], level[None, :])
        return np.asarray(found + rest[:, None] + guide + self._log_gamma)

    def _resolved_energy(self, state: MomentsState) -> FloatArray:
        """Return the squared norm of P (S - c I) P, P = I - V V', (B,)."""
        n = len(self.eigenvalues) - self.n_flattened
        squares = np.sum(np.square(self.eigenvalues)) - 2.0 * np.sum(state.squares, axis=1)
        squares = squares + np.sum(np.square(state.inside), axis=(1, 2))
        return np.asarray(squares - 2.0 * state.centre * self._resolved_trace(state) + np.square(state.centre) * n)

    def _resolved_trace(self, state: MomentsState) -> FloatArray:
        """Return the trace of P S P, (B,)."""
        return np.asarray(np.sum(self.eigenvalues) - np.trace(state.inside, axis1=1, axis2=2))

    def _spread_again(self, state: MomentsState) -> MomentsState:
        """Draw t given the rest."""
        noise, spread = self._noise, np.square(self.spreads)
        n = len(self.eigenvalues) - self.n_flattened
        variance = noise + spread
        found = np.log(self.spreads) - 0.25 * n * (n + 1) * np.log(variance)
        found = found - 0.5 * self._resolved_energy(state)[:, None] / variance
        for k in range(self.n_flattened):
            level = state.level[:, k, None]
            variance = noise + spread * np.square(level)
            missed = (state.inside[:, k, k] - state.centre * state.level[:, k])[:, None]
            found -= 0.5 * (np.log(variance) + np.square(missed) / variance)
            variance = noise + spread * level
            found -= 0.5 * n * np.log(variance) + state.outside(k)[:, None] / variance
            for other in range(k):
                variance = noise + spread * level * state.level[:, other, None]
                found -= 0.5 * np.log(variance) + np.square(state.inside[:, k, other, None]) / variance
        return replace(state, spread=self.spreads[self._picked(found)])

    def _centred(self, state: MomentsState) -> MomentsState:
        """Draw c, normal between its ends, given the rest."""
        noise, spread = self._noise, np.square(state.spread)
        precision = (len(self.eigenvalues) - self.n_flattened) / (noise + spread)
        mean = self._resolved_trace(state) / (noise + spread)
        for k in range(self.n_flattened):
            level = state.level[:, k]
            variance = noise + spread * np.square(level)
            precision, mean = precision + np.square(level) / variance, mean + level * state.inside[:, k, k] / variance
        mean, stddev = mean / precision, 1.0 / np.sqrt(precision)
        low, high = (special.ndtr((end - mean) / stddev) for end in self.centres)
        drawn = special.ndtri(low + (high - low) * self._rng.uniform(size=len(mean)))
        return replace(state, centre=np.clip(mean + stddev * drawn, *self.centres))

    def _picked(self, log_density: FloatArray) -> npt.NDArray[np.int64]:
        """Draw one column of each row, (B,)."""
        cumulated = np.cumsum(np.exp(log_density - log_density.max(axis=1, keepdims=True)), axis=1)
        below = cumulated < self._rng.uniform(size=(len(cumulated), 1)) * cumulated[:, -1:]
        return np.asarray(np.minimum(np.sum(below, axis=1), log_density.shape[1] - 1))


def chosen_of(chosen: npt.NDArray[np.bool_], first: Any, second: Any) -> Any:
    """Return the arrays of `first` where `chosen` (B,), else those of `second`: dataclasses of one kind."""
    pairs = {field.name: (getattr(first, field.name), getattr(second, field.name)) for field in fields(first)}
    return replace(
        second,
        **{
            name: np.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old)
            for name, (new, old) in pairs.items()
            if new is not old and isinstance(new, np.ndarray)
        },
    )


def _beside(drawn: FloatArray, variance: FloatArray, frame: FloatArray) -> FloatArray:
    """Return draws of N(0, diag(variance)), (B, d), held to the complement of a frame (B, d, m)."""
    if not frame.shape[2]:
        return drawn
    weighted = variance[:, :, None] * frame
    solved = np.linalg.solve(_transposed(frame) @ weighted, _transposed(frame) @ drawn[:, :, None])
    return np.asarray(drawn - (weighted @ solved)[:, :, 0])


def _levels(d: int) -> tuple[FloatArray, FloatArray]:
    """Return gamma at the nodes of its grid, and the log of its prior there."""
    location = _LOCATION + _GROWTH * max(0.0, math.log(d / _MANY))
    reach = np.linspace(-4.0, 4.0, 81)
    away = _LOGITS[:, None] - location - _LOCATION_STDDEV * reach
    prior = (special.expit(away) * special.expit(-away)) @ np.exp(-0.5 * np.square(reach))
    level = _FLATTEST + (1.0 - _FLATTEST) * special.expit(_LOGITS) ** _POWER
    return np.square(level), np.log(prior / prior.sum())


def _unit(vectors: FloatArray) -> FloatArray:
    return np.asarray(vectors / np.sqrt(np.sum(np.square(vectors), axis=1, keepdims=True)))


def _symmetric(normal: FloatArray) -> FloatArray:
    """Return symmetric matrices of independent entries: standard deviation 1, and 1 / sqrt(2) beside the diagonal."""
    return np.asarray(0.5 * (normal + _transposed(normal)))


def _transposed(array: FloatArray) -> FloatArray:
    return np.swapaxes(array, -1, -2)
