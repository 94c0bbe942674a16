"""DPVI with a full-rank guide: what a release holds, how it moves, what it finds, what is refused."""

import numpy as np
import pytest
from scipy import special
from tests.reference.own_models import zero_inflated

import dpinfer as dpi
from dpinfer.mechanism import FisherScaling
from dpinfer.recipes.full_rank import moved_guide, pack_guide, simulated_start, unpack_guide
from dpinfer.release import load_release, release_from_arrays, save_release
from dpinfer.testing import InsecureRNG

PLAN = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.3, n_steps=25)
QUIET = dpi.PrivacyPlan.from_noise_multiplier(0.05, 1.0, 300, 1e-5)


@pytest.fixture
def records(rng):
    X = rng.normal(size=(400, 2)) @ np.array([[1.0, 0.0], [0.9, 0.3]]).T
    return X, (rng.random(400) < special.expit(X @ [1.0, -0.5])).astype(float)


def run(records, **options):
    given = {
        "plan": PLAN,
        "n_records": 400,
        "max_grad_norm": 2.0,
        "random_source": InsecureRNG(1),
        "guide": "full_rank",
    }
    return dpi.run_dpvi(dpi.models.LogisticRegression(2), *records, **given | options)


def test_the_release_holds_a_triangle_and_moves_by_what_it_holds(records, tmp_path):
    release = run(records, start=(0.1, 0.2))
    assert (release.family, release.gradient, release.params.shape) == ("full_rank", "aligned", (25, 5))
    assert release.settings["guide"] == "full_rank"
    after = np.vstack((release.params[1:], release.final_params))
    for step in range(25):
        loc, factor = unpack_guide(release.params[step], 2)
        eta = np.linalg.solve(factor, release.positions[step] - loc)
        gradient, noise = release.noisy_gradients[step] / 0.3, release.noise_stddev / 0.3
        np.testing.assert_allclose(
            after[step], moved_guide(release.params[step], eta, gradient, noise, 25), rtol=1e-9, atol=1e-12
        )
    assert np.any(release.final_params[[3]] != 0.0)
    save_release(release, tmp_path / "full.npz")
    np.testing.assert_array_equal(load_release(tmp_path / "full.npz").params, release.params)


def test_it_finds_the_correlations_that_a_diagonal_guide_leaves_out(records):
    """With hardly any noise: against the normal approximation at the mode."""
    X, y = records
    theta = np.zeros(2)
    for _ in range(20):
        p = special.expit(X @ theta)
        precision = X.T @ (X * (p * (1.0 - p))[:, None]) + np.eye(2)
        theta = theta + np.linalg.solve(precision, X.T @ (y - p) - theta)
    covariance = np.linalg.inv(precision)
    expected = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert expected < -0.8
    given = {"plan": QUIET, "max_grad_norm": 10.0, "start": (0.0, np.log(np.expm1(0.3)))}
    release = run(records, **given)
    for method in ("naive", "averaged", "exact"):
        posterior = dpi.noise_aware_posterior(release, approximation=method)
        found = posterior.cov
        np.testing.assert_allclose(posterior.mean, theta, atol=0.5 * np.sqrt(covariance[0, 0]))
        np.testing.assert_allclose(np.sqrt(np.diag(found)), np.sqrt(np.diag(covariance)), rtol=0.35)
        assert found[0, 1] / np.sqrt(found[0, 0] * found[1, 1]) == pytest.approx(expected, abs=0.12)
    assert dpi.noise_aware_posterior(release).hessian == "full"
    # The power twin: q with a diagonal covariance has none.
    other = run(records, **given | {"guide": "diagonal", "gradient": "aligned", "recipe": "plain"})
    found = dpi.noise_aware_posterior(other, approximation="naive").cov
    assert found[0, 1] == 0.0


