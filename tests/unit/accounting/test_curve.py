"""Privacy curves and the terms computed from them: conservative, tight, equal to closed forms where there are any."""

import math
import pickle

import mpmath
import numpy as np
import pytest
from scipy.stats import beta, norm
from tests.reference.accounting_oracles import ONE_STEP, gaussian_delta, two_step_delta

import dpinfer as dpi
from dpinfer.accounting import (
    Composed,
    GaussianEvent,
    Guarantee,
    NonPrivateEvent,
    PoissonSampled,
    SampledWithoutReplacement,
    SelfComposed,
    account,
    delta_for,
    gaussian_dp_mu,
    privacy_curve,
    run_event,
    zcdp_rho,
)
from dpinfer.accounting.curve import PrivacyCurve, _concentrated_epsilon, _covers
from dpinfer.accounting.gaussian import gaussian_epsilon
from dpinfer.accounting.guarantee import rounded_up
from dpinfer.errors import UnsupportedEventError

RATES = np.array([0.0, 1e-6, 0.001, 0.01, 0.05, 0.3, 0.5, 0.9, 1.0])
RUN = run_event(18.0, 0.1, 2500)
RUNS = {
    "run": (RUN, "add_remove"),
    "few large steps": (run_event(0.8, 0.01, 1000), "zero_out"),
    "with counts": (Composed((GaussianEvent(20.0), RUN)), "add_remove"),
    "without replacement": (run_event(2.0, 1.0, 5000, "uniform", 1000), "replace_one"),
}


def gaussian_power(alpha, mu):
    """The best attack on N(0, 1) against N(mu, 1): Dong, Roth and Su (2022), eq. 6."""
    return norm.cdf(norm.ppf(alpha) + mu)


@pytest.mark.parametrize("mu", [1e-3, 0.3, 5.0, 300.0])
def test_the_quick_epsilon_of_a_gaussian_is_above_the_exact_one(mu):
    for delta in (1e-2, 1e-6, 1e-12):
        assert gaussian_epsilon(mu, delta) <= _concentrated_epsilon(mu, delta)


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0, 7.5, 40.0])
@pytest.mark.parametrize(("adjacency", "factor"), [("add_remove", 1.0), ("replace_one", 2.0)])
def test_plain_gaussians_have_closed_forms(noise, adjacency, factor):
    event, mu = GaussianEvent(noise), factor / noise
    assert gaussian_dp_mu(event, slack=1e-5, adjacency=adjacency) == pytest.approx(mu, rel=1e-13)
    assert zcdp_rho(event, adjacency=adjacency) == pytest.approx(0.5 * mu**2, rel=1e-12)
    curve = privacy_curve(event, adjacency=adjacency)
    exact = gaussian_power(RATES, mu)
    reached = curve.true_positive_rate(RATES)
    assert np.all(reached >= exact - 1e-15)
    # The straight pieces between points, and what the curve ends at.
    np.testing.assert_allclose(reached, exact, rtol=2e-4, atol=2e-11)
    np.testing.assert_array_equal(curve.trade_off(RATES), 1.0 - reached)


def test_gaussians_compose_as_one():
    several = Composed((GaussianEvent(2.0), SelfComposed(GaussianEvent(3.0), 4)))
    mu = math.sqrt(1.0 / 4.0 + 4.0 / 9.0)
    assert gaussian_dp_mu(several, slack=1e-9) == pytest.approx(mu, rel=1e-13)
    assert zcdp_rho(several) == pytest.approx(0.5 * mu**2, rel=1e-12)


