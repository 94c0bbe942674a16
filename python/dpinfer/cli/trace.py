"""``dpinfer fit --method dpvi``: the published gradient trace of a logistic regression on all columns of a schema."""

import argparse
import contextlib
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer._sinks import printable, terminal_text
from dpinfer._validate import check_choice
from dpinfer.accounting import Event, PrivacyPlan, plan_privacy, run_event
from dpinfer.cli.arguments import CommandError, posterior_request, public_arguments, reason
from dpinfer.cli.output import OutputFolder, files_text
from dpinfer.cli.pipeline import (
    COUNT_LEAK,
    account_of,
    analyse,
    as_comment,
    check_target,
    count_records,
    drafted_schema,
    logistic_on_columns,
    results_text,
    tell_failures,
)
from dpinfer.estimators.logistic import FISHER_RECIPES, RECIPES, check_fit
from dpinfer.fitting.one_call import check_composition
from dpinfer.mechanism import RunCheckpoint, run_dpvi
from dpinfer.models import LogisticRegression
from dpinfer.release import GradientTrace
from dpinfer.tabular import (
    Schema,
    SchemaDraft,
    SharesPlan,
    UnknownPlan,
    UnreadTable,
    plan_unknown,
    plan_with_shares,
    release_shares,
    release_unknown,
)

# Settings of the published gradient trace, with their defaults.
_DEFAULTS = {"sample_rate": 0.1, "steps": 10_000, "recipe": "plain", "accountant": "pld", "prior_scale": 1.0}


