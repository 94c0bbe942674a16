"""What ``fit`` and ``demo`` share: from a table and a plan to a folder of results."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer.accounting import Composed, LedgerAccount, PrivacyPlan, account
from dpinfer.cli.errors import CommandError
from dpinfer.cli.output import OutputFolder
from dpinfer.cli.pictures import draw_all
from dpinfer.cli.report import ReportContent, render
from dpinfer.cli.summary import SummaryRow, summarise, to_csv
from dpinfer.diagnostics import CalibrationCurve, calibration_curve
from dpinfer.errors import DpinferError
from dpinfer.inference import Posterior, noise_aware_posterior
from dpinfer.mechanism import RunCheckpoint, run_dpvi
from dpinfer.models import LogisticRegression
from dpinfer.release import Release
from dpinfer.release.parts import check_parts
from dpinfer.tabular import Schema, Table

__all__ = ["FitRequest", "PosteriorRequest", "Results", "analyse", "automatic_max_grad_norm", "release_bytes", "spend"]

_CALIBRATION_BINS = 10


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """The public settings of the private run."""

    plan: PrivacyPlan
    n_records: int
    max_grad_norm: float
    prior_scale: float = 1.0
    recipe: str = "plain"
    n_threads: int | None = None
    ledger: LedgerAccount | None = None
    checkpoint: Path | None = None
    leaks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PosteriorRequest:
    """The settings of the post-processing."""

    method: str = "exact"
    hessian: str = "auto"
    prior: str = "auto"
    burn_in: str | float | int = "auto"
    level: float = 0.9


@dataclass(frozen=True, kw_only=True)
class Results:
    """What an analysis gives back to its verb."""

    posterior: Posterior
    rows: list[SummaryRow]
    calibration: CalibrationCurve | None
    files: list[Path] = field(default_factory=list)


def automatic_max_grad_norm(schema: Schema, recipe: str) -> float:
    """Return a clipping norm from the schema alone: a public guess of the root mean square norm of (x, 1).

    With the recipe "tied", twice that, because its preconditioner is about 2 for a logistic model (I**(-1/2) with an
    information I of 1/4 for each unit of x squared).

    **Privacy.** Reads the schema only.

    Notes
    -----
    A logistic gradient in the weights is (p - y)(x, 1), so its norm is at most that of (x, 1); clipping at the typical
    norm, and not at the largest that the schema admits, keeps the noise small and touches only unusual records.
    """
    norm = float(np.hypot(schema.typical_row_norm, 1.0))
    return 2.0 * norm if recipe == "tied" else norm


def release_bytes(plan: PrivacyPlan, schema: Schema) -> int:
    """Return about how large the saved release will be: parameters and gradients, 8 bytes each."""
    return 2 * 2 * (len(schema.feature_names) + 1) * plan.n_steps * 8


def spend(table: Table, request: FitRequest, folder: OutputFolder) -> Release:
    """Run the private mechanism and save its release: the one step that costs privacy.

    **Privacy.** Reads the records, through :func:`dpinfer.run_dpvi`; add/remove or the plan's adjacency.

    Raises
    ------
    CommandError
        If the release cannot be saved after all; its cost has been paid then.
    """
    model = LogisticRegression(
        n_features=len(table.feature_names),
        prior_scale=request.prior_scale,
        fit_intercept=True,
        feature_names=table.feature_names,
        feature_moments=table.schema.feature_moments,
        feature_moments_known=table.schema.shares_known,
    )
    if table.y is None:
        raise TypeError("table must have a target")
    # What the schema holds of earlier releases must compose with this one: found out before anything is spent.
    before = check_parts("the schema's parts", table.schema.parts, request.plan.adjacency)
    account(Composed((*(part.event for part in before), request.plan.event)), **_terms(request.plan))
    checkpoint = None if request.checkpoint is None else RunCheckpoint(request.checkpoint)
    release = run_dpvi(
        model,
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
    release = release.with_parts(*before).with_leaks(*table.schema.leaks, *request.leaks)
    lost = "its result is lost" if checkpoint is None else "the same command will give its result again"
    try:
        release.save(folder.release_path)
    except OSError as error:
        raise CommandError(
            f"cannot save {str(folder.release_path)!r}: {error.strerror or type(error).__name__}; "
            f"the privacy cost of this run has been paid, and {lost}"
        ) from error
    if checkpoint is not None:
        checkpoint.discard()
    return release


def _terms(plan: PrivacyPlan) -> dict[str, Any]:
    return {"delta": plan.delta, "adjacency": plan.adjacency, "accountant": plan.accountant}


def analyse(
    release: Release,
    request: PosteriorRequest,
    *,
    folder: OutputFolder | None,
    title: str,
    release_name: str,
    about: str = "",
    notes: Sequence[str] = (),
    test: Table | None = None,
    reference: Mapping[str, float] | None = None,
) -> Results:
    """Compute the posterior of a release and, given a folder, write the table, the pictures and the report.

    **Privacy.** Post-processing of a Release; `test`, if given, is read and its calibration shown without noise.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = noise_aware_posterior(
            release,
            method=request.method,
            hessian=request.hessian,
            prior=request.prior,
            burn_in=request.burn_in,
        )
        rows = summarise(posterior, level=request.level, reference=reference)
    calibration = None
    if test is not None and test.y is not None:
        probability = posterior.predict_proba(test.X)[:, 1]
        calibration = calibration_curve(probability, test.y, n_bins=min(_CALIBRATION_BINS, len(test.y)))
    files: list[Path] = []
    if folder is not None:
        messages = [str(item.message) for item in caught if issubclass(item.category, UserWarning)]
        messages += posterior.summary().warnings
        pictures = draw_all(release, posterior, level=request.level, reference=reference, calibration=calibration)
        content = ReportContent(
            title=title,
            release_name=release_name,
            release=release,
            posterior=posterior,
            rows=rows,
            level=request.level,
            warnings=[*notes, *messages],
            calibration=calibration,
            pictures=pictures,
            about=about,
        )
        files.append(folder.write("posterior.csv", to_csv(rows, guarantee=release.guarantee)))
        files += [folder.write(f"{name}.png", picture[1]) for name, picture in pictures.items()]
        files.append(folder.write("report.html", render(content)))
    return Results(posterior=posterior, rows=rows, calibration=calibration, files=files)


def explain_failed_analysis(error: DpinferError, folder: OutputFolder) -> CommandError:
    """Return the error that says the release is safe although its analysis failed."""
    return CommandError(
        f"{error} (the release is saved and paid for: try again with 'dpinfer posterior {folder.release_path}')"
    )
