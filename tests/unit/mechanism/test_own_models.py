"""Models of a user's own, and rows that are not arrays: no file of the library is edited for them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy import special

import dpinfer as dpi
from dpinfer.errors import CheckpointError, RecordError
from dpinfer.mechanism import RowSource, RunCheckpoint
from dpinfer.models import GeneralizedLinearModel, GradientModel, LogisticRegression, model_from_dict, register_model
from dpinfer.testing import InsecureRNG

N = 300
PLAN = dpi.PrivacyPlan.from_noise_multiplier(2.0, 0.3, 12, 1e-5)


@register_model
@dataclass(frozen=True)
class CLogLogRegression(GeneralizedLinearModel):
    """Binary responses with the complementary log-log link: P(y = 1) = 1 - exp(-exp(eta))."""

    response: ClassVar[str] = "binary"

    def inverse_link(self, eta):
        return -np.expm1(-np.exp(np.minimum(eta, 30.0)))

    def log_density(self, eta, response):
        rate = np.exp(np.minimum(eta, 30.0))
        return np.where(response == 1.0, np.log(np.maximum(-np.expm1(-rate), 1e-300)), -rate)

    def loss_slopes(self, eta, response, loc):
        rate = np.exp(np.minimum(eta, 30.0))
        odds = rate * np.exp(-rate) / np.maximum(-np.expm1(-rate), 1e-300)
        first = np.where(response == 1.0, -odds, rate)
        second = np.where(response == 1.0, -odds * (1.0 - rate - odds), rate)
        return first, second

    def expected_curvature(self, loc, spread):
        return 0.58 / np.sqrt(1.0 + spread)


@register_model
@dataclass(frozen=True)
class OwnLogistic(LogisticRegression):
    """The logistic link, summed by NumPy: what the compiled kernels are compared with."""

    gradient_sum: ClassVar[str] = "numpy"
    site_sum: ClassVar[str] = "evidence"


@dataclass(frozen=True)
class BlackBox(GradientModel):
    """The logistic loss without an intercept, as a model that nothing is known of but its gradient."""

    n_features: int
    prior_scale: float = 1.0

    @property
    def names(self):
        return tuple(f"coef[{index}]" for index in range(self.n_features))

    def record_gradients(self, features, response, theta):
        eta = np.sum(features * theta, axis=1)
        return features * (special.expit(eta) - response)[:, None]

    def to_dict(self):
        return {"kind": "BlackBox", "n_features": self.n_features, "prior_scale": self.prior_scale}


@pytest.fixture
def records(rng):
    X = rng.normal(size=(N, 3))
    return X, (rng.random(N) < special.expit(X @ [1.0, -0.5, 0.2])).astype(float)


def run(model, X, y, **options):
    options = {"plan": PLAN, "n_records": N, "random_source": InsecureRNG(4), "n_threads": 1} | options
    return dpi.run_dpvi(model, X, y, **options)


# A link


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"max_grad_norm": 1.0},
        {"max_grad_norm": 1.0, "loss": "per_example"},
        {"recipe": "paper", "max_grad_norm": 1.0},
        {"gradient": "aligned", "max_grad_norm": 1.0},
        {"recipe": "tied", "max_grad_norm": 2.0},
        {"gradient": "aligned", "recipe": "tied", "max_grad_norm": 2.0},
    ],
    ids=str,
)
def test_a_link_of_ones_own_is_summed_as_a_compiled_one(records, options, intercept):
    """The same steps to the lattice's rounding: another order of operations, the same samples and noise."""
    own = run(OwnLogistic(3, fit_intercept=intercept), *records, **options)
    compiled = run(LogisticRegression(3, fit_intercept=intercept), *records, **options)
    scale = np.max(np.abs(compiled.noisy_gradients))
    np.testing.assert_allclose(own.noisy_gradients, compiled.noisy_gradients, rtol=0.0, atol=1e-6 * scale)
    np.testing.assert_allclose(own.final_params, compiled.final_params, rtol=1e-6, atol=1e-9)
    # The test can fail: another link moves more than that.
    other = run(CLogLogRegression(3, fit_intercept=intercept), *records, **options)
    assert np.max(np.abs(other.noisy_gradients - compiled.noisy_gradients)) > 1e-3 * scale


@pytest.mark.parametrize("intercept", [False, True])
def test_its_sites_are_those_of_a_compiled_one(records, intercept):
    options = {"plan": PLAN, "n_records": N, "max_site_norm": 2.0, "n_threads": 1, "n_nodes": 20}
    own, compiled = (
        dpi.run_dp_sep(kind(3, fit_intercept=intercept), *records, random_source=InsecureRNG(4), **options)
        for kind in (OwnLogistic, LogisticRegression)
    )
    np.testing.assert_allclose(own.noisy_sums, compiled.noisy_sums, rtol=0.0, atol=1e-5)
    plain, compiled_plain = (dpi.run_sep(kind(3), *records) for kind in (OwnLogistic, LogisticRegression))
    np.testing.assert_allclose(plain.loc, compiled_plain.loc, atol=1e-6)
    uniform = dpi.PrivacyPlan.from_noise_multiplier(2.0, None, 5, 1e-5, sampling="uniform", n_records=N)
    with pytest.raises(ValueError, match="Poisson sampling"):
        dpi.run_dp_sep(OwnLogistic(3), *records, plan=uniform, n_records=N)


