"""Every private call, recorded and replayed on neighbouring records: only noised sums differ, by what is claimed.

Deterministic: keys and clocks are frozen.  A correct mechanism's noise would fail with probability 1e-9 a scenario, if
the keys were fresh.  The power twins are the mutants of ``tests/reference/replay_mutants.py``.
"""

import contextlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import random
import tempfile
import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tests.reference import replay_mutants
from tests.reference.own_newton_mutants import OWN_NEWTON_MUTANTS
from tests.reference.replay_mutants import scenario_of

import dpinfer
from dpinfer.cli import pictures
from dpinfer.cli.main import build_parser, main
from dpinfer.lab.replays import NATIVE_NAMES, NoisedSum, TapeRecorder, replay_audit, show
from dpinfer.lab.replays import audit as replay
from dpinfer.lab.replays.commands import BUDGET, COMMAND_OPTIONS, PUBLIC_FACTS, all_scenarios, command_scenario, files
from dpinfer.mechanism import _native
from dpinfer.mechanism.newton import own_bounds, own_model
from dpinfer.planning import tuning
from dpinfer.planning.trace import settings

SCENARIOS = all_scenarios()
MUTANTS = replay_mutants.MUTANTS | OWN_NEWTON_MUTANTS

# What takes a source of noise or reads records, and is not replayed, with the reason.
NOT_REPLAYED = {
    "dpinfer.estimators.classifiers.Classifier": "a base without a model: the replays of each classifier run it",
    "dpinfer.auditing.audit.audit": "its records are made up",
    "dpinfer.auditing.one_run.audit_one_run": "its records are made up",
    "dpinfer.fitting.unknown.release_numbers": "the replays of dpinfer.fit and of the estimators run it",
    "dpinfer.methods.method.RunSettings": "it holds the settings of a run, and runs nothing",
    "dpinfer.mechanism.silos.site.Site": "tests/unit/silos hold its noise and its bits to those of one machine",
}
if importlib.util.find_spec("formulaic") is None:
    NOT_REPLAYED["dpinfer.formulas.run.regression"] = "formulas need the extra dpinfer[formula]"
READ_WITHOUT_PRIVACY = {
    "dpinfer.mechanism.bounded_sum.released_sum": "the replays of private_sum and of tables run it",
    "dpinfer.mechanism.statistic.total_of": "returns the exact sum to what adds noise; replayed with run_statistic",
    "dpinfer.lab.baselines.contributions.contributions": "returns what the records add",
    "dpinfer.lab.baselines.sep.run_sep": "not private, and says so",
    "dpinfer.lab.baselines.network_sep.run_network_sep": "not private, and says so",
    "dpinfer.lab.baselines.network_sep.run_published_network_dp_sep": "not private, and says so",
    "dpinfer.tabular.table.read_table": "returns the records; the replay of the command line reads through it",
    "dpinfer.tabular.checking.check_table": "not private, for the curator alone, and says so",
    "dpinfer.cli.pipeline.count_records": "leaks, and says so",
    "dpinfer.fitting.unknown.release_numbers": "the replays of dpinfer.fit and of the estimators run it",
    "dpinfer.mechanism.checkpoint.begun": "the tag of the records stays in a secret file",
    "dpinfer.mechanism.checkpoint.tag_of_records": "its tag stays in a secret file",
    "dpinfer.mechanism.sites.network_dpsep.check_network_records": "returns the records",
    "dpinfer.mechanism.newton.pass_records.open_records": "returns the records",
    "dpinfer.mechanism.newton.unit_parts.open_persons": "returns the records",
}
VERBS_WITHOUT_RECORDS = {"account", "audit", "coverage", "demo", "ledger", "plan", "posterior", "silos"}
VERBS_OF_SITES = {"site"}  # what a site sends is looked at in tests/unit/silos
# Not private, and their first line says so.
VERBS_FOR_THE_CURATOR = {"check", "schema"}
OPTIONS_NOT_REPLAYED = {
    "--help": "reads nothing",
    "--refund-refused": "leaks, and says so",
    "--bounds-from-data": "leaks, and says so: a test below shows that the replay sees it",
}


