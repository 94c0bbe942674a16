"""Steps that the routes of ``fit`` and other verbs share: from public arguments to a folder of results and tables."""

import argparse
import contextlib
import csv
import io
import shlex
import sys
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dpinfer._arrays import FloatArray
from dpinfer._sinks import csv_cell, printable, shortened
from dpinfer.accounting import Adjacency, Event, Guarantee, LedgerAccount, PrivacyLedger
from dpinfer.cli.arguments import CommandError, UsageError, public_arguments, reason
from dpinfer.cli.output import OutputFolder
from dpinfer.cli.pictures import draw_all
from dpinfer.diagnostics import CalibrationCurve, calibration_curve
from dpinfer.errors import DpinferError, FallbackWarning, PrivacyLeakWarning, SchemaError
from dpinfer.fitting.estimates import EstimateRow, estimate_rows
from dpinfer.fitting.report import NARROW, ReportContent, render
from dpinfer.inference import Posterior, PosteriorRequest, noise_aware_posterior
from dpinfer.models import LogisticRegression
from dpinfer.release import GradientTrace, SumsOfPasses
from dpinfer.tabular import Schema, UnreadTable, schema_from_data

COUNT_LEAK = "the number of records was read from the private records"
_CALIBRATION_BINS = 10  # as in the published calibration tables (NA-DPVI 2025, section 4.4)


@dataclass(frozen=True, kw_only=True)
class Results:
    """Results of an analysis, for its verb."""

    posterior: Posterior
    rows: list[EstimateRow]
    calibration: CalibrationCurve | None
    files: list[Path] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Route(Protocol):
    """A way from the arguments of ``dpinfer fit`` to its files: made of public arguments, it has checked them all."""

    need_bytes: int

    def spend(self, folder: OutputFolder) -> Any:
        """Run what is private, and save each release at once."""

    def write(self, result: Any, folder: OutputFolder) -> str:
        """Analyse what was released, write the files, and return the text for the terminal."""


def drafted_schema(args: argparse.Namespace, notes: list[str]) -> Schema:
    """Return a schema drafted from the private records, which leaks them; add its warnings to the notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrivacyLeakWarning)
        schema = schema_from_data(args.file, target=args.target)
    notes += [str(item.message) for item in caught]
    return schema


def logistic_on_columns(schema: Schema, prior_scale: float) -> LogisticRegression:
    """Return the model of the gradient trace: logistic on all columns of a schema."""
    return LogisticRegression(
        n_features=len(schema.feature_names),
        prior_scale=prior_scale,
        fit_intercept=True,
        feature_names=schema.feature_names,
        feature_moments=schema.feature_moments,
        feature_moments_known=schema.shares_known,
    )


def check_target(schema: Schema, target: str | None) -> None:
    """Raise unless the schema's target is that of --target."""
    if schema.target is None:
        raise SchemaError("the schema must declare one column of kind 'target'")
    if target is not None and target != schema.target.name:
        raise UsageError(f"--target must be the schema's target column {schema.target.name!r}, got {target!r}")


def account_of(args: argparse.Namespace, adjacency: Adjacency, event: Event) -> LedgerAccount | None:
    """Return the ledger's account that the arguments name, if its budget still covers the event; no data is read."""
    account = named_account(args)
    # An interrupted run is charged already, which the mechanism checks.
    if account is not None and (args.checkpoint is None or not args.checkpoint.exists()):
        with public_arguments():
            account.check(event, adjacency=adjacency)
    return account


def named_account(args: argparse.Namespace) -> LedgerAccount | None:
    """Return the ledger's account that the arguments name; no data is read."""
    if args.ledger is None:
        return None
    with public_arguments():
        return PrivacyLedger(args.ledger).dataset(args.dataset, refund_refused=args.refund_refused)


def count_records(table: UnreadTable, notes: list[str]) -> int:
    """Return how many records a file has, and add a warning to the notes.

    **Privacy.** Reads the records, and leaks their number.
    """
    # No ledger: nothing is charged, and everything that follows says that the number leaks.
    notes.append(
        "The number of records was read from the data and appears in the published results; the privacy guarantee does "
        "not cover it under add/remove adjacency.  Give a public number with --n-records."
    )
    return len(table.read().X)


@contextlib.contextmanager
def interruptible(
    folder: OutputFolder, checkpoint: Path | None, account: LedgerAccount | None, *, at_sites: bool = False
) -> Iterator[None]:
    """Report how to resume after an interrupt in the block, and what the ledger says: here, or those `at_sites`."""
    before = set() if account is None else {run.run for run in account.runs()}
    try:
        yield
    except KeyboardInterrupt:
        if folder.release_path.exists():
            advice = saved_text(folder.release_path)
        elif checkpoint is not None and checkpoint.exists():
            advice = "the run is charged and saved: the same command resumes from its checkpoint"
        elif at_sites:
            advice = "there is no release; the sites' ledgers say what they charged"
        else:
            advice = "" if account is None else _charged_text(account, before)
        if advice:
            sys.stderr.write(f"dpinfer: {advice}\n")
        raise


