"""Effects of persons: scores of the marginal likelihood, a person as one record, standard deviations near zero."""

import itertools
import pickle
import warnings
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import numpy as np
import pytest
from scipy import special, stats
from tests.reference.own_newton_mutants import PERSON_MUTANTS

import dpinfer as dpi
from dpinfer.errors import RecordError
from dpinfer.inference.newton.persons import EFFECT_PRIOR, bounded_effects
from dpinfer.mechanism import RowSource, ShardedRows, Units, _native, rows_of_arrays, rows_of_arrow, rows_of_dask
from dpinfer.mechanism.newton import unit_parts
from dpinfer.mechanism.newton.own_rows import OwnRows, PersonScores, kernel_scores
from dpinfer.mechanism.newton.unit_parts import persons_of
from dpinfer.models import PersonModel
from dpinfer.testing import InsecureRNG

FAMILIES = ("gaussian", "binomial", "probit", "poisson", "negativebinomial")
ROWS = 6


def model_of(family, slope=-1, rows=ROWS):
    features = np.random.default_rng(1).normal(size=(200, 2))
    return PersonModel(family, ("a", "b"), max_rows=rows, mean_rows=0.6 * rows, slope=slope, features=features)


def responses(family, rng, size):
    if family == "gaussian":
        return rng.normal(size=size)
    return rng.integers(0, 2 if family in ("binomial", "probit") else 5, size).astype(float)


def log_likelihood(model, theta, X, y):
    """Of one person: a normal density, or even steps over the effects, far and close."""
    natural = model.natural(theta)
    weights, scale, q = natural[: model.n_coef], natural[model.n_coef], model.n_effects
    covariance = natural[-3:][[[0, 1], [1, 2]]][:q, :q]
    eta = X @ weights[:-1] + weights[-1]
    Z = np.column_stack((np.ones(len(X)), X[:, model.slope]))[:, :q]
    if model.family == "gaussian":
        return stats.multivariate_normal.logpdf(y, eta, scale**2 * (np.eye(len(y)) + Z @ covariance @ Z.T))
    grid = np.array(list(itertools.product(np.linspace(-6.5, 6.5, 101 if q == 1 else 47), repeat=q)))
    at = eta + grid @ np.linalg.cholesky(covariance).T @ Z.T
    each = {
        "binomial": lambda: y * at - np.logaddexp(0.0, at),
        "probit": lambda: special.log_ndtr((2.0 * y - 1.0) * at),
        "poisson": lambda: stats.poisson.logpmf(y, np.exp(at)),
        "negativebinomial": lambda: stats.nbinom.logpmf(y, scale, scale / (scale + np.exp(at))),
    }[model.family]()
    return special.logsumexp(each.sum(axis=1) - 0.5 * np.sum(grid**2, axis=1))


