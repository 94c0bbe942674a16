"""One-shot statistics: their sums, sensitivities, posteriors and refusals."""

import copy
import pickle

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import PureEvent
from dpinfer.errors import InsecureReleaseError, RecordError
from dpinfer.mechanism import default_clip
from dpinfer.mechanism.statistic import _contributions, lattice_of
from dpinfer.models import BetaBernoulli, BetaBinomial, DirichletCategorical, GammaExponential
from dpinfer.testing import InsecureRNG

CASES = [
    (BetaBernoulli(), np.array([0.0, 1.0, 1.0, 0.0]), None, [2.0]),
    (BetaBinomial(5), np.array([0.0, 5.0, 2.0, 1.0]), None, [8.0]),
    (DirichletCategorical((0.3, 2.0, 1.0)), np.array([0.0, 2.0, 2.0, 1.0]), None, [1.0, 1.0, 2.0]),
    (GammaExponential(), np.array([0.1, 0.5, 3.0, 1e300]), 0.75, [2.1]),
]


@pytest.mark.parametrize(("model", "X", "clip", "sums"), CASES, ids=lambda value: type(value).__name__)
def test_with_next_to_no_noise_the_sums_are_released(model, X, clip, sums):
    options = {} if clip is None else {"clip": clip}
    release = dpi.run_statistic(model, X, epsilon=1e6, n_records=4, random_source=InsecureRNG(1), **options)
    np.testing.assert_allclose(release.noisy_statistics, sums, atol=1e-4)


@pytest.mark.parametrize(("model", "X", "clip", "sums"), CASES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("replace", [False, True])
def test_no_record_moves_the_integers_by_more_than_the_sensitivity(model, X, clip, sums, replace):
    lattice, _ = lattice_of(model, clip, replace=replace)
    values = np.concatenate((X, [0.0, np.finfo(float).max] if clip else [0.0]))
    rows = lattice.integers(_contributions(model, values))
    moved = rows[:, None] - rows[None] if replace else rows
    assert np.abs(moved).sum(axis=-1).max() == lattice.l1_sensitivity


@pytest.mark.statistical
def test_the_noise_has_the_scale_that_is_claimed():
    """Mean absolute noise of 4000 counts, standard error 1/sqrt(4000) of it; false-positive rate 1e-6."""
    model, X = DirichletCategorical((1.0,) * 20), np.zeros(50)
    noise = np.concatenate(
        [
            dpi.run_statistic(model, X, epsilon=0.1, n_records=50, random_source=InsecureRNG(seed)).noisy_statistics[1:]
            for seed in range(211)
        ]
    )
    ratio = np.abs(noise).mean() / 10.0
    limit = 4.9 / np.sqrt(noise.size)
    assert abs(ratio - 1.0) < limit
    # Power: noise for a sensitivity of 2, or of half of it, is seen.
    assert min(abs(2.0 * ratio - 1.0), abs(0.5 * ratio - 1.0)) > limit


def test_a_release_states_its_pure_guarantee_and_is_saved_copied_and_pickled(tmp_path):
    release = dpi.run_statistic(BetaBernoulli(), [1.0, 0.0], epsilon=0.5, n_records=2)
    assert release.event == PureEvent(0.5, "add_remove")
    assert (release.epsilon, release.delta) == (0.5, 0.0)
    assert str(release.guarantee).startswith("0.5-differentially private (delta = 0)")
    release.save(tmp_path / "a.release")
    for other in (dpi.load_release(tmp_path / "a.release"), pickle.loads(pickle.dumps(release)), copy.copy(release)):
        assert other.guarantee == release.guarantee
        np.testing.assert_array_equal(other.noisy_statistics, release.noisy_statistics)
    with pytest.raises(ValueError, match="must follow from the events"):
        release.replace(certified_epsilon=0.4)
    twice = release.with_parts(*release.parts)
    assert twice.epsilon == pytest.approx(1.0, rel=1e-12)
    seeded = dpi.run_statistic(BetaBernoulli(), [1.0], epsilon=0.5, n_records=1, random_source=InsecureRNG(1))
    with pytest.raises(InsecureReleaseError):
        _ = seeded.epsilon


@pytest.mark.parametrize(("model", "X", "clip", "sums"), CASES, ids=lambda value: type(value).__name__)
def test_a_posterior_is_summarised_decomposed_and_saved(model, X, clip, sums, tmp_path):
    release = dpi.run_statistic(model, X, epsilon=1.0, n_records=4)
    posterior = dpi.noise_aware_posterior(release)
    assert "differentially private" in str(posterior.summary())
    shares = posterior.decompose().shares
    assert np.all(shares >= 0.0)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)
    posterior.save(tmp_path / "a.posterior")
    again = dpi.load_posterior(tmp_path / "a.posterior")
    np.testing.assert_array_equal(again.quantile([0.05, 0.95]), posterior.quantile([0.05, 0.95]))
    with pytest.raises(ValueError, match="approximation"):
        dpi.noise_aware_posterior(release, approximation="laplace")


def test_another_prior_may_be_given_afterwards():
    release = dpi.run_statistic(BetaBernoulli(), np.ones(100), epsilon=5.0, n_records=100)
    flat = dpi.noise_aware_posterior(release, model=BetaBernoulli(1.0, 1.0))
    assert flat.mean[0] > dpi.noise_aware_posterior(release).mean[0]


def test_null_records_add_nothing():
    X = np.array([1.0, np.nan, 1.0, np.nan])
    options = {"epsilon": 1e6, "n_records": 4, "adjacency": "zero_out", "random_source": InsecureRNG(2)}
    assert dpi.run_statistic(BetaBernoulli(), X, **options).noisy_statistics == pytest.approx([2.0], abs=1e-4)


def test_the_clip_follows_the_prior_and_the_noise():
    model = GammaExponential(8.0, 2.0)
    clips = [default_clip(model, epsilon=epsilon, n_records=5000) for epsilon in (0.01, 0.1, 1.0, 100.0)]
    assert clips == sorted(clips)
    assert 0.05 < clips[1] < 2.0
    scaled = default_clip(GammaExponential(8.0, 200.0), epsilon=0.1, n_records=5000)
    assert scaled == pytest.approx(100.0 * clips[1], rel=1e-9)


def test_wrong_arguments_and_records_are_refused():
    with pytest.raises(TypeError, match="model"):
        dpi.run_statistic(dpi.models.LogisticRegression(2), [1.0], epsilon=1.0, n_records=1)
    with pytest.raises(ValueError, match="clip"):
        dpi.run_statistic(BetaBernoulli(), [1.0], epsilon=1.0, n_records=1, clip=2.0)
    with pytest.raises(ValueError, match="clip"):
        dpi.run_statistic(GammaExponential(), [1.0], epsilon=1.0, n_records=1, clip=0.0)
    with pytest.raises(ValueError, match="epsilon"):
        dpi.run_statistic(BetaBernoulli(), [1.0], epsilon=0.0, n_records=1)
    with pytest.raises(RecordError, match="0 or 1"):
        dpi.run_statistic(BetaBernoulli(), [0.5], epsilon=1.0, n_records=1)
    with pytest.raises(RecordError, match="n_records rows"):
        dpi.run_statistic(BetaBernoulli(), [1.0], epsilon=1.0, n_records=2, adjacency="replace_one")
    with pytest.raises(RecordError, match="at least 0"):
        dpi.run_statistic(GammaExponential(), [-1.0], epsilon=1.0, n_records=1)
