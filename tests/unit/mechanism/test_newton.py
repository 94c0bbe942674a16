"""The private Newton run: sensitivity on the integers, exact accounting, replay of released passes, refusals."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats

import dpinfer as dpi
from dpinfer.accounting import Adjacency, GaussianEvent, account
from dpinfer.errors import CheckpointError, InsecureReleaseError, RecordError
from dpinfer.mechanism import RunCheckpoint, _native
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.contributions import (
    ClippedCurvatures,
    ClippedScores,
    FeatureMeans,
    LogScaleCounts,
    RobustScores,
    Rows,
    SecondMoments,
    smat,
)
from dpinfer.mechanism.newton.joint import Curvatures, JointScores, ScoreProducts, Sizes
from dpinfer.mechanism.newton.pass_records import MemoryRecords, Passes
from dpinfer.models import tuning as common
from dpinfer.models.clipping import ResponseGrid
from dpinfer.testing import InsecureRNG

D = 4
SCORES = {"clip": 0.7, "unit": 1.3, "centre": 0.45, "scale_weight": 0.4}
EDGES = 2.0 ** np.arange(-3, 4)


def residual_of(link):
    kind = {"logistic": "Logistic", "probit": "Probit", "poisson": "Poisson"}[link]
    grid = ResponseGrid(getattr(dpi.models, f"{kind}Regression")(D), 1.0 / 256.0)
    return grid.clipped(1.7 if link == "poisson" else 0.6)


BINARY = ("logistic", "probit_score")
RESIDUALS = {link: residual_of(link) for link in ("logistic", "probit", "poisson")}


def transform(rng):
    return rng.normal(size=(D, D)) + 2.0 * np.eye(D)


def queries(rng):
    W = transform(rng)
    return {
        "counts": LogScaleCounts(EDGES),
        "means": FeatureMeans(W, 2.5),
        "moments": SecondMoments(W, 2.5),
        "scores": RobustScores(W, 2.5, rng.normal(size=D), **SCORES),
        **{f"{link} scores": ClippedScores(W, 2.5, rng.normal(size=D), link, RESIDUALS[link]) for link in RESIDUALS},
        **{
            f"{link} curvatures": ClippedCurvatures(W, 2.5, np.zeros(D), link, RESIDUALS[link].with_slope_at_most(0.3))
            for link in RESIDUALS
        },
        **joint_queries(W, rng.normal(size=D)),
    }


def joint_queries(W, at):
    edges = 2.0 ** np.arange(-3, 4)
    return {
        "joint linear scores": JointScores(W, at, "gaussian", 2.0, 0.8, 1.3, 0.45),
        **{f"joint {link} scores": JointScores(W, at, link, 1.2) for link in ("logistic", "probit", "poisson")},
        "joint linear curvatures": Curvatures(W, at, "gaussian", 2.0),
        **{f"joint {link} curvatures": Curvatures(W, at, link, 0.2) for link in ("logistic", "probit", "poisson")},
        "joint linear products": ScoreProducts(W, at, "gaussian", 2.0),
        "joint logistic products": ScoreProducts(W, at, "logistic", 0.7),
        **{f"joint {link} weighted": JointScores(W, at, link, 0.9, weight_bound=0.9) for link in BINARY},
        **{f"joint {link} weighted too little": JointScores(W, at, link, 0.9, weight_bound=5.0) for link in BINARY},
        **{f"joint {link} weighted curvatures": Curvatures(W, at, link, 0.2, weight_bound=0.9) for link in BINARY},
        **{f"joint {link} weighted products": ScoreProducts(W, at, link, 0.7, weight_bound=0.9) for link in BINARY},
        "joint linear sizes": Sizes(W, at, "gaussian", edges, curved=False),
        "joint logistic sizes": Sizes(W, at, "logistic", edges, curved=True),
    }


KINDS = tuple(f"{link} {sum_}" for link in RESIDUALS for sum_ in ("scores", "curvatures"))
NAMES = ("counts", "means", "moments", "scores", *KINDS, *joint_queries(np.eye(D), np.zeros(D)))


def responses_for(name, rng, size):
    """Responses of the model whose sum this is, those that make the longest vectors among them."""
    name = name.removeprefix("joint ")
    if name.startswith(("logistic", "probit")):
        return (rng.random(size) < 0.5) + 0.0
    return rng.poisson(3.0, size) + 0.0 if name.startswith("poisson") else rng.normal(size=size) * 10.0


class FakePrivate:
    """What Passes asks of a PrivateRun, without a ledger or a file."""

    key = bytes(range(32))

    def begin(self, records):
        return 0, {}

    def refuse_fork(self):
        pass

    def before_draw(self):
        pass

    def save(self, step, arrays, *, last, now):
        pass


def fake_passes(X, y, plan, **options):
    report = options.pop("report", lambda done, total: None)
    return Passes(FakePrivate(), plan, MemoryRecords(X, y, intercept=False, n_threads=1), report=report)


def plan_of(*shares):
    return dpi.NewtonPlan.from_noise_multiplier(2.0, {"measure": shares}, 1e-5)


def exact_sum(X, y, query):
    """Return the sum without noise, in lattice steps, and the lattice step."""
    total = _native.PartialSum(length=query.length, max_norm=query.max_norm)
    query.add(total, Rows.of(X, y, intercept=False, n_threads=1))
    return total.integers, total.lattice_step


def adversarial_rows(rng, size):
    rows = rng.normal(size=(size, D)) * 10.0 ** rng.uniform(-8.0, 8.0, size=(size, 1))
    rows[0], rows[1, 0], rows[2, 1], rows[3] = 0.0, 1e308, -1e160, 1e-320
    return rows, rng.normal(size=size) * 10.0 ** rng.uniform(-9.0, 9.0, size=size)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_stays_within_the_stated_norm_and_ordinary_ones_reach_it(rng, name):
    query = queries(rng)[name]
    X = rng.normal(size=(400, D)) * rng.uniform(0.0, 1.0, size=(400, 1))
    y = responses_for(name, rng, 400)
    far, response = adversarial_rows(rng, 20)
    norms = []
    for row, own in zip(np.concatenate((X, far)), np.concatenate((y, response)), strict=True):
        integers, step = exact_sum(row[None].copy(), np.array([own]), query)
        norms.append(math.sqrt(sum(int(value) ** 2 for value in integers)) * step / query.max_norm)
    assert max(norms) <= 1.0
    # A stated norm that is too small would clip ordinary records, one that is too large waste noise.
    assert max(norms) >= (0.9 if name.endswith("scores") else 0.98)


@pytest.mark.parametrize("name", NAMES)
def test_removing_a_record_moves_the_sum_by_that_records_integers_alone(rng, name):
    query = queries(rng)[name]
    X, y = adversarial_rows(rng, 2085)
    total, step = exact_sum(X, y, query)
    for index in (0, 1, 5, 1023, 1024, 2084):
        kept = np.arange(len(X)) != index
        without, _ = exact_sum(X[kept], y[kept], query)
        alone, _ = exact_sum(X[[index]], y[[index]], query)
        assert np.array_equal(total - without, alone)
        assert sum(int(value) ** 2 for value in alone) <= (query.max_norm / step) ** 2


def test_the_test_above_finds_a_query_that_looks_at_other_records(rng):
    class Careless(LogScaleCounts):
        def add(self, total, rows):
            size = np.abs(rows.response) / np.abs(rows.response).mean()
            place = np.searchsorted(self.edges, size, side="right")
            total.add_contributions((place[:, None] == np.arange(self.length)).astype(float))

    X, y = rng.normal(size=(100, D)), rng.normal(size=100) * 3.0
    y[0] = 100.0
    query = Careless(EDGES)
    total, without, alone = (exact_sum(X[part], y[part], query)[0] for part in (slice(None), slice(1, None), slice(1)))
    assert not np.array_equal(total - without, alone)


def test_sums_are_those_of_numpy(rng):
    X, y = rng.normal(size=(3000, D)), rng.normal(size=3000)
    W, beta = transform(rng), rng.normal(size=D)
    Z = X @ W.T
    weight = np.minimum(1.0, 6.25 / (Z**2).sum(axis=1))

    def total(query, response=y):
        integers, step = exact_sum(X, response, query)
        return integers * step

    np.testing.assert_allclose(smat(total(SecondMoments(W, 2.5)), D), (Z * weight[:, None]).T @ Z, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(total(FeatureMeans(W, 2.5)), weight @ Z, rtol=1e-5, atol=1e-3)
    residual = y - X @ beta
    scores = total(RobustScores(W, 2.5, beta, **SCORES))
    np.testing.assert_allclose(scores[:-1], (weight * np.clip(residual, -0.7, 0.7)) @ Z, rtol=1e-4, atol=1e-3)
    scale = 0.4 * weight @ (np.minimum(np.abs(residual) / 1.3, 1.0) - 0.45)
    np.testing.assert_allclose(scores[-1], scale, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(
        total(LogScaleCounts(EDGES)), np.histogram(np.abs(y), [0.0, *EDGES, np.inf])[0], rtol=1e-5
    )


@pytest.mark.parametrize("link", RESIDUALS)
def test_sums_of_clipped_residuals_are_those_of_numpy(rng, link):
    X, W, beta, residual = rng.normal(size=(3000, D)), transform(rng), 0.4 * rng.normal(size=D), RESIDUALS[link]
    eta = X @ beta
    mean = {"logistic": special.expit, "probit": special.ndtr, "poisson": np.exp}[link](eta)
    y = rng.poisson(mean) + 0.0 if link == "poisson" else (rng.random(3000) < mean) + 0.0
    Z = X @ W.T
    weight = np.minimum(1.0, 6.25 / (Z**2).sum(axis=1))
    nodes = residual.first_node + residual.spacing * np.arange(residual.centre.size)
    psi = np.clip(y - mean, -residual.clip, residual.clip) - np.interp(eta, nodes, residual.centre)
    integers, step = exact_sum(X, y, ClippedScores(W, 2.5, beta, link, residual))
    np.testing.assert_allclose(integers * step, (weight * psi) @ Z, rtol=1e-4, atol=1e-3)
    integers, step = exact_sum(X, y, ClippedCurvatures(W, 2.5, beta, link, residual))
    expected = (Z * (weight * np.interp(eta, nodes, residual.slope))[:, None]).T @ Z
    np.testing.assert_allclose(smat(integers * step, D), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("link", ["gaussian", "logistic", "probit", "poisson"])
def test_sums_clipped_as_a_whole_are_those_of_numpy(rng, link):
    X, W, beta = rng.normal(size=(3000, D)), transform(rng), 0.4 * rng.normal(size=D)
    eta = X @ beta
    mean, slope = {
        "gaussian": (eta, np.ones(3000)),
        "logistic": (special.expit(eta), special.expit(eta) * special.expit(-eta)),
        "probit": (special.ndtr(eta), np.exp(-0.5 * eta**2) / math.sqrt(2.0 * math.pi)),
        "poisson": (np.exp(eta), np.exp(eta)),
    }[link]
    y = responses_for("linear" if link == "gaussian" else link, rng, 3000)
    Z = X @ W.T
    size, curved = np.abs(y - mean) * np.linalg.norm(Z, axis=1), np.sqrt(slope) * np.linalg.norm(Z, axis=1)

    def total(query):
        integers, step = exact_sum(X, y, query)
        return integers * step

    bound = float(np.quantile(size, 0.8))
    kept = (y - mean) * np.minimum(1.0, bound / size)
    np.testing.assert_allclose(total(JointScores(W, beta, link, bound)), kept @ Z, rtol=1e-4, atol=1e-2)
    products = smat(total(ScoreProducts(W, beta, link, bound**2)), D)
    np.testing.assert_allclose(products, (Z * np.square(kept)[:, None]).T @ Z, rtol=1e-4, atol=1e-1)
    bound = float(np.quantile(curved, 0.8))
    kept = slope * np.minimum(1.0, np.square(bound / curved))
    bread = smat(total(Curvatures(W, beta, link, bound**2)), D)
    np.testing.assert_allclose(bread, (Z * kept[:, None]).T @ Z, rtol=1e-4, atol=1e-2)
    for sizes, curve in ((size, False), (curved, True)):
        edges = np.quantile(sizes, [0.1, 0.5, 0.9])
        counted = total(Sizes(W, beta, link, edges, curved=curve))
        np.testing.assert_allclose(counted, np.histogram(sizes, [0.0, *edges, np.inf])[0], rtol=1e-5)


def probit_residuals(eta):
    """Return the derivative of the log-likelihood for a one and for a zero, and minus the second derivatives."""
    density = np.exp(-0.5 * np.square(eta)) / math.sqrt(2.0 * math.pi)
    one, zero = density / special.ndtr(eta), -density / special.ndtr(-eta)
    return one, zero, one * (one + eta), zero * (zero + eta)


@pytest.mark.parametrize("link", BINARY)
def test_weights_hold_both_responses_and_leave_the_expectation_at_zero(rng, link):
    """The power twin: scores that are clipped after the response is seen have another expectation."""
    X, W, beta, n = rng.normal(size=(3000, D)), transform(rng), rng.normal(size=D), 3000
    eta, Z = X @ beta, X @ W.T
    if link == "logistic":
        chance = special.expit(eta)
        one, zero, of_one, of_zero = 1.0 - chance, -chance, chance * (1.0 - chance), chance * (1.0 - chance)
    else:
        chance = special.ndtr(eta)
        one, zero, of_one, of_zero = probit_residuals(eta)
    length = np.maximum(one, -zero) * np.linalg.norm(Z, axis=1)
    bound = float(np.quantile(length, 0.4))
    weight = np.minimum(1.0, bound / length)

    def total(query, y):
        integers, step = exact_sum(X, y, query)
        return integers * step

    ones, zeros, none = np.ones(n), np.zeros(n), np.zeros((n, D))
    for y, residual, slope in ((ones, one, of_one), (zeros, zero, of_zero)):
        own = weight * residual
        assert np.all(np.abs(own) * np.linalg.norm(Z, axis=1) <= bound * (1.0 + 1e-12))
        # A norm that is larger clips nothing: weights alone hold both.
        scores = JointScores(W, beta, link, 8.0 * bound, weight_bound=bound)
        np.testing.assert_allclose(total(scores, y), own @ Z, rtol=1e-6, atol=1e-3)
        products = smat(total(ScoreProducts(W, beta, link, 8.0 * bound**2, weight_bound=bound), y), D)
        np.testing.assert_allclose(products, (Z * np.square(own)[:, None]).T @ Z, rtol=1e-6, atol=1e-2)
        bread = smat(total(Curvatures(W, beta, link, 1e4, weight_bound=bound), y), D)
        np.testing.assert_allclose(bread, (Z * (weight * slope)[:, None]).T @ Z, rtol=1e-6, atol=1e-1)
    expected = (chance * weight * one + (1.0 - chance) * weight * zero) @ Z
    np.testing.assert_allclose(expected, none[0], atol=1e-9)
    clipped = [r * np.minimum(1.0, bound / (np.abs(r) * np.linalg.norm(Z, axis=1))) for r in (one, zero)]
    assert np.linalg.norm((chance * clipped[0] + (1.0 - chance) * clipped[1]) @ Z) > 1.0


def test_weights_are_for_the_scores_of_zeros_and_ones():
    for link in ("gaussian", "poisson", "probit"):
        with pytest.raises(ValueError, match="weight_bound must be infinite"):
            _native.Residuals(link=link, loc=np.zeros(D), weight_bound=1.0)
    for bound in (0.0, math.nan):
        with pytest.raises(ValueError, match="weight_bound must be positive"):
            _native.Residuals(link="logistic", loc=np.zeros(D), weight_bound=bound)


class Silence:
    """A sum to which no record adds."""

    max_norm = 3.0

    def __init__(self, length):
        self.length = length

    def add(self, total, rows):
        total.add_contributions(np.zeros((1, self.length)))


def noise_of(plan, length):
    run = fake_passes(np.zeros((1, D)), np.zeros(1), plan)
    found = []
    for share in plan.shares:
        released = run.noisy_sum("measure", Silence(length))
        assert released.stddev == pytest.approx(3.0 * 2.0 / math.sqrt(share))
        found.append(released.values)
    return found


def test_noise_has_the_stated_standard_deviation_and_is_fresh_in_every_pass():
    """False-positive rate 1e-6 a pass; noise without the pass's share is rejected."""
    length = 400
    plan = plan_of(0.3, 0.5)
    low, high = stats.chi2.ppf([5e-7, 1.0 - 5e-7], length)
    values = noise_of(plan, length)
    for share, noise in zip(plan.shares, values, strict=True):
        assert low < np.sum((noise / (6.0 / math.sqrt(share))) ** 2) < high
        assert not low < np.sum((noise / 6.0) ** 2) < high
    assert abs(np.corrcoef(values)[0, 1]) < special.ndtri(1.0 - 5e-7) / math.sqrt(length)


