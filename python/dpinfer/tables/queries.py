"""The three private tables: what one record adds to each, and their release by one private sum.

**Privacy.** Reads the records.  Proof: docs/derivations/private-queries.md.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import DeferredArray, check_interval, check_type
from dpinfer.accounting import Adjacency, LedgerAccount, as_adjacency
from dpinfer.errors import SchemaError
from dpinfer.mechanism import RandomSource
from dpinfer.mechanism.bounded_sum import released_sum
from dpinfer.mechanism.private_run import CheckpointArgument, RunControl
from dpinfer.release.guarantee import check_parts
from dpinfer.tables.noisy_table import NoisyTable
from dpinfer.tables.tuning import TUNING
from dpinfer.tabular import BinaryColumn, CategoricalColumn, ContinuousColumn, Schema
from dpinfer.tabular.decoding import decode
from dpinfer.tabular.frames import raw_records
from dpinfer.tabular.reading import RawColumn

_ROOM = 1.0 + 2.0**-19  # the compiled sum shortens what is within 2**-20 of its norm; counts stay whole: tolerance
_MAX_CELLS = 1 << 18  # 2 MiB of a record's numbers


@dataclass(frozen=True)
class _Cells:
    """A record's contribution to each margin: 1 in its cell, or (1, u, u**2 / 2) for its value u in [-1, 1].

    A record that lacks a value of a margin adds nothing there.
    """

    # tuple of (places, sizes): for each margin the columns of a row that hold codes, and how many codes each has
    margins: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    valued: bool  # whether the last column of a row is u

    @property
    def length(self) -> int:
        """Of one record's vector."""
        return (3 if self.valued else 1) * sum(math.prod(sizes) for _, sizes in self.margins)

    def norm(self, order: int) -> float:
        """Return the largest norm of one record's vector: of order 1 or 2."""
        own = (1.0, 1.0, TUNING.square_weight) if self.valued else (1.0,)
        total = len(self.margins) * sum(part**order for part in own)
        return total if order == 1 else math.sqrt(total)

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Return the vectors (B, length) of rows of codes and value, NaN for a missing value."""
        found, first, width = np.zeros((len(rows), self.length)), 0, 3 if self.valued else 1
        for places, sizes in self.margins:
            used = rows[:, [*places, -1] if self.valued else list(places)]
            known = np.flatnonzero(np.isfinite(used).all(axis=1))
            cell = np.zeros(len(known), dtype=np.intp)
            for place, size in zip(places, sizes, strict=True):
                cell = cell * size + rows[known, place].astype(np.intp)
            found[known, first + width * cell] = 1.0
            if self.valued:
                value = np.clip(rows[known, -1], -1.0, 1.0)
                found[known, first + width * cell + 1] = value
                found[known, first + width * cell + 2] = TUNING.square_weight * value**2
            first += width * math.prod(sizes)
        return found


def counts(
    data: Any,
    columns: str | Sequence[str],
    *,
    schema: Schema,
    epsilon: float,
    delta: float = 0.0,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    ledger: LedgerAccount | None = None,
    checkpoint: CheckpointArgument = None,
    random_source: RandomSource | None = None,
) -> NoisyTable:
    """Release the counts of the categories of several columns, one table for each, for one charge.

    **Privacy.** Reads the records.  (epsilon, delta)-differentially private: a record adds 1 to one cell of each of k
    tables, a contribution of norm sqrt(k) for Gaussian noise and k for Laplace noise; :func:`dpinfer.private_sum`
    bounds, sums and charges it.

    Raises SchemaError if a column is not declared, or not of a kind that has categories. Raises RecordError if the
    table cannot be read, or lacks a value where the policy is "refuse".

    Parameters
    ----------
    data : data frame, mapping of columns, or path of a CSV or Parquet file
        As :func:`dpinfer.regression` takes it; looked at when the run is charged.
    columns : str or sequence of str
        Categorical, binary or target columns.
    schema : Schema
        Public: its categories are the cells, whether or not a record has them.  A record without a value, or with a
        label that is not declared, is left out of the table of that column, unless the schema's policy collects or
        refuses it.
    epsilon : float
        In (0, inf), for all tables together.
    delta : float
        In [0, 1): 0 for discrete Laplace noise, else Gaussian noise.
    adjacency, ledger, checkpoint, random_source
        As of :func:`dpinfer.private_sum`.

    Examples
    --------
    >>> import numpy as np, dpinfer as dpi
    >>> pet = {"kind": "categorical", "categories": ["cat", "dog"]}
    >>> schema = dpi.tabular.Schema.from_dict({"columns": {"pet": pet}})
    >>> pets = dpi.tables.counts({"pet": ["cat"] * 600 + ["dog"] * 200}, "pet", schema=schema, epsilon=1.0)
    >>> [row["label"] for row in pets.rows()], bool(abs(pets.estimate[0] - 600) < 40)
    (['cat', 'dog'], True)
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    terms = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    control = RunControl.checked(random_source=random_source, ledger=ledger, checkpoint=checkpoint)
    return _release("counts", data, tuple((name,) for name in names), None, schema, control, terms)


