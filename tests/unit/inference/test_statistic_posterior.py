"""Exact posteriors of one noisy statistic, against brute force."""

import itertools
import zipfile

import numpy as np
import numpy.typing as npt
import pytest
from scipy import integrate, special, stats
from tests.reference.rounded_gaussian_law import RoundedGaussianLaw

import dpinfer as dpi
from dpinfer.accounting import ApproximateEvent, NoiseTable, PureEvent
from dpinfer.errors import ReleaseFormatError
from dpinfer.inference.statistic.conjugate import clipped_moments, clipped_sum_density, statistic_posterior
from dpinfer.inference.statistic.counts import CategoryCounts, success_weights
from dpinfer.inference.statistic.noise_laws import LaplaceLaw, NoiseLaw
from dpinfer.models import (
    BetaBernoulli,
    BetaBinomial,
    DirichletCategorical,
    GammaExponential,
    LogisticRegression,
)
from dpinfer.release.archive import unpack_archive

FloatArray = npt.NDArray[np.float64]
LAWS: list[NoiseLaw] = [LaplaceLaw(3.0), LaplaceLaw(0.4), RoundedGaussianLaw(4.0), RoundedGaussianLaw(0.3)]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_a_law_sums_to_one_and_has_its_variance(law: NoiseLaw) -> None:
    steps = np.arange(-300.0, 301.0)
    probability = np.exp(law.log_probability(steps))
    assert probability.sum() == pytest.approx(1.0, abs=1e-12)
    assert probability @ steps**2 == pytest.approx(law.variance, rel=1e-6)
    far = np.ceil(law.reach(30.0))
    assert law.log_probability(np.array([far]))[0] < law.log_probability(np.array([0.0]))[0] - 29.0


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize(("trials", "a", "b", "noisy"), [(12, 2.0, 3.0, 4), (12, 0.3, 7.0, -5), (40, 10.0, 10.0, 55)])
def test_success_posterior_is_that_of_the_sum_over_counts(
    law: NoiseLaw, trials: int, a: float, b: float, noisy: int
) -> None:
    theta = statistic_posterior(BetaBinomial(trials, a, b), [float(noisy)], law, n_records=1)
    counts = np.arange(trials + 1.0)
    noise = law.log_probability(noisy - counts)
    grid = np.linspace(-150.0, 20.0, 34_001)  # of logit(p)
    p = special.expit(grid)
    density = stats.binom.pmf(counts, trials, p[:, None]) @ np.exp(noise - noise.max())
    density *= np.exp(a * special.log_expit(grid) + b * special.log_expit(-grid))
    below = integrate.cumulative_trapezoid(density, grid, initial=0.0)
    levels = np.array([0.05, 0.5, 0.95])
    found = theta.marginals.quantile(levels)[:, 0]
    np.testing.assert_allclose(np.interp(found, grid, below / below[-1]), levels, atol=3e-4)
    parts = theta.variance_parts()
    assert parts.data + parts.privacy == pytest.approx(theta.marginals.variance, rel=2e-3)


def test_merged_counts_keep_the_posterior() -> None:
    law, model = LaplaceLaw(300.0), BetaBernoulli(1.0, 1.0)
    theta = statistic_posterior(model, [30_000.0], law, n_records=100_000)
    counts, weight, _ = success_weights(30_000.0, law, trials=100_000, a=1.0, b=1.0)
    mean = special.digamma(1.0 + counts) - special.digamma(100_001.0 - counts)
    within = special.polygamma(1, 1.0 + counts) + special.polygamma(1, 100_001.0 - counts)
    exact = weight @ within + weight @ (mean - weight @ mean) ** 2
    assert theta.marginals.mean[0] == pytest.approx(weight @ mean, abs=1e-3 * np.sqrt(exact))
    assert theta.marginals.variance[0] == pytest.approx(exact, rel=1e-3)


def test_counts_of_very_many_trials_are_narrowed_down() -> None:
    counts, weight, _ = success_weights(2.0**29, LaplaceLaw(10.0), trials=2**31, a=10.0, b=10.0)
    assert counts.size < 2000
    assert weight @ counts == pytest.approx(2.0**29, abs=1.0)


