"""What is allowed and hardly meant is said, and only where saying so tells of nothing private."""

import warnings

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting.guarantee import caution_of_delta
from dpinfer.cli.main import main
from dpinfer.errors import RecordError, WeakGuaranteeWarning
from dpinfer.lab.baselines import BinomialFamily, release_regression_statistics, release_statistics
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


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [(item.category, str(item.message)) for item in caught]


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one", "zero_out"])
@pytest.mark.parametrize("mechanism", ["dpvi", "newton"])
def test_no_run_says_anything_of_the_number_of_its_rows(adjacency, mechanism):
    """A table drops incomplete records, so that the number of rows is private under each relation."""
    terms = {"target_epsilon": 1.0, "target_delta": 1e-5, "adjacency": adjacency}
    model = dpi.models.LogisticRegression(1)

    def run(n_rows):
        X, y = records(n_rows)
        if mechanism == "newton":
            plan = dpi.plan_newton(model, n_records=600, **terms)
            return dpi.run_newton(model, X, y, plan=plan, n_records=600)
        plan = dpi.plan_privacy(sample_rate=1.0, n_steps=2, **terms)
        return dpi.run_dpvi(model, X, y, plan=plan, n_records=600, max_grad_norm=1.0)

    assert [warned(lambda n=n: run(n)) for n in (59, 60, 61)] == [[]] * 3


@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
def test_another_number_of_rows_is_not_told_before_a_charge(adjacency, tmp_path):
    """That a table has kept another number of rows is refused like any other record: once the run is charged."""
    X, y = np.ones((60, 1)), np.ones(60)
    bounds = {"feature_bound": 1.0, "response_bound": 1.0}
    calls = [
        lambda **o: release_statistics(BinomialFamily(), y, **o),
        lambda **o: release_regression_statistics(X, y, **bounds, **o),
    ]
    if adjacency == "replace_one":
        calls.append(lambda **o: dpi.run_statistic(dpi.models.BetaBernoulli(), y, **o))
    for place, call in enumerate(calls):
        ledger = dpi.PrivacyLedger.create(tmp_path / f"{place}.ledger")
        account = ledger.add_dataset("t", budget=(2.0, 1e-5), adjacency=adjacency)
        with pytest.raises(RecordError, match="n_records rows"):
            call(epsilon=1.0, n_records=61, adjacency=adjacency, ledger=account)
        assert [item.status for item in account.runs()] == ["started"]


def test_no_message_has_the_length_of_the_longest_text():
    """NumPy's type of an array of texts is as wide as the longest one."""
    texts = np.array([["short"], ["the longest one"]])
    with pytest.raises(TypeError, match=r"got type str_$"):
        dpi.fit(dpi.models.LogisticRegression(1), texts, np.ones(2), epsilon=1.0, delta=1e-5, n_records=2)


def test_the_command_line_says_it(tmp_path, capsys):
    X, y = records()
    lines = [f"{value:.3f},{'yes' if label else 'no'}\n" for value, label in zip(X[:, 0], y, strict=True)]
    (tmp_path / "t.csv").write_text("x,rich\n" + "".join(lines))
    (tmp_path / "s.toml").write_text(
        '[columns.x]\nkind = "continuous"\nbounds = [-3, 3]\n'
        '[columns.rich]\nkind = "target"\npositive = "yes"\nnegative = "no"\n'
    )
    argv = ["fit", str(tmp_path / "t.csv"), "--schema", str(tmp_path / "s.toml"), "--n-records", "60", "--steps", "40"]
    argv += [
        "--epsilon",
        "1",
        "--delta",
        "0.02",
        "--out",
        str(tmp_path / "out"),
        "--method",
        "dpvi",
        "--approximation",
        "averaged",
    ]
    assert main(argv) == 0
    assert "is at least 1 / n_records" in capsys.readouterr().err
    assert "1 / n_records" not in dpi.load_release(tmp_path / "out" / "fit.release").guarantee
