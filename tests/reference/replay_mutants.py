"""Bugs in the code around the private sums, one for each way in which a private call can say more than its sums do.

Each is put in the place of a function of the library while a scenario of the record-and-replay audit runs.  A mutant
names the scenario that shows it, and the kind of finding that must say so.
"""

import contextlib
import functools
import importlib.util
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpinfer.accounting import charge_run
from dpinfer.lab.replays import replace_everywhere
from dpinfer.lab.replays.calls import call_scenarios
from dpinfer.lab.replays.commands import COMMAND_OPTIONS, command_scenario, files
from dpinfer.lab.replays.mechanisms import library_scenarios
from dpinfer.lab.replays.native import NativeSession
from dpinfer.mechanism import _native, run_newton
from dpinfer.mechanism.bounded_sum import released_sum
from dpinfer.mechanism.lattice_sums import NormSum
from dpinfer.mechanism.trace import dpvi
from dpinfer.mechanism.unknowns import draws as unknown_draws
from dpinfer.mechanism.unknowns import releases as unknowns
from dpinfer.release.guarantee import Guaranteed
from dpinfer.tabular import ContinuousColumn, read_table, release_shares
from tests.reference.newton_mutants import NEWTON_MUTANTS, in_place_of

REGRESSION, CHARGED, SITES = (
    "run_dpvi: logistic, plain",
    "run_dpvi: logistic, ledger and checkpoint",
    "run_dp_sep: mixture",
)
SUMS = "private_sum, Laplace, add_remove"
FILE, SHARES = "no ledger", "ledger, shares"
BOUNDS, CATEGORIES = "release_bounds, add_remove", "release_categories, add_remove"
LISTED, TABLE = "release_listed_categories, add_remove", "regression, replaced"


@dataclass(frozen=True)
class Mutant:
    """A bug: the scenario that shows it, what is put in place, and what the finding begins with."""

    scenario: str
    installed: Callable[[], Any]
    finding: str


def in_the_run(change):
    """`change(run, model, X, y, options)` in the place of ``run_dpvi``."""
    right = dpvi.run_dpvi
    return lambda: replace_everywhere(
        right, lambda model, X, y=None, **options: change(right, model, np.asarray(X), np.asarray(y), options)
    )


def above_the_sums(name, change):
    """`change(session, right, step, *rest)` in the place of a session's noised sum, for whoever calls it."""
    looked_up = NativeSession.__getattr__

    def look_up(session, asked):
        right = looked_up(session, asked)
        return (lambda *arguments: change(session, right, *arguments)) if asked == name else right

    @contextlib.contextmanager
    def installed():
        NativeSession.__getattr__ = look_up
        try:
            yield
        finally:
            NativeSession.__getattr__ = looked_up

    return installed


def largest_norm(X):
    return float(np.linalg.norm(np.clip(X, -1e3, 1e3), axis=1).max())


def norm_from_the_records(run, model, X, y, options):
    return run(model, X, y, **options | {"max_grad_norm": largest_norm(X)})


def learning_rate_from_the_records(run, model, X, y, options):
    return run(model, X, y, **options | {"learning_rate": 1.0 / largest_norm(X)})


def count_of_the_records(run, model, X, y, options):
    return run(model, X, y, **options | {"n_records": len(X)})


def by_the_batch_size(session, right, step, *rest):
    batch = _native.poisson_sample(session._key, step, session._rate, session._n_rows)
    return right(step, *rest) / max(1, len(batch))


def shuffled(session, right, step, rate, noise_multiplier):
    return session.permuted_sum(step, noise_multiplier)


def without_noise(session, right, *arguments):
    session.clipped_sum(arguments[0])
    return right(*arguments)


def the_same_noise_twice(session, right, step, *rest):
    return right(7, *rest)


def less_noise(session, right, *arguments):
    return right(*arguments[:-1], 0.9 * arguments[-1])


def noise_before_the_charge(run, model, X, y, options):
    plan, ledger = options["plan"], options.pop("ledger")
    release = run(model, X, y, **options)
    with charge_run(
        ledger, plan.event, adjacency=plan.adjacency, mechanism="dpvi", secure=True, delta=plan.delta
    ) as charge:
        charge.begin()
    return release


def a_step_that_is_not_charged(run, model, X, y, options):
    run(model, X, y, **options | {"ledger": None, "checkpoint": None, "plan": options["plan"]})
    return run(model, X, y, **options)


