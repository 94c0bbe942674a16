"""User-level privacy: a unit's sum is bounded whatever its rows, is a function of them alone, and is their sum."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.accounting import Adjacency
from dpinfer.errors import RecordError
from dpinfer.mechanism import RowSource, ShardedRows, Units, _native
from dpinfer.mechanism.newton.contributions import (
    ClippedCurvatures,
    ClippedScores,
    LogScaleCounts,
    RobustScores,
    SecondMoments,
)
from dpinfer.mechanism.newton.pass_records import MemoryRecords, UnitRecords
from dpinfer.mechanism.units import check_identities
from dpinfer.models.clipping import ResponseGrid
from dpinfer.testing import InsecureRNG

D, MAX_ROWS = 3, 2.0
RESIDUAL = ResponseGrid(dpi.models.LogisticRegression(D), 0.05).clipped(0.6)
QUERIES = {
    "counts": LogScaleCounts(2.0 ** np.arange(-3, 4)),
    "moments": SecondMoments(np.eye(D) + 0.3, 2.0),
    "scores": RobustScores(np.eye(D), 2.0, np.ones(D), clip=0.7, unit=1.3, centre=0.45, scale_weight=0.4),
    "logistic scores": ClippedScores(np.eye(D), 2.0, np.ones(D), "logistic", RESIDUAL),
    "curvatures": ClippedCurvatures(np.eye(D), 2.0, np.zeros(D), "logistic", RESIDUAL),
}
EACH_QUERY = pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)


def unit_records(X, y, unit, size=None):
    size = size or len(unit)
    blocks = [
        (X[first : first + size], y[first : first + size], check_identities(unit[first : first + size], None))
        for first in range(0, len(unit), size)
    ]
    return UnitRecords(lambda: blocks, intercept=False, n_threads=1)


def total_of(records, query, max_rows=MAX_ROWS):
    total = _native.PartialSum(length=query.length, max_norm=max_rows * query.max_norm)
    records.add(total, query)
    return total


def integers(X, y, unit, query, **options):
    return total_of(unit_records(X, y, unit, **options), query).integers


@pytest.fixture
def rows(rng):
    """Units of 1 to 40 rows; some rows far out, tiny, or not finite as a product."""
    unit = np.repeat(np.arange(60), rng.integers(1, 12, 60))
    unit[-40:] = 59
    X = rng.normal(size=(unit.size, D)) * 10.0 ** rng.uniform(-2.0, 1.0, size=(unit.size, 1))
    X[3], X[10, 0], X[20], X[30] = 0.0, 1e308, 1e-320, -1e160
    return X, rng.normal(size=unit.size) * 3.0, unit


@EACH_QUERY
def test_a_unit_stays_within_its_norm_and_its_integers_are_its_own(rows, query):
    X, y, unit = rows
    whole = integers(X, y, unit, query)
    step = total_of(unit_records(X, y, unit), query).lattice_step
    norms = []
    for name in np.unique(unit):
        own = unit == name
        alone = integers(X[own], y[own], unit[own], query)
        assert np.array_equal(whole - integers(X[~own], y[~own], unit[~own], query), alone)
        norms.append(math.sqrt(sum(int(value) ** 2 for value in alone)) * step / (MAX_ROWS * query.max_norm))
    assert max(norms) <= 1.0
    # Forty rows of one unit: the bound is met, and not by a margin.
    assert max(norms) > 0.99 or query is QUERIES["logistic scores"]


@EACH_QUERY
def test_blocks_and_order_of_a_units_rows_change_nothing(rows, query, rng):
    X, y, unit = rows
    whole = integers(X, y, unit, query)
    assert np.array_equal(integers(X, y, unit, query, size=7), whole)
    order = np.lexsort((rng.random(unit.size), unit))
    assert np.array_equal(integers(X[order], y[order], unit[order], query, size=1), whole)
    names = np.array([f"person {name:03d}" for name in unit])
    assert np.array_equal(integers(X, y, names, query, size=50), whole)


@EACH_QUERY
def test_the_sum_of_units_within_the_bound_is_that_of_their_rows(query, rng):
    unit = np.repeat(np.arange(100), 2)
    X, y = rng.normal(size=(200, D)), (rng.random(200) < 0.5) + 0.0
    rows_sum = total_of(MemoryRecords(X, y, intercept=False, n_threads=1), query).integers
    # A vector at the bound is taken in by 2**-20 of itself, for what rounding may add.
    tolerance = 2.0**-20 * np.abs(rows_sum).max() if query is QUERIES["counts"] else 0.0
    np.testing.assert_allclose(integers(X, y, unit, query), rows_sum, rtol=0.0, atol=tolerance)
    # Power: units of eight rows are clipped, not their rows.
    if query is not QUERIES["logistic scores"]:
        assert np.abs(integers(X, y, unit // 4, query) - rows_sum).max() > 1e-3 * np.abs(rows_sum).max()


def model(**options):
    return dpi.models.LinearRegression(D, **options)


@pytest.fixture(scope="module")
def panel():
    """2000 units of 3 rows."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(6000, D))
    return X, X @ [1.0, 0.0, -1.0] + 0.5 * rng.normal(size=6000), np.repeat(np.arange(2000), 3)


