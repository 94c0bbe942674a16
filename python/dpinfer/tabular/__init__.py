"""Tables of records and their public schemas.

**Privacy.** :class:`Schema` is public and reads no record.  :func:`read_table` reads records and hands them, encoded,
to a private mechanism; it releases nothing.  :func:`release_shares` is a private mechanism: it counts categories, with
noise.  So is :func:`release_unknown`, which fills the gaps of a :class:`SchemaDraft`.  :func:`schema_from_data` leaks,
and warns.  :func:`check_table` counts records without noise, for the curator.
"""

from dpinfer.mechanism.unknowns.plan import UnknownParts, UnknownPlan
from dpinfer.tabular.checking import ColumnCheck, HeaderCheck, TableCheck, check_table
from dpinfer.tabular.columns import (
    BinaryColumn,
    CategoricalColumn,
    Column,
    ContinuousColumn,
    IgnoredColumn,
    TargetColumn,
)
from dpinfer.tabular.draft import SchemaDraft
from dpinfer.tabular.from_data import BOUNDS_FROM_DATA, schema_from_data
from dpinfer.tabular.schema import Schema
from dpinfer.tabular.shares import SharesPlan, SharesRelease, plan_with_shares, release_shares
from dpinfer.tabular.table import Table, UnreadTable, read_table
from dpinfer.tabular.unknown import UnknownRelease, plan_unknown, release_unknown

__all__ = [
    "BOUNDS_FROM_DATA",
    "BinaryColumn",
    "CategoricalColumn",
    "Column",
    "ColumnCheck",
    "ContinuousColumn",
    "HeaderCheck",
    "IgnoredColumn",
    "Schema",
    "SchemaDraft",
    "SharesPlan",
    "SharesRelease",
    "Table",
    "TableCheck",
    "TargetColumn",
    "UnknownParts",
    "UnknownPlan",
    "UnknownRelease",
    "UnreadTable",
    "check_table",
    "plan_unknown",
    "plan_with_shares",
    "read_table",
    "release_shares",
    "release_unknown",
    "schema_from_data",
]
