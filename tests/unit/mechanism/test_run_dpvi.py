"""The public run: what a release holds, how it was computed, and what is refused."""

import copy
import pickle

import numpy as np
import pytest
from scipy import special
from tests.reference import dpvi_gradients as oracle

import dpinfer as dpi
from dpinfer.errors import InsecureReleaseError, RecordError
from dpinfer.mechanism import FisherScaling, OSRandomSource, _native, steady_rate
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.models.base import softplus
from dpinfer.testing import InsecureRNG

SECRET = 8675309.25


@pytest.fixture(scope="module")
def plan():
    return dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.3, n_steps=25)


@pytest.fixture
def records(rng):
    X = rng.normal(size=(400, 3))
    y = (rng.random(400) < special.expit(X @ [1.0, -2.0, 0.5])).astype(float)
    return X, y


def run(plan, records, **options):
    defaults = {
        "plan": plan,
        "n_records": 400,
        "max_grad_norm": 2.0,
        "random_source": InsecureRNG(1),
    }
    model = options.pop("model", dpi.models.LogisticRegression(3, fit_intercept=True))
    return dpi.run_dpvi(model, *records, **(defaults | options))


class KnownKey(RandomSource):
    """A source whose key the test knows, so that it can take the noise away."""

    secure = False

    def take_key(self):
        return bytes(range(32))


def test_shapes_and_recorded_facts(plan, records):
    release = run(plan, records)
    assert release.params.shape == release.noisy_gradients.shape == (25, 8)
    assert release.positions is release.params
    assert release.names == ("coef[0]", "coef[1]", "coef[2]", "intercept")
    np.testing.assert_array_equal(release.grad_scale, np.repeat([1.0, 550.0], 4))
    np.testing.assert_allclose(release.noise_stddev, plan.noise_multiplier * 2.0 / release.grad_scale)
    np.testing.assert_allclose(release.learning_rate, release.grad_scale / (plan.noise_multiplier * 2.0 * np.sqrt(25)))
    assert release.event == plan.event
    assert release.certified_epsilon == plan.epsilon <= 1.0
    assert release.n_records == 400
    assert dpi.models.model_from_dict(release.model_spec).n_params == 4


