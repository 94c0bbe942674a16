"""Contributions of records to the released statistic of a conjugate family."""

from functools import singledispatch

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import as_record_array, check_values
from dpinfer.errors import RecordError
from dpinfer.lab.baselines.gibbs.families import BinomialFamily, CategoricalFamily, ConjugateFamily, ExponentialFamily

__all__ = ["contributions", "some_records"]


@singledispatch
def contributions(family: ConjugateFamily, X: npt.ArrayLike) -> FloatArray:
    """Return the contribution of each record to the statistic of `family`, (N, s), each in [0, family.high].

    **Privacy.** Reads records, on behalf of the mechanism.

    Raises
    ------
    TypeError
        If the family is none of those here.
    RecordError
        If a record cannot be used.
    """
    raise TypeError(f"model must be a conjugate family whose statistic is known, got {type(family).__name__}")


@contributions.register
def _(family: BinomialFamily, X: npt.ArrayLike) -> FloatArray:
    """Return the counts, (N, 1)."""
    values = _column(X)
    if not np.all((values >= 0.0) & (values <= family.n_trials) & (values == np.floor(values))):
        raise RecordError(f"X must hold integers from 0 to {family.n_trials}")
    return values[:, None]


@contributions.register
def _(family: CategoricalFamily, X: npt.ArrayLike) -> FloatArray:
    """Return the first M - 1 indicators of categories coded 0 ... M - 1, (N, M - 1)."""
    values = _column(X)
    width = len(family.concentration)
    if not np.all((values >= 0.0) & (values < width) & (values == np.floor(values))):
        raise RecordError(f"X must hold categories coded as integers from 0 to {width - 1}")
    return np.asarray(values[:, None] == np.arange(width - 1), dtype=np.float64)


@contributions.register
def _(family: ExponentialFamily, X: npt.ArrayLike) -> FloatArray:
    """Return each record inside the section, and 0 for the others, (N, 1)."""
    values = _column(X)
    if not np.all(values >= 0.0):
        raise RecordError("X must be at least 0")
    inside = (values >= family.bounds[0]) & (values <= family.bounds[1])
    return np.where(inside, values, 0.0)[:, None]


def some_records(features: FloatArray, response: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the records of a computation without noise, at least one; a private run also goes on with none.

    Raises RecordError if there are no rows.
    """
    if len(features) == 0:
        raise RecordError("X must have at least one row, got none")
    return features, response


def _column(X: npt.ArrayLike) -> FloatArray:
    values = as_record_array("X", X)
    check_values(values, "a conjugate family")
    values = values[:, 0] if values.ndim == 2 else values
    if not np.all(np.isfinite(values)):
        raise RecordError("X must be finite: it holds a NaN or an infinity")
    return values.astype(np.float64)
