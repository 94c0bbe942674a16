"""The law of second moments given a noisy release: near a multiple of the identity, by as much as the release says.

M is c I plus a symmetric normal matrix of learned spread t, also given the release.  A mean score M e, with e the error
of the weights at its point, is then normal given e: M is integrated out, and drawn in closed form given e.  Where
nothing is hidden, the score determines e well, and the whole posterior is normal.  Where directions are hidden, e, t
and c are drawn: independent proposals near their law, drawn again by their density.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton import tuning
from dpinfer.inference.posterior.mixture import in_parts

IntArray = npt.NDArray[np.int64]

_SPREADS, _UNLIKELY = 45, 20.0  # nodes where the log density is so near to its largest
_SMALL = 0.3  # nodes are even in their log above so many standard deviations of the noise, and in themselves below
_SWEEPS, _CLOSE = 30, 1e-3  # of a fixed point: variances of errors to a thousandth of all noise
_LEAST = 1e-3  # moves a posterior's variance by a millionth of the least that scores can leave: tolerance
_FINE = 40  # parts of an interval of a grid
_MOVED = 6.0  # standard deviations that scores can move offset and centre by, with few weights: tolerance
# Log of the mass that is left out; share of even proposals; factor of standard deviations; share beyond the outer
# offsets; bisections; proposals for a draw; tolerance.
_NEGLIGIBLE, _FLOOR, _WIDER, _EDGE, _BISECTIONS, _PROPOSED, _MADE = 9.0, 0.05, 1.05, 0.003, 30, 8, 2
_BESIDE = 0.6  # steps of a grid by which a law may go on beyond its last node of some mass: a half, and a margin
_DEAD = 60.0  # log of a weight that no draw has: nothing more is computed for it; tolerance
_LEAST_LOG = 600.0  # of a power of a density, which steps are divided by: tolerance


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

    @property
    def prior_covariance(self) -> FloatArray:
        """Of the weights, (d, d)."""
        return self.prior_factor @ self.prior_factor.T


@dataclass(frozen=True)
class MomentsDraws:
    """Draws of M, or what stands for them, in an orthogonal basis."""

    basis: FloatArray  # (d, d): columns in the coordinates of z: eigenvectors of the release
    matrix: FloatArray  # (S, d, d)
    expected: FloatArray  # (S, d): the diagonal matrix that the release alone expects
    sampled: FloatArray  # (S, d): the same held above zero: what the score varies by in other samples
    variance: FloatArray  # (S,): of an entry beside the diagonal given the release
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
        return MomentsDraws(self.basis, whole, own, own, variance, extra[chosen, 0], sets)

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


class ErrorLaw:
    """The law of the weights' error e given score and release, spread t and centre c of M drawn or integrated out.

    Given e the score is normal: M e has mean m e and covariance s (|e|**2 I + e e'), with m and s those of M's entries
    given the release.
    """

    def __init__(self, law: MomentsLaw, threads: int = 1) -> None:
        self._law, self._threads, d = law, threads, len(law.eigenvalues)
        # Given nodes of t, (K,) of these weights: the share that is kept, variances of entries, the centre's law, M's
        # eigenvalues as expected above zero, (K, d), and the variance of the score, (K, d).
        self._kept, self.weight = law.kept, law.weight
        self._entry, self._middle = 0.5 * self._kept * law.noise, float(np.mean(law.eigenvalues))
        self._width = np.sqrt((np.square(law.spreads) + law.noise) / d)
        self.sampled = law.expected(np.full(len(law.kept), np.clip(self._middle, *law.ends)), law.kept)[1]
        self.noise = law.scores.noise + law.scores.sampling * self.sampled
        self.hidden = law.hidden  # in so many directions, the first, M is held positive definite
        self.counted = 1.0  # share of the last draws that they were worth after that

    def _centre(self, width: FloatArray, precision: FloatArray, information: FloatArray) -> tuple[FloatArray, ...]:
        """Return the log of the integral of exp(information c - precision c**2 / 2) over c's law, and that of c then.

        The latter is the mean and precision of a normal law that is cut at `ends`.
        """
        total = precision + width**-2.0
        mean = (information + self._middle / width**2) / total
        low, high = ((end - mean) * np.sqrt(total) for end in self._law.ends)
        turned = low + high > 0.0  # tails are exact below zero
        below, above = special.log_ndtr(np.where(turned, (-high, -low), (low, high)))
        mass = above + np.log1p(-np.exp(below - above))
        mass += 0.5 * (total * mean**2 - (self._middle / width) ** 2 - np.log(total * width**2))
        return mass, mean, total, below, above, np.where(turned, -1.0, 1.0)

    def _score_given(self, of: IntArray, error: FloatArray) -> tuple[FloatArray, ...]:
        """Return the log density of score and error given t, (S,), up to a constant, and c's law given these."""
        law, entry = self._law, self._entry[of]
        noise = self.noise[of] + (entry * np.sum(np.square(error), axis=1))[:, None]
        one = 1.0 + entry * np.sum(np.square(error) / noise, axis=1)
        # What the score misses, what the centre moves it by; products by the inverse of a diagonal matrix and rank one.
        both = law.score - self._kept[of][:, None] * law.eigenvalues * error, (1.0 - self._kept[of])[:, None] * error
        along = [np.sum(part * error / noise, axis=1) for part in both]
        square, across, moved = (
            np.sum(both[i] * both[j] / noise, axis=1) - entry * along[i] * along[j] / one
            for i, j in ((0, 0), (0, 1), (1, 1))
        )
        mass, *centre = self._centre(self._width[of], moved, across)
        weights = error + law.position
        square += np.sum((weights @ law.prior_precision) * weights, axis=1)
        return mass - 0.5 * (np.sum(np.log(noise), axis=1) + np.log(one) + square), *centre

    def _moments_given(
        self,
        error: FloatArray,
        of: IntArray,
        centre: Sequence[FloatArray],
        size: int,
        sets: int,
        rng: np.random.Generator,
    ) -> MomentsDraws:
        """Draw c and M given errors and t; `size` of them are drawn again, set by set, if M is held positive definite.

        A draw of M and of its score, given the release alone, is moved to the observed score: both are normal, and the
        move is the difference of their conditional means.
        """
        law, (number, d) = self._law, error.shape
        mean, precision, below, above, sign = centre
        place = rng.uniform(size=number)
        drawn = special.ndtri_exp(np.logaddexp(below + np.log1p(-place), above + np.log(place)))
        kept, entry = self._kept[of][:, None], self._entry[of]
        values = kept * law.eigenvalues + (1.0 - kept) * (mean + sign * drawn / np.sqrt(precision))[:, None]
        half = rng.standard_normal((number, d, d))
        missed, pivots = rng.standard_normal((number, d)), rng.uniform(size=(number, self.hidden))
        matrix, log_weight = in_parts(self._matrices_given, self._threads, error, of, values, half, missed, pivots)
        if self.hidden:
            weight = np.exp(log_weight - log_weight.max())
            self.counted = float(np.sum(weight) ** 2 / np.sum(np.square(weight)) / number)
            again = _again(log_weight, size, sets, rng, np.sum(np.square(error), axis=1))
            matrix, values, of, entry = matrix[again], values[again], of[again], entry[again]
        extra = np.zeros((size, d))
        return MomentsDraws(law.basis, matrix, values, self.sampled[of], entry, extra, sets, self._threads)

    def _matrices_given(
        self,
        error: FloatArray,
        of: IntArray,
        values: FloatArray,
        # half, missed, place: standard normal and uniform draws
        half: FloatArray,
        missed: FloatArray,
        place: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Draw M of given means, and return it with its log weight, on one core."""
        entry, noise, vector = self._entry[of], self.noise[of], error[:, :, None]
        half *= np.sqrt(0.5 * entry)[:, None, None]  # M less values is the sum of this and its transpose
        missed = self._law.score - values * error - np.sqrt(noise) * missed
        missed -= ((half + np.swapaxes(half, 1, 2)) @ vector)[:, :, 0]
        noise = noise + (entry * np.sum(np.square(error), axis=1))[:, None]
        turned = error / noise
        by = entry * np.sum(missed * turned, axis=1) / (1.0 + entry * np.sum(error * turned, axis=1))
        half += (entry[:, None] * (missed / noise - by[:, None] * turned))[:, :, None] * error[:, None, :]
        matrix = half + np.swapaxes(half, 1, 2)
        np.einsum("sii->si", matrix)[:] += values
        if not self.hidden:
            return matrix, np.zeros(len(matrix))
        return matrix, self._made_definite(matrix, values, error, of, place)

    def _made_definite(
        self, matrix: FloatArray, values: FloatArray, error: FloatArray, of: IntArray, place: FloatArray
    ) -> FloatArray:
        """Draw M's diagonal in hidden directions anew, so that M is positive definite, and return log weights, (S,).

        Entries of the diagonal are independent normal given the rest of M, error and score.  From the last to the
        first, each is drawn so that its matrix with the later ones is positive definite, with a probability that is the
        weight.
        """
        law, h = self._law, self.hidden
        error, whole = error[:, :h], (matrix[:, :h] @ error[:, :, None])[:, :, 0]
        diagonal, entry, noise = np.einsum("sii->si", matrix)[:, :h], self._entry[of][:, None], self.noise[of][:, :h]
        precision = 0.5 / entry + np.square(error) / noise
        mean = 0.5 * values[:, :h] / entry + error * (law.score[:h] - whole + diagonal * error) / noise
        mean, stddev, log_weight = (mean / precision).T, (precision**-0.5).T, np.zeros(len(matrix))
        diagonal[:], across = 0.0, matrix[:, h:, :h]
        left = matrix[:, :h, :h] - np.swapaxes(across, 1, 2) @ np.linalg.solve(matrix[:, h:, h:], across)
        left = np.ascontiguousarray(np.moveaxis(left, 0, 2))
        for j in reversed(range(h)):
            z = (mean[j] + left[j, j]) / stddev[j]
            share = special.log_ndtr(z)
            beyond = z - special.ndtri_exp(share + np.log(place[:, j]))
            pivot = stddev[j] * np.maximum(beyond, _LEAST)
            diagonal[:, j], log_weight = pivot - left[j, j], log_weight + share
            column = np.where(log_weight > -_DEAD, left[:j, j], 0.0)
            left[:j, :j] -= column[:, None] * (column / pivot)
        return log_weight


class ErrorDraws(ErrorLaw):
    """Independent draws of the weights' error e, the spread t and the centre c, with M integrated out.

    M e is (m + sqrt(s) x) e + sqrt(s) |e| z with x and z standard normal: given t and the offset a = (1 - k) c +
    sqrt(s) x the noise of the score depends on |e|**2 = r alone.  Proposals are normal laws at nodes of t, a and r,
    drawn again in proportion to density over proposals' density (docs/derivations/private-newton.md).
    """

    def __init__(self, law: MomentsLaw, threads: int = 1) -> None:
        d = len(law.eigenvalues)
        step = int(np.clip(math.sqrt(d), 2, tuning.TUNING.nodes_apart))
        some, size = law.spreads[:: 2 * step], len(law.spreads[::step])
        super().__init__(law := law.at(some, 2 * step * law.width[:: 2 * step]), threads)
        far = 4.0 * (np.trace(law.scores.prior_covariance) + law.position @ law.position)
        near = np.clip(0.01 * np.min(self.noise.min(axis=1) / self._entry), 1e-12 * far, 1e-3 * far)
        ends = self._offset_ends()
        offsets = np.linspace(ends[:, 0], ends[:, 2], tuning.TUNING.offsets + 2, axis=1)[:, 1:-1]
        offsets = np.sort(np.hstack((offsets, ends)), axis=1)
        # Few lengths, until several nodes are where their law is; then all lengths where it is not negligible.
        fine, low, high, resolved = math.sqrt(2.0 / d), math.log(near), math.log(far), False
        for number in range(tuning.TUNING.rounds + 1):
            apart = fine * max(int(tuning.TUNING.lengths_apart[min(number, 1)] / fine), 1)
            places = np.arange(low, high + apart, apart)
            nodes = np.arange(len(offsets))[:, None, None], offsets[:, :, None], np.exp(places)
            (mass,) = self._proposals(*map(np.ravel, np.broadcast_arrays(*nodes)), kept=1)
            mass = mass.reshape(*offsets.shape, -1)
            some = places[np.flatnonzero(mass.max(axis=(0, 1)) > mass.max() - _NEGLIGIBLE)]
            low, high = some[0] - _BESIDE * apart, some[-1] + _BESIDE * apart
            if resolved or number == tuning.TUNING.rounds:
                break
            by_offset = special.logsumexp(mass, axis=2)
            by_spread = special.logsumexp(by_offset + np.log(np.gradient(offsets, axis=1)), axis=1)
            likely = by_spread > by_spread.max() - tuning.TUNING.flat
            flat = by_offset > by_offset.max(axis=1, keepdims=True) - tuning.TUNING.flat
            finer = [_finer(*row, tuning.TUNING.offsets, _EDGE)[0] for row in zip(offsets, by_offset, strict=True)]
            before, after = law.spreads, _finer(law.spreads, by_spread - np.log(law.width), size, 0.0)
            super().__init__(law := law.at(*after), threads)
            offsets = np.stack([np.interp(law.spreads, before, part) for part in np.transpose(finer)], axis=1)
            offsets = np.sort(np.hstack((offsets, self._offset_ends())), axis=1)
            resolved = bool(min(np.sum(likely), *np.sum(flat[likely], axis=1)) >= tuning.TUNING.resolved)
        each = np.log(np.gradient(offsets, axis=1))
        between = np.arange(low, high + fine, max(fine, tuning.TUNING.laws_apart))
        at = np.clip((between - places[0]) / apart, 0.0, len(places) - 1.001)
        left = at.astype(np.int64)
        mass = mass[:, :, left] + (at - left) * (mass[:, :, left + 1] - mass[:, :, left]) + each[:, :, None]
        node, offset, length = np.nonzero(mass > mass.max() - _NEGLIGIBLE)
        mass, *laws = self._proposals(node, offsets[node, offset], np.exp(between[length]))
        mass += each[node, offset]
        share = np.exp(mass - special.logsumexp(mass))
        self._share = (share + _FLOOR / share.size) / (1.0 + _FLOOR)
        self._of, (self._mean, self._root, self._told, self._precision, self._log) = node, laws
        self._log += np.log(self._share)

    def _offset_ends(self) -> FloatArray:
        """Return the least offset, the one of c's lower end, where the density may rise steeply, and the largest."""
        # The scores, d of them, can move c and x by a multiple of sqrt(d) standard deviations.
        moved = max(_MOVED, math.sqrt(len(self._law.eigenvalues))) * np.array([[-1.0], [1.0]])
        low, high = (1.0 - self._kept) * np.clip(self._middle + moved * self._width, *self._law.ends)
        far = moved[1] * np.sqrt(self._entry)
        return np.column_stack((low - far, low, high + far))

    def _proposals(self, *nodes: npt.NDArray[Any], kept: int | None = None) -> tuple[FloatArray, ...]:
        """Return logs of the mass around nodes of (t, a, r) (Daniels 1954), (N,), and normal laws there.

        Of each: mean, root of the covariance, information, precision less the prior's, and the log density at zero.
        `kept`: the first so many of these.
        """
        entries = self._law.basis.size
        return in_parts(lambda *part: self._proposals_of(*part)[:kept], self._threads, *nodes, entries=entries)

    def _proposals_of(self, of: IntArray, offset: FloatArray, length: FloatArray) -> tuple[FloatArray, ...]:
        """Return the laws of some nodes, on one core."""
        law, d, kept, entry = self._law, len(self._law.eigenvalues), self._kept[of], self._entry[of]
        moved = 1.0 - kept
        mass = self._centre(self._width[of], moved**2 / entry, moved * offset / entry)[0]
        mass += np.log(self.weight)[of] - 0.5 * (np.square(offset) / entry + np.log(entry))
        values = kept[:, None] * law.eigenvalues + offset[:, None]
        noise = self.noise[of] + (entry * length)[:, None]
        told = values * law.score / noise - law.prior_precision @ law.position
        precision, turn = np.linalg.eigh((np.square(values) / noise)[:, :, None] * np.eye(d) + law.prior_precision)
        right = np.einsum("sij,si->sj", turn, told)
        # The tilt, added to the least precision, by bisection: the mean of |e|**2 falls with it.
        above = precision - precision[:, :1]
        high = np.log(d / length * (1.0 + np.sqrt(np.sum(np.square(right), axis=1) * length))) + 3.0
        low = np.minimum(-np.log(length) - 5.0, high - 1.0)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            tilted = above + np.exp(middle)[:, None]
            longer = np.sum(1.0 / tilted + np.square(right / tilted), axis=1) > length
            low, high = np.where(longer, middle, low), np.where(longer, high, middle)
        mean, tilt = right / tilted, np.exp(middle) - precision[:, 0]
        variance = np.sum(2.0 / np.square(tilted) + 4.0 * np.square(mean) / tilted, axis=1)
        fit, logs = np.sum(right * mean, axis=1), np.sum(np.log(tilted), axis=1)
        left = np.sum(np.log(noise) + np.square(law.score) / noise, axis=1) + logs - fit
        mass += 0.5 * (tilt * length - left - np.log(variance)) + np.log(length)
        mean = np.einsum("sij,sj->si", turn, mean)
        root = turn * (_WIDER / np.sqrt(tilted))[:, None, :]
        return mass, mean, root, told, np.square(values) / noise + tilt[:, None], 0.5 * (logs - fit / _WIDER**2)

    def draw(self, size: int, sets: int, rng: np.random.Generator) -> MomentsDraws:
        """Draw M: propose errors in independent sets, draw a few of them again by their weight, and M given each."""
        d, proposed = len(self._law.eigenvalues), _PROPOSED * size
        chosen = stratified(self._share, proposed, sets, rng)
        of = self._of[chosen]
        error: npt.NDArray[Any] = rng.standard_normal((proposed, d))
        order = np.argsort(chosen, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(chosen[order])) + 1):
            error[own] = self._mean[chosen[own[0]]] + error[own] @ self._root[chosen[own[0]]].T
        log_weight, *centre = self._score_given(of, error)
        along_prior = np.sum((error @ self._law.prior_precision) * error, axis=1)
        log_weight += np.log(self.weight[of]) + 0.5 * along_prior / _WIDER**2
        for node in np.unique(of):
            own, parts = np.flatnonzero(of == node), np.flatnonzero(self._of == node)
            logs = error[own] @ self._told[parts].T - 0.5 * np.square(error[own]) @ self._precision[parts].T
            logs = self._log[parts] + logs / _WIDER**2
            top = logs.max(axis=1)
            log_weight[own] -= top + np.log(np.sum(np.exp(logs - top[:, None]), axis=1))
        # Those that are drawn again have all lengths in even shares: some are mostly far from zero.
        again = _again(log_weight, (_MADE if self.hidden else 1) * size, sets, rng, np.sum(np.square(error), axis=1))
        error, of, *centre = (part[again] for part in (error, of, *centre))
        return self._moments_given(error, of, centre, size, sets, rng)


def _again(log_weight: FloatArray, size: int, sets: int, rng: np.random.Generator, key: FloatArray) -> IntArray:
    """Return indices of draws, (size,), resampled within each set by their weights, from even shares of `key`."""
    order = np.argsort(key.reshape(-1, sets), axis=0)
    by_set = np.take_along_axis(log_weight.reshape(-1, sets), order, axis=0)
    ends = np.cumsum(np.exp(by_set - by_set.max(axis=0)), axis=0)
    ends = (ends / ends[-1] + np.arange(sets)).T.ravel()
    place = (np.arange(size // sets)[:, None] + rng.uniform(size=(size // sets, sets))) * (sets / size)
    again = np.searchsorted(ends, (place + np.arange(sets)).ravel()) % len(by_set)
    of_set = np.tile(np.arange(sets), size // sets)
    return np.asarray(order[again, of_set] * sets + of_set)


def _finer(nodes: FloatArray, log_density: FloatArray, size: int, below: float) -> tuple[FloatArray, FloatArray]:
    """Return `size` nodes that have equal parts of a power of a density, and their widths: steps over that power.

    The density falls little between two of them; it is log-linear between nodes; `below` is the part below the first.
    """
    top, index = int(np.argmax(log_density)), np.arange(nodes.size)
    fall = log_density[top] - np.max(np.delete(log_density, top)[max(top - 1, 0) : top + 1])
    fine = np.linspace(0.0, nodes.size - 1.0, _FINE * (nodes.size - 1) + 1)
    place = np.interp(fine, index, nodes)
    power = min(0.5, 3.0 / max(fall, 1e-300)) * (np.interp(fine, index, log_density) - log_density[top])
    power = np.exp(np.maximum(power, -_LEAST_LOG))
    cumulative = np.append(0.0, np.cumsum(0.5 * (power[1:] + power[:-1]) * np.diff(place)))
    part = np.linspace(below, 1.0 - _EDGE, size) * cumulative[-1]
    width = (part[1] - part[0]) / np.interp(part, cumulative, power)
    width[[0, -1]] *= 0.5
    return np.interp(part, cumulative, place), width


def stratified(weight: FloatArray, size: int, sets: int, rng: np.random.Generator) -> IntArray:
    """Draw indices in proportion to weights: `size` of them in independent sets, innermost.

    A set has one index from each of equally likely strata, in random order.
    """
    cumulative = np.cumsum(weight)
    place = rng.permuted(np.tile(np.arange(size // sets), (sets, 1)), axis=1).T + rng.uniform(size=(size // sets, sets))
    found = np.searchsorted(cumulative, place.ravel() * (sets / size * cumulative[-1]))
    return np.asarray(np.minimum(found, len(cumulative) - 1), dtype=np.int64)
