"""The network's compiled moments against finite differences and NumPy, in every SIMD variant, for any threads."""

import os
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
from tests.reference import network_oracles as oracle

from dpinfer.lab import _native as lab_native
from dpinfer.mechanism import _native

KEY = bytes(range(32))
SHAPES = [(1, 1), (3, 7), (2, 8), (5, 9), (8, 17)]


def records(d, n=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=n)


def weights(d, hidden, seed=1):
    rng = np.random.default_rng(seed)
    n = (d + 2) * hidden + 1
    return rng.normal(size=n), rng.uniform(0.05, 0.6, size=n)


def session(X, y, hidden, scales=None, rate=1.0, norm=1e6, n_threads=1):
    d = X.shape[1]
    first, second = (1 / np.sqrt(d + 1), 1 / np.sqrt(hidden + 1)) if scales is None else scales
    return _native.NetworkSession(
        features=X, response=y, n_hidden=hidden, hidden_scale=first, output_scale=second, sample_rate=rate,
        max_norm=norm, key=KEY, n_threads=n_threads,
    )  # fmt: skip


def one(i):
    return np.array([i], dtype=np.int64)


@pytest.mark.parametrize(("d", "hidden"), SHAPES)
def test_sites_are_those_of_the_numeric_derivatives(d, hidden):
    X, y = records(d, 3)
    mean, variance = weights(d, hidden)
    native = session(X, y, hidden)
    native.set_sites(mean, variance, 0.3, 1.0, 0.1, 0.7, np.inf, np.inf)
    for i in range(3):
        got = native.plain_sum(one(i), np.inf)

        def evidence(m, v, i=i):
            return oracle.log_evidence(m, v, 0.3, X[i], y[i], hidden)

        a, b = oracle.centred_sites(mean, variance, *oracle.numeric_gradient(evidence, mean, variance))
        f, s = oracle.output_moments(mean, variance, X[i], hidden)
        share = 0.3 * (y[i] - f) / (s + 0.3)
        noise = 0.5 * (share**2 + s * 0.3 / (s + 0.3))
        np.testing.assert_allclose(got, np.concatenate((a, 0.1 * b, [0.7 * noise])), rtol=2e-7, atol=2e-8)


@pytest.mark.parametrize(("d", "hidden"), [(3, 7), (5, 9)])
@pytest.mark.parametrize("scales", [None, (1.0, 1.0)])
def test_gradients_are_those_of_the_expected_log_likelihood(d, hidden, scales):
    X, y = records(d, 2)
    mean, variance = weights(d, hidden)
    rng = np.random.default_rng(2)
    loc_scale, raw_scale = rng.normal(size=mean.size), rng.normal(size=mean.size)
    native = session(X, y, hidden, scales)
    native.set_gradients(mean, variance, 0.4, loc_scale, raw_scale, 2.0)
    got = native.plain_sum(one(1), np.inf)

    def expected(m, v):
        return oracle.expected_log_likelihood(m, v, 0.4, X[1], y[1], hidden, scales or (None, None))

    d_mean, d_variance = oracle.numeric_gradient(expected, mean, variance)
    f, s = oracle.output_moments(mean, variance, X[1], hidden, *(scales or (None, None)))
    want = np.concatenate((loc_scale * d_mean, raw_scale * d_variance, [(y[1] - f) ** 2 + s]))
    np.testing.assert_allclose(got, want, rtol=2e-7, atol=2e-8)


@pytest.mark.parametrize("alpha", [-1e6, -60.0, -38.5, -30.0, -12.0, -3.0, -1e-9, 0.0, 1e-9, 3.0, 12.0, 40.0, 1e6])
@pytest.mark.parametrize("sd", [1e-4, 1.0, 30.0])
def test_rectified_moments_are_right_far_in_the_tails(alpha, sd):
    """Read off the site of an output weight at zero: a = slope E, b = slope^2 E^2 - 2 d (Var + E^2)."""
    X, y = np.zeros((1, 1)), np.array([0.3])
    root = np.sqrt(2.0)
    mean = np.array([0.0, root * alpha * sd, 0.0, 0.0])
    variance = np.array([1e-30, 2 * sd**2, 1e-30, 1e-30])
    native = session(X, y, 1, (1 / root, 1.0))
    native.set_sites(mean, variance, 1.0, 1.0, 1.0, 0.0, np.inf, np.inf)
    got = native.plain_sum(one(0), np.inf)
    with mpmath.workdps(60):
        a, s = mpmath.mpf(alpha), mpmath.mpf(sd)
        cdf = mpmath.erfc(-a / mpmath.sqrt(2)) / 2
        pdf = mpmath.exp(-a * a / 2) / mpmath.sqrt(2 * mpmath.pi)
        unit = s * (pdf + a * cdf)
        second = s * s * ((1 + a * a) * cdf + a * pdf)
        want = [float(0.3 * unit), float(0.09 * unit**2 + 0.91 * second)]
    assert np.all(np.isfinite(got))
    np.testing.assert_allclose([got[2], got[6]], want, rtol=1e-10, atol=1e-60)


def test_a_site_without_a_tilted_variance_is_neutral():
    """A large residual under a tiny noise gives b v > 1: those weights get nothing, and the sum is finite."""
    X, y = np.ones((1, 2)), np.array([1e4])
    mean, variance = weights(2, 3)
    native = session(X, y, 3)
    native.set_sites(mean, variance, 1e-3, 1.0, 1.0, 0.0, np.inf, np.inf)

    def evidence(m, v):
        return oracle.log_evidence(m, v, 1e-3, X[0], y[0], 3)

    d_mean, d_variance = oracle.numeric_gradient(evidence, mean, variance)
    invalid = variance * (d_mean**2 - 2 * d_variance) > 1 - 1e-4
    assert invalid.any()
    got = native.plain_sum(one(0), np.inf)
    assert np.all(np.isfinite(got))
    assert np.all(got[: mean.size][invalid] == 0.0)
    assert np.all(got[mean.size : -1][invalid] == 0.0)