@pytest.mark.parametrize("slope", [-1, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_slopes_of_the_marginal_likelihood_and_have_mean_zero(family, slope, rng):
    model = model_of(family, slope)
    theta = rng.normal(scale=0.3, size=model.n_params)
    theta[model.first_effect :] = model.from_covariance(
        np.array([[0.6, 0.1], [0.1, 0.3]])[: 1 + (slope > 0)][:, : 1 + (slope > 0)]
    )
    persons = model.made_up_features(2, rng)
    y = responses(family, rng, (2, ROWS))
    seeds = rng.integers(0, 2**64, (2, 2), dtype=np.uint64)
    found = kernel_scores(model, theta, theta, np.eye(model.n_params), persons, y, seeds, 0)[:, -1]
    for person, row in enumerate(persons):
        X = row[1:].reshape(ROWS, 2)[: int(row[0])]
        ends = [
            [log_likelihood(model, theta + sign * 1e-4 * step, X, y[person, : len(X)]) for sign in (1, -1)]
            for step in np.eye(model.n_params)
        ]
        # What nodes and steps leave out is the largest error.
        assert np.allclose(found[:, person], (np.array(ends) @ [1, -1]) / 2e-4, atol=2e-2 if slope > 0 else 1e-3)
    many = model.made_up_features(2000, rng)
    seeds = rng.integers(0, 2**64, (2000, 2), dtype=np.uint64)
    drawn = kernel_scores(model, theta, theta, np.eye(model.n_params), many, None, seeds, 3).reshape(len(theta), -1)
    z = drawn.mean(axis=1) / (drawn.std(axis=1) / np.sqrt(drawn.shape[1]))
    assert np.abs(z).max() < 4.9  # 1e-5 in all for seven parameters and ten cases
    wrong = kernel_scores(model, theta, theta + 0.2, np.eye(model.n_params), many, None, seeds, 3)
    assert (
        np.abs(wrong.reshape(len(theta), -1).mean(axis=1) / (drawn.std(axis=1) / np.sqrt(drawn.shape[1]))).max() > 8.0
    )


@pytest.mark.parametrize("family", ["poisson", "negativebinomial"])
def test_scores_of_counts_far_out_grow_slowly(family):
    """A mean that was held at 22 026 made them 1e10: nodes lay where the density no longer fell."""
    model = model_of(family, slope=0)
    theta = np.zeros(model.n_params)
    theta[model.first_effect :] = model.from_covariance(np.array([[0.3, -0.05], [-0.05, 1.0]]))
    persons = np.zeros((1, 1 + 2 * ROWS))
    persons[0, 0], persons[0, 1::2] = ROWS, 3.0
    seeds = np.zeros((1, 2), dtype=np.uint64)
    sizes = [
        np.abs(kernel_scores(model, theta, theta, np.eye(len(theta)), persons, np.full((1, ROWS), y), seeds, 0)[:, -1])
        for y in (1e3, 2e4, 1e6)
    ]
    assert all(size.max() < 100.0 for size in sizes)


def query_of(model, rng, clip=0.5):
    n = model.n_params
    transform = np.eye(n) + 0.1 * rng.normal(size=(n, n))
    return PersonScores(model, model.prior_moments()[0], transform, clip, 0.5, 4.0, 2, 0.7, 0.6, 0.3)


def integers(model, query, X, y, unit, n_threads=1):
    order = np.argsort(unit, kind="stable")
    rows = OwnRows.of(*persons_of(model, X[order], y[order], unit[order]), n_threads)
    total = _native.PartialSum(length=query.length, max_norm=query.max_norm)
    query.add(total, rows)
    return np.array(total.integers), total.lattice_step


def thirty_people(family, rng):
    """Return rows of 30 people, two of them far out, two equal."""
    unit = np.repeat(np.arange(30), rng.integers(1, 12, 30))
    X, y = rng.normal(size=(unit.size, 2)), responses(family, rng, unit.size)
    X[5], X[12] = 1e300, -1e160
    X[unit == 7], y[unit == 7] = 0.3, 1.0
    X[unit == 20], y[unit == 20] = 0.3, 1.0
    return X, y, unit


def one_person_is_one_vector(query, X, y, unit):
    """Return whether taking out any person changes the exact sum by that person's own bounded vector."""
    whole, step = integers(query.model, query, X, y, unit)
    for person in (0, 5, 7, 20, 29):
        own = unit == person
        left, _ = integers(query.model, query, X[~own], y[~own], unit[~own])
        alone, _ = integers(query.model, query, X[own], y[own], unit[own])
        # Of equal persons the last one goes.
        if person not in (7, 20) and not np.array_equal(whole - left, alone):
            return False
        if np.linalg.norm(((whole - left) * step).astype(float)) > query.max_norm:
            return False
    return True


@pytest.mark.parametrize("family", ["gaussian", "binomial", "negativebinomial"])
def test_a_persons_integers_are_its_own_and_within_the_bound(family, rng):
    model = model_of(family)
    X, y, unit = thirty_people(family, rng)
    query = query_of(model, rng)
    assert one_person_is_one_vector(query, X, y, unit)
    whole, _ = integers(model, query, X, y, unit)
    renamed = (unit + 13) % 30
    assert np.array_equal(integers(model, query, X, y, renamed, n_threads=2)[0], whole)
    # Rows beyond the first six of a person are not read.
    place = np.concatenate([np.arange(size) for size in np.unique(unit, return_counts=True)[1]])
    other = X.copy()
    other[place >= ROWS] = 9.0
    assert np.array_equal(integers(model, query, other, y, unit)[0], whole)
    other[place == ROWS - 1] = 9.0
    assert not np.array_equal(integers(model, query, other, y, unit)[0], whole)


def nine_people(seed, family):
    """Return a model at random parameters, and rows of nine people: half have features of any size."""
    rng, size = np.random.default_rng(seed), 9
    model = model_of(family, 1)
    unit = np.repeat(np.arange(size), rng.integers(1, 8, size))
    sizes = 10.0 ** rng.uniform(-1, [1, 2, 3, 6, 50, 300][rng.integers(6)], size=size)
    X = rng.normal(size=(unit.size, 2)) * np.where(rng.random(size) < 0.5, sizes, 1.0)[unit][:, None]
    y = responses(family, rng, unit.size)
    if family in ("poisson", "negativebinomial"):
        y[rng.random(unit.size) < 0.3] = np.floor(10.0 ** rng.uniform(0, [2, 4, 8][rng.integers(3)]))
    return model, rng.normal(scale=[0.3, 1, 3][rng.integers(3)], size=model.n_params), X, y, unit


@pytest.mark.parametrize("family", FAMILIES)
def test_a_person_far_out_does_not_move_what_others_add(family):
    """Eight people are computed side by side: steps that one of them needs are taken by all.

    Where a lane that had ended went on, one in thirty sets of counts showed it.
    """
    for seed in range(60):
        model, theta, X, y, unit = nine_people(seed, family)
        query = PersonScores(model, theta, np.eye(model.n_params), 0.5, 0.5, 4.0, 2, 0.7, 0.6, 0.3)
        whole, _ = integers(model, query, X, y, unit)
        alone = [
            integers(model, query, X[unit == person], y[unit == person], unit[unit == person])[0] for person in range(9)
        ]
        np.testing.assert_array_equal(whole, np.sum(alone, axis=0), err_msg=str(seed))


@pytest.mark.parametrize("name", PERSON_MUTANTS)
def test_persons_that_look_at_each_other_would_be_found(name, rng):
    query = query_of(model_of("binomial"), rng)
    with PERSON_MUTANTS[name]():
        assert not one_person_is_one_vector(query, *thirty_people("binomial", rng))


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(4)
    unit = np.repeat(np.arange(400), rng.integers(1, ROWS + 1, 400))
    X = np.column_stack((rng.normal(size=unit.size), rng.normal(size=400)[unit]))
    y = 0.3 + X @ [0.5, -0.4] + 0.6 * rng.normal(size=400)[unit] + 0.5 * rng.normal(size=unit.size)
    return X, y, unit


def run(model, X, y, unit, epsilon=5.0, **options):
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=1e-5, n_records=400)
    return dpi.run_newton(
        model, X, y, plan=plan, n_records=400, unit=unit, **({"random_source": InsecureRNG(3)} | options)
    )


def test_a_source_gives_the_bits_of_the_arrays_and_must_be_sorted(people):
    X, y, unit = people
    model = model_of("gaussian")
    units = {"max_rows": ROWS, "mean_rows": model.mean_rows}
    shuffled = np.random.default_rng(1).permutation(len(y))
    shuffled = shuffled[np.argsort(unit[shuffled], kind="stable")]
    whole = run(model, X[shuffled], y[shuffled], Units(unit[shuffled], **units))
    cuts = np.array_split(shuffled, 7)  # the rows of a person may be in two blocks
    source = RowSource(lambda: ((X[part], y[part], unit[part]) for part in cuts), units=True)
    assert np.array_equal(run(model, source, None, Units(**units)).scores, whole.scores)
    turned = RowSource(lambda: ((X[part], y[part], unit[part]) for part in cuts[::-1]), units=True)
    with pytest.raises(RecordError, match="sorted by their units"):
        run(model, turned, None, Units(**units))
    with pytest.raises(TypeError, match="unit must be Units"):
        run(model, X, y, None)
    with pytest.raises(ValueError, match="those of the model of persons"):
        run(model, X, y, Units(unit, 3.0))


def test_blocks_may_follow_each_other_in_one_place(people):
    """As those of Parquet files do."""
    arrow = pytest.importorskip("pyarrow")
    X, y, unit = people
    model = model_of("gaussian")
    table = arrow.table({"a": X[:, 0], "b": X[:, 1], "y": y, "person": unit})
    source = rows_of_arrow(lambda: table.to_batches(max_chunksize=500), ("a", "b"), "y", "person")
    units = {"max_rows": ROWS, "mean_rows": model.mean_rows}
    whole = run(model, X, y, Units(unit, **units))
    assert np.array_equal(run(model, source, None, Units(**units)).scores, whole.scores)


class Here(Executor):
    """Makes calls in this process, of which every third is lost after the work; what travels is pickled."""

    calls = 0

    def submit(self, function, /, *arguments):
        self.calls += 1
        future = Future()
        try:
            function, arguments = pickle.loads(pickle.dumps((function, arguments)))
            answer = pickle.loads(pickle.dumps(function(*arguments)))
            if self.calls % 3 == 0:
                raise ConnectionError("the worker at 10.0.0.7 had record 8675309")
            future.set_result(answer)
        except Exception as error:
            future.set_exception(error)
        return future


def shards_of(places, *arrays):
    """Return shards with these rows each, in blocks."""
    sources = [rows_of_arrays(*(array[own] for array in arrays), block_rows=400) for own in places]
    return ShardedRows(Here(), sources, retries=20)


@pytest.fixture(scope="module")
def spread():
    """Rows of 400 people in any order, up to twice as many as are read, and the rows of each shard.

    Many people are equal, in one shard and in two; one shard has a single person, and one is empty.
    """
    rng = np.random.default_rng(6)
    unit = rng.permutation(np.repeat(np.arange(400), rng.integers(1, 2 * ROWS, 400)))
    X = np.column_stack((np.zeros(unit.size), rng.integers(0, 2, unit.size)))
    shard = np.where(unit == 7, 3, unit * 37 % 400 // 150)
    return X, responses("binomial", rng, unit.size), unit, [np.flatnonzero(shard == k) for k in range(5)]


def sharded(family, places, X, y, unit, **options):
    model = model_of(family)
    return run(model, shards_of(places, X, y, unit), None, Units(None, ROWS, model.mean_rows), **options)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_shards_give_the_bits_of_one_machine(spread, family, monkeypatch):
    X, y, unit, places = spread
    model = model_of(family)
    whole = run(model, X, y, Units(unit, ROWS, model.mean_rows))
    assert np.array_equal(sharded(family, places, X, y, unit).scores, whole.scores)
    # Power: with numbers of their own shard, equal people of two shards have the same draws.
    monkeypatch.setattr(unit_parts, "earlier_equals", lambda kinds: np.zeros(len(kinds), dtype=np.int64))
    assert not np.array_equal(sharded(family, places, X, y, unit).scores, whole.scores)


@pytest.mark.filterwarnings("ignore")
def test_dask_gives_the_bits_of_one_machine(spread):
    """Two worker processes, which compare the hashes of their shards in every pass; and a person in two shards."""
    distributed = pytest.importorskip("distributed", reason="dask is not installed (extra dask)")
    X, y, unit, places = spread
    model = model_of("binomial")
    units = Units(None, ROWS, model.mean_rows)
    whole = run(model, X, y, Units(unit, ROWS, model.mean_rows))
    shards, again = (
        [rows_of_arrays(X[own], y[own], unit[own], block_rows=400) for own in parts] for parts in (places, places[:1])
    )
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        assert np.array_equal(run(model, rows_of_dask(client, shards), None, units).scores, whole.scores)
        with pytest.raises(RecordError, match="one shard with all of its rows"):
            run(model, rows_of_dask(client, shards + again), None, units)


def test_a_person_in_two_shards_is_refused_before_anything_is_drawn(spread, monkeypatch):
    X, y, unit, places = spread
    monkeypatch.setattr(_native.PartialSum, "noisy_sum", None)
    moved = [np.append(places[0], places[1][0]), *places[1:]]
    for names in (unit, unit.astype(str), np.char.encode(unit.astype(str))):
        with pytest.raises(RecordError, match="unit must be in one shard with all of its rows") as caught:
            sharded("binomial", moved, X, y, names)
        assert not any(character.isdigit() for character in str(caught.value))
    # A number and its digits are one name.
    two = [rows_of_arrays(X[:1], y[:1], unit[:1]), rows_of_arrays(X[:1], y[:1], unit[:1].astype(str))]
    model = model_of("binomial")
    with pytest.raises(RecordError, match="unit must be in one shard"):
        run(model, ShardedRows(Here(), two), None, Units(None, ROWS, model.mean_rows))
    with pytest.raises(RecordError, match="integers or strings"):
        sharded("binomial", places, X, y, np.where(unit == 5, np.nan, unit))
    with pytest.raises(ValueError, match="all be with units"):
        ShardedRows(Here(), [two[0], rows_of_arrays(X, y)])
    with pytest.raises(ValueError, match="none with a RowSource or ShardedRows"):
        run(model, shards_of(places, X, y, unit), None, Units(unit, ROWS, model.mean_rows))


def test_missing_names_are_refused():
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"a": [1.0, 2.0], "b": [0.0, 1.0], "y": [1.0, 0.0], "person": [8675309, None]})
    source = rows_of_arrow(table.to_batches, ("a", "b"), "y", "person")
    model = model_of("binomial")
    with ThreadPoolExecutor(1) as pool:
        for rows in (source, ShardedRows(pool, [source])):
            with pytest.raises(RecordError, match="unit must be known of every row") as caught:
                run(model, rows, None, Units(None, ROWS, model.mean_rows))
            assert "8675309" not in str(caught.value)


