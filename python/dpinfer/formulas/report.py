"""The public side of a regression's report: which columns were read, and what became of their values."""

from typing import Any

from dpinfer._sinks import html_text, shortened
from dpinfer.fitting.report import cards
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
        f"<tr><td>{html_text(shortened(column.described, 200))}</td><td>{_declared(column)}</td>"
        f"<td>{_WITHOUT_A_VALUE[column.missing or design.schema.missing]}</td></tr>"
        for column in design.table_columns()
    )
    parts = ", ".join(part.name for part in design.schema.parts)
    known = "What was public before a record was read."
    if parts:
        known = f"What was public, or released with noise ({html_text(parts)}), before the fit."
    return (
        f"<h2>Columns</h2><p>{known} A number outside its bounds is clamped to the nearer one. How often that happened "
        "is private.</p>"
        '<table class="public"><thead><tr><th>Column</th><th>Declared</th><th>Without a value</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>{_scaling(design)}"
    )


def _scaling(design: Design) -> str:
    """Return what is subtracted from the columns of the design, and what they are divided by."""
    scaled = [(column.name, column.offset, column.scale) for column in design.columns]
    scaled.append((f"{design.response.label} (the response)", design.response_offset, design.response_scale))
    shown = [
        (shortened(name), f"{offset:.4g}", f"{scale:.4g}")
        for name, offset, scale in scaled
        if (offset, scale) != (0.0, 1.0)
    ]
    if not shown:
        return ""
    return (
        "<h2>Scaling</h2><p>The mechanism sees columns less a constant, divided by a scale. Both follow from what is "
        f"above. Other columns are as they are.</p>{cards(('column', 'less', 'divided by'), shown)}"
    )


def _declared(column: Column) -> str:
    declared: dict[str, Any] = column.to_dict()
    kind = declared.pop("kind")
    if isinstance(column, ContinuousColumn):
        low, high = column.bounds
        words = [kind, f"from {low:g} to {high:g} {column.unit}".rstrip()]
        if column.sd is not None:
            words.append(f"mean {column.mean:g}, sd {column.sd:g}")
    else:
        listed = {
            key: value if isinstance(value, str) else ", ".join(map(str, value))
            for key, value in declared.items()
            if key not in ("missing", "missing_values", "shares", "label", "unit")
        }
        words = [kind, *(f"{key}: {value}" for key, value in listed.items() if value)]
    return html_text(shortened("; ".join(words), _LONGEST))