@pytest.mark.parametrize(("shift", "rate"), [(0.5, 0.1), (1.0, 0.01), (3.0, 0.3)])
def test_one_sampled_step_against_forty_digits(shift, rate):
    curve = privacy_curve(PoissonSampled(rate, GaussianEvent(1.0 / shift)))
    for epsilon in (0.0, 0.01, 0.1, 0.4, 1.0):
        exact = max(float(ONE_STEP[order](shift, rate, epsilon)) for order in ("remove", "add"))
        assert exact <= float(curve.delta(epsilon)) <= exact * (1.0 + 2e-3) + 1e-11
    # Neyman and Pearson's tests of the two data sets, in both orders, reach no more than the bound, and nearly that.
    noise = np.linspace(-6.0, 6.0 + shift, 401)
    near, far = norm.sf(noise), (1.0 - rate) * norm.sf(noise) + rate * norm.sf(noise - shift)
    remove, add = (near, far), (1.0 - far, 1.0 - near)
    best = np.zeros(noise.size)
    for false_positive, true_positive in (remove, add):
        bound = curve.true_positive_rate(false_positive)
        assert np.all(true_positive <= bound + 1e-15)
        best = np.maximum(best, np.interp(noise, noise, true_positive / bound))
    assert np.median(best) > 0.99


@pytest.mark.statistical
def test_no_simulated_attack_beats_the_bound():
    """Neyman and Pearson's attack on 12 steps, with exact bounds on its rates: false positives 6e-6.

    Power twin: the bound of a run with noise larger by a tenth is beaten.
    """
    rate, noise, steps, n = 0.3, 1.2, 12, 200_000
    rng = np.random.default_rng(1)

    def losses(shift):
        draws = rng.normal(size=(n, steps)) + shift
        return np.log1p(rate * np.expm1(draws / noise - 0.5 / noise**2)).sum(axis=1)

    out, inside = losses(0.0), losses((rng.random((n, steps)) < rate) / noise)
    half = n // 2
    true, larger = (privacy_curve(run_event(scale * noise, rate, steps)) for scale in (1.0, 1.1))
    for level in (0.01, 0.05, 0.2):
        threshold = np.quantile(out[:half], 1.0 - level)
        wrong, right = np.sum(out[half:] > threshold), np.sum(inside > threshold)
        false_positive = beta.ppf(1.0 - 1e-6, wrong + 1, half - wrong)
        true_positive = beta.ppf(1e-6, right, n - right + 1)
        assert true_positive <= float(true.true_positive_rate(false_positive))
        assert true_positive > float(larger.true_positive_rate(false_positive))


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_two_steps_against_quadrature(direction):
    curve = privacy_curve(run_event(1.25, 0.2, 2))
    for epsilon in (0.05, 0.3, 0.9):
        assert two_step_delta(0.8, 0.2, epsilon, direction) <= float(curve.delta(epsilon)) + 1e-12


@pytest.mark.parametrize("name", RUNS)
def test_curves_agree_with_the_accountant_between_their_points(name):
    event, adjacency = RUNS[name]
    curve = privacy_curve(event, adjacency=adjacency)
    assert curve.epsilons[0] == 0.0
    assert np.all(np.diff(curve.epsilons) > 0.0)
    assert np.all(np.diff(curve.deltas) <= 0.0)
    for delta in (1e-2, 1e-5, 1e-8):
        epsilon = account(event, delta=delta, adjacency=adjacency).epsilon
        assert float(curve.delta(epsilon)) == pytest.approx(delta, rel=2e-2)
    middle = 0.5 * (curve.epsilons[:-1] + curve.epsilons[1:])[::128]
    certified = [delta_for(event, epsilon=float(epsilon), adjacency=adjacency) for epsilon in middle]
    np.testing.assert_allclose(curve.delta(middle), certified, rtol=2e-2, atol=1e-11)