def model(p=3, **options):
    return dpi.models.LinearRegression(p, fit_intercept=True, **options)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_all_passes_cost_what_one_sum_costs(epsilon):
    plan = dpi.plan_newton(model(), target_epsilon=epsilon, target_delta=1e-5, n_records=5000)
    assert sum(plan.shares) == pytest.approx(1.0)
    assert plan.epsilon <= epsilon
    assert plan.certify().epsilon == plan.epsilon
    one = account(GaussianEvent(plan.noise_multiplier), delta=1e-5).epsilon
    assert plan.epsilon == pytest.approx(one, rel=1e-6)
    assert one > 0.999 * epsilon


@pytest.mark.parametrize("kind", ["LinearRegression", "LogisticRegression", "PoissonRegression"])
def test_passes_for_the_population_cost_what_one_sum_costs(kind):
    model_ = getattr(dpi.models, kind)(3, fit_intercept=True)
    plan = dpi.plan_newton(model_, target_epsilon=1.0, target_delta=1e-5, n_records=5000, target="population")
    assert plan.target == "population"
    assert sum(plan.shares) == pytest.approx(1.0)
    assert plan.epsilon == pytest.approx(account(GaussianEvent(plan.noise_multiplier), delta=1e-5).epsilon, rel=1e-6)


