"""Survey weights and units of a table: named columns, their policies, files, and what is refused."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import RecordError, SchemaError
from dpinfer.mechanism import Units
from dpinfer.tabular import Schema
from dpinfer.testing import InsecureRNG

pytest.importorskip("formulaic", reason="needs formulaic")

COLUMNS = {
    "y": {"kind": "continuous", "bounds": [-20, 20]},
    "x": {"kind": "continuous", "bounds": [-3, 3]},
    "w": {"kind": "continuous", "bounds": [0, 5000], "mean": 1500, "sd": 600},
    "bare": {"kind": "continuous", "bounds": [0, 5000]},
    "house": {"kind": "ignore"},
    "region": {"kind": "categorical", "categories": ["a", "b", "c", "d"]},
}
SCHEMA = Schema.from_dict({"table": {"missing": "drop"}, "columns": COLUMNS})


def table(rng, size=3000):
    """Heavier records have a steeper slope: without weights the answer is another one."""
    x = rng.uniform(-3.0, 3.0, size)
    heavy = rng.random(size) < 0.3
    y = np.where(heavy, 3.0, 1.0) * x + 0.5 * rng.normal(size=size)
    house = [f"h{place // 3}" for place in range(size)]
    region = np.array(list("abcd"))[np.arange(size) % 4]
    return {"y": y, "x": x, "w": np.where(heavy, 4000.0, 500.0), "bare": x, "house": house, "region": region}


def fitted(data, **options):
    settings = {"schema": SCHEMA, "epsilon": 50.0, "delta": 1e-6, "n_records": 3000, "random_source": InsecureRNG(1)}
    return dpi.regression("y ~ x", data, **(settings | options))


def test_weights_of_a_column_give_the_weighted_slope(rng):
    data = table(rng)
    root = np.sqrt(data["w"])
    exact = np.linalg.lstsq(np.column_stack((data["x"], np.ones(3000))) * root[:, None], data["y"] * root, rcond=None)
    weighted, plain = (fitted(data, **options).coefficients() for options in ({"weights": "w"}, {}))
    mean, sd = weighted.mean[0], weighted.sd[0]
    assert abs(mean - exact[0][0]) < 0.3 * sd
    assert abs(plain.mean[0] - exact[0][0]) > 5.0 * sd
    assert "design-based" in str(fitted(data, weights="w").summary())


def test_a_record_without_a_weight_is_dropped_with_its_units_row(rng):
    data = table(rng, 300)
    whole = {name: np.asarray(column)[:270] for name, column in data.items()}
    whole["house"] = data["house"][:270]
    data["w"][270:] = np.nan
    options = {"weights": "w", "unit": Units("house", max_rows=3.0), "n_records": 90}
    first, second = fitted(data, **options), fitted(whole, **options)
    np.testing.assert_array_equal(first.fit.release.scores, second.fit.release.scores)


def test_rows_in_clusters_that_are_not_protected(rng, tmp_path):
    """Whole houses have one x and one error: rows alone would say three times as much as there is."""
    x, error = (np.repeat(part, 3) for part in (rng.uniform(-3.0, 3.0, 1000), rng.normal(size=1000)))
    data = {"y": x + error, "x": x, "w": np.ones(3000), "bare": x, "house": [f"h{place // 3}" for place in range(3000)]}
    alone, together = fitted(data), fitted(data, clusters="house")
    ratio = together.coefficients().sd[:2] / alone.coefficients().sd[:2]
    np.testing.assert_allclose(ratio, np.sqrt(3.0), rtol=0.08)
    assert "cluster-robust" in str(together.summary())
    assert together.compare("x").robust
    assert "robust covariances" in str(together.compare("x"))
    together.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "too narrow, and not all" in page
    assert "hold if the model does" not in page
    with pytest.raises(ValueError, match="clusters must be None with unit"):
        fitted(data, clusters="house", unit=Units("house", max_rows=3.0))
    with pytest.raises(TypeError, match="clusters must be the name of a column"):
        fitted(data, clusters=np.arange(3000))


def test_files_have_the_bits_of_mappings(rng, tmp_path):
    data = table(rng, 300)
    path = tmp_path / "table.csv"
    lines = [",".join(data), *(",".join(map(str, row)) for row in zip(*data.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    options = {"weights": "w", "unit": Units("house", max_rows=3.0), "n_records": 100}
    found = [fitted(source, path=tmp_path / name, **options) for source, name in ((data, "a"), (path, "b"))]
    np.testing.assert_array_equal(found[0].fit.release.scores, found[1].fit.release.scores)
    again = dpi.load_regression(tmp_path / "a")
    assert again.design.weights == "w"
    assert again.design.model.survey_weights.largest == 5000.0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": 3}, TypeError, "weights must be the name"),
        ({"weights": "house"}, ValueError, "weights must be a continuous column"),
        ({"weights": "bare"}, ValueError, "and a mean"),
        ({"weights": "x"}, ValueError, "besides the formula's"),
        ({"weights": "none"}, ValueError, "weights must be a continuous column"),
        ({"weights": "w", "family": "negativebinomial"}, ValueError, "for a family"),
        ({"unit": "house"}, TypeError, "unit must be Units"),
        ({"strata": 3}, TypeError, "strata must be the name"),
        ({"strata": "house"}, ValueError, "strata must be a column"),
        ({"strata": "region", "family": "negativebinomial"}, ValueError, "for a family"),
        ({"strata": "region", "target": "model"}, ValueError, "target must be"),
        ({"strata": "region", "unknown": ["n_records"]}, ValueError, "must be None with unknown"),
        ({"unit": Units([1, 2], max_rows=2.0)}, TypeError, "name of a column"),
        ({"unit": Units("nobody", max_rows=2.0)}, SchemaError, "column of the schema"),
        ({"unit": Units("house", max_rows=2.0), "method": "dpvi"}, ValueError, "with unit"),
        ({"weights": "w", "target": "model"}, ValueError, "target must be"),
        ({"weights": "w", "unknown": ["n_records"]}, ValueError, "must be None with unknown"),
    ],
)
def test_what_names_no_column_is_refused_before_the_charge(rng, tmp_path, options, error, message):
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(99.0, 1e-4))
    with pytest.raises(error, match=message):
        fitted(table(rng, 100), ledger=account, random_source=None, **options)
    assert not account.runs()


def test_a_row_that_is_nobodys_is_refused(rng):
    data = table(rng, 99)
    data["house"][7] = None
    with pytest.raises(RecordError, match="a row lacks it"):
        fitted(data, unit=Units("house", max_rows=3.0), n_records=33)


@pytest.mark.parametrize("options", [{}, {"weights": "w"}, {"clusters": "house", "weights": "w"}])
def test_differences_between_strata_do_not_widen_intervals(rng, tmp_path, options):
    """The intercept's standard error is that within regions, whose means differ by more than all else."""
    data = table(rng)
    data["house"] = [f"{label}{place // 12}" for place, label in enumerate(data["region"])]
    data["y"] = data["y"] + np.array([6.0, -2.0, 2.0, -6.0])[np.arange(3000) % 4]
    plain, found = fitted(data, **options), fitted(data, strata="region", path=tmp_path / "fit", **options)
    wide, narrow = (fit.coefficients()["intercept"]["sd"] for fit in (plain, found))
    assert narrow < 0.75 * wide
    assert "within strata" in str(found.summary())
    assert dpi.load_regression(tmp_path / "fit").design.strata == "region"
