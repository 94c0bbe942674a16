"""Noisy tables: what is counted, by how much one record moves it, and intervals against the truth and brute force."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

import dpinfer as dpi
from dpinfer import tables
from dpinfer.errors import RecordError, SchemaError
from dpinfer.tables.noisy_table import NoisyTable, hull_of_ratios, probability_beyond
from dpinfer.tables.queries import _Cells
from dpinfer.tables.tuning import TUNING
from dpinfer.tabular import Schema
from dpinfer.testing import InsecureRNG

COLUMNS = {
    "age": {"kind": "continuous", "bounds": [20, 80], "unit": "years"},
    "job": {"kind": "categorical", "categories": ["clerk", "cook", "else"]},
    "alive": {"kind": "target", "positive": "yes", "negative": ["no", "never"]},
}
SCHEMA = Schema.from_dict({"columns": COLUMNS})
DATA = {
    "age": [30.0, 50.0, 200.0, math.nan, 40.0, 20.0],
    "job": ["cook", "cook", "clerk", "clerk", "astronaut", None],
    "alive": ["yes", "no", "never", "yes", "yes", "yes"],
}
CALLS = {
    "counts": lambda data, **terms: tables.counts(data, ["job", "alive"], **terms),
    "crosstab": lambda data, **terms: tables.crosstab(data, ["job", "alive"], **terms),
    "means": lambda data, **terms: tables.means(data, "age", "job", **terms),
}
LAWS = {"laplace": 0.0, "gaussian": 1e-6}


def exact(call, data=DATA, schema=SCHEMA, delta=0.0):
    """Return the sums of a table without noise: those without records, of the same key, are taken off."""
    own = {"schema": schema, "epsilon": 1.0, "delta": delta}
    none = {name: column[:0] for name, column in data.items()}
    found = [call(part, **own, random_source=InsecureRNG(3)).release.noisy_sums for part in (data, none)]
    return found[0] - found[1]


@pytest.mark.parametrize("delta", LAWS.values(), ids=LAWS)
def test_what_is_counted(delta):
    """A value that is missing or not declared leaves its record out of that table alone; values are clamped."""
    counted = exact(CALLS["counts"], delta=delta)
    np.testing.assert_allclose(counted, [2, 2, 0, 2, 4], atol=1e-6)
    crossed = exact(CALLS["crosstab"], delta=delta)
    np.testing.assert_allclose(crossed, [1, 1, 1, 1, 0, 0], atol=1e-6)
    clerks, cooks, others = exact(CALLS["means"], delta=delta).reshape(3, 3)
    np.testing.assert_allclose(clerks, [1, 1.0, 0.5], atol=1e-6)  # 200 is clamped to 80
    np.testing.assert_allclose(cooks, [2, -2 / 3, 0.5 * (4 / 9)], atol=1e-6)
    np.testing.assert_allclose(others, 0.0, atol=1e-6)
    np.testing.assert_allclose(
        exact(lambda data, **own: tables.means(data, "age", **own), delta=delta)[0], 5, atol=1e-6
    )


def test_other_collects_and_refuse_refuses():
    with_other = Schema.from_dict(
        {"columns": COLUMNS | {"job": COLUMNS["job"] | {"other": "else", "missing": "other"}}}
    )
    np.testing.assert_allclose(exact(CALLS["counts"], schema=with_other)[:3], [2, 2, 2], atol=1e-6)
    strict = Schema.from_dict({"columns": COLUMNS | {"job": COLUMNS["job"] | {"missing": "refuse"}}})
    with pytest.raises(RecordError, match="lacks a value"):
        CALLS["counts"](DATA, schema=strict, epsilon=1.0)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("valued", [False, True])
def test_one_record_has_at_most_the_norm(order, valued):
    """Over all codes, missing or not, and values: the largest is reached."""
    cells = _Cells((((0,), (3,)), ((1,), (2,))), valued)
    codes = np.array([(a, b, u) for a in (np.nan, 0, 1, 2) for b in (np.nan, 0, 1) for u in np.linspace(-9.0, 9.0, 41)])
    rows = codes if valued else codes[:, :2]
    norms = np.linalg.norm(cells(rows), order, axis=1)
    assert norms.max() == pytest.approx(cells.norm(order))
    assert np.all(norms <= cells.norm(order) + 1e-12)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("delta", LAWS.values(), ids=LAWS)
def test_a_file_says_the_same(name, delta, tmp_path):
    made = CALLS[name](DATA, schema=SCHEMA, epsilon=1.0, delta=delta)
    made.save(tmp_path / "a.release")
    again = tables.load(tmp_path / "a.release")
    assert again.rows(0.8) == made.rows(0.8)
    assert again.kind == name
    assert repr(again) == repr(made)
    assert len(made.to_dict()["low"]) == len(made.estimate)
    assert tables.table(made.release).rows() == made.rows()


def test_rows_say_which_cell_they_are():
    rows = CALLS["counts"](DATA, schema=SCHEMA, epsilon=1.0).rows()
    assert [(row["column"], row["label"]) for row in rows][2:4] == [("job", "else"), ("alive", "no")]
    crossed = CALLS["crosstab"](DATA, schema=SCHEMA, epsilon=1.0).rows()
    assert [(row["job"], row["alive"]) for row in crossed][:3] == [("clerk", "no"), ("clerk", "yes"), ("cook", "no")]
    assert set(CALLS["means"](DATA, schema=SCHEMA, epsilon=1.0).rows()[0]) == {"job", "estimate", "low", "high"}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda **own: tables.counts(DATA, "age", **own), SchemaError, "categorical"),
        (lambda **own: tables.counts(DATA, "size", **own), SchemaError, "declared"),
        (lambda **own: tables.counts(DATA, [], **own), ValueError, "columns"),
        (lambda **own: tables.counts(DATA, ["job", "job"], **own), ValueError, "distinct"),
        (lambda **own: tables.crosstab(DATA, ["job"], **own), ValueError, "two columns"),
        (lambda **own: tables.means(DATA, "job", **own), SchemaError, "continuous"),
        (lambda **own: tables.counts({"job": ["cook"]}, ["job", "alive"], **own), SchemaError, "alive"),
        (lambda **own: tables.counts(3, "job", **own), TypeError, "data"),
        (lambda **own: tables.counts(DATA, "job", **own | {"schema": COLUMNS}), TypeError, "schema"),
        (lambda **own: tables.counts(DATA, "job", **own | {"delta": 2.0}), ValueError, "delta"),
    ],
)
def test_what_is_wrong_is_refused_before_the_charge(call, error, text, tmp_path):
    people = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(9.0, 1e-5))
    with pytest.raises(error, match=text):
        call(schema=SCHEMA, epsilon=1.0, ledger=people)
    assert list(people.runs()) == []


def test_a_schema_with_a_leak_or_a_part_gives_it_on():
    leaking = Schema.from_dict({"table": {"leaks": ["bounds were read from the private records"]}, "columns": COLUMNS})
    made = tables.means(DATA, "age", schema=leaking, epsilon=1.0)
    assert made.release.leaks
    assert made.release.epsilon == math.inf


def test_another_release_is_no_table():
    other = dpi.private_sum(np.ones((5, 1)), lambda rows: rows, names=["a"], max_norm=1.0, epsilon=1.0)
    with pytest.raises(ValueError, match="of a table"):
        NoisyTable(other)
    with pytest.raises(TypeError, match="SumRelease"):
        NoisyTable(None)
    made = CALLS["counts"](DATA, schema=SCHEMA, epsilon=1.0).release
    with pytest.raises(ValueError, match="each cell"):
        NoisyTable(made.replace(names=made.names[:2], noisy_sums=made.noisy_sums[:2]))


def tail_by_quadrature(t, deviation, factor):
    """Return P(|N(0, deviation**2) + L1 + factor L2| > t), Laplace laws of scale 1, by an integral over both."""

    def of_both(x):  # the law of L1 + factor L2 by convolution, on a grid
        grid = np.linspace(-40.0, 40.0, 8001)
        density = 0.5 * np.exp(-np.abs(x - grid)) * 0.5 * np.exp(-np.abs(grid) / factor) / factor
        return integrate.trapezoid(density, grid)

    points = np.linspace(-40.0, 40.0, 801)
    law = np.array([of_both(x) for x in points])
    beyond = stats.norm.sf((t - points) / deviation) + stats.norm.cdf((-t - points) / deviation)
    return integrate.trapezoid(law * beyond, points) / integrate.trapezoid(law, points)


@pytest.mark.parametrize(("deviation", "factor"), [(0.5, 0.3), (2.0, 1.0)])
def test_the_law_of_normal_and_two_laplace_numbers(deviation, factor):
    for distance in (0.7, 4.0):
        found = probability_beyond(
            np.array([3.0 * distance]), "laplace", 3.0, np.array([(3.0 * deviation) ** 2]), np.array([factor])
        )
        assert tail_by_quadrature(distance, deviation, factor) == pytest.approx(found[0], abs=3e-4)


def test_probabilities_of_single_laws():
    zero, distance = np.zeros(1), np.array([3.0])
    assert probability_beyond(distance, "laplace", 2.0, zero, zero)[0] == pytest.approx(math.exp(-1.5), rel=1e-6)
    normal = probability_beyond(distance, "laplace", 1e-6, zero + 4.0, zero)[0]
    assert normal == pytest.approx(2.0 * stats.norm.sf(1.5), rel=1e-5)
    both = probability_beyond(distance, "gaussian", 2.0, zero + 5.0, zero + 0.5)[0]
    assert both == pytest.approx(2.0 * stats.norm.sf(3.0 / math.sqrt(5.0 + 4.0 * 1.25)))


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_the_hull_is_that_of_a_grid(noise):
    rng = np.random.default_rng(5)
    total, count = rng.normal(scale=30.0, size=200), rng.normal(20.0, 40.0, size=200)

    def beyond(distance, mu):
        return probability_beyond(distance, noise, 6.0, np.zeros_like(mu), mu)

    low, high = hull_of_ratios(total, count, 0.8, beyond)
    grid = np.linspace(-1.0, 1.0, 2001)
    for own in range(200):
        held = grid[beyond(np.abs(total[own] - grid * count[own]), grid) >= 0.2]
        ends = (-1.0, 1.0) if held.size == 0 else (held[0], held[-1])
        assert abs(low[own] - ends[0]) <= 1.1e-3
        assert abs(high[own] - ends[1]) <= 1.1e-3


def repeated(sums, scale, noise, runs, rng):
    """Return sums (3,) or (runs, 3), each with noise of its own, as one table with a cell for each run."""
    names = [str(index) for index in range(3 * runs)]
    draw = rng.normal(scale=scale, size=(runs, 3)) if noise == "gaussian" else rng.laplace(scale=scale, size=(runs, 3))
    event = (
        dpi.accounting.GaussianEvent(scale)
        if noise == "gaussian"
        else dpi.accounting.PureEvent(1 / scale, "add_remove")
    )
    described = {
        "kind": "means",
        "margins": [["run"]],
        "labels": {"run": [str(index) for index in range(runs)]},
        "value": {"name": "u", "bounds": [-1.0, 1.0], "unit": ""},
    }
    release = dpi.SumRelease(
        names=names,
        noisy_sums=(sums + draw).ravel(),
        noise=noise,
        noise_scale=scale,
        max_norm=1.0,
        event=event,
        adjacency="add_remove",
        delta=1e-6 if noise == "gaussian" else 0.0,
        settings={"table": described},
    )
    return NoisyTable(release)


@pytest.mark.parametrize("n", [0, 30, 3000])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_intervals_of_the_records_mean_hold_it_as_often_as_they_say(noise, n):
    """3000 draws of the noise: at most 4 standard errors below 0.9; the hull of the exact set may hold more."""
    rng = np.random.default_rng(6)
    values = rng.uniform(-0.2, 0.9, max(n, 1))[: n or 0]
    sums = np.array([n, values.sum(), TUNING.square_weight * np.square(values).sum()])
    low, high = repeated(sums, 20.0, noise, 3000, rng).interval(0.9, target="sample").T
    truth = values.mean() if n else 0.3
    share, error = np.mean((low <= truth) & (truth <= high)), math.sqrt(0.09 / 3000)
    assert share >= 0.9 - 4.0 * error
    if n == 3000:
        assert share <= 0.9 + 4.0 * error  # nothing is lost where the noise hides nothing
        assert np.median(high - low) < 0.05


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_intervals_of_the_population_count_the_sample(noise):
    """400 samples: within 4 standard errors of 0.9.  The power twin: the records' mean's hold it less."""
    rng = np.random.default_rng(7)
    values = rng.beta(2.0, 3.0, (400, 2000)) * 2.0 - 1.0
    squares = TUNING.square_weight * np.square(values).sum(axis=1)
    sums = np.column_stack((np.full(400, 2000), values.sum(axis=1), squares))
    table = repeated(sums, 5.0, noise, 400, rng)
    shares = {}
    for target in ("sample", "population"):
        low, high = table.interval(0.9, target=target).T
        shares[target] = np.mean((low <= -0.2) & (high >= -0.2))
    error = math.sqrt(0.09 / 400)
    assert abs(shares["population"] - 0.9) <= 4.0 * error
    assert shares["sample"] < 0.9 - 4.0 * error


def test_counts_have_whole_ends_at_or_above_zero():
    made = CALLS["counts"](DATA, schema=SCHEMA, epsilon=0.05)
    ends = made.interval(0.9)
    assert np.all(ends >= 0.0)
    assert np.all(ends == np.rint(ends))
    with pytest.raises(ValueError, match="target"):
        made.interval(target="population")