def test_a_target_that_is_none_is_refused_before_anything_is_spent():
    options = {"target_epsilon": 1.0, "target_delta": 1e-5, "n_records": 5000}
    with pytest.raises(ValueError, match="target must be one of"):
        dpi.plan_newton(model(), target="robust", **options)


def test_replacing_a_record_costs_twice_the_noise():
    one, two = (
        dpi.plan_newton(model(), target_epsilon=1.0, target_delta=1e-5, n_records=5000, adjacency=relation)
        for relation in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE)
    )
    assert two.noise_multiplier == pytest.approx(2.0 * one.noise_multiplier, rel=1e-3)


def test_plans_are_plain_data():
    plan = dpi.plan_newton(model(), target_epsilon=1.0, target_delta=1e-5, n_records=5000)
    assert dpi.NewtonPlan.from_dict(plan.to_dict()) == plan
    with pytest.raises(ValueError, match="exactly the fields"):
        dpi.NewtonPlan.from_dict({"epsilon": 1.0})
    with pytest.raises(ValueError, match="sum to at most 1"):
        plan_of(0.6, 0.6)
    with pytest.raises(TypeError, match="LinearRegression"):
        dpi.plan_newton(dpi.models.BetaBernoulli(), target_epsilon=1.0, target_delta=1e-5, n_records=10)


