"""The law of second moments given a noisy release: near a multiple of the identity, by as much as the release says.

M is c I plus a symmetric normal matrix of learned spread t, also given the release.  Where nothing is hidden the mean
score determines the weights' error well, and the whole posterior is normal.
"""

import copy
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton import tuning

IntArray = npt.NDArray[np.int64]

_SPREADS, _UNLIKELY = 45, 20.0  # nodes where the log density is so near to its largest
_SMALL = 0.3  # nodes are even in their log above so many standard deviations of the noise, and in themselves below
_SWEEPS, _CLOSE = 30, 1e-3  # of a fixed point: variances of errors to a thousandth of all noise
_LEAST = 1e-3  # moves a posterior's variance by a millionth of the least that scores can leave: tolerance


@dataclass(frozen=True)
class MeanScores:
    """What scores over their slopes say: score = M (u - position) + noise, u normal around zero."""

    # score, position: (d,): mean of the measured scores, and of the points where they were taken
    score: FloatArray
    position: FloatArray
    # noise, sampling: variance of the mean score: of the privacy noise, and of sampling in units of M
    noise: float
    sampling: float
    prior_factor: FloatArray  # (d, d): F with F F' the prior covariance of the weights
    # (d, d): sums of v v' and of y v' over earlier scores y = M v + noise, over its variance: v is known
    steps: tuple[FloatArray, FloatArray] | None = None

    @property
    def prior_covariance(self) -> FloatArray:
        """Of the weights, (d, d)."""
        return self.prior_factor @ self.prior_factor.T


@dataclass(frozen=True)
class MomentsDraws:
    """Draws of M, or what stands for them, in an orthogonal basis."""

    basis: FloatArray  # (d, d): columns in the coordinates of z: eigenvectors of the release
    matrix: FloatArray  # (S, d, d)
    sampled: (
        FloatArray  # (S, d): M's diagonal as the release alone expects it: what the score varies by in other samples
    )
    variance: FloatArray  # (S,): of an entry beside the diagonal given `matrix`
    extra: FloatArray  # (S, d): variance of the mean score from what `matrix` is wrong by
    sets: int = 1  # how many independent sets they are, innermost
    threads: int = 1  # cores that compute with them


