"""Private counts, quantiles and labels: what they return, that their laws are those of the proofs, and refusals."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi
from dpinfer._values import as_values
from dpinfer.accounting import Adjacency, ApproximateEvent, PureEvent, SelfComposed
from dpinfer.errors import RecordError
from dpinfer.lab.replays import replace_everywhere
from dpinfer.mechanism import CudaRows, RowSource
from dpinfer.mechanism.unknowns import draws
from dpinfer.mechanism.unknowns import releases as unknowns
from dpinfer.mechanism.unknowns.draws import (
    HeldColumn,
    QuantileSearch,
    least_threshold,
    select_least,
    thresholded_counts,
)
from dpinfer.mechanism.unknowns.releases import labels_of
from dpinfer.release import CountRelease
from dpinfer.testing import InsecureRNG

RNG = np.random.default_rng(61)


def keys(count, seed):
    source = InsecureRNG(seed)
    return [source.take_key() for _ in range(count)]


def weights(costs, sensitivity, epsilon):
    own = np.exp(-epsilon * (np.array(costs) - min(costs)) / (2.0 * sensitivity))
    return own / own.sum()


@pytest.mark.statistical
def test_a_selection_has_the_law_of_the_exponential_mechanism():
    """False-positive rate 1e-6 each; the power twin is the law without the factor 2, which must be rejected."""
    costs, sensitivity, epsilon, draws = [0, 3, 10, 1, 40], 2, 1.5, 6000
    found = Counter(
        select_least(costs, sensitivity=sensitivity, epsilon=epsilon, key=key, stream=1) for key in keys(draws, 62)
    )
    observed = np.array([found[place] for place in range(len(costs))])

    def p_value(expected):
        seen = draws * expected > 1.0
        pooled = [np.append(values[seen], values[~seen].sum()) for values in (observed, draws * expected)]
        pooled = [values[:-1] if not (~seen).any() else values for values in pooled]
        return stats.chisquare(*pooled).pvalue

    assert p_value(weights(costs, sensitivity, epsilon)) > 1e-6
    assert p_value(weights(costs, sensitivity, 2.0 * epsilon)) < 1e-6


def worst_ratio(values, others, search, probability, *, replace, mutant=None):
    """The largest log-ratio of the probabilities of any sequence of cells, draw by draw, against what is claimed."""
    seen = []

    def tape(costs, *, sensitivity, epsilon, **where):
        seen.append((list(costs), mutant or sensitivity, epsilon))
        # The same cells in both data sets, so that the second draws are among the same ones.
        return len(costs) // 2 + len(seen) % 2

    with replace_everywhere(draws.select_least, tape):
        for data in (values, others):
            unknowns.draw_bounds(
                [HeldColumn(np.asarray(data))], [search], probability, epsilon=0.5,
                relation=Adjacency.REPLACE_ONE if replace else Adjacency.ADD_REMOVE, key=bytes(32),
            )  # fmt: skip
    half = len(seen) // 2
    assert half == search.n_selections
    logs = [np.log(weights(*entry)) for entry in seen]
    return max(float(np.abs(one - two).max()) for one, two in zip(logs[:half], logs[half:], strict=True))


@pytest.mark.parametrize("limits", [None, (-3.0, 5.0)])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("probability", [0.02, 0.1, 0.37])
def test_neighbours_change_no_probability_of_a_cell_by_more_than_is_claimed(limits, replace, probability):
    search = QuantileSearch(limits)
    for size in (1, 7, 60):
        values = np.round(RNG.normal(size=size), 1)
        for extreme in (-np.inf, -1e300, 0.0, 1.0, 1e300, np.nan):
            others = np.append(values[:-1], extreme) if replace else np.append(values, extreme)
            assert worst_ratio(values, others, search, probability, replace=replace) <= 0.5 * (1.0 + 1e-9)
    # The power twin: half the sensitivity.
    bottom = Fraction(probability).limit_denominator(10**6).denominator
    values = np.zeros(40)
    broken = worst_ratio(
        values, np.append(values[:-1], 1.0) if replace else np.append(values, 1.0), search, probability,
        replace=replace, mutant=bottom // 4,
    )  # fmt: skip
    assert broken > 0.5


def passes(threshold, rate):
    """The probability that one record's label passes: a tail of the discrete Laplace law."""
    return math.exp(-rate * (threshold - 1)) / (1.0 + math.exp(-rate))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-9), (0.3, 1e-6), (1.0, 1e-5), (8.0, 0.3)])
def test_the_threshold_is_the_least_that_a_single_record_hardly_passes(epsilon, delta, replace):
    moves = 2 if replace else 1
    threshold = least_threshold(epsilon, delta, replace=replace)
    assert moves * passes(threshold, epsilon / moves) <= delta
    assert threshold == 2 or moves * passes(threshold - 1, epsilon / moves) > delta


