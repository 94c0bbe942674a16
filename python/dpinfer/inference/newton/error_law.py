"""The law of the weights' error e given scores and a noisy release, and independent draws from it.

A mean score M e is normal given e: M is integrated out, and drawn in closed form given e.  Where directions are hidden,
e and the spread t and centre c of M are drawn: proposals near their law, drawn again by their density.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.moments_law import IntArray, MomentsDraws, MomentsLaw, stratified
from dpinfer.inference.posterior.mixture import in_parts

_FINE = 40  # parts of an interval of a grid
_MOVED = 6.0  # standard deviations that scores can move offset and centre by, with few weights: tolerance
# Log of the mass that is left out; share of even proposals; factor of standard deviations; share beyond the outer
# offsets; bisections; proposals for a draw; tolerance.
_NEGLIGIBLE, _FLOOR, _WIDER, _EDGE, _BISECTIONS, _PROPOSED, _MADE = 9.0, 0.05, 1.05, 0.003, 30, 8, 2
_TOLD = 0.01  # least share by which earlier scores change a variance of M's entries: tolerance
_BESIDE = 0.6  # steps of a grid by which a law may go on beyond its last node of some mass: a half, and a margin
_DEAD = 60.0  # log of a weight that no draw has: nothing more is computed for it; tolerance
_LEAST_LOG = 600.0  # of a power of a density, which steps are divided by: tolerance
_LEAST_PIVOT = 1e-3  # of a matrix, in standard deviations of its diagonal: keeps divisions finite


class ErrorLaw:
    """The law of the weights' error e given scores and release, spread t and centre c of M drawn or integrated out.

    Earlier scores measure M along a few directions.  In a basis that has these, entries of M are independent given
    release and earlier scores, with variances v beside the diagonal and 2 v on it: given e the mean score is normal,
    M e has mean m e and covariance diag(v e**2) + v * (e e').
    """

    def __init__(self, law: MomentsLaw, threads: int = 1) -> None:
        self._law, self._threads, d = law, threads, len(law.eigenvalues)
        self.turn, self.seen, self.hidden = self._basis_of_steps()
        self.score, self.position = law.score @ self.turn, law.position @ self.turn
        self.prior_precision = self.turn.T @ law.prior_precision @ self.turn
        # Given nodes of t, (K,): the share that is kept, variances of entries of unseen directions, the centre's law: c
        # is that less the release's own, the middle.
        self._kept, entry, middle = law.kept, 0.5 * law.kept * law.noise, float(np.mean(law.eigenvalues))
        self._entry, self._ends = entry, (law.ends[0] - middle, law.ends[1] - middle)
        self._width = np.sqrt((np.square(law.spreads) + law.noise) / d)
        sampled = law.expected(np.full(len(law.kept), np.clip(middle, *law.ends)), law.kept)[1]
        self.sampled = sampled @ np.square(self.turn)  # (K, d): M's diagonal, as the release alone expects it
        self.noise = law.scores.noise + law.scores.sampling * self.sampled  # (K, d): variance of the score
        # (K, d, d): variances v, and mean m at c = 0; (K, d): derivative of its diagonal in c; what earlier scores say.
        release, seen = (self.turn.T * law.eigenvalues) @ self.turn, np.zeros((d, d))
        if law.scores.steps is not None:
            seen = self.turn.T @ law.basis.T @ law.scores.steps[1] @ law.basis @ self.turn * (self.seen > 0.0)
        told = (1.0 / entry)[:, None, None] + self.seen + self.seen[:, None]
        before = release + (middle * (1.0 - self._kept) / self._kept)[:, None, None] * np.eye(d)
        before, moved = (self._kept / entry)[:, None, None] * before, (1.0 - self._kept) / entry
        self._variance = 1.0 / told
        self._mean = self._variance * (before + seen + seen.T)
        own = np.einsum("kii->ki", self._variance)
        self._slope = moved[:, None] * own
        # Evidence of the earlier scores for t and c: a quadratic function of c.
        square = told * np.square(self._mean) - entry[:, None, None] * np.square(before)
        self._log = np.log(law.weight) + 0.25 * np.sum(square, axis=(1, 2))
        logs = np.log(told * entry[:, None, None])
        self._log -= 0.25 * (np.sum(logs, axis=(1, 2)) + np.einsum("kii->k", logs))
        self._told = 0.5 * moved**2 * np.sum(entry[:, None] - own, axis=1)
        diagonal = np.einsum("kii->ki", self._mean - entry[:, None, None] * before)
        self._said = 0.5 * moved * np.sum(diagonal, axis=1)
        self.counted = 1.0  # share of the last draws that they were worth after that

    def _basis_of_steps(self) -> tuple[FloatArray, FloatArray, int]:
        """Return a basis with the directions that earlier scores measure M along, precisions, (d,), and hidden ones.

        In so many directions, the first, M is held positive definite.
        """
        law, d = self._law, len(self._law.eigenvalues)
        if law.scores.steps is None or not law.hidden:
            return np.eye(d), np.zeros(d), law.hidden
        known, vectors = np.linalg.eigh(law.basis.T @ law.scores.steps[0] @ law.basis)
        number = int(np.count_nonzero(0.5 * known * law.noise > _TOLD))
        others, seen = vectors[:, : d - number], vectors[:, d - number :]
        values, own = np.linalg.eigh((others.T * law.eigenvalues) @ others)
        hidden = int(np.count_nonzero(values < (math.sqrt(2.0 * d) + 2.0) * math.sqrt(law.noise)))
        turn = np.hstack((others @ own[:, :hidden], seen, others @ own[:, hidden:]))
        precision = np.zeros(d)
        precision[hidden : hidden + number] = known[d - number :]
        return turn, precision, hidden + number

    def _centre(self, of: IntArray, precision: FloatArray, information: FloatArray) -> tuple[FloatArray, ...]:
        """Return the log weight of t with exp(information c - precision c**2 / 2) integrated over c, and c's law then.

        The latter is the mean and precision of a normal law that is cut at its ends.
        """
        width = self._width[of]
        total = precision + self._told[of] + width**-2.0
        mean = (information + self._said[of]) / total
        low, high = ((end - mean) * np.sqrt(total) for end in self._ends)
        turned = low + high > 0.0  # tails are exact below zero
        below, above = special.log_ndtr(np.where(turned, (-high, -low), (low, high)))
        mass = above + np.log1p(-np.exp(below - above))
        mass += 0.5 * (total * mean**2 - np.log(total * width**2))
        return self._log[of] + mass, mean, total, below, above, np.where(turned, -1.0, 1.0)

    def _score_given(self, of: IntArray, error: FloatArray) -> tuple[FloatArray, ...]:
        """Return the log density of score and error given t, (S,), up to a constant, and c's law given these."""
        along, solve, log_size = self._means(of, error), *self._covariance(of, error)
        both = self.score - along, self._slope[of] * error  # what the score misses, what the centre moves it by
        told = [solve(part) for part in both]
        square, across, moved = (np.sum(both[i] * told[j], axis=1) for i, j in ((0, 0), (0, 1), (1, 1)))
        mass, *centre = self._centre(of, moved, across)
        weights = error + self.position
        square += np.sum((weights @ self.prior_precision) * weights, axis=1)
        return mass - 0.5 * (log_size + square), *centre

    def _means(self, of: IntArray, error: FloatArray) -> FloatArray:
        """Return the mean of M e at c = 0, (S, d)."""
        along = np.empty_like(error)
        for node in np.unique(of):
            own = of == node
            along[own] = error[own] @ self._mean[node]
        return along

    def _covariance(self, of: IntArray, error: FloatArray) -> tuple[Callable[[FloatArray], FloatArray], FloatArray]:
        """Return a function that multiplies (S, d) by the inverse of the score's covariance, and the log determinant.

        The covariance is a diagonal matrix and one of rank one, but for the few directions that are seen.
        """
        seen, entry = np.flatnonzero(self.seen), self._entry[of]
        unseen = np.flatnonzero(self.seen == 0.0)
        e, f, square = error[:, unseen], error[:, seen], np.square(error)
        across = 1.0 / (1.0 / entry[:, None] + self.seen[seen])
        between = 1.0 / (1.0 / entry[:, None, None] + self.seen[seen] + self.seen[seen][:, None])
        length = np.sum(square[:, unseen], axis=1)
        noise = self.noise[of][:, unseen] + (entry * length + np.sum(across * square[:, seen], axis=1))[:, None]
        alpha = np.sum(np.square(e) / noise, axis=1)
        one, a = 1.0 + entry * alpha, across * f
        left = between * f[:, :, None] * f[:, None, :] - (alpha / one)[:, None, None] * a[:, :, None] * a[:, None, :]
        own = self.noise[of][:, seen] + across * length[:, None] + np.einsum("sij,sj->si", between, square[:, seen])
        np.einsum("sii->si", left)[:] += own
        log_size = np.sum(np.log(noise), axis=1) + np.log(one) + np.linalg.slogdet(left)[1]

        def solve(value: FloatArray) -> FloatArray:
            along = np.sum(e * value[:, unseen] / noise, axis=1)
            last = np.linalg.solve(left, (value[:, seen] - a * (along / one)[:, None])[:, :, None])[:, :, 0]
            drop = np.sum(a * last, axis=1)
            drop = drop + entry * (along - drop * alpha) / one
            found = np.empty_like(value)
            found[:, seen], found[:, unseen] = last, (value[:, unseen] - e * drop[:, None]) / noise
            return found

        return solve, log_size

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

        A draw of M and of its score, given release and earlier scores, is moved to the observed score: both are normal,
        and the move is the difference of their conditional means.
        """
        law, (number, d) = self._law, error.shape
        mean, precision, below, above, sign = centre
        place = rng.uniform(size=number)
        drawn = special.ndtri_exp(np.logaddexp(below + np.log1p(-place), above + np.log(place)))
        drawn = mean + sign * drawn / np.sqrt(precision)
        half = rng.standard_normal((number, d, d))
        missed, pivots = rng.standard_normal((number, d)), rng.uniform(size=(number, self.hidden))
        matrix, log_weight = in_parts(self._matrices_given, self._threads, error, of, drawn, half, missed, pivots)
        if self.hidden:
            weight = np.exp(log_weight - log_weight.max())
            self.counted = float(np.sum(weight) ** 2 / np.sum(np.square(weight)) / number)
            again = _again(log_weight, size, sets, rng, np.sum(np.square(error), axis=1))
            matrix, of = matrix[again], of[again]
        nothing = np.zeros((size, d))
        basis = law.basis @ self.turn
        return MomentsDraws(basis, matrix, self.sampled[of], nothing[:, 0], nothing, sets, self._threads)

    def _matrices_given(
        self,
        error: FloatArray,
        of: IntArray,
        centre: FloatArray,
        # half, missed, place: standard normal and uniform draws
        half: FloatArray,
        missed: FloatArray,
        place: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Draw M of given centres, and return it with its log weight, on one core."""
        variance = self._variance[of]
        half *= np.sqrt(0.5 * variance)  # M less its mean is the sum of this and its transpose
        half += 0.5 * self._mean[of]
        moved = centre[:, None] * self._slope[of]
        np.einsum("sii->si", half)[:] += 0.5 * moved
        missed = self.score - np.sqrt(self.noise[of]) * missed
        missed -= ((half + np.swapaxes(half, 1, 2)) @ error[:, :, None])[:, :, 0]
        turned = self._covariance(of, error)[0](missed)
        half += variance * turned[:, :, None] * error[:, None, :]
        matrix = half + np.swapaxes(half, 1, 2)
        if not self.hidden:
            return matrix, np.zeros(len(matrix))
        values = moved + np.einsum("kii->ki", self._mean)[of]
        return matrix, self._made_definite(matrix, values, error, of, place)

    def _made_definite(
        self, matrix: FloatArray, values: FloatArray, error: FloatArray, of: IntArray, place: FloatArray
    ) -> FloatArray:
        """Draw M's diagonal in hidden directions anew, so that M is positive definite, and return log weights, (S,).

        Entries of the diagonal are independent normal given the rest of M, error and score.  From the last to the
        first, each is drawn so that its matrix with the later ones is positive definite, with a probability that is the
        weight.
        """
        h = self.hidden
        error, whole = error[:, :h], (matrix[:, :h] @ error[:, :, None])[:, :, 0]
        diagonal, noise = np.einsum("sii->si", matrix)[:, :h], self.noise[of][:, :h]
        variance = np.einsum("kii->ki", self._variance)[of, :h]
        precision = 0.5 / variance + np.square(error) / noise
        mean = 0.5 * values[:, :h] / variance + error * (self.score[:h] - whole + diagonal * error) / noise
        mean, stddev, log_weight = (mean / precision).T, (precision**-0.5).T, np.zeros(len(matrix))
        diagonal[:], across = 0.0, matrix[:, h:, :h]
        left = matrix[:, :h, :h] - np.swapaxes(across, 1, 2) @ np.linalg.solve(matrix[:, h:, h:], across)
        left = np.ascontiguousarray(np.moveaxis(left, 0, 2))
        for j in reversed(range(h)):
            z = (mean[j] + left[j, j]) / stddev[j]
            share = special.log_ndtr(z)
            beyond = z - special.ndtri_exp(share + np.log(place[:, j]))
            pivot = stddev[j] * np.maximum(beyond, _LEAST_PIVOT)
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
        step = int(np.clip(math.sqrt(d) / 1.5, 2, tuning.TUNING.nodes_apart))
        some, size = law.spreads[:: 2 * step], len(law.spreads[::step])
        super().__init__(law := law.at(some, 2 * step * law.width[:: 2 * step]), threads)
        far = 4.0 * (np.trace(law.scores.prior_covariance) + self.position @ self.position)
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
        self._of, (self._place, self._root, self._pull, self._square, self._start) = node, laws
        self._start += np.log(self._share)

    def _offset_ends(self) -> FloatArray:
        """Return the least offset, the one of c's lower end, where the density may rise steeply, and the largest."""
        # The scores, d of them, can move c and x by a multiple of sqrt(d) standard deviations.
        moved = max(_MOVED, math.sqrt(len(self._law.eigenvalues))) * np.array([[-1.0], [1.0]])
        low, high = (1.0 - self._kept) * np.clip(moved * self._width, *self._ends)
        far = moved[1] * np.sqrt(self._entry)
        return np.column_stack((low - far, low, high + far))

    def _proposals(self, *nodes: npt.NDArray[Any], kept: int | None = None) -> tuple[FloatArray, ...]:
        """Return logs of the mass around nodes of (t, a, r) (Daniels 1954), (N,), and normal laws there.

        Of each: mean, root of the covariance, information, coefficients of the squares of (m e, e) at c = 0 in the
        precision less the prior's, and the log density at zero.
        `kept`: the first so many of these.
        """
        entries = self._law.basis.size
        return in_parts(lambda *part: self._proposals_of(*part)[:kept], self._threads, *nodes, entries=entries)

    def _proposals_of(self, of: IntArray, offset: FloatArray, length: FloatArray) -> tuple[FloatArray, ...]:
        """Return the laws of some nodes, on one core."""
        d, entry, moved = len(self.score), self._entry[of], 1.0 - self._kept[of]
        mass = self._centre(of, moved**2 / entry, moved * offset / entry)[0]
        mass -= 0.5 * (np.square(offset) / entry + np.log(entry))
        share = 1.0 / (1.0 + entry[:, None] * self.seen)  # of an unseen direction's variance
        noise, raised = self.noise[of] + share * (entry * length)[:, None], offset[:, None] * share
        values = self._mean[of] + raised[:, :, None] * np.eye(d)
        told = np.einsum("sij,sj->si", values, self.score / noise) - self.prior_precision @ self.position
        root = share**-0.5  # e over it has the length
        whole = (values / noise[:, None, :]) @ values + self.prior_precision
        precision, turn = np.linalg.eigh(root[:, :, None] * whole * root[:, None, :])
        right = np.einsum("sij,si->sj", turn, root * told)
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
        fit, logs = np.sum(right * mean, axis=1), np.sum(np.log(tilted) + np.log(share), axis=1)
        left = np.sum(np.log(noise) + np.square(self.score) / noise, axis=1) + logs - fit
        mass += 0.5 * (tilt * length - left - np.log(variance)) + np.log(length)
        mean = root * np.einsum("sij,sj->si", turn, mean)
        root = root[:, :, None] * turn * (_WIDER / np.sqrt(tilted))[:, None, :]
        square = np.hstack((1.0 / noise, raised / noise, np.square(raised) / noise + tilt[:, None] * share))
        return mass, mean, root, told, square, 0.5 * (logs - fit / _WIDER**2)

    def draw(self, size: int, sets: int, rng: np.random.Generator) -> MomentsDraws:
        """Draw M: propose errors in independent sets, draw a few of them again by their weight, and M given each."""
        d, proposed = len(self._law.eigenvalues), _PROPOSED * size
        chosen = stratified(self._share, proposed, sets, rng)
        of = self._of[chosen]
        error: npt.NDArray[Any] = rng.standard_normal((proposed, d))
        order = np.argsort(chosen, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(chosen[order])) + 1):
            error[own] = self._place[chosen[own[0]]] + error[own] @ self._root[chosen[own[0]]].T
        log_weight, *centre = self._score_given(of, error)
        along_prior = np.sum((error @ self.prior_precision) * error, axis=1)
        log_weight += 0.5 * along_prior / _WIDER**2
        for node in np.unique(of):
            own, parts = np.flatnonzero(of == node), np.flatnonzero(self._of == node)
            e = error[own]
            along = e @ self._mean[node]
            squares = np.hstack((np.square(along), 2.0 * along * e, np.square(e)))
            logs = e @ self._pull[parts].T - 0.5 * squares @ self._square[parts].T
            logs = self._start[parts] + logs / _WIDER**2
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
