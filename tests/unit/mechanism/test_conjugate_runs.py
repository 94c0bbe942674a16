"""Private runs of conjugate models: the released gradients, the compiled session, and what is refused."""

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import special

import dpinfer as dpi
from dpinfer.errors import RecordError
from dpinfer.mechanism import _native
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.models.base import softplus
from dpinfer.testing import InsecureRNG

KEY = bytes(range(32))
MODELS = [
    dpi.models.GammaExponential(3.0, 2.0),
    dpi.models.BetaBernoulli(),
    dpi.models.BetaBinomial(6),
    dpi.models.DirichletCategorical(),
    dpi.models.DirichletCategorical(bijector="softmax"),
]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{type(model).__name__}-{model.n_params}")


class KnownKey(RandomSource):
    """Gives a known key, so that the noise can be taken away, and counts the keys given out."""

    secure = False
    taken = 0

    def take_key(self):
        self.taken += 1
        return KEY


@pytest.fixture(scope="module")
def plan():
    return dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.3, n_steps=25)


def simulated(model, n_records, seed=3):
    rng = np.random.default_rng(seed)
    return model.simulate(model.sample_prior(1, rng)[0], n_records, rng)


def run(plan, model, X, **options):
    defaults = {"plan": plan, "n_records": 400, "max_grad_norm": 2.0, "random_source": InsecureRNG(1)}
    return dpi.run_dpvi(model, X, **(defaults | options))


def draw_noise(length, norm, noise_multiplier):
    """The noise of step 0 under the known key: one record that is never sampled."""
    session = _native.AffineSession(
        statistics=np.zeros((1, 1)), length=length, sample_rate=1e-12, max_grad_norm=norm, key=KEY, n_threads=1
    )
    return session.noisy_sum(0, noise_multiplier)


def clip(gradient, norm):
    length = np.linalg.norm(gradient)
    return gradient * min(1.0, norm / length) if length > 0 else gradient


@every_model
@pytest.mark.parametrize("loss", ["split", "per_example"])
@pytest.mark.parametrize("gradient", ["reparameterised", "aligned"])
@pytest.mark.parametrize("expectation", ["quadrature", "monte_carlo"])
def test_released_gradients_are_the_clipped_sums_plus_prior(plan, model, loss, gradient, expectation):
    """The first one, with the noise taken away, record by record; and the iterates follow the gradients."""
    n, norm = model.n_params, 0.9
    rng = np.random.default_rng(8)
    X = simulated(model, 150)
    beta = np.concatenate((np.full(n, 0.8), np.full(n, 6.0)))
    start = (rng.normal(size=n), rng.normal(size=n) - 1.0)
    release = run(
        plan, model, X, n_records=130, max_grad_norm=norm, grad_scale=beta, loss=loss, gradient=gradient,
        expectation=expectation, start=start, random_source=KnownKey(), n_draws=4,
    )  # fmt: skip
    loc, raw = start
    s, slope = softplus(raw), special.expit(raw)
    aligned = gradient == "aligned"
    width = n if aligned else 2 * n
    nodes, weights = np.polynomial.hermite_e.hermegauss(10)
    points = (nodes, weights / weights.sum())
    if aligned:
        z = _native.monte_carlo_normals(KEY, 0, n)[None]
        np.testing.assert_allclose(release.positions[0], loc + s * z[0])
        points = (z, np.ones(1))
    elif expectation == "monte_carlo":
        points = (_native.monte_carlo_normals(KEY, 0, 4 * n).reshape(4, n), np.full(4, 0.25))
    matrix, constant = model.gradient_map(loc, raw, *points)
    prior = model.prior_gradient(loc, raw, *points)
    prior[n:] -= slope / s  # entropy: -dH/du
    prior = prior[:width]
    share = prior / 130 if loss == "per_example" else 0.0 * prior
    rows = _native.poisson_sample(KEY, 0, plan.sample_rate, 150)
    gradients = model.sufficient_statistics(X[rows]) @ matrix[:width].T + constant[:width]
    contributions = [clip(beta[:width] * (g + share), norm) for g in gradients]
    want = np.sum(contributions, axis=0) / beta[:width] + (plan.sample_rate * prior if loss == "split" else 0.0)
    noise = draw_noise(width, norm, plan.noise_multiplier) / beta[:width]
    np.testing.assert_allclose(
        (release.noisy_gradients[0] - noise) * beta[:width], want * beta[:width], atol=len(rows) * norm * 2.0**-19
    )
    steps = np.diff(np.vstack((release.params, release.final_params)), axis=0)
    np.testing.assert_allclose(steps[:, :n], -release.learning_rate[:n] * release.noisy_gradients[:, :n], atol=1e-13)
    if not aligned:
        np.testing.assert_allclose(steps, -release.learning_rate * release.noisy_gradients, atol=1e-13)


