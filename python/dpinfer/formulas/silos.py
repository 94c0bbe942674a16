"""Tables at sites: a formula travels to them, and each makes rows of its own table."""

from collections.abc import Mapping
from typing import Any

from dpinfer.errors import SchemaError
from dpinfer.formulas.design import Design, design
from dpinfer.formulas.records import UnreadRecords
from dpinfer.mechanism import Silos
from dpinfer.models import Model
from dpinfer.tabular import Schema


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
        if not isinstance(schema, Schema):
            raise TypeError(f"schema must be a Schema, got {type(schema).__name__}")
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
    """Return the sites with a request for the rows of a design.

    **Privacy.** Reads no records.
    """
    return silos.asking(
        {"formula": formula, "family": found.family, "prior_scale": prior_scale, "schema": found.schema.to_dict()}
    )
