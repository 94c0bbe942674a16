"""Drafts of schemas: public knowledge, with gaps for unknown bounds and categories."""

import os
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

from dpinfer._values import text_of
from dpinfer.errors import SchemaError
from dpinfer.mechanism.unknowns.draws import QuantileSearch
from dpinfer.mechanism.unknowns.releases import check_limits
from dpinfer.release import BoundsRelease, CategoriesRelease, Part
from dpinfer.tabular.schema import Schema, load_document, parse_document

_OTHER, _RELEASED = "other", "a released label"
_FARTHEST = 2.0**65  # beyond all released bounds without limits: format


class SchemaDraft:
    """A schema in which continuous columns may lack their bounds, and categorical columns their categories.

    **Privacy.** Public, and reads no record. :func:`release_unknown` fills the gaps.

    Raises SchemaError if anything but a gap is wrong; the message names the key.

    Parameters
    ----------
    document : mapping
        As of :meth:`Schema.from_dict`.  A continuous column without `bounds` may have public `limits` instead, two
        numbers that enclose all possible values.

    Examples
    --------
    >>> draft = SchemaDraft({"columns": {"age": {"kind": "continuous", "limits": [0, 120]},
    ...                                  "job": {"kind": "categorical"}}})
    >>> draft.unknown_bounds, draft.unknown_categories
    (('age',), ('job',))
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        columns = document.get("columns") if isinstance(document, Mapping) else None
        if not isinstance(columns, Mapping):
            raise SchemaError("a schema must have a table 'columns' with at least one column")
        self._document = deepcopy(dict(document))
        self._searches: dict[str, QuantileSearch] = {}
        labelled = []
        for name, column in columns.items():
            kind = column.get("kind") if isinstance(column, Mapping) else None
            if kind == "continuous" and "bounds" not in column:
                self._searches[name] = QuantileSearch(_limits(name, column))
            elif kind == "categorical" and "categories" not in column:
                if "shares" in column:
                    raise SchemaError(f"columns.{name}.shares must not be given without categories")
                labelled.append(name)
        self._labelled = tuple(labelled)
        # Other errors show now, before anything is spent.
        self._taken: frozenset[str] = frozenset()
        self.placeholder = self._filled({name: {"bounds": [0.0, 1.0]} for name in self._searches}, {})
        self._taken = frozenset(self.placeholder.feature_names)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SchemaDraft":
        """Read a draft from a TOML file; raise SchemaError if it is not TOML or not a draft."""
        return cls(load_document(path))

    @classmethod
    def from_toml(cls, text: str) -> "SchemaDraft":
        """Make a draft from the text of a TOML file; raise SchemaError if it is not TOML or not a draft."""
        return cls(parse_document(text))

    @property
    def unknown_bounds(self) -> tuple[str, ...]:
        """Names of the continuous columns without bounds."""
        return tuple(self._searches)

    @property
    def unknown_categories(self) -> tuple[str, ...]:
        """Names of the categorical columns without categories."""
        return self._labelled

    @property
    def searches(self) -> tuple[QuantileSearch, ...]:
        """How the bounds of each column without them are found."""
        return tuple(self._searches.values())

    def only(self, names: Collection[str], *, ignore: bool) -> "SchemaDraft":
        """Return a draft of these columns: a release then spends nothing on the others.

        `ignore` keeps the others as columns to ignore, as a file has them; otherwise the draft leaves them out.
        """
        document = deepcopy(self._document)
        others: dict[str, Any] = {name: {"kind": "ignore"} for name in document["columns"] if ignore}
        document["columns"] = others | {
            name: document["columns"][name] for name in document["columns"] if name in names
        }
        return SchemaDraft(document)

    def stand_in(self, *, reach: float = 1.0, n_labels: int = 1) -> Schema:
        """Return a schema with possible released values: a fit that fails with it may fail later.

        Bounds cover a share `reach` in (0, 1] of the public limits, or of the searched range, from the left; a column
        without categories has `n_labels` beside its `other`.
        """
        bounds, labels = {}, tuple(f"{_RELEASED} {number}" for number in range(n_labels))
        for name, search in self._searches.items():
            low, high = search.limits or (-_FARTHEST, _FARTHEST)
            bounds[name] = {"bounds": [low, low + reach * (high - low)]}
        return self._filled(bounds, dict.fromkeys(self._labelled, labels))

    def complete(
        self,
        bounds: BoundsRelease | None = None,
        categories: CategoriesRelease | None = None,
        *,
        parts: Sequence[Part] = (),
        leaks: Sequence[str] = (),
    ) -> Schema:
        """Return the schema with its gaps filled from the releases.

        Columns get the released bounds, and standardised columns the released centre and scale; categorical
        columns the released labels and an `other` for all the rest ("other" unless declared).  A label that would give
        two features the same name goes to `other`: this function returns a schema for any release.

        The schema holds `parts` and `leaks` of the releases.

        Raises SchemaError if a gap is not filled.
        """
        found: dict[str, dict[str, Any]] = {}
        if bounds is not None:
            ends = bounds.bounds()
            for place, name in enumerate(bounds.names):
                found[name] = {"bounds": ends[place].tolist()}
                column = self._document["columns"].get(name, {})
                if column.get("scaling", "standard") == "standard" and "sd" not in column:
                    found[name] |= {"mean": float(bounds.centre[place]), "sd": float(bounds.scale[place])}
        labels = {} if categories is None else categories.categories
        for names, there in ((self.unknown_bounds, found), (self.unknown_categories, labels)):
            missing = [name for name in names if name not in there]
            if missing:
                raise SchemaError(f"nothing was released for the columns {', '.join(map(repr, missing))}")
        return self._filled(found, labels, parts=parts, leaks=leaks)

    def _filled(
        self,
        bounds: Mapping[str, Mapping[str, Any]],
        labels: Mapping[str, Sequence[str]],
        *,
        parts: Sequence[Part] = (),
        leaks: Sequence[str] = (),
    ) -> Schema:
        document = deepcopy(self._document)
        used = set(self._taken)
        for name, column in document["columns"].items():
            if name in self._searches:
                column.pop("limits", None)
                column.update(bounds[name])
            elif name in self._labelled:
                other = column.setdefault("other", _OTHER)
                # Labels of an older release may be two spellings of one value.
                values: dict[str | None, str] = {text_of(other): other, None: other}
                fitting = [
                    label
                    for label in labels.get(name, ())
                    if f"{name}={label}" not in used and values.setdefault(text_of(label), label) is label
                ]
                used |= {f"{name}={label}" for label in fitting}
                column["categories"] = [*fitting, other]
        if parts or leaks:
            table = dict(document.get("table", {}))
            table["parts"] = [*table.get("parts", ()), *(part.to_dict() for part in parts)]
            table["leaks"] = [*table.get("leaks", ()), *leaks]
            document["table"] = table
        return Schema.from_dict(document)

    def __repr__(self) -> str:
        return f"SchemaDraft({len(self.unknown_bounds)} columns lack bounds, {len(self.unknown_categories)} categories)"


def _limits(name: str, column: Mapping[str, Any]) -> tuple[float, float] | None:
    if column.get("limits") is None:
        return None
    try:
        return check_limits(f"columns.{name}.limits", column["limits"])
    except (TypeError, ValueError) as error:
        raise SchemaError(str(error)) from error
