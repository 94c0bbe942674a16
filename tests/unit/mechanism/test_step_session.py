"""The kernel's clipped sums against per-record NumPy gradients, with the same bits however they are computed."""

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import special
from tests.reference import dpvi_gradients as oracle

from dpinfer.mechanism import _native

KEY = bytes(range(32))
RATE = 0.4
NORM = 1.7
LIKELIHOODS = ("logistic", "probit", "gaussian", "poisson")


def make_records(rng, likelihood, n_rows, n_features):
    X = rng.normal(size=(n_rows, n_features))
    if likelihood == "poisson":
        return X, rng.poisson(2.0, n_rows).astype(float)
    if likelihood == "gaussian":
        return X, rng.normal(size=n_rows)
    return X, (rng.random(n_rows) < 0.5).astype(float)


def gaussian_moments(loc, raw):
    """Five expectations over rho by direct quadrature, the raw_scale derivatives through E[h(loc + s z) z]."""
    nodes, weights = oracle.gauss_hermite(64)
    s, slope = oracle.softplus(raw), special.expit(raw)
    rho = loc + s * nodes
    variance, d1 = oracle.softplus(rho), special.expit(rho)
    return np.array(
        [
            weights @ (1 / variance),
            weights @ (-d1 / variance**2),
            slope * (weights @ (-d1 / variance**2 * nodes)),
            weights @ (d1 / variance),
            slope * (weights @ (d1 / variance * nodes)),
        ]
    )


class Problem:
    """One step's inputs, and both ways to compute its clipped sum.

    ``form`` chooses among the kernel's forms: "offset" adds a vector to every gradient (per-example losses), "plain"
    does not, "uniform" has loc preconditioned by one number besides.
    """

    def __init__(self, rng, likelihood, n_rows, n_features, intercept, form="offset"):
        self.likelihood, self.intercept = likelihood, intercept
        self.X, self.y = make_records(rng, likelihood, n_rows, n_features)
        self.n_coef = n_features + intercept
        self.n = self.n_coef + (likelihood == "gaussian")
        self.loc = 0.3 * rng.normal(size=self.n) / np.sqrt(n_features)
        self.raw = rng.normal(size=self.n) - 2.0
        self.beta = np.exp(rng.normal(size=2 * self.n))
        self.offset = 0.01 * rng.normal(size=2 * self.n) * (form == "offset")
        if form == "uniform":
            self.beta[: self.n] = 1.3
        self.z = rng.normal(size=(4, self.n))

    def session(self, features=None, n_threads=1, aligned=False):
        return _native.StepSession(
            features=self.X if features is None else features,
            response=self.y,
            likelihood=self.likelihood,
            intercept=self.intercept,
            aligned=aligned,
            sample_rate=RATE,
            max_grad_norm=NORM,
            key=KEY,
            n_threads=n_threads,
        )

    def kernel_sum(self, mode, step=5, **options):
        session = self.session(aligned=mode == "aligned", **options)
        s, slope = oracle.softplus(self.raw), special.expit(self.raw)
        beta = self.beta.copy()
        if mode == "quadrature":
            nodes, weights = oracle.gauss_hermite(64)
            gaussian = self.likelihood == "gaussian"
            moments = gaussian_moments(self.loc[-1], self.raw[-1]) if gaussian else np.empty(0)
            session.set_quadrature(self.loc[: self.n_coef].copy(), s[: self.n_coef] ** 2, nodes, weights, moments)
            beta[self.n : self.n + self.n_coef] *= (s * slope)[: self.n_coef]
        else:
            z = self.z[:1] if mode == "aligned" else self.z
            theta = self.loc + s * z
            dispersion = np.empty((0, len(z)))
            if self.likelihood == "gaussian":
                variance = oracle.softplus(theta[:, -1])
                dispersion = np.stack((1 / variance, special.expit(theta[:, -1]) / variance, z[:, -1]))
            session.set_draws(
                np.ascontiguousarray(theta[:, : self.n_coef]), np.ascontiguousarray(z[:, : self.n_coef]), dispersion
            )
            beta[self.n :] *= slope / len(z)
        width = self.n if mode == "aligned" else 2 * self.n
        session.set_scales(beta[:width].copy(), (self.beta * self.offset)[:width])
        return session.clipped_sum(step), session.lattice_step

    def oracle_sum(self, mode, step=5):
        rows = _native.poisson_sample(KEY, step, RATE, len(self.X))
        extended = np.hstack([self.X, np.ones((len(self.X), 1))]) if self.intercept else self.X
        width = self.n if mode == "aligned" else 2 * self.n
        total = np.zeros(width)
        for row in rows:
            x, y = extended[row], self.y[row]
            if mode == "quadrature":
                gradient = oracle.quadrature_gradient(self.likelihood, x, y, self.loc, self.raw, 64)
            else:
                z = self.z[:1] if mode == "aligned" else self.z
                gradient = oracle.draws_gradient(self.likelihood, x, y, self.loc, self.raw, z)
            total += oracle.clip((self.beta * (gradient + self.offset))[:width], NORM)
        return total, len(rows)


