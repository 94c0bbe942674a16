"""Survey weights, clusters and strata: against estimates without noise and their errors, layouts, refusals."""

from dataclasses import replace

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import Adjacency
from dpinfer.errors import RecordError
from dpinfer.inference.newton.strata import BetweenStrata
from dpinfer.mechanism import Clusters, RowSource, Units, _native
from dpinfer.mechanism.newton.joint import (
    CLUSTER_NORM,
    ClusterProducts,
    ClusterSizes,
    JointScores,
    StratumScores,
    StratumUnits,
    UnitProducts,
    UnitScores,
    UnitSizes,
)
from dpinfer.mechanism.newton.pass_records import open_records
from dpinfer.models import SurveyWeights
from dpinfer.testing import InsecureRNG

WEIGHTS = SurveyWeights(largest=6000.0, mean=1500.0, sd=700.0)
KINDS = ["LinearRegression", "LogisticRegression", "PoissonRegression"]


def records(kind, rng, size, clusters=1):
    """Rows with a bent mean, weights that depend on a feature, and effects that rows of a cluster share."""
    shared = np.repeat(rng.normal(size=(size // clusters, 2)), clusters, axis=0)
    X = np.column_stack((0.8 * shared[:, 0] + 0.6 * rng.normal(size=size), rng.normal(size=size)))
    eta = (
        0.4 * X[:, 0]
        - 0.3 * X[:, 1]
        + 0.1 * np.minimum(X[:, 0] ** 2, 4.0)
        + (0.5 if clusters == 1 else 2.0) * shared[:, 1]
    )
    weights = 1500.0 * np.exp(0.3 * X[:, 0] + 0.2 * rng.normal(size=size) - 0.065)
    if kind == "LinearRegression":
        return X, eta + rng.normal(size=size), weights
    if kind == "LogisticRegression":
        return X, (rng.random(size) < 1.0 / (1.0 + np.exp(-eta))).astype(float), weights
    return X, rng.poisson(np.exp(eta - 0.3)).astype(float), weights


def reference(kind, X, y, weights, groups):
    """Return the weighted estimate and its standard errors: Newton's method, and the sandwich of sums by group."""
    design, found = np.column_stack((X, np.ones(len(X)))), np.zeros(X.shape[1] + 1)
    for _ in range(30):
        eta = design @ found
        mean = {"LinearRegression": eta, "LogisticRegression": 1.0 / (1.0 + np.exp(-eta))}.get(kind, np.exp(eta))
        slope = {"LinearRegression": np.ones(len(y)), "LogisticRegression": mean * (1.0 - mean)}.get(kind, mean)
        scores = design * (weights * (y - mean))[:, None]
        bread = np.linalg.inv((design * (weights * slope)[:, None]).T @ design)
        found = found + bread @ scores.sum(axis=0)
    sums = np.zeros((groups.max() + 1, design.shape[1]))
    np.add.at(sums, groups, scores)
    return found, np.sqrt(np.diag(bread @ sums.T @ sums @ bread))


def release(kind, X, y, *, n_records, epsilon=300.0, weights=None, **options):
    model = getattr(dpi.models, kind)(X.shape[1], fit_intercept=True, prior_scale=10.0, survey_weights=weights)
    plan = dpi.plan_newton(
        model, target_epsilon=epsilon, target_delta=1e-6, n_records=n_records, target="population",
        clusters=isinstance(options.get("unit"), Clusters),
    )  # fmt: skip
    scale = {"response_scale": 1.5} if kind == "LinearRegression" else {}
    source = InsecureRNG(3)
    return dpi.run_newton(model, X, y, plan=plan, n_records=n_records, random_source=source, **scale, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_with_much_budget_it_is_the_weighted_estimate_with_its_design_based_errors(kind, rng):
    X, y, weights = records(kind, rng, 8000)
    found = release(kind, X, np.column_stack((y, weights)), n_records=8000, weights=WEIGHTS, epsilon=3000.0)
    found = dpi.noise_aware_posterior(found)
    exact, stddev = reference(kind, X, y, weights, np.arange(8000))
    # Noise is a hundredth of the sampling error here; without weights the estimate is several errors off.
    np.testing.assert_array_less(np.abs(found.mean[:3] - exact), 0.2 * stddev)
    np.testing.assert_allclose(found.stddev[:3], stddev, rtol=0.06)
    plain, _ = reference(kind, X, y, np.ones(8000), np.arange(8000))
    assert np.max(np.abs(plain - exact) / stddev) > 1.0
    assert "design-based" in found.diagnostics.verdict


@pytest.mark.parametrize("kind", ["LinearRegression", "LogisticRegression"])
def test_with_much_budget_units_have_cluster_robust_errors(kind, rng):
    X, y, _ = records(kind, rng, 12_000, clusters=4)
    unit = np.repeat(np.arange(3000), 4)
    found = dpi.noise_aware_posterior(release(kind, X, y, n_records=3000, unit=Units(unit, max_rows=4.0)))
    ones = np.ones(12_000)
    exact, stddev = reference(kind, X, y, ones, unit)
    np.testing.assert_array_less(np.abs(found.mean[:3] - exact), 0.2 * stddev)
    np.testing.assert_allclose(found.stddev[:3], stddev, rtol=0.08)
    _, alone = reference(kind, X, y, ones, np.arange(12_000))
    assert np.max(stddev / alone) > 1.3
    assert "rows of a unit" in found.diagnostics.verdict


def test_weights_of_one_change_no_bit(rng):
    X, y, _ = records("LinearRegression", rng, 500)
    plain = release("LinearRegression", X, y, n_records=500, epsilon=2.0)
    ones = release(
        "LinearRegression",
        X,
        np.column_stack((y, np.ones(500))),
        n_records=500,
        epsilon=2.0,
        weights=SurveyWeights(largest=1.0),
    )
    for name in ("counts", "moments", "bread", "sizes", "scores", "meat"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(ones, name))


def test_weights_beyond_the_largest_are_cut_off_there(rng):
    X, y, weights = records("LogisticRegression", rng, 500)
    cut = np.minimum(weights, 2000.0)
    limit = SurveyWeights(largest=2000.0, mean=1500.0)
    first, second = (
        release("LogisticRegression", X, np.column_stack((y, given)), n_records=500, epsilon=2.0, weights=limit)
        for given in (weights, cut)
    )
    np.testing.assert_array_equal(first.scores, second.scores)
    assert np.any(weights > 2000.0)


def test_streams_and_sparse_rows_have_the_bits_of_arrays(rng):
    X, y, weights = records("LogisticRegression", rng, 3000)
    X[rng.random(X.shape) < 0.5] = 0.0
    both = np.column_stack((y, weights))
    sparse = pytest.importorskip("scipy.sparse").csr_array(X)
    source = RowSource(lambda: ((X[k : k + 700], both[k : k + 700]) for k in range(0, 3000, 700)), 2)
    given = {"n_records": 3000, "epsilon": 2.0, "weights": WEIGHTS}
    whole = release("LogisticRegression", X, both, **given)
    for other in (release("LogisticRegression", sparse, both, **given), _streamed(source, **given)):
        np.testing.assert_array_equal(whole.scores, other.scores)
        np.testing.assert_array_equal(whole.meat, other.meat)


def _streamed(source, *, n_records, epsilon, weights):
    model = dpi.models.LogisticRegression(2, fit_intercept=True, prior_scale=10.0, survey_weights=weights)
    plan = dpi.plan_newton(model, target_epsilon=epsilon, target_delta=1e-6, n_records=n_records, target="population")
    return dpi.run_newton(model, source, plan=plan, n_records=n_records, random_source=InsecureRNG(3))


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (lambda y: y, "two columns"),
        (lambda y: np.column_stack((y, y, y)), "two columns"),
        (lambda y: np.column_stack((y, y - 10.0)), "at least 0"),
        (lambda y: np.column_stack((y, np.where(y > 0, np.nan, 1.0))), "finite"),
    ],
)
def test_responses_without_a_weight_beside_each_are_refused(rng, response, message):
    X, y, _ = records("LinearRegression", rng, 100)
    with pytest.raises(RecordError, match=message):
        release("LinearRegression", X, response(y), n_records=100, weights=WEIGHTS)


def test_runs_that_do_not_know_weights_refuse_them_before_anything_is_spent(rng, tmp_path):
    X, y, weights = records("LogisticRegression", rng, 100)
    both = np.column_stack((y, weights))
    model = dpi.models.LogisticRegression(2, survey_weights=WEIGHTS)
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(9.0, 1e-4))
    with pytest.raises(TypeError, match="target must be 'population'"):
        dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=100)
    with pytest.raises(ValueError, match="target must be 'auto' or 'population'"):
        dpi.plan_fit(model, epsilon=1.0, delta=1e-5, n_records=100, target="model")
    plan = dpi.plan_newton(replace(model, survey_weights=None), target_epsilon=1.0, target_delta=1e-5, n_records=100)
    with pytest.raises(TypeError, match="without survey_weights"):
        dpi.run_newton(model, X, both, plan=plan, n_records=100, ledger=account)
    steps = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=10)
    with pytest.raises(TypeError, match="without survey_weights"):
        dpi.run_dpvi(model, X, both, plan=steps, n_records=100, max_grad_norm=1.0, ledger=account)
    assert not account.runs()
    assert dpi.plan_fit(model, epsilon=1.0, delta=1e-5, n_records=5000).mechanism.target == "population"