def test_a_record_that_is_not_finite_adds_zero():
    X, y = records(3, 5)
    mean, variance = weights(3, 7)
    sums = []
    for rows in (range(5), [0, 1, 3, 4]):
        chosen = X.copy()
        chosen[2, 1] = np.nan if len(rows) == 5 else 0.0
        native = session(chosen[list(rows)], y[list(rows)], 7, norm=1.0)
        native.set_sites(mean, variance, 0.3, 1.0, 0.1, 0.5, np.inf, np.inf)
        sums.append(native.clipped_sum(0))
    np.testing.assert_array_equal(*sums)


VARIANT_SCRIPT = """
import sys, numpy as np
sys.path.insert(0, {root!r})
from dpinfer.mechanism import _native
from tests.unit.mechanism.test_network_kernels import records, session, weights
parts = []
for d, hidden in ((1, 1), (3, 7), (5, 9), (8, 50)):
    X, y = records(d, 1200, 4)
    mean, variance = weights(d, hidden)
    for threads in (1, 2, 3, 7):
        native = session(X, y, hidden, rate=0.5, norm=0.8, n_threads=threads)
        native.set_sites(mean, variance, 0.3, 1.0, 0.1, 0.5, np.inf, np.inf)
        parts.append(native.clipped_sum(3))
        native.set_gradients(mean, variance, 0.3, np.ones_like(mean), variance, 0.5)
        parts.append(native.clipped_sum(4))
    assert all(np.array_equal(parts[-2 * k - 2], parts[-2]) and np.array_equal(parts[-2 * k - 1], parts[-1])
               for k in range(4))
sys.stdout.write(np.concatenate(parts).tobytes().hex())
"""


def test_every_variant_and_number_of_threads_gives_the_same_bits():
    root = os.fspath(Path(__file__).resolve().parents[3])
    digests = {}
    for variant in ("portable", "avx2", "avx512"):
        run = subprocess.run(
            [sys.executable, "-c", VARIANT_SCRIPT.format(root=root)],
            env=os.environ | {"DPINFER_SIMD": variant},
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode and "DPINFER_SIMD" in run.stderr:
            continue
        assert run.returncode == 0, run.stderr
        digests[variant] = run.stdout
    assert "portable" in digests
    assert len(set(digests.values())) == 1


@pytest.mark.parametrize("method", ["adf", "sep", "damped", "ep", "clipped"])
def test_passes_follow_the_record_by_record_oracle(method):
    d, hidden, n = 2, 3, 7
    X, y = records(d, n, 5)
    rng = np.random.default_rng(6)
    n_params = (d + 2) * hidden + 1
    prior_precision = rng.uniform(0.8, 1.5, size=n_params)
    precision = prior_precision + rng.uniform(0.0, 1.0, size=n_params)
    eta = rng.normal(size=n_params)
    gamma, prior_gamma = np.array([8.0, 5.0]), np.array([6.0, 6.0])
    share, step = {"adf": (0.0, 1.0), "ep": (0.0, 1.0), "damped": (1 / n, 3 / n)}.get(method, (1 / n, 1.0))
    clip = 0.4 if method == "clipped" else np.inf
    native = lab_native.NetworkPasses(
        features=X, response=y, n_hidden=hidden, own_sites=method == "ep", clip_norm=clip, site_weight=0.3, eta=eta,
        precision=precision, prior_precision=prior_precision, gamma=gamma, prior_gamma=prior_gamma,
    )  # fmt: skip
    want = oracle.SequentialPass(
        eta, precision, prior_precision, gamma, prior_gamma, hidden, n if method == "ep" else 0, clip, 0.3
    )
    order = np.concatenate((rng.permutation(n), rng.permutation(n))).astype(np.int64)
    native.run(order, share, step)
    for i in order:
        want.update(i, X[i], y[i], share, step)
    got_eta, got_precision, got_gamma = native.state()
    np.testing.assert_allclose(got_eta, want.eta, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(got_precision, want.precision, rtol=1e-6)
    np.testing.assert_allclose(got_gamma, want.gamma, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.zeros((3, 2), dtype=np.float32)}, "incompatible"),
        ({"features": np.zeros((2, 3)).T}, "incompatible"),
        ({"response": np.zeros(2)}, "response must have 3 elements"),
        ({"n_hidden": 0}, "n_hidden"),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"max_norm": np.nan}, "max_norm"),
        ({"key": b"short"}, "key"),
    ],
)
def test_bindings_refuse_what_they_must(change, message):
    arguments = {
        "features": np.zeros((3, 2)), "response": np.zeros(3), "n_hidden": 4, "hidden_scale": 1.0, "output_scale": 1.0,
        "sample_rate": 0.5, "max_norm": 1.0, "key": KEY, "n_threads": 1,
    }  # fmt: skip
    with pytest.raises((TypeError, ValueError), match=message):
        _native.NetworkSession(**(arguments | change))


def test_sessions_refuse_states_of_the_wrong_length():
    X, y = records(2, 3)
    native = session(X, y, 4)
    good = np.ones((2 + 2) * 4 + 1)
    with pytest.raises(ValueError, match="variance must have 17 elements"):
        native.set_sites(good, np.ones(16), 1.0, 1.0, 1.0, 0.0, np.inf, np.inf)
    with pytest.raises(ValueError, match="rows"):
        native.plain_sum(one(3), 1.0)