def _multinomial_oracle(noisy: FloatArray, law: NoiseLaw, n: int, alpha: FloatArray) -> dict[tuple[int, ...], float]:
    table = {}
    for head in itertools.product(range(n + 1), repeat=alpha.size - 1):
        if sum(head) <= n:
            counts = np.array([*head, n - sum(head)], dtype=np.float64)
            score = (
                special.gammaln(alpha + counts) - special.gammaln(counts + 1.0) + law.log_probability(noisy - counts)
            )
            table[tuple(int(value) for value in counts)] = float(np.exp(score.sum()))
    total = sum(table.values())
    return {counts: value / total for counts, value in table.items()}


@pytest.mark.statistical
@pytest.mark.parametrize("noisy", [(3.0, 4.0, 2.0), (-8.0, 25.0, 1.0), (9.0, -3.0, 4.0)])
def test_counts_of_categories_are_drawn_exactly(noisy: tuple[float, ...]) -> None:
    """Chi-square of 20000 draws against every possible table; false-positive rate 1e-6 each."""
    law, alpha = LaplaceLaw(2.0), np.array([0.3, 2.0, 5.0])
    law_of_tables = _multinomial_oracle(np.array(noisy), law, 9, alpha)
    draws = CategoryCounts(np.array(noisy), law, 9, alpha).draw(20_000, np.random.default_rng(5))

    def pvalue(table: dict[tuple[int, ...], float]) -> float:
        observed = dict.fromkeys(table, 0)
        for row in draws.tolist():
            observed[tuple(row)] += 1
        common = [key for key, value in table.items() if value * 20_000 > 20.0]
        expected = np.array([table[key] for key in common])
        expected = np.append(expected, max(1.0 - expected.sum(), 1e-12)) * 20_000
        seen = np.array([observed[key] for key in common])
        seen = np.append(seen, 20_000 - seen.sum())
        kept = expected > 5.0
        return float(stats.chi2.sf(((seen - expected) ** 2 / expected)[kept].sum(), kept.sum() - 1))

    assert pvalue(law_of_tables) > 1e-6
    # Power: noise taken for a tenth wider is seen.
    assert pvalue(_multinomial_oracle(np.array(noisy), LaplaceLaw(2.2), 9, alpha)) < 1e-6


@pytest.mark.parametrize("bijector", ["stick_breaking", "softmax"])
def test_categorical_posterior_without_noise_is_the_dirichlet(bijector: str) -> None:
    model = DirichletCategorical((0.3,) * 4, bijector)
    theta = statistic_posterior(model, [190.0, 7.0, 0.0, 3.0], LaplaceLaw(1e-3), n_records=200)
    exact = model.posterior_from_total([190.0, 7.0, 0.0], 200)
    levels = np.array([0.05, 0.5, 0.95])
    below = np.stack(
        [
            (theta.draw(20_000, np.random.default_rng(2)) < row).mean(axis=0)
            for row in exact.quantile(levels, "unconstrained")
        ]
    )
    assert np.abs(below - levels[:, None]).max() < 0.04  # 8192 draws stand behind it: a standard error of 0.006


@pytest.mark.parametrize("n_records", [1, 2, 7])
@pytest.mark.parametrize("law", [LaplaceLaw(0.5), LaplaceLaw(6.0), RoundedGaussianLaw(0.8)], ids=repr)
def test_density_of_a_clipped_sum_is_that_of_a_convolution(n_records: int, law: NoiseLaw) -> None:
    rate, clip, h = 1.3, 0.9, 0.9 / 400
    edges = np.arange(401) * h
    single = np.zeros(401)
    single[:-1] = np.exp(-rate * edges[:-1]) - np.exp(-rate * edges[1:])
    spread = np.append(single[:-1] / 2.0, 0.0) + np.append(0.0, single[:-1] / 2.0)  # mass of a cell at both its ends
    spread[-1] += np.exp(-rate * clip)
    total = spread
    for _ in range(n_records - 1):
        total = np.convolve(total, spread)
    sums = np.arange(total.size) * h

    def noise(x: FloatArray) -> FloatArray:
        if isinstance(law, LaplaceLaw):
            return np.exp(-np.abs(x) / law.scale) / (2.0 * law.scale)
        return stats.norm.pdf(x, scale=law.stddev)

    for point in (-0.7, 0.31, 0.5 * n_records, n_records * clip + 0.2):
        expected = total @ noise(point - sums)
        found = clipped_sum_density(point, law, rate=np.array([rate]), n_records=n_records, clip=clip)[0]
        assert found == pytest.approx(expected, rel=2e-3)


