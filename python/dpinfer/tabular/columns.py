"""The kinds of column a schema can declare, each checked when it is made.

**Privacy.** Declarations only: they are public and never read a record.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpinfer._values import text_of
from dpinfer.errors import SchemaError
from dpinfer.tabular.declarations import (
    check_encodable,
    check_number,
    check_shares,
    check_strings,
    check_told_apart,
    unknown_key,
)

MISSING_POLICIES = ("drop", "refuse")
SCALINGS = ("standard", "unit", "none")
_LARGEST_SCALED = 1e100  # squares of scaled values, and sums of many of them, must stay far from overflow
_LONGEST_WORDS = 80  # characters of a label in a table or picture


@dataclass(frozen=True, kw_only=True)
class Column:
    """Declarations common to all columns.

    Parameters
    ----------
    name : str
        Name in the file's header.
    missing : {"drop", "refuse", "other"}, optional
        Treatment of a record without a value in this column; None takes the schema's policy.  "other" (categorical
        columns only) keeps the record and maps the value to the declared `other` category.
    missing_values : sequence of str
        Spellings that mean "no value" in this column, in addition to the schema's.
    label, unit : str
        Content and unit of the column, for the readers of reports: "temperature" in "°C".
    """

    kind: ClassVar[str]
    name: str
    missing: str | None = None
    missing_values: tuple[str, ...] = ()
    label: str = ""
    unit: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise SchemaError("a column must have a name that is a non-empty string")
        check_encodable("a column's name", self.name)
        for key in ("label", "unit"):
            _check_words(self._key(key), getattr(self, key))
        if self.missing is not None and self.missing not in self._policies():
            listed = ", ".join(repr(policy) for policy in self._policies())
            raise SchemaError(f"{self._key('missing')} must be one of {listed}, got {self.missing!r}")
        object.__setattr__(
            self, "missing_values", check_strings(self._key("missing_values"), self.missing_values, minimum=0)
        )

    def _policies(self) -> tuple[str, ...]:
        return MISSING_POLICIES

    def _key(self, key: str) -> str:
        """Return the key's full name as it is written in a schema file."""
        return f"columns.{self.name}.{key}"

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features this column gives."""
        return ()

    @property
    def feature_bounds(self) -> tuple[tuple[float, float], ...]:
        """Public interval of each feature after scaling."""
        return ()

    @property
    def feature_means(self) -> tuple[float, ...]:
        """Public guesses of its features' means; bound no record."""
        return ()

    @property
    def mean_square(self) -> float:
        """A public guess of the mean of the sum of its squared features; bounds no record."""
        return 0.0

    @property
    def feature_mean_squares(self) -> tuple[float, ...]:
        """Public guesses of its features' mean squares; bound no record."""
        size = len(self.feature_names)
        return (self.mean_square / size,) * size if size else ()

    @property
    def cells(self) -> int:
        """Number of categories that `shares` are declared of; 0 for a column without."""
        return 0

    @property
    def declared_shares(self) -> tuple[float, ...] | None:
        """Public shares of the categories, None if not declared."""
        shares: tuple[float, ...] | None = getattr(self, "shares", None)
        return shares

    def to_dict(self) -> dict[str, Any]:
        """Return the declaration as TOML values, without the name."""
        result: dict[str, Any] = {"kind": self.kind}
        if self.missing is not None:
            result["missing"] = self.missing
        if self.missing_values:
            result["missing_values"] = list(self.missing_values)
        return result | {key: getattr(self, key) for key in ("label", "unit") if getattr(self, key)}

    @property
    def described(self) -> str:
        """Name, label and unit: "x1: temperature, in °C"; only the name if nothing else is declared."""
        label = f": {self.label}" if self.label else ""
        return f"{self.name}{label}, in {self.unit}" if self.unit else f"{self.name}{label}"


def _check_words(key: str, text: object) -> None:
    if not isinstance(text, str) or not text.isprintable() or len(text) > _LONGEST_WORDS:
        raise SchemaError(f"{key} must be a string of at most {_LONGEST_WORDS} characters that can be printed")


