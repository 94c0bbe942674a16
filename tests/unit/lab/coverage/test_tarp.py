"""Coverage tests: shares, references, floors, p-values and verdicts, each against a computation of its own."""

import numpy as np
import pytest
from scipy import stats
from tests.reference import tarp_oracles as oracle

from dpinfer.lab.coverage import TarpAccumulator, check_tarp, run_tarp, tarp_from_shares
from dpinfer.lab.coverage.uniformity import (
    combine_dependent_pvalues,
    ecdf_band,
    ks_pvalue,
    randomised_ranks,
    rmse_of_uniforms,
)


def study(rng, n_draws=200, n_sims=150, n_dims=3, width=1.0):
    centre = rng.normal(size=(n_sims, n_dims))
    thetas = centre + rng.normal(size=centre.shape)
    return centre + width * rng.normal(size=(n_draws, n_sims, n_dims)), thetas


def test_given_references_give_the_published_shares(rng):
    samples, thetas = study(rng)
    references = rng.uniform(-4.0, 4.0, size=(2, *thetas.shape))
    result = run_tarp(samples, thetas, references=references, scales=np.ones(3))
    for own, points in zip(result.shares, references, strict=True):
        shares, coverage, credibility = oracle.published_coverage(samples, thetas, points, 15)
        np.testing.assert_array_equal(own, shares)
        # Their bins are half open below: coverage at a bin's edge counts the shares below it, but for the last edge.
        direct = [np.mean(own < edge) for edge in credibility[:-1]] + [1.0]
        np.testing.assert_allclose(coverage, direct, atol=1e-12)
    direct = [[np.mean(own < level) for level in result.levels] for own in result.shares]
    np.testing.assert_allclose(result.coverage_by_repeat, direct)


def test_centred_references_follow_the_paper(rng):
    samples, thetas = study(rng, n_draws=50, n_sims=4, n_dims=2)
    result = run_tarp(samples, thetas, n_repeats=3, seed=9)
    pooled = np.concatenate([samples, thetas[None]])
    centre, stddev = pooled.mean(axis=0), pooled.std(axis=0, ddof=1)
    generators = [np.random.default_rng(child) for child in np.random.SeedSequence(9).spawn(3)]
    points = np.stack([centre + stddev * (8.0 * generator.random((4, 2)) - 4.0) for generator in generators])
    joint, marginal = oracle.doubled_counts(samples, thetas, points, stddev)
    np.testing.assert_array_equal(result.shares, joint / 100.0)
    np.testing.assert_array_equal(result.marginal_shares, marginal / 100.0)


def test_centres_and_scales_replace_moments(rng):
    samples, thetas = study(rng, n_sims=10)
    centres, scales = rng.normal(size=(10, 3)), rng.uniform(0.5, 2.0, 3)
    result = run_tarp(samples, thetas, n_repeats=1, seed=4, centres=centres, scales=scales)
    generator = np.random.default_rng(np.random.SeedSequence(4).spawn(1)[0])
    points = centres + scales * (8.0 * generator.random((1, 10, 3)) - 4.0)
    joint, _ = oracle.doubled_counts(samples, thetas, points, np.tile(scales, (10, 1)))
    np.testing.assert_array_equal(result.shares, joint / 400.0)


def test_uniform_references_fill_the_box_of_the_truths(rng):
    samples, thetas = study(rng)
    result = run_tarp(samples, thetas, references="uniform", n_repeats=2, seed=1)
    low, high = thetas.min(axis=0), thetas.max(axis=0)
    generators = [np.random.default_rng(child) for child in np.random.SeedSequence(1).spawn(2)]
    points = np.stack([low + (high - low) * generator.random(thetas.shape) for generator in generators])
    joint, _ = oracle.doubled_counts(samples, thetas, points, np.tile(high - low, (len(thetas), 1)))
    np.testing.assert_array_equal(result.shares, joint / 400.0)


