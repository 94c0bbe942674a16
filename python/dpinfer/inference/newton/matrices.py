"""Linear algebra on stacks of matrices of which one may be singular: it alone becomes nan, and its chain is refused."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["FactoredMoments", "cholesky_factors", "inverses", "transposed"]

FloatArray = npt.NDArray[np.float64]

_LEAST_EIGENVALUE = 1e-14
_LEAST_PIVOT = 1e-10


@dataclass(frozen=True)
class FactoredMoments:
    """Positive definite matrices (B, d, d) and their lower Cholesky factors."""

    matrix: FloatArray
    root: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray) -> "FactoredMoments":
        """Factor the matrices."""
        return cls(matrix, cholesky_factors(matrix))

    @property
    def regular(self) -> npt.NDArray[np.bool_]:
        """Whether rounding leaves sums over the matrix and its inverse exact enough, (B,)."""
        pivots = np.diagonal(self.root, axis1=1, axis2=2)
        return np.asarray(np.min(pivots, axis=1) > np.sqrt(_LEAST_PIVOT) * np.max(pivots, axis=1))


def transposed(array: FloatArray) -> FloatArray:
    """Return each matrix of a stack transposed."""
    return np.swapaxes(array, -1, -2)


def inverses(stack: FloatArray) -> FloatArray:
    """Return the inverse of each matrix of a stack (B, d, d), nan where there is none."""
    try:
        return np.asarray(np.linalg.inv(stack), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.stack([_inverse(matrix) for matrix in stack])


def _inverse(matrix: FloatArray) -> FloatArray:
    try:
        return np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.full(matrix.shape, np.nan)


def cholesky_factors(stack: FloatArray) -> FloatArray:
    """Return lower factors L, L L' = matrix, of a stack (B, d, d), positive definite but for rounding."""
    try:
        return np.asarray(np.linalg.cholesky(stack), dtype=np.float64)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(stack)
        values = np.maximum(values, _LEAST_EIGENVALUE * np.abs(values).max(axis=-1, keepdims=True))
        lifted = (vectors * values[..., None, :]) @ transposed(vectors)
        extra = 1e-12 * np.abs(values).max(axis=-1)[..., None, None] * np.eye(stack.shape[-1])
        return np.asarray(np.linalg.cholesky(0.5 * (lifted + transposed(lifted)) + extra), dtype=np.float64)
