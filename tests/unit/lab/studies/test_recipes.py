"""The named studies: one of their runs is one private run, whatever the chunk; settings, recipes, failures."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.errors import NumericalError
from dpinfer.inference import noise_aware_posterior
from dpinfer.lab.studies import posteriors, recipes
from dpinfer.lab.studies.random_streams import run_generator
from dpinfer.lab.studies.simulation import simulate_data, simulate_releases
from dpinfer.lab.studies.study import STUDY_NAMES
from dpinfer.mechanism.noise_keys import RandomSource

SEED = 5
KEYS = 1  # the stream of the runs' 32-byte keys
SMALL = {"n_steps": 200, "n_records": 300, "n_draws": 20}
FIELDS = ("truth", "draws", "centre", "scale", "pit", "width90", "reference_width90", "failed")


class KnownKey(RandomSource):
    secure = False

    def __init__(self, key):
        self.key = key

    def take_key(self):
        return self.key


def chunk(name, first=0, count=6, *, method="exact", epsilon=1.0, seed=SEED, **settings):
    study = recipes.find(name)
    return study.run_chunk(first, count, method=method, epsilon=epsilon, seed=seed, settings=SMALL | settings)


def records_of(model, data, row):
    """The records of one run as `run_dpvi` takes them."""
    if isinstance(model, dpi.models.LinearRegression):
        return data.features[row], data.response[row]
    if data.counts.size:
        return (np.repeat(np.arange(data.counts.shape[1], dtype=float), data.counts[row]),)
    return (data.statistics[row, :, 0],)


def private_posterior(name, run, *, n_records, n_steps, n_nodes, epsilon=1.0, gradient=None):
    study = recipes.find(name)
    data = simulate_data(study.model, n_records, first=run, count=1, seed=SEED)
    records = records_of(study.model, data, 0)
    assert len(records[0]) == n_records
    plan = dpi.plan_privacy(target_epsilon=epsilon, target_delta=1e-5, sample_rate=0.1, n_steps=n_steps)
    release = dpi.run_dpvi(
        study.model,
        *records,
        plan=plan,
        n_records=n_records,
        recipe="tied",
        gradient=gradient,
        n_nodes=n_nodes,
        random_source=KnownKey(run_generator(SEED, KEYS, run).bytes(32)),
    )
    return noise_aware_posterior(release), release, plan


# 100 steps: as many as there are blocks of statistics, so that nothing is averaged within a block, and 35 (the burn-in)
# and 6 (the whole trace) are block boundaries.  The engine has 16 Gauss-Hermite nodes, so the private run gets as many.
# Bernoulli and categorical records are drawn by their counts in the engine: another trace of the same law.
@pytest.mark.parametrize("name", ["gamma-exponential", "linear-regression"])
@pytest.mark.parametrize("recipe", ["tied", "aligned"])
def test_a_run_of_the_study_is_a_private_run(name, recipe):
    n_records, n_steps, run = 1500, 100, 3
    got = chunk(name, run, 1, n_records=n_records, n_steps=n_steps, recipe=recipe)
    gradient = "aligned" if recipe == "aligned" else None
    posterior, release, _ = private_posterior(
        name, run, n_records=n_records, n_steps=n_steps, n_nodes=16, gradient=gradient
    )
    assert release.noisy_gradients.shape[1] == (1 if recipe == "aligned" else 2) * got.truth.shape[1]
    marginals = posterior.distribution.marginals
    np.testing.assert_allclose(got.centre[0], marginals.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(got.scale[0], np.sqrt(marginals.variance), rtol=1e-6)
    np.testing.assert_allclose(got.pit[0], [marginals.cdf(j, got.truth[0, j]) for j in range(len(got.truth[0]))],
                               rtol=1e-5, atol=1e-8)  # fmt: skip
    low, high = marginals.quantile(np.array([0.05, 0.95]))
    np.testing.assert_allclose(got.width90[0], high - low, rtol=1e-6)


def test_default_nodes_and_longer_blocks_change_a_posterior_by_less_than_it_can_be_known():
    """Defaults: 10 nodes instead of 16, and blocks of 5 steps, whose mean raw scale stands for the steps'."""
    got = chunk("gamma-exponential", 3, 1, n_records=1500, n_steps=500)
    posterior, _, _ = private_posterior("gamma-exponential", 3, n_records=1500, n_steps=500, n_nodes=10)
    marginals = posterior.distribution.marginals
    assert got.centre[0, 0] == pytest.approx(marginals.mean[0], abs=1e-3 * np.sqrt(marginals.variance[0]))
    assert got.scale[0, 0] == pytest.approx(np.sqrt(marginals.variance[0]), rel=1e-3)


