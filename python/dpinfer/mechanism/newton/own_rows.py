"""Contributions of one record to a private Newton run of a user's own model: a centred score, and its slope.

**Privacy.** A contribution is a function of its own record, of the number of equal records before it, and of public
numbers; the sum clips it to its norm, on the integers, for any result of the model's code.  Proof:
docs/derivations/any-model.md.
"""

import functools
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import TINY, FloatArray
from dpinfer.mechanism import _native
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.contributions import Query, ReadRecords
from dpinfer.models import OwnModel
from dpinfer.models.adapters import FRAMEWORK_BLOCK
from dpinfer.models.person_model import PersonModel
from dpinfer.release.newton.own import OwnNewtonRelease

Words = npt.NDArray[np.uint64]

# A record's slope has a Frobenius norm of at most this times the bound of its squared score.
MATRIX_BOUND = OwnNewtonRelease.matrix_factor

_BLOCK = FRAMEWORK_BLOCK * 2 // (2 * tuning.OWN.draws + 1)  # scores and draws fill two blocks: time
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio, as in SplitMix64 (Steele, Lea and Flood 2014)


def _mixed(values: Words) -> Words:
    """Return 64-bit numbers mixed so that nearby ones become unlike: the finaliser of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))


def _joined(features: npt.NDArray[np.floating], response: FloatArray) -> FloatArray:
    return np.column_stack((features.astype(np.float64), response))


def _seed(row: bytes, number: int) -> Words:
    digest = hashlib.blake2b(row + number.to_bytes(8, "little"), digest_size=16).digest()
    return np.frombuffer(digest, dtype="<u8")


def earlier_equals(digests: Words) -> npt.NDArray[np.int64]:
    """Return the number of equal rows before each row of (N, k), (N,)."""
    order = np.lexsort(digests.T)  # stable: equal rows stay in their order
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = np.any(digests[order[1:]] != digests[order[:-1]], axis=1)
    place = np.arange(len(order))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return number


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The records of one run, each with the seed of its own draws.

    **Privacy.** Holds the records.

    Parameters
    ----------
    features : (N, p) array
    response : (N,) array, or (N, max_rows) of persons
    seeds, kinds : (N, 2) and (N, 4) arrays of 64-bit words
        `kinds` are hashes of the records, the same of equal ones.
    """

    features: npt.NDArray[np.floating]
    response: FloatArray
    seeds: Words
    n_threads: int = 1
    kinds: Words | None = None

    @classmethod
    def of(
        cls, features: npt.NDArray[np.floating], response: FloatArray, n_threads: int = 1, numbers: Any = None
    ) -> "OwnRows":
        """Return the rows of checked records.

        A seed is a hash of the record and of the number of equal records before it: so equal records have different
        draws, and the seeds of the others do not change when a record is added or removed at any place.  `numbers` has
        that of each record where others are elsewhere.
        """
        digests, seeds = (np.empty((len(response), words), dtype="<u8") for words in (4, 2))
        for first in range(0, len(response), _BLOCK):
            block = slice(first, first + _BLOCK)
            rows = [row.tobytes() for row in _joined(features[block], response[block])]
            found = b"".join(hashlib.blake2b(row, digest_size=32).digest() for row in rows)
            digests[block] = np.frombuffer(found, dtype="<u8").reshape(-1, 4)
            seeds[block] = [_seed(row, 0) for row in rows]
        number = earlier_equals(digests) if numbers is None else numbers
        for place in np.flatnonzero(number):
            (row,) = _joined(features[place : place + 1], response[place : place + 1])
            seeds[place] = _seed(row.tobytes(), int(number[place]))
        return cls(features, response, seeds, n_threads, digests)

    @classmethod
    def without_draws(cls, features: npt.NDArray[np.floating], response: FloatArray, n_threads: int = 1) -> "OwnRows":
        """Return the rows of checked records, for contributions without draws."""
        return cls(features, response, np.empty((0, 2), dtype=np.uint64), n_threads)

    def arrays(self, block: slice) -> tuple[FloatArray, FloatArray]:
        """Return features and responses of these rows, as the model's code gets them."""
        features = np.ascontiguousarray(self.features[block], dtype=np.float64)
        return features, np.ascontiguousarray(self.response[block])

    def words(self, rows: slice, pass_number: int, n_words: int) -> Words:
        """Return the random words of these rows in one pass, (B, 2 draws, n_words)."""
        seeds = self.seeds[rows]
        counter = np.arange(2 * tuning.OWN.draws * n_words, dtype=np.uint64) + np.uint64(
            1 + pass_number * 2 * tuning.OWN.draws * n_words
        )
        own = _mixed(seeds[:, 1:] ^ _mixed(counter * _GOLDEN)[None, :])
        return _mixed(seeds[:, :1] + own).reshape(-1, 2 * tuning.OWN.draws, n_words)


