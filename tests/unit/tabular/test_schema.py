"""Schemas: reading, writing, and messages that name the key."""

import numpy as np
import pytest

from dpinfer.errors import SchemaError
from dpinfer.tabular import CategoricalColumn, ContinuousColumn, IgnoredColumn, Schema

COLUMNS = {
    "age": {"kind": "continuous", "bounds": [0, 100], "scaling": "unit"},
    "job": {"kind": "categorical", "categories": ["a", "b"], "other": "c", "missing": "other"},
    "sex": {"kind": "binary", "positive": "f", "negative": ["m"]},
    "id": {"kind": "ignore"},
    "rich": {"kind": "target", "positive": [">50K", ">50K."], "negative": "<=50K"},
}


def with_column(name, **changes):
    columns = {key: dict(value) for key, value in COLUMNS.items()}
    columns[name].update(changes)
    return {"columns": {key: {k: v for k, v in value.items() if v is not ...} for key, value in columns.items()}}


def test_features_in_order():
    schema = Schema.from_dict({"columns": COLUMNS})
    assert schema.feature_names == ("age", "job=a", "job=b", "job=c", "sex=f")
    np.testing.assert_array_equal(schema.feature_bounds, [[0, 1]] * 5)
    assert schema.target is not None
    assert schema.target.name == "rich"


def test_moments_are_those_of_independent_columns_with_equal_frequencies(rng):
    document = {
        "columns": COLUMNS
        | {
            "pay": {"kind": "continuous", "bounds": [0, 9], "mean": 2.0, "sd": 1.0},
            "home": {"kind": "categorical", "categories": ["own", "rent", "none"], "reference": "none"},
        }
    }
    schema = Schema.from_dict(document)
    size = 400_000
    job, home = np.eye(3)[rng.integers(3, size=size)], np.eye(3)[rng.integers(3, size=size)][:, :2]
    age, sex, pay = rng.random(size), rng.integers(2, size=size), rng.normal(size=size)
    records = np.column_stack([age, job, sex, pay, home, np.ones(size)])
    moments = records.T @ records / size
    assert schema.feature_moments.shape == moments.shape
    np.testing.assert_allclose(schema.feature_moments, moments, atol=6.0 * 3.0**0.5 / size**0.5)
    # Exactly: the indicators of a column exclude each other and sum to the constant.
    assert schema.feature_moments[1, 2] == 0.0
    np.testing.assert_allclose(schema.feature_moments[1:4].sum(axis=0), schema.feature_moments[-1], rtol=1e-14)


def test_reference_category_has_no_feature():
    column = CategoricalColumn(name="job", categories=("a", "b", "c"), reference="b")
    assert column.feature_names == ("job=a", "job=c")
    with pytest.raises(SchemaError, match=r"columns\.job\.reference"):
        CategoricalColumn(name="job", categories=("a", "b"), reference="z")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"scaling": "none"}, (-2.0, 6.0)),
        ({"scaling": "unit"}, (0.0, 1.0)),
        ({"scaling": "standard", "mean": 1.0, "sd": 2.0}, (-1.5, 2.5)),
        ({"scaling": "standard"}, (-np.sqrt(3), np.sqrt(3))),
    ],
)
def test_scalings(settings, expected):
    column = ContinuousColumn(name="x", bounds=(-2, 6), **settings)
    np.testing.assert_allclose(column.feature_bounds[0], expected)


def test_norms_by_hand():
    schema = Schema.from_dict({"columns": COLUMNS})
    # unit: at most 1, mean square 1/3; categorical: exactly 1; binary: at most 1, one half.
    assert schema.max_row_norm == pytest.approx(np.sqrt(3.0))
    assert schema.typical_row_norm == pytest.approx(np.sqrt(1.0 / 3.0 + 1.0 + 0.5))


@pytest.mark.parametrize("name", ["plain", 'quo"te', "back\\slash", "tab\t", "é", "a.b", "\x7f"])
def test_toml_round_trip(tmp_path, name):
    document = {"table": {"missing": "refuse", "delimiter": "\t"}, "columns": {**COLUMNS, name: {"kind": "ignore"}}}
    schema = Schema.from_dict(document)
    path = tmp_path / "schema.toml"
    path.write_text(schema.to_toml(), encoding="utf-8")
    assert Schema.load(path) == schema
    assert Schema.from_dict(schema.to_dict()) == schema


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (with_column("age", bound=[0, 1]), ("columns.age.bound", "bounds")),
        (with_column("age", bounds=...), ("columns.age.bounds", "required")),
        (with_column("age", bounds=[5, 5]), ("columns.age.bounds", "low < high")),
        (with_column("age", bounds=[0, float("inf")]), ("columns.age.bounds", "finite")),
        (with_column("age", bounds=[0, "9"]), ("columns.age.bounds", "real number")),
        (with_column("age", bounds="09"), ("columns.age.bounds", "two numbers")),
        (with_column("age", scaling="log"), ("columns.age.scaling", "standard")),
        (with_column("age", scaling="standard", mean=1), ("columns.age.mean", "columns.age.sd")),
        (with_column("age", scaling="standard", mean=1, sd=0), ("columns.age.sd", "positive")),
        (with_column("age", mean=1, sd=1), ("columns.age.mean", "standard")),
        (with_column("age", kind="numeric"), ("columns.age.kind", "continuous")),
        (with_column("age", missing="other"), ("columns.age.missing", "drop")),
        (with_column("job", categories=[]), ("columns.job.categories", "at least 1")),
        (with_column("job", categories=[1, 2]), ("columns.job.categories", "strings")),
        (with_column("job", categories="ab"), ("columns.job.categories", "list")),
        (with_column("job", categories=["a", "a"]), ("columns.job.categories", "distinct")),
        (with_column("job", other=...), ("columns.job.missing", "columns.job.other")),
        (with_column("sex", positive=["m"]), ("columns.sex.positive", "share")),
        (with_column("sex", negative=...), ("columns.sex.negative", "required")),
        (with_column("id", kind="target", positive="1", negative="0"), ("target", "id, rich")),
        ({"columns": {"rich": COLUMNS["rich"]}}, ("at least one column",)),
        ({"columns": {"intercept": COLUMNS["age"]}}, ("columns.intercept", "renamed")),
        ({"columns": {"a=b": COLUMNS["age"], "a": {"kind": "categorical", "categories": ["b"]}}}, ("same name",)),
        ({"columns": {}}, ("columns",)),
        ({"columns": {"age": 3}}, ("columns.age", "table")),
        ({"column": COLUMNS}, ("column", "columns")),
        ({"table": {"missings": "drop"}, "columns": COLUMNS}, ("table.missings", "missing")),
        ({"table": {"missing": "other"}, "columns": COLUMNS}, ("table.missing",)),
        ({"table": {"delimiter": "::"}, "columns": COLUMNS}, ("table.delimiter",)),
        ({"table": {"missing_values": "?"}, "columns": COLUMNS}, ("table.missing_values",)),
    ],
)
def test_bad_schema_names_the_key(document, words):
    with pytest.raises(SchemaError) as caught:
        Schema.from_dict(document)
    for word in words:
        assert word in str(caught.value)


def test_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        Schema.load(tmp_path / "absent.toml")
    path = tmp_path / "schema.toml"
    path.write_text("[columns\n")
    with pytest.raises(SchemaError, match="TOML"):
        Schema.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SchemaError, match="UTF-8"):
        Schema.load(path)


def test_ignored_column_reads_nothing():
    assert IgnoredColumn(name="x").feature_names == ()
