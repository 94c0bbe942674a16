"""Baselines inside a coverage study."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import special, stats
from tests.reference.analytic_study import assert_same

import dpinfer as dpi
from dpinfer.lab.baselines import BinomialFamily, CategoricalFamily, RegressionPrior, gaussian_moments
from dpinfer.lab.studies.baseline_runs import (
    GibbsSettings,
    SimulatedConjugate,
    SimulatedRegression,
    bernstein_sheldon_chunk,
    gibbs_ss_noisy_chunk,
)

N_RECORDS = 400


def simulate_bernoulli(first, count):
    truth, records, width = np.empty((count, 1)), np.empty((count, N_RECORDS)), np.empty((count, 1))
    for row in range(count):
        rng = np.random.default_rng([9, first + row])
        p = rng.beta(10.0, 10.0)
        truth[row] = special.logit(p)
        records[row] = rng.random(N_RECORDS) < p
        total = records[row].sum()
        width[row] = np.ptp(special.logit(stats.beta.ppf([0.05, 0.95], 10.0 + total, 10.0 + N_RECORDS - total)))
    return SimulatedConjugate(truth, records, width)


def shifted(data):
    return SimulatedConjugate(data.truth + 0.3, data.records, data.reference_width90)


@dataclass(frozen=True)
class BernoulliStudy:
    """Beta-Bernoulli runs with the Bernstein-Sheldon posterior."""

    name: str = "beta-bernoulli-baseline"
    parameters: tuple = ("logit p",)

    def run_chunk(self, first, count, *, method, epsilon, seed, settings):
        wrong = method == "wrong"
        return bernstein_sheldon_chunk(
            first,
            count,
            simulate=(lambda *run: shifted(simulate_bernoulli(*run))) if wrong else simulate_bernoulli,
            model=BinomialFamily(1, 10.0, 10.0),
            unconstrain=special.logit,
            epsilon=epsilon,
            seed=seed,
            n_burn_in=100,
            n_samples=400,
            n_draws=settings["n_draws"],
        )


@pytest.mark.statistical
def test_coverage_of_bernstein_sheldon():
    """False-positive rate 1e-6 for each bound; truths moved by 0.3 are the power twin."""
    options = {"n_runs": 300, "epsilon": 0.1, "n_draws": 40, "n_repeats": 3}
    good = dpi.coverage_study(BernoulliStudy(), method="bernstein-sheldon", **options)
    assert good.n_failed == 0
    assert good.runs.n_draws == 40
    assert abs(good.sbc.mean_z[0]) < 4.9 * good.sbc.mean_z_stderr[0]
    assert abs(good.coverage90[0] - 0.9) < 4.9 * np.sqrt(0.09 / 300) + 0.005
    assert good.tarp.ks_pvalue > 1e-6
    assert 1.0 < np.median(good.relative_width) < 3.0
    wrong = dpi.coverage_study(BernoulliStudy(), method="wrong", **options)
    assert abs(wrong.sbc.mean_z[0]) > 4.9 * wrong.sbc.mean_z_stderr[0]


def test_runs_do_not_depend_on_chunks():
    whole, cut = (
        dpi.coverage_study(BernoulliStudy(), n_runs=35, n_draws=20, n_repeats=2, chunk_size=size) for size in (35, 8)
    )
    assert_same(cut.runs, whole.runs)


def test_draws_of_the_categorical_model_are_mapped():
    def simulate(first, count):
        truth = np.tile(special.logit([0.3, 0.5]), (count, 1))
        records = np.stack([np.random.default_rng(first + i).integers(0, 3, 200) for i in range(count)])
        return SimulatedConjugate(truth, records, np.full((count, 2), np.nan))

    def sticks(p):
        return special.logit(np.stack([p[..., 0], p[..., 1] / (1.0 - p[..., 0])], axis=-1))

    chunk = bernstein_sheldon_chunk(
        3,
        4,
        simulate=simulate,
        model=CategoricalFamily((5.0, 5.0, 5.0)),
        unconstrain=sticks,
        epsilon=1.0,
        seed=1,
        n_burn_in=10,
        n_samples=30,
    )
    assert chunk.draws.shape == (30, 4, 2)
    np.testing.assert_allclose(chunk.centre, chunk.draws.mean(axis=0))
    np.testing.assert_allclose(chunk.scale, chunk.draws.std(axis=0, ddof=1))
    low, high = np.quantile(chunk.draws, [0.05, 0.95], axis=0)
    np.testing.assert_allclose(chunk.width90, high - low)
    np.testing.assert_allclose(chunk.pit, ((chunk.draws < chunk.truth).sum(axis=0) + 0.5) / 31)


def test_regression():
    def simulate(first, count):
        truth, features, response = np.empty((count, 4)), np.empty((count, 500, 2)), np.empty((count, 500))
        for row in range(count):
            rng = np.random.default_rng([4, first + row])
            variance = 0.5 / rng.standard_gamma(20.0)
            weights = np.sqrt(4.0 * variance) * rng.standard_normal(3)
            features[row] = rng.standard_normal((500, 2))
            response[row] = features[row] @ weights[:2] + weights[2] + np.sqrt(variance) * rng.standard_normal(500)
            truth[row] = [*weights, np.log(np.expm1(variance))]
        return SimulatedRegression(truth, features, response, np.full((count, 4), np.nan))

    def run(first, count):
        return gibbs_ss_noisy_chunk(
            first,
            count,
            simulate=simulate,
            prior=RegressionPrior(0.25, 20.0, 0.5),
            feature_bound=4.0,
            response_bound=4.0,
            epsilon=1e4,
            seed=2,
            moment_share=0.0,
            feature_moments=gaussian_moments(np.eye(2)),
            n_burn_in=50,
            n_samples=200,
            n_draws=50,
        )

    chunk = run(0, 25)
    assert chunk.draws.shape == (50, 25, 4)
    # Next to no noise: the posterior is close to the truth in its own units.
    assert np.abs((chunk.truth - chunk.centre) / chunk.scale).max() < 8.0
    assert np.all(chunk.scale[:, :3] < 0.1)
    part = run(20, 2)
    np.testing.assert_array_equal(part.draws, chunk.draws[:, 20:22])
    settings = GibbsSettings(
        prior=RegressionPrior(0.25, 20.0, 0.5),
        feature_bound=4.0,
        response_bound=1.0,
        moment_share=0.0,
        feature_moments=gaussian_moments(np.eye(2)),
        n_burn_in=50,
        n_samples=200,
    )
    options = {"simulate": simulate, "epsilon": 1e4, "seed": 2, "n_draws": 50}
    same = gibbs_ss_noisy_chunk(20, 2, settings, response_bound=4.0, **options)
    np.testing.assert_array_equal(same.draws, part.draws)
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_burnin'"):
        gibbs_ss_noisy_chunk(20, 2, settings, n_burnin=3, **options)
    with pytest.raises(TypeError, match="needs feature_bound, response_bound: by keyword"):
        gibbs_ss_noisy_chunk(20, 2, prior=settings.prior, **options)
