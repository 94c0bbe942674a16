"""The private calls of the command line that a record-and-replay audit runs, on made-up files, and all scenarios.

**Privacy.** Made-up records only.
"""

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer import tabular
from dpinfer.lab.replays.baselines import baseline_scenarios
from dpinfer.lab.replays.calls import DRAFT_TOML, SCHEMA_TOML, call_scenarios
from dpinfer.lab.replays.mechanisms import library_scenarios
from dpinfer.lab.replays.recorder import replace_everywhere
from dpinfer.lab.replays.scenario import DATASET, LEDGER, Neighbour, Place, Scenario, stated_by
from dpinfer.release import load_release
from dpinfer.tabular import Schema, Table, reading

RECORDS, SCHEMA, DRAFT, TEST = "records.csv", "schema.toml", "draft.toml", "test.csv"
_CHECKPOINT = "run.checkpoint"
_N_LINES = 12  # few, for speed; every kind of line occurs

_HEADER = "id,age,job,region,member,rich"

# Additional lines of three kinds: read, dropped and refused.
_LINES = {
    "a record more": "99,44,cook,south,yes,no",
    "a record out of bounds more": "99,-1e300,cook,north,no,yes",
    "a record of an unseen category more": "99,33,astronaut,north,no,yes",
    "a record without a value more": "99,?,cook,south,yes,no",
    "a record that is no number more": "99,nan,cook,south,yes,no",
    "an infinite record more": "99,inf,cook,south,yes,no",
    "a record that is there already more": "0,20,clerk,north,yes,yes",
    "an empty line more": "",
    "a line with a field too many more": "99,44,cook,south,yes,no,1",
    "a line with a stray quote more": '99,"44,cook,south,yes,no',
    "a line cut by a quoted line end more": '99,"44\n",cook,south,yes,no',
}
_REFUSED = {
    "a category that the schema lacks": ("99,44,cook,west,yes,no", "98,21,clerk,east,no,no"),
    "a label that the schema lacks": ("99,44,cook,south,yes,perhaps", "98,21,clerk,north,no,never"),
}


def _lines() -> list[str]:
    jobs, regions = ("clerk", "cook", "else"), ("north", "south")
    return [
        f"{i},{20 + 5 * i},{jobs[i % 3]},{regions[i % 2]},{('yes', 'no')[i % 3 == 1]},{('yes', 'no')[i % 4 == 2]}"
        for i in range(_N_LINES)
    ]


def files(*, every: bool, place: int = _N_LINES) -> Iterator[Neighbour]:
    """Yield neighbouring files with another line at `place`: of `every` kind, or one read and one refused.

    Unless all records are sampled the place must be the end, so that the others keep their places.
    """
    lines = _lines()
    for name, line in list(_LINES.items())[: None if every else 2]:
        yield Neighbour(name, [*lines[:place], line, *lines[place:]])
    if every:
        yield Neighbour("a record less", lines[: place - 1] + lines[place:])
    for reason, bad in list(_REFUSED.items())[: None if every else 1]:
        for index, line in enumerate(bad):
            yield Neighbour(f"{reason} ({index + 1})", [*lines[:place], line, *lines[place:]], refused=reason)


# Further arguments of the scenarios of `dpinfer fit`.
COMMAND_OPTIONS: dict[str, Sequence[str]] = {
    "no ledger": ("--method", "dpvi", "--approximation", "laplace"),
    "ledger, checkpoint": (
        *("--ledger", LEDGER, "--dataset", DATASET, "--checkpoint", _CHECKPOINT),
        *("--method", "dpvi", "--approximation", "laplace", "--hessian", "diagonal"),
    ),
    "ledger, shares": (
        *("--ledger", LEDGER, "--dataset", DATASET, "--shares-budget", "0.3"),
        *("--method", "dpvi", "--approximation", "laplace", "--hessian", "diagonal"),
    ),
    "newton, ledger, checkpoint": (
        *("--ledger", LEDGER, "--dataset", DATASET, "--checkpoint", _CHECKPOINT),
        *("--method", "newton", "--n-samples", "20"),
    ),
    "ledger, unknown": (
        *("--ledger", LEDGER, "--dataset", DATASET, "--unknown", "n_records,bounds,categories"),
        *("--method", "dpvi", "--approximation", "laplace", "--hessian", "diagonal"),
    ),
    "formula, ledger, checkpoint": (
        *("--ledger", LEDGER, "--dataset", DATASET, "--checkpoint", _CHECKPOINT),
        *("--formula", "rich ~ age + C(job) + region", "--family", "binomial", "--method", "newton"),
        *("--n-samples", "20"),
    ),
    "formula, ledger, unknown": (
        *("--ledger", LEDGER, "--dataset", DATASET, "--unknown", "n_records,bounds,categories"),
        *("--formula", "rich ~ age + C(job) + region", "--family", "binomial"),
    ),
    "formula, ledger, weights, clusters, strata": (
        *("--ledger", LEDGER, "--dataset", DATASET, "--weights", "age", "--clusters", "job", "--strata", "region"),
        *("--formula", "rich ~ region", "--family", "binomial", "--method", "newton", "--n-samples", "20"),
    ),
    "all records in each step, other options": (
        *("--sample-rate", "1"),
        *("--target", "rich", "--recipe", "tied", "--accountant", "pld", "--max-grad-norm", "2", "--prior-scale", "3"),
        *(
            "--method",
            "dpvi",
            "--approximation",
            "naive",
            "--hessian",
            "diagonal",
            "--prior",
            "weak",
            "--burn-in",
            "5",
            "--level",
            "0.5",
        ),
        *("--test", TEST, "--overwrite"),
    ),
}