@dataclass(frozen=True, kw_only=True)
class ContinuousColumn(Column):
    """A number with **public** bounds; a value outside is clamped to the nearer bound.

    Parameters
    ----------
    bounds : (low, high)
        Public, finite, low < high, in the column's own units.
    scaling : {"standard", "unit", "none"}
        "standard" gives (x - mean) / sd, "unit" gives (x - low) / (high - low), "none" leaves the units.
    mean, sd : float, optional
        Public constants of "standard"; by default those of the uniform distribution on the bounds.  A mean alone lies
        inside the bounds, and sd**2 is then (mean - low) (high - mean) / 3, the uniform distribution's at the middle;
        an sd alone has the middle as its mean.
    """

    kind: ClassVar[str] = "continuous"
    bounds: tuple[float, float]
    scaling: str = "standard"
    mean: float | None = None
    sd: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        put = object.__setattr__
        values = self.bounds
        if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != 2:
            raise SchemaError(f"{self._key('bounds')} must be two numbers [low, high]")
        low, high = (check_number(self._key("bounds"), value) for value in values)
        if not low < high:
            raise SchemaError(f"{self._key('bounds')} must have low < high, got [{low:g}, {high:g}]")
        put(self, "bounds", (low, high))
        if self.scaling not in SCALINGS:
            listed = ", ".join(repr(scaling) for scaling in SCALINGS)
            raise SchemaError(f"{self._key('scaling')} must be one of {listed}, got {self.scaling!r}")
        for key in ("mean", "sd"):
            if getattr(self, key) is not None:
                if self.scaling != "standard":
                    raise SchemaError(f"{self._key(key)} is used only with scaling = 'standard', got {self.scaling!r}")
                put(self, key, check_number(self._key(key), getattr(self, key)))
        if self.mean is not None and self.sd is None and not low < self.mean < high:
            raise SchemaError(f"{self._key('mean')} must lie inside the bounds without an sd, got {self.mean:g}")
        if self.sd is not None and not self.sd > 0.0:
            raise SchemaError(f"{self._key('sd')} must be positive, got {self.sd:g}")
        self._check_scale()

    def _check_scale(self) -> None:
        """Refuse bounds and constants whose scaled values are no ordinary numbers."""
        with np.errstate(all="ignore"):
            offset, scale = (np.float64(value) for value in self.offset_and_scale)
            low, high = ((np.array(self.bounds) - offset) / scale).tolist()
        normal = scale >= np.finfo(np.float64).tiny and high - low >= 1.0 / _LARGEST_SCALED
        if not (normal and max(-low, high) <= _LARGEST_SCALED):
            keys = f"{self._key('mean')} and {self._key('sd')}" if self.located else self._key("bounds")
            raise SchemaError(
                f"{keys} must give scaled bounds that are distinct and at most {_LARGEST_SCALED:g} in size: this width "
                f"or sd is lost in the precision of numbers (bounds [{self.bounds[0]:g}, {self.bounds[1]:g}], scaling "
                f"{self.scaling!r})"
            )

    @property
    def offset_and_scale(self) -> tuple[float, float]:
        """The pair (offset, scale) of the feature (x - offset) / scale."""
        low, high = self.bounds
        if self.scaling == "none":
            return 0.0, 1.0
        return (low, high - low) if self.scaling == "unit" else self.public_location

    @property
    def public_location(self) -> tuple[float, float]:
        """The declared mean and sd, and what follows for one that is not declared."""
        low, high = self.bounds
        mean = 0.5 * low + 0.5 * high if self.mean is None else self.mean
        if self.sd is not None:
            return mean, self.sd
        if self.mean is None:
            return mean, (high - low) / float(np.sqrt(12.0))
        return mean, math.sqrt((mean - low) / 3.0) * math.sqrt(high - mean)

    @property
    def located(self) -> bool:
        """Whether a public mean or sd is declared."""
        return self.mean is not None or self.sd is not None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The column's own name."""
        return (self.name,)

    @property
    def feature_bounds(self) -> tuple[tuple[float, float], ...]:
        """The bounds after scaling."""
        offset, scale = self.offset_and_scale
        low, high = self.bounds
        return (((low - offset) / scale, (high - offset) / scale),)

    @property
    def feature_means(self) -> tuple[float, ...]:
        """0 when a public mean or sd is declared, else the middle of the scaled bounds."""
        ((low, high),) = self.feature_bounds
        return (0.0,) if self.located else (0.5 * (low + high),)

    @property
    def mean_square(self) -> float:
        """1 when a public mean or sd is declared, else that of the uniform distribution on the scaled bounds."""
        if self.located:
            return 1.0
        ((low, high),) = self.feature_bounds
        return (low * low + low * high + high * high) / 3.0

    def to_dict(self) -> dict[str, Any]:
        """Return the declaration as TOML values, without the name."""
        result = super().to_dict() | {"bounds": list(self.bounds), "scaling": self.scaling}
        return result | {key: getattr(self, key) for key in ("mean", "sd") if getattr(self, key) is not None}


