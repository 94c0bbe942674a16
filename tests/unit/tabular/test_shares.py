"""Released shares: exact counts, one record's influence, the noise's law, one budget with the run, the ledger."""

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
from scipy import integrate, stats

import dpinfer as dpi
from dpinfer.accounting import Composed, GaussianEvent
from dpinfer.errors import BudgetExceededError, InsecureReleaseError, SchemaError
from dpinfer.release import Part
from dpinfer.tabular import Schema, Table, UnreadTable, plan_with_shares, release_shares
from dpinfer.tabular.shares import _counted, _labels, _shares
from dpinfer.testing import InsecureRNG

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"kind": "continuous", "bounds": [0, 100]},
            "job": {"kind": "categorical", "categories": ["a", "b", "c"]},
            "sex": {"kind": "binary", "positive": "f", "negative": "m"},
            "home": {"kind": "categorical", "categories": ["own", "rent", "none"], "reference": "rent"},
            "rich": {"kind": "target", "positive": "y", "negative": "n"},
        }
    }
)
N_COUNTED = 3
# So little noise that its rounding is zero.
SILENT = {"noise_multiplier": 0.01, "delta": 1e-5}


def encoded(job, sex, home):
    features = np.column_stack([np.zeros(len(job)), np.eye(3)[job], sex == 0, np.eye(3)[home][:, [0, 2]]])
    return Table(np.ascontiguousarray(features, dtype=float), None, SCHEMA)


def counts_of(X):
    """Return all exact counts of rows of features, in one vector."""
    columns = _counted(SCHEMA)
    return np.concatenate([np.bincount(label, minlength=size) for label, size in _labels(X, columns)])


def test_counts_are_those_of_the_categories(rng):
    job, sex, home = rng.integers(3, size=500), rng.integers(2, size=500), rng.integers(3, size=500)
    release = release_shares(encoded(job, sex, home), **SILENT)
    for name, labels, size in (("job", job, 3), ("sex", sex, 2), ("home", home, 3)):
        np.testing.assert_array_equal(release.noisy_counts[name], np.bincount(labels, minlength=size))
    known = release.schema
    assert known.shares_known
    np.testing.assert_allclose(known.columns[1].shares, np.bincount(job) / 500, rtol=1e-12)
    assert math.isfinite(release.epsilon)
    assert "differentially private" in repr(release)
    assert "holds for all counts" in release.guarantee


def test_one_record_moves_the_counts_by_the_root_of_the_columns_whatever_is_in_it(rng):
    base = rng.normal(size=(20, 7))
    before = counts_of(base)
    moved, naive = [], []
    for _ in range(200):
        row = rng.choice([0.0, 1.0, 0.6, 7.0, np.nan, np.inf, -np.inf], size=(1, 7))
        moved.append(np.linalg.norm(counts_of(np.vstack([base, row])) - before))
        naive.append(np.linalg.norm(row[0, 1:] > 0.5))
    assert max(moved) == math.sqrt(N_COUNTED)
    # The power twin: adding up indicators lets a row that is not one-hot in too often.
    assert max(naive) > math.sqrt(N_COUNTED)


def test_noise_has_the_declared_deviation():
    """Squared noise against chi-square at false-positive rate 1e-6; the twin scales it by one column's sensitivity."""
    empty = Table(np.zeros((0, 7)), None, SCHEMA)
    source, noise = InsecureRNG(7), []
    for _ in range(100):
        release = release_shares(empty, noise_multiplier=50.0, delta=1e-5, random_source=source)
        noise.append(np.concatenate([release.noisy_counts[name] for name in ("job", "sex", "home")]))
    noise = np.array(noise, dtype=float)
    assert release.count_stddev == pytest.approx(50.0 * math.sqrt(N_COUNTED), rel=1e-12)
    low, high = stats.chi2.ppf([0.5e-6, 1.0 - 0.5e-6], noise.size)
    assert low < np.sum(np.square(noise / release.count_stddev)) < high
    assert np.sum(np.square(noise / 50.0)) > high
    assert len(np.unique(noise[:, 0])) > 50


