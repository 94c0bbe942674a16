"""The posterior that is told released shares of categories: z-scores of all weights, rotated to be independent."""

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi
from dpinfer.tabular import Schema, Table, plan_with_shares, release_shares
from dpinfer.testing import InsecureRNG

N_RECORDS, N_CATEGORIES, N_COLUMNS, N_RUNS = 4000, 8, 3, 8
SHARES = 0.55 ** np.arange(N_CATEGORIES) / np.sum(0.55 ** np.arange(N_CATEGORIES))
SCHEMA = Schema.from_dict(
    {
        "columns": {
            f"column {k}": {"kind": "categorical", "categories": list("abcdefgh"), "reference": "a"}
            for k in range(N_COLUMNS)
        }
    }
)


def model_of(schema):
    return dpi.models.LogisticRegression(
        len(schema.feature_names),
        fit_intercept=True,
        feature_moments=schema.feature_moments,
        feature_moments_known=True,
    )


@pytest.mark.slow
def test_scores_are_standard_with_released_shares_and_are_not_where_equal_ones_are_believed():
    """Squared z-scores against chi-square at false-positive rate 1e-6."""
    plan = plan_with_shares(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=2500)
    equal = SCHEMA.with_shares({column.name: [1.0 / N_CATEGORIES] * N_CATEGORIES for column in SCHEMA.columns})
    told, believed = [], []
    for run in range(N_RUNS):
        rng, source = np.random.default_rng(run), InsecureRNG(run)
        X = np.hstack(
            [np.eye(N_CATEGORIES)[rng.choice(N_CATEGORIES, N_RECORDS, p=SHARES)][:, 1:] for _ in range(N_COLUMNS)]
        )
        counts = release_shares(
            Table(X, None, SCHEMA), noise_multiplier=plan.noise_multiplier, delta=plan.delta, random_source=source
        )
        model = model_of(counts.schema)
        weights = model.sample_prior(1, rng)[0]
        release = dpi.run_dpvi(
            model,
            X,
            model.simulate(weights, X, rng),
            plan=plan.run,
            n_records=N_RECORDS,
            max_grad_norm=4.0,
            random_source=source,
            n_threads=1,
        )
        for scores, schema in ((told, counts.schema), (believed, equal)):
            posterior = dpi.noise_aware_posterior(
                release, model=model_of(schema), n_samples=100, n_warmup=60, check_convergence=False
            )
            scores.append(np.linalg.solve(np.linalg.cholesky(posterior.cov), weights - posterior.mean))
    low, high = stats.chi2.ppf([0.5e-6, 1.0 - 0.5e-6], np.size(told))
    assert low < np.sum(np.square(told)) < high
    assert np.sum(np.square(believed)) > high