@dataclass(frozen=True, kw_only=True)
class CategoricalColumn(Column):
    """A label out of **public** categories, one 0/1 feature for each.

    With a feature for every category and an intercept, the weights are settled only up to a shift between them, and
    the prior decides the rest; a mean-field posterior then shows intervals that are too narrow for the single weights
    (predictions are not affected).  Declare a `reference` where the weights themselves are to be read.

    Parameters
    ----------
    categories : sequence of str
        Public, distinct, not empty.
    other : str, optional
        Category that every undeclared value becomes; appended to `categories` if it is not there.  Without it an
        undeclared value is refused.
    reference : str, optional
        Category without a feature of its own: the weights of the others are then differences from it.
    shares : sequence of float, optional
        Public share of the records in each of `categories`, positive, summing to 1: from a census table, an earlier
        release, or ``dpinfer.tabular.release_shares``.  Equal by default; bounds no record.
    """

    kind: ClassVar[str] = "categorical"
    categories: tuple[str, ...]
    other: str | None = None
    reference: str | None = None
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        categories = check_strings(self._key("categories"), self.categories, minimum=1)
        if self.other is not None:
            (other,) = check_strings(self._key("other"), (self.other,), minimum=1)
            object.__setattr__(self, "other", other)
            if other not in categories:
                categories = (*categories, other)
        check_told_apart(self._key("categories"), categories)
        object.__setattr__(self, "categories", categories)
        super().__post_init__()
        if self.missing == "other" and self.other is None:
            raise SchemaError(f"{self._key('missing')} = 'other' needs {self._key('other')}")
        if self.reference is not None and self.reference not in categories:
            raise SchemaError(f"{self._key('reference')} must be one of the categories, got {self.reference!r}")
        if self.shares is not None:
            object.__setattr__(self, "shares", check_shares(self._key("shares"), self.shares, len(categories)))

    @property
    def levels(self) -> tuple[str, ...]:
        """The categories that have a feature."""
        return tuple(category for category in self.categories if category != self.reference)

    def _policies(self) -> tuple[str, ...]:
        return (*MISSING_POLICIES, "other")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """``name=category`` for each category but the reference."""
        return tuple(f"{self.name}={category}" for category in self.levels)

    @property
    def feature_bounds(self) -> tuple[tuple[float, float], ...]:
        """[0, 1] for each of its features."""
        return ((0.0, 1.0),) * len(self.levels)

    @property
    def feature_means(self) -> tuple[float, ...]:
        """The declared shares; by default all categories are equally likely."""
        if self.shares is None:
            return (1.0 / len(self.categories),) * len(self.levels)
        pairs = zip(self.categories, self.shares, strict=True)
        return tuple(share for category, share in pairs if category != self.reference)

    @property
    def mean_square(self) -> float:
        """1, since one feature is 1 and the others are 0; with a reference level, the share of the other levels."""
        return len(self.levels) / len(self.categories) if self.shares is None else sum(self.feature_means)

    @property
    def feature_mean_squares(self) -> tuple[float, ...]:
        """Those of 0/1 features are their means."""
        return self.feature_means

    @property
    def cells(self) -> int:
        """Number of categories."""
        return len(self.categories)

    def to_dict(self) -> dict[str, Any]:
        """Return the declaration as TOML values, without the name."""
        result = super().to_dict() | {"categories": list(self.categories)}
        shares = None if self.shares is None else list(self.shares)
        chosen = {"other": self.other, "reference": self.reference, "shares": shares}
        return result | {key: value for key, value in chosen.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class BinaryColumn(Column):
    """One 0/1 feature.

    Parameters
    ----------
    positive, negative : str or sequence of str
        Public spellings of 1 and of 0; they must not overlap.  Any other value is refused.
    shares : pair of float, optional
        Public shares of 1 and of 0, positive, summing to 1; equal by default.  They bound no record.
    """

    kind: ClassVar[str] = "binary"
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares is not None:
            object.__setattr__(self, "shares", check_shares(self._key("shares"), self.shares, 2))
        for key in ("positive", "negative"):
            value = getattr(self, key)
            object.__setattr__(
                self, key, check_strings(self._key(key), (value,) if isinstance(value, str) else value, minimum=1)
            )
        if set(map(text_of, self.positive)) & set(map(text_of, self.negative)):
            raise SchemaError(f"{self._key('positive')} and {self._key('negative')} must not share a value")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """``name=first positive spelling``."""
        return (f"{self.name}={self.positive[0]}",)

    @property
    def feature_bounds(self) -> tuple[tuple[float, float], ...]:
        """[0, 1]."""
        return ((0.0, 1.0),)

    @property
    def feature_means(self) -> tuple[float, ...]:
        """The declared share of 1; one half by default."""
        return (0.5,) if self.shares is None else self.shares[:1]

    @property
    def mean_square(self) -> float:
        """The same as the mean."""
        return self.feature_means[0]

    @property
    def cells(self) -> int:
        """2."""
        return 2

    def to_dict(self) -> dict[str, Any]:
        """Return the declaration as TOML values, without the name."""
        result = super().to_dict() | {"positive": list(self.positive), "negative": list(self.negative)}
        return result if self.shares is None else result | {"shares": list(self.shares)}


@dataclass(frozen=True, kw_only=True)
class TargetColumn(BinaryColumn):
    """The response, 1 for a positive spelling and 0 for a negative one; it gives no feature."""

    kind: ClassVar[str] = "target"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares is not None:
            raise SchemaError(f"{self._key('shares')} must be left out: the target is not a feature")

    # The target is not a feature.
    cells, mean_square = Column.cells, Column.mean_square
    feature_names, feature_bounds, feature_means = Column.feature_names, Column.feature_bounds, Column.feature_means


@dataclass(frozen=True, kw_only=True)
class IgnoredColumn(Column):
    """A column that gives no feature; it is looked at only when `missing` is declared."""

    kind: ClassVar[str] = "ignore"


_KINDS: dict[str, type[Column]] = {
    kind.kind: kind for kind in (ContinuousColumn, CategoricalColumn, BinaryColumn, TargetColumn, IgnoredColumn)
}


def numeric(columns: Iterable[Column]) -> dict[str, bool]:
    """Return, for each column that is not ignored, whether its values must be numbers."""
    return {
        column.name: isinstance(column, ContinuousColumn) for column in columns if not isinstance(column, IgnoredColumn)
    }


def column_from_dict(name: str, values: Any) -> Column:
    """Return the column that one table of a schema file declares, ``{"kind": ..., ...}`` with keys of that kind only.

    Raises SchemaError if the kind or a key is unknown, a key is missing, or a value is out of range; the message names
    the key.

    Examples
    --------
    >>> column_from_dict("age", {"kind": "continuous", "bounds": [0, 100], "scaling": "unit"}).feature_bounds
    ((0.0, 1.0),)
    """
    if not isinstance(values, Mapping):
        raise SchemaError(f"columns.{name} must be a table, got {type(values).__name__}")
    options = dict(values)
    kind = options.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise SchemaError(f"columns.{name}.kind must be one of {', '.join(map(repr, _KINDS))}; got {kind!r}")
    column = _KINDS[kind]
    allowed = [key for key in column.__dataclass_fields__ if key != "name"]
    for key in options:
        if key not in allowed:
            raise SchemaError(unknown_key(f"columns.{name}.{key}", key, allowed, f"a {kind} column"))
    required = {"continuous": ["bounds"], "categorical": ["categories"]}.get(
        kind, ["positive", "negative"] if issubclass(column, BinaryColumn) else []
    )
    for key in required:
        if key not in options:
            raise SchemaError(f"columns.{name}.{key} is required for a {kind} column")
    return column(name=name, **options)
