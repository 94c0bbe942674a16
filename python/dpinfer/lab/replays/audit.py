"""Record and replay: private calls on neighbouring records with their noise frozen; only noised sums may differ.

**Privacy.** Made-up records only.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from dpinfer._surroundings import ProgressCallback, resolve_progress
from dpinfer.accounting import PrivacyLedger
from dpinfer.errors import RecordError, SchemaError
from dpinfer.lab.replays.observation import Observation, differences, observe
from dpinfer.lab.replays.recorder import TapeRecorder
from dpinfer.lab.replays.scenario import (
    DATASET,
    LEDGER,
    Mechanisms,
    Neighbour,
    Place,
    Scenario,
    mechanisms_of,
    mechanisms_of_event,
    missing,
)
from dpinfer.lab.replays.tape import NoisedSum, Tape

# With which a correct mechanism's noise fails, for each scenario; keys are frozen, so that it fails always or never.
NOISE_RATE = 1e-9
_BUDGET = (1e6, 1e-5)  # (epsilon, delta) that no scenario exhausts
_SHOWN = 5  # findings of one kind in a message


@dataclass(frozen=True, eq=False)
class _Run:
    """One run: its queries, outputs, statement, and the ledger after it."""

    tape: Tape
    seen: Observation
    stated: Mechanisms
    charged: Mechanisms


@dataclass(frozen=True)
class ReplayCheck:
    """Findings on one neighbour.

    **Privacy.** A finding about made-up records: safe to publish.

    Parameters
    ----------
    scenario, entry, neighbour : str
    n_sums : int
        Noised sums of the recorded run.
    largest_move : float
        Largest change of a sum by the neighbour, as a share of the claimed bound; at most 1.
    findings : tuple of str
        "kind: text"; empty if only noised sums differ.
    """

    scenario: str
    entry: str
    neighbour: str
    n_sums: int
    largest_move: float
    findings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


@dataclass(frozen=True)
class ReplayResult:
    """The checks of a replay audit, and its verdict.

    **Privacy.** A finding about made-up records: safe to publish.

    Parameters
    ----------
    checks : tuple of ReplayCheck
    """

    checks: tuple[ReplayCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[ReplayCheck, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {"passed": self.passed, "checks": [vars(check) for check in self.checks]}

    def __repr__(self) -> str:
        verdict = "PASSED" if self.passed else f"FAILED ({len(self.failures)} of {len(self.checks)} replays)"
        names = list(dict.fromkeys(check.scenario for check in self.checks))
        width = max((len(name) for name in names), default=8)
        lines = [
            f"record-and-replay audit {verdict}: {len(names)} private calls, {len(self.checks)} neighbours",
            f"  {'private call':{width}s} {'sums':>5s} {'neighbours':>10s} {'largest move':>12s}",
        ]
        for name in names:
            checks = [check for check in self.checks if check.scenario == name]
            sums, move = max(check.n_sums for check in checks), max(check.largest_move for check in checks)
            mark = "" if all(check.passed for check in checks) else "  FAILED"
            lines.append(f"  {name:{width}s} {sums:5d} {len(checks):10d} {move:12.4f}{mark}")
        for check in self.failures:
            lines += [f"  FAILED {check.scenario}, {check.neighbour}: {finding}" for finding in check.findings]
        return "\n".join(lines)


def replay_audit(scenarios: Sequence[Scenario], *, progress: bool | ProgressCallback = False) -> ReplayResult:
    """Run private calls on neighbouring records with frozen noise; only the noised sums may differ.

    Of each scenario the first run is recorded: the public inputs of every sum over the records, and the noised sum.  A
    run on a neighbour must ask for the same sums with the same inputs; its own are compared with the recorded ones
    (by at most the claimed sensitivity in exact integers, with the same noise), and it is given the recorded ones.
    All outputs must then be equal, bit for bit: results, files, messages, warnings, errors, exit codes, the order of
    writes, and the number of reads of the generator and the clocks. The sums' noise must be that of the result's
    statement and of the ledger's charge, which precedes the reading of records.

    **Privacy.** Reads no records of the caller's: the scenarios' are made up.  Scope and limits:
    docs/derivations/audit.md.

    Parameters
    ----------
    scenarios : sequence of Scenario
        ``dpinfer.lab.replays.commands.all_scenarios()`` has one for every private call.
    progress : bool or callable
        True draws a bar on a terminal; a callable gets (done, total).

    Returns
    -------
    ReplayResult
        ``passed``, the checks, and a readable repr.

    Raises
    ------
    TypeError, ValueError
        If `progress` is wrong.

    Examples
    --------
    >>> from dpinfer.lab.replays.mechanisms import library_scenarios
    >>> replay_audit(library_scenarios()[:1]).passed
    True
    """
    report = resolve_progress(progress, "private calls")
    checks: list[ReplayCheck] = []
    for index, scenario in enumerate(scenarios):
        checks += _replay(scenario)
        report(index + 1, len(scenarios))
    return ReplayResult(tuple(checks))


def _replay(scenario: Scenario) -> Iterator[ReplayCheck]:
    with tempfile.TemporaryDirectory(prefix="dpinfer-replay-") as name:
        folder = Path(name) / "work"
        first = _run(scenario, scenario.records, folder, None)
        recorded = _own_findings(scenario, first)
        refusals: dict[str, _Run] = {}
        for neighbour in (Neighbour("the same records", scenario.records), *scenario.neighbours):
            other = _run(scenario, neighbour.records, folder, first.tape)
            findings, move = [*recorded, *other.tape.faults], 0.0
            recorded = []
            if neighbour.refused:
                findings += _refusal(scenario, other)
                findings += _compare(refusals.setdefault(neighbour.refused, other), other)
            else:
                findings += _compare(first, other)
                move, found = _moves(scenario, neighbour, first.tape, other.tape)
                findings += found
            unique = tuple(dict.fromkeys(findings))
            yield ReplayCheck(scenario.name, scenario.entry, neighbour.name, len(first.tape.sums), move, unique)


def _run(scenario: Scenario, records: Any, folder: Path, replayed: Tape | None) -> _Run:
    """Run once in an empty folder."""
    folder.mkdir()
    try:
        recorder = TapeRecorder(replayed)
        place = Place(folder, recorder.note, recorder.fault)
        recorder.on_records, recorder.on_sum = place.touched, place.drawn

        def call() -> Any:
            if scenario.ledger:
                ledger = PrivacyLedger.create(folder / LEDGER)
                place.account = ledger.add_dataset(DATASET, budget=_BUDGET, adjacency=scenario.adjacency)
            return scenario.run(records, place)

        with recorder.recording() as tape:
            seen = observe(call, folder, recorder.note, skipped=scenario.skipped)
        stated: Mechanisms = Counter()
        if seen.error is None and not isinstance(seen.result, int):
            stated = mechanisms_of_event(scenario.stated(seen.result, folder))
        elif seen.result == 0:
            stated = mechanisms_of_event(scenario.stated(None, folder))
        return _Run(tape, seen, stated, place.charged())
    finally:
        shutil.rmtree(folder)


def _own_findings(scenario: Scenario, run: _Run) -> list[str]:
    """Return findings on the recorded run alone."""
    findings = list(run.tape.faults)
    if run.seen.error is not None:
        return [*findings, f"outcome: the recorded run ended with {type(run.seen.error).__name__}: {run.seen.error}"]
    if not run.tape.sums:
        said = run.seen.messages.get("standard error", "")
        return [*findings, f"sums: the recorded run asked for none {said}"]
    streams = Counter(own.stream for own in run.tape.sums)
    if max(streams.values()) > 1:
        findings.append("noise: two sums have the same noise")
    drawn = mechanisms_of(run.tape.sums)
    findings += [f"accounting: the result leaves out {text}" for text in missing(drawn, run.stated)]
    if scenario.ledger:
        findings += [f"accounting: the ledger leaves out {text}" for text in missing(drawn, run.charged)]
    return findings + _law(run.tape)


def _law(tape: Tape) -> list[str]:
    """Check the noise's scale against the claim, by an exact interval for Gaussian noise."""
    findings = []
    for kind, names in (("gaussian", ("gaussian",)), ("laplace", ("laplace", "threshold"))):
        sums = [own for own in tape.sums if own.mechanism[0] in names]
        if not sums:
            continue
        z = np.concatenate([np.array(own.noise, dtype=float) / _scale(own) for own in sums])
        step = np.concatenate([np.full(len(own.noise), 1.0 / _scale(own)) for own in sums])
        if kind == "gaussian":
            # Rounding to a lattice step is far below the resolution of this check.
            least = most = float(np.sum(z**2))
            law = stats.chi2(z.size)
        else:
            # Counts are a lattice that can be seen.  With L of the continuous law and this scale, |n| is in law at
            # least |L| - 1 and at most |L| + 1/2, as 2 a^k / (1 + a) is at least a^(k + 1) and at most a^(k - 1/2).
            size = np.abs(z)
            least, most = 2.0 * float(np.sum(np.maximum(size - 0.5 * step, 0.0))), 2.0 * float(np.sum(size + step))
            law = stats.chi2(2 * z.size)
        if 2.0 * min(law.cdf(most), law.sf(least)) < NOISE_RATE:
            findings.append(f"noise: {kind} noise has not the scale that is claimed")
    return findings


