"""A package that brings a model, a method, a source and a law of noise: all run, and none says more than is so."""

import math
import shutil
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import NoiseTable, noise_table
from dpinfer.errors import InsecureReleaseError
from dpinfer.mechanism import open_source, run_statistic
from dpinfer.mechanism.statistic import drawn
from dpinfer.models import BetaBernoulli, BetaBinomial, DirichletCategorical, model_from_dict
from dpinfer.testing import InsecureRNG

FOLDER = Path(__file__).parents[1] / "plugins"
MODEL = BetaBernoulli(1.0, 1.0)
X = np.repeat([1.0, 0.0], [140, 60])


@pytest.fixture
def hospital(monkeypatch):
    """Install the package: its folder of metadata is on the path, as pip would put it."""
    monkeypatch.syspath_prepend(str(FOLDER))


def fitted(method, **options):
    return dpi.fit(MODEL, X, epsilon=1.0, delta=1e-6, n_records=200, method=method, **options)


@pytest.mark.usefixtures("hospital")
def test_a_method_is_planned_run_saved_and_read(tmp_path):
    account = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("wards", budget=(2.0, 1e-5))
    fit = fitted("halves", ledger=account, path=tmp_path / "fit")
    assert fit.plan.epsilon == 0.5
    assert fit.release.epsilon == 0.5
    assert fit.release.settings["method_of"] == {"name": "halves", "package": "hospital 1.0"}
    for told in (fit.summary(), fit.posterior.summary(), dpi.load_fit(tmp_path / "fit").summary()):
        assert "by the method 'halves' of hospital 1.0" in str(told)
    assert account.spent(1e-6).epsilon == 0.5
    assert 0.5 < fit.posterior.mean[0] < 0.9
    assert dpi.load_fit(tmp_path / "fit").plan.method == "halves"
    fit.report(tmp_path / "report.html")
    assert "a method of another package" in (tmp_path / "report.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="checkpoint"):
        fitted("halves", checkpoint=tmp_path / "run")


@pytest.mark.usefixtures("hospital")
def test_a_method_that_spends_more_than_its_plan_has_no_guarantee():
    release = fitted("careless").release
    assert release.epsilon == math.inf
    assert "NOT PRIVATE" in release.guarantee
    assert "deviates from its plan" in release.leaks[0]


@pytest.mark.usefixtures("hospital")
def test_methods_of_others_come_last():
    # By name alone: "auto" never takes one, and the names of the library's are its own.
    assert fitted("auto").plan.method == "statistic"
    assert [item.method for item in fitted("auto").choice.candidates if item.method == "halves"] == []
    plan = dpi.plan_fit(dpi.models.LogisticRegression(2), epsilon=1.0, delta=1e-5, n_records=1000, method="newton")
    assert type(plan.mechanism).__module__.startswith("dpinfer.")
    with pytest.raises(ValueError, match="Beta-Bernoulli model only"):
        dpi.plan_fit(dpi.models.LogisticRegression(2), epsilon=1.0, delta=1e-5, n_records=1000, method="halves")


def test_what_is_not_installed_is_refused():
    with pytest.raises(ValueError, match=r"entry point of dpinfer\.methods"):
        fitted("halves")
    with pytest.raises(ValueError, match=r"dpinfer\.sources"):
        open_source("wards", 2, 3)
    with pytest.raises(ValueError, match=r"dpinfer\.noise_laws"):
        run_statistic(MODEL, X, epsilon=1.0, n_records=200, noise="staircase")


def test_two_packages_with_one_name_are_refused(hospital, tmp_path, monkeypatch):
    shutil.copytree(FOLDER / "hospital-1.0.dist-info", tmp_path / "clinic-2.0.dist-info")
    (tmp_path / "clinic-2.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: clinic\nVersion: 2.0\n")
    (tmp_path / "clinic-2.0.dist-info" / "entry_points.txt").write_text("[dpinfer.methods]\nhalves = clinic:Halves\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"two packages \(clinic, hospital\)"):
        fitted("halves")


@pytest.mark.usefixtures("hospital")
def test_a_source_and_a_model_are_found():
    release = run_statistic(MODEL, open_source("wards", 4, size=50), epsilon=1.0, n_records=200)
    assert release.epsilon == 1.0
    with pytest.raises(TypeError, match=r"hospital 1\.0 must give Records"):
        open_source("lists", 3)
    spec = dict(dpi.models.LogisticRegression(2).to_dict(), kind="HospitalRegression")
    assert type(model_from_dict(spec)).__module__ == "hospital"


@pytest.mark.usefixtures("hospital")
@pytest.mark.parametrize(("trials", "relation"), [(1, "add_remove"), (3, "replace_one")])
def test_a_law_of_noise_is_drawn_and_accounted_for_by_the_library(tmp_path, trials, relation):
    model = BetaBinomial(trials, 1.0, 1.0) if trials > 1 else MODEL
    values = X * trials
    release = run_statistic(model, values, epsilon=1.0, n_records=200, noise="staircase", adjacency=relation)
    table = noise_table("staircase", epsilon=1.0, sensitivity=trials)
    assert release.settings["noise"]["package"] == "hospital 1.0"
    assert release.event.to_dict()["delta"] == release.delta == table.delta(1.0, trials)
    # Cut off after 40 steps of exp(-1), and rounded to 63 bits.
    assert 0.0 < release.delta < 1e-15
    assert release.epsilon == pytest.approx(1.0, abs=1e-9)
    assert release.adjacency.value == relation
    release.save(tmp_path / "release")
    posterior = dpi.noise_aware_posterior(dpi.load_release(tmp_path / "release"))
    assert 0.5 < posterior.mean[0] < 0.9  # 0.7 of 200; noise and data together have a standard deviation below 0.04
    with pytest.raises(InsecureReleaseError):
        _ = run_statistic(
            model, values, epsilon=1.0, n_records=200, noise="staircase", adjacency=relation,
            random_source=InsecureRNG(1),
        ).epsilon  # fmt: skip


@pytest.mark.usefixtures("hospital")
@pytest.mark.parametrize(
    "name", ["replace", "with_leaks", "epsilon", "guarantee", "parts", "_check_guarantee", "leaks"]
)
def test_a_kind_of_release_that_could_lose_its_marks_is_refused_before_the_charge(name, tmp_path, monkeypatch):
    import hospital as package

    own = (
        property(lambda self: ()) if name in ("epsilon", "guarantee", "parts", "leaks") else lambda self, **fields: self
    )
    kind = type("Lying", (package.HalvesRelease,), {name: own, "format_name": "hospital-lying"})
    monkeypatch.setattr(package.Halves, "releases", (kind,))
    account = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("wards", budget=(2.0, 1e-5))
    with pytest.raises(TypeError, match=f"must leave {name} as it is"):
        fitted("halves", ledger=account)
    assert account.runs() == ()


def test_an_event_that_equals_anything_is_none():
    class Equal(dpi.accounting.GaussianEvent):
        def __eq__(self, other):
            return True

        __hash__ = dpi.accounting.GaussianEvent.__hash__

    for make in (lambda event: dpi.accounting.Composed((event,)), lambda event: dpi.accounting.SelfComposed(event, 3)):
        with pytest.raises(TypeError, match="privacy event"):
            make(Equal(1.0))
    with pytest.raises(TypeError, match="privacy event"):
        dpi.accounting.account(Equal(1.0), delta=1e-6)


@pytest.mark.usefixtures("hospital")
def test_what_is_no_table_is_refused_before_the_charge(tmp_path):
    account = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("wards")
    told = {"epsilon": 1.0, "n_records": 200, "ledger": account}
    with pytest.raises(TypeError, match="weights"):
        run_statistic(MODEL, X, noise="hollow", **told)
    with pytest.raises(ValueError, match="counts of successes"):
        run_statistic(DirichletCategorical([1.0, 1.0]), X, noise="staircase", **told)
    with pytest.raises(TypeError, match="NoiseTable"):
        run_statistic(MODEL, X, noise=3, **told)
    for weights in ([1], [1, 0], [2**64, 1], [1, -1], [1] * (2**14 + 1)):
        with pytest.raises((TypeError, ValueError), match="weights"):
            NoiseTable(weights)
    with pytest.raises(ValueError, match="fewer"):
        NoiseTable([1] * 10_000).delta(1.0, 1000)
    assert account.runs() == ()


@pytest.mark.parametrize(("size", "sensitivity"), [(2, 1), (40, 1), (40, 3), (7, 9)])
def test_delta_is_the_hockey_stick_divergence_of_the_table(size, sensitivity):
    """By 40 digits, over every shift in either direction; rounded up by less than a part in 1e14."""
    rng = np.random.default_rng([size, sensitivity])
    weights = [int(weight) for weight in rng.integers(1, 2**62, size)]
    law = {k: mpmath.mpf(weights[abs(k)]) for k in range(1 - size, size)}
    for epsilon in (0.01, 0.7, 5.0):
        with mpmath.workdps(40):
            growth, total = mpmath.exp(mpmath.mpf(epsilon)), mpmath.fsum(law.values())
            exact = max(
                mpmath.fsum(max(mpmath.mpf(0), own - growth * law.get(k - shift, 0)) for k, own in law.items()) / total
                for shift in range(-sensitivity, sensitivity + 1)
            )
            found = NoiseTable(weights).delta(epsilon, sensitivity)
            assert exact <= found <= exact * (1 + mpmath.mpf(10) ** -14)


def test_a_geometric_table_costs_what_its_cut_does():
    """The closed form: of a geometric law cut at K only the two ends tell, one of them for each direction."""
    weights = [2 ** (60 - k) for k in range(30)]
    table = NoiseTable(weights)
    assert table.delta(math.log(2.0) + 1e-12, 1) == pytest.approx(float(Fraction(weights[-1], table.total)), rel=1e-9)
    assert table.delta(math.log(2.0) - 1e-3, 1) > 1e-4


def test_draws_have_the_law_of_the_table():
    """A chi-squared test of 20 000 draws: false alarms at 1e-6."""
    from scipy import stats

    table = NoiseTable([8, 4, 2, 1])
    keys = [number.to_bytes(32, "little") for number in range(20_000)]
    counts = np.bincount(np.array([drawn(table, key) for key in keys]) + 3, minlength=7)
    law = np.array([1, 2, 4, 8, 4, 2, 1]) / table.total
    assert counts.size == 7
    assert stats.chisquare(counts, law * len(keys)).pvalue > 1e-6
    assert stats.chisquare(counts, np.roll(law, 1) * len(keys)).pvalue < 1e-6
    assert table.variance == pytest.approx(law @ np.arange(-3, 4) ** 2)


def test_the_posterior_counts_the_law_that_was_drawn():
    """By brute force: every count of 30, with the table's own probabilities."""
    table = NoiseTable([50, 30, 10, 5, 5, 2, 1])
    release = run_statistic(MODEL, X[:30], epsilon=1.0, n_records=30, noise=table)
    (noisy,) = release.noisy_statistics
    counts = np.arange(31)
    distance = np.abs(noisy - counts).astype(int)
    weight = np.array([table.weights[d] if d < 7 else 0 for d in distance], dtype=float)
    weight /= weight.sum()
    mean = weight @ ((1 + counts) / 32)
    assert dpi.noise_aware_posterior(release).mean[0] == pytest.approx(mean, abs=1e-3)
