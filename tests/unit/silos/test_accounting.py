"""Epsilon of three adversaries: at 60 digits, in ledgers of sites, and what a site refuses."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats
from tests.reference.silo_views import BITS, certified_epsilon, exact_delta, law_of_shares

import dpinfer as dpi
from dpinfer.errors import InsecureReleaseError, SiloError
from dpinfer.inference.statistic.noise_laws import LaplaceLaw, LaplaceSharesLaw
from dpinfer.mechanism import Silos
from dpinfer.mechanism.discrete_laplace import discrete_laplace, laplace_share
from dpinfer.mechanism.silos import LocalLine, Site, Terms
from dpinfer.mechanism.silos.terms import epsilon_of_adversaries
from dpinfer.testing import InsecureRNG

N = 300
LOGISTIC = dpi.models.LogisticRegression(2)
PLAN = dpi.plan_newton(LOGISTIC, target_epsilon=2.0, target_delta=1e-5, n_records=N)


def records():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    return X, (X[:, 0] + rng.normal(size=N) > 0.0).astype(float)


def sites(n_sites=4, secure=True, **options):
    X, y = records()
    parts = np.array_split(np.arange(N), n_sites)
    return [
        Site(X[part], y[part], random_source=None if secure else InsecureRNG(place), **options)
        for place, part in enumerate(parts)
    ]


def run(line, **options):
    return dpi.run_newton(LOGISTIC, Silos(LocalLine(line), **options), plan=PLAN, n_records=N)


@pytest.mark.parametrize(("needed", "unknown"), [(1, 1), (3, 3), (3, 5)])
def test_epsilon_is_never_below_the_exact_one_of_summed_rounded_shares(needed, unknown):
    """The smallest shares that a site draws, 64 lattice steps: delta at the certified epsilon, at 60 digits."""
    law = law_of_shares(unknown)
    assert sum(law) == pytest.approx(2.0**BITS, rel=1e-12)
    for delta in (1e-3, 1e-6):
        epsilon = certified_epsilon(needed, unknown, delta)
        exact = exact_delta(law, epsilon)
        assert exact <= delta
        # Tight, too: the certificate is that of the Gaussian, which the lattice hardly changes.
        assert exact >= 0.97 * delta
        # Power: with one unknown share less the same epsilon does not hold.
        if unknown > 1:
            assert exact_delta(law_of_shares(unknown - 1), epsilon) > delta


def test_epsilon_of_a_run_is_never_below_the_gaussians_at_60_digits():
    terms = Terms(6, 1, 1)
    found = epsilon_of_adversaries(
        PLAN.event, [6, 5] + [5] * (PLAN.n_passes - 2), terms, delta=1e-5, adjacency=PLAN.adjacency
    )
    present = {"outsider": (6, 5), "coordinator": (5, 4), "one site": (5, 4)}
    for name, (first, rest) in present.items():
        with mpmath.workdps(60):
            shares = [first] + [rest] * (PLAN.n_passes - 1)
            mu = mpmath.sqrt(
                mpmath.fsum(
                    mpmath.mpf(4) / count / mpmath.mpf(sigma) ** 2
                    for count, sigma in zip(shares, PLAN.noise_multipliers, strict=True)
                )
            )

            def delta_at(epsilon, mu=mu):
                upper, lower = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
                return mpmath.ncdf(upper) - mpmath.e**epsilon * mpmath.ncdf(lower)

            exact = mpmath.findroot(lambda epsilon: mpmath.log(delta_at(epsilon) / mpmath.mpf(10) ** -5), found[name])
        assert float(exact) <= found[name] <= float(exact) * (1.0 + 1e-6)


def test_the_release_states_three_epsilons_and_every_site_charges_the_worst(tmp_path):
    accounts = [
        dpi.PrivacyLedger.create(tmp_path / f"ledger-{place}").add_dataset("ours", budget=(2.5, 1e-5))
        for place in range(4)
    ]
    line = [site for place in range(4) for site in sites(ledger=accounts[place])[place : place + 1]]
    release = run(line, may_vanish=1, may_collude=2)
    said = release.settings["silos"]
    assert said["epsilon"]["outsider"] < said["epsilon"]["one site"] < said["epsilon"]["coordinator"] < release.epsilon
    assert release.epsilon <= 2.0
    assert "of 4 sites: epsilon " in release.guarantee
    assert "against the coordinator with 2 of the sites" in release.guarantee
    release.save(tmp_path / "release")
    assert dpi.release.load_release(tmp_path / "release").guarantee == release.guarantee
    assert release.secure
    for account_of_site in accounts:
        (charged,) = account_of_site.runs()
        assert (charged.event, charged.status) == (PLAN.event, "finished")
        assert charged.mechanism == "newton, one of 4 silos"
    # The budget is over: the sites refuse before anything is read, and are charged nothing more.
    with pytest.raises(SiloError, match="its budget"):
        run(line, may_vanish=1)
    assert [len(item.runs()) for item in accounts] == [1] * 4


def test_a_site_is_charged_when_its_records_are_read_and_not_before(tmp_path):
    account_of_site = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("ours", budget=(9.0, 1e-5))
    refusing = [*sites(ledger=account_of_site)[:1], *sites(approve=lambda request: False)[1:]]
    with pytest.raises(SiloError, match=r"sites 2, 3, 4 have not joined \(its curator\); nothing was charged"):
        run(refusing)
    assert account_of_site.runs() == ()
    # Records that cannot be used stay charged, and the coordinator is not told why.
    bad = Site(np.full((9, 2), np.nan), np.zeros(9), ledger=account_of_site)
    line = [bad, *sites()[1:]]
    with pytest.raises(SiloError, match="4 sites must be there in every pass, and 3 gave a sum"):
        run(line)
    assert [item.status for item in account_of_site.runs()] == ["finished"]
    assert "finite" in str(bad.failure)
    release = run([Site(np.full((9, 2), np.nan), np.zeros(9)), *sites()[1:]], may_vanish=1)
    assert release.settings["silos"]["present"] == [3] * PLAN.n_passes


def test_a_curator_is_shown_what_is_asked():
    asked, told = [], []
    line = sites(approve=lambda request: asked.append(str(request)) or True, tell=told.append)
    run(line, may_vanish=1)
    assert "LogisticRegression of 2 parameters" in asked[0]
    assert "sites: 4, of which this is number 1; 1 may vanish, 1 may collude" in asked[0]
    assert "coordinator 2" in asked[0]
    assert any("SecondMoments: 3 numbers" in line for line in told)
    assert len([line for line in told if line.startswith("fingerprint")]) == 4
    assert len({line for line in told if line.startswith("fingerprint")}) == 1


def test_seeded_sites_make_a_release_that_is_not_private(tmp_path):
    release = run([*sites(secure=False)[:1], *sites()[1:]])
    assert not release.secure
    with pytest.raises(InsecureReleaseError):
        _ = release.epsilon
    account_of_site = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("ours")
    seeded = Site(*records(), random_source=InsecureRNG(0), ledger=account_of_site)
    with pytest.raises(SiloError):
        run([seeded, *sites()[1:]])
    assert account_of_site.runs() == ()


def test_what_does_not_go_with_silos_is_refused(tmp_path):
    silos = Silos(LocalLine(sites()))
    account_of_all = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("ours")
    with pytest.raises(ValueError, match="ledger must be None with Silos: give each Site its own"):
        dpi.run_newton(LOGISTIC, silos, plan=PLAN, n_records=N, ledger=account_of_all)
    with pytest.raises(TypeError, match="y must be None with a Silos"):
        dpi.run_newton(LOGISTIC, silos, records()[1], plan=PLAN, n_records=N)
    with pytest.raises(TypeError, match=r"unit must be None with Silos: .* give each unit one row"):
        dpi.run_newton(LOGISTIC, silos, plan=PLAN, n_records=N, unit=dpi.mechanism.Units(np.arange(N), max_rows=1))
    with pytest.raises(TypeError, match="something is unknown, must be an array or a RowSource, not Silos"):
        dpi.fit(LOGISTIC, silos, epsilon=2.0, delta=1e-5, unknown=["n_records"])
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=3)
    with pytest.raises(TypeError, match="not Silos"):
        dpi.run_dpvi(LOGISTIC, silos, plan=plan, n_records=N, max_grad_norm=1.0)
    with pytest.raises(TypeError, match="line must be"):
        Silos(None)
    assert account_of_all.runs() == ()
    # Before anything was asked of a site.
    assert all(site.transcript.n_bytes["coordinator"] == 0 for site in silos._line.sites)


@pytest.mark.statistical
@pytest.mark.parametrize("shares", [1, 3])
def test_shares_of_laplace_noise_sum_to_it(shares):
    """Chi-square of the sum against the discrete Laplace law; false-positive rate 1e-6.  Twin: one share missing."""
    size, scale = 4000, Fraction(3, 2)

    def p_value(parts):
        total = np.sum(parts, axis=0)
        cells = np.clip(total, -6, 6) + 6
        law = np.exp(LaplaceLaw(1.5).log_probability(np.arange(-200.0, 201.0)))
        expected = np.array([law[:195].sum(), *law[195:206], law[206:].sum()])
        return stats.chisquare(np.bincount(cells, minlength=13), expected * size).pvalue

    parts = [laplace_share(bytes([place]) * 32, scale, size, shares=shares) for place in range(shares)]
    assert p_value(parts) > 1e-6
    assert p_value([*parts, parts[0]]) < 1e-6
    assert p_value([discrete_laplace(b"\7" * 32, scale, size)]) > 1e-6


def test_the_law_of_more_shares_is_the_convolution():
    k = np.arange(-3000.0, 3001.0)
    for scale in (0.5, 20.0):
        own = np.exp(LaplaceLaw(scale).log_probability(k))
        law = LaplaceSharesLaw(scale, 2.0)
        np.testing.assert_allclose(np.exp(law.log_probability(k)), np.convolve(own, own, "same"), atol=1e-12)
        assert float(np.exp(law.log_probability(k)) @ k**2) == pytest.approx(law.variance, rel=1e-9)
    # Halves: two of shape 1.25 are one of 2.5; and the fine law goes on where the coarse one ends.
    half = np.exp(LaplaceSharesLaw(5.0, 1.25).log_probability(k))
    np.testing.assert_allclose(
        np.exp(LaplaceSharesLaw(5.0, 2.5).log_probability(k)), np.convolve(half, half, "same"), atol=1e-12
    )
    near, far = (LaplaceSharesLaw(scale, 1.25).log_probability(k[3000:4500]) for scale in (199.999, 200.0))
    np.testing.assert_allclose(near, far, atol=2e-4)
    law = LaplaceSharesLaw(5.0, 2.5)
    assert law.log_probability(np.array([0.0]))[0] - law.log_probability(np.array([law.reach(30.0)]))[0] > 29.0


@pytest.mark.parametrize(
    ("model", "draw"),
    [
        (dpi.models.BetaBernoulli(1, 1), lambda rng: (rng.random(N) < 0.3).astype(float)),
        (dpi.models.DirichletCategorical(), lambda rng: rng.integers(0, 3, N).astype(float)),
        (dpi.models.GammaExponential(2.0, 1.0), lambda rng: rng.exponential(size=N)),
    ],
    ids=["ones", "categories", "waiting"],
)
def test_a_statistic_of_sites_has_a_posterior(model, draw):
    values = draw(np.random.default_rng(0))
    parts = np.array_split(values, 5)
    line = LocalLine([Site(part, random_source=InsecureRNG(place)) for place, part in enumerate(parts)])
    release = dpi.run_statistic(model, Silos(line, may_vanish=1, may_collude=1), epsilon=2.0, n_records=N)
    assert release.settings["silos"]["present"] == [5]
    assert release.settings["silos"]["epsilon"] == dict.fromkeys(("outsider", "coordinator", "one site"), 2.0)
    width = np.atleast_1d(dpi.noise_aware_posterior(release).stddev)
    central = dpi.run_statistic(model, values, epsilon=2.0, n_records=N, random_source=InsecureRNG(0))
    assert np.all(width < 1.5 * np.atleast_1d(dpi.noise_aware_posterior(central).stddev))
    # What is counted is there: noise of the sum is a few units.
    sums = {
        "BetaBernoulli": values.sum(),
        "GammaExponential": np.minimum(values, release.settings.get("clip", 1)).sum(),
    }
    if type(model).__name__ in sums:
        scale = release.laplace_scale[0]
        assert abs(release.noisy_statistics[0] - sums[type(model).__name__]) < 20.0 * scale


def test_fit_takes_silos():
    fit = dpi.fit(LOGISTIC, Silos(LocalLine(sites())), epsilon=2.0, delta=1e-5, n_records=N)
    assert fit.release.settings["silos"]["n_sites"] == 4
    assert fit.posterior.mean[0] > 0.0