@pytest.fixture
def records(rng):
    X = rng.normal(size=(500, 3))
    return X, X @ [1.0, 0.0, -1.0] + 0.5 * rng.normal(size=500)


@pytest.fixture(scope="module")
def plan():
    return dpi.plan_newton(model(), target_epsilon=3.0, target_delta=1e-5, n_records=500)


@pytest.fixture(scope="module")
def population():
    return dpi.plan_newton(model(), target_epsilon=3.0, target_delta=1e-5, n_records=500, target="population")


def run(records, plan, **options):
    defaults = {"n_records": 500, "response_scale": 1.0, "random_source": InsecureRNG(4)}
    return dpi.run_newton(model(), *records, plan=plan, **(defaults | options))


def assert_equal(one, other):
    for name in ("counts", "transforms", "moments", "positions", "scores", "scale_scores", "clips"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name


def test_a_run_finds_the_weights_and_says_what_it_may(records, plan):
    release = run(records, plan)
    weights = release.transforms[-1].T @ release.positions[-1]
    assert np.abs(weights - [1.0, 0.0, -1.0, 0.0]).max() < 0.5
    assert release.n_passes < plan.n_passes <= 40  # rounds of geometry stop
    made = dpi.NewtonPlan.from_dict(release.settings["plan"])
    assert release.n_passes == made.n_passes
    assert release.event == plan.event
    assert math.fsum(made.shares) == pytest.approx(math.fsum(plan.shares), abs=1e-12)
    assert_equal(run(records, made), release)
    with pytest.raises(InsecureReleaseError):
        _ = release.epsilon


def test_a_run_for_the_population_finds_least_squares(rng):
    """Skewed errors and a bent mean: the model's target would be far from least squares."""
    X = rng.normal(size=(20_000, 3))
    y = X @ [1.0, 0.0, -1.0] + 0.5 * X[:, 0] ** 2 + rng.gamma(0.5, 1.0, 20_000)
    design = np.column_stack((X, np.ones(len(X))))
    found = np.linalg.lstsq(design, y, rcond=None)[0]
    plan_ = dpi.plan_newton(model(), target_epsilon=50.0, target_delta=1e-5, n_records=20_000, target="population")
    release = dpi.run_newton(
        model(), X, y, plan=plan_, n_records=20_000, response_scale=2.0, random_source=InsecureRNG(1)
    )
    assert release.n_passes == plan_.n_passes
    assert release.event == plan_.event
    # Standard errors of least squares are about 0.01; the clip moves no coefficient by half of that.
    weights = release.score_transform.T @ (release.positions[-1] + release.scores[-1])
    np.testing.assert_allclose(weights, found, atol=0.005)
    residual = y - design @ (release.score_transform.T @ release.meat_position)
    Z = design @ release.score_transform.T
    np.testing.assert_allclose(release.meat, (Z * residual[:, None] ** 2).T @ Z / 20_000, atol=0.3)


def test_an_interrupted_run_for_the_population_goes_on_bit_for_bit(records, population, tmp_path):
    whole = run(records, population)

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(done, total):
        if done == 9:
            raise Stopped

    path = tmp_path / "run.checkpoint"
    with pytest.raises(Stopped):
        run(records, population, checkpoint=RunCheckpoint(path, interval=0.0), progress=stop)
    resumed = run(records, population, checkpoint=str(path))
    for name in ("lengths", "bread", "sizes", "positions", "scores", "meat"):
        assert getattr(whole, name).tobytes() == getattr(resumed, name).tobytes(), name


def test_a_release_for_the_population_is_what_its_file_holds_and_claims_no_more_noise(records, population, tmp_path):
    release = run(records, population)
    release.save(tmp_path / "release")
    loaded = dpi.load_release(tmp_path / "release")
    for name, value in vars(release).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(loaded, name), value)
    for name in ("bread_stddev", "meat_stddev", "sizes_stddev", "score_stddev", "localise_score_stddev"):
        with pytest.raises(ValueError, match="event must not claim"):
            replace(release, **{name: 0.5 * getattr(release, name)})


