"""Releases of conjugate models and the Gibbs sampler over them, against exact posteriors."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from tests.reference.baseline_oracles import beta_binomial_weights, beta_mixture_cdf

from dpinfer.accounting import PureEvent
from dpinfer.errors import InsecureReleaseError, RecordError
from dpinfer.lab.baselines import (
    BinomialFamily,
    CategoricalFamily,
    ExponentialFamily,
    StatisticRelease,
    bernstein_sheldon_posterior,
    conjugate_family,
    gibbs_posterior,
    release_statistics,
)
from dpinfer.lab.baselines.contributions import contributions
from dpinfer.mechanism.discrete_laplace import discrete_laplace, laplace_mechanism
from dpinfer.mechanism.lattice_sums import LatticeSum
from dpinfer.testing import InsecureRNG

FAMILIES = [
    (BinomialFamily(), np.array([0, 1, 1, 0, 1])),
    (BinomialFamily(4), np.array([0, 4, 2, 1, 3])),
    (CategoricalFamily(), np.array([0, 2, 1, 1, 2])),
    (ExponentialFamily((0.1, 2.0)), np.array([0.05, 0.3, 1.7, 2.5, 0.9])),
]


def lattice_of(family, replace):
    return LatticeSum(np.zeros_like(family.high), family.high, replace=replace, n_nonzero=family.n_nonzero)


@pytest.mark.parametrize(("family", "X"), FAMILIES)
def test_the_statistic_is_the_sum_plus_noise_on_the_lattice(family, X):
    release = release_statistics(family, X, epsilon=1e6, n_records=5, random_source=InsecureRNG(1))
    expected = contributions(family, X).sum(axis=0)
    np.testing.assert_allclose(release.noisy_statistics, expected, atol=1e-4)
    step = lattice_of(family, False).step
    assert np.all(release.noisy_statistics / step == np.rint(release.noisy_statistics / step))


@pytest.mark.parametrize(
    ("family", "adjacency", "expected"),
    [
        (BinomialFamily(), "add_remove", 1.0),
        (BinomialFamily(), "replace_one", 1.0),
        (BinomialFamily(4), "zero_out", 4.0),
        (BinomialFamily(4), "replace_one", 4.0),
        (CategoricalFamily(), "add_remove", 1.0),
        (CategoricalFamily(), "replace_one", 2.0),
        (CategoricalFamily((1.0, 1.0)), "replace_one", 1.0),
        (ExponentialFamily((0.1, 2.0)), "add_remove", 2.0),
        (ExponentialFamily((0.1, 2.0)), "replace_one", 2.0),
    ],
)
def test_the_noise_scale_is_the_sensitivity_over_epsilon(family, adjacency, expected):
    X = np.zeros(7)
    release = release_statistics(family, X, epsilon=0.25, n_records=7, adjacency=adjacency)
    assert np.all(release.laplace_scale == expected / 0.25)


@pytest.mark.parametrize(("family", "values"), [(f, v) for f, v in FAMILIES])
@pytest.mark.parametrize("replace", [False, True])
def test_neighbours_differ_by_at_most_the_sensitivity_and_reach_it(family, values, replace):
    """In integers, over every pair of values and both ends of their range."""
    lattice = lattice_of(family, replace)
    ends = [0, family.high[0]] if family.n_params == 1 else range(family.n_params)
    values = np.concatenate((values, list(ends)))
    k = lattice.integers(contributions(family, values))
    others = k if replace else np.zeros_like(k[:1])
    distance = np.abs(k[:, None, :] - others[None, :, :]).sum(axis=2)
    assert distance.max() == lattice.l1_sensitivity


def test_the_lattice_holds_values_outside_the_bounds_inside():
    lattice = LatticeSum(np.array([-1.0, 0.0]), np.array([1.0, 0.3]), replace=False)
    k = lattice.integers(np.array([[-5.0, -1.0], [np.pi, 9.0]]))
    assert np.all(k * lattice.step <= [1.0, 0.3])
    assert np.all(k * lattice.step >= [-1.0, 0.0])
    assert lattice.l1_sensitivity == 2**30 + int(0.3 * 2**30)


def test_discrete_laplace_takes_any_rational_scale_and_depends_on_key_and_stream():
    scale = (1 << 30) / Fraction(1, 10)
    first = discrete_laplace(b"k" * 32, scale, 5)
    assert first == discrete_laplace(b"k" * 32, scale, 5)
    assert first != discrete_laplace(b"k" * 32, scale, 5, stream=1)
    assert first != discrete_laplace(b"l" * 32, scale, 5)
    noisy = laplace_mechanism([10, 20], l1_sensitivity=1 << 30, epsilon=0.1, key=b"k" * 32)
    assert noisy == [10 + first[0], 20 + first[1]]


@pytest.mark.parametrize(("noisy", "tolerance"), [(300.0, 0.02), (520.0, 0.02), (-30.0, 0.06), (1015.0, 0.06)])
def test_gibbs_agrees_with_the_exact_posterior(noisy, tolerance):
    """The mixture over all counts; the normal law of the count is worst where the count is near an end."""
    total, a, b, scale = 1000, 10.0, 10.0, 20.0
    weights = beta_binomial_weights(noisy, scale, total, a, b)
    s = np.arange(total + 1)
    exact_mean = float(weights @ ((a + s) / (a + b + total)))
    draws = gibbs_posterior(
        BinomialFamily(), np.full((64, 1), noisy), laplace_scale=scale, n_records=total, n_samples=1000, seed=3
    )[:, :, 0]
    means = draws.mean(axis=0)
    error = means.std() / np.sqrt(64)
    sd = draws.std()
    assert abs(means.mean() - exact_mean) < 5 * error + 3 * tolerance * sd
    for level in (0.05, 0.5, 0.95):
        reached = beta_mixture_cdf(np.quantile(draws, level), weights, a, b)
        assert reached == pytest.approx(level, abs=tolerance)


def test_the_naive_posterior_would_fail_the_test_above():
    weights = beta_binomial_weights(300.0, 20.0, 1000, 10.0, 10.0)
    naive = np.random.default_rng(1).beta(310.0, 710.0, 100_000)
    assert abs(beta_mixture_cdf(np.quantile(naive, 0.05), weights, 10.0, 10.0) - 0.05) > 0.02


def test_two_categories_are_the_binomial_model():
    options = {"laplace_scale": 15.0, "n_records": 400, "n_samples": 4000, "seed": 2}
    noisy = np.full((20, 1), 150.0)
    two = gibbs_posterior(CategoricalFamily((3.0, 7.0)), noisy, **options)[:, :, 0]
    one = gibbs_posterior(BinomialFamily(1, 3.0, 7.0), noisy, **options)[:, :, 0]
    np.testing.assert_allclose(np.quantile(two, [0.1, 0.5, 0.9]), np.quantile(one, [0.1, 0.5, 0.9]), rtol=0.01)


def test_a_binomial_with_trials_counts_them():
    noisy, options = np.full((20, 1), 150.0), {"laplace_scale": 15.0, "seed": 2}
    one = gibbs_posterior(BinomialFamily(5), noisy, n_records=80, **options)
    many = gibbs_posterior(BinomialFamily(1), noisy, n_records=400, **options)
    np.testing.assert_array_equal(one, many)


def test_statistics_outside_their_range_give_valid_draws():
    """A categorical release whose counts are negative or exceed N: rejection gives way to the sweep."""
    noisy = np.array([[-400.0, 900.0], [600.0, 700.0], [-500.0, -500.0]])
    draws = gibbs_posterior(CategoricalFamily((0.5, 0.5, 0.5)), noisy, laplace_scale=5.0, n_records=500, n_samples=200)
    assert np.all(np.isfinite(draws))
    np.testing.assert_allclose(draws.sum(axis=2), 1.0)
    assert draws[:, 0, 1].mean() > 0.9
    assert draws[:, 2, 2].mean() > 0.9


def test_section_moments_are_those_of_simulated_sums(rng):
    family = ExponentialFamily((0.2, 1.5))
    theta, n = 1.3, 50
    x = rng.exponential(1 / theta, (40_000, n))
    inside = (x >= 0.2) & (x <= 1.5)
    sums = np.stack([np.where(part, x, 0.0).sum(axis=1) for part in (x < 0.2, inside, x > 1.5)])
    mean, variance, part = family.section_moments(np.array([theta]), n)
    np.testing.assert_allclose(sums.mean(axis=1), mean[:, 0], rtol=0.01)
    np.testing.assert_allclose(sums.var(axis=1), variance[:, 0], rtol=0.05)
    np.testing.assert_allclose(np.cov(sums)[0, 1], -n * part[0, 0] * part[1, 0], rtol=0.2)
    np.testing.assert_allclose(np.cov(sums)[1, 2], -n * part[1, 0] * part[2, 0], rtol=0.05)


def test_exponential_gibbs_without_noise_and_truncation_is_the_conjugate_posterior():
    family = ExponentialFamily((0.0, 50.0))
    draws = gibbs_posterior(family, np.full((20, 1), 1250.0), laplace_scale=1e-3, n_records=5000, seed=1)
    assert draws.mean() == pytest.approx(5008 / 1252, rel=1e-3)
    assert draws.std() == pytest.approx(np.sqrt(5008) / 1252, rel=0.02)


def test_release_to_posterior_and_its_guarantee():
    X = np.repeat([0, 1, 2], [100, 200, 100])
    release = release_statistics(CategoricalFamily(), X, epsilon=1.0, n_records=400, adjacency="replace_one")
    assert release.epsilon == 1.0
    assert "1-differentially private" in release.guarantee
    draws = bernstein_sheldon_posterior(release, n_samples=300)
    assert draws.shape == (300, 3)
    assert np.abs(draws.mean(axis=0) - [0.25, 0.5, 0.25]).max() < 0.1
    copy = pickle.loads(pickle.dumps(release))
    np.testing.assert_array_equal(copy.noisy_statistics, release.noisy_statistics)
    with pytest.raises(ValueError, match="read-only"):
        release.noisy_statistics[0] = 0.0


def test_seeded_releases_are_reproducible_and_marked():
    one, two = (
        release_statistics(BinomialFamily(), np.ones(9), epsilon=1.0, n_records=9, random_source=InsecureRNG(4))
        for _ in range(2)
    )
    assert one.noisy_statistics == two.noisy_statistics
    assert "NOT PRIVATE" in repr(one)
    with pytest.raises(InsecureReleaseError):
        one.epsilon  # noqa: B018
    assert "NOT PRIVATE" in repr(pickle.loads(pickle.dumps(one)))


class GammaExponential:
    shape, rate = 3.0, 1.0


def test_models_by_name_and_bounds():
    assert conjugate_family(GammaExponential(), bounds=(0.0, 2.0)) == ExponentialFamily((0.0, 2.0), 3.0, 1.0)
    with pytest.raises(ValueError, match="bounds must be given"):
        conjugate_family(GammaExponential())
    with pytest.raises(ValueError, match="bounds must not be given"):
        conjugate_family(BinomialFamily(), bounds=(0.0, 1.0))
    with pytest.raises(TypeError, match="conjugate model"):
        conjugate_family(3)


@pytest.mark.parametrize(
    ("family", "X"),
    [
        (BinomialFamily(), [0.0, 2.0]),
        (BinomialFamily(), [0.5]),
        (CategoricalFamily(), [3.0]),
        (ExponentialFamily((0.0, 1.0)), [-1.0]),
        (BinomialFamily(), [np.nan]),
        (BinomialFamily(), [[1.0, 0.0]]),
    ],
)
def test_bad_records_are_refused_without_being_quoted(family, X):
    with pytest.raises(RecordError) as caught:
        release_statistics(family, np.asarray(X), epsilon=1.0, n_records=5)
    assert "0.5" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "name"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon"),
        ({"n_records": 0}, ValueError, "n_records"),
        ({"adjacency": "both"}, ValueError, "adjacency"),
        ({"random_source": 3}, TypeError, "random_source"),
        ({"adjacency": "replace_one", "n_records": 4}, ValueError, "n_records"),
    ],
)
def test_bad_arguments_are_named(change, error, name):
    arguments = {"epsilon": 1.0, "n_records": 3} | change
    with pytest.raises(error, match=name):
        release_statistics(BinomialFamily(), np.ones(3), **arguments)


def test_bad_sampler_arguments_are_named():
    with pytest.raises(ValueError, match="noisy_statistics"):
        gibbs_posterior(BinomialFamily(), np.zeros((2, 3)), laplace_scale=1.0, n_records=5)
    with pytest.raises(ValueError, match="laplace_scale"):
        gibbs_posterior(BinomialFamily(), np.zeros((2, 1)), laplace_scale=0.0, n_records=5)
    with pytest.raises(TypeError, match="release"):
        bernstein_sheldon_posterior(3)
    for wrong in ({"a": 0.0}, {"n_trials": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            BinomialFamily(**wrong)
    with pytest.raises(ValueError, match="concentration"):
        CategoricalFamily((1.0,))
    with pytest.raises(ValueError, match=r"bounds\[1\]"):
        ExponentialFamily((1.0, 0.5))
    with pytest.raises(ValueError, match="laplace_scale"):
        StatisticRelease(
            method="bernstein_sheldon",
            names=("sum",),
            noisy_statistics=np.zeros(1),
            laplace_scale=np.zeros(1),
            n_records=1,
            event=PureEvent(1.0, "add_remove"),
            adjacency="add_remove",
        )