@pytest.mark.parametrize(
    "numbers", [{"largest": 0.0}, {"largest": 2.0, "mean": 3.0}, {"largest": np.inf}, {"largest": 1.0, "sd": -1.0}]
)
def test_numbers_that_are_no_weights_are_refused(numbers):
    with pytest.raises(ValueError, match="must"):
        SurveyWeights(**numbers)


def test_a_model_with_weights_is_what_its_release_says(rng, tmp_path):
    X, y, weights = records("LinearRegression", rng, 200)
    made = release("LinearRegression", X, np.column_stack((y, weights)), n_records=200, epsilon=1.0, weights=WEIGHTS)
    made.save(tmp_path / "release")
    assert dpi.models.model_from_dict(dpi.load_release(tmp_path / "release").model_spec).survey_weights == WEIGHTS


def test_what_a_unit_contributes_is_the_sum_of_its_rows():
    of_rows = JointScores(np.eye(2), np.zeros(2), "gaussian", 4.0)
    g = np.array([[3.0, -4.0], [0.0, 0.5]])
    np.testing.assert_array_equal(UnitScores(of_rows, 4.0).of_units(g), g)
    products = UnitProducts(of_rows, 16.0).of_units(g)
    np.testing.assert_allclose(products[0], [9.0, -12.0 * np.sqrt(2.0), 16.0], rtol=1e-15)
    np.testing.assert_allclose(np.linalg.norm(products, axis=1), [25.0, 0.25], rtol=1e-15)
    sizes = UnitSizes(of_rows, 1.0, np.array([1.0, 5.0, 9.0]))
    np.testing.assert_array_equal(sizes.of_units(g), [[0, 0, 1, 0], [1, 0, 0, 0]])


