"""One private sum of whatever a record contributes: exact, bounded, charged, resumed; and the recipe of a query."""

import importlib.util
import json
import math
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

import dpinfer as dpi
from dpinfer.accounting import account
from dpinfer.errors import CheckpointError, RecordError, ReleaseFormatError
from dpinfer.lab.replays import replay_audit
from dpinfer.lab.replays.records import neighbours
from dpinfer.lab.replays.scenario import Scenario
from dpinfer.mechanism import RowSource, RunCheckpoint
from dpinfer.mechanism.lattice_sums import NormSum
from dpinfer.mechanism.private_run import PrivateRun
from dpinfer.mechanism.row_trial import mixes_rows
from dpinfer.testing import InsecureRNG
from dpinfer.verify_release import verify

LAWS = {"laplace": 0.0, "gaussian": 1e-6}
ROWS = np.random.default_rng(1).normal(size=(300, 2))
OPTIONS = {"names": ("a", "b"), "max_norm": 2.0, "epsilon": 1.0}


@pytest.fixture(scope="module", autouse=True)
def streams_of_steps():
    """Noise of the query, as in every run outside of the tests."""


def same(rows):
    return rows


def seeded(rows, contribution=same, seed=7, **options):
    return dpi.private_sum(rows, contribution, **OPTIONS | options, random_source=InsecureRNG(seed))


@pytest.mark.parametrize("delta", LAWS.values(), ids=LAWS)
def test_with_the_same_noise_two_releases_differ_by_the_exact_difference(delta):
    """The noise does not depend on the records; contributions within the norm are rounded by at most a lattice step."""
    rows = np.clip(ROWS, -0.9, 0.9)
    moved = seeded(rows, delta=delta).noisy_sums - seeded(rows[:-3], delta=delta).noisy_sums
    np.testing.assert_allclose(moved, rows[-3:].sum(axis=0), rtol=0.0, atol=4 * 2.0**-29)


@pytest.mark.parametrize("delta", LAWS.values(), ids=LAWS)
@given(arrays(np.float64, (1, 2), elements=st.floats(allow_nan=True, allow_infinity=True)))
@settings(max_examples=25, deadline=None)
def test_one_record_moves_the_sums_by_at_most_the_norm(delta, record):
    moved = seeded(np.vstack((ROWS[:20], record)), delta=delta).noisy_sums - seeded(ROWS[:20], delta=delta).noisy_sums
    # Differences of doubles of size 100 are off by less than 1e-13.
    assert np.linalg.norm(moved, 2 if delta else 1) <= 2.0 + 1e-12
    if not np.all(np.isfinite(record)):
        assert np.all(moved == 0.0)


@given(arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=st.floats()), st.floats(1e-90, 1e90))
@settings(max_examples=200, deadline=None)
def test_integers_of_a_record_have_at_most_the_norm_in_integers(rows, norm):
    for row in rows:
        total = NormSum(3, norm)
        total.add_contributions(row[None, :])
        assert sum(abs(int(value)) for value in total._total) <= total.largest <= norm / total.step


def test_counts_stay_whole_numbers():
    total = NormSum(3, 2.0)
    total.add_contributions(np.tile([[1.0, 0.0, 1.0]], (1000, 1)))
    assert (total._total * total.step).tolist() == [1000.0, 0.0, 1000.0]


@pytest.mark.parametrize("delta", LAWS.values(), ids=LAWS)
def test_intervals_leave_out_what_the_noise_does(delta):
    """2000 draws of the noise: shares within 4.5 standard errors, a false alarm in 150 000."""
    names = [str(index) for index in range(2000)]
    release = dpi.private_sum(
        ROWS[:3], lambda rows: np.zeros((len(rows), 2000)), names=names, max_norm=1.0, epsilon=1.0, delta=delta
    )
    for level in (0.5, 0.9):
        low, high = release.interval(level).T
        share = np.mean((low <= 0.0) & (high >= 0.0))
        assert abs(share - level) <= 4.5 * math.sqrt(level * (1.0 - level) / 2000)
    law = stats.norm if delta else stats.laplace
    assert stats.kstest(release.noisy_sums / release.noise_scale, law.cdf).pvalue > 1e-5
    assert release.noise_stddev == pytest.approx(law.std() * release.noise_scale)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("delta", LAWS.values(), ids=LAWS)