@pytest.mark.parametrize("name", RUNS)
def test_mu_covers_the_curve_and_hardly_more(name):
    """Power twin: a mu that is smaller by a thousandth misses somewhere."""
    event, adjacency = RUNS[name]
    slack = 1e-5
    mu = gaussian_dp_mu(event, slack=slack, adjacency=adjacency)
    curve = privacy_curve(event, adjacency=adjacency)
    epsilons = np.linspace(0.0, account(event, delta=slack, adjacency=adjacency).epsilon, 3001)
    room = np.array([dpi.accounting.gaussian.gaussian_delta(mu, epsilon) for epsilon in epsilons]) + slack
    assert np.all(curve.delta(epsilons) <= room)
    less = np.array([dpi.accounting.gaussian.gaussian_delta(mu * 0.999, epsilon) for epsilon in epsilons]) + slack
    assert np.any(curve.delta(epsilons) > less)
    # The statement that mu makes about attacks.
    reached = curve.true_positive_rate(RATES)
    assert np.all(reached <= gaussian_power(RATES, mu) + slack + 1e-4)


def test_a_long_run_is_nearly_gaussian():
    limit = 0.1 * math.sqrt(2500 * math.expm1(1.0 / 18.0**2))
    assert gaussian_dp_mu(RUN, slack=1e-5) == pytest.approx(limit, rel=5e-3)


def test_the_check_between_points_sees_a_chord_that_is_too_high():
    """Power twin: with two points far apart the curve passes at both and not between them."""
    epsilons = np.array([0.0, 1.0])
    deltas = np.array([float(gaussian_delta(1.0, epsilon)) for epsilon in epsilons])
    assert not _covers(1.0, 1e-9, epsilons, deltas)
    dense = np.linspace(0.0, 1.0, 2001)
    exact = np.array([float(gaussian_delta(1.0, epsilon)) for epsilon in dense[::40]])
    assert _covers(1.001, 1e-9, dense[::40], exact)
    assert not _covers(0.999, 1e-9, dense[::40], exact)


def test_less_noise_or_less_slack_never_lowers_mu():
    mus = [gaussian_dp_mu(run_event(noise, 0.1, 400), slack=1e-5) for noise in (4.0, 5.0, 8.0, 16.0)]
    assert mus == sorted(mus, reverse=True)
    event = run_event(5.0, 0.1, 400)
    mus = [gaussian_dp_mu(event, slack=slack) for slack in (1e-3, 1e-5, 1e-8, 1e-11)]
    assert mus == sorted(mus)
    assert mus[-1] <= gaussian_dp_mu(SelfComposed(GaussianEvent(5.0), 400), slack=1e-11)


def test_without_slack_sampling_does_not_lower_mu():
    """The reason for the slack: at any mu below the unsampled one, delta is larger somewhere far out."""
    shift, rate = 1.0, 0.01
    for mu in (0.5, 0.9):
        assert any(
            ONE_STEP["remove"](shift, rate, epsilon) > gaussian_delta(mu, epsilon) for epsilon in (1.0, 5.0, 20.0, 60.0)
        )
    assert gaussian_delta(1.0, 60.0) > ONE_STEP["remove"](shift, rate, 60.0)


def test_sampling_does_not_lower_rho_at_large_orders():
    shift, rate, order = mpmath.mpf(1), mpmath.mpf("0.01"), 400
    terms = [
        mpmath.binomial(order, k) * (1 - rate) ** (order - k) * rate**k * mpmath.exp(k * (k - 1) * shift**2 / 2)
        for k in range(order + 1)
    ]
    divergence = mpmath.log(mpmath.fsum(terms)) / (order - 1)
    rho = zcdp_rho(PoissonSampled(0.01, GaussianEvent(1.0)))
    assert 0.95 * rho < float(divergence / order) <= rho


def test_nothing_is_certified_where_nothing_is_claimed():
    for event in (NonPrivateEvent(), Composed((GaussianEvent(5.0), NonPrivateEvent()))):
        assert gaussian_dp_mu(event, slack=1e-5) == zcdp_rho(event) == math.inf
        assert privacy_curve(event).true_positive_rate(RATES).tolist() == [1.0] * RATES.size
    for call in (privacy_curve, zcdp_rho, lambda event: gaussian_dp_mu(event, slack=0.1)):
        with pytest.raises(UnsupportedEventError):
            call(SampledWithoutReplacement(10, 1, GaussianEvent(1.0)))
        with pytest.raises(TypeError, match="event"):
            call("gaussian")