@pytest.mark.parametrize("change", ["rows change places", "a person is renamed"])
def test_shards_that_change_end_the_run(spread, change):
    """A shuffle that is made again may put rows elsewhere: a person could be in two shards of one pass."""
    X, y, unit, places = spread
    passes = []

    def blocks():
        passes.append(None)
        own, names = places[0], unit.copy()
        if len(passes) > 6 and change == "rows change places":
            own = own[::-1]
        elif len(passes) > 6:
            names[own] = np.where(names[own] == names[own][0], 7, names[own])
        yield X[own], y[own], names[own]

    others = [rows_of_arrays(X[own], y[own], unit[own]) for own in places[1:]]
    model = model_of("binomial")
    with ThreadPoolExecutor(1) as pool, pytest.raises(RecordError, match="same rows and units in every pass"):
        run(
            model, ShardedRows(pool, [RowSource(blocks, units=True), *others]), None, Units(None, ROWS, model.mean_rows)
        )
    assert len(passes) == 7


def test_an_interrupted_run_of_shards_goes_on_for_one_charge(spread, tmp_path):
    X, y, unit, places = spread
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("tests", budget=(20.0, 1e-3))
    options = {"checkpoint": tmp_path / "run.checkpoint", "random_source": None, "ledger": account}

    def stop(done, total):
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sharded("binomial", places, X, y, unit, progress=stop, **options)
    with pytest.raises(RecordError, match="those of the interrupted run"):
        sharded("binomial", places, X, 1.0 - y, unit, **options)
    assert sharded("binomial", places, X, y, unit, **options).secure
    assert [item.status for item in account.runs()] == ["finished"]