def test_units_do_not_matter(rng):
    samples, thetas = study(rng)
    units = np.array([1e-6, 1.0, 1e6])
    for references in ("centred", "uniform"):
        one = run_tarp(samples, thetas, references=references, n_repeats=2)
        other = run_tarp(samples * units, thetas * units, references=references, n_repeats=2)
        np.testing.assert_allclose(other.shares, one.shares, atol=1e-2)
        assert np.mean(other.shares != one.shares) < 0.01


def test_repeats_are_all_different_and_seeds_reproduce(rng):
    samples, thetas = study(rng)
    result = run_tarp(samples, thetas, n_repeats=20, seed=3)
    assert len({row.tobytes() for row in result.shares}) == 20
    again = run_tarp(samples, thetas, n_repeats=20, seed=3, n_threads=1)
    assert again.shares.tobytes() == result.shares.tobytes()
    assert again.ks_pvalues.tobytes() == result.ks_pvalues.tobytes()
    other = run_tarp(samples, thetas, n_repeats=20, seed=4)
    assert not {row.tobytes() for row in other.shares} & {row.tobytes() for row in result.shares}
    # More repeats leave the first ones as they are.
    fewer = run_tarp(samples, thetas, n_repeats=5, seed=3)
    np.testing.assert_array_equal(fewer.shares, result.shares[:5])


@pytest.mark.parametrize("references", ["centred", "uniform", "given"])
def test_chunks_do_not_matter(rng, references):
    samples, thetas = study(rng, n_sims=31)
    points = rng.normal(size=(4, *thetas.shape))
    whole = run_tarp(samples, thetas, references=points if references == "given" else references, n_repeats=4, seed=8)
    bounds = (thetas.min(axis=0), thetas.max(axis=0)) if references == "uniform" else None
    stream = TarpAccumulator(references=references, n_repeats=4, seed=8, bounds=bounds)
    for first, last in ((0, 1), (1, 20), (20, 31)):
        chunk = {"references": points[:, first:last]} if references == "given" else {}
        stream.add(samples[:, first:last], thetas[first:last], **chunk)
        assert stream.n_sims == last
        stream.result()
    for name in ("shares", "marginal_shares", "ks_pvalues", "marginal_ks_pvalues", "coverage", "band"):
        assert getattr(stream.result(), name).tobytes() == getattr(whole, name).tobytes()
    assert repr(stream.result()) == repr(whole)


def test_single_precision_draws(rng):
    samples, thetas = study(rng)
    wide = run_tarp(samples.astype(np.float32).astype(np.float64), thetas)
    narrow = run_tarp(samples.astype(np.float32), thetas)
    assert narrow.shares.tobytes() == wide.shares.tobytes()


def test_summaries_are_what_they_say(rng):
    shares = rng.uniform(size=(4, 60))
    marginal = rng.uniform(size=(4, 60, 2))
    levels = np.array([0.1, 0.5, 0.9])
    result = tarp_from_shares(shares, marginal, levels=levels)
    coverage = np.array([[np.mean(row < level) for level in levels] for row in shares])
    rmse = np.sqrt(np.mean((coverage - levels) ** 2, axis=1))
    np.testing.assert_allclose(result.coverage, coverage.mean(axis=0))
    assert result.rmse == pytest.approx(rmse.mean())
    assert result.rmse_stddev == pytest.approx(rmse.std(ddof=1))
    assert result.excess_rmse == pytest.approx(result.rmse - result.rmse_floor)
    for j in range(2):
        curves = np.array([[np.mean(row < level) for level in levels] for row in marginal[..., j]])
        np.testing.assert_allclose(result.marginal_coverage[j], curves.mean(axis=0))
        assert result.marginal_rmse[j] == pytest.approx(np.sqrt(np.mean((curves - levels) ** 2, axis=1)).mean())
    expected = [stats.kstest(row, "uniform", method="exact").pvalue for row in shares]
    np.testing.assert_allclose(result.ks_pvalues, expected, rtol=1e-10)
    assert result.ks_pvalue == pytest.approx(min(1.0, 2.0 * sorted(expected)[1]))
    np.testing.assert_allclose(
        result.marginal_ks_pvalues[2],
        [stats.kstest(marginal[2, :, j], "uniform", method="exact").pvalue for j in range(2)],
    )
    low, high = result.band
    np.testing.assert_allclose(high[1] - low[1], 2.0 * stats.kstwo.ppf(0.95, 60))
    assert "4 sets" in repr(result)
    assert "dimension 1" in repr(result)
    one = tarp_from_shares(shares[:1], marginal[:1])
    assert np.isnan(one.rmse_stddev)
    assert one.ks_pvalue == pytest.approx(one.ks_pvalues[0])