@pytest.mark.parametrize("gradient", ["reparameterised", "aligned"])
@pytest.mark.parametrize("loss", ["split", "per_example"])
@pytest.mark.parametrize("expectation", ["quadrature", "monte_carlo"])
def test_the_iterates_follow_the_released_gradients(plan, records, gradient, loss, expectation):
    # Of steps as long as the default ones some drive a scale below the least positive number, and z cannot be told.
    rates = np.repeat([0.05, 0.5], 4)
    release = run(plan, records, gradient=gradient, loss=loss, expectation=expectation, learning_rate=rates)
    steps = np.diff(np.vstack((release.params, release.final_params)), axis=0)
    n = release.n_params
    np.testing.assert_allclose(steps[:, :n], -release.learning_rate[:n] * release.noisy_gradients[:, :n], atol=1e-13)
    if gradient == "reparameterised":
        np.testing.assert_allclose(steps, -release.learning_rate * release.noisy_gradients, atol=1e-13)
    else:
        # The gradient of raw_scale follows from that of the sampled theta = loc + s z.
        raw = release.params[:, n:]
        s, slope = softplus(raw), special.expit(raw)
        z = (release.positions - release.params[:, :n]) / s
        derived = z * slope * release.noisy_gradients - plan.sample_rate * slope / s
        np.testing.assert_allclose(steps[:, n:], -release.learning_rate[n:] * derived, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("loss", ["split", "per_example"])
@pytest.mark.parametrize("gradient", ["reparameterised", "aligned"])
@pytest.mark.parametrize("likelihood", ["logistic", "gaussian"])
def test_released_gradients_are_the_clipped_sums_plus_prior(plan, rng, loss, gradient, likelihood):
    """With the key known, the noise is taken away: the first gradient equals a NumPy computation by the same rule."""
    X = rng.normal(size=(150, 2))
    y = (rng.random(150) < 0.5).astype(float) if likelihood == "logistic" else rng.normal(size=150)
    kind = dpi.models.LogisticRegression if likelihood == "logistic" else dpi.models.LinearRegression
    model = kind(2)
    n, norm = model.n_params, 1.5
    beta = np.concatenate((np.full(n, 0.8), np.full(n, 20.0)))
    start = (rng.normal(size=n), rng.normal(size=n) - 1.0)
    release = dpi.run_dpvi(
        model, X, y, plan=plan, n_records=130, max_grad_norm=norm, grad_scale=beta, loss=loss, gradient=gradient,
        start=start, random_source=KnownKey(),
    )  # fmt: skip
    loc, raw = start
    s, slope = softplus(raw), special.expit(raw)
    aligned = gradient == "aligned"
    width = n if aligned else 2 * n
    if aligned:
        z = (release.positions[0] - loc) / s
        prior = -model.log_prior_gradient(release.positions[0])
    else:
        prior = -np.concatenate(model.expected_log_prior_gradient(loc, raw))
        prior[n:] -= slope / s  # entropy: -dH/du
    offset = prior / 130 if loss == "per_example" else 0.0 * prior
    total = np.zeros(width)
    rows = _native.poisson_sample(bytes(range(32)), 0, plan.sample_rate, 150)
    for row in rows:
        if aligned:
            gradient_i = oracle.draws_gradient(likelihood, X[row], y[row], loc, raw, z[None])[:n]
        else:
            gradient_i = oracle.quadrature_gradient(likelihood, X[row], y[row], loc, raw, n_nodes=10)
        total += oracle.clip(beta[:width] * (gradient_i + offset), norm)
    want = total / beta[:width] + (plan.sample_rate * prior if loss == "split" else 0.0)
    noise = _noise_of_step(width, norm, plan.noise_multiplier) / beta[:width]
    tolerance = len(rows) * norm * 2.0**-19 + 2e-6 * len(rows)
    np.testing.assert_allclose((release.noisy_gradients[0] - noise) * beta[:width], want * beta[:width], atol=tolerance)


def _noise_of_step(width, norm, noise_multiplier):
    """The noise of step 0 under the known key, from a session whose only row is never sampled."""
    session = _native.StepSession(
        features=np.zeros((1, (width + 1) // 2 if width % 2 == 0 else width)), response=np.zeros(1),
        likelihood="logistic", intercept=False, aligned=width % 2 == 1, sample_rate=1e-12, max_grad_norm=norm,
        key=bytes(range(32)), n_threads=1,
    )  # fmt: skip
    n = session.released_length
    session.set_scales(np.ones(n), np.zeros(n))
    n_coef = n if width % 2 == 1 else n // 2
    session.set_draws(np.zeros((1, n_coef)), np.zeros((1, n_coef)), np.empty((0, 1)))
    return session.noisy_sum(0, noise_multiplier)[:width]


def test_runs_are_reproducible_with_a_seed_only(plan, records):
    first, second = run(plan, records), run(plan, records, n_threads=3)
    np.testing.assert_array_equal(first.noisy_gradients, second.noisy_gradients)
    np.testing.assert_array_equal(
        run(plan, (records[0].astype(np.float32), records[1])).params.shape, first.params.shape
    )
    private = run(plan, records, random_source=None)
    again = run(plan, records, random_source=None)
    assert private.secure
    assert np.all(private.noisy_gradients != again.noisy_gradients)
    assert private.epsilon <= 1.0
    source = InsecureRNG(1)
    one, two = run(plan, records, random_source=source), run(plan, records, random_source=source)
    assert np.all(one.noisy_gradients != two.noisy_gradients)


def test_seeded_releases_are_not_private(plan, records):
    release = run(plan, records)
    assert not release.secure
    with pytest.raises(InsecureReleaseError, match="NOT PRIVATE"):
        _ = release.epsilon
    assert "NOT PRIVATE" in repr(release)


def test_preconditioner_and_rate_may_follow_the_released_iterate(plan, records):
    seen = []

    def scale(step, params):
        seen.append((step, params.copy()))
        return np.full(8, 1.0 + step)

    release = run(plan, records, grad_scale=scale, learning_rate=lambda step, params: 1e-3 / (1.0 + step))
    assert release.grad_scale.shape == (25, 8)
    np.testing.assert_array_equal(release.grad_scale[:, 0], 1.0 + np.arange(25))
    np.testing.assert_allclose(release.noise_stddev, plan.noise_multiplier * 2.0 / release.grad_scale)
    np.testing.assert_allclose(release.learning_rate[:, 3], 1e-3 / (1.0 + np.arange(25)))
    for step, params in seen:
        np.testing.assert_array_equal(params, release.params[step])


def test_heuristic_rate_follows_a_varying_preconditioner(plan, records):
    release = run(plan, records, grad_scale=lambda step, params: np.full(8, 1.0 + step))
    np.testing.assert_allclose(release.learning_rate, release.grad_scale / (plan.noise_multiplier * 2.0 * 5.0))


def test_fisher_scaling(records):
    model = dpi.models.LogisticRegression(3, feature_scale=[1.0, 2.0, 3.0])
    fisher = FisherScaling(model, 400, 0.3, 100, raw_ratio=0.5)
    params = np.concatenate((np.zeros(3), np.full(3, -40.0)))
    np.testing.assert_allclose(fisher.information(params), [0.25, 1.0, 2.25])
    np.testing.assert_allclose(fisher.grad_scale(0, params)[:3], [2.0, 1.0, 2 / 3])
    natural = 1.0 / (0.3 * 400 * np.array([0.25, 1.0, 2.25]))
    np.testing.assert_allclose(fisher.learning_rate(9, params)[:3], 3.0 / 10.0 * natural)
    np.testing.assert_allclose(fisher.learning_rate(0, params)[:3], 0.5 * natural)  # 50 / 100 steps
    assert FisherScaling(model, 400, 0.3, 1000).rate(0) == 0.05
    steady = FisherScaling(model, 400, 0.3, 1000, smallest_rate=steady_rate(4, 0.1))
    assert [steady.rate(step) for step in (0, 999)] == [0.25, 0.25]
    assert steady_rate(4, 2.0) == pytest.approx(0.1 / 16.0)
    loc, raw = np.split(fisher.start(), 2)
    np.testing.assert_array_equal(loc, 0.0)
    np.testing.assert_allclose(softplus(raw), (400 * np.array([0.25, 1.0, 2.25])) ** -0.5)
    with pytest.raises(ValueError, match="largest_rate"):
        FisherScaling(model, 400, 0.3, 100, largest_rate=1.0)
    plan = dpi.plan_privacy(target_epsilon=3.0, target_delta=1e-5, sample_rate=0.3, n_steps=100)
    release = run(plan, records, model=model, recipe="tied", n_records=400)
    assert release.grad_scale.shape == (100, 6)
    assert release.settings["recipe"] == "tied"
    assert release.settings["scaling"] == "fisher"
    np.testing.assert_allclose(release.params[0], FisherScaling(model, 400, 0.3, 100).start())


def test_fisher_scaling_of_aligned_gradients(records):
    """Everything but the gradients is a function of the released iterates and the public draws."""
    model = dpi.models.LogisticRegression(3, feature_scale=[1.0, 2.0, 3.0])
    plan = dpi.plan_privacy(target_epsilon=3.0, target_delta=1e-5, sample_rate=0.3, n_steps=40)
    release = run(plan, records, model=model, recipe="tied", gradient="aligned", n_records=400)
    loc, raw = np.split(release.params, 2, axis=1)
    assert release.noisy_gradients.shape == release.positions.shape == (40, 3)
    np.testing.assert_allclose(softplus(raw), (400 * model.information(loc)) ** -0.5)
    draws = (release.positions - loc) / (2.0 * softplus(raw))
    assert abs(draws.mean()) < 5.0 / np.sqrt(120)
    assert abs(draws.var() - 1.0) < 5.0 * np.sqrt(2 / 120)
    information = model.information(release.positions)
    np.testing.assert_allclose(release.grad_scale, information**-0.5)
    rates = FisherScaling(model, 400, 0.3, 40).rate(0) / (0.3 * 400 * information[0])
    want = loc[0] - rates * release.noisy_gradients[0]
    np.testing.assert_allclose(loc[1], want)
    np.testing.assert_array_equal(release.learning_rate[:, 3:], 0.0)
    assert release.settings["raw_ratio"] == 0.0
    assert release.settings["excursion"] == 2.0
    for name, value in (("excursion", 0.0), ("excursion", np.inf), ("smallest_rate", -0.1), ("smallest_rate", 1.0)):
        with pytest.raises(ValueError, match=name):
            FisherScaling(model, 400, 0.3, 100, **{name: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.1, "recipe": "tied"}, "recipe 'tied'"),
        ({"learning_rate": 0.1, "recipe": "steady"}, "recipe 'steady'"),
        ({"max_grad_norm": "auto", "recipe": "plain"}, "max_grad_norm"),
        ({"max_grad_norm": "large", "recipe": "tied"}, "max_grad_norm"),
        ({"grad_scale": FisherScaling(dpi.models.LogisticRegression(4), 999, 0.3, 25)}, "grad_scale"),
    ],
)
def test_fisher_scaling_refuses(plan, records, changes, message):
    with pytest.raises(ValueError, match=message):
        run(plan, records, **changes)


def test_without_much_noise_it_finds_the_posterior(rng):
    """Convergence: at a huge epsilon the iterate reaches the variational optimum of a Gaussian model's weights.

    A step of 2e-5 is stable: the weights' curvature is 0.5 * 3000 / 0.018 = 83 000 at the start and 16 700 at the end.
    Noise and sampling (130 and 90 a step) leave the mean of 500 iterates 0.0004 from least squares, and 0.008 in the
    logarithm of the variance, beside 0.009 that fluctuating iterates shift it: six standard deviations, 1e-8 in all.
    """
    X = rng.normal(size=(3000, 2))
    y = X @ [0.5, -1.0] + 0.3 * rng.normal(size=3000)
    model = dpi.models.LinearRegression(2)
    plan = dpi.accounting.PrivacyPlan.from_noise_multiplier(0.5, sample_rate=0.5, n_steps=1500, delta=1e-5)
    release = dpi.run_dpvi(
        model, X, y, plan=plan, n_records=3000, max_grad_norm=260.0, grad_scale=(1.0, 1500.0), n_threads=1,
        learning_rate=np.repeat([2e-5, 0.2], 3), random_source=InsecureRNG(2),
    )  # fmt: skip
    loc = release.params[-500:, :3].mean(axis=0)
    weights, squares, *_ = np.linalg.lstsq(X, y)
    np.testing.assert_allclose(loc[:2], weights, atol=0.003)
    assert softplus(loc[2]) == pytest.approx(squares[0] / 3000, rel=0.06)


@pytest.mark.parametrize("likelihood", ["probit", "poisson"])
def test_other_likelihoods_converge(rng, likelihood):
    X = rng.normal(size=(3000, 2))
    eta = X @ [0.6, -0.4]
    if likelihood == "probit":
        model, y = dpi.models.ProbitRegression(2), (rng.random(3000) < special.ndtr(eta)).astype(float)
    else:
        model, y = dpi.models.PoissonRegression(2), rng.poisson(np.exp(eta)).astype(float)
    plan = dpi.accounting.PrivacyPlan.from_noise_multiplier(0.5, sample_rate=0.3, n_steps=800, delta=1e-5)
    release = run(plan, (X, y), model=model, n_records=3000, max_grad_norm=5.0, learning_rate=5e-4, n_threads=1)
    np.testing.assert_allclose(release.params[-200:, :2].mean(axis=0), [0.6, -0.4], atol=0.1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_records": 0}, ValueError, "n_records"),
        ({"n_records": 10.0}, TypeError, "n_records"),
        ({"max_grad_norm": 0.0}, ValueError, "max_grad_norm"),
        ({"max_grad_norm": float("inf")}, ValueError, "max_grad_norm"),
        ({"grad_scale": -1.0}, ValueError, "grad_scale"),
        ({"grad_scale": np.ones(3)}, ValueError, "grad_scale"),
        ({"grad_scale": lambda step, params: np.ones(2)}, ValueError, "grad_scale"),
        ({"learning_rate": "adam"}, ValueError, "learning_rate"),
        ({"learning_rate": -0.1}, ValueError, "learning_rate"),
        ({"loss": "both"}, ValueError, "loss"),
        ({"expectation": "exact"}, ValueError, "expectation"),
        ({"gradient": "none"}, ValueError, "gradient"),
        ({"recipe": "grandmother"}, ValueError, "recipe"),
        ({"n_draws": 0}, ValueError, "n_draws"),
        ({"n_nodes": 0}, ValueError, "n_nodes"),
        ({"n_threads": 0}, ValueError, "n_threads"),
        ({"start": np.zeros(8)}, TypeError, "start"),
        ({"start": (np.zeros(3), 0.0)}, ValueError, "start"),
        ({"progress": "yes"}, TypeError, "progress"),
        ({"random_source": 3}, TypeError, "random_source"),
        ({"plan": 1.0}, TypeError, "plan"),
        ({"model": "logistic"}, TypeError, "model"),
    ],
)
def test_bad_arguments(plan, records, options, error, message):
    with pytest.raises(error, match=message):
        run(plan, records, **options)


