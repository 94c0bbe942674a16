"""Simulated runs that know only how often each value occurs release sums with the law of runs over the records."""

import numpy as np
import pytest
from scipy import stats

from dpinfer.lab import _native
from dpinfer.models import BetaBernoulli, DirichletCategorical
from dpinfer.testing import InsecureRNG

pytestmark = pytest.mark.statistical

ALPHA = 1e-6
RUNS = 2000
RATE = 0.3
COUNTS = {"binomial": [150, 50], "sticks": [90, 60, 30]}
MODELS = {"binomial": BetaBernoulli(), "sticks": DirichletCategorical()}
SIGMA, NORM = 0.05, 2.0


def released_sums(family, *, grouped, rate=RATE, seed=1):
    """First released gradient of RUNS runs, loc only: (RUNS, n); the prior's part is taken off."""
    model = MODELS[family]
    n = model.n_params
    values = model.sufficient_statistics(np.arange(n + 1.0))
    counts = np.array(COUNTS[family])
    if grouped:
        statistics, per_run = values, np.tile(counts, (RUNS, 1))
    else:
        rows = np.repeat(values, counts, axis=0)
        statistics, per_run = np.tile(rows, (RUNS, 1, 1)), np.empty((0, 0), dtype=np.int64)
    source = InsecureRNG(seed)
    start = np.concatenate(model.default_start())
    nodes, weights = np.polynomial.hermite_e.hermegauss(10)
    result = _native.simulate_conjugate(
        family=family,
        prior=np.array(model.prior.concentration),
        n_trials=1.0,
        statistics=statistics,
        counts=per_run,
        settings={
            "n_steps": 1,
            "n_records": 200,
            "sample_rate": rate,
            "noise_multiplier": SIGMA,
            "max_grad_norm": NORM,
            "kind": "quadrature",
            "n_draws": 1,
            "per_example": False,
            "fisher": False,
            "raw_ratio": 0.4,
            "excursion": 1.0,
            "grad_scale": np.ones(2 * n),
            "learning_rate": np.zeros(2 * n),
            "schedule": np.ones(1),
            "start": start,
        },
        boundaries=np.array([0, 1]),
        nodes=nodes,
        weights=weights / np.sqrt(2.0 * np.pi),
        keys=[source.take_key() for _ in range(RUNS)],
        n_threads=2,
        keep_trace=True,
    )
    prior = -model.expected_log_prior_gradient(start[:n], start[n:])[0]
    return result["trace"][:, 0, 2 * n : 3 * n] - rate * prior


def directions(family):
    """Coordinates and their sum: a wrong dependence between values shows in the sum."""
    n = MODELS[family].n_params
    return np.vstack((np.eye(n), np.ones(n)))


def rejects(family, first, second):
    along = directions(family)
    pvalues = [stats.ks_2samp(first @ way, second @ way, method="exact").pvalue for way in along]
    return min(pvalues) < ALPHA / len(along)


@pytest.mark.parametrize("family", MODELS)
def test_grouped_sums_have_the_law_of_record_sums(family):
    assert not rejects(family, released_sums(family, grouped=False), released_sums(family, grouped=True, seed=2))


@pytest.mark.parametrize("family", MODELS)
def test_the_test_rejects_another_rate(family):
    records = released_sums(family, grouped=False)
    assert rejects(family, records, released_sums(family, grouped=True, rate=1.15 * RATE, seed=2))


@pytest.mark.parametrize("variant", ["fixed numbers", "all records of a value together"])
@pytest.mark.parametrize("family", MODELS)
def test_the_test_rejects_other_ways_to_sample(family, variant):
    """Sums of the same mean whose sampled counts do not vary, or vary too much."""
    model = MODELS[family]
    n = model.n_params
    rng = np.random.default_rng(6)
    loc, raw = model.default_start()
    nodes, weights = np.polynomial.hermite_e.hermegauss(10)
    matrix, offset = model.gradient_map(loc, raw, nodes, weights / weights.sum())
    gradients = model.sufficient_statistics(np.arange(n + 1.0)) @ matrix[:n].T + offset[:n]
    counts = np.array(COUNTS[family])
    sampled = np.tile(RATE * counts, (RUNS, 1))
    if variant != "fixed numbers":
        sampled = counts * (rng.random((RUNS, n + 1)) < RATE)
    noise = SIGMA * NORM * rng.standard_normal((RUNS, n))
    right = rng.binomial(counts, RATE, (RUNS, n + 1)) @ gradients + noise
    records = released_sums(family, grouped=False)
    assert not rejects(family, records, right)
    assert rejects(family, records, sampled @ gradients + noise)