def crosstab(
    data: Any,
    columns: Sequence[str],
    *,
    schema: Schema,
    epsilon: float,
    delta: float = 0.0,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    ledger: LedgerAccount | None = None,
    checkpoint: CheckpointArgument = None,
    random_source: RandomSource | None = None,
) -> NoisyTable:
    """Release a cross-table: the number of records with each combination of categories.

    **Privacy.** Reads the records.  (epsilon, delta)-differentially private: a record adds 1 to one cell.

    Raises SchemaError, TypeError, ValueError, RecordError or BudgetExceededError as of :func:`counts`.

    Parameters
    ----------
    data, schema, epsilon, delta, adjacency, ledger, checkpoint, random_source
        As of :func:`counts`.
    columns : sequence of str
        At least two categorical, binary or target columns; a record that lacks a value of one is in no cell.
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if len(names) < 2:
        raise ValueError("columns must name at least two columns: counts() is for one, or for each by itself")
    terms = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    control = RunControl.checked(random_source=random_source, ledger=ledger, checkpoint=checkpoint)
    return _release("crosstab", data, (names,), None, schema, control, terms)


def means(
    data: Any,
    value: str,
    by: str | Sequence[str] = (),
    *,
    schema: Schema,
    epsilon: float,
    delta: float = 0.0,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    ledger: LedgerAccount | None = None,
    checkpoint: CheckpointArgument = None,
    random_source: RandomSource | None = None,
) -> NoisyTable:
    """Release the mean of a continuous column, of all records or of each cell of a table.

    Intervals are for the population by default, or for the records (``target="sample"``).

    **Privacy.** Reads the records.  (epsilon, delta)-differentially private: a record adds (1, u, u**2 / 2) to one
    cell, u being its value scaled to [-1, 1] by the schema's bounds: a contribution of norm 1.5 for Gaussian noise and
    2.5 for Laplace noise.

    Raises SchemaError, TypeError, ValueError, RecordError or BudgetExceededError as of :func:`counts`.

    Parameters
    ----------
    data, schema, epsilon, delta, adjacency, ledger, checkpoint, random_source
        As of :func:`counts`.  Values outside of the schema's bounds are clamped to them.
    value : str
        A continuous column.
    by : str or sequence of str
        Categorical, binary or target columns whose combinations are the cells; none for one mean of all records.
    """
    names = (by,) if isinstance(by, str) else tuple(by)
    terms = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    control = RunControl.checked(random_source=random_source, ledger=ledger, checkpoint=checkpoint)
    return _release("means", data, (names,), value, schema, control, terms)


def _release(
    kind: str,
    data: Any,
    margins: tuple[tuple[str, ...], ...],
    value: str | None,
    schema: Schema,
    control: RunControl,
    terms: dict[str, Any],
) -> NoisyTable:
    """Release the sums of a table, and return it."""
    check_type("schema", schema, Schema)
    check_parts("schema.parts", schema.parts, as_adjacency(terms["adjacency"]))
    labels = {name: _labels(schema, name) for margin in margins for name in margin}
    if sum(map(len, margins)) != len(labels):
        raise ValueError("columns must be distinct")
    if not labels and value is None:
        raise ValueError("columns must name at least one column")
    column = None if value is None else _continuous(schema, value)
    places = {name: place for place, name in enumerate(labels)}
    coded = [([places[name] for name in margin], [len(labels[name]) for name in margin]) for margin in margins]
    cells = _Cells(tuple((tuple(own), tuple(sizes)) for own, sizes in coded), column is not None)
    if cells.length > _MAX_CELLS:
        raise ValueError(f"columns must have at most {_MAX_CELLS} cells together, got {cells.length}")
    used_columns = [*labels, *([] if column is None else [column.name])]
    source = raw_records(data, schema, used_columns)
    valued = None if column is None else {"name": column.name, "bounds": list(column.bounds), "unit": column.unit}
    described = {"kind": kind, "margins": [list(margin) for margin in margins], "labels": labels, "value": valued}
    gaussian = check_interval("delta", terms["delta"], 0.0, 1.0, low_open=False) > 0.0
    release = released_sum(
        DeferredArray(lambda: _read(source, schema, used_columns)),
        cells,
        tuple(_names(margins, labels, value)),
        control,
        max_norm=cells.norm(2) * _ROOM if gaussian else cells.norm(1),
        settings={"table": described},
        **terms,
    )
    return NoisyTable(release.with_parts(*schema.parts).with_leaks(*schema.leaks))


def _labels(schema: Schema, name: Any) -> list[str]:
    """Return the labels of a column, in the order of its codes."""
    column = next((column for column in schema.columns if column.name == name), None)
    if column is None:
        raise SchemaError(f"columns must be declared in the schema, got {name!r}")
    if isinstance(column, CategoricalColumn):
        return list(column.categories)
    if isinstance(column, BinaryColumn):
        return [column.negative[0], column.positive[0]]
    raise SchemaError(f"columns must be categorical, binary or target columns: {name!r} is {column.kind}")


def _continuous(schema: Schema, name: str) -> ContinuousColumn:
    column = next((column for column in schema.columns if column.name == name), None)
    if not isinstance(column, ContinuousColumn):
        raise SchemaError(f"value must be a continuous column of the schema, got {name!r}")
    return column


def _names(margins: tuple[tuple[str, ...], ...], labels: dict[str, list[str]], value: str | None) -> Iterator[str]:
    for margin in margins:
        for cell in product(*(labels[name] for name in margin)):
            of = ", ".join(f"{name}={label}" for name, label in zip(margin, cell, strict=True)) or "all"
            yield f"count({of})"
            if value is not None:
                yield f"sum of scaled {value}({of})"
                yield f"{TUNING.square_weight:g} sum of scaled {value}**2({of})"


def _read(source: Callable[[], Iterator[dict[str, RawColumn]]], schema: Schema, used_columns: list[str]) -> FloatArray:
    """Return a row of codes and scaled value for each record; NaN for a missing one."""
    rows = [np.empty((0, len(used_columns)))]
    for chunk in source():
        decoded = decode(chunk, schema, used_columns)
        decoded.refuse_missing()
        found = np.empty((len(decoded.keep), len(used_columns)))
        for item in decoded.columns:
            place = used_columns.index(item.column.name)
            if isinstance(item.column, ContinuousColumn):
                low, high = item.column.bounds
                found[:, place] = (np.clip(item.values, low, high) - 0.5 * (low + high)) / (0.5 * (high - low))
            else:
                found[:, place] = np.where(item.values < 0, np.nan, item.values)
        rows.append(found)
    return np.concatenate(rows)
