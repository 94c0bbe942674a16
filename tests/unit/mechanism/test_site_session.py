"""The site kernels: against brute force, for any number of threads, on every instruction set, on wild records."""

import mpmath as mp
import numpy as np
import pytest
from tests.reference import site_oracles
from tests.reference.site_sessions import KEY, binary, mixture, set_state, spd

from dpinfer.mechanism import _native

VARIANTS = ("portable", "avx2", "avx512")


@pytest.mark.parametrize(("blocks", "d"), [(1, 1), (2, 1), (3, 2), (4, 4), (2, 7)])
def test_mixture_sites_match_brute_force(rng, blocks, d):
    weights = rng.dirichlet(np.ones(blocks))
    covariances, cov = spd(rng, blocks, d, 0.3), spd(rng, blocks, d, 0.1)
    loc, centre = rng.normal(size=(blocks, d)), rng.normal(size=(blocks, d))
    points = rng.normal(size=(6, d))
    session = mixture(points, weights, covariances)
    set_state(session, loc, cov, centre, 0.2)
    found = session.contributions(np.arange(6))
    for x, row in zip(points, found, strict=True):
        sites = site_oracles.mixture_site(x, weights, covariances, loc, cov)
        np.testing.assert_allclose(row, site_oracles.contribution(sites, centre, 0.2), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("likelihood", ["probit", "logistic"])
@pytest.mark.parametrize(("d", "intercept"), [(1, False), (3, True), (5, False)])
def test_binary_sites_match_brute_force(rng, likelihood, d, intercept):
    features = rng.normal(size=(6, d))
    response = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    width = d + intercept
    cov = spd(rng, 1, width, 0.05)
    loc, centre = rng.normal(size=(1, width)), rng.normal(size=(1, width))
    session = binary(features, response, likelihood, intercept)
    set_state(session, loc, cov, centre, 0.7)
    found = session.contributions(np.arange(6))
    for x, y, row in zip(features, response, found, strict=True):
        extended = np.append(x, 1.0) if intercept else x
        site = site_oracles.binary_site(extended, y, likelihood, loc[0], cov[0])
        np.testing.assert_allclose(row, site_oracles.contribution([site], centre, 0.7), rtol=1e-6, atol=1e-7)


def test_probit_sites_far_in_the_tail_stay_exact(rng):
    session = binary(np.array([[1.0]]), np.array([1.0]), "probit", norm=100.0)
    for mean in (-5.0, -20.0, -29.9, -30.1, -60.0):
        set_state(session, np.array([[mean]]), np.array([[[1e-9]]]), np.zeros((1, 1)), 1.0)
        linear, precision = session.contributions(np.array([0]))[0]
        # In 50 digits, as the terms of the linear part cancel.
        with mp.workdps(50):
            z = mp.mpf(mean) / mp.sqrt(1 + mp.mpf(1e-9))
            mills = mp.npdf(z) / mp.ncdf(z)
            second = mills * (mills + z) / (1 + mp.mpf(1e-9))
            left = 1 - second * mp.mpf(1e-9)
            first = (mills / mp.sqrt(1 + mp.mpf(1e-9)) + second * mean) / left
        assert linear == pytest.approx(float(first), rel=1e-10)
        assert precision == pytest.approx(float(second / left), rel=1e-12)


def test_expected_statistics_of_em(rng):
    weights, covariances = np.array([0.3, 0.7]), spd(rng, 2, 3, 0.4)
    points, means, centre = rng.normal(size=(5, 3)), rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    session = _native.mixture_sites(
        contribution="moments", points=points, log_weights=np.log(weights), covariances=covariances,
        max_site_norm=1.0, key=KEY, n_threads=1,
    )  # fmt: skip
    set_state(session, means, np.zeros((2, 3, 3)), centre, 0.5)
    found = session.contributions(np.arange(5))
    for x, row in zip(points, found, strict=True):
        log_p = [
            np.log(w) - 0.5 * np.linalg.slogdet(c)[1] - 0.5 * (x - m) @ np.linalg.solve(c, x - m)
            for w, c, m in zip(weights, covariances, means, strict=True)
        ]
        r = np.exp(log_p - np.logaddexp(*log_p))
        expected = np.concatenate((r[0] * (x - centre[0]), r[1] * (x - centre[1]), 0.5 * r))
        np.testing.assert_allclose(row, expected, rtol=1e-10)


def sessions(rng, n, n_threads=1):
    weights, covariances = np.full(3, 1 / 3), spd(rng, 3, 2, 0.3)
    state = (rng.normal(size=(3, 2)), spd(rng, 3, 2, 0.02), rng.normal(size=(3, 2)))
    one = mixture(rng.normal(size=(n, 2)), weights, covariances, n_threads=n_threads)
    set_state(one, *state, 0.2)
    other = binary(rng.normal(size=(n, 5)), (rng.random(n) < 0.5) * 1.0, "logistic", n_threads=n_threads)
    set_state(other, rng.normal(size=(1, 5)), spd(rng, 1, 5, 0.02), rng.normal(size=(1, 5)), 0.5)
    return one, other


@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_do_not_depend_on_threads_or_instructions(monkeypatch, variant):
    monkeypatch.setenv("DPINFER_SIMD", "portable")
    reference = [
        (s.clipped_poisson_sum(5, 0.3), s.poisson_sum(5, 0.3, 2.0), s.plain_sum(1.0), s.uniform_sum(3, 2.0))
        for s in sessions(np.random.default_rng(1), 3000)
    ]
    monkeypatch.setenv("DPINFER_SIMD", variant)
    for n_threads in (1, 2, 3, 7):
        try:
            found = sessions(np.random.default_rng(1), 3000, n_threads)
        except ValueError as error:
            assert "DPINFER_SIMD" in str(error)  # noqa: PT017
            pytest.skip(f"no {variant} here")
        for session, (clipped, noisy, plain, single) in zip(found, reference, strict=True):
            np.testing.assert_array_equal(session.clipped_poisson_sum(5, 0.3), clipped)
            np.testing.assert_array_equal(session.poisson_sum(5, 0.3, 2.0), noisy)
            np.testing.assert_array_equal(session.plain_sum(1.0), plain)
            np.testing.assert_array_equal(session.uniform_sum(3, 2.0), single)


def test_a_record_without_valid_moments_contributes_the_neutral_site():
    """A predictor that overflows has no moments: the shared site takes its place, and noise is added as ever."""
    points = np.array([[1e308, -1e308], [0.1, 0.2]])
    session = mixture(points, np.array([0.5, 0.5]), np.tile(np.eye(2), (2, 1, 1)))
    neutral = np.linspace(0.1, 0.3, session.length)
    set_state(session, np.zeros((2, 2)), np.tile(0.1 * np.eye(2), (2, 1, 1)), np.zeros((2, 2)), 1.0, neutral)
    np.testing.assert_array_equal(session.contributions(np.array([0]))[0], neutral)
    alone = session.clipped_sum(np.array([0])) * session.lattice_step
    np.testing.assert_allclose(alone, neutral, atol=session.lattice_step)
    noise = session.poisson_sum(0, 1.0, 2.0) - session.clipped_poisson_sum(0, 1.0) * session.lattice_step
    assert np.all(np.abs(noise) > 0.0)


def test_permutations_read_every_row_once_per_epoch():
    session, _ = sessions(np.random.default_rng(1), 50)
    orders = [session.order(epoch) for epoch in (0, 1)]
    for epoch, order in enumerate(orders):
        np.testing.assert_array_equal(np.sort(order), np.arange(50))
        for step, row in enumerate(order[:5]):
            clean = session.clipped_sum(order[step : step + 1]) * session.lattice_step
            noisy = session.permuted_sum(50 * epoch + step, 1e-3)
            assert np.max(np.abs(noisy - clean)) < 0.03, row
    assert not np.array_equal(*orders)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"points": np.zeros((3, 2), dtype=np.float32)}, "incompatible"),
        ({"points": np.zeros((2, 3)).T}, "incompatible"),
        ({"points": np.zeros(3)}, "points"),
        ({"covariances": np.zeros((2, 2, 3))}, "covariances"),
        ({"max_site_norm": 0.0}, "max_site_norm"),
        ({"key": b"short"}, "key"),
        ({"contribution": "both"}, "contribution"),
        ({"n_threads": -1}, "n_threads"),
    ],
)
def test_bindings_check_again(changes, match):
    arguments = {
        "contribution": "site",
        "points": np.zeros((3, 2)),
        "log_weights": np.zeros(2),
        "covariances": np.tile(np.eye(2), (2, 1, 1)),
        "max_site_norm": 1.0,
        "key": KEY,
        "n_threads": 1,
    }
    with pytest.raises((TypeError, ValueError), match=match):
        _native.mixture_sites(**(arguments | changes))


def test_states_are_checked_again():
    session, _ = sessions(np.random.default_rng(1), 10)
    good = {
        "cavity_loc": np.zeros((3, 2)),
        "cavity_cov": np.tile(np.eye(2), (3, 1, 1)),
        "centre": np.zeros((3, 2)),
        "neutral": np.zeros(session.length),
        "block_weight": 1.0,
    }
    for name, value in (
        ("cavity_loc", np.zeros((2, 2))),
        ("cavity_cov", np.tile(-np.eye(2), (3, 1, 1))),
        ("neutral", np.zeros(3)),
        ("block_weight", 0.0),
    ):
        with pytest.raises(ValueError, match=name):
            session.set_state(**(good | {name: value}))
    for call in (
        lambda: session.poisson_sum(0, 0.0, 1.0),
        lambda: session.poisson_sum(0, 0.5, 0.0),
        lambda: session.uniform_sum(0, np.inf),
        lambda: session.plain_sum(-1.0),
        lambda: session.clipped_sum(np.array([10])),
    ):
        with pytest.raises(ValueError, match=r"must be"):
            call()