def test_floor_is_the_mean_rmse_of_uniform_shares(rng):
    levels = np.arange(1, 100) / 100.0
    for n_sims, n_draws in ((20, None), (300, None), (300, 30)):
        draws = (
            rng.uniform(size=(4000, n_sims))
            if n_draws is None
            else rng.integers(0, n_draws + 1, (4000, n_sims)) / n_draws
        )
        coverage = np.stack([(draws < level).mean(axis=1) for level in levels], axis=1)
        rmse = np.sqrt(np.mean((coverage - levels) ** 2, axis=1))
        mean, stddev = rmse_of_uniforms(n_sims, n_draws, tuple(levels.tolist()))
        # Both are averages of thousands: five standard errors.
        assert abs(mean - rmse.mean()) < 5.0 * rmse.std() * np.sqrt(1.0 / 4000 + 1.0 / 5000)
        assert stddev == pytest.approx(rmse.std(), rel=0.1)
    mean, stddev = rmse_of_uniforms(500, None, tuple(levels.tolist()))
    assert np.hypot(mean, stddev) == pytest.approx(np.sqrt(1.0 / 3000.0), rel=0.03)


def test_few_simulations_are_enough_to_run(rng):
    for n_sims in (1, 2, 9):
        result = run_tarp(*study(rng, n_draws=3, n_sims=n_sims))
        assert np.isfinite(result.rmse)
        assert 0.0 <= result.ks_pvalue <= 1.0


def test_pvalue_helpers():
    values = np.array([0.1, 0.2, 0.9])
    assert float(ks_pvalue(values)) == pytest.approx(stats.kstest(values, "uniform", method="exact").pvalue)
    assert float(combine_dependent_pvalues(np.array([0.3]))) == 0.3
    assert float(combine_dependent_pvalues(np.array([0.01, 0.02, 0.9]))) == pytest.approx(1.5 * 0.02)
    assert ecdf_band(100) == pytest.approx(stats.kstwo.ppf(0.95, 100))
    generator = np.random.default_rng(0)
    ranks = randomised_ranks(np.array([0.0, 0.5, 1.0]), 2, generator)
    assert np.all(np.floor(3.0 * ranks) == [0, 1, 2])


def test_verdicts_are_in_words(rng):
    exact = check_tarp(run_tarp(*study(rng, n_sims=600)))
    assert exact
    assert exact.passed
    assert "agrees" in str(exact)
    narrow = check_tarp(run_tarp(*study(rng, n_sims=600, width=0.5)))
    assert not narrow
    assert "too narrow" in repr(narrow)
    assert 0.0 < narrow.pvalue < 1e-6
    wide = check_tarp(run_tarp(*study(rng, n_sims=600, width=2.0)), level=0.01)
    assert "too wide" in wide.message
    shares = np.tile(np.linspace(0.0, 1.0, 400) ** 1.3, (2, 1))
    assert "off centre" in check_tarp(tarp_from_shares(shares, shares[..., None])).message


