"""The posterior as a table: in the terminal and as CSV."""

import csv
import io
import textwrap
from collections.abc import Sequence

from dpinfer._sinks import csv_cell, printable, shortened
from dpinfer.accounting import Guarantee
from dpinfer.fitting.estimates import EstimateRow
from dpinfer.inference import Posterior


def to_text(rows: Sequence[EstimateRow], *, level: float) -> str:
    """Return the rows as a table of fixed-width columns."""
    names = [shortened(printable(row.name)) for row in rows]
    width = max(len("parameter"), *map(len, names))
    with_reference = any(row.reference is not None for row in rows)
    head = f"{'parameter':<{width}} {'mean':>8} {'sd':>7}  {f'{level:.0%} interval':>18} {'privacy':>8} {'prior':>6}"
    lines = [head + ("     true" if with_reference else "")]
    lines.append("-" * len(lines[0]))
    for name, row in zip(names, rows, strict=True):
        bounds = f"[{row.low:.3f}, {row.high:.3f}]"
        shares = f"{row.privacy:8.0%} {row.prior:6.0%}"
        line = f"{name:<{width}} {row.mean:8.3f} {row.stddev:7.3f}  {bounds:>18} {shares}"
        if row.reference is not None:
            line += f" {row.reference:8.3f}{'' if row.covers else ' *'}"
        lines.append(f"{line}  {row.remark}".rstrip())
    return "\n".join(lines)


def verdict_text(posterior: Posterior) -> str:
    """Return the verdict on the trace as wrapped lines with an empty one before; empty for methods that have none."""
    verdict = posterior.diagnostics.verdict
    return "\n" + textwrap.fill(verdict, 100) + "\n" if verdict else ""


def guarantee_text(guarantee: Guarantee) -> str:
    """Return the guarantee as lines, in several terms if there is one."""
    terms = guarantee.in_other_terms()
    return f"{guarantee}\n{textwrap.fill(terms, 100)}\n" if terms else f"{guarantee}\n"


def as_comment(text: str) -> str:
    """Return a text as one line of comment for CSV and TOML."""
    return f"# {printable(' '.join(text.split()))}\n"


def to_csv(rows: Sequence[EstimateRow], *, guarantee: str) -> str:
    """Return the rows as a CSV file with a header, and a first line of comment that states the guarantee.

    A name that a spreadsheet would compute gets a leading quote.
    """
    text = io.StringIO()
    text.write(as_comment(guarantee))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["parameter", "mean", "stddev", "low", "high", "privacy_share", "prior_share"])
    for row in rows:
        values = (row.mean, row.stddev, row.low, row.high, row.privacy, row.prior)
        writer.writerow([csv_cell(row.name), *(repr(value) for value in values)])
    return text.getvalue()
