"""Records that a user's own model makes likely: made-up features, and the model's own draws."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.models.adapters.own_model import OwnModel
from dpinfer.models.clipping import SIZE_EDGES

_SEED = 20_261_125  # of public draws: any number
_ROWS, _DRAWS = 1000, 4  # made-up records, and responses of each


@dataclass(frozen=True, eq=False)
class LikelyOwnRecords:
    """As :class:`LikelyRecords`, at parameters that are given by how far they are from the prior's mean.

    Methods raise whatever the model's code raises.

    Parameters
    ----------
    model : OwnModel
        With a sampler.
    white : (n, n) array
        Coordinates in which one record tells about 1: how far a step goes is measured in them.
    """

    model: OwnModel
    white: FloatArray

    @cached_property
    def _given(self) -> tuple[FloatArray, npt.NDArray[np.uint64]]:
        """Features, and the random words of their responses: the same at all parameters."""
        rng = np.random.default_rng(_SEED)
        rows = np.repeat(self.model.made_up_features(_ROWS, rng), _DRAWS, axis=0)
        return rows, rng.integers(0, 2**64, (len(rows), self.model.n_words), dtype=np.uint64)

    def _scores(self, transform: FloatArray, moved: FloatArray) -> FloatArray:
        theta = self.model.parameters.prior_mean + moved
        rows, words = self._given
        with np.errstate(all="ignore"):
            scores = self.model.scores(rows, self.model.draw_responses(theta, rows, words), theta) @ transform.T
        return np.asarray(scores[np.all(np.isfinite(scores), axis=1)])

    def curvature(self, transform: FloatArray, moved: FloatArray) -> FloatArray:
        """Return E[g g'] of scores g = transform grad log p under the model: minus the mean derivative (Bartlett)."""
        scores = self._scores(transform, moved)
        return np.asarray(scores.T @ scores / len(scores))

    def predictor_spread(self, moved: FloatArray) -> float:
        """Return how far a step goes, in the coordinates `white`."""
        return float(np.linalg.norm(np.linalg.solve(self.white.T, moved)))

    def size_shares(self, transform: FloatArray, moved: FloatArray, unit: float) -> FloatArray:
        """Return the shares of the records by |g|, between the edges SIZE_EDGES times `unit`."""
        sizes = np.linalg.norm(self._scores(transform, moved), axis=1) / unit
        counted = np.histogram(sizes, [0.0, *SIZE_EDGES, np.inf])[0]
        return np.asarray(counted / max(sizes.size, 1), dtype=np.float64)