def test_clipped_moments_are_those_of_draws() -> None:
    x = np.minimum(np.random.default_rng(1).exponential(1.0 / np.array([[0.5], [3.0]]), (2, 200_000)), 0.7)
    mean, variance = clipped_moments(np.array([0.5, 3.0]), 0.7)
    np.testing.assert_allclose(mean, x.mean(axis=1), rtol=0.01)
    np.testing.assert_allclose(variance, x.var(axis=1), rtol=0.02)


def test_without_noise_the_rate_has_its_exact_posterior() -> None:
    model = GammaExponential(8.0, 2.0)
    records = model.simulate([4.0], 300, 1)
    clip = 50.0  # nothing is clipped
    theta = statistic_posterior(model, [float(records.sum())], LaplaceLaw(1e-3), n_records=300, clip=clip)
    exact = model.posterior(records)
    levels = np.array([0.05, 0.5, 0.95])
    found = theta.marginals.quantile(levels)[:, 0]
    np.testing.assert_allclose(found, exact.quantile(levels, "unconstrained")[:, 0], atol=2e-3)


@pytest.mark.parametrize("noisy", [-1e6, 0.0, 5.0, 1e9])
def test_no_release_is_without_a_posterior(noisy: float) -> None:
    """One waiting time is the slowest, and has two posteriors: a sum below 0 or above the clip is taken for these."""
    cases = [
        (BetaBernoulli(1.0, 200.0), [noisy], None),
        (BetaBernoulli(1e-3, 1e-3), [noisy], None),
        (DirichletCategorical((0.3,) * 20), [noisy, *([0.0] * 19)], None),
        (DirichletCategorical((0.3,) * 3), [noisy] * 3, None),
        (GammaExponential(0.1, 1e-6), [noisy], 3.0),
        (GammaExponential(1e4, 1e4), [noisy], 1e-3),
    ]
    for model, values, clip in cases:
        for n_records, law in ((1, LaplaceLaw(100.0)), (300, LaplaceLaw(10.0)), (40, RoundedGaussianLaw(3.0))):
            if clip is not None and n_records != 40 and (n_records == 1) != (noisy in (0.0, 5.0)):
                continue
            theta = statistic_posterior(model, values, law, n_records=n_records, clip=clip)  # type: ignore[arg-type]
            q = theta.marginals.quantile(np.array([0.05, 0.95]))
            assert np.all(np.isfinite(q))
            assert np.all(q[1] > q[0])
            assert np.all(np.isfinite(theta.draw(5, np.random.default_rng(0))))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="model"):
        statistic_posterior(LogisticRegression(2), [1.0], LaplaceLaw(1.0), n_records=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="noisy"):
        statistic_posterior(BetaBernoulli(), [1.0, 2.0], LaplaceLaw(1.0), n_records=5)
    with pytest.raises(TypeError, match="clip"):
        statistic_posterior(GammaExponential(), [1.0], LaplaceLaw(1.0), n_records=5)
    with pytest.raises(ValueError, match="scale"):
        LaplaceLaw(0.0)