class CountingSource(RandomSource):
    """Counts the keys it gave out: none may be taken when records are refused."""

    secure = False
    taken = 0

    def take_key(self):
        self.taken += 1
        return bytes(32)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda X, y: (np.where(X[3, 1] == X, np.nan, X), y), "X must be finite"),
        (lambda X, y: (np.where(X[3, 1] == X, np.inf, X), y), "X must be finite"),
        (lambda X, y: (X, np.where(np.arange(400) == 7, SECRET, y)), "y must hold 0 and 1"),
        (lambda X, y: (X, np.where(np.arange(400) == 7, np.nan, y)), "y must be finite"),
        (lambda X, y: (X, y[:-1]), "as many entries"),
        (lambda X, y: (X[:, :2], y), "with 3 columns, got 2 columns"),
        (lambda X, y: (X[:, 0], y), "got 1 dimensions"),
        (lambda X, y: (X.astype(str), y), "real numbers"),
        (lambda X, y: (X.astype(object), y), "real numbers"),
    ],
)
def test_bad_records_are_refused_before_anything_is_spent(plan, records, spoil, message):
    X, y = records
    X = X.copy()
    X[5, 0] = SECRET
    source = CountingSource()
    with pytest.raises((RecordError, TypeError), match=message) as caught:
        run(plan, spoil(X, y), random_source=source)
    assert source.taken == 0
    assert str(SECRET) not in str(caught.value)
    assert not any(
        character.isdigit() and int(character) in (5, 7) for character in str(caught.value).split("shape")[0]
    )


