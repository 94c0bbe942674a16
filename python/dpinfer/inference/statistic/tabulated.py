"""A posterior of theta given by tables: a fine mixture for each coordinate, and draws of all of them together."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpinfer.inference.posterior.mixture import NormalMixtures, ThetaMarginals
from dpinfer.inference.posterior.theta import VarianceParts

__all__ = ["TabulatedTheta", "mixture_of_tables"]

FloatArray = npt.NDArray[np.float64]

_JOINT_DRAWS = 16_384
_JOINT_SEED = 20_261_122


def mixture_of_tables(tables: list[tuple[FloatArray, FloatArray]]) -> NormalMixtures:
    """Return mixtures of normals that stand for densities tabulated on even grids.

    Parameters
    ----------
    tables : list of (grid, log density)
        For each coordinate an even grid (m,) and the log density there, up to a constant.  The grid must resolve it.

    Notes
    -----
    Kernels of half a grid step's standard deviation add a quarter of the squared step to the variance.
    """
    weights, means, variances = [], [], []
    for grid, log_density in tables:
        weight = np.exp(log_density - log_density.max())
        weights.append(weight / weight.sum())
        means.append(grid)
        variances.append(np.full(grid.size, (0.5 * (grid[1] - grid[0])) ** 2))
    offsets = np.concatenate(([0], np.cumsum([grid.size for grid, _ in tables]))).astype(np.int64)
    return NormalMixtures(offsets, np.concatenate(weights), np.concatenate(means), np.concatenate(variances))


@dataclass(frozen=True)
class TabulatedTheta:
    """A distribution of theta whose marginals are tabulated.

    Parameters
    ----------
    tables : callable
        Returns the n marginals; called when they are first asked for.
    parts : VarianceParts
        Shares of each variance.
    sampler : callable or None
        Draws (size, n) of all coordinates together; None where they are independent.
    """

    tables: Callable[[], NormalMixtures]
    parts: VarianceParts
    sampler: Callable[[int, np.random.Generator], FloatArray] | None = None

    @cached_property
    def marginals(self) -> ThetaMarginals:
        """The n marginal distributions."""
        return ThetaMarginals(self.tables(), None)

    @property
    def independent(self) -> bool:
        """Whether the coordinates are independent."""
        return self.sampler is None

    @cached_property
    def covariance(self) -> FloatArray:
        """Covariance, (n, n); of dependent coordinates from 16384 draws with a fixed seed."""
        if self.sampler is None:
            return np.diag(self.marginals.variance)
        return np.atleast_2d(np.cov(self.sampler(_JOINT_DRAWS, np.random.default_rng(_JOINT_SEED)), rowvar=False))

    def variance_parts(self) -> VarianceParts:
        """Return the parts, computed with the tables."""
        return self.parts

    def draw(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return draws, (size, n)."""
        return self.marginals.location.draw(size, rng) if self.sampler is None else self.sampler(size, rng)