def test_shares_are_means_given_the_noisy_counts():
    counts, stddev = np.array([-120.0, -10.0, 3.0, 40.0, 500.0]), 30.0
    means = []
    for count in counts:
        top = max(count, 0.0) + 12.0 * stddev
        weight = [
            integrate.quad(lambda n, p=power, c=count: n**p * stats.norm.pdf(n, c, stddev), 0.0, top, epsabs=0.0)[0]
            for power in (0, 1)
        ]
        means.append(weight[1] / weight[0])
    np.testing.assert_allclose(_shares(counts, stddev), np.array(means) / sum(means), rtol=1e-6)
    assert min(_shares(np.array([-1e9, 5.0]), 1.0)) > 0.0


def test_the_two_meet_one_target_together():
    target = {"target_epsilon": 0.7, "target_delta": 1e-5, "sample_rate": 0.2, "n_steps": 60}
    plan = plan_with_shares(**target, budget_share=0.1)
    counts = GaussianEvent(plan.noise_multiplier)
    bound = dpi.account(Composed((counts, plan.run.event)), delta=1e-5)
    assert bound.epsilon == plan.epsilon == plan.guarantee.epsilon
    assert plan.event == Composed((counts, plan.run.event))
    with pytest.raises(ValueError, match="epsilon must follow"):
        dataclasses.replace(plan, epsilon=plan.run.epsilon)
    assert 0.999 * 0.7 < plan.epsilon <= 0.7
    assert plan.run.epsilon < plan.epsilon
    alone = dpi.plan_privacy(**target)
    assert plan.run.noise_multiplier / alone.noise_multiplier == pytest.approx(0.9**-0.5, rel=0.05)
    # The power twin: a run that was planned alone leaves nothing for the counts.
    assert dpi.account(Composed((counts, alone.event)), delta=1e-5).epsilon > 0.7
    with pytest.raises(ValueError, match="budget_share"):
        plan_with_shares(**target, budget_share=0.0)
    with pytest.raises(ValueError, match="sample_rate"):
        plan_with_shares(**(target | {"sample_rate": 0.0}))


def test_a_ledger_is_charged_before_the_records_are_counted(tmp_path, monkeypatch):
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(0.7, 1e-5))
    table = encoded(np.zeros(30, int), np.zeros(30, int), np.zeros(30, int))
    plan = plan_with_shares(target_epsilon=0.7, target_delta=1e-5, sample_rate=0.2, n_steps=60)
    options = {"noise_multiplier": plan.noise_multiplier, "delta": 1e-5, "ledger": account}
    with pytest.raises(InsecureReleaseError):
        release_shares(table, random_source=InsecureRNG(1), **options)
    seen = []

    def watched(*arguments):
        seen.append([run.status for run in account.runs()])
        return _labels(*arguments)

    monkeypatch.setattr("dpinfer.tabular.shares._labels", watched)
    release = release_shares(table, **options)
    assert seen == [["started"]]
    (run,) = account.runs()
    assert (run.status, run.mechanism, run.event) == ("finished", "release_shares", release.event)
    assert release.settings["ledger"]["run"] == run.run
    assert account.preview(plan.run.event).epsilon == pytest.approx(plan.epsilon, rel=1e-6)
    with pytest.raises(BudgetExceededError):
        release_shares(table, **(options | {"noise_multiplier": 1.0}))


def test_a_seeded_release_is_marked(rng):
    table = encoded(rng.integers(3, size=9), rng.integers(2, size=9), rng.integers(3, size=9))
    first, again = (
        release_shares(table, noise_multiplier=3.0, delta=1e-5, random_source=InsecureRNG(4)) for _ in range(2)
    )
    np.testing.assert_array_equal(first.noisy_counts["job"], again.noisy_counts["job"])
    assert "NOT PRIVATE" in first.guarantee
    copied = pickle.loads(pickle.dumps(first))
    np.testing.assert_array_equal(copied.noisy_counts["home"], first.noisy_counts["home"])
    assert (copied.guarantee, copied.schema, copied.event) == (first.guarantee, first.schema, first.event)
    with pytest.raises(InsecureReleaseError):
        _ = first.epsilon