@pytest.mark.statistical
def test_a_label_of_one_record_passes_as_rarely_as_is_claimed():
    """At a low threshold, so that it can be counted: two-sided, false-positive rate 1e-6; the twin is one lower."""
    threshold, draws = 3, 4000
    passed = sum(
        bool(thresholded_counts({"one": 1}, epsilon=1.0, threshold=threshold, replace=False, key=key, column="c"))
        for key in keys(draws, 63)
    )
    assert stats.binomtest(passed, draws, passes(threshold, 1.0)).pvalue > 1e-6
    assert stats.binomtest(passed, draws, passes(threshold - 1, 1.0)).pvalue < 1e-6


def test_the_noise_of_a_label_does_not_depend_on_the_others():
    given = {"epsilon": 0.5, "threshold": -(10**9), "replace": False, "key": bytes(32)}
    one = thresholded_counts({"a": 10, "b": 20}, column="c", **given)
    more = thresholded_counts({"b": 20, "x": 3, "a": 10}, column="c", **given)
    assert one["a"] == more["a"]
    assert one["b"] == more["b"]
    draws = [thresholded_counts({"a": 0}, column=f"c{number}", **given)["a"] for number in range(50)]
    assert len(set(draws)) > 5


def test_a_count_is_near_and_states_its_guarantee():
    release = dpi.release_count(np.zeros((4000, 2)), epsilon=0.5)
    assert abs(release.n_records - 4000) < 100
    assert (release.epsilon, release.delta) == (0.5, 0.0)
    assert release.event == PureEvent(0.5, "add_remove")
    assert "0.5-differentially private" in release.guarantee
    assert dpi.release_count([], epsilon=5.0).n_records >= 1
    blank = np.vstack((np.ones((300, 2)), np.full((500, 2), np.nan)))
    assert abs(dpi.release_count(blank, epsilon=1.0, adjacency="zero_out").n_records - 300) < 60
    copy = release.replace(leaks=("something",))
    assert math.isinf(copy.epsilon)


@pytest.mark.parametrize("noisy", [-5, 0, 1, 2, 7, 40, 5000])
@pytest.mark.parametrize("scale", [0.7, 3.0, 20.0])
def test_the_law_of_the_number_of_records_is_that_of_the_noise_cut_at_one(noisy, scale):
    release = CountRelease(
        noisy_count=noisy, laplace_scale=scale, event=PureEvent(1.0 / scale, "add_remove"), adjacency="add_remove"
    )
    numbers = np.arange(1, max(noisy, 0) + int(60 * scale) + 50)
    law = np.exp(-np.abs(numbers - noisy) / scale)
    law /= law.sum()
    levels = np.array([0.01, 0.05, 0.3, 0.5, 0.8, 0.95, 0.99])
    np.testing.assert_array_equal(release.quantile(levels), numbers[np.searchsorted(np.cumsum(law), levels)])
    assert release.mean == pytest.approx(float(law @ numbers), rel=1e-9)
    drawn = release.sample(20_000, seed=1)
    spread = math.sqrt(float(law @ (numbers - release.mean) ** 2) / drawn.size)
    assert abs(drawn.mean() - release.mean) < 6.0 * spread + 1e-9


@pytest.mark.parametrize(
    ("centre", "spread", "limits"),
    [(0.0, 1.0, None), (1013.0, 6.0, None), (-3e-4, 1e-5, None), (1e9, 2e8, None), (40.0, 15.0, (0.0, 150.0))],
)
def test_bounds_are_near_whatever_the_units(centre, spread, limits):
    values = centre + spread * RNG.normal(size=20_000)
    release = dpi.release_bounds(values, epsilon=0.5, limits=[limits], random_source=InsecureRNG(3))
    assert abs(release.centre[0] - centre) < spread
    assert 0.5 * spread < release.scale[0] < 2.0 * spread
    low, high = release.bounds()[0]
    assert np.mean((low <= values) & (values <= high)) > 0.95
    if limits is not None:
        assert low >= limits[0]
        assert high <= limits[1]


def test_bounds_of_several_columns_share_the_epsilon():
    X = np.column_stack((RNG.normal(size=3000), RNG.uniform(50.0, 60.0, size=3000)))
    X[::10, 0] = np.nan
    release = dpi.release_bounds(X, epsilon=1.2, names=("a", "b"), limits=(None, (0.0, 100.0)))
    assert release.event == SelfComposed(PureEvent(0.2, "add_remove"), 6)
    assert 1.2 * (1.0 - 1e-9) < release.epsilon <= 1.2
    assert release.bounds().shape == (2, 2)
    nothing = dpi.release_bounds(np.zeros(0), epsilon=1.0)
    assert nothing.lower[0] < nothing.upper[0]
    assert dpi.release_bounds(np.full(900, 7), epsilon=1.0).scale[0] > 0.0


