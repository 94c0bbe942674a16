"""The audit passes the library, and its checks reject wrong claims and wrong sums."""

import dataclasses
import math

import matplotlib as mpl
import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import Adjacency
from dpinfer.auditing import audit, audit_one_run, one_run
from dpinfer.auditing import checks as check_module
from dpinfer.auditing.paths import audit_paths, draw_paths, sampling_paths
from dpinfer.auditing.tuning import TUNING
from dpinfer.cli.main import main
from dpinfer.testing import InsecureRNG

mpl.use("Agg")

ONE_RUN = ("dpvi", "dp_sep", "dp_sep_network")


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


@pytest.fixture(scope="module")
def eight():
    return dpi.plan_privacy(target_epsilon=8.0, target_delta=1e-5, sample_rate=0.5, n_steps=20)


@pytest.mark.parametrize("mechanism", ONE_RUN)
def test_one_run_audit(mechanism, eight):
    """A run of epsilon 8 stands at 8, and would not under a claim of 1."""
    found = audit_one_run(eight, mechanism=mechanism, n_canaries=600, random_source=InsecureRNG(7))
    assert found.passed
    assert 1.0 < found.epsilon_lower < 8.0
    assert "PASSED" in repr(found)
    assert not dataclasses.replace(found, epsilon=1.0).passed


@pytest.mark.parametrize("mechanism", ONE_RUN)
def test_canaries_of_one_run_reach_the_release(mechanism, eight):
    """Next to no noise: each included canary adds C to its own score at every step that samples it, the others none."""
    included = np.arange(40) % 3 > 0
    plan = dataclasses.replace(eight, noise_multiplier=1e-9, epsilon=math.inf, target_epsilon=None)
    scores = one_run._SCORES[mechanism](plan, included, InsecureRNG(3))
    inclusions = scores[included] / TUNING.norm
    # Poisson sampling, 26 records and 20 steps at a half; of a network's vector a quarter of the norm is set apart.
    full = np.sqrt(1.0 - 0.25**2) if mechanism == "dp_sep_network" else 1.0
    np.testing.assert_allclose(inclusions / full, np.round(inclusions / full), atol=1e-3)
    assert abs(inclusions.mean() / full - 10.0) < 4.9 * np.sqrt(20 * 0.25 / 26)
    assert np.abs(scores[~included]).max() < 1e-6


def test_one_run_audits_refuse(eight):
    one_a_step = dpi.plan_privacy(target_epsilon=8.0, target_delta=1e-5, n_steps=20, sampling="uniform", n_records=60)
    for plan, options, error, name in (
        (3, {}, TypeError, "plan"),
        (one_a_step, {}, ValueError, "plan"),
        (eight, {"mechanism": "sep"}, ValueError, "mechanism"),
        (eight, {"mechanism": "dp_sep_network", "n_canaries": 5000}, ValueError, "n_canaries"),
        (eight, {"random_source": 1}, TypeError, "random_source"),
    ):
        with pytest.raises(error, match=name):
            audit_one_run(plan, **options)


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
