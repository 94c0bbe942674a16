"""Blanked records under zero_out: a row of NaN is the null record, and the release is that without the row."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import RecordError
from dpinfer.lab import baselines
from dpinfer.lab.baselines import NetworkVISettings, run_network_vi
from dpinfer.mechanism import run_network_dp_sep
from dpinfer.tabular import Schema, Table, release_shares
from dpinfer.testing import InsecureRNG

N, BLANK = 30, 11
MODELS = dpi.models
MIXTURE = MODELS.GaussianMixture(2, 2, covariance=0.25, prior_scale=2.0)
NETWORK = MODELS.BayesianNeuralNetwork(2, 3)
SCHEMA = Schema.from_dict(
    {
        "columns": {
            "pet": {"kind": "categorical", "categories": ["cat", "dog"], "reference": "dog"},
            "sex": {"kind": "binary", "positive": "f", "negative": "m"},
        }
    }
)
PLANS = {
    relation: dpi.PrivacyPlan.from_noise_multiplier(3.0, 0.6, 4, 1e-5, adjacency=relation)
    for relation in ("zero_out", "add_remove")
}


def gradients(model):
    def run(X, y, **options):
        return dpi.run_dpvi(model, X, y, max_grad_norm=1.0, **options).noisy_gradients

    return run


def conjugate(model):
    def run(X, y, **options):
        return dpi.run_dpvi(model, y, **options).noisy_gradients

    return run


def vi(X, y, **options):
    settings = NetworkVISettings(1e-2, 10.0, 1.0, 0.1)
    return run_network_vi(NETWORK, X, y, settings=settings, max_grad_norm=1.0, **options).loc


def newton(model):
    plans = {
        relation: dpi.plan_newton(model, target_epsilon=3.0, target_delta=1e-5, n_records=N, adjacency=relation)
        for relation in PLANS
    }
    scale = {"response_scale": 1.0} if model.has_dispersion else {}

    def run(X, y, *, plan, **options):
        released = dpi.run_newton(model, X, y, plan=plans[plan.adjacency.value], **scale, **options)
        return np.concatenate([released.counts, released.moments.ravel(), released.scores.ravel()])

    return run


RUNS = {
    "logistic": gradients(MODELS.LogisticRegression(2)),
    "probit": gradients(MODELS.ProbitRegression(2)),
    "poisson": gradients(MODELS.PoissonRegression(2)),
    "linear": gradients(MODELS.LinearRegression(2)),
    "single precision": lambda X, y, **options: gradients(MODELS.LogisticRegression(2))(
        X.astype(np.float32), y, **options
    ),
    "exponential": conjugate(MODELS.GammaExponential()),
    "bernoulli": conjugate(MODELS.BetaBernoulli()),
    "binomial": conjugate(MODELS.BetaBinomial(3)),
    "categorical": conjugate(MODELS.DirichletCategorical((1.0, 1.0, 1.0))),
    "mixture sites": lambda X, y, **options: dpi.run_dp_sep(MIXTURE, X, **options).noisy_sums,
    "probit sites": lambda X, y, **options: dpi.run_dp_sep(MODELS.ProbitRegression(2), X, y, **options).noisy_sums,
    "logistic sites": lambda X, y, **options: dpi.run_dp_sep(MODELS.LogisticRegression(2), X, y, **options).noisy_sums,
    "network sites": lambda X, y, **options: run_network_dp_sep(NETWORK, X, y, **options).noisy_sums,
    "network vi": vi,
    "linear newton": newton(MODELS.LinearRegression(2)),
    "logistic newton": newton(MODELS.LogisticRegression(2)),
    "probit newton": newton(MODELS.ProbitRegression(2, fit_intercept=True)),
    "poisson newton": newton(MODELS.PoissonRegression(2)),
    "em": lambda X, y, **options: baselines.run_dp_em(MIXTURE, X, max_site_norm=1.0, **options).loc,
}


@pytest.fixture
def records(rng):
    return rng.normal(size=(N, 2)), (rng.random(N) < 0.5).astype(float)


def blanked(records, at=BLANK):
    X, y = (array.copy() for array in records)
    X[at], y[at] = np.nan, np.nan
    return X, y


def without(records):
    return tuple(np.delete(array, BLANK, axis=0) for array in records)


def run(name, records, relation="zero_out"):
    return RUNS[name](*records, plan=PLANS[relation], n_records=N, random_source=InsecureRNG(7), n_threads=1)


@pytest.mark.parametrize("name", RUNS)
def test_a_null_record_is_a_record_that_is_not_there(name, records):
    """So neighbours under zero_out are neighbours under add/remove, with the same sensitivity C; bit for bit."""
    absent = run(name, without(records))
    assert run(name, blanked(records)).tobytes() == absent.tobytes()
    assert run(name, without(records), "add_remove").tobytes() == absent.tobytes()
    # The test can fail: the record was in some step's sample, and moved its sum.
    assert run(name, records).tobytes() != absent.tobytes()


@pytest.mark.parametrize("name", RUNS)
def test_all_records_may_be_null(name, records):
    """A data set of one record has a neighbour without any: to refuse it would tell which it is."""
    assert np.all(np.isfinite(run(name, blanked(records, slice(None)))))


def test_a_row_of_zeros_would_move_the_sum_by_more_than_the_norm():
    """Why zeros cannot be the null record: with an intercept they contribute as much as any, here the other way."""
    model = MODELS.LogisticRegression(1, fit_intercept=True)
    X, y = np.zeros((1, 1)), np.ones(1)
    plan = dpi.PrivacyPlan.from_noise_multiplier(1e-6, 1.0, 1, 1e-5, adjacency="zero_out")

    def total(X, y):
        options = {"plan": plan, "n_records": 1, "max_grad_norm": 0.1, "random_source": InsecureRNG(1)}
        release = dpi.run_dpvi(model, X, y, grad_scale=1.0, **options)
        return release.noisy_gradients[0] * release.grad_scale

    far = np.linalg.norm(total(X, y) - total(X, 0.0 * y))
    assert far == pytest.approx(0.2, rel=1e-4)
    nothing = np.full((1, 1), np.nan), np.full(1, np.nan)
    assert np.linalg.norm(total(X, y) - total(*nothing)) == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("name", RUNS)
def test_a_record_that_is_blank_in_part_is_refused_and_so_are_null_ones_elsewhere(name, records):
    X, y = (array.copy() for array in records)
    if name in ("exponential", "bernoulli", "binomial", "categorical"):
        y[BLANK] = np.inf
    else:
        X[BLANK, 0] = np.nan
    with pytest.raises(RecordError):
        run(name, (X, y))
    with pytest.raises(RecordError):
        run(name, blanked(records), "add_remove")


@pytest.mark.parametrize("sampling", ["uniform", "permutation"])
def test_one_record_per_step_has_no_null_record(records, sampling):
    plan = dpi.PrivacyPlan.from_noise_multiplier(
        3.0, None, 4, 1e-5, sampling=sampling, n_records=N, adjacency="zero_out"
    )
    with pytest.raises(ValueError, match=r"plan must be for 'replace_one'.*'zero_out'"):
        dpi.run_dp_sep(MIXTURE, records[0], plan=plan, n_records=N)


def test_the_estimator_refuses_a_relation_that_its_callers_cannot_have(records):
    with pytest.raises(ValueError, match=r"adjacency must be.*zero_out"):
        dpi.BayesianLogisticRegression(adjacency="zero_out", data_bounds=(-9, 9), n_records=N, classes=[0, 1]).fit(
            *records
        )


@pytest.mark.parametrize("family", [baselines.BinomialFamily(), baselines.ExponentialFamily((0.0, 2.0))])
def test_statistics(records, family):
    def release(y, n_records, relation="zero_out"):
        source = InsecureRNG(2)
        return baselines.release_statistics(
            family, y, epsilon=1.0, n_records=n_records, adjacency=relation, random_source=source
        ).noisy_statistics

    blank, absent = blanked(records)[1], without(records)[1]
    np.testing.assert_array_equal(release(blank, N), release(absent, N - 1))
    assert np.isfinite(release(np.full(N, np.nan), N)).all()
    with pytest.raises(RecordError):
        release(blank, N, "add_remove")
    with pytest.raises(RecordError, match="n_records"):
        release(blank, N - 1)


def test_regression_statistics(records):
    def release(X, y, n_records):
        return baselines.release_regression_statistics(
            X, y, epsilon=1.0, n_records=n_records, feature_bound=2.0, response_bound=1.0, adjacency="zero_out",
            random_source=InsecureRNG(2),
        ).noisy_statistics  # fmt: skip

    np.testing.assert_array_equal(release(*blanked(records), N), release(*without(records), N - 1))
    assert np.isfinite(release(*blanked(records, slice(None)), N)).all()


def test_shares():
    """Without it a blanked record would be counted as the reference and as negative: two moves instead of one."""
    X = np.zeros((N, 2))
    X[:, 0] = np.arange(N) % 2
    X[:, 1] = np.arange(N) % 3 == 0
    blank = X.copy()
    blank[BLANK] = np.nan

    def counts(X, relation):
        release = release_shares(
            Table(X, None, SCHEMA), noise_multiplier=2.0, delta=1e-5, adjacency=relation, random_source=InsecureRNG(4)
        )
        return np.concatenate([release.noisy_counts[name] for name in ("pet", "sex")])

    absent = np.delete(X, BLANK, axis=0)
    np.testing.assert_array_equal(counts(blank, "zero_out"), counts(absent, "zero_out"))
    assert np.sum(np.abs(counts(blank, "add_remove") - counts(absent, "add_remove"))) == 2