def test_another_key_is_another_posterior():
    """The power twin: run 4 of the study is not the private run with the key of run 3."""
    got = chunk("gamma-exponential", 4, 1, n_records=1500, n_steps=100)
    posterior, _, _ = private_posterior("gamma-exponential", 3, n_records=1500, n_steps=100, n_nodes=16)
    assert abs(got.centre[0, 0] - posterior.distribution.marginals.mean[0]) > 1e-3


def test_settings_of_the_study_are_those_of_the_private_run():
    study = recipes.find("gamma-exponential")
    settings, fisher = study._settings(study.model, "tied", 1.0, 1500, {"n_steps": 100})
    _, release, plan = private_posterior("gamma-exponential", 3, n_records=1500, n_steps=100, n_nodes=16)
    assert settings.max_grad_norm == release.max_grad_norm == study.default_max_grad_norm()
    assert settings.noise_multiplier == pytest.approx(plan.noise_multiplier, rel=1e-12)
    np.testing.assert_array_equal(settings.start, release.params[0])
    assert fisher.raw_ratio == release.settings["raw_ratio"]
    assert fisher.tolerance == release.settings["tolerance"]
    n = 1
    loc, rate = release.params[:, :n], np.asarray(release.learning_rate)[:, :n]
    scale = np.logaddexp(0.0, release.params[:, n:])
    want = settings.schedule[:, None] / (0.1 * 1500 * study.model.information(loc, scale))
    np.testing.assert_allclose(rate, want, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "method"),
    [*[(name, "naive") for name in STUDY_NAMES], *[(name, "exact") for name in STUDY_NAMES[:-1]]],
)
def test_a_run_does_not_depend_on_its_chunk(name, method):
    whole = chunk(name, 0, 5, method=method, n_threads=2)
    for first, count in ((0, 2), (2, 3), (4, 1)):
        part = chunk(name, first, count, method=method, n_threads=1)
        for field in FIELDS:
            want, got = getattr(whole, field), getattr(part, field)
            rows = want[:, first : first + count] if field == "draws" else want[first : first + count]
            np.testing.assert_array_equal(got, rows, err_msg=field)
    assert np.unique(whole.truth[:, 0]).size == 5
    assert not np.array_equal(whole.truth, chunk(name, 0, 5, method=method, seed=SEED + 1).truth)


def test_records_of_a_run_do_not_depend_on_the_chunk():
    for name in STUDY_NAMES:
        model = recipes.find(name).model
        whole = simulate_data(model, 50, first=0, count=4, seed=1)
        part = simulate_data(model, 50, first=2, count=2, seed=1)
        np.testing.assert_array_equal(part.truth, whole.truth[2:])
        np.testing.assert_array_equal(part.counts, whole.counts[2:])
        np.testing.assert_array_equal(part.features, whole.features[2:])
        np.testing.assert_array_equal(part.response, whole.response[2:])
        if whole.statistics.ndim == 3:
            np.testing.assert_array_equal(part.statistics, whole.statistics[2:])
        np.testing.assert_array_equal(part.reference_width90, whole.reference_width90[2:])


def test_take_gives_one_run():
    study = recipes.find("gamma-exponential")
    settings, _ = study._settings(study.model, "tied", 1.0, 300, {"n_steps": 200})
    data = simulate_data(study.model, 300, first=0, count=3, seed=SEED)
    releases = simulate_releases(study.model, data, settings, first=0, seed=SEED, n_threads=1)
    whole, own = releases.tied_trace(0.35), releases.take(1).tied_trace(0.35)
    assert own.statistics.count == whole.statistics.count == 130
    for field in ("weight", "position_mean", "gradient_mean", "xx", "xg", "gg", "reference_stddev"):
        assert getattr(own.statistics, field)[0] == getattr(whole.statistics, field)[1]
    assert own.side.product[0] == whole.side.product[1]
    assert own.scale_square[0] == whole.scale_square[1]


COMBINATIONS = [
    *[(name, method, "tied") for name in STUDY_NAMES for method in ("exact", "naive", "averaged")],
    *[(name, "exact", "aligned") for name in ("dirichlet-categorical", "linear-regression")],
    *[
        (name, method, recipe)
        for name in STUDY_NAMES
        for recipe in ("plain", "paper")
        for method in ("exact", "laplace", "naive", "averaged")
    ],
    *[(name, method, "dpvim") for name in STUDY_NAMES for method in ("naive", "averaged", "dpvim")],
]


