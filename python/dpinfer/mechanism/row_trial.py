"""Whether code computes what a row adds from that row alone, tried on made-up rows before anything is charged.

**Privacy.** Looks at no record.  A trial is no proof: docs/derivations/private-queries.md says what it sees.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import known_shape
from dpinfer.mechanism.sources.row_source import Records

TRIAL_ROWS = 8  # made up, each alone and all together: time
_WIDTHS = (None, *range(1, 65))  # of rows whose width nobody states, None for a row of one number; not tuned: time
_REPEATS = 3  # of each law of rows: time


def widths_of(records: Any, given: Records) -> Sequence[int | None]:
    """Return the widths of the rows: one, of an array or of a source that states it, else all that are tried.

    None is a row that is one number.  Lists have the width of their first row: their type, not their values, is seen.
    """
    shape = known_shape(records)
    if shape is None and isinstance(records, (list, tuple)) and len(records):
        shape = (len(records), *np.shape(records[0])[:1])
    if shape is not None and len(shape) in (1, 2):
        return [shape[1] if len(shape) == 2 else None]
    return _WIDTHS if given.n_features is None else [given.n_features]


def ones_and_zeros(width: int | None) -> FloatArray:
    """Return the first rows of a trial, (8,) or (8, width)."""
    return np.random.default_rng(0).integers(0, 2, _form(TRIAL_ROWS, width)).astype(np.float64)


def mixes_rows(evaluate: Callable[[FloatArray], FloatArray], width: int | None) -> bool:
    """Return whether what a row adds, to the last bit, depends on the rows beside it, in some of many blocks.

    Blocks have columns as tables have: codes, shares, amounts, years, measurements in any unit, heavy tails, numbers
    that repeat, and numbers that are missing.
    """
    for rows in _blocks(width):
        together = evaluate(rows)
        alone = np.vstack([evaluate(rows[index : index + 1]) for index in range(len(rows))])
        if not np.array_equal(alone, together, equal_nan=True):
            return True
    return False


def _form(count: int, width: int | None) -> tuple[int, ...]:
    return (count,) if width is None else (count, width)


def _blocks(width: int | None) -> Iterator[FloatArray]:
    rng, columns = np.random.default_rng(1), 1 if width is None else width
    drawn = []
    for _ in range(_REPEATS):
        form = (TRIAL_ROWS, columns)
        scale, place = 10.0 ** rng.uniform(-3.0, 6.0, (2, columns))
        drawn += [
            rng.normal(size=form),
            place + scale * rng.normal(size=form),
            rng.integers(0, 4, form).astype(np.float64),
            np.floor(scale * rng.random(form)),
            rng.uniform(1900.0, 2030.0, form).round(),
            scale * rng.exponential(size=form),
            rng.standard_cauchy(form),
            -scale * rng.random(form),
        ]
    for rows in list(drawn):
        holed = np.where(rng.random(rows.shape) < 0.3, np.nan, rows)
        # One row far from the others, a column all the same, and a column of each kind.
        far = rows * np.where(np.arange(TRIAL_ROWS) == rng.integers(TRIAL_ROWS), 1e3, 1.0)[:, None]
        drawn += [holed, far, np.where(rng.random(columns) < 0.5, rows[0], rows)]
    kinds = rng.integers(len(drawn), size=(len(drawn), columns))
    drawn += [np.stack([drawn[kind][:, column] for column, kind in enumerate(own)], axis=1) for own in kinds[:_REPEATS]]
    drawn.append(np.concatenate(drawn[: 8 * _REPEATS]))  # and many rows
    for rows in drawn:
        yield np.ascontiguousarray(rows.reshape(_form(len(rows), width)))
