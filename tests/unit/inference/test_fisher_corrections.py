"""The posterior of a Fisher-scaled trace is corrected for clipping, whose effect is known in closed form here."""

import numpy as np
import pytest
from scipy import integrate
from tests.reference.fisher_runs import fisher_run, traced

import dpinfer as dpi
from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.trace.scales.tied import fisher_tied_nodes
from dpinfer.models.base import sigmoid, softplus, softplus_inverse
from dpinfer.release import GradientTrace

RATE = 0.1
MANY = 100_000
NORM, RAW_RATIO, NOISE = 2.0, 0.2, 1.0


def clipped_moments(a):
    """E[v - clip(v)] of v = (e - 1, rho (1 + a (e - 1))), e ~ Exp(1): the gradients of a waiting time at its rate."""

    def parts(e):
        v = np.array([e - 1.0, RAW_RATIO * (1.0 + a * (e - 1.0))])
        return v * (1.0 - min(1.0, NORM / np.hypot(*v)))

    kink = NORM + 0.9
    return [
        sum(integrate.quad(lambda e: np.exp(-e) * parts(e)[i], *ends, limit=200)[0] for ends in ((0, kink), (kink, 60)))  # noqa: B023
        for i in range(2)
    ]


@pytest.fixture(scope="module")
def clipped_trace():
    """A trace drawn from the model of the posterior, with the closed-form effects of clipping at a small norm.

    The iterates hardly move and the scale is at its optimum, so that the bend of the loss does not matter.
    """
    rng = np.random.default_rng(11)
    model = dpi.models.GammaExponential()
    optimum, steps = 0.4, 4000
    rate, slope = float(softplus(optimum)), float(sigmoid(optimum))
    information = (slope / rate) ** 2
    a = rate * (1.0 - slope) / slope
    bias = clipped_moments(a)
    tail = np.exp(-(NORM + 1.0))
    # rho = 0.2 moves the slope by little; a slope matters only in the second order here.
    factor = 1.0 - (NORM + 2.0) * tail - (1.0 - a) * tail
    loc = optimum + bias[0] / factor / np.sqrt(information) + 0.003 * rng.standard_normal(steps)
    here = np.ravel(model.information(loc[:, None]))
    scale = (MANY * information) ** -0.5
    raw = float(softplus_inverse(scale)) + 0.05 * rng.standard_normal(steps)
    s, ds = softplus(raw), sigmoid(raw)
    beta = np.column_stack((here**-0.5, RAW_RATIO / (s * ds * here)))
    noise = NOISE * NORM / beta
    clean = np.column_stack(
        (
            here * RATE * MANY * (factor * (loc - optimum) - bias[0] / np.sqrt(information)),
            RATE * ds * (MANY * here * s - 1.0 / s) - RATE * MANY * bias[1] / beta[:, 1],
        )
    )
    release = GradientTrace(
        params=np.column_stack((loc, raw)),
        positions=np.column_stack((loc, raw)),
        noisy_gradients=clean + noise * rng.standard_normal((steps, 2)),
        noise_stddev=noise,
        final_params=np.array([loc[-1], raw[-1]]),
        sample_rate=RATE,
        names=("rate",),
        n_records=MANY,
        grad_scale=beta,
        max_grad_norm=NORM,
        noise_multiplier=NOISE,
        model_spec=model.to_dict(),
        settings={"scaling": "fisher", "raw_ratio": RAW_RATIO, "tolerance": 0.2},
    )
    return release, optimum, MANY * information, bias[0] / np.sqrt(information)


def test_corrections_remove_a_known_clipping_bias(clipped_trace):
    release, optimum, hessian, shift = clipped_trace
    trace = traced(release, 0)
    run = fisher_run(release)
    means, spreads, hessians = [], [], []
    for correct in (True, False):
        nodes = fisher_tied_nodes(trace, run, ("rate",), correct=correct)
        mean, variance = nodes.moments(nodes.mean, nodes.variance)
        means.append(mean[0])
        spreads.append(np.sqrt(variance[0] + 1.0 / hessian))
        hessians.append(nodes.expectation(nodes.hessian)[0])
    assert abs(means[0] - optimum) < 0.05 * shift
    assert abs(means[0] - optimum) < 1.5 * spreads[0]
    assert hessians[0] == pytest.approx(hessian, rel=0.02)
    # Power: what is not corrected shows.
    assert abs(means[1] - optimum) > 0.8 * shift
    assert abs(means[1] - optimum) > 8.0 * spreads[1]
    assert abs(hessians[1] / hessian - 1.0) > 0.05


def test_the_posterior_of_a_release_is_the_corrected_one(clipped_trace):
    release, optimum, hessian, _ = clipped_trace
    posterior = noise_aware_posterior(release, burn_in=0)
    nodes = fisher_tied_nodes(traced(release, 0), fisher_run(release), ("rate",))
    mean, variance = nodes.moments(nodes.mean, nodes.variance)
    assert posterior.hessian == "tied"
    assert posterior.optimum_mean[0] == pytest.approx(mean[0], rel=1e-12)
    assert posterior.optimum_stddev[0] == pytest.approx(np.sqrt(variance[0]), rel=1e-12)
    total = variance[0] + nodes.expectation(1.0 / nodes.hessian)[0]
    assert posterior.distribution.marginals.variance[0] == pytest.approx(total, rel=1e-9)
    assert 0.9 < posterior.hessian_mean[0] / hessian < 1.1
    assert posterior.diagnostics.expected_clipped_share == pytest.approx(np.exp(-3.0), rel=0.05)
    assert abs(posterior.mean[0] - softplus(optimum)) < 2.0 * posterior.stddev[0]
