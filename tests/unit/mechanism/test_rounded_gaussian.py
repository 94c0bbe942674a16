"""The noise: its bits against ChaCha20 in Python, its values against mpmath, its certificate against both."""

import hashlib

import numpy as np
import pytest
from mpmath import mp, mpf
from tests.reference import normal_oracles as oracle

from dpinfer.mechanism import _native

KEY = bytes(range(32))
# Lattice steps of noise: tiny, sigma = 37 and 307 at the widest lattice, and the largest allowed.
SCALES = [0.3, 1e3, 37.3 * 2.0**31, 307.6 * 2.0**31, 1e14, 1e17]


def nearest(value):
    return int(mp.floor(value + mpf(1) / 2))


def test_the_oracle_is_chacha20():
    """RFC 8439, section 2.3.2 and appendix A.1, test vectors 1 and 2."""
    block = oracle.chacha20_block(KEY, 1, bytes.fromhex("000000090000004a00000000"))
    assert block.hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e")
    zeros = [oracle.chacha20_block(bytes(32), counter, bytes(12)).hex() for counter in (0, 1)]
    assert zeros[0] == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert zeros[1] == (
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )


@pytest.mark.parametrize(("domain", "step", "counter"), [(1, 0, 0), (2, 7, 3), (5, (1 << 40) + 1, (1 << 32) - 3)])
def test_streams_are_addressed_by_domain_step_and_block(domain, step, counter):
    want = b"".join(oracle.stream_block(KEY, domain, step, counter + i) for i in range(5))
    assert _native.keystream(KEY, domain, step, counter, 5) == want


def float64_errors():
    """Errors of the float64 pairs in units of 2**-53 of the value, at random words and at the ends of either range."""
    generator = np.random.default_rng(8)
    top = 2**53
    k = np.concatenate(
        [
            generator.integers(0, top, 700),
            np.arange(60),
            top - 1 - np.arange(1, 61),
            (2.0 ** -generator.uniform(0, 52, 180) * top).astype(np.int64),
        ]
    )
    j = generator.integers(0, top, k.size)
    corners = generator.integers(0, 8, 300) * (top // 8) + generator.integers(-3, 4, 300)
    j[:300] = corners % top
    k, j = k[: k.size // 8 * 8], j[: k.size // 8 * 8]
    words = (np.stack((k, j), axis=1).ravel().astype(np.uint64)) << np.uint64(11)
    values = _native.box_muller(words)
    with mp.workprec(300):
        pairs = [oracle.exact_pair(mpf(int(a) + 1) / top, mpf(int(b)) / top) for a, b in zip(k, j, strict=True)]
        exact = [part for pair in pairs for part in pair]
        # At a quarter turn the exact value is zero to 300 bits, and the computed one is zero.
        assert all(abs(z) > mpf(2) ** -200 or float(v) == 0.0 for z, v in zip(exact, values, strict=True))
        return np.array(
            [
                float(abs(mpf(float(v)) - z) / abs(z) * 2**53)
                for z, v in zip(exact, values, strict=True)
                if abs(z) > mpf(2) ** -200
            ]
        )


def test_float64_keeps_within_the_proven_error():
    """docs/derivations/noise.md proves 14.1 units; half of it is not reached, a fifth of it is."""
    errors = float64_errors()
    assert errors.max() <= 14.1
    assert errors.max() > 2.8


@pytest.mark.parametrize("stddev", SCALES)
def test_draws_are_the_exact_rounding(stddev):
    """Every draw equals the rounding of a 300-bit evaluation on the same 181-bit uniforms."""
    draws, _ = _native.rounded_gaussian(KEY, 11, stddev, 120)
    with mp.workprec(300):
        want = [nearest(mpf(stddev) * z) for pair in range(60) for z in oracle.noise_pair(KEY, 11, pair)]
    assert draws.tolist() == want


@pytest.mark.parametrize("stddev", SCALES)
def test_the_certificate_misses_nothing(stddev):
    """Where float64 decides, 192-bit arithmetic decides the same."""
    n = 20_000
    draws, n_exact = _native.rounded_gaussian(KEY, 12, stddev, n)
    np.testing.assert_array_equal(draws, _native.exact_rounded_gaussian(KEY, 12, stddev, n))
    # 2 stddev E|error| draws lie so near to a boundary; the bound is some 30 units of 2**-53 on average.
    assert n_exact <= n * min(1.0, 3.0 * 2.0 * stddev * 30.0 * 2.0**-53) + 1


@pytest.mark.parametrize(
    ("stddev", "digest"),
    [
        (37.3 * 2.0**31, "5a9238192146c37f2038d01d37ba56a1bef2440f2eb34106e7db166beecbddb2"),
        (307.6 * 2.0**31, "3629cfa7b56f766095f553d9f7dd6939b072f219d10631f0e4b4ef50f841eeae"),
    ],
)
def test_a_million_draws_are_what_they_were(stddev, digest):
    """Digests from float64 with 192-bit arithmetic behind it alone: no way of deciding a draw may change one."""
    draws = _native.rounded_gaussian(KEY, 5, stddev, 2**20)[0][: 10**6]
    assert hashlib.sha256(draws.astype("<i8").tobytes()).hexdigest() == digest


def test_the_undecided_draws_of_a_million_are_the_exact_rounding():
    """At sigma = 307, where 3.4e-3 of the draws are not float64's: with 128-bit arithmetic, and with 192 bits alone."""
    n, stddev = 10**6, 307.6 * 2.0**31
    draws, n_exact = _native.rounded_gaussian(KEY, 6, stddev, n)
    assert n_exact > 3000
    np.testing.assert_array_equal(draws, _native.exact_rounded_gaussian(KEY, 6, stddev, n))


def test_float64_alone_would_be_wrong():
    """The power twin: without the fallback the same comparison fails."""
    n, stddev = 20_000, 1e14
    words = np.frombuffer(_native.keystream(KEY, oracle.NOISE, 12, 0, n // 8), dtype="<u8").astype(np.uint64)
    plain = np.rint(stddev * _native.box_muller(words)).astype(np.int64)
    exact = _native.exact_rounded_gaussian(KEY, 12, stddev, n)
    wrong = np.mean(plain != exact)
    assert 0.01 < wrong < 0.5
    assert np.abs(plain - exact).max() < 2**22  # the same draw, but for the bits that float64 does not have


@pytest.mark.parametrize("n", [0, 1, 7, 8, 63, 64, 65, 127, 129])
def test_draws_do_not_depend_on_how_many_are_asked_for(n):
    all_draws, _ = _native.rounded_gaussian(KEY, 4, 1e13, 300)
    np.testing.assert_array_equal(_native.rounded_gaussian(KEY, 4, 1e13, n)[0], all_draws[:n])


@pytest.mark.parametrize(
    ("stddev", "n", "name"), [(0.0, 3, "stddev"), (np.nan, 3, "stddev"), (1.1e17, 3, "stddev"), (1.0, -1, "n must")]
)
def test_bindings_refuse_what_they_cannot_draw(stddev, n, name):
    with pytest.raises(ValueError, match=name):
        _native.rounded_gaussian(KEY, 0, stddev, n)
    with pytest.raises(ValueError, match=name):
        _native.exact_rounded_gaussian(KEY, 0, stddev, n)
