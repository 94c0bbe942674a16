"""Schemas: reading, writing, and messages that name the key."""

import numpy as np
import pytest

from dpinfer.errors import SchemaError
from dpinfer.tabular import CategoricalColumn, ContinuousColumn, IgnoredColumn, Schema

COLUMNS = {
    "age": {"kind": "continuous", "bounds": [0, 100], "scaling": "unit", "unit": "years"},
    "job": {"kind": "categorical", "categories": ["a", "b"], "other": "c", "missing": "other"},
    "sex": {"kind": "binary", "positive": "f", "negative": ["m"], "label": "sex, as it was registered"},
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


def test_declared_shares_are_the_moments(rng):
    document = {
        "columns": COLUMNS
        | {"home": {"kind": "categorical", "categories": ["own", "rent", "none"], "reference": "rent"}}
    }
    schema = Schema.from_dict(document)
    shares = {"job": [0.5, 0.3, 0.2], "sex": (0.9, 0.1), "home": np.array([0.2, 0.7, 0.1])}
    assert not schema.shares_known
    assert not schema.with_shares({"job": shares["job"]}).shares_known
    known = schema.with_shares(shares)
    assert known.shares_known
    assert Schema.from_toml(known.to_toml()) == known
    size = 400_000
    job, home = (np.eye(3)[rng.choice(3, size, p=shares[name])] for name in ("job", "home"))
    sex = rng.random(size) < 0.9
    records = np.column_stack([rng.random(size), job, sex, home[:, [0, 2]], np.ones(size)])
    moments = records.T @ records / size
    np.testing.assert_allclose(known.feature_moments, moments, atol=6.0 * 0.5 / size**0.5)
    # The power twin: equal shares are not these.
    assert np.max(np.abs(schema.feature_moments - moments)) > 0.1
    # Rounded ones count as what they are in proportion to.
    assert schema.with_shares({"job": (0.498, 0.3, 0.2)}).columns[1].shares == tuple(
        np.array([0.498, 0.3, 0.2]) / sum([0.498, 0.3, 0.2])
    )
    assert not Schema.from_dict({"columns": {"age": COLUMNS["age"]}}).shares_known


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"job": [0.5, 0.5]}, "list of 3 numbers"),
        ({"job": [0.5, 0.5, 0.0]}, "positive and sum to 1"),
        ({"job": [0.5, 0.5, 0.2]}, "positive and sum to 1"),
        ({"job": ["a", "b", "c"]}, r"columns\.job\.shares"),
        ({"sex": 0.5}, "list of 2 numbers"),
        ({"age": [0.5, 0.5]}, "categorical or binary"),
        ({"rich": [0.5, 0.5]}, "categorical or binary"),
        ([0.5, 0.5], "mapping"),
    ],
)
def test_wrong_shares_are_named(shares, words):
    with pytest.raises(SchemaError, match=words):
        Schema.from_dict({"columns": COLUMNS}).with_shares(shares)


def test_a_target_has_no_shares():
    with pytest.raises(SchemaError, match=r"columns\.rich\.shares"):
        Schema.from_dict(with_column("rich", shares=[0.5, 0.5]))


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
        ({"scaling": "standard", "mean": 2.0}, (-np.sqrt(3), np.sqrt(3))),
        ({"scaling": "standard", "mean": 0.0}, (-1.0, 3.0)),
        ({"scaling": "standard", "sd": 2.0}, (-2.0, 2.0)),
    ],
)
def test_scalings(settings, expected):
    column = ContinuousColumn(name="x", bounds=(-2, 6), **settings)
    np.testing.assert_allclose(column.feature_bounds[0], expected)
    assert Schema.from_dict({"columns": {"x": column.to_dict()}}).columns == (column,)


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
        (with_column("age", unit=3), ("columns.age.unit", "string")),
        (with_column("job", label="a\nb"), ("columns.job.label", "printed")),
        (with_column("id", label="x" * 81), ("columns.id.label", "80")),
        (with_column("age", scaling="log"), ("columns.age.scaling", "standard")),
        (with_column("age", scaling="standard", mean=-1e9), ("columns.age.mean", "inside the bounds")),
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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bounds": [0, 5e-324]}, r"columns\.age\.bounds must give scaled bounds"),
        ({"bounds": [0, 5e-324], "scaling": "none"}, r"columns\.age\.bounds"),
        ({"bounds": [0, 1e-310], "scaling": "standard"}, r"columns\.age\.bounds"),
        ({"bounds": [-1.7e308, 1.7e308]}, r"columns\.age\.bounds"),
        ({"bounds": [-1e200, 1e200], "scaling": "none"}, r"columns\.age\.bounds"),
        ({"scaling": "standard", "mean": 0.0, "sd": 1e-310}, r"columns\.age\.mean and columns\.age\.sd"),
        ({"scaling": "standard", "mean": 0.0, "sd": 1e-200}, r"columns\.age\.sd"),
        ({"scaling": "standard", "mean": 1e300, "sd": 1.0}, r"columns\.age\.sd"),
        ({"scaling": "standard", "mean": 0.0, "sd": 1e300}, r"columns\.age\.sd"),
        ({"bounds": [1e17, 1e17 + 1], "scaling": "unit"}, r"columns\.age\.bounds must have low < high"),
    ],
)
def test_a_scale_that_is_lost_in_the_precision_of_numbers_is_refused(settings, words):
    with pytest.raises(SchemaError, match=words):
        Schema.from_dict(with_column("age", **settings))


def test_extreme_scales_that_work_are_taken():
    for bounds in ([0, 1e-90], [-1e90, 1e90], [1e6, 1e6 + 1e-6]):
        made = Schema.from_dict(with_column("age", bounds=bounds))
        assert np.isfinite([made.max_row_norm, made.typical_row_norm, *made.feature_moments.ravel()]).all()


def test_text_that_no_file_can_hold_is_refused():
    for document in ({"columns": {"a\ud800": {"kind": "ignore"}}}, with_column("job", categories=["a", "\udfff"])):
        with pytest.raises(SchemaError, match="surrogate"):
            Schema.from_dict(document)
