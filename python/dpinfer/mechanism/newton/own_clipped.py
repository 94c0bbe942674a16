"""Contributions of one record to the sums of a private Newton run of a user's own model without a sampler.

**Privacy.** A contribution is a function of its own record and of public numbers; the sum clips it to its norm, on the
integers, for any result of the model's code.  Proof: docs/derivations/any-model.md, "Without a sampler".
"""

import math
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton.own_rows import OwnQuery, OwnRows, score_matrix, score_norms, score_vector

# Norms of scores are counted between these multiples of the clip.
NORM_EDGES: FloatArray = 2.0 ** np.arange(-4.0, 4.5, 0.5)


@dataclass(frozen=True, eq=False)
class ClippedScores(OwnQuery):
    """Clipped score, slope and counted norm of each record, side by side, times the roots of their parts.

    With s = transform grad log p(y | x, theta) and h = clip(s): h / clip, the symmetric part of h s' cut to a Frobenius
    norm of `matrix_bound` and over it, and a one at the place of the norm of s among the edges.  A part of 0 is left
    out.

    Parameters
    ----------
    model, theta, transform
        As in :class:`OwnQuery`.
    score_part, matrix_part, count_part : float
        Of the budget; they sum to 1.
    """

    clip: float
    matrix_bound: float
    score_part: float
    matrix_part: float
    count_part: float

    @property
    def score_bound(self) -> float:
        """The largest norm of h."""
        return self.clip

    @property
    def length(self) -> int:
        """Of the parts that are there."""
        n = self.theta.size
        size = (n if self.score_part else 0) + (n * (n + 1) // 2 if self.matrix_part else 0)
        return size + NORM_EDGES.size + 1

    @property
    def max_norm(self) -> float:
        """Of all parts together."""
        return 1.0

    def contributions(self, rows: OwnRows, block: slice) -> FloatArray:
        """Return these rows' vectors, (B, length): not private."""
        X, y = rows.arrays(block)
        scores = self._scores(X, y)
        clipped = score_vector(scores, self.clip)
        parts = []
        if self.score_part:
            parts.append(clipped * (math.sqrt(self.score_part) / self.score_bound))
        if self.matrix_part:
            slope = score_matrix(clipped[:, None], scores[:, None], self.matrix_bound)
            parts.append(slope * (math.sqrt(self.matrix_part) / self.matrix_bound))
        norms = score_norms(scores)
        place = np.searchsorted(NORM_EDGES * self.clip, norms)
        counted = np.zeros((NORM_EDGES.size + 1, len(X)))
        counted[place, np.arange(len(X))] = math.sqrt(self.count_part)
        return np.concatenate([*parts, counted]).T
