"""No usable row: every entry point releases its noise alone, as it does beside a neighbour with one row."""

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.privacy.test_entry_points import CASES, NEWTON, Here, N, runnable

import dpinfer as dpi
from dpinfer.accounting import Adjacency
from dpinfer.errors import FallbackWarning
from dpinfer.formulas import SiloTable
from dpinfer.lab.replays.audit import replay_audit
from dpinfer.lab.replays.commands import all_scenarios
from dpinfer.lab.replays.scenario import Neighbour
from dpinfer.mechanism import Clusters, RowSource, RunCheckpoint, ShardedRows, Units
from dpinfer.mechanism.silos import LocalLine, Silos, Site
from dpinfer.models import PersonModel, SurveyWeights
from dpinfer.testing import InsecureRNG

PERSONS = PersonModel("gaussian", ("a", "b"), max_rows=3, mean_rows=2.0, features=np.eye(2))
LINEAR, LOGISTIC = dpi.models.LinearRegression(2), dpi.models.LogisticRegression(2)
WEIGHTED = dpi.models.LinearRegression(2, survey_weights=SurveyWeights(1.0, 0.5, strata=2))
COLUMNS = {
    "x": {"kind": "continuous", "bounds": [0, 10]},
    "y": {"kind": "continuous", "bounds": [-5, 12]},
    "w": {"kind": "continuous", "bounds": [0, 3], "mean": 1, "sd": 0.5},
    "group": {"kind": "categorical", "categories": ["a", "b"]},
    "won": {"kind": "binary", "positive": "1", "negative": "0"},
    "who": {"kind": "ignore"},
}
SCHEMA = dpi.tabular.Schema.from_dict({"columns": COLUMNS})


def first(values, count):
    return values[:count]


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("entry", runnable(CASES))
def test_an_entry_point_runs_on_no_row_and_on_one(entry, count):
    assert entry(partial(first, count=count)) is not None