@pytest.fixture(scope="module", autouse=True)
def few_made_up_records():
    """Rough bounds of models of one's own, short traces, coarse pictures: whether a bit differs is asked alone."""
    with pytest.MonkeyPatch.context() as patch:
        fewest_passes = settings.fewest_passes
        patch.setattr(tuning, "TUNING", replace(tuning.TUNING, steps=(100,)))
        patch.setattr(settings, "fewest_passes", lambda *given, slow: fewest_passes(*given, slow=False))
        for module, name, rows in (
            (own_model, "_ROWS", 300),
            (own_model, "_LAST_ROWS", 600),
            (own_bounds, "_ROWS", 100),
            (pictures, "_DOTS_PER_INCH", 30),
        ):
            assert getattr(module, name) > rows
            patch.setattr(module, name, rows)
        yield


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_only_the_noised_sums_differ(scenario):
    result = replay_audit([scenario])
    assert result.passed, repr(result)
    # The power twin: neighbours that are told apart by nothing at all would show nothing.
    assert max(check.largest_move for check in result.checks) > 0.1


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_around_the_sums_is_found_by_its_check(name):
    """By one neighbour, where the replay ends; all others are replayed only of what is not found."""
    mutant, found = MUTANTS[name], []
    with mutant.installed(), contextlib.closing(replay._replay(scenario_of(mutant))) as checks:
        for check in checks:
            found += check.findings
            if any(finding.startswith(f"{mutant.finding}:") for finding in check.findings):
                return
    pytest.fail(f"no {mutant.finding} among {found}")


def public_objects():
    """Every public function and class of the package, once."""
    found = {}
    for info in pkgutil.walk_packages(dpinfer.__path__, "dpinfer."):
        if any(part.startswith("_") for part in info.name.split(".")):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if not name.startswith("_") and callable(value) and getattr(value, "__module__", "") == info.name:
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


def replayed():
    """What the scenarios call, under the names of the modules that define it."""
    found = set()
    for entry in {scenario.entry for scenario in SCENARIOS if not scenario.entry.startswith("dpinfer ")}:
        module, name = entry.rsplit(".", 1)
        value = getattr(importlib.import_module(module), name)
        found.add(f"{value.__module__}.{value.__qualname__}")
    return found


def parameters(value):
    try:
        return inspect.signature(value).parameters
    except ValueError:
        return {}


def test_whatever_takes_a_source_of_noise_is_replayed():
    """No noise without a key, and no key without a source: a new private call cannot be forgotten."""
    noisy = {
        name
        for name, value in public_objects().items()
        if "random_source" in parameters(value) and not inspect.isabstract(value)
    }
    assert noisy - NOT_REPLAYED.keys() == replayed()
    assert noisy >= NOT_REPLAYED.keys()


def test_whatever_says_that_it_reads_records_is_replayed():
    readers = {
        name
        for name, value in public_objects().items()
        if inspect.isfunction(value)
        and any(text in (value.__doc__ or "") for text in ("Reads the records", "Reads records"))
        and {"X", "table", "path", "records"} & set(parameters(value))
        and not name.startswith(("dpinfer.mechanism.records", "dpinfer.mechanism.sums.sites"))
    }
    assert readers - READ_WITHOUT_PRIVACY.keys() <= replayed()
    assert readers >= {"dpinfer.mechanism.trace.dpvi.run_dpvi", *READ_WITHOUT_PRIVACY}


