"""What is allowed and hardly meant is said, and only where saying so tells of nothing private."""

import warnings

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import Adjacency
from dpinfer.accounting.cautions import caution_of_count, caution_of_delta
from dpinfer.cli.main import main
from dpinfer.errors import WeakGuaranteeWarning
from dpinfer.mechanism import run_network_dp_sep

LARGE = {"target_epsilon": 1.0, "target_delta": 0.02, "sample_rate": 0.5, "n_steps": 3}


def records(n=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 1))
    return X, (X[:, 0] > 0.0).astype(float)


@pytest.mark.parametrize(("delta", "n_records", "warns"), [(0.01, 100, True), (0.02, 100, True), (0.0099, 100, False)])
def test_delta_of_one_record(delta, n_records, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        caution_of_delta(delta, n_records)
    assert [item.category for item in caught] == [WeakGuaranteeWarning] * warns


def test_every_run_and_plan_that_knows_the_number_of_records_says_it():
    plan = dpi.plan_privacy(**LARGE)
    X, y = records()
    network = dpi.models.BayesianNeuralNetwork(1, 2)
    calls = [
        lambda: dpi.run_dpvi(dpi.models.LogisticRegression(1), X, y, plan=plan, n_records=60, max_grad_norm=1.0),
        lambda: dpi.run_dp_sep(dpi.models.ProbitRegression(1), X, y, plan=plan, n_records=60),
        lambda: run_network_dp_sep(network, X, y, plan=plan, n_records=60),
        lambda: dpi.plan_privacy(target_epsilon=1.0, target_delta=0.02, n_steps=3, sampling="uniform", n_records=60),
        lambda: dpi.PrivacyPlan.from_noise_multiplier(5.0, None, 3, 0.02, sampling="permutation", n_records=60),
        lambda: dpi.plan_inference(
            dpi.models.BetaBernoulli(), n_records=60, target_epsilon=1.0, target_delta=0.02, n_steps=5, sample_rate=1.0
        ),
    ]
    for call in calls:
        with pytest.warns(WeakGuaranteeWarning, match="delta = 0.02 is at least 1 / n_records = 0.0167"):
            call()


def test_a_count_far_off_is_said_where_it_is_public():
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=1.0, n_steps=2, adjacency="replace_one")
    X, y = records()
    with pytest.warns(WeakGuaranteeWarning, match="n_records = 600 is ten times off the number of rows, 60"):
        dpi.run_dpvi(dpi.models.LogisticRegression(1), X, y, plan=plan, n_records=600, max_grad_norm=1.0)
    with pytest.warns(WeakGuaranteeWarning, match="n_records = 6 is"):
        caution_of_count(Adjacency.ZERO_OUT, 6, 60)
    caution_of_count(Adjacency.ZERO_OUT, 7, 60)


def test_it_is_not_said_where_it_would_tell_the_number_of_records():
    """Under add/remove a message that comes at 600 rows and not at 599 would be a release of its own."""
    caution_of_count(Adjacency.ADD_REMOVE, 1, 10**6)


def test_the_command_line_says_it(tmp_path, capsys):
    X, y = records()
    lines = [f"{value:.3f},{'yes' if label else 'no'}\n" for value, label in zip(X[:, 0], y, strict=True)]
    (tmp_path / "t.csv").write_text("x,rich\n" + "".join(lines))
    (tmp_path / "s.toml").write_text(
        '[columns.x]\nkind = "continuous"\nbounds = [-3, 3]\n'
        '[columns.rich]\nkind = "target"\npositive = "yes"\nnegative = "no"\n'
    )
    argv = ["fit", str(tmp_path / "t.csv"), "--schema", str(tmp_path / "s.toml"), "--n-records", "60", "--steps", "40"]
    argv += ["--epsilon", "1", "--delta", "0.02", "--out", str(tmp_path / "out"), "--method", "averaged"]
    assert main(argv) == 0
    assert "is at least 1 / n_records" in capsys.readouterr().err
    assert "1 / n_records" not in dpi.load_release(tmp_path / "out" / "fit.release").guarantee
