"""Expected scores of a generalised linear model whose features are taken for normal: public arithmetic."""

import math
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.models.clipped_residuals import ResponseGrid

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(25)  # exact for polynomials up to degree 49
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
# Of two independent standard normals: every pair of nodes.
_FIRST, _SECOND = np.repeat(_NODES, _NODES.size), np.tile(_NODES, _NODES.size)
_PAIR_WEIGHTS = np.repeat(_WEIGHTS, _WEIGHTS.size) * np.tile(_WEIGHTS, _WEIGHTS.size)
_PAIR_BASIS = np.stack((np.ones_like(_FIRST), _FIRST, _SECOND))
_SMALLEST = 1e-9  # a spread below it counts as none
# Clips in units of the spread of a response; zeros and ones need none below one half.
_CLIPS = {"binary": np.array([0.5, 0.6, 0.7, 0.8, 1.0]), "count": 0.4 * 1.25 ** np.arange(14)}


@dataclass(frozen=True)
class PredictorLaw:
    """A linear predictor that is taken for N(loc, scale**2)."""

    loc: float
    scale: float

    def mean(self, grid: ResponseGrid, values: FloatArray) -> float:
        """Return the expectation of a function that is tabulated on the grid."""
        return float(means_of_laws(grid, values, np.array([self.loc]), np.array([self.scale]))[0])

    def largest(self, grid: ResponseGrid, values: FloatArray, stddevs: float) -> float:
        """Return the function's largest value within `stddevs` of the mean."""
        points = self.loc + self.scale * np.linspace(-stddevs, stddevs, 101)
        return float(np.interp(points, grid.nodes, values).max())


def means_of_laws(grid: ResponseGrid, values: FloatArray, locs: FloatArray, scales: FloatArray) -> FloatArray:
    """Return the expectation of a function that is tabulated on the grid at N(locs, scales**2), elementwise."""
    points = locs[:, None] + scales[:, None] * _NODES
    return np.asarray(np.interp(points.ravel(), grid.nodes, values).reshape(points.shape) @ _WEIGHTS)


def best_clip(grid: ResponseGrid, response: str, law: PredictorLaw, noise: float, n_records: int) -> float:
    """Return the clip that minimises the predicted variance of a Newton step.

    Parameters
    ----------
    response : str
        "binary" or "count".
    noise : float
        Standard deviation of a score's noise for residuals of at most 1, per record.
    """
    unit = math.sqrt(law.mean(grid, np.square(grid.spread))) if response == "count" else 1.0
    best, least = 0.0, math.inf
    for clip in _CLIPS[response] * unit:
        residual = grid.clipped(float(clip))
        slope = max(law.mean(grid, residual.slope), 1e-300)
        variance = law.mean(grid, residual.variance) / n_records + (noise * residual.bound) ** 2
        if variance / slope**2 < least:
            best, least = float(clip), variance / slope**2
    return best


class ExpectedResidual:
    """E[psi(y, eta)] of a response whose own predictor is another one, between the nodes of a grid."""

    def __init__(self, grid: ResponseGrid, clip: float) -> None:
        self._grid = grid
        self._values = grid.expected(grid.clipped(clip))
        self._slopes = np.gradient(self._values, grid.spacing, axis=0)

    def __call__(self, own: FloatArray, eta: FloatArray, *, slope: bool = True) -> tuple[FloatArray, FloatArray]:
        """Return it and its derivative in the response's own predictor, elementwise; an empty one if not `slope`."""
        last = self._grid.nodes.size - 1
        first, spacing = self._grid.first_node, self._grid.spacing
        places = [np.clip(np.nan_to_num((values - first) / spacing), 0.0, last) for values in (own, eta)]
        i, j = (np.minimum(place.astype(np.intp), last - 1) for place in places)
        above, right = places[0] - i, places[1] - j
        below, left, corner = 1.0 - above, 1.0 - right, i * (last + 1) + j

        def between(table: FloatArray) -> FloatArray:
            low = left * table.take(corner) + right * table.take(corner + 1)
            high = left * table.take(corner + last + 1) + right * table.take(corner + last + 2)
            return np.asarray(below * low + above * high)

        return between(self._values), between(self._slopes) if slope else np.empty(0)


@dataclass(frozen=True)
class NormalDesign:
    """Whitened features that are taken for normal.

    Parameters
    ----------
    mean : (d,) array
    covariance : (d, d) array
    """

    mean: FloatArray
    covariance: FloatArray

    @classmethod
    def of_moments(cls, moments: FloatArray, constant: FloatArray | None) -> "NormalDesign":
        """Return the design with second moments `moments`, (d, d), in which constant'z is 1 (None: mean zero)."""
        if constant is None:
            return cls(np.zeros(moments.shape[0]), moments)
        mean = moments @ constant
        mean = mean / math.sqrt(max(float(constant @ mean), _SMALLEST))
        return cls(mean, moments - np.outer(mean, mean))

    def law(self, weights: FloatArray) -> PredictorLaw:
        """Return the law of the linear predictor weights'z."""
        variance = max(float(weights @ self.covariance @ weights), 0.0)
        return PredictorLaw(float(self.mean @ weights), math.sqrt(variance))

    def expected_slope(self, grid: ResponseGrid, slope: FloatArray, position: FloatArray) -> FloatArray:
        """Return E[slope(eta) z z'] for the predictor position'z, over E[slope(eta)], (d, d)."""
        law = self.law(position)
        along = self.covariance @ position / law.scale if law.scale > _SMALLEST else np.zeros_like(self.mean)
        weight = _WEIGHTS * np.interp(law.loc + law.scale * _NODES, grid.nodes, slope)
        weight = weight / max(float(weight.sum()), 1e-300)
        parts = np.stack((self.mean, along), axis=1)
        basis = np.stack((np.ones_like(_NODES), _NODES))
        seen = parts @ ((basis * weight) @ basis.T) @ parts.T
        return np.asarray(self.covariance - np.outer(along, along) + seen)

    def expected_score(
        self, residual: ExpectedResidual, optimum: FloatArray, position: FloatArray, *, jacobian: bool = True
    ) -> tuple[FloatArray, FloatArray]:
        """Return E[psi z] at `position` for the truth `optimum`, (d,), and its derivative in the truth, (d, d).

        The derivative is empty if not `jacobian`.

        z = mean + along e1 + beside e2 + an irrelevant rest, with e1, e2 independent standard normals: e1 is the part
        of z in the predictor at `position`, e2 the additional part in the true one.
        """
        first, own = self.law(position), self.law(optimum)
        turned, straight = self.covariance @ position, self.covariance @ optimum
        along = turned / max(first.scale, _SMALLEST) if first.scale > _SMALLEST else np.zeros_like(turned)
        shared = float(along @ optimum)
        rest = math.sqrt(max(own.scale**2 - shared**2, 0.0))
        beside = (straight - shared * along) / rest if rest > _SMALLEST else np.zeros_like(along)
        etas = own.loc + shared * _FIRST + rest * _SECOND, first.loc + first.scale * _FIRST
        value, slope = residual(*etas, slope=jacobian)
        parts = np.stack((self.mean, along, beside), axis=1)
        score = parts @ (_PAIR_BASIS @ (_PAIR_WEIGHTS * value))
        if not jacobian:
            return score, slope
        unseen = self.covariance - np.outer(along, along) - np.outer(beside, beside)
        seen = (_PAIR_BASIS * (_PAIR_WEIGHTS * slope)) @ _PAIR_BASIS.T
        return score, float(_PAIR_WEIGHTS @ slope) * unseen + parts @ seen @ parts.T
