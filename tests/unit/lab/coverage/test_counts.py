"""The compiled counts against brute force: awkward lengths, ties, threads, instruction sets, and refusals."""

import numpy as np
import pytest
from tests.reference import tarp_oracles as oracle

from dpinfer.lab import _native
from dpinfer.lab.coverage.counts import check_draws, draw_moments, tarp_counts

VARIANTS = ("portable", "avx2", "avx512")


def problem(rng, n_draws, n_sims, n_dims, repeats=2, dtype=np.float64):
    samples = rng.normal(5.0, 2.0, (n_draws, n_sims, n_dims)).astype(dtype)
    thetas = rng.normal(5.0, 2.0, (n_sims, n_dims))
    references = rng.uniform(-3.0, 13.0, (repeats, n_sims, n_dims))
    scales = rng.uniform(0.1, 10.0, (n_sims, n_dims))
    return samples, thetas, references, scales


def assert_exact(samples, thetas, references, scales, **options):
    got = tarp_counts(samples, thetas, references, scales, **options)
    for one, other in zip(got, oracle.doubled_counts(samples, thetas, references, scales), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n_draws", [1, 7, 8, 9, 15, 16, 17, 63, 64, 65])
@pytest.mark.parametrize(("n_sims", "n_dims"), [(1, 1), (1, 9), (3, 2), (7, 7), (13, 12), (300, 1), (2, 200)])
def test_counts_are_exact(rng, n_draws, n_sims, n_dims):
    assert_exact(*problem(rng, n_draws, n_sims, n_dims))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_instruction_set_counts_the_same(rng, monkeypatch, variant, dtype):
    monkeypatch.setenv("DPINFER_SIMD", variant)
    try:
        assert_exact(*problem(rng, 70, 41, 5, repeats=3, dtype=dtype))
    except RuntimeError:
        pytest.skip(f"{variant} is not available here")
    samples = problem(rng, 70, 41, 5, dtype=dtype)[0]
    mean, squares = draw_moments(samples)
    monkeypatch.setenv("DPINFER_SIMD", "portable")
    for one, other in zip((mean, squares), draw_moments(samples), strict=True):
        assert one.tobytes() == other.tobytes()


def test_an_unknown_instruction_set_is_refused(rng, monkeypatch):
    monkeypatch.setenv("DPINFER_SIMD", "abacus")
    with pytest.raises(RuntimeError, match="DPINFER_SIMD"):
        tarp_counts(*problem(rng, 3, 2, 1))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ties_count_half(rng, dtype):
    # Few distinct values: many draws are equal to the truth, or mirror it in the reference point.
    samples = rng.integers(-2, 3, (50, 20, 3)).astype(dtype)
    thetas = rng.integers(-2, 3, (20, 3)).astype(np.float64)
    references = np.zeros((1, 20, 3))
    assert_exact(samples, thetas, references, np.ones((20, 3)))
    same = np.tile(thetas.astype(dtype), (50, 1, 1))
    joint, marginal = tarp_counts(same, thetas, rng.normal(size=(4, 20, 3)), rng.uniform(0.1, 3.0, (20, 3)))
    assert np.all(joint == 50)
    assert np.all(marginal == 50)


@pytest.mark.parametrize("shape", [(400, 130, 4), (3000, 3, 8), (64, 1, 1), (40, 3, 700)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_threads_do_not_matter(rng, shape, dtype):
    samples, thetas, references, scales = problem(rng, *shape, repeats=3, dtype=dtype)
    counts = tarp_counts(samples, thetas, references, scales, n_threads=1)
    moments = draw_moments(samples, n_threads=1)
    for threads in (2, 3, 7):
        for one, other in zip(counts, tarp_counts(samples, thetas, references, scales, n_threads=threads), strict=True):
            assert one.tobytes() == other.tobytes()
        for one, other in zip(moments, draw_moments(samples, n_threads=threads), strict=True):
            assert one.tobytes() == other.tobytes()


def test_blocks_of_simulations_join_exactly(rng):
    # Wide enough for several blocks a thread, and for repeats to shrink them.
    assert_exact(*problem(rng, 20, 1501, 3, repeats=40), n_threads=2)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n_draws", [1, 2, 37])
def test_moments_match_numpy(rng, dtype, n_draws):
    samples = (1e4 + rng.normal(size=(n_draws, 61, 7))).astype(dtype)
    mean, squares = draw_moments(samples)
    wide = samples.astype(np.longdouble)
    np.testing.assert_allclose(mean, wide.mean(axis=0).astype(float), rtol=1e-14)
    centred = ((wide - wide.mean(axis=0)) ** 2).sum(axis=0).astype(float)
    np.testing.assert_allclose(squares, centred, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_draw_that_is_not_finite_is_refused(rng, bad, dtype):
    for place in ((0, 0, 0), (36, 2, 1), (16, 1, 0)):
        samples, thetas, references, scales = problem(rng, 37, 3, 2, dtype=dtype)
        samples[place] = bad
        with pytest.raises(ValueError, match="samples must be finite"):
            tarp_counts(samples, thetas, references, scales)
        with pytest.raises(ValueError, match="samples must be finite"), np.errstate(invalid="ignore"):
            draw_moments(samples)


def test_read_only_inputs_are_read(rng):
    arrays = problem(rng, 20, 3, 2)
    for array in arrays:
        array.flags.writeable = False
    assert_exact(*arrays)


def test_draws_keep_their_type_and_are_not_copied(rng):
    narrow = rng.normal(size=(3, 2, 1)).astype(np.float32)
    assert check_draws("samples", narrow) is narrow
    assert check_draws("samples", narrow.astype(int)).dtype == np.float64
    assert check_draws("samples", np.asfortranarray(rng.normal(size=(3, 2, 4)))).flags.c_contiguous


def test_bad_arguments(rng):
    samples, thetas, references, scales = problem(rng, 20, 3, 2)
    for bad in ("abc", np.array(["a"]), samples > 0.0):
        with pytest.raises(TypeError, match="samples"):
            check_draws("samples", bad)
    for bad in (samples[0], samples[:0], np.ones(())):
        with pytest.raises(ValueError, match="samples must have shape"):
            check_draws("samples", bad)
    with pytest.raises(ValueError, match="scales must be positive"):
        tarp_counts(samples, thetas, references, 0.0 * scales)
    with pytest.raises(ValueError, match="n_threads"):
        tarp_counts(samples, thetas, references, scales, n_threads=0)
    inverse = 1.0 / scales
    good = [samples, thetas, references, inverse]
    for place, wrong in (
        (1, thetas[:2]),
        (2, references[0]),
        (2, references[:, :2].copy()),
        (2, references[:0]),
        (3, inverse[0]),
        (1, np.full_like(thetas, np.nan)),
    ):
        with pytest.raises(ValueError, match="must"):
            _native.tarp_counts(*[wrong if index == place else item for index, item in enumerate(good)], 1)
    for wrong in (samples.astype(int), np.asfortranarray(samples), samples[:, ::-1]):
        with pytest.raises(TypeError):
            _native.tarp_counts(wrong, thetas, references, inverse, 1)