def run(X, y=None, *, n_units=2000, **options):
    plan = dpi.plan_newton(model(), target_epsilon=2.0, target_delta=1e-5, n_records=n_units)
    defaults = {"plan": plan, "n_records": n_units, "response_scale": 1.0, "random_source": InsecureRNG(4)}
    return dpi.run_newton(model(), X, y, **(defaults | options))


def bits(release):
    return [getattr(release, name).tobytes() for name in ("moments", "scores", "counts") if hasattr(release, name)]


def test_units_of_one_row_give_the_release_of_a_run_by_rows(panel):
    """But for vectors at the bound, which are taken in twice by what rounding may add."""
    X, y, _ = panel
    by_rows = run(X, y, n_units=6000)
    by_units = run(X, y, n_units=6000, unit=Units(np.arange(6000)[::-1]))
    np.testing.assert_allclose(by_units.counts, by_rows.counts, rtol=1e-5)
    np.testing.assert_allclose(by_units.scores, by_rows.scores, rtol=1e-3, atol=1e-6)
    assert "unit" in by_units.settings
    assert "unit" not in by_rows.settings


def test_streams_and_shuffled_rows_give_the_same_bits(panel, rng):
    X, y, unit = panel
    whole = run(X, y, unit=Units(unit, max_rows=3))
    order = rng.permutation(len(unit))
    assert bits(run(X[order], y[order], unit=Units(unit[order], max_rows=3))) == bits(whole)
    streamed = run(mechanism.rows_of_arrays(X, y, unit, block_rows=1000), unit=Units(max_rows=3))
    assert bits(streamed) == bits(whole)


@pytest.mark.parametrize("target", ["model", "population"])
def test_shards_give_the_same_bits_or_are_refused(panel, rng, target):
    X, y, unit = (array[: len(panel[2]) // 4] for array in panel)
    size = len(np.unique(unit))
    model = dpi.models.LogisticRegression(3)
    plan = dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=size, target=target)
    given = {"plan": plan, "n_records": size}
    rows, shard = (X, (y > 0.0).astype(float), unit), rng.permutation(unit.max() + 1)[unit] % 3
    whole = dpi.run_newton(model, *rows[:2], unit=Units(unit, max_rows=3), random_source=InsecureRNG(4), **given)
    with ThreadPoolExecutor(2) as pool:

        def spread(shard):
            orders = [rng.permutation(np.flatnonzero(shard == index)) for index in range(3)]
            sources = [mechanism.rows_of_arrays(*(array[own] for array in rows)) for own in orders]
            there = ShardedRows(pool, sources)
            return dpi.run_newton(model, there, unit=Units(max_rows=3), random_source=InsecureRNG(4), **given)

        assert bits(spread(shard)) == bits(whole)
        shard[np.flatnonzero(unit == unit[0])[0]] += 1
        with pytest.raises(RecordError, match="unit must be in one shard"):
            spread(shard % 3)


def test_a_parquet_file_has_a_column_of_units(panel, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra parquet)")
    parquet = pytest.importorskip("pyarrow.parquet")
    X, y, unit = panel
    names = [f"p{name:05d}" for name in unit]
    table = pyarrow.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y, "person": names})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=1700)
    rows = mechanism.rows_of_parquet(tmp_path / "rows.parquet", ("a", "b", "c"), "y", "person")
    assert bits(run(rows, unit=Units(max_rows=3))) == bits(run(X, y, unit=Units(unit, max_rows=3)))