@pytest.mark.parametrize(("name", "method", "recipe"), COMBINATIONS)
def test_every_method_runs_with_every_recipe(name, method, recipe):
    """Too few steps to be any good: a scale may underflow in what ignores the noise."""
    # The diagonal posteriors of 24 hardly moving coordinates are slow.
    runs, epsilon = (2, 1.0) if name == "linear-regression" and recipe in ("plain", "paper") else (6, 1.0)
    got = chunk(name, 0, runs, method=method, recipe=recipe, epsilon=epsilon)
    n = len(recipes.find(name).parameters)
    ok = ~got.failed
    plug_in = method in ("naive", "averaged", "dpvim")
    assert got.truth.shape == (runs, n)
    assert got.draws.shape == (20, runs, n)
    assert ok.all()
    for field in ("centre", "scale", "pit", "width90"):
        assert np.all(np.isfinite(getattr(got, field)[ok])), field
        assert np.all(np.isnan(getattr(got, field)[~ok])), field
    assert np.all(np.isfinite(got.draws[:, ok]))
    assert np.all((got.pit[ok] >= 0.0) & (got.pit[ok] <= 1.0))
    if not plug_in:
        assert np.all(got.scale[ok] > 0.0)
        assert np.all(got.width90[ok] > 0.0)
    known = name != "logistic-regression"
    assert np.all(np.isfinite(got.reference_width90)) == known


def test_dpvim_adds_the_variance_of_the_iterates_to_that_of_the_average():
    study = recipes.find("dirichlet-categorical")
    model = study.published_model
    settings = study._settings(model, "dpvim", 1.0, 300, {"n_steps": 100})[0]
    data = simulate_data(model, 300, first=0, count=3, seed=SEED)
    path = simulate_releases(model, data, settings, first=0, seed=SEED, n_threads=1).path[:, 50:]
    changes = {"n_steps": 100, "n_records": 300, "recipe": "dpvim", "n_draws": 20}
    got = {
        method: study.run_chunk(0, 3, method=method, epsilon=1.0, seed=SEED, settings=changes)
        for method in ("averaged", "dpvim")
    }
    np.testing.assert_array_equal(got["dpvim"].centre, got["averaged"].centre)
    added = got["dpvim"].scale ** 2 - got["averaged"].scale ** 2
    np.testing.assert_allclose(added, path[:, :, :2].var(axis=1), rtol=1e-9)


@pytest.mark.parametrize("name", STUDY_NAMES)
def test_baselines_run_where_they_belong(name):
    short = {"n_burn_in": 20, "n_samples": 50, "n_draws": 20}
    conjugate = name not in ("linear-regression", "logistic-regression")
    for method, fits in (("bernstein-sheldon", conjugate), ("gibbs-ss-noisy", name == "linear-regression")):
        study = recipes.find(name)
        arguments = {"method": method, "epsilon": 1.0, "seed": SEED, "settings": {"n_records": 100} | short}
        if fits:
            got = study.run_chunk(0, 2, **arguments)
            assert got.draws.shape == (20, 2, got.truth.shape[1])
            assert np.all(np.isfinite(got.centre[~got.failed]))
        else:
            with pytest.raises(ValueError, match=f"method '{method}' must be used with"):
                study.run_chunk(0, 2, **arguments)


def test_default_recipes():
    for name in ("gamma-exponential", "logistic-regression"):
        default = "plain" if name == "logistic-regression" else "tied"
        want = chunk(name, method="naive", recipe=default).centre
        np.testing.assert_array_equal(chunk(name, method="naive").centre, want)
        np.testing.assert_array_equal(chunk(name, method="naive", recipe=None).centre, want)
        other = "tied" if default == "plain" else "plain"
        assert not np.array_equal(chunk(name, method="naive", recipe=other).centre, want)


def test_the_paper_recipe_is_the_paper():
    study = recipes.find("linear-regression")
    settings, fisher = study._settings(study.published_model, "paper", 1.0, 300, {"n_steps": 200})
    assert fisher is None
    assert settings.per_example
    assert settings.kind == "draws"
    np.testing.assert_array_equal(settings.grad_scale, np.repeat([1.0, 1500.0], 12))
    np.testing.assert_array_equal(settings.start, [*[1.0] * 11, -4.0, *[-6.0] * 12])
    assert settings.max_grad_norm == 260.0
    # NA-DPVI, A55, with a factor v for each coordinate: v beta / (sigma C sqrt(T d)), d = 24.
    factors = np.array([4.0 * 2.0**0.5] * 11 + [4.0 * 2.0**0.5 / 28.0] + [4.0 * 2.0**0.5] * 12)
    want = factors * settings.grad_scale / (settings.noise_multiplier * 260.0 * np.sqrt(200 * 24))
    np.testing.assert_allclose(settings.learning_rate, want, rtol=1e-12)
    plain, _ = study._settings(study.published_model, "plain", 1.0, 300, {"n_steps": 200})
    assert not plain.per_example
    assert plain.kind == "quadrature"


