"""The recipes of docs/architecture.md, followed literally: their blocks are installed as a package, and run."""

import importlib
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import Adjacency
from dpinfer.auditing.checks import check_neighbours, check_noise
from dpinfer.auditing.paths import AuditPath
from dpinfer.lab.replays import replay_audit
from dpinfer.lab.replays.calls import fit_scenarios
from dpinfer.lab.replays.records import N_RECORDS, neighbours, regression_records
from dpinfer.lab.replays.scenario import Scenario
from dpinfer.mechanism import open_source, run_statistic
from dpinfer.mechanism._native import PartialSum
from dpinfer.mechanism.newton.contributions import FeatureMeans
from dpinfer.mechanism.newton.pass_records import open_records
from dpinfer.models import BetaBernoulli, LogisticRegression
from dpinfer.testing import InsecureRNG

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


@pytest.fixture(scope="module")
def hidden_release():
    """A release that hides the difference of two features."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 3))
    X[:, 2] = X[:, 0] + 0.1 * X[:, 2]
    y = (rng.random(300) < 1.0 / (1.0 + np.exp(-X[:, 0]))).astype(float)
    model = LogisticRegression(3)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=300)
    return dpi.run_newton(model, X, y, plan=plan, n_records=300, random_source=InsecureRNG(3))


def distance(one, other):
    """Return the largest distance of two posteriors' 5% and 95% quantiles, in standard deviations."""
    return np.max(np.abs(one.quantile([0.05, 0.95]) - other.quantile([0.05, 0.95])) / one.stddev)


def test_a_sampler_draws_the_posterior_of_a_private_newton_run(recipes, hidden_release):
    class Flattened(recipes.Hamiltonian):
        def init(self, position, logdensity):
            return super().init(position, self.flat(logdensity))

        def step(self, state, logdensity, rng):
            return super().step(state, self.flat(logdensity), rng)

        def flat(self, logdensity):
            return lambda position: tuple(0.1 * part for part in logdensity(position))

    own = dpi.noise_aware_posterior(hidden_release)
    assert own.diagnostics.n_unresolved > 0
    drawn = [
        dpi.noise_aware_posterior(hidden_release, sampler=sampler, n_warmup=30)
        for sampler in (recipes.Hamiltonian(), Flattened())
    ]
    # A quantile's Monte Carlo error is below 5% of a standard deviation in each: five of the two errors together.
    assert distance(own, drawn[0]) < 5.0 * 0.05 * 2.0**0.5
    # Errors three times as large are seen.
    assert distance(own, drawn[1]) > 5.0 * 0.05 * 2.0**0.5
    with pytest.raises(TypeError, match="sampler must have init and step"):
        dpi.noise_aware_posterior(hidden_release, sampler=7)


def parts_of(records):
    """Return records (n, 3) as (X, y) of two parts."""
    return [(part[:, :2], part[:, 2]) for part in np.array_split(np.asarray(records, dtype=np.float64), 2)]


def test_a_kind_of_records_is_fitted(recipes):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, 2))
    y = (rng.random(N) < 1.0 / (1.0 + np.exp(-X @ W))).astype(float)
    wings = recipes.Wings(*parts_of(np.column_stack((X, y))))

    def fitted(*records, **options):
        return dpi.fit(LogisticRegression(2), *records, **BUDGET, random_source=InsecureRNG(6), **options).release

    # The kind of records changes no bit.
    np.testing.assert_array_equal(fitted(wings, n_records=N).scores, fitted(X, y, n_records=N).scores)
    assert abs(fitted(wings, unknown=["n_records"]).n_records - N) < 100
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=3)
    with pytest.raises(TypeError, match="X must be in one place for this run, not in Wings"):
        dpi.run_dpvi(LogisticRegression(2), wings, plan=plan, n_records=N, max_grad_norm=1.0)


def test_a_kind_of_records_is_replayed(recipes):
    model = LogisticRegression(2)
    own, other, far, refused = regression_records(model)
    plan = dpi.plan_newton(model, target_epsilon=5.0, target_delta=1e-5, n_records=N_RECORDS)

    def run(records, place):
        halves = zip(*(np.array_split(array, 2) for array in records), strict=True)
        wings = recipes.Wings(*(tuple(map(place.watched, half)) for half in halves))
        return dpi.run_newton(
            model, wings, plan=plan, n_records=N_RECORDS, ledger=place.account, progress=place.progress
        )

    near = tuple(neighbours(own, other, far, Adjacency.ADD_REMOVE, refused))
    scenario = Scenario("wings", "dpinfer.mechanism.run_newton", run, own, near, Adjacency.ADD_REMOVE, ledger=True)
    result = replay_audit((scenario,))
    assert result.passed, str(result)


def test_a_kind_of_records_is_audited(recipes):
    query = FeatureMeans(np.eye(2), 0.7)

    def opened(records, key, rate, threads):
        wings = recipes.Wings(*parts_of(records))
        kept = open_records(LogisticRegression(2), wings, None, Adjacency.ADD_REMOVE, n_threads=threads)

        def release(step, noise_multiplier):
            total = PartialSum(length=query.length, max_norm=query.max_norm)
            kept.add(total, query)
            return total.noisy_sum(key, step, noise_multiplier)

        return release

    base = np.column_stack((np.random.default_rng(7).normal(size=(20, 2)), np.arange(20) % 2))
    canaries = np.array([[50.0, 0.0, 1.0], [-50.0, 0.0, 1.0]])
    path = AuditPath("wings", query.max_norm, opened, base, *canaries)
    for canary in canaries:
        check = check_neighbours(path, path.name, base, canary, InsecureRNG(8), alpha=1e-6)
        assert check.passed, str(check)
    assert check_noise(path, path.name, base, 1.0, 400, InsecureRNG(9), alpha=1e-6).passed


def test_a_private_query(recipes, tmp_path):
    people = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("people", budget=(2.0, 1e-5))
    values, points = np.random.default_rng(2).uniform(size=2000), np.array([0.25, 0.5, 0.75])
    release = recipes.numbers_below(values, points, epsilon=1.0, delta=1e-6, ledger=people)
    # Five standard deviations of the noise: outside once in 10^6 runs.
    away = np.abs(release.noisy_sums - np.sum(values[:, None] <= points, axis=0))
    assert np.all(away < 5.0 * release.noise_stddev)
    assert [run.mechanism for run in people.runs()] == ["private_sum"]


def test_recipes_are_one_file(recipes, tmp_path):
    assert [path.name for path in tmp_path.rglob("*.py")] == ["recipes.py"]


def test_a_source_and_a_method(recipes):
    fit = dpi.fit(
        LogisticRegression(2), open_source("wards", 8), **BUDGET, n_records=4000, method="thrift", target="model"
    )
    assert fit.release.settings["method_of"] == {"name": "thrift", "package": "recipes 1.0"}
    assert fit.release.epsilon == pytest.approx(2.0, rel=0.02)
    assert fit.posterior.mean[0] == pytest.approx(2.0, abs=0.6)