@pytest.mark.parametrize(("kind", "weighted"), [("LinearRegression", True), ("LogisticRegression", False)])
def test_with_much_budget_rows_in_clusters_have_cluster_robust_errors(kind, weighted, rng, tmp_path):
    """Rows come in any order, and are what is protected."""
    X, y, weights = records(kind, rng, 12_000, clusters=4)
    cluster, order = np.repeat(np.arange(3000), 4), rng.permutation(12_000)
    response = np.column_stack((y, weights)) if weighted else y
    options = {"weights": WEIGHTS if weighted else None, "unit": Clusters(cluster[order])}
    made = release(kind, X[order], response[order], n_records=12_000, **options)
    found = dpi.noise_aware_posterior(made)
    exact, stddev = reference(kind, X, y, weights if weighted else np.ones(12_000), cluster)
    np.testing.assert_array_less(np.abs(found.mean[:3] - exact), 0.2 * stddev)
    np.testing.assert_allclose(found.stddev[:3], stddev, rtol=0.06)
    _, alone = reference(kind, X, y, weights if weighted else np.ones(12_000), np.arange(12_000))
    assert np.min(alone / stddev) < 0.85
    assert "rows of a cluster" in found.diagnostics.verdict
    made.save(tmp_path / "clusters.release")
    again = dpi.noise_aware_posterior(dpi.load_release(tmp_path / "clusters.release"))
    np.testing.assert_array_equal(again.interval(0.9), found.interval(0.9))
    with pytest.raises(ValueError, match="more noise"):
        made.replace(cluster_bound=2.0 * made.cluster_bound)