def test_noise_beyond_all_measure():
    assert gaussian_dp_mu(run_event(1e9, 1e-4, 10), slack=1e-5) < 1e-9
    tiny = privacy_curve(GaussianEvent(1e-3))
    assert float(tiny.true_positive_rate(0.01)) == 1.0
    assert gaussian_dp_mu(GaussianEvent(1e-3), slack=1e-5) == math.inf


def test_finite_precision_is_in_the_curve():
    """The share of delta that the noise's bits cost is added; without it a slack below it would be granted."""
    assert gaussian_dp_mu(GaussianEvent(1.0), slack=1e-25) == pytest.approx(1.0)
    assert gaussian_dp_mu(GaussianEvent(1.0), slack=1e-36) == math.inf


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_rates_and_epsilons_are_checked(value):
    curve = privacy_curve(GaussianEvent(1.0))
    with pytest.raises(ValueError, match="false_positive_rate"):
        curve.true_positive_rate(value)
    with pytest.raises(ValueError, match="epsilon"):
        curve.delta(-abs(value))
    with pytest.raises(ValueError, match="slack"):
        gaussian_dp_mu(GaussianEvent(1.0), slack=value)


def test_shapes_and_read_only_points():
    curve = privacy_curve(GaussianEvent(1.0))
    assert isinstance(curve, PrivacyCurve)
    for shape in ((), (1,), (2, 3)):
        assert curve.delta(np.full(shape, 0.5)).shape == shape
        assert curve.trade_off(np.full(shape, 0.5)).shape == shape
    with pytest.raises(ValueError, match="read-only"):
        curve.deltas[0] = 0.0


def test_a_plan_answers_in_all_terms():
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=2500)
    guarantee = plan.guarantee
    assert guarantee == str(guarantee) == f"{guarantee}"
    assert guarantee.epsilon == plan.epsilon
    assert guarantee.epsilon_at(1e-7) == account(plan.event, delta=1e-7).epsilon
    assert guarantee.delta_at(0.5) == delta_for(plan.event, epsilon=0.5)
    assert guarantee.mu == gaussian_dp_mu(plan.event, slack=1e-5)
    assert guarantee.rho == zcdp_rho(plan.event)
    terms = dict(guarantee.terms())
    assert terms["mu (Gaussian DP)"].startswith(rounded_up(guarantee.mu))
    reached = 100.0 * float(guarantee.true_positive_rate(0.01))
    stated = float(terms["membership attack with 1% false positives"].split()[2].rstrip("%"))
    assert reached <= stated < reached + 0.02
    assert all(text in guarantee.in_other_terms() for text in terms["rho (zCDP)"].split())
    again = pickle.loads(pickle.dumps(guarantee))
    assert isinstance(again, Guarantee)
    assert (again, again.mu, again.delta) == (guarantee, guarantee.mu, guarantee.delta)


def test_a_plan_that_understates_is_refused():
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=2500)
    for epsilon in (0.0, 0.99 * plan.epsilon):
        with pytest.raises(ValueError, match="epsilon must follow"):
            dpi.PrivacyPlan.from_dict(plan.to_dict() | {"epsilon": epsilon})
    # More than is certified claims less.
    assert dpi.PrivacyPlan.from_dict(plan.to_dict() | {"epsilon": None, "target_epsilon": None}).epsilon == math.inf


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.52651, "0.5266"), (1.0, "1"), (0.99996, "1"), (0.1 + 0.2, "0.3"), (1.00001, "1.001"), (0.0, "0")],
)
def test_printed_bounds_are_rounded_up(value, text):
    assert rounded_up(value) == text
    assert float(text) >= value * (1.0 - 1e-11)