def test_one_wrong_dimension_is_named(rng):
    samples, thetas = study(rng, n_sims=500, n_dims=8)
    samples[..., 5] = thetas[:, 5].mean() + 0.4 * (samples[..., 5] - thetas[:, 5].mean())
    assert "dimension 5" in check_tarp(run_tarp(samples, thetas)).message


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"samples": "x"}, TypeError, "samples"),
        ({"samples": np.ones((3, 4))}, ValueError, "samples must have shape"),
        ({"samples": np.full((200, 150, 3), np.nan)}, ValueError, "samples must be finite"),
        ({"samples": np.ones((200, 150, 3)), "thetas": np.ones((150, 3))}, ValueError, "samples must vary"),
        ({"thetas": np.ones((149, 3))}, ValueError, "thetas must have shape"),
        ({"thetas": np.full((150, 3), np.inf)}, ValueError, "thetas must be finite"),
        ({"thetas": np.ones((150, 3)), "references": "uniform"}, ValueError, "thetas must differ"),
        ({"references": "random"}, ValueError, "references must be one of"),
        ({"references": np.ones((150, 3))}, ValueError, "references must have shape"),
        ({"references": np.full((1, 150, 3), np.nan)}, ValueError, "references must be finite"),
        ({"n_repeats": 0}, ValueError, "n_repeats"),
        ({"n_repeats": 2.0}, TypeError, "n_repeats"),
        ({"seed": -1}, ValueError, "seed"),
        ({"centres": np.ones(3)}, ValueError, "centres must have shape"),
        ({"centres": np.ones((150, 3)), "references": "uniform"}, ValueError, "centres must be left out"),
        ({"scales": np.zeros(3)}, ValueError, "scales must be positive"),
        ({"scales": np.ones(2)}, ValueError, "scales must have shape"),
        ({"levels": [0.5, 0.5]}, ValueError, "levels must increase"),
        ({"levels": [0.0, 0.5]}, ValueError, "levels must increase"),
        ({"n_threads": 0}, ValueError, "n_threads"),
    ],
)
def test_bad_arguments(rng, change, error, word):
    samples, thetas = study(rng)
    arguments = {"samples": samples, "thetas": thetas} | change
    with pytest.raises(error, match=word):
        run_tarp(arguments.pop("samples"), arguments.pop("thetas"), **arguments)


def test_bad_streams_shares_and_verdicts(rng):
    samples, thetas = study(rng, n_sims=4)
    with pytest.raises(ValueError, match="add must be called"):
        TarpAccumulator().result()
    for options in ({"references": "uniform"}, {"bounds": (np.zeros(3), np.ones(3))}):
        with pytest.raises(ValueError, match="bounds must be given"):
            TarpAccumulator(**options)
    for bounds, error in (((0.0,), TypeError), ((np.ones(3), np.ones(3)), ValueError)):
        with pytest.raises(error, match="bounds"):
            TarpAccumulator(references="uniform", bounds=bounds)
    with pytest.raises(ValueError, match="bounds must have shape"):
        TarpAccumulator(references="uniform", bounds=(np.zeros(2), np.ones(2))).add(samples, thetas)
    stream = TarpAccumulator()
    stream.add(samples, thetas)
    with pytest.raises(ValueError, match="as many draws"):
        stream.add(samples[:100], thetas)
    with pytest.raises(ValueError, match="references must come"):
        stream.add(samples, thetas, references=np.ones((20, 4, 3)))
    shares = np.full((2, 5), 0.5)
    for joint, marginal, word in (
        (shares[0], shares[..., None], "joint_shares must have shape"),
        (shares, shares, "marginal_shares must have shape"),
        (shares, shares[..., None][..., :0], "must not be empty"),
        (shares + 0.6, shares[..., None], r"joint_shares must lie in \[0, 1\]"),
        (shares, shares[..., None] - 0.6, r"marginal_shares must lie"),
    ):
        with pytest.raises(ValueError, match=word):
            tarp_from_shares(joint, marginal)
    with pytest.raises(ValueError, match="n_draws"):
        tarp_from_shares(shares, shares[..., None], n_draws=0)
    with pytest.raises(TypeError, match="result"):
        check_tarp(shares)
    with pytest.raises(ValueError, match="level"):
        check_tarp(tarp_from_shares(shares, shares[..., None]), level=0.0)