def test_a_release_has_the_chosen_numbers_of_its_run(records, plan, population, tmp_path, monkeypatch):
    """Those of the phases that took part, in its file too; the power twin chooses another number."""
    of_model, of_population = run(records, plan), run(records, population)
    monkeypatch.setattr(tuning, "POPULATION", replace(tuning.POPULATION, clip=2.5))
    changed = run(records, population)
    for release, clip in ((of_model, None), (of_population, 3.0), (changed, 2.5)):
        release.save(tmp_path / "release")
        chosen = dpi.load_release(tmp_path / "release").settings["tuning"]
        assert chosen["bound"] == tuning.TUNING.bound
        assert chosen["common"]["floor"] == common.TUNING.floor
        assert chosen.get("population", {}).get("clip") == clip
    assert changed.scores.tobytes() != of_population.scores.tobytes()


def test_an_interrupted_run_goes_on_bit_for_bit(records, plan, tmp_path):
    whole = run(records, plan)

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(done, total):
        if done == 7:
            raise Stopped

    path = tmp_path / "run.checkpoint"
    with pytest.raises(Stopped):
        run(records, plan, checkpoint=RunCheckpoint(path, interval=0.0), progress=stop)
    with pytest.raises(CheckpointError, match="response_scale"):
        run(records, plan, checkpoint=str(path), response_scale=2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "TUNING", replace(tuning.TUNING, bound=1.4))
        with pytest.raises(CheckpointError, match="tuning"):
            run(records, plan, checkpoint=str(path))
    with pytest.raises(RecordError, match="interrupted run"):
        run((records[0], records[1] + 1.0), plan, checkpoint=str(path))
    drawn = []
    resumed_passes = pytest.MonkeyPatch()
    for kind in (LogScaleCounts, SecondMoments, RobustScores):
        resumed_passes.setattr(kind, "add", lambda *a, original=kind.add: drawn.append(1) or original(*a))
    try:
        resumed = run(records, plan, checkpoint=str(path))
    finally:
        resumed_passes.undo()
    assert len(drawn) == whole.n_passes - 7
    assert_equal(whole, resumed)
    assert not path.exists()