def test_the_slopes_of_the_complementary_log_log_link_are_its_own():
    model, eta = CLogLogRegression(1), np.linspace(-6.0, 2.5, 40)
    for response in (np.zeros(40), np.ones(40)):
        first, second = model.loss_slopes(eta, response, np.zeros(1))
        step = 1e-4
        up, here, down = (-model.log_density(eta + shift, response) for shift in (step, 0.0, -step))
        np.testing.assert_allclose(first, (up - down) / (2.0 * step), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(second, (up - 2.0 * here + down) / step**2, rtol=1e-3, atol=1e-5)


def test_the_complementary_log_log_link_from_records_to_a_posterior(tmp_path):
    """DPVI with the default and the tied recipe, DP-SEP, and posteriors of the loaded releases: near the truth."""
    model = CLogLogRegression(2, fit_intercept=True)
    rng = np.random.default_rng(3)
    X, truth = rng.normal(size=(6000, 2)), np.array([0.8, -0.5, -0.3])
    y = model.simulate(truth, X, rng)
    plan = dpi.plan_privacy(target_epsilon=3.0, target_delta=1e-6, sample_rate=0.1, n_steps=100)
    common = {"plan": plan, "n_records": 6000, "random_source": InsecureRNG(5)}
    release = dpi.run_dpvi(model, X, y, recipe="tied", max_grad_norm=3.0, **common)
    release.save(tmp_path / "own")
    loaded = dpi.load_release(tmp_path / "own")
    assert model_from_dict(loaded.model_spec) == model
    posterior = dpi.noise_aware_posterior(loaded, hessian="tied")
    sites = dpi.noise_aware_posterior(dpi.run_dp_sep(model, X, y, **common))
    for found in (posterior, sites):
        mean, stddev = np.asarray(found.mean), np.asarray(found.stddev)
        assert np.all(np.abs(mean - truth) < 5.0 * stddev + 0.05)
        assert np.all(stddev < 0.2)
    np.testing.assert_allclose(posterior.predict_proba(X[:50])[:, 1], model.predict_mean(truth, X[:50]), atol=0.1)


def test_responses_outside_the_links_range_are_refused(records):
    X, y = records
    with pytest.raises(RecordError, match="y must hold 0 and 1 only for CLogLogRegression"):
        run(CLogLogRegression(3), X, y + 0.5, max_grad_norm=1.0)


# A gradient


@pytest.mark.parametrize("options", [{"recipe": "paper"}, {"gradient": "aligned"}, {}], ids=str)
def test_a_black_box_gradient_is_that_of_the_model_it_hides(records, options):
    options = options | {"max_grad_norm": 1.0, "grad_scale": (1.0, 30.0)}
    box = run(BlackBox(3), *records, **options)
    open_box = run(LogisticRegression(3), *records, **{"expectation": "monte_carlo"} | options)
    scale = np.max(np.abs(open_box.noisy_gradients))
    np.testing.assert_allclose(box.noisy_gradients, open_box.noisy_gradients, rtol=0.0, atol=1e-6 * scale)


def test_a_black_box_has_no_quadrature_and_no_information(records):
    with pytest.raises(ValueError, match="expectation must be 'monte_carlo' for BlackBox"):
        run(BlackBox(3), *records, expectation="quadrature", max_grad_norm=1.0)
    with pytest.raises(TypeError, match="information"):
        run(BlackBox(3), *records, recipe="tied", max_grad_norm=1.0)


class Mixing(BlackBox):
    """Subtracts the batch's mean: one record's gradient is everybody's."""

    def record_gradients(self, features, response, theta):
        return super().record_gradients(features - features.mean(axis=0), response, theta)


class Misshapen(BlackBox):
    def record_gradients(self, features, response, theta):
        return super().record_gradients(features, response, theta)[:, :-1]


@pytest.mark.parametrize(("model", "told"), [(Mixing(3), "each row by itself"), (Misshapen(3), "shape")])
def test_gradients_that_mix_records_are_refused_before_anything_is_spent(records, model, told, tmp_path):
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people")
    with pytest.raises(ValueError, match=told):
        run(model, *records, max_grad_norm=1.0, random_source=None, ledger=account)
    assert account.runs() == ()


class Fragile(BlackBox):
    """Cannot compute one record, and returns nothing finite for another."""

    def record_gradients(self, features, response, theta):
        if np.any(features[:, 0] == 77.0):
            raise ZeroDivisionError("77")
        gradients = super().record_gradients(features, response, theta)
        gradients[features[:, 0] == 78.0] = np.nan
        return gradients


def test_what_cannot_be_computed_contributes_nothing_and_is_not_told(records):
    X, y = records
    bad = np.vstack((X, [[77.0, 0.0, 0.0], [78.0, 0.0, 0.0]])), np.append(y, [0.0, 1.0])
    plan = dpi.PrivacyPlan.from_noise_multiplier(2.0, 1.0, 3, 1e-5)
    options = {"plan": plan, "max_grad_norm": 1.0, "gradient": "aligned"}
    assert run(Fragile(3), *bad, **options).noisy_gradients.tobytes() == (
        run(BlackBox(3), X, y, **options).noisy_gradients.tobytes()
    )


def test_a_records_contribution_is_its_own_whatever_the_model_computes():
    """One record more moves the exact sum by at most C, though it shifts all others to other rows of a block."""
    plan = dpi.PrivacyPlan.from_noise_multiplier(1e-7, 1.0, 1, 1e-5)
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(1500, 3)) * 10.0, rng.integers(0, 2, 1500).astype(float)
    options = {"plan": plan, "max_grad_norm": 0.5, "gradient": "aligned", "grad_scale": 1.0}
    for model in (BlackBox(3), OwnLogistic(3), CLogLogRegression(3)):
        with_it = run(model, X, y, **options).noisy_gradients[0]
        without = run(model, X[1:], y[1:], **options).noisy_gradients[0]
        assert 0.0 < np.linalg.norm(with_it - without) <= 0.5 * (1.0 + 1e-6)


