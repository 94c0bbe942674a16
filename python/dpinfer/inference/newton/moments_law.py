"""The law of second moments given a noisy release: near a multiple of the identity, by as much as the release says.

M is c I plus a symmetric normal matrix of learned spread t, and so is it given the release.  A mean score M e, e the
error of the weights where it was taken, is then normal given e as well: M is integrated out, and drawn in closed form
given e.  Where nothing is hidden e is small beside what the score says of it, and all of it is normal.  Where
directions are hidden, chains move e, t and c, many side by side.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer.inference.newton import tuning

__all__ = ["ErrorChains", "MeanScores", "MomentsDraws", "MomentsLaw", "stratified"]

FloatArray = npt.NDArray[np.float64]

_SPREADS = 45  # nodes, even in their log
_SWEEPS, _CLOSE = 30, 1e-3  # of a fixed point: variances of errors to a thousandth of all noise
_LEAST = 1e-3  # moves a posterior's variance by a millionth of the least that scores can leave
_NEAR_SQUARE, _WIDER, _SHIFTS, _SHORTEST = 0.7, 1.1, 3, 8.0  # of proposals: they change how fast chains move alone


@dataclass(frozen=True)
class MeanScores:
    """What scores over their slopes say: score = M (u - position) + noise, u normal around zero.

    Parameters
    ----------
    score, position : (d,) arrays
        Mean of the measured scores, and of the points where they were taken.
    noise, sampling : float
        Variance of the mean score: of the privacy noise, and of sampling in units of M.
    prior_factor : (d, d) array
        F with F F' the prior covariance of the weights.
    """

    score: FloatArray
    position: FloatArray
    noise: float
    sampling: float
    prior_factor: FloatArray

    @property
    def prior_covariance(self) -> FloatArray:
        """Of the weights, (d, d)."""
        return self.prior_factor @ self.prior_factor.T


@dataclass(frozen=True)
class MomentsDraws:
    """Draws of M, or what stands for them, in an orthogonal basis.

    Parameters
    ----------
    basis : (d, d) array
        Columns in the coordinates of z: eigenvectors of the release.
    matrix : (S, d, d) array
    expected : (S, d) array
        The diagonal matrix that the release alone expects.
    sampled : (S, d) array
        The same held above zero: what the score varies by in other samples.
    variance : (S,) array
        Of an entry beside the diagonal given the release.
    extra : (S, d) array
        Variance of the mean score from what `matrix` is wrong by.
    sets : int
        How many independent sets they are, innermost: chains are one.
    """

    basis: FloatArray
    matrix: FloatArray
    expected: FloatArray
    sampled: FloatArray
    variance: FloatArray
    extra: FloatArray
    sets: int = 1


class MomentsLaw:
    """The law of M given a noisy release, and a mean score.

    Parameters
    ----------
    noisy : (d, d) array
        M with noise of standard deviation `stddev` in each diagonal entry, 1 / sqrt(2) of it beside the diagonal.
    stddev : float
    scores : MeanScores
    """

    def __init__(self, noisy: FloatArray, stddev: float, scores: MeanScores) -> None:
        self.eigenvalues, self.basis = np.linalg.eigh(noisy)
        self.noise, self.scores = stddev**2, scores
        d, chosen = len(noisy), tuning.TUNING
        unit = max(float(np.mean(self.eigenvalues)), stddev / math.sqrt(d))
        self.spreads = unit * np.geomspace(chosen.least_spread, chosen.largest_spread, _SPREADS)
        self.ends = unit * chosen.least_centre, unit * chosen.largest_centre
        self.score, self.position = scores.score @ self.basis, scores.position @ self.basis
        # A prior far below anything that a score tells is as wide as _LEAST of that: double precision holds both.
        least = _LEAST**2 * scores.noise / max(float(self.eigenvalues[-1] ** 2), self.noise)
        root = np.linalg.cholesky(self.basis.T @ scores.prior_covariance @ self.basis + least * np.eye(d))
        root = np.linalg.inv(root)
        self.prior_precision = root.T @ root
        # Of the spread given the release, the centre integrated out.
        total = np.square(self.spreads) + self.noise
        energy = float(np.sum(np.square(self.eigenvalues - np.mean(self.eigenvalues))))
        log_weight = np.log(self.spreads) - 0.5 * ((0.5 * d * (d + 1) - 1) * np.log(total) + energy / total)
        self.weight = np.exp(log_weight - log_weight.max())
        self.kept = np.square(self.spreads) / total

    def expected(self, centre: FloatArray, kept: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return eigenvalues of M that the release expects, and the means of these where they are above zero, (S, d).

        Parameters
        ----------
        centre, kept : (S,) arrays
            c, and the share of the release that is kept.
        """
        values = centre[:, None] + kept[:, None] * (self.eigenvalues - centre[:, None])
        stddev = np.sqrt(kept * self.noise)[:, None]
        z = values / stddev
        above = values + stddev * np.exp(-0.5 * np.square(z) - special.log_ndtr(z)) / math.sqrt(2.0 * math.pi)
        return values, above

    def normal(self, size: int, sets: int, rng: np.random.Generator) -> MomentsDraws:
        """Return what stands for M where all directions are told from zero: draws of t, in independent sets.

        M is at its mean given release and t, eigenvalues above zero.  With M off by a matrix of independent entries of
        variance s / 2 beside the diagonal, s on it, M e is off by s (|e|**2 I + e e') / 2: e is that which the score
        then expects itself.
        """
        scores, d = self.scores, len(self.eigenvalues)
        nodes, chosen = np.unique(stratified(self.weight, size, sets, rng), return_inverse=True)
        kept = self.kept[nodes]
        centre = np.full(len(nodes), np.clip(np.mean(self.eigenvalues), *self.ends))
        _, values = self.expected(centre, kept)
        variance, of_level = (kept * self.noise)[:, None], ((1.0 - kept) * self.noise / d)[:, None]
        extra = np.zeros_like(values)
        for _ in range(_SWEEPS):
            noise = scores.noise + scores.sampling * values + extra
            precision = (np.square(values) / noise)[:, :, None] * np.eye(d) + self.prior_precision
            covariance = np.linalg.inv(precision)
            mean = np.einsum("sij,sj->si", covariance, values / noise * (self.score + values * self.position))
            squares = np.square(mean - self.position) + np.einsum("sii->si", covariance)
            before, extra = extra, 0.5 * variance * (squares.sum(axis=1)[:, None] + squares) + of_level * squares
            if np.all(np.abs(extra - before) < _CLOSE * (scores.noise + extra)):
                break
        own = values[chosen]
        whole = own[:, :, None] * np.eye(d)
        return MomentsDraws(self.basis, whole, own, own, 0.5 * variance[chosen, 0], extra[chosen], sets)