def test_a_run_is_charged_before_its_records_are_looked_at(records, plan, tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger")
    people = ledger.add_dataset("people", budget=(5.0, 1e-5))
    bad = (records[0].copy(), records[1])
    bad[0][3, 1] = np.nan
    with pytest.raises(RecordError, match="X must be finite"):
        run(bad, plan, ledger=people, random_source=None)
    # A refusal says something about the records: it stays charged.
    assert [item.status for item in people.runs()] == ["started"]
    release = run(records, plan, ledger=people, random_source=None)
    assert release.secure
    assert release.epsilon <= 3.0
    assert release.settings["ledger"]["dataset"] == "people"
    with pytest.raises(dpi.errors.BudgetExceededError):
        run(records, plan, ledger=people, random_source=None)
    with pytest.raises(InsecureReleaseError):
        run(records, plan, ledger=people)


def test_a_forked_process_cannot_go_on(records, plan, monkeypatch):
    process = os.getpid()

    def fork(done, total):
        if done == 3:
            monkeypatch.setattr(os, "getpid", lambda: process + 1)

    with pytest.raises(RuntimeError, match="forked"):
        run(records, plan, progress=fork)


def test_passes_follow_the_plan(records):
    run_ = fake_passes(*records, plan_of(0.9))
    with pytest.raises(RuntimeError, match="'geometry'"):
        run_.noisy_sum("geometry", LogScaleCounts(EDGES))


@pytest.mark.parametrize("rows", ["huge", "constant", "one", "zero"])
def test_no_record_stops_a_run(plan, population, rng, rows):
    X, y = rng.normal(size=(50, 3)), rng.normal(size=50)
    if rows == "huge":
        X[:, 0], y[:] = 1e300, -1e308
    elif rows == "constant":
        X[:], y[:] = 1.0, 0.0
    elif rows == "one":
        X, y = X[:1], y[:1]
    else:
        X[:], y[:] = 0.0, 0.0
    assert np.all(np.isfinite(run((X, y), plan).scores))
    assert np.all(np.isfinite(run((X, y), population).scores))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response_scale": 0.0}, "response_scale"),
        ({"n_records": 0}, "n_records"),
        ({"random_source": 3}, "random_source"),
        ({"plan": dpi.PrivacyPlan.from_noise_multiplier(3.0, 0.5, 6, 1e-5)}, "plan"),
        ({"plan": plan_of(0.9)}, "plan"),
    ],
)
def test_bad_arguments_are_named(records, plan, change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        run(records, **({"plan": plan} | change))


WEIGHTS = np.array([0.7, 0.0, -0.7, 0.3])


def glm_records(model_, rng, n_records):
    X = rng.normal(size=(n_records, 3))
    return X, model_.simulate(WEIGHTS, X, rng)


@pytest.mark.parametrize("kind", ["LogisticRegression", "ProbitRegression", "PoissonRegression"])
def test_a_run_without_a_scale_finds_the_weights(rng, kind):
    model_ = getattr(dpi.models, kind)(3, fit_intercept=True)
    X, y = glm_records(model_, rng, 4000)
    plan = dpi.plan_newton(model_, target_epsilon=2.0, target_delta=1e-5, n_records=4000)
    release = dpi.run_newton(model_, X, y, plan=plan, n_records=4000, random_source=InsecureRNG(1))
    weights = release.score_transform.T @ release.positions[-1]
    assert np.abs(weights - WEIGHTS).max() < 0.3
    assert plan.n_passes == (13 if kind == "PoissonRegression" else 12)
    assert release.n_passes == plan.n_passes - 3  # rounds of geometry stop
    with pytest.raises(TypeError, match="response_scale must be None"):
        dpi.run_newton(model_, X, y, plan=plan, n_records=4000, response_scale=1.0)
    with pytest.raises(RecordError, match=r"0 and 1|counts"):
        dpi.run_newton(model_, X, y + 0.5, plan=plan, n_records=4000)
    with pytest.raises(ValueError, match="plan must have the phases scale"):
        dpi.run_newton(model(), X, y, plan=plan, n_records=4000, response_scale=1.0)


def test_declared_means_that_are_a_guess_are_measured(rng, tmp_path):
    """A category of a share of 0.9 that was declared with 0.5, and one declared with 1/3 whose share is 0.1."""
    kinds, levels = rng.random(5000) < 0.9, rng.choice(3, size=5000, p=[0.1, 0.3, 0.6])
    X = np.hstack((kinds[:, None], levels[:, None] == np.arange(3))).astype(float)
    mean = np.array([0.5, *np.full(3, 1.0 / 3.0), 1.0])
    moments = np.outer(mean, mean)
    moments[0, 0], moments[1:4, 1:4] = 0.5, np.eye(3) / 3.0
    model_ = dpi.models.LogisticRegression(4, fit_intercept=True, feature_moments=moments)
    plan = dpi.plan_newton(model_, target_epsilon=2.0, target_delta=1e-5, n_records=5000)
    assert plan.phases[:3] == ("means", "geometry", "geometry")
    y = (rng.random(5000) < 0.5).astype(float)
    release = dpi.run_newton(model_, X, y, plan=plan, n_records=5000, random_source=InsecureRNG(1))
    assert release.n_passes == plan.n_passes == 11
    # The geometry begins where the released shares are white: a constant, an indicator and two of three levels.
    exact = np.hstack((X, np.ones((5000, 1))))
    values = np.linalg.eigvalsh(release.transforms[0] @ (exact.T @ exact / 5000) @ release.transforms[0].T)
    np.testing.assert_allclose(values, [0.0, 1.0, 1.0, 1.0, 1.0], atol=0.3)
    release.save(tmp_path / "means")
    np.testing.assert_array_equal(dpi.load_release(tmp_path / "means").means, release.means)
    with pytest.raises(ValueError, match="event must not claim"):
        replace(release, means_stddev=0.5 * release.means_stddev)
    with pytest.raises(ValueError, match="means_stddev must have shape"):
        replace(release, means=np.empty(0))
    known = dpi.models.LogisticRegression(4, fit_intercept=True, feature_moments=moments, feature_moments_known=True)
    assert "means" not in dpi.plan_newton(known, target_epsilon=2.0, target_delta=1e-5, n_records=5000).phases


def test_rounds_go_on_where_noise_hides_a_direction(rng):
    """Nearly collinear features at a small budget keep all rounds; independent ones keep two, at the same cost."""
    plan = dpi.plan_newton(model(), target_epsilon=0.3, target_delta=1e-5, n_records=4000)
    independent = rng.normal(size=(4000, 3))
    collinear = independent[:, :1] + 0.01 * independent
    for X, rounds in ((independent, 2), (collinear, len(plan.indices("geometry")))):
        release = run((X, X.sum(axis=1) + rng.normal(size=4000)), plan, n_records=4000)
        made = dpi.NewtonPlan.from_dict(release.settings["plan"])
        assert len(release.moments) == len(made.indices("geometry")) == rounds
        assert sum(m**-2 for m in made.noise_multipliers) <= sum(m**-2 for m in plan.noise_multipliers) * (1 + 1e-12)
        assert made.shares[-1] >= plan.shares[-1]


def test_a_plan_without_some_passes_gives_their_shares_to_its_measurements():
    plan = dpi.NewtonPlan.from_noise_multiplier(
        2.0, {"geometry": (0.1, 0.1, 0.2), "measure": (0.2, 0.3), "slope": (0.1,)}, 1e-5
    )
    less = plan.without((1, 2))
    assert less.phases == ("geometry", "measure", "measure", "slope")
    np.testing.assert_allclose(less.shares, (0.1, 0.32, 0.48, 0.1))
    assert less.certify().epsilon == pytest.approx(plan.epsilon, rel=1e-9)
    for name, change in (
        ("bool", {"stops": 1}),
        ("population", {"stops": True, "phases": ("bread", *plan.phases[1:])}),
    ):
        with pytest.raises((TypeError, ValueError), match=f"stops must be .*{name}"):
            replace(plan, **change)
    for wrong in ([3], [6], [-1]):
        with pytest.raises(ValueError, match="left_out must hold numbers of passes"):
            plan.without(wrong)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("LogisticRegression", 0.0),
        ("ProbitRegression", 1.0),
        ("PoissonRegression", 0.0),
        ("PoissonRegression", 1e15),
    ],
)
@pytest.mark.parametrize(("size", "prior_scale"), [(0.0, 1.0), (1.0, 1e4), (1e150, 1.0)])
def test_a_run_with_one_response_alone_goes_through(rng, kind, value, size, prior_scale):
    model_ = getattr(dpi.models, kind)(2, fit_intercept=True, prior_scale=prior_scale)
    plan = dpi.plan_newton(model_, target_epsilon=1.0, target_delta=1e-5, n_records=200)
    X = rng.normal(size=(200, 2)) * size
    release = dpi.run_newton(model_, X, np.full(200, value), plan=plan, n_records=200, random_source=InsecureRNG(1))
    assert np.all(np.isfinite(release.scores))