class OwnRecords(ReadRecords):
    """Records in memory, as passes read them.

    **Privacy.** Holds the records.
    """

    def __init__(
        self,
        features: npt.NDArray[np.floating],  # (N, p)
        response: FloatArray,  # (N,), or (N, max_rows) of persons
        *,
        drawn: bool = True,  # whether contributions draw responses
        n_threads: int = 1,  # for compiled scores
        numbers: Any = None,  # (N,): numbers of earlier records equal to each, if further records are elsewhere
    ) -> None:
        make = partial(OwnRows.of, numbers=numbers) if drawn else OwnRows.without_draws
        self._rows = make(features, response, n_threads)
        self.n_rows = len(self._rows.response)
        if self._rows.kinds is not None:
            self.kinds = self._rows.kinds

    def arrays(self) -> Iterable[npt.NDArray[Any]]:
        """Return features and responses."""
        return [self._rows.features, self._rows.response]

    def add(self, total: _native.PartialSum, query: Query) -> None:
        """Add all records."""
        query.add(total, self._rows)


def score_norms(values: FloatArray) -> FloatArray:
    """Return the norm of each column of (n, ...)."""
    return np.asarray(np.sqrt(_squares(values)))


def _squares(values: FloatArray) -> FloatArray:
    """Return the sum of squares of each column of (n, ...), by operations whose order ignores other columns."""
    total = np.zeros(values.shape[1:])
    for row in values:
        total += row * row
    return total


def score_vector(values: FloatArray, bound: float) -> FloatArray:
    """Return columns (n, ...) cut to a norm of at most `bound`."""
    return np.asarray(values * np.minimum(1.0, bound / (score_norms(values) + TINY)))


def score_matrix(left: FloatArray, right: FloatArray, bound: float) -> FloatArray:  # (n (n + 1) / 2, B)
    """Return svec of the symmetric part of each record's mean over draws of left right', cut to a Frobenius norm.

    Parameters
    ----------
    left, right : (n, m, B) arrays
    """
    n, draws, size = left.shape
    first, second = np.triu_indices(n)
    root = np.where(first == second, 1.0, math.sqrt(2.0)) / (2.0 * draws)
    total = np.zeros((first.size, size))
    for draw in range(draws):
        one, other = left[:, draw], right[:, draw]
        total += one[first] * other[second] + one[second] * other[first]
    return score_vector(total * root[:, None], bound)


@dataclass(frozen=True, eq=False)
class OwnQuery(ABC):
    """Sums of the user's function of each record, in transformed coordinates."""

    block: ClassVar[int] = _BLOCK

    model: OwnModel
    theta: FloatArray  # (n,): unconstrained
    transform: FloatArray  # (n, n)

    @property
    @abstractmethod
    def length(self) -> int:
        """Of one record's vector."""

    @property
    @abstractmethod
    def max_norm(self) -> float:
        """The largest norm of one record's vector."""

    @abstractmethod
    def contributions(self, rows: OwnRows, block: slice) -> FloatArray:
        """Return these rows' vectors, (B, length): not private."""

    def add(self, total: _native.PartialSum, rows: OwnRows) -> None:
        """Add all records to `total`."""
        self.add_made(total, rows, lambda vectors: vectors)

    def add_made(self, total: _native.PartialSum, rows: OwnRows, make: Callable[[FloatArray], FloatArray]) -> None:
        """Add ``make(vectors)`` of the records' vectors (B, length) to `total`, row by row."""
        with np.errstate(all="ignore"):
            size = len(rows.response)
            for first in range(0, size, self.block):
                block = slice(first, min(first + self.block, size))
                total.add_contributions(np.ascontiguousarray(make(self._robust(rows, block))))

    def _robust(self, rows: OwnRows, block: slice) -> FloatArray:
        """Return a block's contributions; a record on which the code fails contributes nothing."""
        size = block.stop - block.start
        try:
            return np.ascontiguousarray(self.contributions(rows, block))
        except Exception:
            # An error would reveal that there is such a record.
            if size == 1:
                return np.zeros((1, self.length))
        return np.concatenate([self._robust(rows, slice(row, row + 1)) for row in range(block.start, block.stop)])

    def _scores(self, X: FloatArray, y: FloatArray) -> FloatArray:
        """Return transformed scores (n, B), each record by itself; a score that is not finite counts as 0."""
        scores = np.ascontiguousarray(self.model.scores(X, y, self.theta).T)
        scores[:, ~np.all(np.isfinite(scores), axis=0)] = 0.0
        total = np.zeros_like(scores)
        for row, column in zip(scores, self.transform.T, strict=True):
            total += column[:, None] * row
        return total


