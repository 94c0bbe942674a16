"""Tables of records: data frames, relations, mappings and files, read after a run is charged, here or at sites.

**Privacy.** Names and types of columns are public.  Values are read when a private function converts them to arrays.
"""

import itertools
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import DeferredArray, check_type, warn_of_clamped
from dpinfer._values import identity_of
from dpinfer.errors import RecordError, SchemaError
from dpinfer.formulas.design import Design, design
from dpinfer.mechanism import Silos
from dpinfer.models import Model
from dpinfer.tabular import ContinuousColumn, Schema
from dpinfer.tabular.columns import numeric
from dpinfer.tabular.decoding import DecodedChunk, decode, undeclared_value
from dpinfer.tabular.frames import raw_frame, raw_records
from dpinfer.tabular.reading import RawColumn


class UnreadRecords:
    """Unread records: `X`, `y` and `unit`, the unit of each row, are read when they are converted to arrays.

    **Privacy.** The constructor reads the names of the columns, which are public.

    Raises TypeError, OSError, RecordError, SchemaError or BackendUnavailableError if it is not a table, or has not the
    columns that the design needs, and that of the units where one is named.
    """

    def __init__(self, data: Any, design: Design, unit: str = "") -> None:
        self._design, self._unit = design, unit
        self._source = _source(data, design, unit)
        self._rows: tuple[npt.NDArray[Any], ...] | None = None
        self.X = DeferredArray(lambda: self._read()[0])
        self.y = DeferredArray(lambda: self._read()[1])
        self.unit = DeferredArray(lambda: self._read()[2])

    def _read(self) -> tuple[npt.NDArray[Any], ...]:
        if self._rows is None:
            design = self._design
            names = [column.name for column in design.table_columns()]
            rows = []
            # Columns without a value come first: a table may have no record.
            for chunk in itertools.chain([dict.fromkeys([*names, self._unit], ())], self._source()):
                decoded = decode(chunk, design.schema, names)
                values = kept_values(decoded)
                whose = _identities(chunk[self._unit])[decoded.keep] if self._unit else np.empty(0, dtype=object)
                rows.append((design.encode(values), _responses(design, values), whose))
            self._rows = tuple(np.concatenate(part) for part in zip(*rows, strict=True))
        return self._rows

    def __repr__(self) -> str:
        return "UnreadRecords(private, not shown)"


def _identities(column: RawColumn) -> npt.NDArray[np.object_]:
    """Return whose each row is, as a text by itself."""
    identities = np.empty(len(column), dtype=object)
    identities[:] = list(map(identity_of, column))
    if any(text in (None, "") for text in identities):
        raise RecordError(
            "data must name the unit of each row in the column of units, and a row lacks it, or names it by a number "
            "of more digits than a float holds: give whole numbers as integers, or as text"
        )
    return identities


def _responses(design: Design, values: dict[str, FloatArray]) -> FloatArray:
    """Return the responses (N,), or with their survey weights (N, 2), and strata (N, 3)."""
    response = design.encode_response(values)
    if not design.weights and not design.strata:
        return response
    weights = values[design.weights] if design.weights else np.ones(len(response))
    return np.column_stack((response, weights, *([values[design.strata]] if design.strata else [])))


def unread_columns(data: Any, schema: Schema) -> Any:
    """Return a table for :func:`dpinfer.release_unknown`: a path, or unread columns.

    **Privacy.** Reads no records until a private function converts the columns to arrays.
    """
    if isinstance(data, (str, os.PathLike)):
        return data
    names = [column.name for column in schema.columns]
    chunks = raw_frame("data", data, names, used=numeric(schema.columns))
    found: dict[str, RawColumn] = {}

    def column(name: str) -> npt.NDArray[Any]:
        if not found:
            for chunk in chunks():
                found.update(chunk)
        values = found[name]
        return values if isinstance(values, np.ndarray) else np.array(values, dtype=object)

    return {name: DeferredArray(partial(column, name)) for name in names}


def predictors(data: Any, design: Design) -> dict[str, FloatArray]:
    """Return the decoded predictors of new points, NaN where a value is missing: one row for each of the caller's.

    **Privacy.** Reads the caller's own points.
    """
    if isinstance(data, (str, os.PathLike)):
        raise TypeError(f"new_data must be a data frame or a mapping of columns, got {type(data).__name__}")
    names = [column.name for column in design.table_columns(response=False)]
    (chunk,) = raw_frame("new_data", data, names, used=numeric(design.schema.columns))()
    values: dict[str, FloatArray] = {}
    beyond: list[str] = []
    for item in decode(chunk, design.schema, names).columns:
        if bool(item.undeclared.any()):
            raise SchemaError(undeclared_value(item.column))
        column = np.where(item.lost, np.nan, item.values.astype(np.float64))
        if isinstance(item.column, ContinuousColumn):
            low, high = item.column.bounds
            beyond += [item.column.name] if bool(np.any((column < low) | (column > high))) else []
            column = np.clip(column, low, high)
        values[item.column.name] = column
    warn_of_clamped("new_data", beyond)
    return values


def kept_values(decoded: DecodedChunk) -> dict[str, FloatArray]:
    """Return the values of the records that lack none: numbers clamped to their bounds, indices of categories.

    Raises RecordError or SchemaError as :meth:`DecodedChunk.kept`.
    """
    values: dict[str, FloatArray] = {}
    for column, own in decoded.kept():
        numbers = own.astype(np.float64)
        values[column.name] = np.clip(numbers, *column.bounds) if isinstance(column, ContinuousColumn) else numbers
    return values


def _source(data: Any, design: Design, unit: str = "") -> Any:
    schema = design.schema
    names = [column.name for column in design.table_columns()] + ([unit] if unit else [])
    if unit and unit not in [column.name for column in schema.columns]:
        raise SchemaError(f"unit or clusters must name a column of the schema (kind 'ignore' will do), got {unit!r}")
    return raw_records(data, schema, names, unit)


class SiloTable:
    """A site's table, as `X` of a :class:`dpinfer.mechanism.silos.Site`, for `dpi.regression` over silos.

    **Privacy.** Reads only the names of its columns until the site has charged its ledger.

    Parameters
    ----------
    data : data frame, mapping of columns, or path-like
        As in :func:`dpinfer.regression`.
    schema : Schema
        The site's own copy.  A request with another one is refused.
    """

    def __init__(self, data: Any, schema: Schema) -> None:
        check_type("schema", schema, Schema)
        self._data, self._schema = data, schema

    def model(self, request: Mapping[str, Any]) -> Model:
        """Return the model of the request, before a record is read."""
        layout = self._design(request)
        # The names of the columns are public; a table without them is refused before anything is charged.
        UnreadRecords(self._data, layout)
        return layout.model

    def rows(self, request: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return (X, y) of the request, which are read when they are made arrays."""
        records = UnreadRecords(self._data, self._design(request))
        return records.X, records.y

    def _design(self, request: Mapping[str, Any]) -> Design:
        if request.get("schema") != self._schema.to_dict():
            raise SchemaError("schema must be the one that this site was given")
        formula, family = str(request.get("formula")), str(request.get("family"))
        return design(formula, self._schema, family=family, prior_scale=request.get("prior_scale"))

    def __repr__(self) -> str:
        return "SiloTable(private, not shown)"


def asked_of_sites(silos: Silos, found: Design, formula: str, prior_scale: float | None) -> Silos:
    """Return the sites with a request for the rows of a design."""
    return silos.asking(
        {"formula": formula, "family": found.family, "prior_scale": prior_scale, "schema": found.schema.to_dict()}
    )
