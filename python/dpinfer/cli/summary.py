"""The posterior as a table: in the terminal and as CSV."""

import csv
import io
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpinfer._sinks import csv_cell, printable, shortened
from dpinfer.accounting import Guarantee
from dpinfer.inference import Posterior

__all__ = ["SummaryRow", "as_comment", "guarantee_text", "summarise", "to_csv", "to_text", "verdict_text"]


@dataclass(frozen=True)
class SummaryRow:
    """One parameter: posterior mean, standard deviation, interval, and causes of the variance.

    Parameters
    ----------
    name : str
    mean, stddev, low, high : float
    privacy, approximation : float
        Shares of the variance in [0, 1]: the privacy noise, and what the noise leaves unknown about the loss's
        curvature (see :meth:`Posterior.decompose`); the rest is what the records themselves leave open.
    flag : str
        What :meth:`Posterior.summary` remarks about it; empty if nothing.
    reference : float or None
        A value to compare with, such as the truth of a simulation.
    """

    name: str
    mean: float
    stddev: float
    low: float
    high: float
    privacy: float
    approximation: float
    flag: str = ""
    reference: float | None = None

    @property
    def covers(self) -> bool:
        """Whether the interval holds the reference."""
        return self.reference is not None and self.low <= self.reference <= self.high


def summarise(posterior: Posterior, *, level: float, reference: Mapping[str, float] | None = None) -> list[SummaryRow]:
    """Return a row for each parameter.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    posterior : Posterior
    level : float in (0, 1)
        Credibility of the interval between equal tails.
    reference : mapping from name to value, optional

    Returns
    -------
    list of SummaryRow
    """
    tail = 0.5 * (1.0 - level)
    bounds = posterior.quantile([tail, 1.0 - tail])
    _, privacy, approximation = posterior.decompose().shares
    columns = (posterior.mean, posterior.stddev, *bounds, privacy, approximation)
    table = np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])
    flags = posterior.summary().flags
    return [
        SummaryRow(name, mean, sd, low, high, noise, rest, flag, None if reference is None else reference.get(name))
        for name, flag, (mean, sd, low, high, noise, rest) in zip(posterior.names, flags, table.tolist(), strict=True)
    ]


def to_text(rows: list[SummaryRow], *, level: float) -> str:
    """Return the rows as a table of fixed-width columns."""
    names = [shortened(printable(row.name)) for row in rows]
    width = max(len("parameter"), *map(len, names))
    with_reference = any(row.reference is not None for row in rows)
    head = f"{'parameter':<{width}} {'mean':>8} {'sd':>7}  {f'{level:.0%} interval':>18} {'privacy':>8} {'approx.':>8}"
    lines = [head + ("     true" if with_reference else "")]
    lines.append("-" * len(lines[0]))
    for name, row in zip(names, rows, strict=True):
        bounds = f"[{row.low:.3f}, {row.high:.3f}]"
        shares = f"{row.privacy:8.0%} {row.approximation:8.0%}"
        line = f"{name:<{width}} {row.mean:8.3f} {row.stddev:7.3f}  {bounds:>18} {shares}"
        if row.reference is not None:
            line += f" {row.reference:8.3f}{'' if row.covers else ' *'}"
        lines.append(f"{line}  {row.flag}".rstrip())
    return "\n".join(lines)


def verdict_text(posterior: Posterior) -> str:
    """Return the verdict on the trace as wrapped lines with an empty one before; empty for methods that have none."""
    verdict = posterior.diagnostics.verdict
    return "\n" + textwrap.fill(verdict, 100) + "\n" if verdict else ""


def guarantee_text(guarantee: Guarantee) -> str:
    """Return the guarantee, and the same in other terms where something is promised, as lines."""
    terms = guarantee.in_other_terms()
    return f"{guarantee}\n{textwrap.fill(terms, 100)}\n" if terms else f"{guarantee}\n"


def as_comment(text: str) -> str:
    """Return one line of comment, as CSV readers and TOML know it, of a text of any lines."""
    return f"# {printable(' '.join(text.split()))}\n"


def to_csv(rows: list[SummaryRow], *, guarantee: str) -> str:
    """Return the rows as a CSV file with a header, and a first line of comment that states the guarantee.

    A name that a spreadsheet would compute begins with a quote.
    """
    text = io.StringIO()
    text.write(as_comment(guarantee))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["parameter", "mean", "stddev", "low", "high", "privacy_share", "approximation_share"])
    for row in rows:
        values = (row.mean, row.stddev, row.low, row.high, row.privacy, row.approximation)
        writer.writerow([csv_cell(row.name), *(repr(value) for value in values)])
    return text.getvalue()