def test_counts_are_checked(plan, records):
    X, _ = records
    with pytest.raises(RecordError, match="counts"):
        run(plan, (X, np.full(400, 0.5)), model=dpi.models.PoissonRegression(3))


def test_one_record_and_integer_columns_work(plan):
    release = run(plan, (np.array([[1, 2, 3]]), np.array([1])), n_records=1)
    assert np.all(np.isfinite(release.noisy_gradients))


def test_wild_records_do_not_raise(plan, records):
    X, y = records
    X = X * 10.0 ** np.linspace(-300, 300, 400)[:, None]
    release = run(plan, (X, y))
    assert np.all(np.isfinite(release.noisy_gradients))


def test_progress_and_interruption(plan, records):
    seen = []
    run(plan, records, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(step, 25) for step in range(1, 26)]

    def interrupt(done, total):
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan, records, progress=interrupt)


@pytest.mark.parametrize("source", [OSRandomSource(), InsecureRNG(3)])
def test_sources_cannot_be_copied(source):
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(source)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.copy(source)


def test_seeds_are_checked():
    with pytest.raises(ValueError, match="seed"):
        InsecureRNG(-1)
    with pytest.raises(TypeError, match="seed"):
        InsecureRNG("1")
    assert InsecureRNG(1).take_key() != InsecureRNG(2).take_key()
    assert OSRandomSource().take_key() != OSRandomSource().take_key()


