"""What users were promised about the command: verbs, options, exit codes, entry points."""

import argparse
import inspect
import tomllib
from pathlib import Path

import pytest

import dpinfer as dpi
from dpinfer.cli import arguments
from dpinfer.cli.main import build_parser, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "line",
    [
        "demo",
        "demo --out DIR",
        "fit FILE --schema SCHEMA.toml --target COL --epsilon 1 --delta 1e-5 --out DIR",
        "fit FILE --bounds-from-data --target COL --epsilon 1 --delta 1e-5 --out DIR --n-records 100 --sample-rate 0.2",
        "fit FILE --schema S --epsilon 1 --delta 1e-5 --out D --steps 10 --max-grad-norm 2 --method laplace --test F",
        "fit FILE --schema S --epsilon 1 --delta 1e-5 --out D --method dpvi --approximation laplace",
        "schema FILE",
        "schema FILE --out SCHEMA.toml --blank --delimiter ;",
        "check FILE --schema SCHEMA.toml",
        "check FILE --schema SCHEMA.toml --json --show-values",
        "posterior RELEASE",
        "posterior RELEASE --approximation exact --hessian tied --burn-in 0.3 --out DIR",
        "posterior RELEASE --burn-in 100",
        "coverage beta-bernoulli",
        "coverage linear-regression --runs 50 --method laplace --epsilon 0.3 --recipe paper --seed 1",
        "coverage gamma-exponential --out DIR --resume DIR --threads 2",
        "ledger FILE",
        "ledger FILE --add NAME --epsilon 3 --delta 1e-6 --adjacency zero_out",
        "fit FILE --schema S --epsilon 1 --delta 1e-5 --out D --ledger L --dataset NAME --checkpoint P",
        "account --noise-multiplier 20 --sample-rate 0.1 --steps 10000 --delta 1e-5 --accountant rdp",
    ],
)
def test_documented_lines_parse(line):
    assert callable(build_parser().parse_args(line.split()).run)


def test_exit_codes():
    codes = (
        arguments.EXIT_DONE,
        arguments.EXIT_FAILED,
        arguments.EXIT_USAGE,
        arguments.EXIT_BUDGET,
        arguments.EXIT_INTERRUPTED,
    )
    assert codes == (0, 1, 2, 3, 130)


def test_entry_point_is_the_one_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["dpinfer"] == f"{main.__module__}:{main.__name__}"


def test_every_option_has_help_or_a_clear_name():
    actions = [action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    verbs = [
        "demo",
        "schema",
        "check",
        "fit",
        "posterior",
        "plan",
        "account",
        "coverage",
        "audit",
        "ledger",
        "site",
        "silos",
    ]
    assert list(actions[0].choices) == verbs
    for parser in actions[0].choices.values():
        assert parser.description
        assert len(parser.format_help()) > 100


def test_no_seed_on_a_private_fit():
    for verb in ("fit", "demo"):
        with pytest.raises(SystemExit):
            build_parser().parse_args([verb, "--seed", "1"])
    names = set(inspect.signature(dpi.BayesianLogisticRegression).parameters)
    assert not names & {"seed", "random_state"}


def test_estimator_arguments_are_keywords_with_the_promised_defaults():
    parameters = inspect.signature(dpi.BayesianLogisticRegression).parameters
    assert all(item.kind is item.KEYWORD_ONLY for item in parameters.values())
    promised = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "sample_rate": 0.1,
        "n_steps": 10_000,
        "max_grad_norm": "auto",
        "data_bounds": None,
        "method": "auto",
        "random_source": None,
    }
    assert {name: parameters[name].default for name in promised} == promised
