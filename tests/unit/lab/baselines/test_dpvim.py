"""DPVIm is aligned DPVI with averaged iterates, and the spread of the iterates added to q."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.lab.baselines import run_dpvim
from dpinfer.testing import InsecureRNG


def test_it_is_aligned_dpvi_and_the_average_of_the_iterates(rng):
    X = rng.normal(size=(2000, 2))
    y = (rng.random(2000) < 1 / (1 + np.exp(-X @ [1.0, -1.0]))).astype(float)
    model = dpi.models.LogisticRegression(2)
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=400)
    common = {"plan": plan, "n_records": 2000, "max_grad_norm": 2.0}
    release, posterior = run_dpvim(model, X, y, burn_in=0.5, random_source=InsecureRNG(1), **common)
    plain = dpi.run_dpvi(model, X, y, gradient="aligned", random_source=InsecureRNG(1), **common)
    np.testing.assert_array_equal(release.noisy_gradients, plain.noisy_gradients)
    assert release.noisy_gradients.shape == (400, 2)
    np.testing.assert_allclose(posterior.optimum_mean, release.params[200:].mean(axis=0))
    assert posterior.mean[0] > 0.3 > -0.3 > posterior.mean[1]
    assert "NOT PRIVATE" in release.guarantee
    _, plain = run_dpvim(model, X, y, burn_in=0.5, noise_aware=False, random_source=InsecureRNG(1), **common)
    np.testing.assert_array_equal(plain.mean, posterior.mean)
    spread = release.params[200:, :2].var(axis=0)
    np.testing.assert_allclose(np.diag(posterior.cov - plain.cov), spread, rtol=1e-9)
    assert np.all(plain.optimum_stddev == 0.0)
    np.testing.assert_allclose(posterior.optimum_stddev[:2], np.sqrt(spread))
    draws = posterior.sample(20_000, seed=4)
    np.testing.assert_allclose(draws.var(axis=0), np.diag(posterior.cov), rtol=0.06)


@pytest.mark.parametrize("burn_in", ["late", -1, 1.5, 19])
def test_a_burn_in_that_no_posterior_has_is_refused_before_anything_is_spent(burn_in, rng, tmp_path):
    X = rng.normal(size=(60, 2))
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-3, sample_rate=0.2, n_steps=20)
    account = dpi.PrivacyLedger.create(tmp_path / "own.ledger").add_dataset("people", budget=(2.0, 1e-2))
    with pytest.raises(ValueError, match="burn_in must"):
        run_dpvim(
            dpi.models.LogisticRegression(2), X, (X[:, 0] > 0).astype(float), plan=plan, n_records=60,
            max_grad_norm=2.0, burn_in=burn_in, ledger=account,
        )  # fmt: skip
    assert not account.runs()
