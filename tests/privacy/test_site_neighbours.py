"""DP-SEP's sensitivity in integers, and the noise of the update actually made: wrong variants must be caught."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from tests.reference.site_sessions import binary, mixture, set_state

import dpinfer as dpi
from dpinfer.accounting import GaussianEvent, SelfComposed
from dpinfer.mechanism import _native
from dpinfer.release.sites import trace as site_trace
from dpinfer.testing import InsecureRNG

extreme = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-1e3, 1e3),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-160, 1e154, 1.1e154, 1e155, 1e300, 1.7e308, -1.7e308]),
)


def keeps_to_the_bound(vector, norm, lattice_step, share=1):
    """Whether ||vector|| <= share * C / g, exactly, in Python integers."""
    square = sum(int(k) * int(k) for k in vector)
    numerator, denominator = (norm / lattice_step).as_integer_ratio()
    return square * denominator**2 <= share**2 * numerator**2


def mixture_session(points, norm, weight=0.3, spread=1.0):
    session = mixture(points, np.array([0.3, 0.7]), np.tile(0.2 * np.eye(2), (2, 1, 1)), norm)
    loc = np.array([[0.3, 0.1], [-1.0, 2.0]])
    set_state(session, loc, np.tile(spread * np.eye(2), (2, 1, 1)), loc + 0.1, weight, np.full(10, 2.0 * norm))
    return session


def binary_session(features, response, likelihood, norm, spread=1.0):
    session = binary(features, response, likelihood, True, norm)
    set_state(session, np.array([[0.3, -2.0, 1.0]]), spread * np.eye(3)[None], np.ones((1, 3)), 0.5, np.full(9, norm))
    return session


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    points=hnp.arrays(np.float64, (1, 2), elements=extreme),
    norm=st.floats(1e-30, 9e29),
    spread=st.sampled_from([1e-12, 1.0, 1e12]),
    kind=st.sampled_from(["mixture", "probit", "logistic"]),
    label=st.booleans(),
)
def test_one_record_keeps_to_the_bound(points, norm, spread, kind, label):
    """Whatever the record, its integer vector has norm at most C / g; it is never an error."""
    if kind == "mixture":
        session = mixture_session(points, norm, spread=spread)
    else:
        session = binary_session(points, np.array([float(label)]), kind, norm, spread)
    assert keeps_to_the_bound(session.clipped_sum(np.array([0])), norm, session.lattice_step)


@pytest.mark.parametrize("norm", [1e-3, 0.7, 5.0])
def test_neighbours_differ_by_one_records_vector(rng, norm):
    """Deterministic: under add/remove the sum moves by the record's own vector, under replacement by two of them."""
    points = np.concatenate((rng.normal(size=(30, 2)), [[50.0, -3.0], [1e308, 0.0]]))
    for row in (0, 30, 31):
        own = mixture_session(points, norm).clipped_sum(np.array([row]))
        with_it = mixture_session(points, norm).clipped_poisson_sum(0, 1.0)
        without = mixture_session(np.delete(points, row, axis=0), norm).clipped_poisson_sum(0, 1.0)
        np.testing.assert_array_equal(with_it - without, own)
        replaced = points.copy()
        replaced[row] = [-4.0, 9.0]
        other = mixture_session(replaced, norm).clipped_sum(np.array([row]))
        step = mixture_session(points, norm).lattice_step
        np.testing.assert_array_equal(mixture_session(replaced, norm).clipped_poisson_sum(0, 1.0) - without, other)
        assert keeps_to_the_bound(own, norm, step)
        assert keeps_to_the_bound(own - other, norm, step, share=2)
        # Under uniform and permuted sampling a replaced record changes only the steps that read it.
        session, changed = mixture_session(points, norm), mixture_session(replaced, norm)
        for t in range(64):
            same = np.array_equal(session.uniform_sum(t, 3.0), changed.uniform_sum(t, 3.0))
            assert same == (session.uniform_row(t) != row)
        touched = [
            t for t in range(64) if not np.array_equal(session.permuted_sum(t, 3.0), changed.permuted_sum(t, 3.0))
        ]
        assert [t // 32 for t in touched] == [0, 1]


def separately_clipped(session, row, norm, width):
    """Build the wrong variant: linear terms and precisions clipped at C each, to be noised as if jointly."""
    site = session.contributions(np.array([row]))[0]
    parts = [site[:width], site[width:]]
    parts = [part * min(1.0, norm * (1.0 - 2.0**-20) / np.linalg.norm(part)) for part in parts]
    return np.rint(np.concatenate(parts) / session.lattice_step).astype(np.int64)


def test_separate_clipping_is_caught():
    """eta and Lambda clipped at C each have joint norm sqrt(2) C: the bound must reject them, and accept ours."""
    norm = 0.5
    session = mixture_session(np.array([[4.0, -3.0]]), norm, weight=1.0)
    assert keeps_to_the_bound(session.clipped_sum(np.array([0])), norm, session.lattice_step)
    wrong = separately_clipped(session, 0, norm, 4)
    assert not keeps_to_the_bound(wrong, norm, session.lattice_step)
    assert keeps_to_the_bound(wrong, norm * np.sqrt(2.0), session.lattice_step)


N, EPOCHS, NORM, SIGMA = 40, 5, 2.0, 5.0
MODEL = dpi.models.GaussianMixture(2, 2, covariance=0.25, prior_scale=2.0)


def single_record_run(sampling, damping, rng):
    points = MODEL.simulate(np.array([1.0, 1.0, -1.0, -1.0]), N, rng)
    plan = dpi.PrivacyPlan.from_noise_multiplier(SIGMA, None, EPOCHS * N, 1e-5, sampling=sampling, n_records=N)
    source = InsecureRNG(3)
    release = dpi.run_dp_sep(
        MODEL, points, plan=plan, n_records=N, damping=damping, sites="natural", max_site_norm=NORM,
        random_source=source, start=np.array([[1.0, 1.0], [-1.0, -1.0]]), isotropic=False,
    )  # fmt: skip
    return points, release


def update_noise(points, release, key):
    """Noise that entered q's natural parameters at each step: its standard deviation over gamma / N, (T, k).

    The exact clipped site of the step's record is computed again from the released state, which only an audit can do.
    """
    session = _native.mixture_sites(
        contribution="site", points=points, log_weights=MODEL.log_weights, covariances=MODEL.covariances,
        max_site_norm=release.max_site_norm, key=key, n_threads=1,
    )  # fmt: skip
    iterate_noise = np.empty_like(release.noisy_sums)
    natural = natural_parameters(release)
    for step in range(release.n_steps):
        state(session, release, step)
        row = session.order(step // N)[step % N] if release.sampling == "permutation" else session.uniform_row(step)
        exact = session.clipped_sum(np.array([row])) * session.lattice_step
        rate = release.damping[step]
        expected = (1.0 - rate) * natural[step] + rate * (prior_parameters(release) + exact * N)
        # gamma / N = rate N: what the step multiplies the record's site by.
        iterate_noise[step] = (natural[step + 1] - expected) / (rate * N)
    return iterate_noise


def prior_parameters(release):
    precision = np.eye(2)[None].repeat(2, axis=0) / release.prior_scale**2
    eta = release.prior_loc / release.prior_scale**2
    return np.concatenate((eta.ravel(), site_trace.svec(precision).ravel()))


def natural_parameters(release):
    """(T + 1, k), eta integrated from the released sums as the run does."""
    precision = release.precision.reshape(release.n_steps + 1, -1)
    eta = np.empty((release.n_steps + 1, 4))
    raw = site_trace.smat(release.precision[0], 2)
    eta[0] = (raw @ release.loc[0][..., None])[..., 0].ravel()
    prior = prior_parameters(release)[:4]
    for step, rate in enumerate(release.damping):
        eta[step + 1] = (1.0 - rate) * eta[step] + rate * (prior + release.noisy_sums[step, :4] / release.sample_rate)
    return np.concatenate((eta, precision), axis=1)


def state(session, release, step):
    from dpinfer.mechanism.sites.state import SiteIterate, SitePrior, floored
    from dpinfer.mechanism.sums.sites import set_cavity

    precision = site_trace.smat(release.precision[step], 2)
    used = floored(precision, release.floor[step], isotropic=False)
    iterate = SiteIterate(
        SitePrior(release.prior_loc, release.prior_scale), release.loc[step], precision, n_records=N, centred=False,
        isotropic=False, block_weight=1.0, trust_radius=np.inf,
    )  # fmt: skip
    set_cavity(session, iterate.cavity(used), 1.0)


def noise_is_enough(noise, sensitivity_noise):
    """Whether noise of (gamma / N) times `sensitivity_noise` can be what entered, at a false-positive rate of 1e-6."""
    square = np.sum(noise**2) / sensitivity_noise**2
    return square > stats.chi2.ppf(1e-6, noise.size)


@pytest.mark.statistical
@pytest.mark.parametrize("sampling", ["uniform", "permutation"])
@pytest.mark.parametrize("damping", [float(N), 1.0])
def test_noise_follows_the_update_made(rng, sampling, damping):
    """Whatever gamma is, the noise in q is (gamma / N) sigma C: 2 gamma C / N times the published sigma, honestly."""
    points, release = single_record_run(sampling, damping, rng)
    noise = update_noise(points, release, InsecureRNG(3).take_key())
    assert noise_is_enough(noise, SIGMA * NORM)
    # It is no more than that either, so that the check below has power.
    assert np.sum(noise**2) / (SIGMA * NORM) ** 2 < stats.chi2.isf(1e-6, noise.size)


@pytest.mark.statistical
def test_noise_meant_for_gamma_one_under_the_standard_update_is_caught(rng):
    """The wrong variant: the standard update (gamma = N) with the noise 2 C / N of gamma = 1, a factor N short."""
    points, release = single_record_run("uniform", float(N), rng)
    noise = update_noise(points, release, InsecureRNG(3).take_key())
    assert not noise_is_enough(noise / N, SIGMA * NORM)
    # Even a quarter short is caught with so many numbers.
    assert not noise_is_enough(0.75 * noise, SIGMA * NORM)


def test_counting_epochs_instead_of_steps_is_caught(rng):
    """The wrong variant: N T uniformly sampled sums accounted as T.  A release refuses it, and it costs more."""
    _, release = single_record_run("uniform", float(N), rng)
    by_epoch = SelfComposed(release.event.event, EPOCHS)
    with pytest.raises(ValueError, match="event"):
        dataclasses.replace(release, event=by_epoch)
    honest = dpi.account(release.event, delta=1e-5, adjacency="replace_one").epsilon
    assert dpi.account(by_epoch, delta=1e-5, adjacency="replace_one").epsilon < 0.5 * honest
    # Nor does amplification by sampling apply to a permutation.
    with pytest.raises(ValueError, match="event"):
        dataclasses.replace(release, sampling="permutation")
    _, permuted = single_record_run("permutation", float(N), rng)
    assert permuted.event == SelfComposed(GaussianEvent(SIGMA), EPOCHS)
    with pytest.raises(ValueError, match="event"):
        dataclasses.replace(permuted, event=SelfComposed(GaussianEvent(SIGMA), EPOCHS - 1))
    with pytest.raises(ValueError, match=r"adjacency|must follow from the events"):
        dataclasses.replace(permuted, adjacency=dpi.accounting.Adjacency.ADD_REMOVE)
    with pytest.raises(ValueError, match="noise_stddev"):
        dataclasses.replace(permuted, noise_stddev=0.5 * permuted.noise_stddev)