# A source of rows


def source_of(*arrays, sizes=(7, 100, 1, 192)):
    def blocks():
        first = 0
        for size in sizes:
            yield (
                tuple(array[first : first + size] for array in arrays)
                if len(arrays) > 1
                else arrays[0][first : first + size]
            )
            first += size

    return RowSource(blocks)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (LogisticRegression(3, fit_intercept=True), {"max_grad_norm": 1.0}),
        (LogisticRegression(3), {"gradient": "aligned", "recipe": "tied", "max_grad_norm": 2.0}),
        (dpi.models.LinearRegression(3), {}),
        (CLogLogRegression(3), {"max_grad_norm": 1.0}),
        (BlackBox(3), {"max_grad_norm": 1.0}),
        (dpi.models.BetaBernoulli(), {"max_grad_norm": 2.0}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rows_from_an_iterator_give_the_same_bits(records, model, options):
    X, y = records
    arrays = (y,) if isinstance(model, dpi.models.ConjugateModel) else (X, y)
    whole = run(model, arrays[0], arrays[1] if len(arrays) > 1 else None, **options)
    streamed = run(model, source_of(*arrays), None, **options)
    assert streamed.noisy_gradients.tobytes() == whole.noisy_gradients.tobytes()
    assert streamed.final_params.tobytes() == whole.final_params.tobytes()


class Stopped(Exception):  # noqa: N818
    pass


def test_a_stream_is_resumed_and_known_again(records, tmp_path):
    X, y = records
    place = RunCheckpoint(tmp_path / "run", interval=0.0)
    options = {"max_grad_norm": 1.0}

    def stop(done, total):
        if done == 5:
            raise Stopped

    whole = run(LogisticRegression(3), X, y, **options)
    with pytest.raises(Stopped):
        run(LogisticRegression(3), source_of(X, y), None, checkpoint=place, progress=stop, **options)
    with pytest.raises(RecordError, match="interrupted run"):
        run(LogisticRegression(3), source_of(X + 1.0, y), None, checkpoint=place, **options)
    with pytest.raises(CheckpointError):
        run(LogisticRegression(3), source_of(X, y), None, checkpoint=place, max_grad_norm=2.0)
    resumed = run(LogisticRegression(3), source_of(X, y), None, checkpoint=place, **options)
    assert resumed.noisy_gradients.tobytes() == whole.noisy_gradients.tobytes()


def test_a_source_is_checked_block_by_block(records):
    X, y = records
    with pytest.raises(RecordError, match="0 and 1"):
        run(LogisticRegression(3), source_of(X, y + 0.5), None, max_grad_norm=1.0)
    with pytest.raises(TypeError, match="blocks must be callable"):
        RowSource([(X, y)])
    with pytest.raises(TypeError, match="y must be None with a RowSource"):
        run(LogisticRegression(3), source_of(X, y), y, max_grad_norm=1.0)
    once = iter([(X, y)])
    with pytest.raises(RecordError, match="same rows in every pass"):
        run(LogisticRegression(3), RowSource(lambda: once), None, max_grad_norm=1.0)


def test_code_that_returns_its_argument_and_fails_for_a_record_sums_the_others(records):
    """Blocks are read from one place in memory: of a block that fails, each record's row is kept apart."""

    class Echo(BlackBox):
        def record_gradients(self, features, response, theta):
            if np.any(features[:, 0] > 100.0):
                raise RuntimeError
            return features

    X, y = records
    # At the end, so that the others' places in the sample stay.
    bad = np.vstack((X, np.full((20, 3), 1e3))), np.append(y, np.zeros(20))
    options = {"gradient": "aligned", "recipe": "plain", "max_grad_norm": 3.0}
    whole, part = (run(Echo(3), *rows, **options).noisy_gradients for rows in (bad, records))
    np.testing.assert_array_equal(whole, part)