def test_the_intercept_is_found_far_from_zero(rng):
    """From a start at zero a bounded score would take many steps to a rate of 20."""
    model_ = dpi.models.PoissonRegression(2, fit_intercept=True)
    X = rng.normal(size=(8000, 2))
    plan = dpi.plan_newton(model_, target_epsilon=1.0, target_delta=1e-5, n_records=8000)
    for intercept in (3.0, -3.0):
        y = model_.simulate([0.3, -0.3, intercept], X, rng)
        release = dpi.run_newton(model_, X, y, plan=plan, n_records=8000, random_source=InsecureRNG(2))
        weights = release.score_transform.T @ release.positions[-1]
        assert np.abs(weights - [0.3, -0.3, intercept]).max() < (0.1 if intercept > 0.0 else 0.5)


def arrived(seeds, mean, within):
    """How many runs end near the truth whose counts are near `mean`."""
    model = dpi.models.PoissonRegression(3, fit_intercept=True, prior_scale=2.5)
    plan = dpi.plan_newton(model, target_epsilon=0.3, target_delta=1e-6, n_records=4000)
    truth = np.array([0.5, -0.5, 0.4, np.log(mean)])
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        kinds = rng.integers(3, size=4000)
        X = np.column_stack([rng.uniform(-1.5, 1.5, 4000), kinds == 1, kinds == 2])
        y = rng.poisson(np.exp(X @ truth[:3] + truth[3])) + 0.0
        release = dpi.run_newton(model, X, y, plan=plan, n_records=4000, random_source=InsecureRNG(seed))
        found.append(np.linalg.norm(release.score_transform.T @ release.slope_position - truth))
    return sum(distance < within for distance in found)


def test_a_run_of_large_counts_ends_near_the_truth(monkeypatch):
    """The power twin cuts off the first scores like the last ones, and does not arrive where counts are larger.

    At 700 none of 30 runs was beyond 0.0084, where the zero of the clipped score varies by 0.002 in each of four
    directions; if one in 30 is beyond 0.012, four of eight are with probability 9e-5.  At 3000 17 of 24 runs come
    within 0.92 and none of the twin's 40: none of eight does with probability 5e-5.
    """
    assert arrived(8, 700.0, 0.012) >= 5
    near = arrived(8, 3000.0, 0.92)
    monkeypatch.setattr(tuning, "TUNING", replace(tuning.TUNING, misplaced=0.0))
    assert arrived(8, 3000.0, 0.92) < near
