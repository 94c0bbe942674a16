"""The law of second moments given a noisy release: near a multiple of the identity, except for a few flat directions.

M = C G C', C = I - V diag(1 - sqrt(gamma)) V'.  G is c I plus a symmetric normal matrix of learned spread t, V is an
orthonormal frame of a few flattened directions, uniform, and gamma in (0, 1) is the factor of each.  Given
V, gamma, c and t the entries of M are independent normal in a basis that begins with V, and so are they given the
release.  A mean score M e, e the error of the weights where it was taken, is then normal given e as well: M is
integrated out, and drawn in closed form given e.  Where nothing is hidden e is small beside what the score says of it,
and all of it is normal.  Where directions are hidden, chains move V, gamma, c, t and e, many side by side
(cpp/inference/moments_chains.cpp).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer.inference import _native
from dpinfer.inference.newton import tuning

__all__ = ["MeanScores", "MomentsDraws", "MomentsLaw", "stratified"]

FloatArray = npt.NDArray[np.float64]

# Grids: of levels' logits, and how many spreads, even in their log.
_LOGITS, _SPREADS = np.linspace(-7.0, 9.0, 25), 45
_FIRST_LEVEL = 0.01
_WIDE, _FLOORS = 4.0, (1e-3, 3e-2)
_SWEEPS, _CLOSE = 30, 1e-3


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
    """Draws of M, or what stands for them, each in its own orthogonal basis.

    Parameters
    ----------
    basis : (S, d, d) array
        In the coordinates of z.
    matrix, expected : (S, d, d) arrays
        M, and what the release alone expects of it.
    typical : (S, d) array
        The diagonal of what M is near: c, and c gamma of flattened directions.
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
    typical: FloatArray
    variance: FloatArray
    extra: FloatArray
    sets: int = 1


