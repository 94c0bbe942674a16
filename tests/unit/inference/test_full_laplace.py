"""Laplace's approximation with a full Hessian (NA-DPVI, eqs. A4-A5) against the raw density and the exact posterior."""

import numpy as np
import pytest
from tests.reference import inference_oracles as oracle

import dpinfer as dpi
from dpinfer.errors import NumericalError
from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.trace.information.laplace import FullJoint, _mode
from dpinfer.inference.trace.information.rows import row_regressions
from dpinfer.release import GradientTrace

RATE = 0.1
A = np.array([[60.0, 25.0, 0.0], [25.0, 40.0, -10.0], [0.0, -10.0, 30.0]])
NOISE = np.array([1.0, 0.7, 1.5])


@pytest.fixture(scope="module")
def trace():
    rng = np.random.default_rng(3)
    x, g, _ = oracle.simulate(
        rng, steps=3000, hessian=A, optimum=np.array([0.2, -0.4, 1.0]), noise_stddev=NOISE, learning_rate=0.08
    )
    return x, g


def joint_of(x, g, varying=False):
    noise = NOISE * np.linspace(1.0, 1.5, len(x))[:, None] ** np.array([1.0, 0.5, 0.0]) if varying else NOISE
    return FullJoint(row_regressions(x, g, noise), x.std(axis=0), np.array([1.0, 1.2, 1.1]), 10.0), noise


def raw_log_density(joint, x, g, noise, point):
    """Sum over the steps, and the Jacobian's determinant by differences: nothing of the implementation but F."""
    k = len(joint.spread)
    size = k * (k + 1) // 2

    def slopes(v):
        lower = joint.factor(v)
        return lower @ lower.T

    jacobian = np.empty((size, size))
    for index in range(size):
        h = 1e-6 * np.eye(size)[index]
        jacobian[:, index] = ((slopes(point[:size] + h) - slopes(point[:size] - h)) / 2e-6)[np.tril_indices(k)]
    own = slopes(point[:size]) / (joint.spread[:, None] * joint.spread)
    optimum = joint.rows.position_mean[0] + joint.spread * point[size:]
    residual = (g - (x - optimum) @ own.T) / noise
    value = -0.5 * np.sum(residual**2 / joint.inflation) - 0.5 * np.sum((point[size:] / joint.prior_scale) ** 2)
    return value + np.log(abs(np.linalg.det(jacobian)))


@pytest.mark.parametrize("varying", [False, True])
def test_the_density_is_that_of_the_raw_trace_with_its_jacobian(trace, varying, rng):
    x, g = (values[:300] for values in trace)
    joint, noise = joint_of(x, g, varying)
    mode, _ = _mode(joint)
    points = mode + 0.1 * rng.standard_normal((6, mode.size))
    got = np.array([joint(point)[0] for point in points])
    want = np.array([raw_log_density(joint, x, g, noise, point) for point in points])
    np.testing.assert_allclose(got - got[0], want - want[0], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("varying", [False, True])
def test_the_gradient_is_that_of_the_density_and_vanishes_at_the_mode(trace, varying, rng):
    joint, _ = joint_of(*trace, varying)
    mode, covariance = _mode(joint)
    point = mode + 0.3 * rng.standard_normal(mode.size)
    _, gradient = joint(point)
    for index in range(point.size):
        h = 1e-6 * np.eye(point.size)[index]
        assert gradient[index] == pytest.approx((joint(point + h)[0] - joint(point - h)[0]) / 2e-6, rel=2e-4, abs=2e-3)
    stddev = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(joint(mode)[1] * stddev) < 1e-4)
    for _ in range(20):
        assert joint(mode + 0.5 * stddev * rng.standard_normal(mode.size))[0] < joint(mode)[0]


@pytest.mark.parametrize("extra_noise", [False, True])
def test_an_identified_trace_has_nearly_the_exact_posterior(trace, extra_noise):
    """1000 draws each: means within five errors of both, deviations within 15%."""
    release = oracle.point_release(*trace, NOISE, RATE)
    options = {"burn_in": 0, "hessian": "full", "prior": "weak", "extra_noise": extra_noise, "fallback": False}
    exact = noise_aware_posterior(release, **options)
    laplace = noise_aware_posterior(release, approximation="laplace", **options)
    assert laplace.approximation == "laplace"
    error = 5.0 * np.sqrt(2.0 / 1000.0)
    assert np.all(np.abs(laplace.mean - exact.mean) < (error + 0.1) * exact.stddev)
    np.testing.assert_allclose(laplace.stddev, exact.stddev, rtol=0.15)
    symmetric = 0.5 * (exact.hessian_mean + exact.hessian_mean.T)
    assert np.all(np.abs(laplace.hessian_mean - symmetric) < 0.5 * exact.hessian_stddev)
    assert np.all(np.abs(laplace.hessian_mean - A) < 5.0 * exact.hessian_stddev)
    np.testing.assert_allclose(laplace.decompose().total, laplace.stddev**2, rtol=1e-9)


def test_an_aligned_trace_has_the_precision_of_its_hessian(trace):
    x, g = trace
    release = GradientTrace(
        params=np.zeros((len(x), 6)),
        positions=x,
        noisy_gradients=g,
        noise_stddev=NOISE,
        final_params=np.zeros(6),
        sample_rate=RATE,
        names=("a", "b", "c"),
        gradient="aligned",
    )
    options = {"burn_in": 0, "hessian": "full", "prior": "weak", "fallback": False}
    exact = noise_aware_posterior(release, **options)
    laplace = noise_aware_posterior(release, approximation="laplace", **options)
    np.testing.assert_allclose(laplace.stddev, exact.stddev, rtol=0.1)
    assert laplace.stddev.min() > 0.9 * np.sqrt(np.diag(np.linalg.inv(A)).min())


def test_a_trace_without_a_mode_falls_back_and_a_wrong_prior_is_refused(trace):
    x, g = trace
    release = oracle.point_release(x, g, NOISE, RATE)
    with pytest.raises(ValueError, match="approximation must be 'exact' with hessian='tied'"):
        noise_aware_posterior(release, approximation="laplace", hessian="tied")
    with pytest.raises(ValueError, match="approximation must be 'exact' with hessian='full', or 'laplace' with prior"):
        noise_aware_posterior(release, approximation="laplace", hessian="full", prior="empirical")
    short = oracle.point_release(x[:4], g[:4], NOISE, RATE)
    with pytest.raises(NumericalError, match="needs at least 5 steps"):
        noise_aware_posterior(short, approximation="laplace", hessian="full", burn_in=0, fallback=False)
    with pytest.warns(dpi.errors.FallbackWarning, match="laplace"):
        assert noise_aware_posterior(short, approximation="laplace", hessian="full", burn_in=0).hessian == "diagonal"
