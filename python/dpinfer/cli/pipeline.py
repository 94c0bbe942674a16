"""Steps shared by ``fit`` and ``demo``: from a table and a plan to a folder of results."""

import contextlib
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._sinks import printable
from dpinfer._validate import check_choice
from dpinfer.accounting import Composed, LedgerAccount, PrivacyPlan, account
from dpinfer.cli.errors import CommandError, reason
from dpinfer.cli.output import OutputFolder
from dpinfer.cli.pictures import draw_all
from dpinfer.cli.summary import to_csv
from dpinfer.diagnostics import CalibrationCurve, calibration_curve
from dpinfer.errors import DpinferError, FallbackWarning
from dpinfer.estimators.checks import FISHER_RECIPES, RECIPES, check_fit
from dpinfer.fitting.estimates import EstimateRow, estimate_rows
from dpinfer.fitting.report import NARROW, ReportContent, render
from dpinfer.inference import Posterior, PosteriorRequest, noise_aware_posterior
from dpinfer.mechanism import RunCheckpoint, run_dpvi
from dpinfer.models import LogisticRegression
from dpinfer.release import GradientTrace, SumsOfPasses
from dpinfer.release.parts import Part, check_parts
from dpinfer.tabular import Schema, UnreadTable

__all__ = [
    "FitRequest",
    "Results",
    "after_spending",
    "analyse",
    "automatic_max_grad_norm",
    "calibration_of",
    "check_request",
    "interruptible",
    "model_of",
    "release_bytes",
    "spend",
    "tell_failures",
]


_CALIBRATION_BINS = 10  # as in the published calibration tables (NA-DPVI 2025, section 4.4)


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """The public settings of the private run."""

    plan: PrivacyPlan
    n_records: int
    max_grad_norm: float = 1.0
    prior_scale: float = 1.0
    recipe: str = "plain"
    n_threads: int | None = None
    ledger: LedgerAccount | None = None
    checkpoint: Path | None = None
    leaks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Results:
    """Results of an analysis, for its verb."""

    posterior: Posterior
    rows: list[EstimateRow]
    calibration: CalibrationCurve | None
    files: list[Path] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def automatic_max_grad_norm(schema: Schema, recipe: str) -> float:
    """Return a clipping norm from the schema alone: a public guess of the root mean square norm of (x, 1).

    With the recipes "tied" and "steady", twice that, because their preconditioner is about 2 for a logistic model
    (I**(-1/2) with an information I of 1/4 for each unit of x squared).

    **Privacy.** Reads the schema only.

    Notes
    -----
    A logistic gradient in the weights is (p - y)(x, 1), so its norm is at most that of (x, 1); clipping at the typical
    norm, and not at the largest that the schema admits, keeps the noise small and touches only unusual records.
    """
    norm = float(np.hypot(schema.typical_row_norm, 1.0))
    return 2.0 * norm if check_choice("recipe", recipe, RECIPES) in FISHER_RECIPES else norm


def release_bytes(plan: PrivacyPlan, schema: Schema) -> int:
    """Return the approximate size of the saved release: parameters and gradients, 8 bytes each."""
    return 2 * 2 * (len(schema.feature_names) + 1) * plan.n_steps * 8


def model_of(schema: Schema, prior_scale: float) -> LogisticRegression:
    """Return the model of a table with this schema."""
    return LogisticRegression(
        n_features=len(schema.feature_names),
        prior_scale=prior_scale,
        fit_intercept=True,
        feature_names=schema.feature_names,
        feature_moments=schema.feature_moments,
        feature_moments_known=schema.shares_known,
    )


def check_request(schema: Schema, request: FitRequest, asked: PosteriorRequest) -> None:
    """Refuse requests that would fail after the charge, from public numbers: see :func:`check_fit`.

    **Privacy.** Reads the schema only.
    """
    _earlier_parts(schema, request)
    check_fit(
        model_of(schema, request.prior_scale),
        request.plan,
        asked,
        n_records=request.n_records,
        recipe=request.recipe,
        max_grad_norm=request.max_grad_norm,
    )