def test_a_step_is_the_natural_gradient_of_the_evidence_bound(rng):
    """Of a normal log density: its expectation is minus the distance to the optimum, and leaves the optimum alone."""
    root = np.array([[1.3, 0.0, 0.0], [0.4, 0.7, 0.0], [-0.2, 0.3, 1.1]])
    optimum, mode = np.linalg.inv(root @ root.T), np.array([0.3, -0.2, 0.1])
    best = pack_guide(mode, np.linalg.cholesky(optimum))
    start = pack_guide(mode + 0.05, np.linalg.cholesky(optimum) @ np.diag([1.02, 0.97, 1.01]))
    moved = {"at": [], "from": []}
    for draw in rng.standard_normal((4000, 3)):
        for name, params in (("at", best), ("from", start)):
            loc, factor = unpack_guide(params, 3)
            gradient = root @ root.T @ (loc + factor @ draw - mode)
            moved[name].append(moved_guide(params, draw, gradient, np.full(3, 1e-3), 1000) - params)
    error = np.std(moved["at"], axis=0) / np.sqrt(4000)
    assert np.all(np.abs(np.mean(moved["at"], axis=0)) < 4.5 * error)  # probability below 1e-4
    towards = (best - start) @ np.mean(moved["from"], axis=0)
    assert towards > 4.5 * np.std((best - start) @ np.transpose(moved["from"])) / np.sqrt(4000)


def test_a_model_with_a_sampler_needs_no_settings(tmp_path):
    model = zero_inflated().model
    rng = np.random.default_rng(1)
    X, y = model.made_up_records(500, rng)
    public = {"plan": PLAN, "n_records": 500, "random_source": InsecureRNG(2)}
    release = dpi.run_dpvi(model, X, y, guide="full_rank", **public)
    simulated = simulated_start(model, 500)
    assert release.max_grad_norm == simulated.max_grad_norm
    np.testing.assert_array_equal(release.params[0], simulated.params)
    posterior = dpi.noise_aware_posterior(release, approximation="averaged")
    assert np.all(np.isfinite(posterior.interval()))
    resumed = tmp_path / "run.ckpt"

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(done, total):
        if done == 11:
            raise Stopped

    public["random_source"] = InsecureRNG(2)
    checkpoint = dpi.mechanism.RunCheckpoint(resumed, interval=0.0)
    with pytest.raises(Stopped):
        dpi.run_dpvi(model, X, y, guide="full_rank", checkpoint=checkpoint, progress=stop, **public)
    again = dpi.run_dpvi(model, X, y, guide="full_rank", checkpoint=checkpoint, **public)
    np.testing.assert_array_equal(again.params, release.params)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guide": "lower"}, "guide"),
        ({"guide": "full_rank", "gradient": "reparameterised"}, "gradient must be 'aligned'"),
        ({"guide": "full_rank", "recipe": "tied"}, "recipe must be 'plain'"),
        ({"guide": "full_rank", "loss": "per_example"}, "loss must be 'split'"),
        ({"guide": "full_rank", "learning_rate": 0.1}, "learning_rate"),
        ({"guide": "full_rank", "grad_scale": lambda step, params: 1.0}, "grad_scale"),
        ({"guide": "full_rank", "grad_scale": FisherScaling(dpi.models.GammaExponential(), 9, 1.0, 9)}, "grad_scale"),
        ({"guide": "full_rank", "max_grad_norm": "auto"}, "max_grad_norm must be a number"),
        ({"guide": "full_rank", "start": (np.zeros(3), 0.0)}, "start"),
    ],
)
def test_what_does_not_fit_is_refused(records, options, message):
    with pytest.raises(ValueError, match=message):
        run(records, **options)


def test_releases_of_a_full_rank_guide_are_checked(records):
    with pytest.raises(ValueError, match="family"):
        release_from_arrays(np.zeros((3, 5)), np.zeros((3, 5)), noise_stddev=1.0, sample_rate=0.5, family="full_rank")
    model = zero_inflated().model
    with pytest.raises(ValueError, match="grad_scale is given"):
        dpi.run_dpvi(
            model,
            *model.made_up_records(20, np.random.default_rng(1)),
            plan=PLAN,
            n_records=20,
            guide="full_rank",
            grad_scale=1.0,
        )