def test_the_schema_carries_what_it_cost_and_what_it_leaks(rng, tmp_path):
    labels = [rng.integers(size, size=40) for size in (3, 2, 3)]
    first = release_shares(encoded(*labels), noise_multiplier=9.0, delta=1e-5)
    assert first.schema.parts == first.parts
    (tmp_path / "s.toml").write_text(first.schema.to_toml(), encoding="utf-8")
    known = Schema.load(tmp_path / "s.toml")
    assert known == first.schema
    # Counted once more, both counts are in the schema, and both are paid for.
    table = Table(encoded(*labels).X, None, known)
    second = release_shares(table, noise_multiplier=9.0, delta=1e-5)
    assert [part.event for part in second.schema.parts] == [GaussianEvent(9.0)] * 2
    joint = dpi.account(Composed((GaussianEvent(9.0), GaussianEvent(9.0))), delta=1e-5).epsilon
    assert second.epsilon == joint > first.epsilon
    assert "all counts together with shares of the categories" in second.guarantee
    with pytest.raises(ValueError, match="add_remove"):
        release_shares(table, noise_multiplier=9.0, delta=1e-5, adjacency="replace_one")
    seeded = release_shares(table, noise_multiplier=9.0, delta=1e-5, random_source=InsecureRNG(1))
    assert Schema.from_toml(seeded.schema.to_toml()).leaks == seeded.leaks
    assert "seeded generator" in seeded.leaks[0]
    with pytest.raises(ValueError, match="certified_epsilon must follow"):
        first.replace(certified_epsilon=0.5 * first.epsilon)


def test_a_released_schema_keeps_its_parts_in_every_copy(rng):
    labels = [rng.integers(size, size=40) for size in (3, 2, 3)]
    schema = release_shares(encoded(*labels), noise_multiplier=9.0, delta=1e-5).schema
    assert len(schema.parts) == 1
    for lose in (
        lambda: dataclasses.replace(schema, parts=()),
        lambda: Schema(columns=schema.columns),
        lambda: Schema(columns=tuple(reversed(schema.columns)), missing=schema.missing),
        lambda: Schema(columns=pickle.loads(pickle.dumps(schema)).columns),
        lambda: Schema(columns=copy.deepcopy(schema.columns), parts=(Part("other", GaussianEvent(3.0), "add_remove"),)),
    ):
        with pytest.raises(SchemaError, match="parts can only be added to"):
            lose()
    assert dataclasses.replace(schema, delimiter=";").parts == schema.parts
    twice = dataclasses.replace(schema, parts=2 * schema.parts)
    with pytest.raises(SchemaError, match="parts can only be added to"):
        dataclasses.replace(twice, parts=schema.parts)
    assert Schema.from_toml(schema.to_toml()) == schema


@pytest.mark.parametrize(
    "table",
    [{"leaks": "text"}, {"leaks": [1]}, {"leaks": ["a\nb"]}, {"parts": 3}, {"parts": [{}]}, {"parts": ["x"]}],
)
def test_marks_of_a_schema_are_checked(table):
    with pytest.raises(SchemaError, match="table"):
        Schema.from_dict(SCHEMA.to_dict() | {"table": table})


def test_wrong_arguments(rng):
    table = encoded(*(rng.integers(2, size=9) for _ in range(3)))
    with pytest.raises(TypeError, match="table must be a Table"):
        release_shares(table.X, **SILENT)
    with pytest.raises(ValueError, match="7 columns"):
        release_shares(Table(table.X[:, :3], None, SCHEMA), **SILENT)
    with pytest.raises(ValueError, match="noise_multiplier"):
        release_shares(table, noise_multiplier=0.0, delta=1e-5)
    with pytest.raises(TypeError, match="random_source"):
        release_shares(table, random_source=3, **SILENT)
    numbers = Schema.from_dict({"columns": {"age": {"kind": "continuous", "bounds": [0, 1]}}})
    with pytest.raises(SchemaError, match="nothing to count"):
        release_shares(Table(np.zeros((3, 1)), None, numbers), **SILENT)


def test_an_unread_table_is_read_when_it_is_charged_and_a_refusal_stays_charged(tmp_path):
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people")
    path = tmp_path / "people.csv"
    lines = ["age,job,sex,home,rich", *["5,a,f,own,y", "6,b,m,rent,n"] * 20]
    path.write_text("\n".join(lines))
    release = release_shares(UnreadTable(path, SCHEMA), ledger=account, **SILENT)
    np.testing.assert_array_equal(release.noisy_counts["sex"], [20, 20])
    path.write_text("\n".join([*lines, "5,never declared,f,own,y"]))
    with pytest.raises(SchemaError, match="'job'") as caught:
        release_shares(UnreadTable(path, SCHEMA), ledger=account, **SILENT)
    assert "charge of the run stands" in caught.value.__notes__[0]
    assert [run.status for run in account.runs()] == ["finished", "started"]