@pytest.mark.parametrize("noisy_number", [3, 25, 60])
def test_an_unknown_number_of_trials_is_integrated_out(noisy_number):
    """Against the sum over every number of records and every count; the twin takes the number as it was released."""
    number = dpi.release.CountRelease(
        noisy_count=noisy_number, laplace_scale=6.0, event=PureEvent(1.0 / 6.0, "add_remove"), adjacency="add_remove"
    )
    a, b, scale, noisy = 2.0, 3.0, 1.5, 11.0
    numbers = np.arange(1, noisy_number + 150)
    levels = np.linspace(1e-4, 1.0 - 1e-4, 1001)
    density = np.zeros(levels.size)
    for n in numbers:
        counts = np.arange(n + 1)
        law = np.exp(-np.abs(n - noisy_number) / 6.0) * np.exp(-np.abs(noisy - counts) / scale)
        likely = stats.betabinom.pmf(counts, n, a, b) * law
        first, second = a + counts, b + n - counts
        logs = np.outer(first - 1.0, np.log(levels)) + np.outer(second - 1.0, np.log1p(-levels))
        density += likely @ np.exp(logs - special.betaln(first, second)[:, None])
    density /= density.sum()
    mean = float(density @ levels)
    release = dpi.StatisticRelease(
        method="one_shot", names=("successes",), noisy_statistics=np.array([noisy]), laplace_scale=np.array([scale]),
        n_records=number.n_records, event=PureEvent(1.0 / scale, "add_remove"), adjacency="add_remove",
        model_spec=dpi.models.BetaBernoulli(a, b).to_dict(),
        settings={"noisy_n_records": noisy_number, "n_records_scale": 6.0},
    )  # fmt: skip
    posterior = dpi.noise_aware_posterior(release)
    assert posterior.mean[0] == pytest.approx(mean, abs=0.01)
    spread = float(np.sqrt(density @ (levels - mean) ** 2))
    assert posterior.stddev[0] == pytest.approx(spread, rel=0.06)
    plugged = dpi.noise_aware_posterior(release.__class__(**{**vars(release), "settings": {}}))
    assert abs(plugged.stddev[0] - spread) > 2.0 * abs(posterior.stddev[0] - spread)


@pytest.mark.parametrize("model", [
    dpi.models.BetaBernoulli(), dpi.models.BetaBinomial(7), dpi.models.DirichletCategorical((1.0, 2.0)),
    dpi.models.GammaExponential(),
], ids=lambda model: type(model).__name__)  # fmt: skip
@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out", "replace_one"])
def test_a_release_that_claims_more_noise_than_it_has_is_refused(model, adjacency, tmp_path):
    release = dpi.run_statistic(model, np.ones(20), epsilon=1.0, n_records=20, adjacency=adjacency)
    path = tmp_path / "a.release"
    for share in (0.01, 0.5, 0.9999):
        with pytest.raises(ValueError, match="laplace_scale"):
            release.replace(event=PureEvent(share, adjacency))
        with pytest.raises(ValueError, match="laplace_scale"):
            release.replace(laplace_scale=share * release.laplace_scale)
    release.replace(event=PureEvent(1.5, adjacency)).save(path)
    members = unpack_archive(path.read_bytes())
    text = members["release.json"].decode().replace('"epsilon": 1.5', '"epsilon": 0.01')
    text = text.replace('"certified_epsilon": 1.5', '"certified_epsilon": 0.01')
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {"release.json": text.encode()}).items():
            archive.writestr(name, content)
    with pytest.raises(ReleaseFormatError):
        dpi.load_release(path)


def test_the_delta_of_another_law_follows_from_its_table_alone():
    class Kind(NoiseTable):
        def delta(self, epsilon, sensitivity):
            return 1e-12

    weights = (100, 50, 20, 5, 1)
    true = NoiseTable(weights).delta(1.0, 1)
    release = dpi.run_statistic(dpi.models.BetaBernoulli(), np.ones(20), epsilon=1.0, n_records=20, noise=Kind(weights))
    assert release.delta == true > 1e-3
    with pytest.raises(ValueError, match="delta"):
        release.replace(event=ApproximateEvent(1.0, 0.5 * true, "add_remove"))
    with pytest.raises(ValueError, match="event must be that of its noise"):
        release.replace(event=PureEvent(1.0, "add_remove"))


def test_a_released_number_of_records_goes_into_the_guarantee():
    ones = np.ones(400)
    number = dpi.release_count(ones, epsilon=0.25)
    release = dpi.run_statistic(dpi.models.BetaBernoulli(), ones, epsilon=0.5, n_records=number)
    assert release.epsilon == pytest.approx(0.75)
    assert [part.name for part in release.parts] == ["number of records", "sufficient statistics"]
    assert dpi.noise_aware_posterior(release).mean[0] > 0.8
    with pytest.raises(TypeError, match="n_records"):
        dpi.run_statistic(dpi.models.GammaExponential(), ones, epsilon=0.5, n_records=number)
    with pytest.raises(ValueError, match="add_remove"):
        dpi.run_statistic(dpi.models.BetaBernoulli(), ones, epsilon=0.5, n_records=number, adjacency="zero_out")