def _scale(own: NoisedSum) -> float:
    multiplier = own.mechanism[1] if own.mechanism[0] == "gaussian" else 1.0 / own.mechanism[1]
    return float(own.sensitivity) * float(multiplier)


def _moves(scenario: Scenario, neighbour: Neighbour, tape: Tape, other: Tape) -> tuple[float, list[str]]:
    """Return the largest change of a sum as a share of the claimed bound, and findings on the sums."""
    largest, found = 0.0, []
    for own, theirs in zip(tape.sums, other.sums, strict=False):
        if not own.same_noise(theirs):
            found.append(f"noise: that of {own.name} depends on the records")
        if neighbour.aligned:
            factor = scenario.adjacency.sensitivity_factor if own.norm == 2 else 1.0
            move = own.move(theirs) / factor
            largest = max(largest, move)
            if move > 1.0:
                found.append(f"sensitivity: a sum of {own.name} moves by {move:.4g} of its claimed bound")
    return largest, found


def _compare(first: _Run, other: _Run) -> list[str]:
    """Return everything that differs but noised sums."""
    found, one, two = [], first.tape.log, other.tape.log
    index = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    if index < max(len(one), len(two)):
        texts = [log[index][:160] if index < len(log) else "nothing more" for log in (one, two)]
        found.append(f"public: query {index} differs: {texts[0]} / {texts[1]}")
    for kind in ("outcome", "messages", "files"):
        there = differences(getattr(first.seen, kind), getattr(other.seen, kind))
        found += [f"{kind}: {name} differs" for name in there[:_SHOWN]]
    return found


def _refusal(scenario: Scenario, run: _Run) -> list[str]:
    """Return findings on refusals of records outside of the declared domain."""
    if run.tape.sums:
        return ["refusal: sums were made of records that are outside of the declared domain"]
    exited = isinstance(run.seen.result, int) and run.seen.result != 0
    if not exited and not isinstance(run.seen.error, (RecordError, SchemaError)):
        return ["refusal: records outside of the declared domain are not refused"]
    if scenario.ledger and not run.charged:
        return ["refusal: a refusal that depends on records is not charged"]
    return []
