"""Scores and curvatures of a user's own model whose records are clipped as a whole.

**Privacy.** A record's vector is shortened to `max_norm` by the sum, on its way to the integers, whatever the model's
code returns (docs/derivations/population.md).
"""

from dataclasses import dataclass, replace

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton.own_rows import OwnQuery, OwnRows

# Of differences of scores, in units of a coordinate that one record tells to about 1: float32 gradients have seven
# digits, and third derivatives enter with its square.
_STEP = 1e-3


@dataclass(frozen=True, eq=False)
class OwnScores(OwnQuery):
    """The score g = transform grad log p(y | x, theta).

    Parameters
    ----------
    model, theta, transform
        As in :class:`OwnQuery`.
    bound : float
        On a record's norm.
    """

    bound: float

    @property
    def max_norm(self) -> float:
        """The bound."""
        return self.bound

    @property
    def length(self) -> int:
        """As many as parameters."""
        return self.theta.size

    def contributions(self, rows: OwnRows, block: slice) -> FloatArray:
        """Return these rows' vectors, (B, length): not private."""
        return np.ascontiguousarray(self._scores(*rows.arrays(block)).T)


@dataclass(frozen=True, eq=False)
class OwnCurvatures(OwnScores):
    """svec(H), H the symmetric part of minus the derivative of g along the transform's rows: central differences."""

    @property
    def length(self) -> int:
        """Entries of a triangle."""
        return self.theta.size * (self.theta.size + 1) // 2

    def contributions(self, rows: OwnRows, block: slice) -> FloatArray:
        """Return these rows' vectors, (B, length): not private."""
        return self.of_records(*rows.arrays(block))

    def of_records(self, X: FloatArray, y: FloatArray) -> FloatArray:
        """Return the vectors of records, (B, length)."""
        columns = []
        for direction in self.transform:
            ahead, behind = (replace(self, theta=self.theta + step * direction) for step in (_STEP, -_STEP))
            columns.append((behind._scores(X, y) - ahead._scores(X, y)) / (2.0 * _STEP))
        slopes = np.array(columns)  # (along, of, B)
        first, second = np.triu_indices(self.theta.size)
        root = np.where(first == second, 0.5, np.sqrt(0.5))[:, None]
        return np.ascontiguousarray(((slopes[first, second] + slopes[second, first]) * root).T)
