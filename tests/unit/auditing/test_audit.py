"""The audit passes the library, and its checks reject wrong claims and wrong sums."""

import matplotlib as mpl
import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import Adjacency, PrivacyPlan
from dpinfer.auditing import audit, audit_one_run
from dpinfer.auditing import checks as check_module
from dpinfer.auditing.paths import audit_paths, draw_paths, sampling_paths
from dpinfer.cli.main import main
from dpinfer.testing import InsecureRNG

mpl.use("Agg")


@pytest.fixture(scope="module")
def result():
    return audit(1000, random_source=InsecureRNG(1))


def test_the_library_passes(result):
    assert result.passed, repr(result)
    assert "PASSED" in repr(result)
    assert {check.kind for check in result.checks} == {"neighbours", "sampling", "noise", "distinguishing"}
    # A bound that could not exceed the claim if it were wrong would be no test: it comes near.
    assert 0.6 < result.tightness < 1.0
    assert result.to_dict()["passed"] is True


def test_every_canary_and_base_is_there(result):
    names = [check.name for check in result.checks if check.kind == "distinguishing"]
    for path in audit_paths():
        assert path.max_norm != 1.0
        for sign in "+-":
            assert f"{path.name}: opposed, canary {sign}" in names
    assert "logistic, quadrature: ordinary, canary - within the norm" in names
    assert "logistic, quadrature: one record replaced" in names


def test_more_than_is_claimed_is_found_out():
    """The power twin of distinguishing: noise of 1 under a claim for noise of 1.25."""
    path = audit_paths()[0]
    near = path.opposed(path.plus)
    both = np.vstack((near, path.plus))
    wrong = check_module.check_distinguishing(path, "", near, both, 0.8, 1.0, 20_000, InsecureRNG(2), alpha=1e-5)
    assert not wrong.passed
    assert wrong.value < 1.0


def test_replacing_a_record_moves_the_sum_by_twice_the_norm(monkeypatch):
    """A claim for replacement calibrated to C instead of 2 C is found out."""
    assert Adjacency.REPLACE_ONE.sensitivity_factor == 2.0
    monkeypatch.setattr(Adjacency, "sensitivity_factor", property(lambda self: 1.0))
    wrong = audit(1000, random_source=InsecureRNG(4))
    assert [check.name for check in wrong.failures] == ["logistic, quadrature: one record replaced"]
    assert "FAILED" in repr(wrong)


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_noise_of_a_wrong_size_is_found_out(factor):
    path = audit_paths()[2]

    def wrong_open(records, key, rate, threads):
        release = path.open(records, key, rate, threads)
        return lambda step, noise: release(step, noise * factor)

    changed = type(path)(path.name, path.max_norm, wrong_open, path.base, path.plus, path.minus)
    assert check_module.check_noise(path, "", path.base, 1.0, 500, InsecureRNG(5), alpha=1e-5).passed
    assert not check_module.check_noise(changed, "", path.base, 1.0, 500, InsecureRNG(5), alpha=1e-5).passed


def test_a_wrong_rate_is_found_out():
    path, rows = sampling_paths()[0]

    def wrong_open(records, key, rate, threads):
        return path.open(records, key, min(1.0, rate * 1.06), threads)

    changed = type(path)(path.name, path.max_norm, wrong_open, path.base, path.plus, path.minus)
    assert check_module.check_sampling(path, rows, 0.1, 3000, InsecureRNG(6), alpha=1e-5).passed
    assert not check_module.check_sampling(changed, rows, 0.1, 3000, InsecureRNG(6), alpha=1e-5).passed


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("wrong_step", [lambda step: step // 2, lambda step: step % 30])
def test_draws_of_a_wrong_law_are_found_out(index, wrong_step):
    """Draws reused at two steps, and draws that repeat after a few passes, where a step reads one record."""
    path, rows, permuted = draw_paths()[index]

    def wrong_open(records, key, rate, threads):
        release = path.open(records, key, rate, threads)
        return lambda step, noise: release(wrong_step(step), noise)

    changed = type(path)(path.name, path.max_norm, wrong_open, path.base, path.plus, path.minus)
    assert check_module.check_draws(path, rows, 1200, InsecureRNG(6), alpha=1e-5, permuted=permuted).passed
    assert not check_module.check_draws(changed, rows, 1200, InsecureRNG(6), alpha=1e-5, permuted=permuted).passed


def test_one_run_audit():
    """A run of epsilon 8 stands at 8, and would not under a claim of 1."""
    plan = dpi.plan_privacy(target_epsilon=8.0, target_delta=1e-5, sample_rate=0.5, n_steps=20)
    found = audit_one_run(plan, n_canaries=600, random_source=InsecureRNG(7))
    assert found.passed
    assert 1.0 < found.epsilon_lower < 8.0
    assert "PASSED" in repr(found)
    wrong = PrivacyPlan(
        noise_multiplier=plan.noise_multiplier, epsilon=1.0, delta=1e-5, sample_rate=0.5, n_steps=20,
        adjacency=plan.adjacency, accountant="pld",
    )  # fmt: skip
    assert not audit_one_run(wrong, n_canaries=600, random_source=InsecureRNG(7)).passed


def test_picture(result):
    ax = dpi.plots.audit(result)
    assert len(ax.get_yticks()) == sum(check.kind == "distinguishing" for check in result.checks)
    with pytest.raises(TypeError, match="result"):
        dpi.plots.audit("passed")


def test_command(tmp_path, capsys):
    assert main(["audit", "--runs", "1000", "--out", str(tmp_path / "out"), "--checks"]) == 0
    shown = capsys.readouterr().out
    assert "privacy audit PASSED" in shown
    assert "one record replaced" in shown
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"audit.json", "audit.png"}


@pytest.mark.parametrize(
    "arguments",
    [{"n_runs": 10}, {"noise_multiplier": 0.0}, {"false_positive_rate": 0.9}, {"random_source": 3}],
)
def test_bad_arguments(arguments):
    with pytest.raises((TypeError, ValueError), match=next(iter(arguments))):
        audit(**arguments)


def test_public_names():
    assert dpi.diagnostics.audit is dpi.audit is audit
    assert dpi.diagnostics.audit_one_run is audit_one_run
