"""A population that follows from a schema alone, for scales of columns and averages over points."""

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.formulas.factors import category_labels
from dpinfer.tabular import ContinuousColumn, Schema

_REFERENCE_POINTS = 4096  # points of a rank-1 lattice on the public design: deterministic averages


def reference_values(schema: Schema, names: frozenset[str]) -> dict[str, FloatArray]:
    """Return a public population: columns independent, as the schema declares them, in a deterministic order.

    **Privacy.** Reads no records.

    Notes
    -----
    Points of an additive recurrence with the roots of the primes as steps.
    """
    columns = [column for column in schema.columns if column.name in names]
    steps = np.sqrt(_primes(len(columns))) % 1.0
    uniform = (np.arange(_REFERENCE_POINTS)[:, None] * steps + 0.5) % 1.0
    values: dict[str, FloatArray] = {}
    for column, u in zip(columns, uniform.T, strict=True):
        if isinstance(column, ContinuousColumn):
            low, high = column.bounds
            if column.mean is not None and column.sd is not None:
                u = column.mean + column.sd * special.ndtri(np.clip(u, 1e-9, 1.0 - 1e-9))
                values[column.name] = np.clip(u, low, high)
            else:
                values[column.name] = low + (high - low) * u
        else:
            size = len(category_labels(column))
            shares = np.full(size, 1.0 / size) if column.declared_shares is None else np.array(column.declared_shares)
            if size == 2 and column.kind in ("binary", "target"):
                shares = shares[::-1]  # declared of 1 and of 0
            codes = np.searchsorted(np.cumsum(shares)[:-1], u, side="right")
            values[column.name] = codes.astype(np.float64)
    return values


def _primes(size: int) -> FloatArray:
    found: list[int] = []
    candidate = 2
    while len(found) < size:
        if all(candidate % prime for prime in found if prime * prime <= candidate):
            found.append(candidate)
        candidate += 1
    return np.array(found, dtype=np.float64)