class MomentsLaw:
    """The law of M given a noisy release, and a mean score."""

    def __init__(
        self,
        # (d, d): M with noise of standard deviation `stddev` in each diagonal entry, 1 / sqrt(2) of it beside the
        # diagonal
        noisy: FloatArray,
        stddev: float,
        scores: MeanScores,
    ) -> None:
        self.eigenvalues, self.basis = np.linalg.eigh(noisy)
        self.noise, self.scores = stddev**2, scores
        d, chosen = len(noisy), tuning.TUNING
        # In so many directions, the first, M may have negative eigenvalues: others exceed the norm of the noise by two
        # standard deviations.
        self.hidden = int(np.count_nonzero(self.eigenvalues < (math.sqrt(2.0 * d) + 2.0) * stddev))
        unit = max(float(np.mean(self.eigenvalues)), stddev / math.sqrt(d))
        self.ends = unit * chosen.least_centre, unit * chosen.largest_centre
        self.score, self.position = scores.score @ self.basis, scores.position @ self.basis
        # A prior far below anything that a score tells is as wide as _LEAST of that: double precision holds both.
        least = _LEAST**2 * scores.noise / max(float(self.eigenvalues[-1] ** 2), self.noise)
        root = np.linalg.cholesky(self.basis.T @ scores.prior_covariance @ self.basis + least * np.eye(d))
        root = np.linalg.inv(root)
        self.prior_precision = root.T @ root
        # Nodes of the spread given the release, first anywhere; spreads far below the noise are all the same.
        small = _SMALL * stddev
        ends = unit * np.array([chosen.least_spread, chosen.largest_spread])
        for _ in range(2):
            low, high = np.arcsinh(ends / small)
            places = np.linspace(low, high, _SPREADS)
            width = small * np.cosh(places) * (high - low) / (_SPREADS - 1)
            width[[0, -1]] *= 0.5
            self._place(small * np.sinh(places), width)
            likely = np.flatnonzero(self.weight > math.exp(-_UNLIKELY))
            ends = self.spreads[[max(likely[0] - 1, 0), min(likely[-1] + 1, _SPREADS - 1)]]

    def _place(self, spreads: FloatArray, width: FloatArray) -> None:
        """Set nodes of the spread, with their weights for given widths: the centre is integrated out."""
        total, d = np.square(spreads) + self.noise, len(self.eigenvalues)
        energy = float(np.sum(np.square(self.eigenvalues - np.mean(self.eigenvalues))))
        self.spreads, self.width, self.kept = spreads, width, np.square(spreads) / total
        log_weight = np.log(self.width) - 0.5 * ((0.5 * d * (d + 1) - 1) * np.log(total) + energy / total)
        self.weight = np.exp(log_weight - log_weight.max())

    def at(self, spreads: FloatArray, width: FloatArray) -> "MomentsLaw":
        """Return the law with other nodes of the spread, of given widths."""
        law = copy.copy(self)
        law._place(spreads, width)
        return law

    def expected(
        self,
        # centre, kept: (S,): c, and the share of the release that is kept
        centre: FloatArray,
        kept: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Return eigenvalues of M that the release expects, and their means where they are above zero, (S, d)."""
        values = centre[:, None] + kept[:, None] * (self.eigenvalues - centre[:, None])
        stddev = np.sqrt(kept * self.noise)[:, None]
        z = values / stddev
        above = values + stddev * np.exp(-0.5 * np.square(z) - special.log_ndtr(z)) / math.sqrt(2.0 * math.pi)
        return values, above

    @property
    def bent(self) -> float:
        """By how much weights are moved as their scores are no linear function of M, in posterior standard deviations.

        With M off by E, the inverse of M + E is so by M^-1 E M^-1 E M^-1: at the likeliest t.
        """
        return float(self._expected_errors(np.array([np.argmax(self.weight)]))[2].max())

    def normal(self, size: int, sets: int, rng: np.random.Generator) -> MomentsDraws:
        """Return what stands for M where all directions are told from zero: draws of t, in independent sets."""
        nodes, chosen = np.unique(stratified(self.weight, size, sets, rng), return_inverse=True)
        values, extra, _ = self._expected_errors(nodes)
        own = values[chosen]
        whole = own[:, :, None] * np.eye(own.shape[1])
        variance = 0.5 * self.kept[nodes][chosen] * self.noise
        return MomentsDraws(self.basis, whole, own, variance, extra[chosen, 0], sets)

    def _expected_errors(self, nodes: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return M's eigenvalues at nodes of t, (K, d), what scores are off by as M is, (K, 1, d), and what that bends.

        M is at its mean given release and t, eigenvalues above zero.  With M off by a matrix of independent entries of
        variance s / 2 beside the diagonal, s on it, M e is off by s (|e|**2 I + e e') / 2: e is what the score expects.
        """
        d, kept = len(self.eigenvalues), self.kept[nodes]
        value, position, noise = self.score[None], self.position[None], np.array([[self.scores.noise]])
        centre = np.full(len(nodes), np.clip(np.mean(self.eigenvalues), *self.ends))
        _, values = self.expected(centre, kept)
        variance, of_level = (kept * self.noise)[:, None, None], ((1.0 - kept) * self.noise / d)[:, None, None]
        extra = np.zeros((len(nodes), *value.shape))
        for _ in range(_SWEEPS):
            said, at, own = combined(value, position, noise + extra)
            total = own + self.scores.sampling * values
            precision = (np.square(values) / total)[:, :, None] * np.eye(d) + self.prior_precision
            covariance = np.linalg.inv(precision)
            mean = np.einsum("sij,sj->si", covariance, values / total * (said + values * at))
            own_variance = np.einsum("sii->si", covariance)
            squares = np.square(mean[:, None] - position) + own_variance[:, None]
            before, extra = extra, 0.5 * variance * (squares.sum(axis=2)[..., None] + squares) + of_level * squares
            if np.all(np.abs(extra - before) < _CLOSE * (noise + extra)):
                break
        inverse = 1.0 / values
        bent = 0.5 * variance[:, 0] * inverse * (inverse + inverse.sum(axis=1, keepdims=True))
        return values, extra, bent * np.sqrt(squares[:, 0] / own_variance)


def combined(value: FloatArray, position: FloatArray, noise: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the mean of scores (..., T, d) by their precisions, that of their positions, and the mean's variance."""
    precision = 1.0 / noise
    total = precision.sum(axis=-2)
    return (precision * value).sum(axis=-2) / total, (precision * position).sum(axis=-2) / total, 1.0 / total


def stratified(weight: FloatArray, size: int, sets: int, rng: np.random.Generator) -> IntArray:
    """Draw indices in proportion to weights: `size` of them in independent sets, innermost.

    A set has one index from each of equally likely strata, in random order.
    """
    cumulative = np.cumsum(weight)
    place = rng.permuted(np.tile(np.arange(size // sets), (sets, 1)), axis=1).T + rng.uniform(size=(size // sets, sets))
    found = np.searchsorted(cumulative, place.ravel() * (sets / size * cumulative[-1]))
    return np.asarray(np.minimum(found, len(cumulative) - 1), dtype=np.int64)
