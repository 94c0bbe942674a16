"""The design of a formula: from the schema alone, a row from its record alone, in the terms of statisticians."""

import numpy as np
import pytest
from scipy.interpolate import BSpline

from dpinfer.formulas import design
from dpinfer.formulas.factors import compile_factor
from dpinfer.formulas.records import kept_values
from dpinfer.tabular import Schema
from dpinfer.tabular.decoding import decode

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")

SCHEMA = Schema.from_dict(
    {
        "columns": {
            "age": {"kind": "continuous", "bounds": [17, 90]},
            "hours": {"kind": "continuous", "bounds": [1, 99], "mean": 40, "sd": 12},
            "job": {"kind": "categorical", "categories": ["a", "b", "c"], "reference": "b"},
            "sex": {"kind": "binary", "positive": ["M", "male"], "negative": "F"},
            "wage": {"kind": "continuous", "bounds": [0, 100]},
            "rich": {"kind": "target", "positive": "yes", "negative": "no"},
            "id": {"kind": "ignore"},
            "hours-per-week": {"kind": "continuous", "bounds": [1, 99]},
            "marital status": {"kind": "categorical", "categories": ["single", "married"]},
        }
    }
)
RNG = np.random.default_rng(5)


def table(size, rng):
    return {
        "age": rng.uniform(0, 120, size),
        "hours": rng.uniform(0, 120, size),
        "job": tuple(rng.choice(["a", "b", "c"], size).tolist()),
        "sex": tuple(rng.choice(["M", "F", "male"], size).tolist()),
        "wage": rng.uniform(0, 100, size),
        "rich": tuple(rng.choice(["yes", "no"], size).tolist()),
    }


def decoded(found, raw):
    return kept_values(decode(raw, SCHEMA, [column.name for column in found.table_columns()]))


def rows(found, raw):
    return found.encode(decoded(found, raw))


def unscaled(found, raw):
    scales, offsets = (np.array([getattr(c, name) for c in found.columns]) for name in ("scale", "offset"))
    return rows(found, raw) * scales + offsets