@pytest.mark.parametrize("entry", NEWTON)
def test_an_interrupted_run_on_no_row_goes_on(entry, tmp_path):
    """Its checkpoint knows these records, too: other ones are refused."""

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    place = RunCheckpoint(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        entry(partial(first, count=0), checkpoint=place, progress=stop, random_source=InsecureRNG(1))
    with pytest.raises(dpi.errors.RecordError, match="those of the interrupted run"):
        entry(partial(first, count=1), checkpoint=place, random_source=InsecureRNG(1))
    resumed = entry(partial(first, count=0), checkpoint=place, random_source=InsecureRNG(1))
    whole = entry(partial(first, count=0), random_source=InsecureRNG(1))
    arrays = [name for name, value in vars(whole).items() if isinstance(value, np.ndarray)]
    assert all(getattr(resumed, name).tobytes() == getattr(whole, name).tobytes() for name in arrays)


def run(model, X, y=None, **options):
    target = options.pop("target", "model")
    clusters = isinstance(options.get("unit"), Clusters)
    plan = dpi.plan_newton(
        model,
        target_epsilon=1.0,
        target_delta=1e-5,
        n_records=N,
        target=target,
        **({"clusters": True} if clusters else {}),
    )
    scale = {"response_scale": 1.0} if isinstance(model, dpi.models.LinearRegression) else {}
    return dpi.run_newton(model, X, y, plan=plan, n_records=N, **scale, **options)


EMPTY = np.empty((0, 2)), np.empty(0)
PLACES = {
    "lists": lambda: ([], [], {}),
    "a source without a block": lambda: (RowSource(lambda: iter(())), None, {}),
    "a source of empty blocks": lambda: (RowSource(lambda: iter([EMPTY, EMPTY])), None, {}),
    "shards": lambda: (ShardedRows(Here(), [RowSource(lambda: iter(()))] * 1), None, {}),
    "units": lambda: (*EMPTY, {"unit": Units(np.empty(0, int), 2.0)}),
    "a source of units": lambda: (RowSource(lambda: iter(()), units=True), None, {"unit": Units(max_rows=2.0)}),
    "shards of units": lambda: (
        ShardedRows(Here(), [RowSource(lambda: iter(()), units=True), RowSource(tuple, units=True)]),
        None,
        {"unit": Units(max_rows=2.0)},
    ),
}


@pytest.mark.parametrize("target", ["model", "population"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", [LINEAR, LOGISTIC], ids=["linear", "logistic"])
def test_the_place_of_no_row_changes_no_bit(model, place, target):
    X, y, options = PLACES[place]()
    found = run(model, X, y, target=target, random_source=InsecureRNG(2), **options)
    alone = run(
        model,
        *EMPTY,
        target=target,
        random_source=InsecureRNG(2),
        **{name: Units(np.empty(0, int), value.max_rows) for name, value in options.items()},
    )
    name = "scores" if hasattr(found, "scores") else "moments"
    assert getattr(found, name).tobytes() == getattr(alone, name).tobytes()


@pytest.mark.parametrize("ids", [[], np.empty(0, "U1"), np.empty(0, object), np.empty(0, int)], ids=repr)
def test_persons_clusters_and_strata_run_on_no_row(ids):
    run(PERSONS, *EMPTY, unit=Units(ids, 3.0, 2.0))
    run(PERSONS, RowSource(tuple, units=True), unit=Units(None, 3.0, 2.0))
    run(LINEAR, *EMPTY, unit=Clusters(ids), target="population")
    for options in ({}, {"unit": Units(ids, 2.0)}, {"unit": Clusters(ids)}):
        run(WEIGHTED, np.empty((0, 2)), np.empty((0, 3)), target="population", **options)
        run(WEIGHTED, [], [], target="population", **options)


def tables(folder):
    """Return tables without a record, and without one that lacks nothing."""
    pandas = pytest.importorskip("pandas")
    empty = {name: [] for name in COLUMNS}
    header = ",".join(COLUMNS) + "\n"
    (folder / "header.csv").write_text(header)
    (folder / "blank.csv").write_text(header + "," * 4 + ",7\n")
    return {
        "lists": empty,
        "missing": {name: [None if name != "who" else 7] * 9 for name in COLUMNS},
        "frame": pandas.DataFrame(empty),
        "header": str(folder / "header.csv"),
        "blank": str(folder / "blank.csv"),
    }


FITS = {
    "linear": ("y ~ x + group", {}),
    "population": ("y ~ x", {"target": "population"}),
    "logistic": ("won ~ x", {"family": "binomial"}),
    "dpvi": ("won ~ x", {"family": "binomial", "method": "dpvi"}),
    "weights": ("y ~ x", {"weights": "w", "strata": "group"}),
    "units": ("y ~ x", {"unit": Units("who", 3.0)}),
    "mixed": ("y ~ x + (1 | group)", {}),
}


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("place", ["lists", "missing", "frame", "header", "blank"])
def test_a_table_without_a_record_rests_on_the_prior_and_says_so(fit, place, tmp_path):
    pytest.importorskip("formulaic")
    formula, options = FITS[fit]
    given = {"schema": SCHEMA, "epsilon": 1.0, "delta": 1e-6, "n_records": 500, "random_source": InsecureRNG(3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        found = dpi.regression(formula, tables(tmp_path)[place], **given, **options)
    rows = found.coefficients(level=0.9)
    width = rows["x"]["high"] - rows["x"]["low"]
    # By the bounds alone a slope is within 1.7 of 0, and that of a logistic regression of nothing in particular.
    assert width > 0.5
    assert "prior" in str(found.summary())


@pytest.mark.parametrize("usable", [0, 1])
def test_a_site_without_a_usable_row_is_as_any_other(usable):
    """It masks zeros and adds its noise share: the others, and the coordinator, get the messages that one row gives."""
    rng = np.random.default_rng(4)
    x = rng.uniform(0, 10, 400)
    y = 1.0 + 0.5 * x + rng.normal(size=400)
    third = {"x": [1.0] * usable + [None] * (50 - usable), "y": list(y[:50])}
    schema = dpi.tabular.Schema.from_dict({"columns": {name: COLUMNS[name] for name in ("x", "y")}})
    tables = ({"x": x[:200], "y": y[:200]}, {"x": x[200:], "y": y[200:]}, third)
    sites = [Site(SiloTable(table, schema)) for table in tables]
    silos = Silos(LocalLine(sites))
    fit = dpi.regression("y ~ x", silos, schema=schema, epsilon=1.0, delta=1e-6, n_records=400)
    assert set(fit.release.settings["silos"]["present"]) == {3}
    assert not any(site.failure for site in sites)
    assert sites[2].transcript.n_bytes == sites[0].transcript.n_bytes


def test_a_site_with_arrays_without_rows_takes_part():
    sites = [Site(*EMPTY), Site(np.ones((3, 2)), np.ones(3)), Site([], [])]
    run(LOGISTIC, Silos(LocalLine(sites)))
    assert not any(site.failure for site in sites)
    sites = [Site(np.empty(0)), Site(np.ones(3)), Site([])]
    dpi.run_statistic(dpi.models.BetaBernoulli(), Silos(LocalLine(sites)), epsilon=1.0, n_records=3)
    assert not any(site.failure for site in sites)


REPLAYED = {
    scenario.name: scenario
    for scenario in all_scenarios()
    if scenario.adjacency is Adjacency.ADD_REMOVE
    and scenario.entry.rpartition(".")[2] in ("run_newton", "run_dpvi", "run_dp_sep", "regression", "fit")
    and isinstance(scenario.records, tuple)
    # These read or sum one row more often than none, whose number is in no release.
    and not any(
        word in scenario.name
        for word in ("stream", "sparse", "unit", "shard", "strata", "clusters", "unknown", "statistic")
    )
}


@pytest.mark.parametrize("name", REPLAYED)
def test_one_row_and_none_differ_in_noised_sums_alone(name):
    """Every call of the operating system, file, warning and public number is the same for both."""
    scenario = REPLAYED[name]
    one, none = (tuple(part[:count] for part in scenario.records) for count in (1, 0))
    result = replay_audit((replace(scenario, records=one, neighbours=(Neighbour("no record", none),)),))
    assert result.passed, str(result)