def test_labels_that_many_have_are_released_and_others_are_not():
    column = np.array(["cat"] * 900 + ["dog"] * 500 + ["emu"] + [" cat "] * 100 + [""] * 300)
    numbers = [3.0] * 900 + [None] * 50 + [float("nan")] * 51 + [17.0] * 800
    release = dpi.release_categories({"pet": column, "code": numbers}, epsilon=1.0, delta=1e-6)
    assert release.categories == {"pet": ("cat", "dog"), "code": ("3", "17")}
    assert release.event == SelfComposed(ApproximateEvent(0.5, 5e-7, "add_remove"), 2)
    assert 0.999 < release.epsilon <= 1.0
    assert release.delta == 1e-6
    assert abs(release.noisy_counts["pet"]["cat"] - 1000) < 60
    assert dpi.release_categories(column, epsilon=1.0, delta=1e-6, max_labels=1).categories["value"] == ("cat",)
    with pytest.raises(ValueError, match="threshold"):
        release.replace(threshold=10**6)


def test_what_cannot_be_a_name_is_no_label():
    named = ["a", b"a", 2.5, 3.0, True, float("inf")]
    unnamed = ["", "a\nb", "x" * 2000, "\ud800", None, "nan", ("a",), b"\xff"]
    assert labels_of(as_values("records", named + unnamed)) == {"a": 2, "2.5": 1, "3": 1, "1": 1, "inf": 1}


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: dpi.release_count(np.zeros(9), epsilon=0.0), ValueError, "epsilon"),
        (lambda: dpi.release_count(np.zeros(9), epsilon=1.0, adjacency="replace_one"), ValueError, "replace_one"),
        (lambda: dpi.release_count(5, epsilon=1.0), TypeError, "records"),
        (lambda: dpi.release_bounds(np.zeros(9), epsilon=1.0, probability=0.5), ValueError, "probability"),
        (lambda: dpi.release_bounds(np.zeros(9), epsilon=1.0, limits=[(1.0, 1.0)]), ValueError, "low < high"),
        (lambda: dpi.release_bounds(np.zeros(9), epsilon=1.0, limits=(1.0, 2.0, 3.0)), ValueError, "limits"),
        (lambda: dpi.release_bounds(np.zeros((9, 2)), epsilon=1.0), RecordError, "one for each of names"),
        (lambda: dpi.release_bounds(np.zeros((9, 2)), epsilon=1.0, names=("a", "a")), ValueError, "twice"),
        (lambda: dpi.release_bounds(np.array(["a"]), epsilon=1.0), TypeError, "real numbers"),
        (lambda: dpi.release_categories(["a"], epsilon=1.0, delta=0.0), ValueError, "delta"),
        (lambda: dpi.release_categories({}, epsilon=1.0, delta=1e-6), ValueError, "at least one"),
        (lambda: dpi.release_categories(np.array([["a"]]), epsilon=1.0, delta=1e-6), RecordError, "one column"),
        (lambda: dpi.release_categories(["a"], epsilon=1.0, delta=1e-6, max_labels=0), ValueError, "max_labels"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("limits", [None, [(-2.0, 3.0), None]])
def test_bounds_of_a_stream_are_those_of_the_arrays(limits):
    X = RNG.normal(size=(900, 2))
    X[::7, 1] = np.nan
    rows = RowSource(lambda: iter(np.array_split(X, 5)))
    options = {"epsilon": 2.0, "names": ("a", "b"), "limits": limits}
    held, read = (dpi.release_bounds(own, random_source=InsecureRNG(8), **options) for own in (X, rows))
    assert np.array_equal(held.lower, read.lower)
    assert np.array_equal(held.upper, read.upper)


def test_a_stream_that_changes_between_passes_is_no_answer():
    passes = iter(range(9))
    rows = RowSource(lambda: iter([np.ones((100 + next(passes), 1))]))
    with pytest.raises(RecordError, match="the same rows in every pass"):
        dpi.release_bounds(rows, epsilon=1.0)


def test_streams_are_counted():
    X = RNG.normal(size=(600, 2))
    X[:50] = np.nan
    rows = RowSource(lambda: iter(np.array_split(X, 4)))
    one_way = {"epsilon": 50.0, "random_source": InsecureRNG(9)}
    assert dpi.release_count(rows, **one_way).n_records == 600
    assert dpi.release_count(rows, adjacency="zero_out", **one_way).n_records == 550
    assert dpi.release_count(RowSource(lambda: iter(())), **one_way).n_records <= 1
    with pytest.raises(TypeError, match="without units"):
        dpi.release_count(RowSource(lambda: iter(()), units=True), **one_way)
    with pytest.raises(RecordError, match="got a single value"):
        dpi.release_count(RowSource(lambda: iter([3.0])), **one_way)


def test_rows_for_a_gpu_are_counted():
    rows = object.__new__(CudaRows)  # without a GPU there is no other way
    rows._X = np.zeros((600, 2))
    assert abs(dpi.release_count(rows, epsilon=50.0).n_records - 600) < 5