def _charged_text(account: LedgerAccount, before: Collection[str]) -> str:
    """Return what an interrupted run has left in the ledger."""
    new = [run.status for run in account.runs() if run.run not in before]
    if not new:
        return "there is no release, and nothing was charged"
    if set(new) == {"cancelled"}:
        return "nothing was drawn, and the charge was taken back: the ledger says cancelled"
    return "there is no release, and the ledger's charge stands"


def saved_text(path: Path) -> str:
    """Return the command that goes on from a saved release."""
    place = shlex.quote(printable(path))
    return f"the release is saved and paid for: continue with 'dpinfer posterior {place} --out DIR'"


def analyse(
    release: GradientTrace | SumsOfPasses,
    request: PosteriorRequest,
    *,
    folder: OutputFolder | None,
    title: str,
    release_name: str,
    notes: Sequence[str] = (),
    test: UnreadTable | None = None,
) -> Results:
    """Compute the posterior of a release and, given a folder, write the table, the pictures and the report.

    A failed calibration, a failed picture and a fallback of the posterior are listed in the warnings of the report and
    in ``failures`` of the result; the analysis continues.

    **Privacy.** Post-processing of a Release; `test`, if given, is read and its calibration shown without noise.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = noise_aware_posterior(release, request)
        rows = estimate_rows(posterior, level=request.level)
    calibration, failures = (None, []) if test is None else calibration_of(lambda: _predicted(posterior, test))
    failures += [str(item.message) for item in caught if issubclass(item.category, FallbackWarning)]
    files: list[Path] = []
    if folder is not None:
        # First the table of numbers, which cannot fail for names or fonts.
        files.append(folder.write("posterior.csv", to_csv(rows, guarantee=release.guarantee)))
        messages = [str(item.message) for item in caught if issubclass(item.category, UserWarning)]
        messages = [message for message in messages if message not in failures]
        pictures = draw_all(release, posterior, calibration=calibration, failures=failures)
        content = ReportContent(
            title=title,
            release_name=release_name,
            release=release,
            posterior=posterior,
            rows=rows,
            level=request.level,
            notes=[*notes, *failures, *messages],
            calibration=calibration,
            pictures=pictures,
        )
        files += [
            folder.write(f"{name}.png", picture[1], lasting=False)
            for name, picture in pictures.items()
            if not name.endswith(NARROW)
        ]
        files.append(folder.write("report.html", render(content)))
    return Results(posterior=posterior, rows=rows, calibration=calibration, files=files, failures=failures)


def _predicted(posterior: Posterior, test: UnreadTable) -> tuple[FloatArray, FloatArray] | None:
    """Return probabilities and labels of test records, or None without labels."""
    table = test.read()
    return None if table.y is None else (posterior.predict_proba(table.X)[:, 1], table.y)


def calibration_of(
    predicted: Callable[[], tuple[FloatArray, FloatArray] | None],
) -> tuple[CalibrationCurve | None, list[str]]:
    """Return the calibration on test records, or the reason of a failure, once the release is saved.

    `predicted` reads the records, and returns probabilities and labels, (N,) each, or None.
    """
    try:
        pair = predicted()
        if pair is None:
            return None, []
        return calibration_curve(*pair, n_bins=min(_CALIBRATION_BINS, len(pair[1]))), []
    except DpinferError as error:
        problem = str(error)
    except OSError as error:
        problem = reason(error)
    except Exception as error:
        problem = f"unexpected {type(error).__name__}, whose text is withheld: it could quote a record"
    again = "'dpinfer posterior RELEASE --test FILE --schema SCHEMA.toml' computes it from the release"
    return None, [f"No calibration on the test records was computed ({problem}); {again}."]


def tell_failures(failures: Sequence[str]) -> None:
    """Report on standard error the missing or changed parts of an analysis."""
    for failure in failures:
        sys.stderr.write(f"dpinfer: warning: {printable(failure)}\n")


@contextlib.contextmanager
def after_spending(folder: OutputFolder) -> Iterator[None]:
    """Report for every failure in the block that the release is safe, and the command that continues from it.

    The block post-processes a release, whose numbers and names are public: the text of any error is shown.
    """
    again = saved_text(folder.release_path)
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(f"dpinfer: {again}\n")
        raise
    except DpinferError as error:
        raise CommandError(f"{error} ({again})") from error
    except Exception as error:
        raise CommandError(f"the analysis failed with {type(error).__name__}: {error} ({again})") from error


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


def results_text(results: Results, guarantee: Guarantee, level: float) -> str:
    """Return the guarantee, the rows, the verdict on the trace and the calibration, where there are these."""
    terms, verdict = guarantee.in_other_terms(), results.posterior.diagnostics.verdict
    lines = [str(guarantee), *([textwrap.fill(terms, 100)] if terms else []), ""]
    lines += [to_text(results.rows, level=level), *(["", textwrap.fill(verdict, 100)] if verdict else [])]
    if results.calibration is not None:
        lines += ["", f"{results.calibration}", "(computed from the test labels without noise)"]
    return "\n".join(lines) + "\n"


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