def test_what_is_stated_is_what_was_asked(adjacency, delta):
    release = dpi.private_sum(ROWS, same, **OPTIONS, delta=delta, adjacency=adjacency)
    assert 0.99 < release.epsilon <= 1.0
    assert account(release.event, delta=delta or 1e-9, adjacency=adjacency).epsilon <= 1.0 + 1e-12
    factor = 2.0 if adjacency == "replace_one" else 1.0
    if not delta:
        assert release.noise_scale == pytest.approx(factor * 2.0)


def test_under_zero_out_a_blank_record_is_none():
    with_count = {"contribution": lambda rows: np.ones((len(rows), 2)), "adjacency": "zero_out"}
    blank = np.vstack((ROWS, np.full((1, 2), np.nan)))
    assert np.array_equal(seeded(blank, **with_count).noisy_sums, seeded(ROWS, **with_count).noisy_sums)


def test_what_code_cannot_compute_of_a_record_adds_nothing_and_says_nothing():
    def code(rows):
        if np.any(rows > 1e6):
            raise RuntimeError("there is such a record")
        return rows

    hostile = np.vstack((ROWS, [[1e7, 0.0], [np.nan, 1.0]]))
    assert np.array_equal(seeded(hostile, code).noisy_sums, seeded(ROWS, code).noisy_sums)


def test_a_source_has_the_sums_of_its_array():
    source = RowSource(lambda: (np.array(part) for part in np.array_split(ROWS, 4)), 2)
    for delta in LAWS.values():
        assert np.array_equal(seeded(source, delta=delta).noisy_sums, seeded(ROWS, delta=delta).noisy_sums)


def test_another_query_has_another_noise_under_the_same_key():
    zero = np.zeros((5, 2))
    first = seeded(zero, delta=1e-6).noisy_sums
    assert not np.any(first == seeded(zero, lambda rows: rows * 1.0, delta=1e-6).noisy_sums)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"contribution": lambda rows: rows - rows.mean(axis=0)}, ValueError, "from that row alone"),
        ({"contribution": lambda rows: rows[:, :1]}, ValueError, "for each name"),
        ({"contribution": lambda rows: rows[0]}, ValueError, "for each name"),
        ({"contribution": lambda rows: 1 / 0}, ValueError, "zeros and ones"),
        ({"contribution": "sum"}, TypeError, "contribution"),
        ({"names": ()}, ValueError, "names"),
        ({"names": ("a", "a")}, ValueError, "names"),
        ({"names": "ab"}, TypeError, "names"),
        ({"max_norm": 0.0}, ValueError, "max_norm"),
        ({"max_norm": math.inf}, ValueError, "max_norm"),
        ({"epsilon": 0.0}, ValueError, "epsilon"),
        ({"delta": 1.0}, ValueError, "delta"),
        ({"delta": -0.1}, ValueError, "delta"),
        ({"adjacency": "both"}, ValueError, "adjacency"),
        ({"records": np.array(["a"])}, TypeError, "records"),
        ({"records": None}, TypeError, "records"),
    ],
)
def test_what_is_wrong_is_refused_before_the_charge(change, error, text, tmp_path):
    people = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(9.0, 1e-5))
    arguments = {"records": ROWS, "contribution": same, **OPTIONS, "ledger": people} | change
    with pytest.raises(error, match=text):
        dpi.private_sum(**arguments)
    assert list(people.runs()) == []