@pytest.mark.parametrize("kind", ["products", "sizes"])
def test_a_row_moves_what_clusters_add_by_no_more_than_is_said(rng, kind):
    """In an old cluster, in a new one, from one to another; long rows and short ones, beside clusters at the bound."""
    model = dpi.models.LinearRegression(3)
    scores = JointScores(np.eye(3), np.zeros(3), "gaussian", 1.5)
    query = {
        "products": ClusterProducts.of(scores, 4.0),
        "sizes": ClusterSizes(scores, CLUSTER_NORM, np.array([0.5, 1.0, 2.0, 4.0])),
    }[kind]

    def integers(X, y, cluster):
        total = _native.PartialSum(length=query.length, max_norm=query.max_norm)
        open_records(model, X, y, Adjacency.ADD_REMOVE, n_threads=1, units=Clusters(cluster)).add(total, query)
        return np.array(total.integers, dtype=object), total.lattice_step

    largest = 0.0
    for _ in range(60):
        n = int(rng.integers(2, 12))
        X, y = rng.normal(size=(n, 3)) * 3.0, rng.normal(size=n) * 3.0
        # All rows of a cluster point alike in some of the tables, so that its sum is at its bound.
        X, y = (np.abs(X), np.abs(y)) if rng.random() < 0.5 else (X, y)
        cluster = rng.integers(0, 3, n)
        whole, step = integers(X, y, cluster)
        rest, _ = integers(X[1:], y[1:], cluster[1:])
        moved, _ = integers(X, y, np.concatenate((cluster[:1] + 1, cluster[1:])))
        for other, factor in ((rest, 1.0), (moved, 2.0)):
            square = sum(int(k) ** 2 for k in whole - other)
            assert square <= (factor * query.max_norm / step) ** 2
        largest = max(largest, float(np.sqrt(float(sum(int(k) ** 2 for k in whole - rest)))) * step)
    # The bound is not idle; half of it would not do.
    assert largest > 0.5 * query.max_norm


def test_clusters_are_refused_where_they_say_nothing(rng):
    X, y, _ = records("LinearRegression", rng, 100)
    model, cluster = dpi.models.LinearRegression(2), np.arange(100) // 4
    common = {"target_epsilon": 1.0, "target_delta": 1e-5, "n_records": 100}
    with pytest.raises(TypeError, match="clusters must be False but"):
        dpi.plan_newton(model, clusters=True, **common)
    plan = dpi.plan_newton(model, target="population", clusters=True, **common)
    run = {"plan": plan, "n_records": 100, "response_scale": 1.0}
    for unit in (None, Units(cluster)):
        with pytest.raises(ValueError, match="unit must be Clusters with a plan"):
            dpi.run_newton(model, X, y, unit=unit, **run)
    with pytest.raises(ValueError, match="clusters must be None with unit"):
        dpi.fit(model, X, y, epsilon=1.0, delta=1e-5, n_records=100, clusters=cluster, unit=Units(cluster))
    with pytest.raises(ValueError, match="none with a RowSource"):
        dpi.run_newton(model, RowSource(lambda: [(X, y)], 2), unit=Clusters(cluster), **run)
    with pytest.raises(RecordError, match="as many entries"):
        dpi.run_newton(model, X, y, unit=Clusters(cluster[1:]), **run)
    blanked = dpi.plan_newton(model, target="population", clusters=True, adjacency="zero_out", **common)
    with pytest.raises(ValueError, match="zero_out"):
        dpi.run_newton(model, X, y, unit=Clusters(cluster), **(run | {"plan": blanked}))
    with pytest.raises(ValueError, match="clusters must be False for target 'model'"):
        dpi.plan_fit(model, epsilon=1.0, delta=1e-5, n_records=100, response_scale=1.0, target="model", clusters=True)


