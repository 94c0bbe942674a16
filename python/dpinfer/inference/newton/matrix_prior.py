"""Prior of the whitened second moments: a Wishart of learned concentration with a few flattened directions.

M = C F F' C' with C = C_m ... C_1, C_k = I - (1 - level_k**power) v_k v_k'.  F is the triangular factor of a Wishart
matrix of nu degrees of freedom whose scale is integrated out, with the density prod_i |F_ii|**(nu - i)
tr(F F')**(-nu d / 2) (Bartlett's decomposition); the v_k are uniform on the sphere and the levels uniform on (0, 1).  A
Wishart whose concentration is learned from many near-equal eigenvalues excludes a single small one; a flattened
direction does not have to be seen in the others.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer.inference.newton.matrices import transposed

__all__ = ["FLATTEST", "POWER", "FlattenedWishart", "MatrixState"]

FloatArray = npt.NDArray[np.float64]

# A Wishart matrix of nu degrees of freedom has eigenvalues about (1 +- sqrt(d / nu))**2: the more directions there are,
# the larger nu has to be for a matrix near the identity.
_LARGEST_CONCENTRATION, _CONCENTRATION_PER_COEF = 400.0, 10.0
_CONCENTRATIONS = 60
_CONCENTRATION_POWER = 1.5
POWER = 3.0
_FLATNESS_LOC, _FLATNESS_STDDEV = 2.0, 2.0
_FLATNESS_WIDTH, _FLATNESS_GROWTH = 24.0, 3.0
_FLATNESS_GRID = np.linspace(-6.0, 14.0, 41)
FLATTEST = 0.003  # the smallest factor of a direction's root mean square


@dataclass(frozen=True)
class MatrixState:
    """Points of the sampler, (B, d d + m d + m): lower factors F, directions and logits of the flattening, row by row.

    Parameters
    ----------
    points : (B, n) array
    d : int
    """

    points: FloatArray
    d: int

    @classmethod
    def of(cls, factor: FloatArray, direction: FloatArray, logit: FloatArray) -> "MatrixState":
        """Put factors (B, d, d), directions (B, m, d) and logits (B, m) together."""
        size, d = factor.shape[:2]
        return cls(np.concatenate((factor.reshape(size, -1), direction.reshape(size, -1), logit), axis=1), d)

    @property
    def n_flattened(self) -> int:
        """Number m of flattened directions."""
        return int((self.points.shape[1] - self.d**2) // (self.d + 1))

    @property
    def factor(self) -> FloatArray:
        """F, (B, d, d)."""
        return self.points[:, : self.d**2].reshape(-1, self.d, self.d)

    @property
    def direction(self) -> FloatArray:
        """The directions before they are scaled to length one, (B, m, d)."""
        flat = self.points[:, self.d**2 : self.points.shape[1] - self.n_flattened]
        return flat.reshape(len(self.points), self.n_flattened, self.d)

    @property
    def logit(self) -> FloatArray:
        """Logits of the levels, (B, m)."""
        return self.points[:, self.points.shape[1] - self.n_flattened :]

    def where(self, chosen: npt.NDArray[np.bool_], other: "MatrixState") -> "MatrixState":
        """Return `other` where `chosen` (B,), else self."""
        return MatrixState(np.where(chosen[:, None], other.points, self.points), self.d)

    @cached_property
    def moments(self) -> FloatArray:
        """The matrices M, (B, d, d)."""
        direction = self.direction
        unit = direction / np.sqrt(np.sum(np.square(direction), axis=2, keepdims=True))
        shrink = (1.0 - FLATTEST) * (1.0 - special.expit(self.logit) ** POWER)
        flattened = self.factor
        for k in range(self.n_flattened):
            along = (shrink[:, k, None] * unit[:, k])[:, :, None]
            flattened = flattened - along * (unit[:, k, None, :] @ flattened)
        return np.asarray(flattened @ transposed(flattened))


class FlattenedWishart:
    """The prior's hyperparameters on grids, over which the compiled density sums.

    Parameters
    ----------
    d : int
    """

    def __init__(self, d: int) -> None:
        # Many directions leave room for one that no score has seen: the more of them, the less likely it is flat.
        flatness_loc = _FLATNESS_LOC + _FLATNESS_GROWTH * max(0.0, np.log(d / _FLATNESS_WIDTH))
        largest = max(_LARGEST_CONCENTRATION, _CONCENTRATION_PER_COEF * d)
        grid = d - 1.0 + np.exp(np.linspace(0.0, np.log(largest), _CONCENTRATIONS))
        constant = special.gammaln(0.5 * grid * d) - special.multigammaln(0.5 * grid, d)
        self.concentrations = np.stack((grid, constant - _CONCENTRATION_POWER * np.log(grid)))
        weight = np.exp(-0.5 * np.square((_FLATNESS_GRID - flatness_loc) / _FLATNESS_STDDEV))
        self.locations = np.stack((np.exp(-_FLATNESS_GRID), weight / weight.sum()))

    def concentration(self, state: MatrixState) -> FloatArray:
        """Return the expected concentration given the factors, (B,)."""
        diagonal = np.abs(np.diagonal(state.factor, axis1=1, axis2=2))
        trace = np.einsum("bij,bij->b", state.factor, state.factor)
        log_weight = (
            self.concentrations[1]
            + self.concentrations[0] * (np.sum(np.log(diagonal), axis=1) - 0.5 * state.d * np.log(trace))[:, None]
        )
        return np.asarray(special.softmax(log_weight, axis=1) @ self.concentrations[0])