class TraceRoute:
    """The route of a fit by the published gradient trace, whose results are in scaled units.

    **Privacy.** Reads no records before :meth:`spend`, unless the bounds are to be read from them.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        for name, value in _DEFAULTS.items():
            if getattr(args, name) is None:
                setattr(args, name, value)
        self._args, self._notes = args, list[str]()
        self._draft = None if args.unknown is None else SchemaDraft.load(args.schema)
        declared = None if args.schema is None or self._draft is not None else Schema.load(args.schema)
        self._plan, self._shares, self._unknown = plan_of(args, self._draft)
        joint = self._shares or self._unknown or self._plan
        self._account = account_of(args, self._plan.adjacency, joint.event)
        placeholder = None if self._draft is None else self._draft.placeholder
        self._schema = placeholder or declared or drafted_schema(args, self._notes)
        check_target(self._schema, args.target)
        self._open()
        self._n_records, self._leaks = args.n_records or 1, tuple[str, ...]()
        with public_arguments():
            self._posterior = posterior_request(args)
            check_composition(self._plan, self._schema.parts)
            check_fit(
                self._model,
                self._plan,
                self._posterior,
                n_records=self._n_records,
                recipe=args.recipe,
                max_grad_norm=self._max_grad_norm,
            )
        # Parameters and gradients, 8 bytes each.
        self.need_bytes = 2 * 2 * (len(self._schema.feature_names) + 1) * self._plan.n_steps * 8

    @property
    def _max_grad_norm(self) -> float:
        return self._args.max_grad_norm or automatic_max_grad_norm(self._schema, self._args.recipe)

    @property
    def _model(self) -> LogisticRegression:
        return logistic_on_columns(self._schema, self._args.prior_scale)

    def _open(self) -> None:
        self._table = UnreadTable(self._args.file, self._schema)
        self._test = None if self._args.test is None else UnreadTable(self._args.test, self._schema)

    def spend(self, folder: OutputFolder) -> GradientTrace:
        """Release what is unknown and counts of the categories, then run the mechanism; each is saved at once.

        **Privacy.** Reads the records, through private mechanisms and when the ledger is charged.

        Raises CommandError if the release cannot be saved in `folder`; its cost has been paid, and it is saved
        elsewhere if possible.
        """
        args, plan = self._args, self._plan
        if self._unknown is not None and self._draft is not None:
            self._fill_gaps(self._draft, self._unknown, folder)
        elif args.n_records is None:
            self._n_records, self._leaks = count_records(self._table, self._notes), (COUNT_LEAK,)
        tell_failures(self._notes)
        if self._shares is not None:
            counts = release_shares(
                self._table,
                noise_multiplier=self._shares.noise_multiplier,
                delta=plan.delta,
                adjacency=plan.adjacency,
                ledger=self._account,
            )
            self._schema = counts.schema
            _save_schema(folder, as_comment(counts.guarantee) + self._schema.to_toml())
        check_composition(plan, self._schema.parts)
        checkpoint = None if args.checkpoint is None else RunCheckpoint(args.checkpoint)
        release = run_dpvi(
            self._model,
            self._table.X,
            self._table.y,
            plan=plan,
            n_records=self._n_records,
            max_grad_norm=self._max_grad_norm,
            recipe=args.recipe,
            n_threads=args.threads,
            progress=True,
            ledger=self._account,
            checkpoint=checkpoint,
        )
        release = release.with_parts(*self._schema.parts).with_leaks(*self._schema.leaks, *self._leaks)
        _save(release, folder.release_path, again=checkpoint is not None)
        if checkpoint is not None:
            try:
                checkpoint.discard()
            except OSError as error:
                place = printable(checkpoint.path)
                tell_failures([f"cannot remove {place} ({reason(error)}): remove it, it is SECRET"])
        return release

    def _fill_gaps(self, draft: SchemaDraft, plan: UnknownPlan, folder: OutputFolder) -> None:
        """Release what is unknown and save it at once.

        **Privacy.** Reads the records, through :func:`dpinfer.release_unknown` and when the ledger is charged.
        """
        args = self._args
        found = release_unknown(args.file, draft, plan=plan, n_records=args.n_records, ledger=self._account)
        comment = "" if found.n_records is None else f"# n_records = {found.n_records}, with noise\n"
        _save_schema(folder, as_comment(found.guarantee) + comment + found.schema.to_toml())
        self._schema, self._n_records = found.schema, args.n_records or found.n_records or 1
        self._open()

    def write(self, result: GradientTrace, folder: OutputFolder) -> str:
        """Write the schema, the table, the pictures and the report."""
        schema = self._schema
        written = folder.write("schema.toml", as_comment(result.guarantee) + schema.to_toml())
        found = analyse(
            result,
            self._posterior,
            folder=folder,
            title=f"Private fit of {'' if schema.target is None else schema.target.name}",
            release_name=folder.release_path.name,
            notes=self._notes,
            test=self._test,
        )
        tell_failures(found.failures)
        text = terminal_text(results_text(found, result.guarantee, self._posterior.level))
        return text + files_text((folder.release_path, written, *found.files))


def automatic_max_grad_norm(schema: Schema, recipe: str) -> float:
    """Return a clipping norm from the schema alone: a public guess of the root mean square norm of (x, 1).

    With the recipes "tied" and "steady", twice that, because their preconditioner is about 2 for a logistic model
    (I**(-1/2) with an information I of 1/4 for each unit of x squared).

    A logistic gradient in the weights is (p - y)(x, 1), so its norm is at most that of (x, 1); clipping at the typical
    norm, and not at the largest that the schema admits, keeps the noise small and touches only unusual records.
    """
    norm = float(np.hypot(schema.typical_row_norm, 1.0))
    return 2.0 * norm if check_choice("recipe", recipe, RECIPES) in FISHER_RECIPES else norm


def plan_of(
    args: argparse.Namespace, draft: SchemaDraft | None = None
) -> tuple[PrivacyPlan, SharesPlan | None, UnknownPlan | None]:
    """Return the run's plan, with that of the counts or of unknown quantities; no data is read."""
    target: dict[str, Any] = {
        "target_epsilon": args.epsilon,
        "target_delta": args.delta,
        "sample_rate": args.sample_rate,
        "n_steps": args.steps,
        "accountant": args.accountant,
    }
    with public_arguments():
        if draft is not None:
            return _plan_of_unknown(args, draft)
        if args.shares_budget is None:
            return plan_privacy(**target), None, None
        both = plan_with_shares(**target, budget_share=args.shares_budget)
        return both.run, both, None


def _plan_of_unknown(args: argparse.Namespace, draft: SchemaDraft) -> tuple[PrivacyPlan, None, UnknownPlan]:
    def event(noise_multiplier: float) -> Event:
        return run_event(noise_multiplier, args.sample_rate, args.steps)

    terms: dict[str, Any] = {"accountant": args.accountant}
    unknown = plan_unknown(
        draft, args.unknown, target_epsilon=args.epsilon, target_delta=args.delta, make_event=event, **terms
    )
    plan = PrivacyPlan.from_noise_multiplier(
        unknown.noise_multiplier, args.sample_rate, args.steps, args.delta, adjacency=unknown.adjacency, **terms
    )
    return plan, None, unknown


def _save_schema(folder: OutputFolder, text: str) -> None:
    """Save the paid schema before the run."""
    try:
        folder.write("schema.toml", text)
    except CommandError as error:
        # The release of the run holds the earlier releases.
        sys.stderr.write(f"dpinfer: warning: {printable(error)}\n")


def _save(release: GradientTrace, path: Path, *, again: bool) -> None:
    """Save the paid release in its folder, or else anywhere."""
    try:
        try:
            release.save(path)
        except KeyboardInterrupt:
            release.save(path)
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
