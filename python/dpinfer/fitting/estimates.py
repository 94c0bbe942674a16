"""Estimates of a report: a row for each parameter with a picture of its interval, and the causes of its width."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpinfer._sinks import html_text, shortened
from dpinfer.inference import Posterior
from dpinfer.inference.posterior.causes import causes

_CUT = 12.0  # intervals that reach farther than this many times the median one are cut in the picture: format


@dataclass(frozen=True, kw_only=True)
class EstimateRow:
    """One parameter: posterior mean, standard deviation, interval, and causes of the variance."""

    name: str
    label: str = ""  # the schema's label; empty for the name
    mean: float
    stddev: float
    low: float
    high: float
    # records, privacy, prior: shares of the variance in [0, 1] (:func:`dpinfer.inference.posterior.causes.causes`);
    # NaN if unknown
    records: float
    privacy: float
    prior: float
    # factor of the interval in the picture that compares rows; None to leave the row out of it
    unit: float | None = 1.0
    remark: str = ""
    reference: float | None = None  # a value to compare with, such as the truth of a simulation

    @property
    def covers(self) -> bool:
        """Whether the interval holds the reference."""
        return self.reference is not None and self.low <= self.reference <= self.high


def estimate_rows(posterior: Posterior, *, level: float) -> list[EstimateRow]:
    """Return a row for each parameter of a posterior, in the model's own space.

    `level`: credibility of the interval between equal tails.
    """
    tail = 0.5 * (1.0 - level)
    bounds = posterior.quantile([tail, 1.0 - tail])
    columns = (posterior.mean, posterior.stddev, *bounds, *causes(posterior))
    table = np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])
    return [
        EstimateRow(
            name=name,
            mean=mean,
            stddev=sd,
            low=low,
            high=high,
            records=records,
            privacy=privacy,
            prior=prior,
            # A noise variance has other units than weights.
            unit=None if name == "noise_variance" else 1.0,
            remark=remark,
        )
        for name, remark, (mean, sd, low, high, records, privacy, prior) in zip(
            posterior.names, posterior.summary().flags, table.tolist(), strict=True
        )
    ]


def estimates_table(rows: Sequence[EstimateRow], *, level: float, scale: str) -> str:
    """Return the rows as the table of a report: HTML, in which each row is a card on a narrow screen.

    `scale`: name of the quantities of the picture's intervals, such as "weights".
    """
    with_reference = any(row.reference is not None for row in rows)
    heads = ["Mean", "Sd", f"{level:.0%} interval", "Records", "Privacy", "Prior"]
    heads += ["Reference"] if with_reference else []
    span = _span(rows)
    body = "".join(_row(row, heads, span, with_reference) for row in rows)
    top = "".join(f"<th>{html_text(head)}</th>" for head in ["", "", *heads])
    drawn = ""
    if span is not None:
        drawn = (
            f'<p class="soft">Bars: {level:.0%} intervals of {html_text(scale)}, on one scale from {span[0]:.3g} to '
            f"{span[1]:.3g}, with a line at 0; the dark part is the interval without the privacy noise. A pale "
            "bar is a row that the prior dominates.</p>"
        )
    return f'{drawn}<table class="estimates"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def _row(row: EstimateRow, heads: Sequence[str], span: tuple[float, float] | None, with_reference: bool) -> str:
    cells = [f"{row.mean:.3g}", f"{row.stddev:.3g}", f"{row.low:.3g} to {row.high:.3g}"]
    cells += ["" if math.isnan(share) else f"{share:.0%}" for share in (row.records, row.privacy, row.prior)]
    if with_reference:
        mark = "" if row.reference is None or row.covers else " (outside)"
        cells.append("" if row.reference is None else f"{row.reference:.3g}{mark}")
    cell_html = "".join(
        f'<td data-head="{html_text(head)}">{html_text(cell)}</td>' for head, cell in zip(heads, cells, strict=True)
    )
    name = html_text(shortened(row.label or row.name, 200))
    if row.label and row.label != row.name:
        name += f" <code>{html_text(shortened(row.name))}</code>"
    remark = f'<span class="flag">{html_text(row.remark)}</span>' if row.remark else ""
    return f'<tr><td class="name">{name}{remark}</td><td class="track">{_track(row, span)}</td>{cell_html}</tr>'


def _span(rows: Sequence[EstimateRow]) -> tuple[float, float] | None:
    """Return the ends of the picture's axis, which holds 0 and all but the widest intervals; None for no picture."""
    drawn = [(row.low * row.unit, row.high * row.unit) for row in rows if row.unit is not None]
    drawn = [ends for ends in drawn if all(map(math.isfinite, ends))]
    if not drawn:
        return None
    most = _CUT * float(np.median([max(abs(low), abs(high)) for low, high in drawn]))
    low = max(-most, min(0.0, *(low for low, _ in drawn)))
    high = min(most, max(0.0, *(high for _, high in drawn)))
    return (low, high) if low < high else None


def _track(row: EstimateRow, span: tuple[float, float] | None) -> str:
    """Return the interval as bars on the picture's axis."""
    if row.unit is None or span is None:
        return ""
    first, last = span

    def place(value: float) -> float:
        return 100.0 * min(max((value - first) / (last - first), 0.0), 1.0)

    without_noise = 1.0 if math.isnan(row.privacy) else math.sqrt(max(1.0 - row.privacy, 0.0))
    ends = [
        (row.mean + part * (end - row.mean)) * row.unit for part in (1.0, without_noise) for end in (row.low, row.high)
    ]
    (low, high), (inner, outer) = (sorted(map(place, pair)) for pair in (ends[:2], ends[2:]))
    marks = [f'<i class="zero" style="left:{place(0.0):.2f}%"></i>']
    marks += [
        f'<i class="{kind}" style="left:{start:.2f}%;width:{end - start:.2f}%"></i>'
        for kind, start, end in (("wide", low, high), ("inner", inner, outer))
    ]
    marks.append(f'<i class="mean" style="left:{place(row.mean * row.unit):.2f}%"></i>')
    if row.reference is not None:
        marks.append(f'<i class="truth" style="left:{place(row.reference * row.unit):.2f}%"></i>')
    pale = " pale" if row.prior > 0.5 else ""
    return f'<span class="bars{pale}" aria-hidden="true">{"".join(marks)}</span>'
