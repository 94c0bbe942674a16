"""Every public function that adds noise runs inside one guard: charged first, refused to forks, and says what it is."""

import importlib
import inspect
import os
import pkgutil
import signal
import warnings
from concurrent.futures import Executor, Future
from importlib.util import find_spec

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import account as certified
from dpinfer.errors import BudgetExceededError, FallbackWarning, InsecureReleaseError, RecordError
from dpinfer.lab import baselines
from dpinfer.lab.baselines import NetworkVISettings, run_network_vi
from dpinfer.lab.replays.mechanisms import own_logistic
from dpinfer.mechanism import run_network_dp_sep
from dpinfer.tabular import Schema, SchemaDraft, Table, plan_unknown, release_shares, release_unknown
from dpinfer.testing import InsecureRNG

N = 24
NETWORK = dpi.models.BayesianNeuralNetwork(2, 3)
MIXTURE = dpi.models.GaussianMixture(2, 2, covariance=0.25, prior_scale=2.0)
OWN_MODEL, BARE_MODEL = own_logistic(), own_logistic(sampled=False)
SCHEMA = Schema.from_dict({"columns": {"pet": {"kind": "categorical", "categories": ["cat", "dog"]}}})
DRAFT = SchemaDraft({"columns": {"age": {"kind": "continuous"}, "pet": {"kind": "categorical"}}})
UNKNOWN = plan_unknown(DRAFT, target_epsilon=1.0, target_delta=1e-5)
PLAN = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.5, n_steps=4)
RUN = {"plan": PLAN, "n_records": N}
PURE = {"epsilon": 1.0, "n_records": N}


def features(watch):
    return watch(np.linspace(-1.0, 1.0, 2 * N).reshape(N, 2))


def labels(watch):
    return watch(np.arange(N) % 2.0)


def dpvi(watch, **options):
    model = dpi.models.LogisticRegression(2)
    return dpi.run_dpvi(model, features(watch), labels(watch), max_grad_norm=1.0, **RUN, **options)


def conjugate_dpvi(watch, **options):
    return dpi.run_dpvi(dpi.models.BetaBernoulli(), labels(watch), **RUN, **options)


def dp_sep(watch, **options):
    return dpi.run_dp_sep(dpi.models.ProbitRegression(2), features(watch), labels(watch), **RUN, **options)


def mixture_dp_sep(watch, **options):
    return dpi.run_dp_sep(MIXTURE, features(watch), **RUN, **options)


def network_dp_sep(watch, **options):
    return run_network_dp_sep(NETWORK, features(watch), labels(watch), **RUN, **options)


def network_vi(watch, **options):
    settings = NetworkVISettings(1e-2, 10.0, 1.0, 0.1)
    return run_network_vi(
        NETWORK, features(watch), labels(watch), settings=settings, max_grad_norm=1.0, **RUN, **options
    )


def dp_em(watch, **options):
    return baselines.run_dp_em(MIXTURE, features(watch), max_site_norm=1.0, **RUN, **options)


def dpvim(watch, **options):
    model = dpi.models.LogisticRegression(2)
    return baselines.run_dpvim(model, features(watch), labels(watch), max_grad_norm=1.0, **RUN, **options)[0]


def newton(watch, **options):
    model = dpi.models.LinearRegression(2)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=N)
    return dpi.run_newton(model, features(watch), labels(watch), plan=plan, n_records=N, response_scale=1.0, **options)


def glm_newton(model, watch, **options):
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=N)
    return dpi.run_newton(model, features(watch), labels(watch), plan=plan, n_records=N, **options)


def own_newton(watch, **options):
    return glm_newton(OWN_MODEL, watch, **options)


def clipped_newton(watch, **options):
    return glm_newton(BARE_MODEL, watch, **options)


def stream(*watched):
    """A source that looks at its records when it is read."""

    def blocks():
        parts = [np.array_split(np.asarray(array), 2) for array in watched]
        return iter(zip(*parts, strict=True) if len(parts) > 1 else parts[0])

    return dpi.mechanism.RowSource(blocks)