def test_the_release_is_about_units_and_finds_the_weights(panel, tmp_path):
    X, y, unit = panel
    people = dpi.PrivacyLedger.create(tmp_path / "spent").add_dataset("people", budget=(2.5, 1e-5))
    release = run(X, y, unit=Units(unit, max_rows=3), ledger=people, random_source=None)
    assert "a record being a unit with all its rows" in release.guarantee
    assert release.n_records == 6000
    assert release.settings["unit"] == {"n_units": 2000, "max_rows": 3.0, "mean_rows": 3.0}
    release.save(tmp_path / "a.release")
    assert "a unit with all its rows" in dpi.load_release(tmp_path / "a.release").guarantee
    posterior = dpi.noise_aware_posterior(release)
    assert np.abs(posterior.mean[:D] - [1.0, 0.0, -1.0]).max() < 5.0 * posterior.stddev[:D].max() < 0.5
    # The noise is for three rows at once.
    one = run(X, y, n_units=6000)
    assert release.score_stddev[-1] / release.clips[-1] > 2.0 * one.score_stddev[-1] / one.clips[-1]


def test_a_run_by_units_is_resumed(panel, tmp_path):
    X, y, unit = panel

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(done, total):
        if done == 3:
            raise Stopped

    place = mechanism.RunCheckpoint(tmp_path / "run", interval=0.0)
    names = np.array([f"person {name:04d}" for name in unit])
    options = {"unit": Units(names.astype(object), max_rows=3), "checkpoint": place}
    with pytest.raises(Stopped):
        run(X, y, progress=stop, **options)
    with pytest.raises(dpi.errors.CheckpointError, match="unit"):
        run(X, y, unit=Units(names, max_rows=2), checkpoint=place)
    with pytest.raises(RecordError, match="interrupted run"):
        run(X, y, unit=Units(names[::-1], max_rows=3), checkpoint=place)
    assert bits(run(X, y, **options)) == bits(run(X, y, unit=Units(unit, max_rows=3)))


def test_refusals(panel, tmp_path):
    X, y, unit = panel
    people = dpi.PrivacyLedger.create(tmp_path / "spent").add_dataset("people", budget=(9.0, 1e-5))
    paid = {"ledger": people, "random_source": None}
    source = mechanism.rows_of_arrays(X, y, unit)
    for value in (0.5, np.inf, np.nan):
        with pytest.raises(ValueError, match="max_rows"):
            Units(unit, max_rows=value)
    with pytest.raises(TypeError, match="unit must be Units or Clusters"):
        run(X, y, unit=unit, **paid)
    with pytest.raises(ValueError, match="unit must be given"):
        run(source, **paid)
    for rows, own in ((source, Units(unit)), (RowSource(lambda: iter([(X, y)])), Units())):
        with pytest.raises(ValueError, match="none with a RowSource or"):
            run(rows, unit=own, **paid)
    with pytest.raises(ValueError, match="unit must have ids"):
        run(X, y, unit=Units(), **paid)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ValueError, match="none with a RowSource or ShardedRows"):
            run(ShardedRows(pool, [mechanism.rows_of_arrays(X, y)]), unit=Units(), **paid)
        with pytest.raises(ValueError, match="unit must be given"):
            run(ShardedRows(pool, [source]), **paid)
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=3)
    with pytest.raises(TypeError, match="without units"):
        dpi.run_dpvi(model(), source, plan=plan, n_records=10, max_grad_norm=1.0, ledger=people)
    zero_out = dpi.plan_newton(
        model(), target_epsilon=2.0, target_delta=1e-5, n_records=2000, adjacency=Adjacency.ZERO_OUT
    )
    with pytest.raises(ValueError, match="zero_out"):
        run(X, y, unit=Units(unit), plan=zero_out, **paid)
    assert not people.runs()
    for ids in (unit[:-1], unit.astype(float), unit[:, None]):
        with pytest.raises(RecordError, match="unit must be"):
            run(X, y, unit=Units(ids))
    with pytest.raises(RecordError, match="unit must increase"):
        run(mechanism.rows_of_arrays(X, y, unit[::-1], block_rows=500), unit=Units())
    # Sorted in each block, and not over all.
    twice = np.concatenate((unit[:3000], unit[:3000]))
    with pytest.raises(RecordError, match="unit must increase"):
        run(mechanism.rows_of_arrays(X, y, twice, block_rows=3000), unit=Units())
    assert "private" in repr(Units(unit))
    assert "1999" not in repr(Units(unit))


def test_a_source_whose_units_change_ends_the_run(panel):
    X, y, unit = panel
    passes = []

    def blocks():
        passes.append(1)
        yield X, y, unit if len(passes) < 6 else unit // 2

    with pytest.raises(RecordError, match="same rows and units"):
        run(RowSource(blocks, units=True), unit=Units(max_rows=3))