# Arguments of every scenario of the command.
BUDGET = ("--epsilon", "4", "--delta", "1e-5", "--threads", "1")
# Default arguments of scenarios of a gradient trace.
_TRACE = ("--sample-rate", "0.6", "--steps", "40")
# Public facts about the records; the command reads omitted ones from the records.
PUBLIC_FACTS = ("--schema", SCHEMA, "--n-records", str(_N_LINES))


def command_scenario(
    name: str, options: Sequence[str], found: Sequence[Neighbour], *, public: Sequence[str] = PUBLIC_FACTS
) -> Scenario:
    """Return a scenario of ``dpinfer fit``; the data of pictures are compared in place of the pictures."""

    def run(lines: list[str], place: Place) -> int:
        # The command line's modules import this one's callers.
        from dpinfer.cli.main import main
        from dpinfer.cli.pictures import draw_all

        paths = {key: str(place.folder / key) for key in (RECORDS, SCHEMA, DRAFT, TEST, LEDGER, _CHECKPOINT)}
        # Survey weights have a public mean and spread.
        weights = "bounds = [0, 100]\nmean = 45\nsd = 17\n" if "--weights" in options else "bounds = [0, 100]\n"
        Path(paths[SCHEMA]).write_text(SCHEMA_TOML.replace("bounds = [0, 100]\n", weights))
        Path(paths[DRAFT]).write_text(DRAFT_TOML)
        for file, content in ((RECORDS, lines), (TEST, _lines())):
            Path(paths[file]).write_text("\n".join([_HEADER, *content, ""]))
        arguments = [paths.get(option, option) for option in (*public, *options)]
        command = ["fit", paths[RECORDS], "--out", str(place.folder / "out")]
        with contextlib.ExitStack() as stack:
            stack.enter_context(replace_everywhere(reading.read_chunks, _Reading(place)))
            stack.enter_context(replace_everywhere(tabular.read_table, _Bounded(place)))
            stack.enter_context(replace_everywhere(draw_all, _Undrawn(place)))
            named = "newton" not in options and "--formula" not in options
            return main([*command, *BUDGET, *(_TRACE if named else ()), *arguments])

    def stated(result: Any, folder: Path) -> Any:
        return stated_by(load_release(folder / "out" / "fit.release"), folder)

    return Scenario(
        f"dpinfer fit: {name}",
        "dpinfer fit",
        run,
        _lines(),
        tuple(found),
        ledger="--ledger" in options,
        skipped=frozenset((RECORDS, SCHEMA, DRAFT, TEST, _CHECKPOINT)),
        stated=stated,
    )


class _Reading:
    """Notes when the file of records is read."""

    def __init__(self, place: Place) -> None:
        self._place, self._read = place, reading.read_chunks

    def __call__(self, path: Any, *arguments: Any, **named: Any) -> Any:
        if Path(path).name == RECORDS:
            self._place.touched()
        return self._read(path, *arguments, **named)


class _Bounded:
    """Checks that a table is inside the bounds of its schema, for any records."""

    def __init__(self, place: Place) -> None:
        self._place, self._read = place, tabular.read_table

    def __call__(self, path: Any, schema: Schema) -> Table:
        table = self._read(path, schema)
        low, high = np.asarray(schema.feature_bounds).T
        if not np.all((low <= table.X) & (high >= table.X)):
            self._place.fault("bounds: a record is outside of the bounds that its schema declares")
        return table


class _Undrawn:
    """Notes the data of pictures: drawing takes a second, and reads nothing else."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __call__(self, release: Any, posterior: Any, **named: Any) -> dict[str, Any]:
        self._place.note(f"pictures of {posterior!r}, {release!r}, {sorted(named)}")
        return {}


def all_scenarios() -> tuple[Scenario, ...]:
    """Return a scenario for every private call: of the library, of tables and estimators, and of the command line.

    Those with a formula are there where formulaic is installed.
    """
    commands = []
    formulas = importlib.util.find_spec("formulaic") is not None
    for index, (name, options) in enumerate(COMMAND_OPTIONS.items()):
        if "--formula" in options and not formulas:
            continue
        everything = "--sample-rate" in options
        neighbouring = files(every=everything or index == 0, place=3 if everything else _N_LINES)
        public = ("--schema", DRAFT) if "--unknown" in options else PUBLIC_FACTS
        commands.append(command_scenario(name, options, tuple(neighbouring), public=public))
    return (*library_scenarios(), *baseline_scenarios(), *call_scenarios(formulas=formulas), *commands)