@dataclass(frozen=True, eq=False)
class CentredScores(OwnQuery):
    """score_weight h / score_bound, matrix_weight svec(J) / matrix_bound, tally_weight (v, 1) / sqrt(2), side by side.

    With s = transform grad log p(y | x, theta), its draws s' under the model, w = min(1, weight_bound / mean |s'|^2):
    h = clip(w s) + cut(mean over other draws of w s' - clip(w s')), clip to `clip` and cut to `share` times that; J is
    the symmetric part of the mean of clip(w s') s''; v = |clip(w s)|^2 less its mean over the same draws, over clip^2.
    A part of weight 0 is left out.  The model has a sampler.
    """

    clip: float
    share: float
    weight_bound: float
    pass_number: int
    score_weight: float = 1.0
    matrix_weight: float = 0.0
    tally_weight: float = 0.0

    @property
    def score_bound(self) -> float:
        """The largest norm of h."""
        return (1.0 + self.share) * self.clip

    @property
    def matrix_bound(self) -> float:
        """The largest Frobenius norm of J."""
        return MATRIX_BOUND * self.weight_bound

    @property
    def length(self) -> int:
        """Of the parts that are there."""
        n = self.theta.size
        size = (n if self.score_weight else 0) + (n * (n + 1) // 2 if self.matrix_weight else 0)
        return size + (2 if self.tally_weight else 0)

    @property
    def max_norm(self) -> float:
        """Of all parts together."""
        return math.hypot(self.score_weight, self.matrix_weight, self.tally_weight)

    def contributions(self, rows: OwnRows, block: slice) -> FloatArray:
        """Return these rows' vectors, (B, length): not private."""
        scores = self._with_draws(rows, block)
        observed = scores[:, -1]
        others, weight = self._weighed(scores[:, :-1])
        weighted = others * weight
        clipped = score_vector(weighted, self.clip)
        parts = []
        own = score_vector(observed * weight[0], self.clip)
        if self.score_weight:
            excess, draws = np.zeros_like(weighted[:, 0]), others.shape[1]
            for draw in range(draws):
                excess += (weighted[:, draw] - clipped[:, draw]) / draws
            centred = own + score_vector(excess, self.share * self.clip)
            parts.append(centred * (self.score_weight / self.score_bound))
        if self.matrix_weight:
            slope = score_matrix(clipped, others, self.matrix_bound)
            parts.append(slope * (self.matrix_weight / self.matrix_bound))
        if self.tally_weight:
            tally = np.stack((self._excess(own, clipped), np.ones(scores.shape[2])))
            parts.append(tally * (self.tally_weight / math.sqrt(2.0)))
        return np.concatenate(parts).T

    def _with_draws(self, rows: OwnRows, block: slice) -> FloatArray:
        """Return transformed scores of each record's draws, then of the record itself, (n, 2 draws + 1, B)."""
        X, y = rows.arrays(block)
        n_words = self.model.n_words
        # Records last, draws before them: each operation runs over whole blocks, and each record by itself.
        words = np.swapaxes(rows.words(block, self.pass_number, n_words), 0, 1).reshape(-1, n_words)
        repeated = np.tile(X, (2 * tuning.OWN.draws, 1))
        drawn = self.model.draw_responses(self.theta, repeated, words)
        scores = self._scores(np.concatenate((repeated, X)), np.concatenate((drawn, y)))
        return scores.reshape(-1, 2 * tuning.OWN.draws + 1, len(X))

    def _excess(self, own: FloatArray, simulated: FloatArray) -> FloatArray:
        return np.asarray(np.clip((_squares(own) - self._mean_square(simulated)) / self.clip**2, -1.0, 1.0))

    @staticmethod
    def _mean_square(simulated: FloatArray) -> FloatArray:
        size, draws = np.zeros(simulated.shape[2]), simulated.shape[1]
        for draw in range(draws):
            size += _squares(simulated[:, draw]) / draws
        return size

    def _weighed(self, simulated: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the draws that are used, (n, m, B), and their weights (m or 1, B); the first is the record's, too."""
        return simulated[:, tuning.OWN.draws :], self._weight(simulated[:, : tuning.OWN.draws])[None]

    def _weight(self, simulated: FloatArray) -> FloatArray:
        size = self._mean_square(simulated)
        return np.asarray(np.minimum(1.0, self.weight_bound / (size + TINY)))


def draw_sizes(squares: FloatArray, *, persons: bool) -> FloatArray:
    """Return what weighs draws, from the squared scores of all (B, draws): (B, 1), or (B, draws) of persons."""
    if persons:
        return np.asarray((squares.sum(axis=1, keepdims=True) - squares) / (squares.shape[1] - 1))
    return np.asarray(np.mean(squares[:, : tuning.OWN.draws], axis=1, keepdims=True))


PERSONS_STREAM = 2**32  # the stream of made-up persons; those of passes have their numbers


@functools.lru_cache(maxsize=16)
def _person_kernel(family: str, max_rows: int, n_columns: int, slope: int, n_nodes: int) -> _native.PersonModel:
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return _native.PersonModel(
        family=family,
        max_rows=max_rows,
        n_columns=n_columns,
        slope=slope,
        nodes=nodes.tolist(),
        weights=(weights / weights.sum()).tolist(),
    )


def kernel_scores(
    model: PersonModel,
    theta: FloatArray,
    truth: FloatArray,
    transform: FloatArray,
    features: FloatArray,
    response: FloatArray | None,
    seeds: Words,
    stream: int,
    n_threads: int = 1,
) -> FloatArray:  # (n, person_draws (+ 1), B): zero where a score is not finite
    """Return transformed scores at `theta` of persons' draws at `truth`, then of their own responses where given."""
    kernel = _person_kernel(model.family, model.max_rows, len(model.columns), model.slope, model.n_nodes)
    point = model.natural(theta)
    return kernel.scores(
        point=point,
        truth=point if truth is theta else model.natural(truth),
        transform=np.ascontiguousarray(transform @ model.jacobian(theta).T),
        features=features,
        responses=response,
        seeds=seeds,
        stream=stream,
        n_draws=tuning.OWN.person_draws,
        n_threads=n_threads,
    )


@dataclass(frozen=True, eq=False)
class PersonScores(CentredScores):
    """Centred scores of persons: the marginal likelihood of all rows of a person, by compiled code.

    A draw's weight is from the other draws, and the record's from all but one of them: so h has the mean zero.
    """

    block: ClassVar[int] = 4096

    def _weighed(self, simulated: FloatArray) -> tuple[FloatArray, FloatArray]:
        squares = _squares(simulated)
        weights = np.empty_like(squares)
        for draw in range(tuning.OWN.person_draws):
            size = np.zeros_like(squares[0])
            for other in range(tuning.OWN.person_draws):
                if other != draw:
                    size += squares[other] / (tuning.OWN.person_draws - 1)
            weights[draw] = np.minimum(1.0, self.weight_bound / (size + TINY))
        return simulated, weights

    def _with_draws(self, rows: OwnRows, block: slice) -> FloatArray:
        model: Any = self.model
        return kernel_scores(
            model,
            self.theta,
            self.theta,
            self.transform,
            np.ascontiguousarray(rows.features[block], dtype=np.float64),
            np.ascontiguousarray(rows.response[block]),
            np.ascontiguousarray(rows.seeds[block]),
            self.pass_number,
            rows.n_threads,
        )