def test_rows_beyond_the_largest_number_are_left_out(people):
    """Whoever has more adds what the first rows of theirs add, and nothing says so."""
    X, y, unit = people
    model = model_of("gaussian")
    units = {"max_rows": ROWS, "mean_rows": model.mean_rows}
    n = 2 * ROWS
    last = np.full((n, X.shape[1]), 3.0), np.full(n, 9.0), np.full(n, unit[-1])
    longer = np.vstack((X, last[0])), np.append(y, last[1]), np.append(unit, last[2])
    full = ROWS - int(np.sum(unit == unit[-1]))
    cut = tuple(array[: len(y) + full] for array in longer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = run(model, *longer[:2], Units(longer[2], **units))
    assert np.array_equal(whole.scores, run(model, *cut[:2], Units(cut[2], **units)).scores)
    assert not np.array_equal(whole.scores, run(model, X, y, Units(unit, **units)).scores)


def test_an_interrupted_run_goes_on_for_one_charge(people, tmp_path):
    X, y, unit = people
    model = model_of("gaussian", rows=3)
    units = Units(unit, 3, model.mean_rows)
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("tests", budget=(20.0, 1e-3))
    plan = dpi.plan_newton(model, target_epsilon=5.0, target_delta=1e-5, n_records=400)

    def stop(done, total):
        if done == 6:
            raise KeyboardInterrupt

    def once(progress):
        return dpi.run_newton(
            model,
            X,
            y,
            plan=plan,
            n_records=400,
            unit=units,
            ledger=account,
            progress=progress,
            checkpoint=tmp_path / "run.checkpoint",
        )

    with pytest.raises(KeyboardInterrupt):
        once(stop)
    release = once(False)
    assert release.n_passes == plan.n_passes
    assert release.secure
    kinds = [entry.kind for entry in dpi.PrivacyLedger(tmp_path / "spent.ledger").entries()]
    assert kinds.count("charge") == 1


def test_rows_far_out_do_not_stop_a_run(people):
    X, y, unit = people
    model = model_of("gaussian")
    broken, far = X.copy(), y.copy()
    broken[3], far[10] = 1e300, -1e300
    release = run(model, broken, far, Units(unit, ROWS, model.mean_rows))
    assert np.all(np.isfinite(release.scores))
    assert release.n_records == 400


def test_agrees_with_mixedlm_without_noise_to_speak_of(people):
    mixed = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    X, y, unit = people
    model = model_of("gaussian")
    fit = dpi.fit(
        model,
        X,
        y,
        epsilon=1e6,
        delta=1e-5,
        n_records=400,
        unit=Units(unit, ROWS, model.mean_rows),
        random_source=InsecureRNG(3),
    )
    other = mixed.MixedLM(y, np.column_stack((X, np.ones(len(y)))), groups=unit).fit(reml=False)
    # Over 16 other tables the 48 differences had a standard deviation of 0.04, and the largest was 0.08.
    assert np.all(np.abs(fit.posterior.mean[:3] - other.fe_params) < 0.25 * other.bse_fe)
    assert np.allclose(fit.posterior.stddev[:3] / other.bse_fe, 1.0, atol=0.1)
    # A mean is not a mode: 0.05 to 0.12 there.
    assert abs(fit.posterior.mean[4] - np.sqrt(other.cov_re[0, 0])) < 0.35 * fit.posterior.stddev[4]


def test_far_from_zero_a_binary_pair_is_normal_in_parameters_with_less_ridge():
    model, near = model_of("binomial", slope=0), model_of("binomial", slope=0)
    near.ridge = model.ridge / 12.0
    at, n = model.first_effect, model.n_params
    covariance = np.array([[0.64, 0.05], [0.05, 0.17]])
    precision = np.eye(n) * 400.0
    precision[at:, at:] = [[8e3, 2e2, 1e3], [2e2, 6e3, -5e2], [1e3, -5e2, 7e3]]
    location = np.zeros(n)
    location[at:] = model.from_covariance(covariance)
    found = bounded_effects(
        model, np.tile(location, (4000, 1)), np.tile(precision, (4000, 1, 1)), np.random.default_rng(1)
    )
    assert found.distance.min() > 4.0
    # Weighed draws of that normal law, with derivatives by differences.
    steps = 1e-5 * np.eye(3)
    turn = np.array([near.from_covariance(model.covariance(location + 1e-5 * e)) for e in np.eye(n)[at:]])
    turn = (turn - near.from_covariance(covariance)) / 1e-5
    law = turn.T @ np.linalg.inv(precision)[at:, at:] @ turn
    drawn = np.zeros((200_000, n))
    drawn[:, at:] = np.random.default_rng(2).multivariate_normal(near.from_covariance(covariance), law, len(drawn))
    natural = near.constrain(drawn)[:, at:]
    moved = [near.constrain(drawn + np.concatenate((np.zeros(at), step)))[:, at:] for step in steps]
    volume = np.abs(np.linalg.det((np.stack(moved, axis=1) - natural[:, None]) / 1e-5))
    inside = np.linalg.eigvalsh(near.covariance(drawn)).min(axis=1) > 0.0
    weight = np.where(inside, np.exp(EFFECT_PRIOR.log_density(natural[:, ::2]).sum(axis=1)) * volume, 0.0)
    exact = weight @ natural / weight.sum()
    spread = np.sqrt(weight @ np.square(natural - exact) / weight.sum())
    # 16 000 draws, four of each law: an error of 0.008 to 0.016 standard deviations.
    assert np.all(np.abs(model.constrain(found.location)[:, at:].mean(axis=0) - exact) < 0.06 * spread)


@pytest.mark.parametrize("stddev", [0.3, 4.0])
def test_the_law_near_zero_is_that_of_a_grid(stddev):
    """A wide likelihood, as that of people of one row, reaches to 10**7, and the prior's tail to 10."""
    model = model_of("gaussian")
    n, at = model.n_params, model.first_effect
    mean = np.log(model.ridge) + 0.1
    precision = np.eye(n) * 4.0
    precision[at, at] = stddev**-2
    precision[0, at] = precision[at, 0] = 1.0 if stddev < 1.0 else 0.1
    location = np.zeros((500, n))
    location[:, at] = mean
    found = bounded_effects(model, location, np.tile(precision, (500, 1, 1)), np.random.default_rng(2))
    variance = np.linalg.inv(precision)
    width = 2e-4 if stddev < 1.0 else 2e-2
    tau = (np.arange(20_000) + 0.5) * width
    weight = np.exp(EFFECT_PRIOR.log_density(tau)) * stats.norm.pdf(
        np.log(tau**2 + model.ridge), mean, variance[at, at] ** 0.5
    )
    weight /= weight.sum()
    drawn = model.constrain(found.location)[:, at] / model.constrain(found.location)[:, model.n_coef]
    # 2000 draws in even steps: their mean has an error below sd / sqrt(500).
    exact = tau @ weight
    assert abs(drawn.mean() - exact) < 4.0 * np.sqrt((tau - exact) ** 2 @ weight / 500)
    eta = np.log(tau**2 + model.ridge)
    along = variance[0, at] / variance[at, at] * (eta @ weight - mean)
    assert abs(found.location[:, 0].mean() - along) < 0.02
    assert abs(found.distance[0] - 0.1 / variance[at, at] ** 0.5) < 1e-9
    prior = 2.0 * stats.t.pdf(0.0, 3) / EFFECT_PRIOR.scale
    assert np.isclose(found.log_bayes_factor, np.log(prior / (weight[0] / width)), atol=0.01)