def test_ten_nodes_keep_the_stated_accuracy():
    """The bound in the docstring of run_dpvi, against a fine trapezoid rule, over means from -12 to 12."""
    nodes, weights = oracle.gauss_hermite(10)
    grid = np.linspace(-9.0, 9.0, 4001)
    density = np.exp(-0.5 * grid**2) / np.sqrt(2.0 * np.pi) * (grid[1] - grid[0])
    mean = np.linspace(-12.0, 12.0, 97)[:, None]
    for stddev, bound in ((1.0, 2e-6), (2.0, 8e-4)):
        for function in (special.expit, lambda eta: special.expit(eta) * special.expit(-eta)):
            error = np.abs(function(mean + stddev * nodes) @ weights - function(mean + stddev * grid) @ density)
            assert bound / 20 < error.max() < bound


@pytest.mark.parametrize("name", ["grad_scale", "learning_rate"])
@pytest.mark.parametrize("wrong", [ZeroDivisionError(), np.nan, "text", np.zeros(3)])
def test_a_schedule_that_fails_in_the_middle_loses_no_step(name, wrong):
    def schedule(step, params):
        if step < 2:
            return np.full(4, 0.01)
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.5, n_steps=4)
    X = np.random.default_rng(1).normal(size=(50, 2))
    given = {"grad_scale": 1.0, "learning_rate": 0.01} | {name: schedule}
    with pytest.warns(RuntimeWarning, match=f"{name} failed at step 2"):
        release = dpi.run_dpvi(
            dpi.models.LogisticRegression(2),
            X,
            (X[:, 0] > 0) * 1.0,
            plan=plan,
            n_records=50,
            max_grad_norm=1.0,
            **given,
        )
    assert release.n_steps == 4
    np.testing.assert_array_equal(getattr(release, name)[2:], getattr(release, name)[1:3])


