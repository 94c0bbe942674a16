"""Records of a rare category in a private Newton run: how much they say, and how fast a score moves to their weight."""

import dataclasses

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.mechanism.newton import tuning
from dpinfer.testing import InsecureRNG

N, SHARE = 20_000, 0.02


def records(rng, effect, other):
    X = np.column_stack((rng.normal(size=N), rng.random(N) < SHARE)).astype(float)
    return X, X @ [other, effect]


def run(kind, rng, effect=1.0, other=1.0):
    models = {"linear": dpi.models.LinearRegression, "logistic": dpi.models.LogisticRegression}
    model = models[kind](2, fit_intercept=True, prior_scale=4.0)
    X, predictor = records(rng, effect, other)
    if kind == "linear":
        y, settings = predictor + rng.normal(size=N), {"response_scale": 2.0}
    else:
        y, settings = (rng.random(N) < 1.0 / (1.0 + np.exp(-predictor))).astype(float), {}
    plan = dpi.plan_newton(model, target_epsilon=3.0, target_delta=1e-5, n_records=N)
    return X, dpi.run_newton(model, X, y, plan=plan, n_records=N, random_source=InsecureRNG(3), **settings)


@pytest.mark.parametrize("kind", ["linear", "logistic"])
def test_a_rare_records_score_reaches_half_of_its_bound(kind, rng):
    """Whitened once more, |w z| = B**2 / |z| would be a tenth of it."""
    X, release = run(kind, rng)
    is_linear = kind == "linear"
    transform = release.transforms[-1] if is_linear else release.score_transform
    bound = float(release.moment_bounds[-1]) if is_linear else release.score_radius
    length = np.linalg.norm(np.column_stack((X, np.ones(N)))[X[:, 1] > 0.0] @ transform.T, axis=1)
    assert np.median(np.minimum(1.0, bound**2 / length**2) * length) > 0.5 * bound


def test_clips_come_down_slowly_while_a_run_localises(monkeypatch):
    """The spread of all residuals falls at once; those of rare records may not, and a clip is how far a step may go."""
    _, release = run("linear", np.random.default_rng(5), other=8.0)
    assert np.all(release.clips[1:7] > 0.75 * release.clips[:6])
    monkeypatch.setattr(tuning, "TUNING", dataclasses.replace(tuning.TUNING, clip_decay=0.0))
    _, release = run("linear", np.random.default_rng(5), other=8.0)
    assert np.min(release.clips[1:3] / release.clips[:2]) < 0.3