def test_every_verb_and_every_option_of_the_command_is_replayed_or_reads_nothing():
    verbs = next(action for action in build_parser()._actions if action.dest == "verb").choices
    assert verbs.keys() == VERBS_WITHOUT_RECORDS | VERBS_FOR_THE_CURATOR | VERBS_OF_SITES | {"fit"}
    given = {option for options in COMMAND_OPTIONS.values() for option in options} | {*BUDGET, *PUBLIC_FACTS, "--steps"}
    given |= {"--out"} | OPTIONS_NOT_REPLAYED.keys()
    assert {action.option_strings[-1] for action in verbs["fit"]._actions if action.option_strings} <= given


def test_everything_that_the_compiled_module_offers_is_known_to_the_tape():
    """A new native function is a public one, a session or forbidden: somebody has to say which."""
    assert {name for name in dir(_native) if not name.startswith("__")} <= NATIVE_NAMES


def test_options_that_leak_are_seen():
    """Without a public number of records, and with bounds from the data, the command warns; the replay shows why."""
    for public in (PUBLIC_FACTS[:2], ("--bounds-from-data", "--target", "rich", *PUBLIC_FACTS[2:])):
        scenario = command_scenario(
            "leaks", ("--method", "dpvi", "--approximation", "laplace"), tuple(files(every=False))[:2], public=public
        )
        result = replay_audit([scenario])
        same, *others = result.checks
        assert same.passed, repr(result)
        assert not any(check.passed for check in others), repr(result)


def test_the_system_is_as_it_was_afterwards():
    """Nothing stays replaced: neither the generator, nor the clocks, nor the sessions."""
    tempfile._get_candidate_names()
    before = os.urandom, random._urandom, time.time, time.monotonic, tempfile._name_sequence, dict(vars(_native))
    with pytest.raises(ZeroDivisionError), TapeRecorder().recording():
        raise ZeroDivisionError
    replay_audit([SCENARIOS[0]])
    after = os.urandom, random._urandom, time.time, time.monotonic, tempfile._name_sequence, dict(vars(_native))
    assert after == before


def test_a_move_of_exactly_the_bound_is_allowed_and_one_step_more_is_not():
    def summed(*values, sensitivity=Fraction(5), norm=2):
        return NoisedSum("sum", (), ("gaussian", 1.0, "all", 1.0), values, (), sensitivity, norm, None)

    assert summed(0, 0).move(summed(0, 0)) == 0.0
    assert summed(0, 0).move(summed(3, 4)) == 1.0
    assert summed(0, 0).move(summed(3, 5)) > 1.0
    assert summed(0, 0, norm=1).move(summed(3, -2, norm=1)) == 1.0
    assert summed(0, 0, norm=1).move(summed(3, -3, norm=1)) > 1.0
    # 2**60 steps: no rounding hides one of them.
    large = Fraction(2**60)
    assert summed(0, sensitivity=large).move(summed(2**60, sensitivity=large)) == 1.0
    assert summed(0, sensitivity=large).move(summed(2**60 + 1, sensitivity=large)) > 1.0
    assert summed(0, 0).move(summed(0)) == np.inf


def test_text_of_values_is_equal_for_equal_bits_only():
    values = [
        0.0, -0.0, 0, False, np.float32(0.0), np.zeros(1), np.zeros((1, 1)), np.zeros(1, np.float32), -np.zeros(1),
        np.nextafter(0.0, 1.0), b"\0", "0", None, (0,), (0.0,),
    ]  # fmt: skip
    assert len({show(value) for value in values}) == len(values)


def test_the_command_prints_a_table_and_its_verdict(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("dpinfer.lab.replays.commands.all_scenarios", lambda: SCENARIOS[:1])
    assert main(["audit", "--replay", "--checks", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "record-and-replay audit PASSED: 1 private calls" in told
    assert "a record far out more" in told
    assert '"passed": true' in (tmp_path / "replay.json").read_text()
    mutant = MUTANTS["count_of_the_records_released"]
    with mutant.installed():
        assert main(["audit", "--replay"]) == 1
    assert "outcome: " in capsys.readouterr().out