COUPLED = {
    "a mean": lambda rows: rows - rows.mean(axis=0),
    "an extreme": lambda rows: rows / np.maximum(1.0, np.abs(rows).max(axis=0)),
    "a spread": lambda rows: rows / (1.0 + rows.std(axis=0)),
    "a median": lambda rows: rows > np.median(rows, axis=0),
    "ranks": lambda rows: rows.argsort(axis=0).argsort(axis=0),
    "a number of rows": lambda rows: np.ones_like(rows) / len(rows),
    "a threshold of all": lambda rows: rows * (1.0 if np.nanmax(np.abs(rows)) < 1e5 else 2.0),
    "missing values": lambda rows: np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows),
    "the row before": lambda rows: np.diff(rows, axis=0, prepend=rows[:1]),
    "the first of its kind": lambda rows: rows * np.isin(
        np.arange(len(rows)), np.unique(rows[:, 0], return_index=True)[1])[:, None],
    "a label's frequency": lambda rows: rows * np.unique(rows[:, 0], return_inverse=True, return_counts=True)[2][
        np.unique(rows[:, 0], return_inverse=True)[1].ravel()][:, None],
    "bits of a product": lambda rows: rows @ np.random.default_rng(0).normal(size=(2, 2)),
}  # fmt: skip
APART = {
    "itself": same,
    "a sum along the row": lambda rows: rows * rows.sum(axis=1, keepdims=True),
    "a code's indicator": lambda rows: np.eye(2)[rows[:, 0].astype(int)],
    "raises where a value is missing": lambda rows: rows if not np.isnan(rows).any() else 1 / 0,
}
FORMS = {
    "an array": lambda rows: rows,
    "lists": lambda rows: rows.tolist(),
    "tuples of arrays": tuple,
    "a source": lambda rows: RowSource(lambda: iter([rows]), rows.shape[1]),
    "a source of unknown width": lambda rows: RowSource(lambda: iter([rows])),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*COUPLED, *APART])
def test_rows_that_are_coupled_are_refused_before_the_charge_in_every_form(name, form, tmp_path):
    people = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(9.0, 1e-5))
    arguments = {"records": FORMS[form](ROWS), **OPTIONS, "ledger": people}
    if name in APART:
        dpi.private_sum(contribution=APART[name], **arguments)
        return
    with pytest.raises(ValueError, match="from that row alone"):
        dpi.private_sum(contribution=COUPLED[name], **arguments)
    assert list(people.runs()) == []


@given(
    st.sampled_from([np.nanmean, np.nanmax, np.nanmin, np.nanmedian, np.nanstd, np.nansum]),
    st.sampled_from([np.add, np.subtract, np.multiply, np.divide, np.hypot]),
    st.sampled_from([np.abs, np.sign, np.tanh, np.arctan, np.cbrt, lambda x: x]),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_any_summary_of_the_rows_is_seen(summary, combine, shape, along):
    """Along the row it is the row's own, and allowed; along the column of the block it couples rows."""
    axis = 1 if along else 0

    def code(rows):
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            return combine(shape(rows), summary(shape(rows), axis=axis, keepdims=True)).astype(np.float64)

    assert mixes_rows(code, 2) == (not along)


def test_a_source_whose_width_cannot_be_found_is_asked_for_it():
    wide = np.zeros((3, 90))
    with pytest.raises(ValueError, match="n_features"):
        dpi.private_sum(RowSource(lambda: iter([wide])), lambda rows: rows[:, [80, 89]], **OPTIONS)
    dpi.private_sum(RowSource(lambda: iter([wide]), 90), lambda rows: rows[:, [80, 89]], **OPTIONS)


def test_an_interrupted_call_goes_on_with_its_noise_for_one_charge(tmp_path, monkeypatch):
    people = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(1.5, 1e-5))
    terms = OPTIONS | {"delta": 1e-6}
    kept, other = RunCheckpoint(tmp_path / "kept"), tmp_path / "run"
    first = dpi.private_sum(ROWS, same, **terms, ledger=people, checkpoint=kept)
    assert kept.load().complete
    again = dpi.private_sum(ROWS, same, **terms, ledger=people, checkpoint=kept)
    assert np.array_equal(first.noisy_sums, again.noisy_sums)

    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    people = dpi.PrivacyLedger(people.path).add_dataset("others", budget=(1.5, 1e-5))
    with monkeypatch.context() as patch:
        patch.setattr(PrivateRun, "save", interrupted)  # called when the noise is drawn
        with pytest.raises(KeyboardInterrupt):
            dpi.private_sum(ROWS, same, **terms, ledger=people, checkpoint=other)
    with pytest.raises(CheckpointError, match="differs in asked"):
        dpi.private_sum(ROWS, lambda rows: -rows, **terms, ledger=people, checkpoint=other)
    with pytest.raises(RecordError, match="interrupted run"):
        dpi.private_sum(ROWS[1:], same, **terms, ledger=people, checkpoint=other)
    release = dpi.private_sum(ROWS, same, **terms, ledger=people, checkpoint=other)
    assert [run.status for run in people.runs()] == ["finished"]
    assert not other.exists()
    assert release.settings["ledger"]["dataset"] == "others"