@every_model
def test_what_a_release_holds(plan, model):
    X = simulated(model, 400)
    release = run(plan, model, X)
    n = model.n_params
    assert release.noisy_gradients.shape == (25, 2 * n)
    assert release.names == model.names
    assert dpi.models.model_from_dict(release.model_spec) == model
    assert release.settings["recipe"] == "tied"
    assert release.grad_scale.shape == (25, 2 * n)
    plain = run(plan, model, X, recipe="plain")
    np.testing.assert_array_equal(plain.grad_scale, np.repeat([1.0, 100.0], n))
    forms = [(X, 1), (X[:, None], 3)]
    if not isinstance(model, dpi.models.GammaExponential):  # whose records these would round
        forms += [(X.astype(np.float32)[:, None], 2), (X.astype(int), 2)]
    for records, n_threads in forms:
        again = run(plan, model, records, n_threads=n_threads)
        np.testing.assert_array_equal(again.noisy_gradients, release.noisy_gradients)


def test_long_runs_find_the_posterior():
    """With hardly any privacy noise, q ends at the exact posterior on the unconstrained space.

    Over 40 keys and data sets the means were off by 0.06 spreads, the spreads by 0.009: five standard deviations.
    """
    plan = dpi.plan_privacy(target_epsilon=500.0, target_delta=1e-5, sample_rate=1.0, n_steps=400)
    for model in (dpi.models.BetaBinomial(6), dpi.models.DirichletCategorical()):
        n = model.n_params
        X = model.simulate(np.full(n, 1.0 / (n + 1)), 2000, 3)
        exact = model.posterior(X)
        size = 2000 * model.information(exact.unconstrained_mean)
        spread = exact.unconstrained_stddev
        rate = 0.5 * np.concatenate((1.0 / size, 1.0 / (2.0 * size * spread**2)))
        release = run(
            plan, model, X, n_records=2000, max_grad_norm=20.0, grad_scale=(1.0, 50.0), learning_rate=rate,
            start=(exact.unconstrained_mean + 3 * spread, np.log(spread) + 0.5),
        )  # fmt: skip
        loc, raw = release.params[200:].mean(axis=0).reshape(2, n)
        np.testing.assert_allclose((loc - exact.unconstrained_mean) / spread, 0.0, atol=0.3)
        np.testing.assert_allclose(softplus(raw), spread, rtol=0.1)


@pytest.mark.parametrize(
    ("model", "bad", "message"),
    [
        (MODELS[0], -7.25, "numbers of at least 0"),
        (MODELS[0], np.nan, "finite"),
        (MODELS[1], 7.25, "0 or 1"),
        (MODELS[1], np.inf, "finite"),
        (MODELS[2], 7.0, r"integers in 0\.\.6"),
        (MODELS[3], 7.0, r"integers in 0\.\.2"),
        (MODELS[4], 0.725, r"integers in 0\.\.2"),
    ],
)
def test_bad_records_are_refused_before_anything_is_spent(plan, model, bad, message):
    X = simulated(model, 50)
    X[17] = bad
    source = KnownKey()
    with pytest.raises(RecordError, match=message) as caught:
        run(plan, model, X, random_source=source)
    assert source.taken == 0
    for secret in ("7.25", "725", "17", "50", "nan", "inf"):
        assert secret not in str(caught.value).replace("infinity", "")


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (np.zeros((5, 2)), RecordError, "2 columns"),
        (np.zeros((5, 1, 1)), RecordError, "3 dimensions"),
        (np.array(["a"]), TypeError, "real numbers"),
        (np.array([1.0, 0.0], dtype=object), TypeError, "real numbers"),
    ],
)
def test_bad_shapes(plan, X, error, message):
    with pytest.raises(error, match=message):
        run(plan, MODELS[1], X)


