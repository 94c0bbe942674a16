"""run_dp_sep: its trace recomputed, its limits without noise, its refusals, and what it does with wild records."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import InsecureReleaseError, RecordError
from dpinfer.mechanism.sites.settings import typical_site_norm
from dpinfer.mechanism.sites.state import floored
from dpinfer.release.sites.trace import smat, svec
from dpinfer.testing import InsecureRNG

MODEL = dpi.models.GaussianMixture(2, 2, covariance=0.25, prior_scale=2.0)
TRUTH = np.array([[-1.0, 0.5], [1.0, -0.5]])


def plan(epsilon=1.0, rate=1.0, steps=10):
    return dpi.plan_privacy(target_epsilon=epsilon, target_delta=1e-5, sample_rate=rate, n_steps=steps)


@pytest.fixture
def points(rng):
    return MODEL.simulate(TRUTH.ravel(), 400, rng)


def run(points, chosen=None, seed=1, **changes):
    arguments = {"n_records": 400, "start": TRUTH, "random_source": InsecureRNG(seed)} | changes
    return dpi.run_dp_sep(MODEL, points, plan=chosen or plan(), **arguments)


@pytest.mark.parametrize("sites", ["centred", "natural"])
@pytest.mark.parametrize("isotropic", [False, True])
def test_the_trace_follows_from_the_released_sums(points, sites, isotropic):
    """Post-processing, recomputed here from the sums alone: the released state holds nothing else of the records."""
    release = run(points, sites=sites, isotropic=isotropic, max_site_norm=4.0, damping=0.4, floor=1.5, block_weight=0.5)
    prior = np.eye(2) / 4.0
    loc, raw = TRUTH.copy(), smat(release.precision[0], 2)
    np.testing.assert_array_equal(raw, MODEL.expected_site_precision(400))
    eta = (raw @ loc[..., None])[..., 0]
    variance = 0.0
    for step in range(release.n_steps):
        np.testing.assert_allclose(release.loc[step], loc, rtol=1e-10)
        np.testing.assert_allclose(release.precision[step], svec(raw), rtol=1e-10)
        assert release.floor[step] == pytest.approx(0.25 + 1.5 * np.sqrt(variance))
        linear = release.noisy_sums[step, :4].reshape(2, 2)
        raw = 0.6 * raw + 0.4 * (prior + smat(release.noisy_sums[step, 4:].reshape(2, 3) / 0.5, 2))
        variance = 0.6**2 * variance + 0.4**2 * (release.noise_stddev / 0.5) ** 2
        used = floored(raw, release.floor[step + 1], isotropic=isotropic)
        if sites == "centred":
            loc = loc + 0.4 * np.linalg.solve(used, (linear - loc / 4.0)[..., None])[..., 0]
        else:
            eta = 0.6 * eta + 0.4 * linear
            loc = np.linalg.solve(used, eta[..., None])[..., 0]
    np.testing.assert_allclose(release.loc[-1], loc, rtol=1e-9)


@pytest.mark.parametrize("sites", ["centred", "natural"])
@pytest.mark.parametrize("kind", ["poisson", "uniform", "permutation"])
def test_without_noise_to_speak_of_it_is_sep(points, sites, kind):
    """The steps' own sampling stays, in smallest posterior sd: 0.03 (poisson), and 1.3 where a step has one record.

    Over 24 data sets no mean's sd was above 0.027 and 1.26, no width's above 0.02: a false alarm has probability 1e-6.
    """
    exact = dpi.run_sep(MODEL, points, start=TRUTH)
    if kind == "poisson":
        chosen, damping = dpi.PrivacyPlan.from_noise_multiplier(1e-2, 1.0, 40, 1e-5), 0.5
    else:
        chosen = dpi.PrivacyPlan.from_noise_multiplier(1e-2, None, 2400, 1e-5, sampling=kind, n_records=400)
        damping = 400.0
    release = run(points, chosen, sites=sites, damping=damping, max_site_norm=200.0, isotropic=False, block_weight=1.0)
    posterior = dpi.noise_aware_posterior(release, approximation="averaged")
    stddev = np.sqrt(np.diagonal(exact.cov, axis1=1, axis2=2)).ravel()
    within = 0.15 if kind == "poisson" else 6.5
    np.testing.assert_allclose(posterior.mean, exact.loc.ravel(), atol=within * stddev.min())
    np.testing.assert_allclose(posterior.stddev, stddev, rtol=0.15)


def test_regressions_recover_the_non_private_posterior(rng):
    X = rng.normal(size=(3000, 3))
    y = (X @ [1.0, -1.0, 0.5] + rng.logistic(size=3000) > 0) * 1.0
    model = dpi.models.LogisticRegression(3)
    exact = dpi.run_sep(model, X, y)
    release = dpi.run_dp_sep(
        model, X, y, plan=plan(20.0, 0.5, 60), n_records=3000, max_site_norm=6.0, random_source=InsecureRNG(2)
    )
    posterior = dpi.noise_aware_posterior(release)
    np.testing.assert_allclose(posterior.mean, exact.loc[0], atol=4.0 * posterior.optimum_stddev.max())
    assert posterior.stddev.max() < 1.5 * np.sqrt(exact.cov[0].diagonal()).max()
    assert posterior.predict_proba(X[:5]).shape == (5, 2)


def test_the_release_does_not_depend_on_threads_or_progress(points):
    calls = []
    first = run(points, plan(rate=0.5), n_threads=1, progress=lambda done, total: calls.append((done, total)))
    for n_threads in (2, 3, 7):
        np.testing.assert_array_equal(run(points, plan(rate=0.5), n_threads=n_threads).noisy_sums, first.noisy_sums)
    assert calls == [(step, 10) for step in range(1, 11)]


def test_releases_say_what_they_are(points):
    release = run(points)
    assert not release.secure
    assert "NOT PRIVATE" in repr(release)
    with pytest.raises(InsecureReleaseError):
        _ = release.epsilon
    secure = run(points, random_source=None)
    assert secure.epsilon <= 1.0
    assert "adding or removing one record" in secure.guarantee
    assert not np.array_equal(secure.noisy_sums, run(points, random_source=None).noisy_sums)


def test_natural_and_centred_sites_cost_the_same(points):
    first, second = run(points, sites="natural", max_site_norm=5.0), run(points, max_site_norm=5.0)
    assert first.noise_stddev == second.noise_stddev
    assert first.event == second.event


def test_the_default_start_is_public_and_differs_between_components(points):
    release = run(points, start=None)
    assert np.linalg.norm(release.loc[0, 0] - release.loc[0, 1]) > 0.1
    np.testing.assert_array_equal(run(points[::-1], start=None).loc[0], release.loc[0])
    assert release.settings["annealing"] == [8.0, 0.6]
    assert run(points).settings["annealing"] is None


def test_annealing_and_trust_radius(points):
    release = run(points, annealing=(4.0, 0.5), trust_radius=0.01)
    assert np.max(np.linalg.norm(np.diff(release.loc, axis=0), axis=-1)) <= 0.01 * (1 + 1e-9)
    assert release.settings["annealing"] == [4.0, 0.5]
    assert dpi.noise_aware_posterior(release).burn_in == 5


def test_empty_components_one_record_and_wild_values():
    """Nothing raises because of a record, and what is used stays positive definite."""
    far = np.array([[-1.0, 0.5], [50.0, 50.0]])
    cases = [np.tile([-1.0, 0.5], (30, 1)), np.array([[0.1, 0.2]]), np.array([[1e300, -1e300], [0.0, 0.0]])]
    for X in cases:
        for sites in ("centred", "natural"):
            release = dpi.run_dp_sep(
                MODEL,
                X,
                plan=plan(),
                n_records=30,
                start=far,
                sites=sites,
                max_site_norm=3.0,
                random_source=InsecureRNG(4),
            )
            assert np.all(np.isfinite(release.loc))
            for method in ("naive", "averaged", "exact"):
                posterior = dpi.noise_aware_posterior(release, approximation=method)
                assert np.all(np.isfinite(posterior.stddev))
                assert np.all(posterior.stddev > 0.0)
    # The raw precision is kept as it is, indefinite where the noise made it so; the one used is projected.
    raw = smat(release.precision[-1], 2)
    assert np.linalg.eigvalsh(raw).min() < release.floor[-1]
    assert np.linalg.eigvalsh(floored(raw, 0.5, isotropic=False)).min() >= 0.5 * (1.0 - 1e-12)


def test_floors_and_projections():
    raw = np.array([[[2.0, 0.0], [0.0, -1.0]], [[3.0, 1.0], [1.0, 3.0]]])
    np.testing.assert_allclose(floored(raw, 0.5, isotropic=False), [[[2.0, 0.0], [0.0, 0.5]], [[3.0, 1.0], [1.0, 3.0]]])
    np.testing.assert_allclose(floored(raw, 0.75, isotropic=True), [0.75 * np.eye(2), 3.0 * np.eye(2)])


def test_norms_from_the_model():
    z = np.random.default_rng(0).normal(size=(200_000, 2))
    expected = np.quantile(np.sqrt(np.sum(z**2, axis=1) / 0.25 + 0.1**2 * 2 / 0.25**2), 0.6)
    assert typical_site_norm(MODEL, 0.1, 0.6) == pytest.approx(expected, rel=0.02)
    # |sigmoid slope| <= 1, curvature <= 1 / 4.
    norm = typical_site_norm(dpi.models.LogisticRegression(1, feature_scale=0.1), 1.0, 0.99)
    assert 0.1 < norm < np.hypot(0.35, 0.35**2 / 4)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"plan": 1.0}, "plan"),
        ({"n_records": 0}, "n_records"),
        ({"n_records": 10.0}, "n_records"),
        ({"damping": 0.0}, "damping"),
        ({"damping": 1.01}, "damping"),
        ({"damping": np.full(9, 0.1)}, "damping"),
        ({"damping": "fast"}, "damping"),
        ({"damping": lambda step: 2.0}, "damping"),
        ({"max_site_norm": 0.0}, "max_site_norm"),
        ({"max_site_norm": "none"}, "max_site_norm"),
        ({"max_site_norm": "auto", "sites": "natural"}, "max_site_norm"),
        ({"sites": "raw"}, "sites"),
        ({"sampling": "uniform"}, "sampling"),
        ({"sampling": "shuffle"}, "sampling"),
        ({"block_weight": 0.0}, "block_weight"),
        ({"isotropic": 1.0}, "isotropic"),
        ({"floor": -1.0}, "floor"),
        ({"trust_radius": 0.0}, "trust_radius"),
        ({"trust_radius": 1.0, "sites": "natural", "max_site_norm": 1.0}, "trust_radius"),
        ({"annealing": 2.0}, "annealing"),
        ({"annealing": "fast"}, "annealing"),
        ({"annealing": (0.5, 0.5)}, "annealing"),
        ({"annealing": (2.0, 1.5)}, "annealing"),
        ({"start": np.zeros(3)}, "start"),
        ({"start": [[np.nan, 0.0], [0.0, 0.0]]}, "start"),
        ({"n_nodes": 0}, "n_nodes"),
        ({"n_threads": 0}, "n_threads"),
        ({"random_source": 3}, "random_source"),
        ({"progress": "yes"}, "progress"),
    ],
)
def test_argument_errors_come_before_anything_is_spent(points, changes, name):
    source = InsecureRNG(1)
    arguments = {"plan": plan(), "n_records": 400, "random_source": source} | changes
    with pytest.raises((TypeError, ValueError), match=name):
        dpi.run_dp_sep(MODEL, points, **arguments)
    assert source.take_key() == InsecureRNG(1).take_key()


@pytest.mark.parametrize("gamma", [0.0, -1.0, 400.1, np.nan])
def test_gamma_lies_between_zero_and_the_number_of_records(points, gamma):
    chosen = dpi.PrivacyPlan.from_noise_multiplier(5.0, None, 10, 1e-5, sampling="uniform", n_records=400)
    with pytest.raises(ValueError, match="damping"):
        run(points, chosen, damping=gamma)
    np.testing.assert_allclose(run(points, chosen, damping=2.0).damping, 2.0 / 400**2)
    np.testing.assert_allclose(run(points, chosen).damping, 1.0 / 400)


def test_a_plan_for_another_number_of_records_is_refused(points):
    chosen = dpi.PrivacyPlan.from_noise_multiplier(5.0, None, 10, 1e-5, sampling="uniform", n_records=399)
    with pytest.raises(ValueError, match="n_records"):
        run(points, chosen)
    with pytest.raises(ValueError, match="X"):
        run(points, chosen, n_records=399)


def test_dpvi_refuses_plans_for_other_samplings(rng):
    chosen = dpi.PrivacyPlan.from_noise_multiplier(5.0, None, 10, 1e-5, sampling="permutation", n_records=5)
    with pytest.raises(ValueError, match="plan"):
        dpi.run_dpvi(
            dpi.models.LogisticRegression(2), np.ones((5, 2)), np.ones(5), plan=chosen, n_records=5, max_grad_norm=1.0
        )


def test_bad_records_are_refused_before_a_key_is_taken(points):
    source = InsecureRNG(1)
    bad = points.copy()
    bad[7, 1] = np.nan
    for X in (bad, points[:, :1], points[0]):
        with pytest.raises(RecordError, match="X") as caught:
            dpi.run_dp_sep(MODEL, X, plan=plan(), n_records=400, random_source=source)
        assert "7" not in str(caught.value)
    assert source.take_key() == InsecureRNG(1).take_key()


@pytest.mark.parametrize("kind", ["ProbitRegression", "LogisticRegression"])
def test_bad_records_of_regressions_are_refused_before_a_key_is_taken(rng, kind):
    model, source = getattr(dpi.models, kind)(2), InsecureRNG(1)
    X, y = rng.normal(size=(60, 2)), (rng.random(60) < 0.5).astype(float)
    bad = X.copy()
    bad[37, 1] = np.nan
    cases = {
        "X": [(bad, y), (X[:, :1], y), (X[0], y)],
        "y": [(X, y + 0.5), (X, y[:-1]), (X, y * np.nan)],
    }
    for name, pairs in cases.items():
        for pair in pairs:
            with pytest.raises(RecordError, match=name) as caught:
                dpi.run_dp_sep(model, *pair, plan=plan(), n_records=60, random_source=source)
            assert "37" not in str(caught.value)
    with pytest.raises(TypeError, match="y must be given"):
        dpi.run_dp_sep(model, X, plan=plan(), n_records=60, random_source=source)
    assert source.take_key() == InsecureRNG(1).take_key()


@pytest.mark.parametrize("kind", ["ProbitRegression", "LogisticRegression"])
def test_one_record_of_a_regression_and_records_without_moments(kind):
    model = getattr(dpi.models, kind)(2)
    for X in (np.array([[0.3, -0.2]]), np.array([[1e300, 1e300], [0.1, 0.2]])):
        release = dpi.run_dp_sep(model, X, np.ones(len(X)), plan=plan(), n_records=len(X), random_source=InsecureRNG(2))
        posterior = dpi.noise_aware_posterior(release)
        assert np.all(np.isfinite(posterior.mean))
        assert np.all(posterior.stddev > 0.0)