@pytest.mark.parametrize("wrong", [np.nan, np.zeros(3)])
def test_a_schedule_that_fails_at_once_spends_nothing(wrong):
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.5, n_steps=4)
    with pytest.raises(ValueError, match="grad_scale"):
        dpi.run_dpvi(
            dpi.models.LogisticRegression(2),
            np.ones((5, 2)),
            np.ones(5),
            plan=plan,
            n_records=5,
            max_grad_norm=1.0,
            grad_scale=lambda step, params: wrong,
        )


@pytest.mark.parametrize("gradient", ["reparameterised", "aligned"])
def test_steps_that_the_prior_makes_grow_without_end_are_refused(plan, records, gradient):
    """Its part of a step is not clipped: a step beyond 2 over rate and precision multiplies the distance."""
    limit, source = 2.0 / plan.sample_rate, InsecureRNG(1)
    long = dpi.PrivacyPlan.from_noise_multiplier(2.0, plan.sample_rate, 200, 1e-5)
    options = {"gradient": gradient, "recipe": "plain", "random_source": source}
    with pytest.raises(ValueError, match=r"learning_rate must be at most 0.8 times what it is: sample_rate"):
        run(long, records, learning_rate=1.25 * limit, **options)
    assert source._taken == 0
    for near in ({"learning_rate": 0.9 * limit}, {"learning_rate": 1.25 * limit, "loss": "per_example"}):
        assert np.max(np.abs(run(long, records, **options, **near).final_params)) < 1e5