def test_bad_arguments(plan):
    X = simulated(MODELS[1], 20)
    with pytest.raises(TypeError, match="y must be None"):
        run(plan, MODELS[1], X, y=X)
    with pytest.raises(TypeError, match="y must be given"):
        run(plan, dpi.models.LogisticRegression(1), X[:, None])
    with pytest.raises(ValueError, match="'tied'"):
        run(plan, MODELS[1], X, recipe="tied", grad_scale=(1.0, 100.0))
    wide = dpi.models.DirichletCategorical((1.0,) * 8, "softmax")
    with pytest.raises(ValueError, match="n_nodes"):
        run(plan, wide, X)
    assert run(plan, wide, X, n_nodes=2).n_params == 7
    assert run(plan, wide, X, expectation="monte_carlo").n_params == 7
    assert run(plan, wide, X, gradient="aligned").n_params == 7


def affine_problem(rng):
    return rng.normal(size=(2500, 3)), rng.normal(size=(6, 3)), rng.normal(size=6)


def affine_sum(problem, n_threads=1):
    statistics, matrix, offset = problem
    session = _native.AffineSession(
        statistics=statistics, length=6, sample_rate=0.4, max_grad_norm=1.7, key=KEY, n_threads=n_threads
    )
    session.set_map(matrix, offset)
    return session


def test_the_compiled_sum_against_numpy(rng):
    statistics, matrix, offset = problem = affine_problem(rng)
    session = affine_sum(problem)
    rows = _native.poisson_sample(KEY, 5, 0.4, 2500)
    want = sum(clip(matrix @ t + offset, 1.7) for t in statistics[rows])
    np.testing.assert_allclose(session.clipped_sum(5) * session.lattice_step, want, atol=len(rows) * 1.7 * 2.0**-19)
    assert session.length == 6
    assert 0.4 - 1e-12 <= session.effective_rate <= 0.4


def test_the_same_bits_for_any_threads_and_instruction_set(rng):
    problem = affine_problem(rng)
    reference = affine_sum(problem).clipped_sum(5)
    for n_threads in (2, 3, 7):
        np.testing.assert_array_equal(affine_sum(problem, n_threads).clipped_sum(5), reference)
    script = (
        "import numpy as np; from dpinfer.mechanism import _native; r = np.random.default_rng(1)\n"
        "s = _native.AffineSession(statistics=r.normal(size=(999, 3)), length=6, sample_rate=0.4, max_grad_norm=1.7,"
        " key=bytes(32), n_threads=2)\n"
        "s.set_map(r.normal(size=(6, 3)), r.normal(size=6)); print(s.clipped_sum(3).tolist())"
    )
    outputs = set()
    for variant in ("portable", "avx2", "avx512"):
        result = subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"DPINFER_SIMD": variant}, capture_output=True, text=True
        )
        if result.returncode == 0:
            outputs.add(result.stdout)
        else:
            assert "DPINFER_SIMD" in result.stderr
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"statistics": np.zeros(3)}, ValueError),
        ({"statistics": np.zeros((3, 33))}, ValueError),
        ({"statistics": np.zeros((3, 0))}, ValueError),
        ({"statistics": np.zeros((3, 2), dtype=np.float32)}, TypeError),
        ({"statistics": np.zeros((3, 2), order="F")}, TypeError),
        ({"length": 0}, ValueError),
        ({"length": 65}, ValueError),
        ({"sample_rate": 0.0}, ValueError),
        ({"sample_rate": np.nan}, ValueError),
        ({"max_grad_norm": 1e31}, ValueError),
        ({"key": bytes(31)}, ValueError),
    ],
)
def test_bindings_check_again(change, error):
    good = {
        "statistics": np.zeros((3, 2)), "length": 4, "sample_rate": 0.1, "max_grad_norm": 1.0, "key": KEY,
        "n_threads": 1,
    }  # fmt: skip
    session = _native.AffineSession(**good)
    with pytest.raises(error):
        _native.AffineSession(**(good | change))
    with pytest.raises(ValueError, match="matrix"):
        session.set_map(np.zeros((2, 4)), np.zeros(4))
    with pytest.raises(ValueError, match="offset"):
        session.set_map(np.zeros((4, 2)), np.zeros(3))
    with pytest.raises(ValueError, match="noise_multiplier"):
        session.noisy_sum(0, 0.0)
