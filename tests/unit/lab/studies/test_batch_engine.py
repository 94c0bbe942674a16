"""The batch engine of the studies and the private run are one mechanism: the same key gives the same trace."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.lab import _native
from dpinfer.mechanism.noise_keys import RandomSource

KEY = bytes(range(7, 39))
N_STEPS, N_ROWS, N_NODES, N_DRAWS = 40, 1500, 24, 5
NORM = 1.3
CONJUGATE = {
    "exponential": dpi.models.GammaExponential(3.0, 2.0),
    "binomial": dpi.models.BetaBinomial(4, 3.0, 5.0),
    "sticks": dpi.models.DirichletCategorical((2.0, 5.0, 1.0, 3.0)),
    "softmax": dpi.models.DirichletCategorical((2.0, 5.0, 3.0), bijector="softmax"),
}
KINDS = {
    "quadrature": {"expectation": "quadrature", "gradient": "reparameterised"},
    "draws": {"expectation": "monte_carlo", "gradient": "reparameterised"},
    "aligned": {"expectation": "quadrature", "gradient": "aligned"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_loss = pytest.mark.parametrize("loss", ["split", "per_example"])


class KnownKey(RandomSource):
    secure = False

    def take_key(self):
        return KEY


@pytest.fixture(scope="module")
def plan():
    return dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.2, n_steps=N_STEPS)


def constant_scaling(model):
    """Different scales and steps for every coordinate, so that no two can be exchanged unseen."""
    n = model.n_params
    beta = np.concatenate((np.linspace(0.5, 1.1, n), np.linspace(15.0, 25.0, n)))
    return beta, 2e-3 * beta * np.linspace(0.8, 1.2, 2 * n)


def batch_settings(model, plan, kind, loss, start):
    beta, rate = constant_scaling(model)
    return {
        "n_steps": N_STEPS,
        "n_records": 1400,
        "sample_rate": plan.sample_rate,
        "noise_multiplier": plan.noise_multiplier,
        "max_grad_norm": NORM,
        "kind": kind,
        "n_draws": N_DRAWS,
        "per_example": loss == "per_example",
        "fisher": False,
        "raw_ratio": 0.4,
        "excursion": 1.0,
        "grad_scale": beta,
        "learning_rate": rate,
        "schedule": np.ones(N_STEPS),
        "start": np.concatenate(start),
    }


def private_run(model, records, plan, kind, loss, start, n_nodes):
    beta, rate = constant_scaling(model)
    return dpi.run_dpvi(
        model,
        *records,
        plan=plan,
        n_records=1400,
        max_grad_norm=NORM,
        grad_scale=beta,
        learning_rate=rate,
        loss=loss,
        n_draws=N_DRAWS,
        n_nodes=n_nodes,
        start=start,
        random_source=KnownKey(),
        n_threads=2,
        **KINDS[kind],
    )


def gauss_hermite(n_nodes):
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return {"nodes": nodes, "weights": weights / np.sqrt(2.0 * np.pi)}


def assert_same_trace(batch, release):
    assert batch["finite"].all()
    trace, final = batch["trace"][0], batch["final_params"][0]
    d, width = release.params.shape[1], release.noisy_gradients.shape[1]
    assert trace.shape == (N_STEPS, d + 2 * width)
    gradients = trace[:, d : d + width]
    np.testing.assert_allclose(trace[:, :d], release.params, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(final, release.final_params, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradients / release.noise_stddev, release.noisy_gradients / release.noise_stddev,
                               rtol=1e-9, atol=1e-9)  # fmt: skip
    np.testing.assert_allclose(
        trace[:, d + width :], np.broadcast_to(release.noise_stddev, gradients.shape), rtol=1e-14
    )
    assert np.ptp(release.params, axis=0).min() > 1e-3  # every coordinate moved


@every_kind
@every_loss
@pytest.mark.parametrize("family", CONJUGATE)
def test_conjugate_traces(plan, family, kind, loss):
    model = CONJUGATE[family]
    n = model.n_params
    rng = np.random.default_rng(4)
    X = model.simulate(model.sample_prior(1, rng)[0], N_ROWS, rng)
    start = (rng.normal(size=n) - 0.2, rng.normal(size=n) - 1.0)
    prior = (model.shape, model.rate) if family == "exponential" else model.prior.concentration
    batch = _native.simulate_conjugate(
        family=family,
        prior=np.array(prior),
        n_trials=float(getattr(model, "n_trials", 1)),
        statistics=model.sufficient_statistics(X)[None],
        counts=np.empty((0, 0), dtype=np.int64),
        settings=batch_settings(model, plan, kind, loss, start),
        boundaries=np.array([0, N_STEPS]),
        keys=[KEY],
        n_threads=1,
        keep_trace=True,
        **gauss_hermite(N_NODES),
    )
    assert_same_trace(batch, private_run(model, (X,), plan, kind, loss, start, N_NODES))


@every_kind
@every_loss
@pytest.mark.parametrize("likelihood", ["gaussian", "logistic"])
def test_glm_traces(plan, likelihood, kind, loss):
    linear = likelihood == "gaussian"
    if linear:
        model = dpi.models.LinearRegression(3, 1.5, True, variance_shape=5.0, variance_rate=2.0)
    else:
        model = dpi.models.LogisticRegression(3, 1.5, True)
    rng = np.random.default_rng(5)
    X = model.simulate_features(N_ROWS, rng)
    y = model.simulate(model.sample_prior(1, rng)[0], X, rng)
    n = model.n_params
    start = (0.5 * rng.normal(size=n), rng.normal(size=n) - 2.0)
    batch = _native.simulate_glm(
        likelihood=likelihood,
        features=X[None],
        response=y[None],
        intercept=True,
        prior_scale=1.5,
        variance_shape=5.0,
        variance_rate=2.0,
        second_moments=np.ones(4),
        settings=batch_settings(model, plan, kind, loss, start),
        boundaries=np.array([0, N_STEPS]),
        keys=[KEY],
        n_threads=1,
        keep_trace=True,
        **gauss_hermite(64),
    )
    assert_same_trace(batch, private_run(model, (X, y), plan, kind, loss, start, 64))