def test_laplace_is_near_the_exact_posterior_and_not_the_same():
    settings = {"recipe": "plain", "n_steps": 2000, "n_records": 2000, "epsilon": 3.0}
    exact, laplace = (chunk("beta-bernoulli", method=method, **settings) for method in ("exact", "laplace"))
    np.testing.assert_array_equal(exact.truth, laplace.truth)
    assert np.median(np.abs(exact.centre - laplace.centre) / exact.scale) < 0.3
    assert np.all(exact.scale != laplace.scale)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"clip": 3.0}, TypeError, r"settings must be among .* got \['clip'\]"),
        ({"method": "emcee"}, ValueError, "method"),
        ({"recipe": "own"}, ValueError, "recipe"),
        ({"method": "laplace"}, ValueError, "method 'laplace' must be used with recipe"),
        ({"method": "exact", "recipe": "dpvim"}, ValueError, "recipe 'dpvim' must be used with"),
        ({"method": "dpvim", "recipe": "paper"}, ValueError, "method 'dpvim' must be used with recipe 'dpvim'"),
        ({"burn_in": 1.0}, ValueError, "burn_in"),
        ({"burn_in": 1.0, "method": "averaged"}, ValueError, "burn_in"),
        ({"sample_rate": 0.0}, ValueError, "sample_rate"),
        ({"n_steps": 1}, ValueError, "n_steps"),
        ({"n_records": 0}, ValueError, "n_records"),
        ({"max_grad_norm": -1.0}, ValueError, "max_grad_norm"),
        ({"raw_ratio": 0.0}, ValueError, "raw_ratio"),
        ({"tolerance": -1.0}, ValueError, "tolerance"),
    ],
)
def test_wrong_settings_are_refused(changes, error, match):
    with pytest.raises(error, match=match):
        chunk("gamma-exponential", **changes)


def test_unknown_studies_are_refused():
    with pytest.raises(ValueError, match="study"):
        recipes.find("gamma")


@pytest.mark.parametrize("option", [{"correct": False}, {"extra_noise": False}, {"max_grad_norm": 2.0},
                                    {"raw_ratio": 0.6}, {"tolerance": 0.05}, {"burn_in": 0.6},
                                    {"sample_rate": 0.2}])  # fmt: skip
def test_every_setting_matters(option):
    assert not np.array_equal(chunk("gamma-exponential").scale, chunk("gamma-exponential", **option).scale)


def test_failing_runs_are_counted(monkeypatch):
    """Where the posterior of one run fails, its own row is empty and every other row is as before."""
    want = chunk("gamma-exponential", 0, 4)
    solve = posteriors.fisher_tied_nodes
    victim = want.truth[2]
    positions = []

    def failing(trace, *arguments, **options):
        positions.append(trace.statistics.position_mean)
        if np.any(trace.statistics.position_mean == victim_position):
            raise NumericalError("the quadrature did not converge")
        return solve(trace, *arguments, **options)

    victim_position = np.inf  # nobody's
    monkeypatch.setattr(posteriors, "fisher_tied_nodes", failing)
    chunk("gamma-exponential", 0, 4)
    victim_position = positions[0][2]
    got = chunk("gamma-exponential", 0, 4)
    np.testing.assert_array_equal(got.failed, [False, False, True, False])
    np.testing.assert_array_equal(got.truth[2], victim)
    for field in ("centre", "scale", "pit", "width90"):
        assert np.all(np.isnan(getattr(got, field)[2]))
        np.testing.assert_array_equal(np.delete(getattr(got, field), 2, axis=0), np.delete(getattr(want, field), 2, 0))
    assert np.all(np.isnan(got.draws[:, 2]))
    result = dpi.coverage_study("gamma-exponential", n_runs=4, epsilon=1.0, seed=SEED, **SMALL)
    assert result.n_failed == 1
    assert result.sbc.n_sims == 3
    assert "WITHOUT A POSTERIOR: 1" in repr(result)


def test_other_errors_are_not_counted_as_failures(monkeypatch):
    def broken(*arguments, **options):
        raise ValueError("a mistake in the code")

    monkeypatch.setattr(posteriors, "fisher_tied_nodes", broken)
    with pytest.raises(ValueError, match="a mistake"):
        chunk("gamma-exponential")
