"""Linear algebra that never raises: for public arithmetic between passes that are paid for."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import numpy as np

from dpinfer._arrays import FloatArray

_SMALLEST = 1e-300  # avoids division by zero
_RESOLVED = 1e-13  # some hundred units of double precision
_LEFT: ContextVar[list[str] | None] = ContextVar("left", default=None)


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Yield a list of the singular systems during the block."""
    left: list[str] = []
    token = _LEFT.set(left)
    try:
        yield left
    finally:
        _LEFT.reset(token)


def steady_solve(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """Solve with a symmetric positive definite matrix, (d, d), for a vector or columns.

    If rounding has made the matrix singular, the system is scaled to a unit diagonal and solved in the directions with
    eigenvalues above rounding error. A matrix that is not finite gives zeros.
    """
    with contextlib.suppress(np.linalg.LinAlgError):
        found = np.linalg.solve(matrix, right)
        if np.all(np.isfinite(found)):
            return np.asarray(found, dtype=np.float64)
    left = _LEFT.get()
    if left is not None:
        left.append(f"a system of {len(matrix)} equations")
    with contextlib.suppress(np.linalg.LinAlgError), np.errstate(all="ignore"):
        unit = 1.0 / np.sqrt(np.maximum(np.abs(np.diag(matrix)), _SMALLEST))
        values, vectors = np.linalg.eigh(unit[:, None] * (0.5 * (matrix + matrix.T)) * unit)
        kept = np.where(values > _RESOLVED * np.abs(values).max(), 1.0 / values, 0.0)
        inverse = unit[:, None] * ((vectors * kept) @ vectors.T) * unit
        found = inverse @ right
        if np.all(np.isfinite(found)):
            return np.asarray(found, dtype=np.float64)
    return np.zeros(np.shape(right))


def steady_inverse(matrix: FloatArray) -> FloatArray:
    """Return the inverse of a symmetric positive definite matrix, (d, d), as :func:`steady_solve` finds it."""
    with contextlib.suppress(np.linalg.LinAlgError):
        found = np.linalg.inv(matrix)
        if np.all(np.isfinite(found)):
            return np.asarray(found, dtype=np.float64)
    return steady_solve(matrix, np.eye(len(matrix)))