class ErrorChains:
    """Chains of the weights' error e, the spread t and the centre c, side by side, with M integrated out.

    Given e the score is normal: M e has mean m e and covariance s (|e|**2 I + e e') / 2, with m and s those of M's
    entries given the release.  Every step is a Metropolis step for the one density.

    Parameters
    ----------
    law : MomentsLaw
    size : int
        How many chains.
    rng : Generator
    """

    def __init__(self, law: MomentsLaw, size: int, rng: np.random.Generator) -> None:
        self._law, self._rng, d = law, rng, len(law.eigenvalues)
        centre = np.full(size, np.clip(np.mean(law.eigenvalues), *law.ends))
        kept = law.kept[stratified(law.weight, size, 1, rng)]
        self._matrix: tuple[FloatArray, ...] = (centre, kept, *law.expected(centre, kept))
        self.error = np.zeros((size, d))
        # About as far out as lengths of all sizes up to the prior's have it: some begin in the tails.
        length = np.trace(law.scores.prior_covariance) * np.exp(-_SHORTEST * rng.uniform(size=size))
        self.error, _ = self._near(law.scores.noise + 0.5 * kept * law.noise * length)
        self._density = self._log_density(self.error, self._matrix)
        # Steps along an eigenvector: from what the score would tell there to what the prior does.
        prior = np.diag(law.prior_precision)
        value = np.maximum(law.eigenvalues, math.sqrt(law.noise))
        self._reach = -0.5 * np.log(np.square(value) / law.scores.noise + prior), -0.5 * np.log(prior)

    def _log_density(self, error: FloatArray, matrix: tuple[FloatArray, ...]) -> FloatArray:
        """Return the log density of score and error given t and c, (S,), up to a constant."""
        law, (_, kept, values, sampled) = self._law, matrix
        entry = (0.5 * kept * law.noise)[:, None]
        noise = law.scores.noise + law.scores.sampling * sampled
        noise = noise + entry * np.sum(np.square(error), axis=1)[:, None]
        missed = law.score - values * error
        # The inverse of a diagonal matrix and one of rank one.
        one = 1.0 + entry[:, 0] * np.sum(np.square(error) / noise, axis=1)
        square = np.sum(np.square(missed) / noise, axis=1)
        square -= entry[:, 0] * np.square(np.sum(missed * error / noise, axis=1)) / one
        weights = error + law.position
        prior = np.sum((weights @ law.prior_precision) * weights, axis=1)
        return np.asarray(-0.5 * (np.sum(np.log(noise), axis=1) + np.log(one) + square + prior))

    def _decide(self, error: FloatArray, matrix: tuple[FloatArray, ...], change: FloatArray | float) -> None:
        """Accept what is proposed, or not; `change` is the log of the proposals' ratio."""
        density = self._log_density(error, matrix)
        accepted = np.log(self._rng.uniform(size=len(error))) < density - self._density + change
        self._density = np.where(accepted, density, self._density)
        self.error = np.where(accepted[:, None], error, self.error)
        self._matrix = tuple(
            np.where(accepted if new.ndim == 1 else accepted[:, None], new, old)
            for new, old in zip(matrix, self._matrix, strict=True)
        )

    def _near(self, noise: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Draw errors, wider than their law where M is as expected and a score's noise is given; and the change."""
        law, (_, _, values, sampled) = self._law, self._matrix
        noise = noise[:, None] + law.scores.sampling * sampled
        precision = (np.square(values) / noise)[:, :, None] * np.eye(values.shape[1]) + law.prior_precision
        factor = np.linalg.cholesky(precision)
        root = np.linalg.inv(factor)
        right = values / noise * law.score - law.prior_precision @ law.position
        mean = np.einsum("sji,sj->si", root, np.einsum("sij,sj->si", root, right))
        drawn = self._rng.standard_normal(values.shape)
        away = np.einsum("sji,sj->si", factor, self.error - mean)
        change = 0.5 * np.sum(np.square(drawn) - np.square(away / _WIDER), axis=1)
        return mean + _WIDER * np.einsum("sji,sj->si", root, drawn), change

    def advance(self, sweeps: int) -> None:
        """Move all chains."""
        law, rng, size = self._law, self._rng, len(self.error)
        for _ in range(sweeps):
            # Spread and centre as the release alone has them.
            node = rng.choice(len(law.weight), size, p=law.weight / law.weight.sum())
            kept = law.kept[node]
            stddev = np.sqrt((np.square(law.spreads[node]) + law.noise) / law.eigenvalues.size)
            centre = np.mean(law.eigenvalues) + stddev * rng.standard_normal(size)
            inside = (centre > law.ends[0]) & (centre < law.ends[1])
            centre = np.where(inside, centre, self._matrix[0])
            new = centre, kept, *law.expected(centre, kept)
            self._decide(self.error, new, np.where(inside, 0.0, -np.inf))
            # All of the error, about as it is at a length near to what it has.
            before = np.log(np.sum(np.square(self.error), axis=1))
            length = before + _NEAR_SQUARE * rng.standard_normal(size)
            error, change = self._near(law.scores.noise + 0.5 * self._matrix[1] * law.noise * np.exp(length))
            after = np.log(np.sum(np.square(error), axis=1))
            change += 0.5 * (np.square(length - before) - np.square(length - after)) / _NEAR_SQUARE**2
            self._decide(error, self._matrix, change)
            for _ in range(_SHIFTS):
                axis = rng.integers(0, error.shape[1], size)
                low, high = (end[axis] for end in self._reach)
                error = self.error.copy()
                step = np.exp(low + (high - low) * rng.uniform(size=size)) * rng.standard_normal(size)
                error[np.arange(size), axis] += step
                self._decide(error, self._matrix, 0.0)

    def draws(self) -> MomentsDraws:
        """Draw M given the states.

        A draw given the release alone, and a score that it would have, are taken to the score there is: both are
        normal, and the difference is that of their conditional means.
        """
        law, rng, error = self._law, self._rng, self.error
        _, kept, values, sampled = self._matrix
        (size, d), entry = error.shape, 0.5 * kept * law.noise
        normal = np.triu(rng.standard_normal((size, d, d)))
        normal += np.swapaxes(np.triu(normal, 1), 1, 2)
        matrix = values[:, :, None] * np.eye(d) + np.sqrt(entry)[:, None, None] * normal * np.sqrt(1.0 + np.eye(d))
        noise = law.scores.noise + law.scores.sampling * sampled
        missed = law.score - np.einsum("sij,sj->si", matrix, error) - np.sqrt(noise) * rng.standard_normal((size, d))
        noise = noise + (entry * np.sum(np.square(error), axis=1))[:, None]
        turned = error / noise
        by = entry * np.sum(missed * turned, axis=1) / (1.0 + entry * np.sum(error * turned, axis=1))
        moved = entry[:, None] * (missed / noise - by[:, None] * turned)
        outer = moved[:, :, None] * error[:, None, :]
        matrix += outer + np.swapaxes(outer, 1, 2)
        return MomentsDraws(law.basis, matrix, values, sampled, entry, np.zeros((size, d)))


def stratified(weight: FloatArray, size: int, sets: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw indices in proportion to weights: `size` of them in independent sets, innermost.

    A set has one in each of equally likely strata, in random order.
    """
    cumulative = np.cumsum(weight)
    place = rng.permuted(np.tile(np.arange(size // sets), (sets, 1)), axis=1).T + rng.uniform(size=(size // sets, sets))
    found = np.searchsorted(cumulative, place.ravel() * (sets / size * cumulative[-1]))
    return np.asarray(np.minimum(found, len(cumulative) - 1), dtype=np.int64)