FORMULAS = [
    "wage ~ age + C(job)",
    "wage ~ age * C(job, base='c') + sex:hours + hours",
    "wage ~ poly(age, 3) + bs(hours, knots=[20, 40, 60])",
    "wage ~ bs(age, df=5, degree=2) + poly(hours, 2, raw=True)",
    "wage ~ np.log(age) + I(hours**2) + sqrt(hours / age) + center(age):scale(hours) + exp(-age / 10)",
    "log1p(wage) ~ . - rich - `hours-per-week` - `marital status`",
    "wage ~ 0 + C(job) + age:job",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_row_depends_on_its_record_and_the_schema_alone(formula):
    found = design(formula, SCHEMA)
    raw, others = table(40, RNG), table(200, np.random.default_rng(6))
    alone = rows(found, raw)
    together = {name: np.concatenate([others[name], raw[name], others[name][:7]]) for name in raw}
    texts = {name: tuple(column.tolist()) if column.dtype.kind == "U" else column for name, column in together.items()}
    assert np.array_equal(rows(found, texts)[200:240], alone)
    for index in (0, 17, 39):
        one = {name: column[index : index + 1] for name, column in raw.items()}
        assert np.array_equal(rows(found, one)[0], alone[index])


@pytest.mark.parametrize("formula", FORMULAS)
def test_values_stay_within_the_public_bounds(formula):
    found = design(formula, SCHEMA)
    raw = table(2000, RNG)
    raw["age"][:4], raw["hours"][:4] = [-1e300, 1e300, 17, 90], [1e300, -1e300, 1, 99]
    values = decoded(found, raw)
    for column in found.columns:
        for part in column.parts:
            low, high = part.bounds
            slack = 1e-9 * max(1.0, abs(low), abs(high))
            assert np.all((part.evaluate(values) >= low - slack) & (part.evaluate(values) <= high + slack)), part.label


def test_names_and_values_are_those_of_treatment_contrasts():
    found = design("wage ~ age * C(job)", SCHEMA)
    assert found.names == ("age", "job[T.a]", "job[T.c]", "age:job[T.a]", "age:job[T.c]")
    raw = {"age": np.array([20.0, 30.0, 200.0]), "job": ("a", "b", "c"), "wage": np.zeros(3)}
    expected = [[20, 1, 0, 20, 0], [30, 0, 0, 0, 0], [90, 0, 1, 0, 90]]
    assert np.allclose(unscaled(found, raw), expected)


@pytest.mark.parametrize(
    ("formula", "names"),
    [
        ("wage ~ C(job, base='c') + sex", ("job[T.a]", "job[T.b]", "sex[T.M]")),
        ("wage ~ C(job, contr.treatment('a'))", ("job[T.b]", "job[T.c]")),
        ("wage ~ C(job, Treatment(reference='a'))", ("job[T.b]", "job[T.c]")),
        ("wage ~ 0 + job + sex", ("job[a]", "job[b]", "job[c]", "sex[T.M]")),
        ("wage ~ age + age:job", ("age", "age:job[T.a]", "age:job[T.c]")),
        ("wage ~ age:job", ("age:job[a]", "age:job[b]", "age:job[c]")),
        (
            "wage ~ . - `hours-per-week` - `marital status`",
            ("age", "hours", "job[T.a]", "job[T.c]", "sex[T.M]", "rich[T.yes]"),
        ),
        ("wage ~ (age + sex)**2 - age:sex", ("age", "sex[T.M]")),
    ],
)
def test_coding_is_that_of_r(formula, names):
    assert design(formula, SCHEMA).names == names


def test_names_that_are_not_identifiers_are_quoted():
    found = design("wage ~ log(`hours-per-week`) * C(`marital status`, base='married') + `hours-per-week`", SCHEMA)
    assert found.names[:3] == ("log(`hours-per-week`)", "marital status[T.single]", "hours-per-week")
    assert found.predictor_columns == {"hours-per-week", "marital status"}
    with pytest.raises(ValueError, match="got 'no such'"):
        design("wage ~ log(`no such`)", SCHEMA)


def test_bases_are_those_of_the_public_bounds():
    age = np.linspace(17, 90, 101)
    raw = {"age": age, "wage": np.zeros(101)}
    found = design("wage ~ poly(age, 2)", SCHEMA)
    x = (2 * age - 107) / 73
    assert np.allclose(unscaled(found, raw), np.column_stack([np.sqrt(3) * x, np.sqrt(5) * (3 * x**2 - 1) / 2]))
    found = design("wage ~ bs(age, knots=[30, 60])", SCHEMA)
    knots = np.array([17.0] * 4 + [30, 60] + [90] * 4)
    expected = [BSpline.basis_element(knots[i : i + 5], extrapolate=False)(age) for i in range(1, 5)]
    assert np.allclose(unscaled(found, raw)[:-1, :4], np.nan_to_num(expected).T[:-1])
    assert np.allclose(unscaled(found, raw)[-1], [0, 0, 0, 0, 1])


def test_scales_are_public():
    found = design("wage ~ age + hours", SCHEMA)
    # The uniform distribution on the bounds, and what is declared; 4096 points, bounds of hours clip the latter.
    assert found.columns[0].offset == pytest.approx(53.5, abs=0.05)
    assert found.columns[0].scale == pytest.approx(73 / np.sqrt(12), rel=1e-3)
    assert (found.columns[1].offset, found.columns[1].scale) == pytest.approx((40, 12), rel=1e-2)
    assert (found.response_offset, found.response_scale) == pytest.approx((50, 100 / np.sqrt(12)))
    moments = np.array(found.model.feature_moments)
    assert np.allclose(moments, np.eye(3), atol=0.02)


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("wage ~ sqrt(wage)", "both sides"),
        ("wage ~ log(age - 20)", "public bounds \\[-3, 70\\] are not above 0"),
        ("wage ~ 1 / (age - 20)", "formula must"),
        ("wage ~ I(1 / (age - 20))", "include 0"),
        ("wage ~ sqrt(age - 20)", "square root"),
        ("wage ~ exp(age ** 3)", "beyond"),
        ("wage ~ I((age - 20) ** 0.5)", "go below 0"),
        ("wage ~ cr(age, df=4)", "come from the records"),
        ("wage ~ job:offset(age)", "a term of its own"),
        ("wage ~ np.mean(age)", "reads all records"),
        ("wage ~ I(age - age.mean())", "act on one record"),
        ("wage ~ I(__import__('os').getcwd())", "act on one record"),
        ("wage ~ {age if hours > 3 else hours}", "columns, numbers"),
        ("wage ~ height", "got 'height'"),
        ("wage ~ id", "schema ignores"),
        ("wage ~ C(age)", "is a number there"),
        ("wage ~ C(job, base='z')", "base level of 'job'"),
        ("wage ~ C(job, contr.sum)", "base level of 'job'"),
        ("wage ~ I(job + 1)", "continuous columns only"),
        ("wage ~ poly(age, 99)", "from 1 to 10"),
        ("wage ~ poly(job, 2)", "continuous column"),
        ("wage ~ bs(age, knots=[95])", "rising knots"),
        ("wage ~ bs(age)", "df="),
        ("wage ~ bs(age, knots=age)", "written out"),
        ("wage ~ age + I(2 * age)", "linear combinations"),
        ("wage ~ job:sex", "add its main effects"),
        ("wage ~ 1", "at least one term"),
        ("age + hours", "one response"),
        ("wage ~ age | hours", "one response"),
        ("job ~ age", "response of numbers"),
        ("wage ~ I(3)", "reads no column"),
        ("wage ~ age + I(0 * age)", "that vary"),
    ],
)
def test_what_is_not_public_is_refused_with_the_reason(formula, words):
    with pytest.raises(ValueError, match=words):
        design(formula, SCHEMA)


def test_families_ask_for_their_responses():
    for family, formula in (("binomial", "wage ~ age"), ("poisson", "rich ~ age"), ("poisson", "log(age) ~ hours")):
        with pytest.raises(ValueError, match="formula must"):
            design(formula, SCHEMA, family=family)
    with pytest.raises(ValueError, match="family must be"):
        design("wage ~ age", SCHEMA, family="gamma")
    with pytest.raises(TypeError, match="schema must be"):
        design("wage ~ age", {})
    assert type(design("rich ~ age", SCHEMA, family="probit").model).__name__ == "ProbitRegression"


def test_no_expression_is_executed(tmp_path):
    place = tmp_path / "made"
    with pytest.raises(ValueError, match="formula must"):
        compile_factor(f"open({str(place)!r}, 'w')", SCHEMA)
    assert not place.exists()
