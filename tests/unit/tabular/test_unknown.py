"""Drafts of schemas, the split of one budget, and the joint release that fills the gaps."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import Composed, account, run_event
from dpinfer.errors import BudgetExceededError, RecordError, SchemaError
from dpinfer.mechanism.unknowns.plan import UnknownParts
from dpinfer.release import BoundsRelease, CategoriesRelease
from dpinfer.tabular import Schema, SchemaDraft, UnknownPlan, plan_unknown, read_table, release_unknown
from dpinfer.testing import InsecureRNG

RNG = np.random.default_rng(71)
DRAFT = SchemaDraft(
    {
        "columns": {
            "age": {"kind": "continuous"},
            "stairs": {"kind": "continuous", "limits": [0, 100], "scaling": "unit"},
            "job": {"kind": "categorical"},
            "member": {"kind": "binary", "positive": "yes", "negative": "no"},
            "rich": {"kind": "target", "positive": "1", "negative": "0"},
        }
    }
)
TARGET = {"target_epsilon": 2.0, "target_delta": 1e-5}
N = 8000


def columns(size=N):
    return {
        "age": 40.0 + 10.0 * RNG.normal(size=size),
        "stairs": RNG.uniform(0.0, 30.0, size),
        "job": RNG.choice(["clerk", "cook", "else"], size, p=[0.6, 0.39, 0.01]),
        "member": RNG.choice(["yes", "no"], size),
        "rich": RNG.integers(0, 2, size),
    }


def write(path, table):
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    path.write_text("\n".join([*lines, ""]))
    return path


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 6.0])
def test_one_target_is_met_by_all_together_and_the_fit_keeps_most_of_it(epsilon):
    plan = plan_unknown(DRAFT, target_epsilon=epsilon, target_delta=1e-5)
    assert account(plan.event, delta=1e-5).epsilon <= epsilon
    assert 0.9 * epsilon < plan.fit_epsilon < epsilon
    # The plan of the fit is made later, when the columns are known, from what is left.
    model = dpi.models.LinearRegression(9, fit_intercept=True)
    fit = dpi.plan_newton(model, target_epsilon=plan.fit_epsilon, target_delta=1e-5, n_records=N)
    assert account(Composed((plan.parts.event, fit.event)), delta=1e-5).epsilon <= epsilon
    # The sum of the epsilons would leave far less than the squares do.
    parts = plan.parts
    added = parts.count_epsilon + parts.n_selections * parts.selection_epsilon + parts.column_epsilon
    assert plan.fit_epsilon > epsilon - 0.7 * added


def test_a_sampled_run_can_be_what_follows():
    plan = plan_unknown(
        DRAFT, ("bounds", "categories"), make_event=lambda noise: run_event(noise, 0.1, 500), **TARGET, budget_share=0.2
    )
    run = dpi.plan_privacy(target_epsilon=plan.fit_epsilon, target_delta=1e-5, sample_rate=0.1, n_steps=500)
    assert account(Composed((plan.parts.event, run.event)), delta=1e-5).epsilon <= 2.0 * (1.0 + 1e-6)
    assert "the released unknown facts" in plan.guarantee


def test_less_than_what_is_certified_cannot_be_stated():
    plan = plan_unknown(DRAFT, **TARGET)
    values = {name: getattr(plan, name) for name in UnknownPlan.__dataclass_fields__}
    with pytest.raises(ValueError, match="epsilon must follow"):
        UnknownPlan(**values | {"epsilon": 1.9})


def test_a_file_becomes_a_table_without_gaps(tmp_path):
    table = columns()
    table["age"] = np.where(np.arange(N) % 20 == 0, "?", table["age"].astype(str))
    path = write(tmp_path / "people.csv", table)
    plan = plan_unknown(DRAFT, **TARGET)
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(2.0, 1e-5))
    release = release_unknown(path, DRAFT, plan=plan, ledger=ledger)
    (run,) = ledger.runs()
    assert (run.status, run.event) == ("finished", plan.parts.event)
    assert abs(release.n_records - 0.95 * N) < 400
    schema = release.schema
    assert Schema.from_toml(schema.to_toml()) == schema
    (part,) = schema.parts
    assert part.event == plan.parts.event
    # The fit: everything in one guarantee, and in the ledger.
    read = read_table(path, schema)
    assert len(read.X) == round(0.95 * N)
    model = dpi.models.LogisticRegression(read.X.shape[1], fit_intercept=True)
    fit = dpi.plan_newton(model, target_epsilon=plan.fit_epsilon, target_delta=1e-5, n_records=release.n_records)
    fitted = dpi.run_newton(model, read.X, read.y, plan=fit, n_records=release.n_records, ledger=ledger)
    fitted = fitted.with_parts(*schema.parts)
    assert fitted.epsilon <= 2.0
    assert "together with what was unknown in public" in fitted.guarantee
    assert ledger.spent().epsilon <= 2.0
    with pytest.raises(BudgetExceededError):
        release_unknown(path, DRAFT, plan=plan, ledger=ledger)


def test_columns_in_memory_are_what_a_file_is(tmp_path):
    table = columns(3000)
    plan = plan_unknown(DRAFT, **TARGET)
    path = write(tmp_path / "people.csv", table)
    released = [release_unknown(records, DRAFT, plan=plan, random_source=InsecureRNG(5)) for records in (table, path)]
    assert released[0].schema == released[1].schema
    age, stairs, job, *_ = released[0].schema.columns
    assert age.bounds[0] < 25.0
    assert age.bounds[1] > 55.0
    assert abs(age.mean - 40.0) < 5.0
    assert 5.0 < age.sd < 20.0
    assert stairs.scaling == "unit"
    assert 0.0 <= stairs.bounds[0] < 5.0 < 25.0 < stairs.bounds[1] <= 100.0
    assert job.categories == ("clerk", "cook", "other")
    assert released[0].count.noisy_count == released[1].count.noisy_count
    assert "NOT PRIVATE" in released[0].guarantee
    assert any("seeded generator" in leak for leak in released[0].schema.leaks)


def test_a_known_number_of_records_is_not_released():
    plan = plan_unknown(DRAFT, ("bounds", "categories"), adjacency="replace_one", **TARGET)
    release = release_unknown(columns(), DRAFT, plan=plan, n_records=N)
    assert release.n_records is None
    assert release.bounds.probability != 0.1
    assert release_unknown(columns(), DRAFT, plan=plan).bounds.probability == 0.1


def test_a_schema_comes_out_whatever_the_labels_are():
    """Two columns whose features would have one name, a label that is called as the rest is, and none at all."""
    draft = SchemaDraft(
        {
            "columns": {
                "a": {"kind": "categorical", "other": "rest"},
                "a=b": {"kind": "categorical"},
                "a=x": {"kind": "continuous", "bounds": [0, 1]},
                "empty": {"kind": "categorical"},
            }
        }
    )
    parts = UnknownParts(
        unknown=("categories",), count_epsilon=0.0, selection_epsilon=0.0, n_selections=0, column_epsilon=1.0,
        column_delta=1e-6, n_labelled=3, adjacency=dpi.accounting.Adjacency.ADD_REMOVE,
    )  # fmt: skip
    labels = CategoriesRelease(
        noisy_counts={"a": {"b=c": 99, "x": 98, "rest": 97, "q": 96}, "a=b": {"c": 99, "other": 98}, "empty": {}},
        laplace_scale=1.0, threshold=20, event=parts.event, adjacency="add_remove", delta=1e-5,
    )  # fmt: skip
    schema = draft.complete(categories=labels)
    first, second, _, last = schema.columns
    assert first.categories == ("b=c", "q", "rest")
    assert second.categories == ("other",)
    assert last.categories == ("other",)


def test_bounds_stay_inside_the_limits_and_constants_of_the_user_stay():
    draft = SchemaDraft(
        {"columns": {"x": {"kind": "continuous", "limits": [0, 10], "mean": 3, "sd": 2}, "y": {"kind": "continuous"}}}
    )
    release = BoundsRelease(
        names=("x", "y"), lower=np.array([0.0, -1.0]), upper=np.array([9.9, 1.0]), probability=0.1,
        limits=np.array([[0.0, 10.0], [-np.inf, np.inf]]), event=plan_unknown(DRAFT, **TARGET).parts.event,
        adjacency="add_remove", delta=1e-5,
    )  # fmt: skip
    x, y = draft.complete(release).columns
    assert x.bounds == (0.0, 10.0)
    assert (x.mean, x.sd) == (3.0, 2.0)
    assert y.sd == pytest.approx(2.0 / (2.0 * 1.2815515655446004))
    with pytest.raises(SchemaError, match="nothing was released"):
        draft.complete()


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: SchemaDraft({}), SchemaError, "columns"),
        (lambda: SchemaDraft({"columns": {"a": {"kind": "continuous", "limits": [1, 0]}}}), SchemaError, "columns.a"),
        (lambda: SchemaDraft({"columns": {"a": {"kind": "continuous", "boundz": 1}}}), SchemaError, "boundz"),
        (lambda: SchemaDraft({"columns": {"a": {"kind": "categorical", "shares": [1]}}}), SchemaError, "shares"),
        (lambda: SchemaDraft({"columns": {"a": {"kind": "categorical", "reference": "x"}}}), SchemaError, "reference"),
        (lambda: plan_unknown(DRAFT, (), **TARGET), ValueError, "unknown"),
        (lambda: plan_unknown(DRAFT, "bounds", **TARGET), TypeError, "unknown"),
        (lambda: plan_unknown(DRAFT, ("names",), **TARGET), ValueError, "unknown"),
        (lambda: plan_unknown(DRAFT, ("n_records", "bounds"), **TARGET), ValueError, "'job' lack them"),
        (lambda: plan_unknown(DRAFT.placeholder, **TARGET), TypeError, "draft"),
        (lambda: plan_unknown(DRAFT, adjacency="zero_out", **TARGET), ValueError, "zero_out"),
        (lambda: plan_unknown(DRAFT, adjacency="replace_one", **TARGET), ValueError, "n_records"),
        (lambda: plan_unknown(DRAFT, budget_share=1.0, **TARGET), ValueError, "budget_share"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_what_is_public_is_checked_before_the_charge(tmp_path):
    plan = plan_unknown(DRAFT, **TARGET)
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(9.0, 1e-5))
    other = SchemaDraft({"columns": {"age": {"kind": "continuous"}, "job": {"kind": "categorical"}}})
    path = write(tmp_path / "people.csv", {name: column for name, column in columns(50).items() if name != "age"})
    for records, draft, error in (
        (columns(50), other, ValueError),
        ({"age": [1.0]}, DRAFT, SchemaError),
        (path, DRAFT, SchemaError),
        (columns(50) | {"age": np.zeros(49)}, DRAFT, RecordError),
        (tmp_path / "missing.csv", DRAFT, OSError),
    ):
        with pytest.raises(error):
            release_unknown(records, draft, plan=plan, ledger=ledger)
    with pytest.raises(TypeError, match="plan"):
        release_unknown(columns(50), DRAFT, plan=plan.parts, ledger=ledger)
    assert list(ledger.runs()) == []
    ragged = columns(50) | {"age": [0.0] * 49}
    with pytest.raises(RecordError, match="equal length"):
        release_unknown(ragged, DRAFT, plan=plan, ledger=ledger)
    assert len(list(ledger.runs())) == 1
