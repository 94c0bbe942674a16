"""Identities: any cut of the same records into blocks, with any types that hold the ids, gives the same sums."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.privacy.test_entry_points import Here

import dpinfer as dpi
from dpinfer.accounting import Adjacency
from dpinfer.errors import RecordError
from dpinfer.mechanism import RowSource, ShardedRows, Units, _native
from dpinfer.mechanism.newton.contributions import SecondMoments
from dpinfer.mechanism.newton.joint import CLUSTER_NORM, ClusterSizes, JointScores, StratumUnits
from dpinfer.mechanism.newton.own_rows import PersonScores
from dpinfer.mechanism.newton.pass_records import open_records
from dpinfer.mechanism.newton.unit_parts import open_persons
from dpinfer.mechanism.units import Clusters, NamesInOrder, check_identities, joined_names, unit_names
from dpinfer.models import PersonModel, SurveyWeights

D = 2
MODEL = dpi.models.LinearRegression(D)
MOMENTS = SecondMoments(np.eye(D) + 0.3, 2.0)
SURVEY = dpi.models.LinearRegression(D, survey_weights=SurveyWeights(1.0, 0.5, strata=3))
SCORES = JointScores(np.eye(D), np.ones(D), "gaussian", 1.5)
PERSONS = PersonModel("gaussian", ("a", "b"), max_rows=3, mean_rows=2.0, features=np.eye(2))
LARGE = (2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1)
NAMES = (-(2**63), -1, 0, 1, 2, 9, 10, *LARGE, 2**64, 10**30, "01", "1.0", "-0", "a", "a\0", "a\0b", "ä", "z" * 40)
quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def order(name):
    return (1, 0, name) if isinstance(name, str) else (0, name, "")


def in_type(names, kind, rng):
    """Return names in a type that holds them; numbers may be written in digits."""
    whole = all(isinstance(name, int) for name in names)
    if kind in ("i8", "u8", "i2") and whole:
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        if all(low <= name <= high for name in names):
            return np.array(names, dtype=kind)
    texts = [str(name) for name in names]
    if kind == "U" and not any(text.endswith("\0") for text in texts):
        return np.array(texts)
    if kind == "S" and not any("\0" in text for text in texts):
        return np.array([text.encode() for text in texts])
    mixed = [text if rng.random() < 0.5 else name for text, name in zip(texts, names, strict=True)]
    if kind == "list":
        return mixed
    held = np.empty(len(names), dtype=object)
    held[:] = mixed
    return held


@st.composite
def cases(draw):
    """Rows of units, sorted, with cuts, a type for each block, and a shard for each unit."""
    names = sorted(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=8, unique=True)), key=order)
    counts = [draw(st.integers(1, 4)) for _ in names]
    cuts = draw(st.lists(st.integers(0, sum(counts)), max_size=6))
    kinds = draw(st.lists(st.sampled_from(["i8", "u8", "i2", "U", "S", "list", "object"]), min_size=7, max_size=7))
    shards = [draw(st.integers(0, 2)) for _ in names]
    return names, counts, sorted({0, sum(counts), *cuts}), kinds, shards, draw(st.integers(0, 2**32))


def integers(records, query, max_norm=None):
    total = _native.PartialSum(length=query.length, max_norm=max_norm or 2.0 * query.max_norm)
    records.add(total, query)
    return total.integers.tobytes()


def held(X, y, **options):
    return open_records(options.pop("model", MODEL), X, y, Adjacency.ADD_REMOVE, n_threads=1, **options)


def ways_of(case):
    """Return rows with numbered units, the names as given in memory, a source, and shards."""
    names, counts, cuts, kinds, shards, seed = case
    rng = np.random.default_rng(seed)
    code = np.repeat(np.arange(len(names)), counts)
    X, y = rng.normal(size=(code.size, D)), rng.normal(size=code.size)
    X[rng.random(code.size) < 0.2] *= 1e3
    owners = [names[index] for index in code]

    def blocks(part):
        for (first, last), kind in zip(itertools.pairwise(cuts), kinds, strict=False):
            rows = [row for row in range(first, last) if shards[code[row]] == part or part is None]
            if rows:
                yield X[rows], y[rows], in_type([owners[row] for row in rows], kind, rng)

    source = RowSource(lambda: blocks(None), units=True)
    spread = ShardedRows(Here(), [RowSource(lambda part=part: blocks(part), units=True) for part in range(3)])
    return X, y, code, in_type(owners, kinds[0], rng), source, spread


@quick
@given(cases())
def test_units_have_the_same_sums_in_memory_in_streams_and_in_shards(case):
    X, y, code, owners, source, spread = ways_of(case)
    whole = integers(held(X, y, units=Units(code, 2.0)), MOMENTS)
    shuffled = np.random.default_rng(0).permutation(len(y))
    mixed = np.array(owners, dtype=object)[shuffled].tolist() if isinstance(owners, list) else owners[shuffled]
    assert integers(held(X, y, units=Units(owners, 2.0)), MOMENTS) == whole
    assert integers(held(X[shuffled], y[shuffled], units=Units(mixed, 2.0)), MOMENTS) == whole
    assert integers(held(source, None, units=Units(max_rows=2.0)), MOMENTS) == whole
    assert integers(held(spread, None, units=Units(max_rows=2.0)), MOMENTS) == whole


@quick
@given(cases())
def test_persons_have_the_same_sums_in_memory_in_streams_and_in_shards(case):
    X, y, code, owners, source, spread = ways_of(case)
    theta = PERSONS.parameters.prior_mean
    query = PersonScores(PERSONS, theta, np.eye(theta.size), 0.5, 0.5, 4.0, 0)
    ways = [(X, y, code), (X, y, owners), (source, None, None), (spread, None, None)]
    found = {
        integers(open_persons(PERSONS, X, y, Units(ids, 3.0, 2.0), n_threads=1), query, query.max_norm)
        for X, y, ids in ways
    }
    assert len(found) == 1


@quick
@given(cases())
def test_clusters_and_strata_have_the_same_sums_for_every_type(case):
    X, y, code, owners, _, _ = ways_of(case)
    sizes = ClusterSizes(SCORES, CLUSTER_NORM, np.array([0.5, 1.0, 2.0]))
    assert integers(held(X, y, units=Clusters(owners)), sizes) == integers(held(X, y, units=Clusters(code)), sizes)
    beside = np.column_stack((y, np.ones(len(y)), np.arange(len(y)) % 3))
    query = StratumUnits.of(SCORES, 3, SCORES.max_norm)
    for kind in (Clusters, lambda ids: Units(ids, 2.0)):
        one, other = (
            integers(held(X, beside, model=SURVEY, units=kind(ids)), query, query.max_norm) for ids in (owners, code)
        )
        assert one == other


def test_blocks_whose_ids_a_float_would_merge():
    """int64 and uint64, as `pandas.read_csv(chunksize=)` makes of ids of which one is 2**63 or more."""
    first, second = np.array([2**53, 2**53 + 1]), np.array([2**53 + 1, 2**63 + 1], dtype=np.uint64)
    assert np.concatenate((first, second)).dtype == np.float64
    joined = joined_names([check_identities(first, 2), check_identities(second, 2)])
    assert unit_names(joined) == [b"9007199254740992", b"9007199254740993", b"9223372036854775809"]


@pytest.mark.parametrize(
    ("blocks", "follows"),
    [
        ([[1, 2], [10, 11], ["11", "a"]], [False, False, True]),
        ([["1", "10"], ["2", "20"], [3]], [False, False, False]),  # as texts alone
        ([[9], np.array([2**63], dtype=np.uint64), [str(2**64)]], [False] * 3),
    ],
)
def test_a_source_is_sorted_by_number_or_by_text(blocks, follows):
    names = NamesInOrder()
    assert [names.follow(check_identities(block, len(block))) for block in blocks] == follows


@pytest.mark.parametrize(
    "blocks",
    [
        [[1, 2], ["1"]],  # a unit that comes back in another type
        [["a"], [1]],  # a number behind a text, and no order of texts
        [[9, 10], ["2"]],
        [["1", "10"], [2], [10]],  # sorted as texts until a name comes back
        [np.array([2**63], dtype=np.uint64), [5]],
    ],
)
def test_a_unit_that_may_come_back_is_refused(blocks):
    names = NamesInOrder()
    for block in blocks[:-1]:
        names.follow(check_identities(block, len(block)))
    with pytest.raises(RecordError, match="unit must increase"):
        names.follow(check_identities(blocks[-1], 1))


@pytest.mark.parametrize(
    "ids", [[1.0], [None], [True], np.array([1.5]), [10**4000], [["a"]], np.array([True])], ids=repr
)
def test_what_is_no_name_is_refused_without_a_word_of_it(ids):
    with pytest.raises(RecordError, match="unit must be") as caught:
        check_identities(ids, 1)
    assert "1.5" not in str(caught.value)
