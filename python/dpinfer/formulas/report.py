"""Additions to a regression's report: rows in the table's units with the schema's labels, and its public columns."""

import math
import re
from collections.abc import Mapping
from typing import Any

from dpinfer._sinks import html_text, shortened
from dpinfer.fitting.estimates import EstimateRow
from dpinfer.fitting.report import cards
from dpinfer.formulas.coefficients import CoefficientTable
from dpinfer.formulas.design import Design
from dpinfer.tabular import ContinuousColumn
from dpinfer.tabular.columns import Column

_WITHOUT_A_VALUE = {
    "drop": "A record without a value is dropped.",
    "refuse": "A record without a value is refused, with the file.",
    "other": "A record without a value is counted as the column's other category.",
}
_LONGEST = 300  # characters of a cell of the report


def labelled(design: Design, name: str) -> str:
    """Return the name of a coefficient, or an expression, with labels of the schema in place of columns' names."""
    labels = {column.name: column.label for column in design.table_columns() if column.label}
    if not labels:
        return name
    # Not within brackets, which hold categories.
    names = "|".join(map(re.escape, sorted(labels, key=len, reverse=True)))
    pattern = re.compile(rf"\[[^\]]*\]|(?<![\w.])(?:{names})(?![\w.])")
    return pattern.sub(lambda found: labels.get(found[0], found[0]), name)


def in_table_units(design: Design, text: str) -> str:
    """Return a text about the posterior, which is in scaled units, for readers of the table."""
    scale = f"{design.response_scale:.4g} units"
    for of_model, of_table in (
        ("(squared units of the response)", f"(in squares of {scale} of the response)"),
        (
            "response_scale is far too large: use one within a factor of 10 of the responses' size",
            "response's bounds are far too wide, or most responses lie at their middle: declare closer bounds",
        ),
        ("declare a larger feature_scale", "declare the columns' mean and sd"),
    ):
        text = text.replace(of_model, of_table)
    return text


def estimates(
    design: Design, table: CoefficientTable, reference: Mapping[str, float] | None = None
) -> list[EstimateRow]:
    """Return the coefficients as rows of a report, compared for a change of one public standard deviation."""
    scales = dict(zip(design.model.names, design.column_of_weight.tolist(), strict=False))
    rows = []
    for index, name in enumerate(table.names):
        column = scales.get(name, -1)
        privacy, prior = float(table.privacy[index]), float(table.prior[index])
        rows.append(
            EstimateRow(
                name=name,
                label=labelled(design, name),
                mean=float(table.mean[index]),
                stddev=float(table.sd[index]),
                low=float(table.low[index]),
                high=float(table.high[index]),
                records=math.nan if math.isnan(privacy) else max(1.0 - privacy - prior, 0.0),
                privacy=privacy,
                prior=prior,
                unit=None if column < 0 else design.columns[column].scale,
                remark=table.remark(name),
                reference=None if reference is None else reference.get(name),
            )
        )
    return rows


def columns_section(design: Design) -> str:
    """Return the schema's declarations of the formula's columns as escaped HTML, without a section around it."""
    policies = {column.name: column.missing or design.schema.missing for column in design.table_columns()}
    # Stated once if it is the same for most columns, and for each exception.
    usual = max(policies.values(), key=list(policies.values()).count)
    rows = "".join(
        f"<tr><td>{html_text(shortened(column.described, 200))}</td><td>{_declared(column)}"
        f"{'' if policies[column.name] == usual else '. ' + _WITHOUT_A_VALUE[policies[column.name]]}</td></tr>"
        for column in design.table_columns()
    )
    parts = ", ".join(part.name for part in design.schema.parts)
    origin = "Public knowledge, fixed before a record was read."
    if parts:
        origin = f"Public knowledge, or released with noise ({html_text(parts)}), before the fit."
    return (
        f"<h2>Columns</h2><p>{origin} A number outside its bounds is clamped to the nearer one. "
        f"{_WITHOUT_A_VALUE[usual]} How often either happened is private.</p>"
        '<table class="public"><thead><tr><th>Column</th><th>Declared</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>{_scaling(design)}"
    )


def _scaling(design: Design) -> str:
    """Return the centres and scales of the columns of the design."""
    scaled = [(column.name, column.offset, column.scale) for column in design.columns]
    scaled.append((f"{design.response.label} (the response)", design.response_offset, design.response_scale))
    shown = [
        (shortened(labelled(design, name)), f"{offset:.4g}", f"{scale:.4g}")
        for name, offset, scale in scaled
        if (offset, scale) != (0.0, 1.0)
    ]
    if not shown:
        return ""
    return (
        "<h2>Scaling</h2><p>The mechanism sees columns less a constant, divided by a scale. Both follow from the table "
        f"above. Other columns are unchanged.</p>{cards(('column', 'less', 'divided by'), shown)}"
    )


def _declared(column: Column) -> str:
    declared: dict[str, Any] = column.to_dict()
    kind = declared.pop("kind")
    if isinstance(column, ContinuousColumn):
        low, high = column.bounds
        words = [kind, f"from {low:g} to {high:g} {column.unit}".rstrip()]
        words += [f"{key} {value:g}" for key in ("mean", "sd") if (value := getattr(column, key)) is not None]
    else:
        listed = {
            key: value if isinstance(value, str) else ", ".join(map(str, value))
            for key, value in declared.items()
            if key not in ("missing", "missing_values", "shares", "label", "unit")
        }
        words = [kind, *(f"{key}: {value}" for key, value in listed.items() if value)]
    return html_text(shortened("; ".join(words), _LONGEST))