def streamed_newton(watch, **options):
    plan = dpi.plan_newton(dpi.models.LogisticRegression(2), target_epsilon=1.0, target_delta=1e-5, n_records=N)
    rows = stream(features(watch), labels(watch))
    return dpi.run_newton(dpi.models.LogisticRegression(2), rows, plan=plan, n_records=N, **options)


def coded_newton(watch, **options):
    model = dpi.models.LogisticRegression(3, fit_intercept=True)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=N)
    rows = dpi.mechanism.CodedRows(watch(np.arange(N) % 2), [2], watch(np.linspace(-1.0, 1.0, N)))
    return dpi.run_newton(model, rows, labels(watch), plan=plan, n_records=N, **options)


def unit_newton(watch, **options):
    model = dpi.models.LinearRegression(2)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=N // 2)
    unit = dpi.mechanism.Units(watch(np.arange(N) // 2), max_rows=2)
    return dpi.run_newton(
        model, features(watch), labels(watch), plan=plan, n_records=N // 2, response_scale=1.0, unit=unit, **options
    )


class Here(Executor):
    """Makes calls where and when they are asked for."""

    def submit(self, function, /, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


def sharded_newton(watch, **options):
    model = dpi.models.LinearRegression(2)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=N)
    shards = dpi.mechanism.ShardedRows(Here(), [stream(features(watch), labels(watch)) for _ in range(2)])
    return dpi.run_newton(model, shards, plan=plan, n_records=N, response_scale=1.0, **options)


def streamed_one_shot(watch, **options):
    return dpi.run_statistic(dpi.models.BetaBernoulli(), stream(labels(watch)), **PURE, **options)


def logistic_newton(watch, **options):
    return glm_newton(dpi.models.LogisticRegression(2), watch, **options)


def declared_newton(watch, **options):
    return glm_newton(dpi.models.LogisticRegression(2, feature_moments=np.eye(3)), watch, **options)


def probit_newton(watch, **options):
    return glm_newton(dpi.models.ProbitRegression(2), watch, **options)


def poisson_newton(watch, **options):
    return glm_newton(dpi.models.PoissonRegression(2), watch, **options)


def statistics(watch, **options):
    return baselines.release_statistics(baselines.BinomialFamily(), labels(watch), **PURE, **options)


def one_shot(watch, **options):
    return dpi.run_statistic(dpi.models.BetaBernoulli(), labels(watch), **PURE, **options)


def regression_statistics(watch, **options):
    return baselines.release_regression_statistics(
        features(watch), labels(watch), feature_bound=1.0, response_bound=1.0, **PURE, **options
    )


def shares(watch, **options):
    table = Table(watch(np.eye(2)[np.arange(N) % 2]), None, SCHEMA)
    return release_shares(table, noise_multiplier=5.0, delta=1e-5, **options)


def summed(watch, **options):
    keywords = {"names": ("left", "right"), "max_norm": 1.0, "epsilon": 1.0, **options}
    return dpi.private_sum(features(watch), lambda rows: rows, **keywords)


def streamed_sum(watch, **options):
    keywords = {"names": ("left", "right"), "max_norm": 1.0, "epsilon": 1.0, "delta": 1e-5, **options}
    return dpi.private_sum(stream(features(watch)), lambda rows: rows, **keywords)


def of_a_table(call, *arguments):
    """Return a case of a private table."""

    def case(watch, **options):
        kinds = {
            "size": {"kind": "continuous", "bounds": [-1, 1]},
            "pet": {"kind": "categorical", "categories": ["cat", "dog"]},
            "alive": {"kind": "target", "positive": "1", "negative": "0"},
        }
        data = {
            "size": watch(np.linspace(-1.0, 1.0, N)),
            "pet": watch(np.array(["cat", "dog"])[np.arange(N) % 2]),
            "alive": labels(watch),
        }
        schema = Schema.from_dict({"columns": kinds})
        return call(data, *arguments, schema=schema, epsilon=1.0, **options).release

    case.__name__ = f"table_of_{call.__name__}"
    return case


counted_table = of_a_table(dpi.tables.counts, ["pet", "alive"])
crossed_table = of_a_table(dpi.tables.crosstab, ["pet", "alive"])
table_of_means = of_a_table(dpi.tables.means, "size", "pet")


def fitted(watch, **options):
    model = dpi.models.LogisticRegression(2)
    keywords = {"epsilon": 1.0, "delta": 1e-5, "n_records": N, "method": "newton", **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return dpi.fit(model, features(watch), labels(watch), **keywords).release


def fitted_statistic(watch, **options):
    return dpi.fit(dpi.models.BetaBernoulli(), labels(watch), delta=1e-5, **PURE, **options).release


def count(watch, **options):
    return dpi.release_count(features(watch), epsilon=1.0, **options)


def bounds(watch, **options):
    return dpi.release_bounds(features(watch), epsilon=1.0, names=("left", "right"), **options)


def categories(watch, **options):
    pets = watch(np.array(["cat", "dog"])[np.arange(N) % 2])
    return dpi.release_categories(pets, epsilon=1.0, delta=1e-6, **options)


def unknown(watch, **options):
    columns = {"age": watch(np.linspace(20.0, 60.0, N)), "pet": watch(np.array(["cat", "dog"])[np.arange(N) % 2])}
    return release_unknown(columns, DRAFT, plan=UNKNOWN, **options)


def counted(watch, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return dpi.fit(
            dpi.models.LinearRegression(2),
            features(watch),
            labels(watch),
            epsilon=1.0,
            delta=1e-5,
            unknown=["n_records", "response_scale"],
            **options,
        ).release


def counted_stream(watch, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return dpi.fit(
            dpi.models.LinearRegression(2),
            stream(features(watch), labels(watch)),
            epsilon=1.0,
            delta=1e-5,
            unknown=["n_records", "response_scale"],
            **options,
        ).release


def streamed_count(watch, **options):
    return dpi.release_count(stream(features(watch)), epsilon=1.0, **options)


def streamed_bounds(watch, **options):
    return dpi.release_bounds(stream(features(watch)), epsilon=1.0, names=("left", "right"), **options)


def completed(watch, **options):
    columns = {
        "size": {"kind": "continuous", "limits": [-1, 1]},
        "alive": {"kind": "target", "positive": "1", "negative": "0"},
    }
    table = {"size": watch(np.linspace(-1.0, 1.0, N)), "alive": labels(watch)}
    keywords = {"epsilon": 1.0, "delta": 1e-5, "family": "binomial", "unknown": ["n_records", "bounds"], **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return dpi.regression("alive ~ size", table, schema=SchemaDraft({"columns": columns}), **keywords).release


def tabled(watch, **options):
    columns = {
        "size": {"kind": "continuous", "bounds": [-1, 1]},
        "alive": {"kind": "target", "positive": "1", "negative": "0"},
    }
    keywords = {"epsilon": 1.0, "delta": 1e-5, "n_records": N, "method": "newton", "family": "binomial", **options}
    table = {"size": watch(np.linspace(-1.0, 1.0, N)), "alive": labels(watch)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return dpi.regression("alive ~ size", table, schema=Schema.from_dict({"columns": columns}), **keywords).release


CASES = {
    dpvi: dpi.run_dpvi,
    conjugate_dpvi: dpi.run_dpvi,
    dp_sep: dpi.run_dp_sep,
    mixture_dp_sep: dpi.run_dp_sep,
    network_dp_sep: run_network_dp_sep,
    network_vi: run_network_vi,
    dp_em: baselines.run_dp_em,
    dpvim: baselines.run_dpvim,
    newton: dpi.run_newton,
    logistic_newton: dpi.run_newton,
    declared_newton: dpi.run_newton,
    probit_newton: dpi.run_newton,
    poisson_newton: dpi.run_newton,
    own_newton: dpi.run_newton,
    clipped_newton: dpi.run_newton,
    streamed_newton: dpi.run_newton,
    sharded_newton: dpi.run_newton,
    coded_newton: dpi.run_newton,
    unit_newton: dpi.run_newton,
    statistics: baselines.release_statistics,
    one_shot: dpi.run_statistic,
    streamed_one_shot: dpi.run_statistic,
    regression_statistics: baselines.release_regression_statistics,
    shares: release_shares,
    summed: dpi.private_sum,
    streamed_sum: dpi.private_sum,
    counted_table: dpi.tables.counts,
    crossed_table: dpi.tables.crosstab,
    table_of_means: dpi.tables.means,
    fitted: dpi.fit,
    fitted_statistic: dpi.fit,
    count: dpi.release_count,
    bounds: dpi.release_bounds,
    categories: dpi.release_categories,
    unknown: release_unknown,
    tabled: dpi.regression,
    counted: dpi.fit,
    counted_stream: dpi.fit,
    streamed_count: dpi.release_count,
    streamed_bounds: dpi.release_bounds,
    completed: dpi.regression,
}


def runnable(entries):
    """Return the entries, those marked to be skipped whose extra is not installed."""
    absent = pytest.mark.skipif(find_spec("formulaic") is None, reason="formulas need the extra dpinfer[formula]")
    return [pytest.param(entry, marks=absent) if entry in (tabled, completed) else entry for entry in entries]


NEWTON = (
    newton, logistic_newton, declared_newton, probit_newton, poisson_newton, own_newton, clipped_newton,
    streamed_newton, sharded_newton, coded_newton, unit_newton,
)  # fmt: skip
LONG = (dpvi, conjugate_dpvi, dp_sep, mixture_dp_sep, network_dp_sep, network_vi, dp_em, dpvim, *NEWTON)
# It hands its records to run_dpvi, after checks of its own: tests/unit/estimators.
HANDS_ON = {
    dpi.BayesianLogisticRegression,
    dpi.BayesianLinearRegression,
    dpi.BayesianMultinomialRegression,
    dpi.BayesianPoissonRegression,
    dpi.BayesianProbitRegression,
    # It holds the settings of a run, and runs nothing.
    dpi.methods.RunSettings,
    # It charges at the first pass that a coordinator asks: tests/unit/silos/test_accounting.py.
    dpi.mechanism.silos.Site,
}
# They run mechanisms on records that they make up.
AUDITS = {dpi.diagnostics.audit, dpi.diagnostics.audit_one_run}


class Watched:
    """Records that can only be looked at as an array, and that note each look."""

    def __init__(self, values, look):
        self._values, self._look = values, look

    def __array__(self, dtype=None, copy=None):
        self._look()
        return np.asarray(self._values, dtype=dtype)


@pytest.fixture
def account(tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger")
    return ledger.add_dataset("people", budget=(1.5, 1e-5))


def statuses(account):
    return [run.status for run in account.runs()]


def looks_of(entry, account, **options):
    """Run an entry; return what the ledger said at each look at the records, and the result."""
    seen = []
    result = entry(lambda values: Watched(values, lambda: seen.append(statuses(account))), **options)
    return seen, result


def public_entry_points():
    """Return every public callable of the package that takes a source of randomness: what draws private noise."""
    found = set()
    for item in pkgutil.walk_packages(dpi.__path__, "dpinfer."):
        if item.name.rpartition(".")[2].startswith("_") or not item.ispkg:
            continue
        package = importlib.import_module(item.name)
        for name in getattr(package, "__all__", ()):
            value = getattr(package, name)
            if not callable(value):
                continue
            try:
                parameters = inspect.signature(value).parameters
            except (TypeError, ValueError):
                continue
            if "random_source" in parameters:
                found.add(value)
    return found


def test_every_private_entry_point_is_covered_here_and_takes_a_ledger():
    found = public_entry_points() - AUDITS
    assert found == set(CASES.values()) | HANDS_ON
    for entry in found:
        assert "ledger" in inspect.signature(entry).parameters, entry.__name__
    for entry in {CASES[case] for case in LONG}:
        assert "checkpoint" in inspect.signature(entry).parameters, entry.__name__


@pytest.mark.parametrize("entry", runnable(CASES), ids=lambda entry: entry.__name__)
def test_the_charge_is_on_the_disk_before_a_record_is_looked_at(entry, account):
    seen, result = looks_of(entry, account, ledger=account)
    assert seen
    assert all(look and look == ["finished"] * (len(look) - 1) + ["started"] for look in seen)
    parts = getattr(result, "parts", (result,))
    assert [(run.status, run.event) for run in account.runs()] == [("finished", part.event) for part in parts]


def test_looking_first_would_be_seen(account):
    """The power twin: an entry that looks at the records before it hands them on."""

    def hasty(watch, **options):
        return dpvi(lambda values: np.asarray(watch(values)), **options)

    seen, _ = looks_of(hasty, account, ledger=account)
    assert seen == [[], []]


@pytest.mark.parametrize("entry", runnable(CASES), ids=lambda entry: entry.__name__)
def test_the_result_says_what_it_guarantees(entry):
    result = entry(np.asarray)
    assert "differentially private" in result.guarantee
    delta = result.delta or 1e-9
    assert result.epsilon >= certified(result.event, delta=delta, adjacency=result.adjacency).epsilon * (1 - 1e-9)
    seeded = entry(np.asarray, random_source=InsecureRNG(1))
    assert "NOT PRIVATE" in seeded.guarantee
    with pytest.raises(InsecureReleaseError):
        _ = seeded.epsilon


@pytest.mark.parametrize("entry", runnable(CASES), ids=lambda entry: entry.__name__)
def test_refused_runs_touch_neither_records_nor_ledger(entry, account):
    seen = []

    def watch(values):
        return Watched(values, lambda: seen.append("look"))

    with pytest.raises(InsecureReleaseError, match="NOT PRIVATE"):
        entry(watch, ledger=account, random_source=InsecureRNG(1))
    small = dpi.PrivacyLedger(account.path).add_dataset("spent", budget=(1e-3, 1e-5))
    with pytest.raises(BudgetExceededError):
        entry(watch, ledger=small)
    assert seen == []
    assert statuses(small) == []
    assert statuses(account) == []


# A source is read when it is charged, any array has rows to count, and a table is made of columns before that.
LAZY = {
    streamed_newton, sharded_newton, streamed_one_shot, counted_stream, streamed_count, streamed_bounds, count, shares,
    streamed_sum,
}  # fmt: skip
RESPONSES = {
    dpvi, dp_sep, network_dp_sep, network_vi, dpvim, newton, logistic_newton, declared_newton, probit_newton,
    poisson_newton, own_newton, clipped_newton, unit_newton, regression_statistics, fitted, counted,
}  # fmt: skip
NUMBERS = {*RESPONSES, mixture_dp_sep, dp_em, bounds}
FORMS = {
    "dimensions": (lambda values: values[..., None, None], set(CASES) - LAZY),
    "rows": (lambda values: values[: N // 2] if values.ndim == 1 else values, RESPONSES),
    "columns": (
        lambda values: np.hstack([values] * 2) if values.ndim == 2 else values,
        NUMBERS - {regression_statistics},
    ),
    "type": (lambda values: values.astype(complex), {*NUMBERS, conjugate_dpvi, coded_newton, statistics, one_shot}),
}


class Shown(Watched):
    """Records that say their shape and type, as arrays do, and that nobody may look at."""

    def __init__(self, values):
        super().__init__(values, lambda: pytest.fail("a record was looked at"))
        self.shape, self.dtype = values.shape, values.dtype


@pytest.mark.parametrize(
    ("entry", "form"),
    [
        pytest.param(entry, form, id=f"{entry.__name__}-{form}")
        for form in FORMS
        for entry in CASES
        if entry in FORMS[form][1]
    ],
)
def test_arrays_of_a_wrong_form_are_refused_before_the_charge(entry, form, account):
    """Shape and type are public, as is that each row has its response: a refusal that tells them costs nothing."""
    if entry in (tabled, completed):
        pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")
    change, _ = FORMS[form]
    with pytest.raises((TypeError, RecordError)):
        entry(lambda values: Shown(change(values)), ledger=account)
    assert statuses(account) == []


NO_RECORDS = {
    "None": None,
    "path": "people.csv",
    "number": 3.0,
    "mapping": {"age": [1.0]},
    "set": {1.0},
    "source": stream(),
}


# They take one: columns of labels, a stream of rows.
TAKEN = {
    (categories, "mapping"),
    *((case, "source") for case in (conjugate_dpvi, one_shot, fitted_statistic, bounds, summed)),
}


@pytest.mark.parametrize(
    ("entry", "given"),
    [
        pytest.param(entry, given, id=f"{entry.__name__}-{given}")
        for entry in CASES
        for given in NO_RECORDS
        if (entry not in LAZY or entry is shares) and (entry, given) not in TAKEN
    ],
)
def test_what_holds_no_records_is_refused_before_the_charge(entry, given, account):
    """As an argument, or as every column of a table."""
    if entry in (tabled, completed):
        pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")
    with pytest.raises((TypeError, ValueError)):
        entry(lambda values: NO_RECORDS[given], ledger=account)
    assert statuses(account) == []


@pytest.mark.forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:refund_refused:dpinfer.errors.PrivacyLeakWarning")
@pytest.mark.parametrize("entry", runnable(CASES), ids=lambda entry: entry.__name__)
def test_the_child_of_a_fork_draws_nothing_and_cancels_nothing(entry, account):
    """The records fork when they are looked at: the child has the run, and would release a second time.

    Where refused runs are refunded, what the child is refused must not refund its parent.
    """
    account = dpi.PrivacyLedger(account.path).dataset("people", refund_refused=True)
    reader, writer = os.pipe()
    child = None

    def fork():
        nonlocal child
        if child is None:
            child = os.fork()
            if child:
                os.close(writer)
                os.waitpid(child, 0)
            else:
                # A child that hangs reports nothing, and that fails.
                signal.alarm(30)

    try:
        entry(lambda values: Watched(values, fork), ledger=account)
        told = "released"
    except RuntimeError as error:
        told = str(error)
    except BaseException as error:
        told = repr(error)
    finally:
        if child == 0:
            os.write(writer, told.encode())
            os._exit(0)
    assert child is not None, told
    with os.fdopen(reader, "rb") as pipe:
        assert "forked process" in pipe.read().decode()
    assert told == "released"
    assert set(statuses(account)) == {"finished"}


class Stopped(Exception):  # noqa: N818
    pass


RESUMED = [network_vi, dp_em, dpvim, *NEWTON, fitted, tabled]


@pytest.mark.parametrize("entry", runnable(RESUMED), ids=lambda entry: entry.__name__)
def test_long_runs_are_resumed_bit_for_bit_for_one_charge(entry, account, tmp_path):
    """The other long runs: tests/unit/mechanism/test_checkpoint.py and test_sep_checkpoint.py."""

    def stop(done, total):
        if done == 2:
            raise Stopped

    def arrays(result):
        return [value.tobytes() for value in vars(result).values() if isinstance(value, np.ndarray)]

    whole = arrays(entry(np.asarray, random_source=InsecureRNG(3)))
    place = dpi.mechanism.RunCheckpoint(tmp_path / "run", interval=0.0)
    with pytest.raises(Stopped):
        entry(np.asarray, random_source=InsecureRNG(3), checkpoint=place, progress=stop)
    assert place.load().step == 2
    assert arrays(entry(np.asarray, random_source=InsecureRNG(9), checkpoint=tmp_path / "run")) == whole
    assert not place.exists()
    with pytest.raises(Stopped):
        entry(np.asarray, ledger=account, checkpoint=place, progress=stop)
    entry(np.asarray, ledger=account, checkpoint=place)
    assert statuses(account) == ["finished"]
    place.discard()


@pytest.mark.parametrize("entry", LONG, ids=lambda entry: entry.__name__)
def test_an_interrupt_loses_no_step_that_was_made(entry, tmp_path):
    """Ctrl-C saves what was made, however long the interval; without it the file would hold step 0."""
    place = dpi.mechanism.RunCheckpoint(tmp_path / "run", interval=1e9)

    def interrupt(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        entry(np.asarray, random_source=InsecureRNG(3), checkpoint=place, progress=interrupt)
    assert place.load().step == 3
    made = []
    entry(np.asarray, random_source=InsecureRNG(3), checkpoint=place, progress=lambda done, total: made.append(done))
    assert made == list(range(4, made[-1] + 1))
