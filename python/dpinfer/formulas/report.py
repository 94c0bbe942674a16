"""The public side of a regression's report: which columns were read, and what became of their values."""

from typing import Any

from dpinfer._sinks import html_text, shortened
from dpinfer.formulas.design import Design
from dpinfer.tabular import ContinuousColumn
from dpinfer.tabular.columns import Column

__all__ = ["columns_section"]

_WITHOUT_A_VALUE = {
    "drop": "the record is dropped",
    "refuse": "the file is refused",
    "other": "counted as the column's other category",
}
_LONGEST = 300


def columns_section(design: Design) -> str:
    """Return what the schema declares of the columns that the formula reads, as HTML without a section around it.

    **Privacy.** Public; reads no records.  All text is escaped.

    Parameters
    ----------
    design : Design
    """
    rows = "".join(
        f"<tr><td>{html_text(shortened(column.name))}</td><td>{_declared(column)}</td>"
        f"<td>{_WITHOUT_A_VALUE[column.missing or design.schema.missing]}</td></tr>"
        for column in design.table_columns()
    )
    return (
        "<h2>Columns</h2><p>What was public before a record was read. A number outside its bounds is clamped to the "
        "nearer one. How often that happened is private.</p>"
        '<table class="public"><thead><tr><th>Column</th><th>Declared</th><th>Without a value</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _declared(column: Column) -> str:
    declared: dict[str, Any] = column.to_dict()
    kind = declared.pop("kind")
    if isinstance(column, ContinuousColumn):
        low, high = column.bounds
        words = [kind, f"from {low:g} to {high:g}"]
        if column.sd is not None:
            words.append(f"centred at {column.mean:g}, in units of {column.sd:g}")
    else:
        listed = {
            key: value if isinstance(value, str) else ", ".join(map(str, value))
            for key, value in declared.items()
            if key not in ("missing", "missing_values", "shares")
        }
        words = [kind, *(f"{key}: {value}" for key, value in listed.items() if value)]
    return html_text(shortened("; ".join(words), _LONGEST))