def warned_of_a_record(run, model, X, y, options):
    if np.abs(X).max() > 1e100:
        warnings.warn("a record is far out", UserWarning, stacklevel=2)
    return run(model, X, y, **options)


def refused_for_a_record(run, model, X, y, options):
    if np.abs(X).max() > 1e100:
        raise ValueError("the run did not converge")
    return run(model, X, y, **options)


def fewer_steps_for_a_record(run, model, X, y, options):
    if np.abs(X).max() > 1e100:
        options["plan"] = replace(options["plan"], n_steps=2)
    return run(model, X, y, **options)


def another_type_for_a_record(run, model, X, y, options):
    release = run(model, X, y, **options)
    if np.abs(X).max() > 1e100:
        object.__setattr__(release, "final_params", release.final_params.astype(np.float32))
    return release


def a_later_definition_of_the_column():
    """The values are clamped to the first bounds of a column, and encoded by another definition of it that follows."""
    right = read_table

    def read(path, schema):
        wider = [
            replace(column, bounds=(column.bounds[0] - 1e6, column.bounds[1] + 1e6))
            if isinstance(column, ContinuousColumn)
            else column
            for column in schema.columns
        ]
        table = right(path, replace(schema, columns=tuple(wider)))
        X = table.X.copy()
        for place, (one, other) in enumerate(zip(schema.columns, wider, strict=True)):
            if one is not other:
                before, after = one.offset_and_scale, other.offset_and_scale
                own = sum(len(column.feature_names) for column in schema.columns[:place])
                X[:, own] = (X[:, own] * after[1] + after[0] - before[0]) / before[1]
        return replace(table, X=X, schema=schema)

    return replace_everywhere(right, read)


@contextlib.contextmanager
def an_event_lost_from_the_release():
    right = Guaranteed.with_parts
    Guaranteed.with_parts = lambda release, *parts: release
    try:
        yield
    finally:
        Guaranteed.with_parts = right


def less_sensitive_than_it_is():
    """Quantiles for which a record counts a third of what it does."""

    def cell(ranks, probability, *, epsilon, replace, key, stream):
        costs = [abs(10 * rank - int(10 * probability) * ranks[-1]) for rank in ranks[:-1]]
        return unknown_draws.select_least(costs, sensitivity=3, epsilon=epsilon, key=key, stream=stream)

    return replace_everywhere(unknown_draws._cell, cell)


def a_threshold_for_another_delta():
    right = unknown_draws.least_threshold
    return replace_everywhere(right, lambda epsilon, delta, **options: right(epsilon, 1e3 * delta, **options))


def labels_without_a_threshold():
    right = unknown_draws.draw_categories

    def draw(columns, **options):
        found = right(columns, **options)
        return {name: counts | dict.fromkeys(columns[name], 99) for name, counts in found.items()}

    return replace_everywhere(right, draw)


def most_frequent_labels_as_they_are():
    """The labels of the noisy counts, in the order of the exact ones."""
    right = unknown_draws.draw_categories

    def draw(columns, **options):
        found = right(columns, **options)
        return {
            name: dict(sorted(counts.items(), key=lambda item: (-columns[name][item[0]], item[0])))
            for name, counts in found.items()
        }

    return replace_everywhere(right, draw)


def labels_in_the_type_of_all_records():
    """NumPy chooses a type for all values of a list, and a label is a value as that type spells it."""

    def spelled(value):
        return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)

    return replace_everywhere(
        unknowns.count_labels, lambda name, values: Counter(map(spelled, np.asarray(values).tolist()))
    )


def a_warning_of_the_rows_that_are_left():
    """The caution of a public count that is far from the number of rows of a table, which has dropped some."""
    right = run_newton

    def run(model, X, y=None, **options):
        release = right(model, X, y, **options)
        warnings.warn(f"n_records = {options['n_records']}, and {len(np.asarray(X))} rows", UserWarning, stacklevel=2)
        return release

    return replace_everywhere(right, run)


def an_event_lost_from_the_ledger():
    right = release_shares
    return replace_everywhere(right, lambda table, **options: right(table, **options | {"ledger": None}))


def contributions_beyond_the_norm(total, values):
    with np.errstate(all="ignore"):
        steps = np.nan_to_num(np.rint(values / total.step), posinf=0.0, neginf=0.0)
    total._total += np.clip(steps, -(2.0**40), 2.0**40).astype(np.int64).sum(axis=0)