@pytest.mark.parametrize("mode", ["quadrature", "draws", "aligned"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(
    ("n_features", "intercept", "form"),
    [
        (1, False, "offset"),
        (6, True, "plain"),
        (7, True, "offset"),
        (8, False, "uniform"),
        (23, True, "plain"),
        (24, True, "plain"),
        (40, False, "uniform"),
        (63, True, "offset"),
    ],
)
def test_clipped_sum_matches_numpy(rng, mode, likelihood, n_features, intercept, form):
    problem = Problem(rng, likelihood, 211, n_features, intercept, form)
    got, step = problem.kernel_sum(mode)
    want, n_sampled = problem.oracle_sum(mode)
    assert n_sampled > 50
    # Each record is clipped to (1 - 2**-20) C and rounded to the lattice.
    np.testing.assert_allclose(got * step, want, atol=n_sampled * NORM * (2.0**-20 + 2.0**-30) + 1e-9)
    assert np.abs(want).max() > 0.1


def test_clipping_after_the_sum_would_be_noticed(rng):
    """The power twin of the test above: the same tolerance rejects a sum that is clipped as a whole."""
    problem = Problem(rng, "logistic", 211, 7, True)
    got, step = problem.kernel_sum("quadrature")
    want, n_sampled = problem.oracle_sum("quadrature")
    wrong = oracle.clip(want, NORM)
    assert np.abs(got * step - wrong).max() > 100 * (n_sampled * NORM * (2.0**-20 + 2.0**-30) + 1e-9)


@pytest.mark.parametrize("mode", ["quadrature", "draws", "aligned"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(("n_features", "form"), [(9, "plain"), (9, "offset"), (30, "uniform")])
def test_bits_do_not_depend_on_threads(rng, mode, likelihood, n_features, form):
    problem = Problem(rng, likelihood, 9000, n_features, True, form)
    reference, _ = problem.kernel_sum(mode, n_threads=1)
    for n_threads in (2, 3, 7):
        np.testing.assert_array_equal(problem.kernel_sum(mode, n_threads=n_threads)[0], reference)


@pytest.mark.parametrize("n_rows", [1, 7, 63, 64, 65, 1023, 1024, 1025])
def test_awkward_numbers_of_rows(rng, n_rows):
    problem = Problem(rng, "logistic", n_rows, 3, True)
    got, step = problem.kernel_sum("quadrature")
    want, n_sampled = problem.oracle_sum("quadrature")
    np.testing.assert_allclose(got * step, want, atol=n_sampled * NORM * 2.0**-19 + 1e-9)


def test_float32_rows_equal_float64_rows_of_equal_value(rng):
    problem = Problem(rng, "logistic", 700, 10, True)
    problem.X = problem.X.astype(np.float32).astype(np.float64)
    reference, _ = problem.kernel_sum("quadrature")
    np.testing.assert_array_equal(problem.kernel_sum("quadrature", features=problem.X.astype(np.float32))[0], reference)


def test_read_only_rows(rng):
    problem = Problem(rng, "logistic", 100, 4, False)
    reference, _ = problem.kernel_sum("quadrature")
    problem.X.flags.writeable = False
    np.testing.assert_array_equal(problem.kernel_sum("quadrature")[0], reference)


def test_bits_do_not_depend_on_the_instruction_set():
    """Every variant that this processor runs gives the same sums, noise and sample."""
    script = (
        "import numpy as np, hashlib\n"
        "from tests.unit.mechanism.test_step_session import Problem, LIKELIHOODS, KEY\n"
        "from dpinfer.mechanism import _native\n"
        "digest = hashlib.sha256()\n"
        "for likelihood in LIKELIHOODS:\n"
        "    for mode in ('quadrature', 'draws', 'aligned'):\n"
        "        for n_features, form in [(n, f) for n in (11, 30) for f in ('offset', 'plain', 'uniform')]:\n"
        "            problem = Problem(np.random.default_rng(3), likelihood, 300, n_features, True, form)\n"
        "            digest.update(problem.kernel_sum(mode)[0].tobytes())\n"
        "digest.update(_native.monte_carlo_normals(KEY, 3, 1001).tobytes())\n"
        "digest.update(_native.poisson_sample(KEY, 3, 0.3, 5000).tobytes())\n"
        "print(_native.simd_variant(), digest.hexdigest())\n"
    )
    results = {}
    for variant in ("portable", "avx2", "avx512"):
        run = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"DPINFER_SIMD": variant, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            capture_output=True,
            text=True,
            check=False,
        )
        if "DPINFER_SIMD names a variant" in run.stderr:
            continue
        assert run.returncode == 0, run.stderr
        name, digest = run.stdout.split()
        assert name == variant
        results[variant] = digest
    assert "portable" in results
    assert len(set(results.values())) == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"features": np.zeros((3, 2), dtype=np.int64)}, TypeError),
        ({"features": np.zeros((3, 2))[:, ::-1]}, TypeError),
        ({"features": np.asfortranarray(np.zeros((3, 2)))}, TypeError),
        ({"features": np.zeros(3)}, ValueError),
        ({"response": np.zeros(4)}, ValueError),
        ({"response": np.zeros(3, dtype=np.int64)}, TypeError),
        ({"likelihood": "cauchy"}, ValueError),
        ({"sample_rate": 0.0}, ValueError),
        ({"sample_rate": float("nan")}, ValueError),
        ({"max_grad_norm": 1e31}, ValueError),
        ({"key": b"short"}, ValueError),
    ],
)
def test_bindings_refuse_what_they_cannot_use(change, error):
    good = {
        "features": np.zeros((3, 2)),
        "response": np.zeros(3),
        "likelihood": "logistic",
        "intercept": False,
        "aligned": False,
        "sample_rate": 0.1,
        "max_grad_norm": 1.0,
        "key": KEY,
        "n_threads": 1,
    }
    _native.StepSession(**good)
    with pytest.raises(error):
        _native.StepSession(**(good | change))


def test_bindings_check_lengths(rng):
    session = Problem(rng, "logistic", 10, 3, False).session()
    with pytest.raises(ValueError, match="scale"):
        session.set_scales(np.ones(5), np.ones(6))
    with pytest.raises(ValueError, match="weights"):
        session.set_quadrature(np.ones(3), np.ones(3), np.ones(2), np.ones(3), np.empty(0))
    with pytest.raises(TypeError):
        session.set_scales(np.ones(6, dtype=np.float32), np.ones(6))


def test_keystream_is_chacha20():
    """RFC 8439, section 2.4.2: the keystream behind the encryption example, through the nonce's words."""
    block = _native.keystream(bytes(32), 1, 0, 0, 2)
    assert len(block) == 128
    assert block[:64] != block[64:]
    assert block == _native.keystream(bytes(32), 1, 0, 0, 1) + _native.keystream(bytes(32), 1, 0, 1, 1)
    assert _native.keystream(bytes(32), 2, 0, 0, 1) != block[:64]
    assert _native.keystream(bytes(32), 1, 1 << 40, 0, 1) != block[:64]