@pytest.mark.parametrize("delta", LAWS.values(), ids=LAWS)
def test_a_release_is_saved_loaded_certified_and_bound_to_its_event(delta, tmp_path):
    release = dpi.private_sum(ROWS, same, **OPTIONS, delta=delta)
    release.save(tmp_path / "a.release")
    again = dpi.load_release(tmp_path / "a.release", dpi.SumRelease)
    assert np.array_equal(again.noisy_sums, release.noisy_sums)
    assert (again.noise, again.noise_scale, again.epsilon) == (release.noise, release.noise_scale, release.epsilon)
    report = verify(release.certificate().encode(), (tmp_path / "a.release").read_bytes())
    assert (report.contradicts, report.promised) == ([], True)
    for change in ({"noise_scale": 0.9 * release.noise_scale}, {"max_norm": 2.1}, {"noisy_sums": np.zeros(3)}):
        with pytest.raises(ValueError, match=r"noise_scale|noisy_sums"):
            release.replace(**change)
    (tmp_path / "b.release").write_bytes(
        (tmp_path / "a.release").read_bytes().replace(b'"max_norm": 2', b'"max_norm": 3')
    )
    with pytest.raises(ReleaseFormatError):
        dpi.load_release(tmp_path / "b.release")
    with pytest.raises(TypeError, match="has a posterior"):
        dpi.noise_aware_posterior(release)


QUERY = '''
"""A median: a query of one's own."""
import numpy as np
import dpinfer as dpi

POINTS = np.linspace(-3.0, 3.0, 61)

def private_median(values, **terms):
    """Release how many values lie at or below each of 61 points, and return about where half of them do."""
    below = dpi.private_sum(
        values, lambda rows: rows[:, None] <= POINTS, names=[f"<= {point:.1f}" for point in POINTS],
        max_norm=len(POINTS) ** 0.5, **terms,
    )
    return POINTS[np.argmin(np.abs(below.noisy_sums - 0.5 * below.noisy_sums[-1]))], below
'''


def test_the_recipe_of_a_private_query_is_one_file(tmp_path, monkeypatch):
    """The row of docs/architecture.md: one file; then it is charged, saved, certified and audited."""
    path = tmp_path / "median.py"
    path.write_text(QUERY, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("median", path)
    own = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "median", own)
    spec.loader.exec_module(own)
    people = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(1.0, 1e-5))
    values = np.random.default_rng(3).normal(0.5, 1.0, 4000)
    median, release = own.private_median(values, epsilon=1.0, delta=1e-6, ledger=people)
    # The noise of a count is 29, that of the median 0.02, and points are 0.1 apart.
    assert abs(median - 0.5) < 0.25
    release.save(tmp_path / "median.release")
    certificate = release.certificate(ledger=tmp_path / "spent.ledger")
    files = [(tmp_path / name).read_bytes() for name in ("median.release", "spent.ledger")]
    assert verify(certificate.encode(), *files).contradicts == []
    assert json.loads(certificate)["statement"]["release"]["format"] == "dpinfer-sum-release"

    records = (np.linspace(-1.0, 1.0, 12),)
    found = tuple(item for item in neighbours(records, (np.array([0.3]),), (np.array([1e300]),), release.adjacency))

    def audited(contribution):
        def run(parts, place):
            terms = {"names": ("low", "high"), "max_norm": 1.5, "epsilon": 1.0, "ledger": place.account}
            return dpi.private_sum(place.watched(parts[0]), contribution, **terms)

        usable = tuple(item for item in found if not item.refused)
        return replay_audit([Scenario("query", "median", run, records, usable, ledger=True)])

    assert audited(lambda rows: np.column_stack((rows < 0.0, rows > 0.5))).passed

    # The power twin: a contribution that looks at the rows beside its own, where there are more of them than the trial.
    def mixed(rows):
        return np.column_stack((rows, np.full(len(rows), float(len(rows) > 12))))

    assert not audited(mixed).passed
