"""Table schemas: public knowledge about each column, written down before the records are read."""

import os
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._sinks import toml_string
from dpinfer.errors import SchemaError
from dpinfer.release.guarantee import Part, check_leaks, check_parts, part_from_dict
from dpinfer.tabular.columns import (
    MISSING_POLICIES,
    CategoricalColumn,
    Column,
    TargetColumn,
    column_from_dict,
)
from dpinfer.tabular.declarations import unknown_key

_RESERVED_NAMES = ("intercept", "noise_variance")
_HELD = "_held"  # of a column: the private parts of its schema
_TABLE_KEYS = ("missing", "missing_values", "delimiter", "leaks", "parts")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Public knowledge about a table: the kind, bounds or categories, and scaling of every column.

    **Privacy.** A schema is public and reads no record.  It must be written from a codebook, a questionnaire or the
    units of the quantity, never from the records: a bound or a category found in the records is itself a release (see
    :func:`schema_from_data`, which does it with a warning).

    Dropping a record with a missing value depends on that record alone, so neighbouring tables stay neighbours under
    add/remove adjacency and the guarantee holds; how many records were dropped is private and is never reported.  The
    policy "refuse" and an undeclared category without `other` stop before anything is drawn, but the refusal reveals
    something about the records that no noise covers: with a ledger the charge stands.  Declare `other`, and leave
    `missing` at "drop", and no record can stop it.

    Raises SchemaError if the declarations are inconsistent; the message names the key.

    Parameters
    ----------
    columns : sequence of Column
        Every column of the file, at most one of kind "target".
    missing : {"drop", "refuse"}
        Treatment of a record without a value, unless its column declares another one.
    missing_values : sequence of str
        Spellings that mean "no value" in every column.
    delimiter : str
        One character, for CSV files.
    leaks : tuple of str
        Contents taken from private records without noise (by :func:`schema_from_data`, say). Releases made with the
        schema carry them; remove it once every number and category has been replaced by a public one.
    parts : tuple of Part
        Private releases that it holds, such as :func:`release_shares` makes.  They go into the guarantees of the
        releases made with it.  A schema of the same columns without them is refused.

    Examples
    --------
    >>> schema = Schema.from_dict({"columns": {
    ...     "age": {"kind": "continuous", "bounds": [17, 90]},
    ...     "sex": {"kind": "categorical", "categories": ["Female", "Male"]},
    ...     "income": {"kind": "target", "positive": ">50K", "negative": "<=50K"}}})
    >>> schema.feature_names
    ('age', 'sex=Female', 'sex=Male')
    """

    columns: tuple[Column, ...]
    missing: str = "drop"
    missing_values: tuple[str, ...] = ("", "?")
    delimiter: str = ","
    leaks: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__
        columns = tuple(self.columns)
        put(self, "columns", columns)
        if not columns or not all(isinstance(column, Column) for column in columns):
            raise SchemaError("columns must hold at least one column")
        if self.missing not in MISSING_POLICIES:
            listed = ", ".join(repr(policy) for policy in MISSING_POLICIES)
            raise SchemaError(f"table.missing must be one of {listed}, got {self.missing!r}")
        values = self.missing_values
        if isinstance(values, str) or not all(isinstance(value, str) for value in values):
            raise SchemaError("table.missing_values must be a list of strings")
        put(self, "missing_values", tuple(value.strip() for value in values))
        if not isinstance(self.delimiter, str) or len(self.delimiter) != 1 or self.delimiter in '\r\n"':
            raise SchemaError("table.delimiter must be one character, and neither a quote nor a line end")
        try:
            put(self, "leaks", check_leaks(self.leaks))
            put(self, "parts", check_parts("parts", self.parts))
        except (TypeError, ValueError) as error:
            raise SchemaError(f"table.{error}") from error
        own = Counter(self.parts)
        if not all(Counter(vars(column).get(_HELD, ())) <= own for column in columns):
            raise SchemaError("table.parts can only be added to: columns of a released schema need its parts")
        if self.parts:  # in columns of its own, so that a copy field by field carries them along
            columns = tuple(replace(column) for column in columns)
            for column in columns:
                put(column, _HELD, self.parts)
            put(self, "columns", columns)
        names = [column.name for column in columns]
        if len(set(names)) != len(names):
            raise SchemaError("columns must have distinct names")
        targets = [column.name for column in columns if isinstance(column, TargetColumn)]
        if len(targets) > 1:
            raise SchemaError(f"at most one column may be of kind 'target', got {', '.join(targets)}")
        features = self.feature_names
        if not features:
            raise SchemaError("at least one column must be of kind 'continuous', 'categorical' or 'binary'")
        if len(set(features)) != len(features):
            raise SchemaError("two columns give features of the same name; rename a column or a category")
        for name in _RESERVED_NAMES:
            if name in features:
                raise SchemaError(f"columns.{name} must be renamed: the models use that name for a parameter")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Schema":
        """Read a schema from a TOML file; raise SchemaError if it is not TOML or not a schema."""
        return cls.from_dict(load_document(path))

    @classmethod
    def from_toml(cls, text: str) -> "Schema":
        """Make a schema from the text of a TOML file; raise SchemaError if it is not TOML or not a schema."""
        return cls.from_dict(parse_document(text))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Schema":
        """Make a schema from the tables ``table`` (optional) and ``columns``, as in a TOML file.

        Raises SchemaError if a key is unknown or missing, or a value is wrong; the message names the key.
        """
        if not isinstance(document, Mapping):
            raise SchemaError(f"a schema must be a mapping, got {type(document).__name__}")
        for key in document:
            if key not in ("table", "columns"):
                raise SchemaError(unknown_key(key, key, ("table", "columns"), "a schema"))
        table = document.get("table", {})
        if not isinstance(table, Mapping):
            raise SchemaError(f"table must be a table, got {type(table).__name__}")
        for key in table:
            if key not in _TABLE_KEYS:
                raise SchemaError(unknown_key(f"table.{key}", key, _TABLE_KEYS, "table"))
        columns = document.get("columns")
        if not isinstance(columns, Mapping) or not columns:
            raise SchemaError("a schema must have a table 'columns' with at least one column")
        values = dict(table)
        if not isinstance(values.get("missing_values", []), (list, tuple)):
            raise SchemaError("table.missing_values must be a list of strings")
        try:
            values["parts"] = tuple(part_from_dict(part) for part in values.get("parts", ()))
        except (TypeError, ValueError) as error:
            raise SchemaError(f"table.parts must be those of a released schema: {error}") from error
        return cls(columns=tuple(column_from_dict(name, value) for name, value in columns.items()), **values)

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as TOML values; :meth:`from_dict` reads it back."""
        table: dict[str, Any] = {
            "missing": self.missing,
            "missing_values": list(self.missing_values),
            "delimiter": self.delimiter,
        }
        if self.leaks:
            table["leaks"] = list(self.leaks)
        if self.parts:
            table["parts"] = [part.to_dict() for part in self.parts]
        return {"table": table, "columns": {column.name: column.to_dict() for column in self.columns}}

    def to_toml(self) -> str:
        """Return the schema as the text of a TOML file; :meth:`from_toml` reads it back."""
        return toml_text(self.to_dict())

    @property
    def target(self) -> TargetColumn | None:
        """The target column, if one is declared."""
        return next((column for column in self.columns if isinstance(column, TargetColumn)), None)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in the order of the columns of X."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @cached_property
    def feature_moments(self) -> npt.NDArray[np.float64]:
        """Public guess of E[(x, 1)(x, 1)'], (n_features + 1, n_features + 1), for the models' argument of that name.

        Columns are taken as independent, the categories of one as equally likely without declared shares: a start,
        which a posterior with a full Hessian corrects from the release.  The mutual exclusion of a
        column's indicators is exact.
        """
        means = np.array([mean for column in self.columns for mean in column.feature_means] + [1.0])
        moments = np.outer(means, means)
        first = 0
        for column in self.columns:
            size = len(column.feature_names)
            if size:
                part = slice(first, first + size)
                moments[part, part] = np.diag(column.feature_mean_squares)
            first += size
        return moments

    @property
    def shares_known(self) -> bool:
        """Whether there are categorical or binary columns and all of them declare the shares of their categories."""
        labelled = [column for column in self.columns if column.cells]
        return bool(labelled) and all(column.declared_shares is not None for column in labelled)

    def with_shares(self, shares: Mapping[str, Sequence[float]]) -> "Schema":
        """Return the schema with the shares of categories of some columns declared.

        They are positive and sum to one: of a categorical column in the order of its `categories`, of a binary column
        (positive, negative).

        **Privacy.** The shares must be public or released: counted without noise from the records they are a leak.

        Raises SchemaError if a name is not that of a categorical or binary feature column, or its shares are wrong.
        """
        if not isinstance(shares, Mapping):
            raise SchemaError(f"shares must be a mapping of column names, got {type(shares).__name__}")
        names = [column.name for column in self.columns if column.cells]
        for name in shares:
            if name not in names:
                raise SchemaError(f"shares must be of categorical or binary columns ({', '.join(names)}), got {name!r}")
        given: Any = shares
        columns: Any = self.columns
        changed = (replace(each, shares=given[each.name]) if each.name in given else each for each in columns)
        return replace(self, columns=tuple(changed))

    @cached_property
    def feature_bounds(self) -> npt.NDArray[np.float64]:
        """Public interval of each feature after scaling, (n_features, 2)."""
        return np.array([bounds for column in self.columns for bounds in column.feature_bounds], dtype=np.float64)

    @cached_property
    def max_row_norm(self) -> float:
        """Largest Euclidean norm of a row of X that the schema admits; a categorical column contributes 1."""
        total = 0.0
        for column in self.columns:
            if isinstance(column, CategoricalColumn):
                total += 1.0
            else:
                total += sum(max(low * low, high * high) for low, high in column.feature_bounds)
        return float(np.sqrt(total))

    @cached_property
    def typical_row_norm(self) -> float:
        """A public guess of the root mean square norm of a row of X, from the declarations alone."""
        return float(np.sqrt(sum(column.mean_square for column in self.columns)))


def load_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises OSError if the file cannot be read. Raises SchemaError if it is not TOML.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SchemaError("the schema must be a UTF-8 text file") from error
    return parse_document(text)


def parse_document(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; raise SchemaError if it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"the schema is not valid TOML: {error}") from error
    except (RecursionError, ValueError) as error:
        # tomllib leaves Python's own limits to Python: on nesting, and on the digits of a number.
        raise SchemaError("the schema is not valid TOML: it is nested too deeply, or a number is too long") from error


def toml_text(document: Mapping[str, Any]) -> str:
    """Return a schema's tables as the text of a TOML file."""
    lines = ["[table]", *(f"{key} = {toml_value(value)}" for key, value in document["table"].items())]
    for name, values in document["columns"].items():
        lines += ["", f"[columns.{toml_key(name)}]"]
        lines += [f"{item} = {toml_value(value)}" for item, value in values.items()]
    return "\n".join(lines) + "\n"


def toml_key(name: str) -> str:
    """Return a name as a key."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: Any) -> str:
    """Return a value of a schema as TOML."""
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + "}"
    return repr(value)
