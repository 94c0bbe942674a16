"""The recipes of docs/architecture.md, followed literally: their blocks are installed as a package, and run."""

import importlib
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.auditing import replay_audit
from dpinfer.lab.replays.calls import fit_scenarios
from dpinfer.mechanism import open_source, run_statistic
from dpinfer.models import BetaBernoulli, LogisticRegression

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
N, W = 6000, np.array([0.6, -0.4])
BUDGET = {"epsilon": 4.0, "delta": 1e-6}


def blocks(language):
    """Return the page's code of a language, in order."""
    text = PAGE.read_text(encoding="utf-8").partition("### Recipes")[2]
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """Install the package and return its module."""
    (tmp_path / "recipes.py").write_text("\n\n".join(blocks("python")), encoding="utf-8")
    (metadata := tmp_path / "recipes-1.0.dist-info").mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: recipes\nVersion: 1.0\n")
    groups = tomllib.loads(blocks("toml")[0])["project"]["entry-points"]
    lines = [f"[{group}]\n" + "\n".join(f"{a} = {b}" for a, b in own.items()) for group, own in groups.items()]
    (metadata / "entry_points.txt").write_text("\n".join([*lines, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(importlib.sys.modules, "recipes", raising=False)
    return importlib.import_module("recipes")


def test_a_link_is_planned_fitted_and_inferred(recipes):
    rng = np.random.default_rng(3)
    model, X = recipes.cloglog(2), rng.normal(size=(N, 2))
    y = (rng.random(N) < -np.expm1(-np.exp(X @ W))).astype(float)
    plan = dpi.plan_fit(model, **BUDGET, n_records=N)
    assert plan.method == "newton"
    assert 1.0 < plan.predicted_width < 3.0
    posterior = dpi.fit(model, X, y, **BUDGET, n_records=N).posterior
    # Five standard deviations: a correct posterior is outside once in 10^6 runs.
    assert np.all(np.abs(posterior.mean - W) < 5.0 * posterior.stddev)
    assert np.all(posterior.stddev < 0.1)
    assert posterior.diagnostics.to_dict()


def test_a_link_is_audited(recipes):
    result = replay_audit(tuple(fit_scenarios(["newton"], recipes.cloglog(2))))
    assert result.passed, str(result)


def test_a_law_of_noise(recipes):
    release = run_statistic(
        BetaBernoulli(), np.repeat([1.0, 0.0], [140, 60]), epsilon=1.0, n_records=200, noise="steps"
    )
    assert release.epsilon <= 1.0 + 1e-9
    assert dpi.noise_aware_posterior(release).mean[0] == pytest.approx(0.7, abs=0.15)


def test_a_source_and_a_method(recipes):
    fit = dpi.fit(
        LogisticRegression(2), open_source("wards", 8), **BUDGET, n_records=4000, method="thrift", target="model"
    )
    assert fit.release.settings["method_of"] == {"name": "thrift", "package": "recipes 1.0"}
    assert fit.release.epsilon == pytest.approx(2.0, rel=0.02)
    assert fit.posterior.mean[0] == pytest.approx(2.0, abs=0.6)