def a_contribution_of_other_rows():
    """A contribution whose mean over the block has been taken off, after the trial on made-up rows."""
    right = released_sum

    def released(records, contribution, *arguments, **named):
        return right(records, lambda rows: contribution(rows - rows.mean(axis=0)), *arguments, **named)

    return replace_everywhere(right, released)


MUTANTS = {
    "a_sum_that_shortens_nothing": Mutant(
        SUMS, in_place_of(NormSum, "add_contributions", lambda right: contributions_beyond_the_norm), "sensitivity"
    ),
    "a_contribution_of_other_rows": Mutant(SUMS, a_contribution_of_other_rows, "sensitivity"),
    "sensitivity_from_the_records": Mutant(REGRESSION, in_the_run(norm_from_the_records), "public"),
    "learning_rate_from_the_records": Mutant(REGRESSION, in_the_run(learning_rate_from_the_records), "public"),
    "count_of_the_records_released": Mutant(REGRESSION, in_the_run(count_of_the_records), "outcome"),
    "divided_by_the_batch_size": Mutant(REGRESSION, above_the_sums("noisy_sum", by_the_batch_size), "outcome"),
    "shuffled_where_poisson_is_stated": Mutant(SITES, above_the_sums("poisson_sum", shuffled), "accounting"),
    "sum_without_noise": Mutant(REGRESSION, above_the_sums("noisy_sum", without_noise), "unnoised"),
    "the_same_noise_twice": Mutant(REGRESSION, above_the_sums("noisy_sum", the_same_noise_twice), "noise"),
    "less_noise_than_stated": Mutant(REGRESSION, above_the_sums("noisy_sum", less_noise), "accounting"),
    "noise_before_the_charge": Mutant(CHARGED, in_the_run(noise_before_the_charge), "order"),
    "a_run_that_is_not_charged": Mutant(CHARGED, in_the_run(a_step_that_is_not_charged), "accounting"),
    "event_lost_from_the_ledger": Mutant(SHARES, an_event_lost_from_the_ledger, "accounting"),
    "event_lost_from_the_release": Mutant(SHARES, an_event_lost_from_the_release, "accounting"),
    "clamp_undone_by_a_later_column": Mutant(FILE, a_later_definition_of_the_column, "bounds"),
    "warned_of_a_record": Mutant(REGRESSION, in_the_run(warned_of_a_record), "messages"),
    "refused_for_a_record": Mutant(REGRESSION, in_the_run(refused_for_a_record), "outcome"),
    "fewer_steps_for_a_record": Mutant(REGRESSION, in_the_run(fewer_steps_for_a_record), "public"),
    "quantile_less_sensitive": Mutant(BOUNDS, less_sensitive_than_it_is, "sensitivity"),
    "threshold_for_another_delta": Mutant(CATEGORIES, a_threshold_for_another_delta, "accounting"),
    "labels_without_a_threshold": Mutant(CATEGORIES, labels_without_a_threshold, "outcome"),
    "labels_in_the_order_of_exact_counts": Mutant(CATEGORIES, most_frequent_labels_as_they_are, "outcome"),
    "dtype_inferred_from_all_records": Mutant(LISTED, labels_in_the_type_of_all_records, "sensitivity"),
    **(
        {"text_of_a_private_count": Mutant(TABLE, a_warning_of_the_rows_that_are_left, "messages")}
        if importlib.util.find_spec("formulaic") is not None
        else {}
    ),
    "another_type_for_a_record": Mutant(REGRESSION, in_the_run(another_type_for_a_record), "outcome"),
    **{
        name: Mutant(scenario, in_place_of(*place, bug), finding)
        for name, (scenario, place, bug, finding) in NEWTON_MUTANTS.items()
    },
}


def scenario_of(mutant):
    """The scenario that shows a mutant."""
    if mutant.scenario in COMMAND_OPTIONS:
        return command_scenario(mutant.scenario, COMMAND_OPTIONS[mutant.scenario], tuple(files(every=False)))
    scenarios = (*_library(), *(call_scenarios(formulas=True) if mutant.scenario == TABLE else ()))
    return next(scenario for scenario in scenarios if scenario.name == mutant.scenario)


_library = functools.cache(library_scenarios)
