"""Posterior of one parameter, as a fine table of its density."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.inference.posterior.mixture import NormalMixtures, ThetaMarginals
from dpinfer.inference.posterior.theta import VarianceParts


def mixture_of_table(grid: FloatArray, log_density: FloatArray) -> NormalMixtures:
    """Return a mixture of normals that represents a density tabulated on an even grid.

    Parameters
    ----------
    grid, log_density : (m,) float64
        The log density is known up to a constant.  The grid must resolve it.

    Notes
    -----
    Kernels of half a grid step's standard deviation add a quarter of the squared step to the variance.
    """
    weight = np.exp(log_density - log_density.max())
    offsets = np.array([0, grid.size], dtype=np.int64)
    return NormalMixtures(offsets, weight / weight.sum(), grid, np.full(grid.size, (0.5 * (grid[1] - grid[0])) ** 2))


@dataclass(frozen=True)
class TabulatedTheta:
    """The distribution of one parameter, tabulated."""

    table: NormalMixtures  # one mixture
    parts: VarianceParts  # shares of its variance

    @cached_property
    def marginals(self) -> ThetaMarginals:
        """The marginal distribution."""
        return ThetaMarginals(self.table, None)

    @property
    def independent(self) -> bool:
        """Whether the coordinates are independent: there is one."""
        return True

    @property
    def covariance(self) -> FloatArray:
        """Covariance, (1, 1)."""
        return np.diag(self.marginals.variance)

    def variance_parts(self) -> VarianceParts:
        """Return the parts, computed with the table."""
        return self.parts

    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return draws, (size, 1)."""
        return self.table.draw(size, rng)