def stratified(rng, size, clusters=1):
    """Strata of equal size whose means of the response differ, rows of a cluster alike, and weights."""
    stratum = np.arange(size // clusters) % 8
    place = np.repeat(stratum, clusters)
    X = rng.normal(size=(size, 2))
    y = X @ [0.5, -0.3] + np.array([1.5, -1.0, 0.3, -0.4, 1.0, -1.5, 0.6, -0.5])[place] + rng.normal(size=size)
    y = y + 0.5 * np.repeat(rng.normal(size=size // clusters), clusters)
    return X, y, 1500.0 * (0.7 + 0.2 * (place % 3)), place


def by_formula(kind, X, y, weights, groups, strata):
    """Return the standard errors of R's svyglm: sums by group about the means of strata, times n / (n - 1)."""
    exact, alone = reference(kind, X, y, weights, groups)
    design = np.column_stack((X, np.ones(len(X))))
    eta = design @ exact
    mean, slope = (eta, np.ones(len(y))) if kind == "LinearRegression" else (1.0 / (1.0 + np.exp(-eta)), None)
    slope = mean * (1.0 - mean) if slope is None else slope
    bread = np.linalg.inv((design * (weights * slope)[:, None]).T @ design)
    sums = np.zeros((groups.max() + 1, 3))
    np.add.at(sums, groups, design * (weights * (y - mean))[:, None])
    own = np.zeros(len(sums), dtype=int)
    own[groups] = strata
    meat = sum(np.cov(sums[own == place].T) * np.sum(own == place) for place in np.unique(own))
    return exact, np.sqrt(np.diag(bread @ meat @ bread)), alone


@pytest.mark.parametrize("how", ["rows", "weights", "clusters", "units"])
def test_with_much_budget_strata_have_the_errors_of_the_survey_package(how, rng, tmp_path):
    """Without them the intercept's is a fifth wider, or more."""
    m = 4 if how in ("clusters", "units") else 1
    X, y, weights, place = stratified(rng, 8000, m)
    weights = weights if how == "weights" else np.full(8000, 1500.0)
    groups = np.repeat(np.arange(8000 // m), m)
    unit = {"clusters": Clusters(groups), "units": Units(groups, max_rows=4.0)}.get(how)
    given = {"weights": replace(WEIGHTS, strata=8), "unit": unit, "n_records": 2000 if how == "units" else 8000}
    made = release("LinearRegression", X, np.column_stack((y, weights, place)), epsilon=1000.0, **given)
    found = dpi.noise_aware_posterior(made)
    exact, stddev, alone = by_formula("LinearRegression", X, y, weights, groups, place)
    np.testing.assert_array_less(np.abs(found.mean[:3] - exact), 0.2 * stddev)
    np.testing.assert_allclose(found.stddev[:3], stddev, rtol=0.03)
    assert alone[2] > 1.2 * stddev[2]
    assert "within strata" in found.diagnostics.verdict
    made.save(tmp_path / "strata.release")
    again = dpi.noise_aware_posterior(dpi.load_release(tmp_path / "strata.release"))
    np.testing.assert_array_equal(again.interval(0.9), found.interval(0.9))
    with pytest.raises(ValueError, match="more noise"):
        made.replace(strata_bound=2.0 * made.strata_bound)


def test_strata_that_noise_hides_change_little(rng):
    """Noise alone is not taken for differences: intervals are at most a little narrower than those without strata."""
    X, y, weights, place = stratified(rng, 4000)
    given = {"n_records": 4000, "epsilon": 0.5}
    found, plain = (
        dpi.noise_aware_posterior(release("LinearRegression", X, np.column_stack(y_and), weights=own, **given))
        for y_and, own in (((y, weights, place), replace(WEIGHTS, strata=40)), ((y, weights), WEIGHTS))
    )
    assert "do not stand out" in found.diagnostics.verdict
    assert np.all(found.stddev[:3] > 0.9 * plain.stddev[:3])


@pytest.mark.parametrize("size", [3, 8])
def test_what_is_between_strata_is_what_formulas_say_and_noise_is_not_taken_for_it(rng, size):
    n, d = 60, 4
    scores = rng.normal(size=(size, n, d)) + 0.5 * rng.normal(size=(size, 1, d))
    flat = scores.reshape(-1, d)
    sums, shares = scores.sum(axis=1) / len(flat), np.full(size, 1.0 / size)
    exact = sum(np.cov(own.T) * n for own in scores) / len(flat)
    within, _ = BetweenStrata.of(sums, shares, 0.0, 0.0, len(flat)).taken_off(flat.T @ flat / len(flat), 0.0)
    # Fewer strata than coefficients: noise is as good as none, and the factor n / (n - 1) is that of what is shown.
    np.testing.assert_allclose(within, exact, rtol=1e-9 if size > d else 0.05, atol=0.0 if size > d else 0.05)
    noisy = [
        BetweenStrata.of(0.02 * rng.normal(size=(size, d)), shares, 0.02, 0.001, 1000).shown.any() for _ in range(400)
    ]
    # At most exp(-2), by the proof; in 4000 runs with another seed none.
    assert np.mean(noisy) < 0.03


@pytest.mark.parametrize("grouped", [False, True])
def test_a_row_moves_the_sums_of_strata_by_no_more_than_is_said(rng, grouped):
    """In its stratum or to another one, in an old cluster or a new one; a cluster may have rows in two strata."""
    model = dpi.models.LinearRegression(3, survey_weights=SurveyWeights(1.0, strata=3))
    scores = JointScores(np.eye(3), np.zeros(3), "gaussian", 1.5)
    query = StratumUnits.of(scores, 3, 4.0) if grouped else StratumScores.of(scores, 3)

    def integers(X, y, place, cluster):
        total = _native.PartialSum(length=query.length, max_norm=query.max_norm)
        both = np.column_stack((y, np.ones(len(y)), place))
        units = Clusters(cluster) if grouped else None
        open_records(model, X, both, Adjacency.ADD_REMOVE, n_threads=1, units=units).add(total, query)
        return np.array(total.integers, dtype=object), total.lattice_step

    largest = 0.0
    for _ in range(60):
        n = int(rng.integers(2, 12))
        X, y = rng.normal(size=(n, 3)) * 3.0, rng.normal(size=n) * 3.0
        X, y = (np.abs(X), np.abs(y)) if rng.random() < 0.5 else (X, y)
        place, cluster = rng.integers(0, 3, n), rng.integers(0, 3, n)
        whole, step = integers(X, y, place, cluster)
        rest, _ = integers(X[1:], y[1:], place[1:], cluster[1:])
        moved, _ = integers(X, y, np.concatenate(((place[:1] + 1) % 3, place[1:])), cluster)
        for other, factor in ((rest, 1.0), (moved, 2.0)):
            assert sum(int(k) ** 2 for k in whole - other) <= (factor * query.max_norm / step) ** 2
        largest = max(largest, float(np.sqrt(float(sum(int(k) ** 2 for k in whole - rest)))) * step)
    assert largest > 0.9 * query.max_norm


def test_strata_of_streams_and_sparse_rows_have_the_bits_of_arrays(rng):
    X, y, weights, place = stratified(rng, 3000)
    X[rng.random(X.shape) < 0.5] = 0.0
    both = np.column_stack((y > 0.0, weights, place))
    sparse = pytest.importorskip("scipy.sparse").csr_array(X)
    source = RowSource(lambda: ((X[k : k + 700], both[k : k + 700]) for k in range(0, 3000, 700)), 2)
    given = {"n_records": 3000, "epsilon": 2.0, "weights": replace(WEIGHTS, strata=8)}
    whole = release("LogisticRegression", X, both, **given)
    for other in (release("LogisticRegression", sparse, both, **given), _streamed(source, **given)):
        np.testing.assert_array_equal(whole.strata, other.strata)
    with pytest.raises(RecordError, match="strata in its third column"):
        release("LogisticRegression", X, both + np.array([0.0, 0.0, 1.0]), **given)
    with pytest.raises(RecordError, match="three columns"):
        release("LogisticRegression", X, both[:, :2], **given)
    with pytest.raises(ValueError, match="strata must"):
        SurveyWeights(1.0, strata=1001)
