"""What a run logs: public facts, to the logger "dpinfer", and the same for any records."""

import logging
import subprocess
import sys

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

N = 500


def run(X, y, **options):
    given = {"epsilon": 1.0, "delta": 1e-6, "n_records": N, "response_scale": 1.0}
    return dpi.fit(dpi.models.LinearRegression(1), X, y, **(given | options))


@pytest.fixture
def records(rng):
    return rng.normal(size=(N, 1)), rng.normal(size=N)


def test_a_fit_tells_plan_charge_end_and_posterior(records, caplog, tmp_path):
    account = dpi.PrivacyLedger.create(tmp_path / "b.ledger").add_dataset("people", budget=(3.0, 1e-5))
    with caplog.at_level(logging.INFO, logger="dpinfer"):
        fit = run(*records, ledger=account)
    lines = [entry.getMessage() for entry in caplog.records]
    assert {entry.name for entry in caplog.records} == {"dpinfer"}
    for told in ("method newton for n_records 500, epsilon 1, delta 1e-06", "charged to 'people'", "finished"):
        assert sum(told in line for line in lines) == 1, told
    assert f"{len(fit.posterior.names)} parameters" in lines[-1]
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="dpinfer"):
        run(*records)
    steps = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.DEBUG]
    assert steps == [f"step {k + 1} of {len(steps)}" for k in range(len(steps))]
    assert len(steps) > 3


def test_two_tables_with_one_key_log_the_same_but_for_their_releases(records, caplog, rng):
    """Everything before the posterior follows from public facts."""
    told = []
    for X, y in (records, (rng.uniform(5.0, 9.0, (N, 1)), np.full(N, 1e9)), (np.zeros((N, 1)), np.zeros(N))):
        caplog.clear()
        with caplog.at_level(logging.DEBUG, logger="dpinfer"):
            run(X, y, random_source=InsecureRNG(1))
        told.append([entry.getMessage() for entry in caplog.records if "posterior" not in entry.getMessage()])
    lengths = {tuple(line for line in lines if not line.startswith("step")) for lines in told}
    assert len(lengths) == 1


def test_nothing_is_printed_without_a_listener():
    code = (
        "import dpinfer as dpi, numpy as np, logging\n"
        "dpi.tables.counts({'a': ['x'] * 9}, 'a', epsilon=1.0, schema=dpi.tabular.Schema.from_dict("
        "{'columns': {'a': {'kind': 'categorical', 'categories': ['x', 'y']}}}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