class MomentsLaw:
    """The law of M given a noisy release and a mean score.

    Parameters
    ----------
    noisy : (d, d) array
        M with noise of standard deviation `stddev` in each diagonal entry, 1 / sqrt(2) of it beside the diagonal.
    stddev : float
    scores : MeanScores
    """

    def __init__(self, noisy: FloatArray, stddev: float, scores: MeanScores) -> None:
        self._eigenvalues, self._basis = np.linalg.eigh(noisy)
        self._noise, self._scores = stddev**2, scores
        self._levels, self._log_prior = _levels()
        self._unit = max(float(np.mean(self._eigenvalues)), stddev / math.sqrt(len(noisy)))
        chosen = tuning.TUNING
        self._spreads = self._unit * np.geomspace(chosen.least_spread, chosen.largest_spread, _SPREADS)
        self._centres = self._unit * chosen.least_centre, self._unit * chosen.largest_centre
        self._score, self._position = scores.score @ self._basis, scores.position @ self._basis
        root = np.linalg.inv(self._basis.T @ scores.prior_factor)
        self._prior_precision = root.T @ root

    def normal(self, size: int, sets: int, rng: np.random.Generator) -> MomentsDraws:
        """Return what stands for M where all directions are told from zero: draws of t, in independent sets.

        M is at its mean given release and t, eigenvalues cut at zero.  With M off by a matrix of independent entries of
        variance s / 2 beside the diagonal, s on it, M e is off by s (|e|**2 I + e e') / 2: e is that which the score
        then expects itself.
        """
        d = len(self._eigenvalues)
        level = float(np.clip(np.mean(self._eigenvalues), *self._centres))
        energy = float(np.sum(np.square(self._eigenvalues - level)))
        total = np.square(self._spreads) + self._noise
        free = 0.5 * d * (d + 1) - 1
        log_density = np.log(self._spreads) - 0.5 * (free * np.log(total) + energy / total)
        weight = np.exp(log_density - log_density.max())
        chosen = stratified(weight, size, sets, rng)
        kept = np.square(self._spreads) / total
        matrix, extra = np.empty((len(chosen), d)), np.empty((len(chosen), d))
        for index in np.unique(chosen):
            own = chosen == index
            matrix[own], extra[own] = self._expected(level, float(kept[index]))
        whole = matrix[:, :, None] * np.eye(d)
        basis = np.broadcast_to(self._basis, whole.shape)
        return MomentsDraws(basis, whole, whole, matrix, 0.5 * kept[chosen] * self._noise, extra, sets)

    def _expected(self, level: float, kept: float) -> tuple[FloatArray, FloatArray]:
        """Return eigenvalues of M given the kept share of the release, and what M adds to a score's variance."""
        scores, d = self._scores, len(self._eigenvalues)
        variance = kept * self._noise
        values = level + kept * (self._eigenvalues - level)
        values = _cut_at_zero(values, math.sqrt(variance))
        of_level = (1.0 - kept) * self._noise / d
        extra = np.zeros(d)
        for _ in range(_SWEEPS):
            noise = scores.noise + scores.sampling * values + extra
            covariance = np.linalg.inv(np.diag(np.square(values) / noise) + self._prior_precision)
            mean = covariance @ (values / noise * (self._score + values * self._position))
            squares = np.square(mean - self._position) + np.diag(covariance)
            before, extra = extra, 0.5 * variance * (np.sum(squares) + squares) + of_level * squares
            if np.all(np.abs(extra - before) < _CLOSE * (scores.noise + extra)):
                break
        return values, extra

    def chains(self, size: int, rng: np.random.Generator) -> _native.MomentsChains:
        """Return chains of all but M given release and score: frames near small eigenvalues, every second one flat."""
        d, stddev = len(self._eigenvalues), math.sqrt(self._noise)
        m = min(tuning.TUNING.flattened, d - 1)
        # A flat direction lies near eigenvectors of small eigenvalues: sd noise / (sqrt(2) eigenvalue) toward others.
        pocket = np.minimum(1.0, 0.5 * np.square(stddev / np.maximum(self._eigenvalues, stddev)))
        pocket[self._eigenvalues < stddev] = 1.0
        prior = self._basis.T @ self._scores.prior_covariance @ self._basis
        prior /= np.trace(prior)
        near = [np.diag(np.minimum(1.0, wide * pocket)) for wide in (1.0, _WIDE)]
        proposals = [np.eye(d), *near, *(prior + floor / d * np.eye(d) for floor in _FLOORS)]
        drawn = rng.standard_normal((size, d, m)) * np.sqrt(pocket)[:, None]
        flat = int(np.searchsorted(self._levels, _FIRST_LEVEL))
        level = np.where(np.arange(size) % 2, len(self._levels) - 1, flat)
        values, extra = self._expected(self._unit, 0.5)
        noise = self._scores.noise + self._scores.sampling * values + extra
        precision = np.diag(np.square(values) / noise) + self._prior_precision
        mean = np.linalg.solve(precision, values / noise * (self._score + values * self._position))
        root = np.linalg.inv(np.linalg.cholesky(precision))
        error = mean - self._position + rng.standard_normal((size, d)) @ root
        law: dict[str, FloatArray | float] = {
            "eigenvalues": self._eigenvalues,
            "levels": self._levels,
            "log_prior": self._log_prior,
            "spreads": self._spreads,
            "proposals": np.stack([_proposal(found) for found in proposals]),
            "noise": self._noise,
            "unit": self._unit,
            "low": self._centres[0],
            "high": self._centres[1],
            "score": self._score,
            "position": self._position,
            "prior_precision": self._prior_precision,
            "score_noise": self._scores.noise,
            "sampling": self._scores.sampling,
        }
        return _native.MomentsChains(
            law,
            np.ascontiguousarray(np.swapaxes(np.linalg.qr(drawn)[0], 1, 2)),
            np.repeat(level[:, None], m, axis=1),
            rng.integers(0, len(self._spreads), size),
            error,
            int(rng.integers(0, 2**63)),
        )

    def drawn(self, chains: _native.MomentsChains, rng: np.random.Generator) -> MomentsDraws:
        """Draw M given the chains' states.

        A draw given the release alone, and a score that it would have, are taken to the score there is: both are
        normal, and the difference is that of their conditional means.
        """
        frames, flat, spreads, centres, errors, _ = chains.states()
        size, m, d = frames.shape
        whole = np.concatenate((frames, rng.standard_normal((size, d - m, d))), axis=1)
        basis = np.linalg.qr(np.swapaxes(whole, 1, 2))[0]
        gamma = np.concatenate((flat, np.ones((size, d - m))), axis=1)
        released = np.swapaxes(basis, 1, 2) @ (self._eigenvalues[:, None] * basis)
        prior = np.square(spreads)[:, None, None] * gamma[:, :, None] * gamma[:, None, :]
        kept = prior / (prior + self._noise)
        typical = centres[:, None] * gamma
        expected, identity = kept * released, np.eye(d)
        expected += (1.0 - kept) * typical[:, None, :] * identity
        variance = 0.5 * kept * self._noise * (1.0 + identity)
        error, score = (np.einsum("sji,...j->si", basis, of) if of.ndim == 1 else np.einsum("sji,sj->si", basis, of)
                        for of in (errors, self._score))  # fmt: skip
        noise = self._scores.noise + self._scores.sampling * typical
        normal = rng.standard_normal((size, d, d))
        normal = np.triu(normal) + np.swapaxes(np.triu(normal, 1), 1, 2)
        drawn = expected + np.sqrt(variance) * normal
        outer = error[:, :, None] * error[:, None, :]
        spread = variance * outer * (1.0 - identity)
        spread += (noise + np.einsum("sij,sj->si", variance, np.square(error)))[:, None, :] * identity
        missed = score - np.einsum("sij,sj->si", drawn, error) - np.sqrt(noise) * rng.standard_normal((size, d))
        moved = np.linalg.solve(spread, missed[..., None])[..., 0]
        update = moved[:, :, None] * error[:, None, :]
        drawn += variance * (update + np.swapaxes(update, 1, 2)) * (1.0 - 0.5 * identity)
        of_entry = 0.5 * self._noise * np.square(spreads) / (np.square(spreads) + self._noise)
        return MomentsDraws(self._basis @ basis, drawn, expected, typical, of_entry, np.zeros((size, d)))