def spend(table: UnreadTable, schema: Schema, request: FitRequest, folder: OutputFolder) -> GradientTrace:
    """Run the private mechanism and save its release: the one step that costs privacy.

    **Privacy.** Reads the records, through one private mechanism and when the ledger is charged; add/remove or the
    plan's adjacency.

    Raises CommandError if the release cannot be saved in `folder`; its cost has been paid, and it is saved elsewhere if
    possible.

    Parameters
    ----------
    table : UnreadTable
    schema : Schema
        The table's schema, with released shares of categories if there are any.
    request : FitRequest
    folder : OutputFolder
    """
    before = _earlier_parts(schema, request)
    checkpoint = None if request.checkpoint is None else RunCheckpoint(request.checkpoint)
    with interruptible(folder, request.checkpoint, charged=request.ledger is not None):
        release = run_dpvi(
            model_of(schema, request.prior_scale),
            table.X,
            table.y,
            plan=request.plan,
            n_records=request.n_records,
            max_grad_norm=request.max_grad_norm,
            recipe=request.recipe,
            n_threads=request.n_threads,
            progress=True,
            ledger=request.ledger,
            checkpoint=checkpoint,
        )
    release = release.with_parts(*before).with_leaks(*schema.leaks, *request.leaks)
    _save(release, folder.release_path, again=checkpoint is not None)
    if checkpoint is not None:
        try:
            checkpoint.discard()
        except OSError as error:
            place = printable(checkpoint.path)
            sys.stderr.write(f"dpinfer: warning: cannot remove {place} ({reason(error)}): remove it, it is SECRET\n")
    return release


@contextlib.contextmanager
def interruptible(folder: OutputFolder, checkpoint: Path | None, *, charged: bool) -> Iterator[None]:
    """Report how to resume after an interrupt in the block: from the release, or from the checkpoint."""
    try:
        yield
    except KeyboardInterrupt:
        if folder.release_path.exists():
            advice = _saved(folder.release_path)
        elif checkpoint is not None and checkpoint.exists():
            advice = "the run is charged and saved: the same command resumes from its checkpoint"
        else:
            advice = "there is no release, and the ledger's charge stands" if charged else ""
        if advice:
            sys.stderr.write(f"dpinfer: {advice}\n")
        raise


def _earlier_parts(schema: Schema, request: FitRequest) -> tuple[Part, ...]:
    """Return the schema's earlier releases, which must compose with the planned run."""
    plan = request.plan
    before = check_parts("the schema's parts", schema.parts, plan.adjacency)
    if before:
        event = Composed((*(part.event for part in before), plan.event))
        account(event, delta=plan.delta, adjacency=plan.adjacency, accountant=getattr(plan, "accountant", "pld"))
    return before


def _save(release: GradientTrace, path: Path, *, again: bool) -> None:
    """Save the paid release in its folder, or else anywhere."""
    try:
        try:
            release.save(path)
        except KeyboardInterrupt:
            release.save(path)
            sys.stderr.write(f"dpinfer: {_saved(path)}\n")
            raise
        return
    except OSError as error:
        problem = reason(error)
    place = None if again else _save_elsewhere(release, path.name)
    if place is not None:
        rest = f"the release is saved as {str(place)!r}: continue with 'dpinfer posterior {shlex.quote(str(place))}'"
    else:
        rest = "the same command gives the same result again" if again else "its result is lost"
    raise CommandError(f"cannot save {str(path)!r}: {problem}; the privacy cost of this run has been paid, and {rest}")


def _saved(path: Path) -> str:
    place = shlex.quote(printable(path))
    return f"the release is saved and paid for: continue with 'dpinfer posterior {place} --out DIR'"


def _save_elsewhere(release: GradientTrace, name: str) -> Path | None:
    for place in (Path.cwd, Path.home, lambda: Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError, RuntimeError):
            path = Path(tempfile.mkdtemp(prefix="dpinfer-", dir=place())) / name
            try:
                release.save(path)
            except OSError:
                path.parent.rmdir()
                raise
            return path
    return None


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
    """Return the calibration on test records, or the reason of a failure; it reads them after the release is saved.

    Parameters
    ----------
    predicted : callable
        Reads the test records; returns probabilities and labels, (N,) each, or None.
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
    again = _saved(folder.release_path)
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(f"dpinfer: {again}\n")
        raise
    except DpinferError as error:
        raise CommandError(f"{error} ({again})") from error
    except Exception as error:
        raise CommandError(f"the analysis failed with {type(error).__name__}: {error} ({again})") from error