def stratified(weight: FloatArray, size: int, sets: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw indices in proportion to weights: `size` of them in independent sets, innermost.

    A set has one draw from each of equally likely strata, in random order.
    """
    cumulative = np.cumsum(weight)
    place = rng.permuted(np.tile(np.arange(size // sets), (sets, 1)), axis=1).T + rng.uniform(size=(size // sets, sets))
    found = np.searchsorted(cumulative, place.ravel() * (sets / size * cumulative[-1]))
    return np.asarray(np.minimum(found, len(cumulative) - 1), dtype=np.int64)


def _cut_at_zero(mean: FloatArray, stddev: float) -> FloatArray:
    """Return the means of normal laws that are held above zero."""
    z = mean / stddev
    return np.asarray(mean + stddev * np.exp(-0.5 * np.square(z) - special.log_ndtr(z)) / math.sqrt(2.0 * math.pi))


def _proposal(covariance: FloatArray) -> FloatArray:
    """Return a factor of a covariance, the covariance and its inverse, (3, d, d)."""
    return np.stack((np.linalg.cholesky(covariance), covariance, np.linalg.inv(covariance)))


def _levels() -> tuple[FloatArray, FloatArray]:
    """Return gamma at the nodes of its grid, and the log of its prior there."""
    chosen, reach = tuning.TUNING, np.linspace(-4.0, 4.0, 81)
    away = _LOGITS[:, None] - chosen.location - chosen.location_stddev * reach
    prior = (special.expit(away) * special.expit(-away)) @ np.exp(-0.5 * np.square(reach))
    level = chosen.flattest + (1.0 - chosen.flattest) * special.expit(_LOGITS) ** chosen.power
    return np.square(level), np.log(prior / prior.sum())
