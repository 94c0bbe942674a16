"""Learned scales: terms as linear maps, the sampler beside quadrature and importance sampling, and what a fit gives.

Tolerances are of 4.5 Monte Carlo standard errors where numbers are drawn: a check fails by chance once in 150 000.
"""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special, stats

import dpinfer as dpi
from dpinfer.errors import BudgetExceededError
from dpinfer.formulas import MixedFit, design
from dpinfer.formulas.grammar import parse
from dpinfer.formulas.levels import layout_of
from dpinfer.inference.newton.likelihood import Likelihoods, ScoreLikelihoods
from dpinfer.inference.newton.pooling import Block, ScalePrior, pooled
from dpinfer.testing import InsecureRNG

FloatArray = npt.NDArray[np.float64]

SIGMAS = 4.5
SITES = tuple("abcdefgh")
SCHEMA = dpi.tabular.Schema.from_dict(
    {
        "columns": {
            "x": {"kind": "continuous", "bounds": [0, 10]},
            "site": {"kind": "categorical", "categories": list(SITES)},
            "y": {"kind": "continuous", "bounds": [-8, 8]},
        }
    }
)
N = 4000


def likelihood(precision: FloatArray, information: FloatArray, prior: float) -> Likelihoods:
    """Return one normal likelihood of weights with a prior precision."""
    priors, place = np.full((1, len(information)), prior), np.zeros(1, dtype=np.int64)
    return Likelihoods(precision[None], information[None], priors, place, precision)


def evidence_of(likelihoods: Likelihoods, prior: FloatArray) -> tuple[float, FloatArray]:
    """Return the log evidence under a prior precision (d, d), and the mean of the weights."""
    precision, information = likelihoods.precision[0], likelihoods.information[0]
    mean = np.linalg.solve(precision + prior, information)
    ratio = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(precision + prior)[1]
    return float(0.5 * (ratio + information @ mean)), mean


def problem(d: int, seed: int) -> Likelihoods:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(2 * d, d))
    return likelihood(3.0 * root.T @ root, rng.normal(size=d) * 12.0, 0.01)


def test_one_scale_agrees_with_quadrature() -> None:
    found_in, q = problem(9, 1), 8
    prior = ScalePrior(1.5)
    block = Block((np.vstack([np.eye(q), np.zeros(q)]),), (prior,))
    found = pooled(found_in, np.eye(9)[:, 8:], np.array([8]), [block], np.empty(0, dtype=np.int64), 3)
    grid = np.linspace(1e-4, 12.0, 6000)
    pairs = [evidence_of(found_in, np.diag([*[tau**-2.0] * q, 0.01])) for tau in grid]
    weight = np.array([value for value, _ in pairs]) + prior.log_density(grid)
    weight = np.exp(weight - weight.max())
    weight /= weight.sum()
    mean = float(weight @ grid)
    spread = math.sqrt(float(weight @ (grid - mean) ** 2))
    draws = found.stddev_draws[0]
    assert abs(draws.mean() - mean) < SIGMAS * spread / math.sqrt(len(draws))
    effects = weight @ np.array([each for _, each in pairs])
    own = np.array([each for _, each in pairs])
    error = np.sqrt((weight @ (own - effects) ** 2) / len(found.mean))
    means = (found.mean @ found.columns.T).mean(axis=0)
    assert np.all(np.abs(means - effects) < SIGMAS * error + 1e-6)
    # The matrices are here without noise: no part of the variance given the scales is the noise's.
    np.testing.assert_allclose(found.data, found.covariance.mean(axis=0), rtol=1e-9, atol=1e-15)


def batch_error(draws: FloatArray) -> float:
    """Return the error of a mean from chains of 128 states side by side, by means of the chains."""
    means = draws.reshape(128, -1).mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(128))


def test_pairs_with_a_correlation_agree_with_draws_from_the_prior() -> None:
    q, size = 4, 60_000
    found_in = problem(2 * q, 2)
    prior = ScalePrior(1.0)
    maps = (np.eye(2 * q)[:, :q], np.eye(2 * q)[:, q:])
    found = pooled(
        found_in, np.zeros((2 * q, 0)), np.empty(0, np.int64), [Block(maps, (prior, prior))], np.empty(0, np.int64), 4
    )
    rng = np.random.default_rng(5)
    first, second, rho = prior.draw(size, rng), prior.draw(size, rng), rng.uniform(-1, 1, size)
    covariance = np.empty((size, 2, 2))
    covariance[:, 0, 0], covariance[:, 1, 1] = first**2, second**2
    covariance[:, 0, 1] = covariance[:, 1, 0] = rho * first * second
    inverse = np.linalg.inv(covariance)
    whole = np.kron(inverse, np.eye(q))
    total = found_in.precision[0] + whole
    half = np.linalg.solve(total, found_in.information[0][:, None])[..., 0]
    log = 0.5 * (q * np.linalg.slogdet(inverse)[1] - np.linalg.slogdet(total)[1] + half @ found_in.information[0])
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    for number, values in enumerate((first, second)):
        mean = float(weight @ values)
        error = math.hypot(
            math.sqrt(float(weight**2 @ (values - mean) ** 2)), batch_error(found.stddev_draws[0][:, number])
        )
        assert abs(found.stddev_draws[0][:, number].mean() - mean) < SIGMAS * error
    mean = float(weight @ rho)
    error = math.hypot(math.sqrt(float(weight**2 @ (rho - mean) ** 2)), batch_error(found.correlation[0]))
    assert abs(found.correlation[0].mean() - mean) < SIGMAS * error


def test_horseshoe_agrees_with_draws_from_the_prior() -> None:
    d, size = 4, 60_000
    found_in = problem(d, 6)
    found = pooled(found_in, np.eye(d), np.arange(d), [], np.arange(d), 7)
    rng = np.random.default_rng(8)
    scale = np.abs(rng.standard_cauchy((size, d))) * np.abs(rng.standard_cauchy((size, 1)))
    prior = 0.01 + 1.0 / np.maximum(scale**2, 1e-12)
    total = found_in.precision[0] + prior[:, :, None] * np.eye(d)
    mean = np.linalg.solve(total, found_in.information[0][:, None])[..., 0]
    log = 0.5 * (np.log(prior).sum(axis=1) - np.linalg.slogdet(total)[1] + mean @ found_in.information[0])
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    expected = weight @ mean
    error = np.sqrt(weight**2 @ (mean - expected) ** 2)
    for place in range(d):
        own = found.mean[:, place]
        assert abs(own.mean() - expected[place]) < SIGMAS * math.hypot(error[place], batch_error(own))


def test_draws_of_the_matrices_count_the_same() -> None:
    """A share of two draws, one of which says far more, is half: the chance of a failure is below 1e-6."""
    first, second = problem(4, 9), likelihood(1e-6 * np.eye(4), np.zeros(4), 0.01)
    both = Likelihoods(
        np.concatenate([first.precision, second.precision]),
        np.concatenate([first.information, second.information]),
        np.full((2, 4), 0.01),
        np.arange(2),
        first.data,
    )
    block, none = Block((np.eye(4),), (ScalePrior(10.0),)), np.empty(0, np.int64)
    found = pooled(both, np.zeros((4, 0)), none, [block], none, 1)
    assert abs(np.mean(found.place == 0) - 0.5) < 2.5 / math.sqrt(len(found.place))


def score_likelihoods(back: FloatArray) -> ScoreLikelihoods:
    """Return the likelihood of three scores, with three nodes of the slope's spread."""
    return ScoreLikelihoods(
        back=back,
        value=np.array([[[0.9, -0.5, 0.8], [0.15, -0.2, 0.3], [0.1, 0.05, -0.1]]]),
        position=np.array([[[0.0, 0.0, 0.0], [0.8, -0.4, 0.5], [1.2, -0.9, 1.0]]]),
        noise=np.array([[0.15, 0.1, 0.08]]),
        sampling=np.array([[0.02, 0.01, 0.03]]),
        middle=np.array([[0.8, 0.9, 1.1], [0.5, 0.9, 1.5], [0.3, 0.8, 1.9]]),
        entry=np.array([0.02, 0.1, 0.25]),
        level=np.array([0.05, 0.03, 0.01]),
        log_weight=np.log([0.5, 0.3, 0.2]),
        weights=np.zeros((1, 3)),
        prior_precision=np.full((1, 3), 0.01),
        place=np.zeros(1, dtype=np.int64),
        data=np.eye(3),
    )


@pytest.mark.parametrize(("rows", "d"), [(3, 3), (2, 3), (1, 3)])
def test_the_density_of_scores_is_that_of_their_whole_covariance(rows: int, d: int) -> None:
    """At every node of the spread, up to a constant: exactly, so that each determinant counts."""
    rng, found_in = np.random.default_rng(rows), score_likelihoods(np.eye(d))
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0][:rows]
    length, value = rng.uniform(0.5, 6.0, size=rows), 3.0 * rng.normal(size=(rows, d))
    found = found_in._log_density(value[None], length[None], basis[None])[0]
    error, eye = length[:, None] * basis, np.eye(d)
    expected = []
    for middle, entry, level, log_weight in zip(
        found_in.middle, found_in.entry, found_in.level, found_in.log_weight, strict=True
    ):
        whole = entry * np.einsum("tk,ij->tikj", error @ error.T, eye)
        whole += entry * np.einsum("tj,ki->tikj", error, error) + level * np.einsum("ti,kj->tikj", error, error)
        law = stats.multivariate_normal((error * middle).ravel(), whole.reshape(rows * d, -1) + np.eye(rows * d))
        expected.append(log_weight + law.logpdf(value.ravel()))
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-10, atol=1e-10)


def test_slopes_that_follow_their_weights_agree_with_draws_from_the_prior() -> None:
    """Beside the density of three scores with their whole covariance, at draws of scale, spread and weights."""
    rng, d, size = np.random.default_rng(1), 3, 400_000
    found_in = score_likelihoods(np.eye(d) + 0.2 * rng.normal(size=(d, d)))
    prior, none = ScalePrior(1.0), np.empty(0, np.int64)
    found = pooled(found_in, np.zeros((d, 0)), none, [Block((np.eye(d),), (prior,))], none, 2)
    tau, node = prior.draw(size, rng), rng.choice(3, size=size, p=np.exp(found_in.log_weight))
    weights = tau[:, None] * rng.standard_normal((size, d))
    log, eye, one = np.empty(size), np.eye(d), np.ones((3, 3))
    known = np.einsum("tk,ij->tikj", np.diag(found_in.noise[0]), eye)
    known += np.einsum("tk,ij->tikj", one, np.diag(found_in.sampling[0]))
    for part in np.array_split(np.arange(size), 20):
        error, of = (weights[part] @ found_in.back)[:, None] - found_in.position[0], node[part]
        gram = error @ np.swapaxes(error, 1, 2)
        each = np.einsum("ctk,ij->ctikj", gram, eye) + np.einsum("ctj,cki->ctikj", error, error)
        whole = known + np.einsum("c,ctikj->ctikj", found_in.entry[of], each)
        whole = (whole + np.einsum("c,cti,ckj->ctikj", found_in.level[of], error, error)).reshape(-1, 9, 9)
        missed = (found_in.value[0] - error * found_in.middle[of][:, None]).reshape(-1, 9, 1)
        fit = np.sum(missed * np.linalg.solve(whole, missed), axis=(1, 2))
        log[part] = -0.5 * (np.linalg.slogdet(whole)[1] + fit)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    pairs = [(np.log(found.stddev_draws[0]), np.log(tau)), *zip(found.mean.T, weights.T, strict=True)]
    for own, drawn in pairs:
        expected = float(weight @ drawn)
        error = math.hypot(math.sqrt(float(weight**2 @ (drawn - expected) ** 2)), float(found.error(own)[0]))
        assert abs(own.mean() - expected) < SIGMAS * error
        assert error < 0.12


def test_steps_tell_the_scale_where_noise_hides_the_slope() -> None:
    """Sites that differ by 1, all directions hidden: pooling does no worse by half, and finds the scale."""
    rng = np.random.default_rng(3)
    n, labels = 4000, [f"s{place:02d}" for place in range(50)]
    site, effects = rng.integers(50, size=n), rng.normal(size=50)
    y = np.where(rng.random(n) < special.expit(effects[site]), "yes", "no")
    columns = {
        "site": {"kind": "categorical", "categories": labels},
        "y": {"kind": "target", "positive": "yes", "negative": "no"},
    }
    fit = dpi.regression(
        "y ~ (1 | site)",
        {"site": np.array(labels)[site], "y": y},
        family="binomial",
        schema=dpi.tabular.Schema.from_dict({"columns": columns}),
        epsilon=1.0,
        delta=1e-6,
        n_records=n,
        random_source=InsecureRNG(3),
    )
    assert isinstance(fit, MixedFit)
    assert fit.posterior.diagnostics.n_unresolved == 50
    row = fit.scales()["sd by site"]
    assert row["low"] < 1.0 < row["high"]
    truth, (matrix, _) = effects - effects.mean(), fit.design.user_units()
    plain = np.append(0.0, (matrix @ fit.plain.posterior.mean[: len(matrix)])[:49])
    pooled_error = np.sum((fit.effects("site").mean - fit.effects("site").mean.mean() - truth) ** 2)
    assert pooled_error < 1.5 * np.sum((plain - plain.mean() - truth) ** 2)


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("y ~ x + (1 | x / site)", "nested"),
        ("y ~ 0 + x + (1 | site)", "intercept"),
        ("y ~ site + (1 | site)", "not both"),
        ("y ~ (1 + x + y | site)", "at most one slope"),
        ("y ~ s(x):site", "interaction of curves"),
    ],
)
def test_formulas_that_are_not_there_say_so(formula: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(formula, ("y", "x", "site"))


def test_persons_are_refused_with_what_unit_does() -> None:
    schema = SCHEMA.to_dict()
    schema["columns"]["person"] = {"kind": "continuous", "bounds": [0, 1e6]}
    table = {"x": [1.0], "site": ["a"], "y": [0.0], "person": [1.0]}
    with pytest.raises(ValueError, match="the column as the one that is protected"):
        dpi.regression(
            "y ~ x + (1 | person)",
            table,
            schema=dpi.tabular.Schema.from_dict(schema),
            epsilon=1.0,
            delta=1e-6,
            n_records=N,
        )


def test_maps_give_the_functions_of_the_terms() -> None:
    made = design("y ~ x + site + x:site", SCHEMA)
    layout = layout_of(made, ["(1 + x | site)"])
    (effects,) = layout.effects
    rng = np.random.default_rng(0)
    points = {"x": rng.uniform(0, 10, 40), "site": rng.integers(8, size=40) + 0.0}
    rows = np.column_stack([made.encode(points), np.ones(40)])
    level, slope = rng.normal(size=8), rng.normal(size=8)
    code = points["site"].astype(int)
    expected = level[code] + slope[code] * effects.units[1] / effects.units[0] * (points["x"] - effects.centre)
    found = rows @ (effects.maps[0] @ level + effects.maps[1] @ slope)
    assert np.allclose(found, expected, atol=1e-10)


def test_curves_are_bends_without_a_line_of_size_one() -> None:
    made = design("y ~ s(x, k=8)", SCHEMA)
    (curve,) = layout_of(made, made.formula.levels).effects
    at = np.linspace(0.0, 10.0, 801)
    rows = np.column_stack([made.encode({"x": at}), np.ones(801)])
    bends = rows @ curve.maps[0]
    assert bends.shape[1] == 6
    assert np.allclose(bends, curve.functions, atol=1e-8)
    assert np.allclose(bends.T @ np.column_stack([np.ones(801), at - 5.0]) / 801, 0.0, atol=1e-6)
    assert np.mean(np.sum(bends**2, axis=1)) == pytest.approx(1.0, rel=1e-6)


def table_of(tau: float, seed: int) -> tuple[dict[str, object], FloatArray]:
    rng = np.random.default_rng(seed)
    site, x = rng.integers(8, size=N), rng.uniform(0, 10, N)
    effects = rng.normal(scale=tau, size=8)
    y = 0.2 * (x - 5.0) + effects[site] + rng.normal(size=N)
    return {"x": x, "site": np.array(SITES)[site], "y": y}, effects


@pytest.fixture(scope="module")
def fit() -> MixedFit:
    table, _ = table_of(0.5, 11)
    found = dpi.regression(
        "y ~ x + (1 | site)",
        table,
        schema=SCHEMA,
        epsilon=3.0,
        delta=1e-6,
        n_records=N,
        random_source=InsecureRNG(1),
    )
    assert isinstance(found, MixedFit)
    return found


def test_another_prior_charges_nothing_and_keeps_the_release(tmp_path: Path) -> None:
    table, _ = table_of(0.5, 12)
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger")
    account = ledger.add_dataset("people", budget=(2.0, 1e-5))
    found = dpi.regression("y ~ x + site", table, schema=SCHEMA, epsilon=1.9, delta=1e-6, n_records=N, ledger=account)
    before = len(ledger.entries())
    again = found.with_prior("(1 | site)", scale=0.3, df=math.inf)
    assert len(ledger.entries()) == before
    assert again.release is found.release
    with pytest.raises(BudgetExceededError):
        dpi.regression("y ~ x", table, schema=SCHEMA, epsilon=1.9, delta=1e-6, n_records=N, ledger=account)


def test_effects_are_shrunken_toward_their_middle(fit: MixedFit) -> None:
    wide, narrow = fit.effects("site"), fit.with_prior("(1 | site)", scale=0.02, df=math.inf)
    assert isinstance(narrow, MixedFit)
    assert np.ptp(narrow.effects("site").mean) < np.ptp(wide.mean)
    assert narrow.scales()["sd by site"]["mean"] < fit.scales()["sd by site"]["mean"]


def test_predictions_of_a_new_site_have_the_spread_of_sites(fit: MixedFit) -> None:
    mean, sd = fit.predict({"x": [2.0, 5.0]}, return_std=True, new="site")
    own = fit.coefficients()
    assert mean[1] == pytest.approx(
        own["intercept"]["mean"] + 5.0 * own["x"]["mean"], abs=SIGMAS * sd[1] / math.sqrt(2000)
    )
    _, known = fit.predict({"x": [5.0], "site": ["a"]}, return_std=True)
    assert sd[1] > 2.0 * known[0]
    assert sd[1] > fit.scales()["sd by site"]["low"]


def test_shares_sum_to_one_and_draws_reach_arviz(fit: MixedFit) -> None:
    shares = fit.variance_shares()
    assert shares.mean.sum() == pytest.approx(1.0)
    draws = fit.to_arviz(n_samples=200, n_chains=2)
    posterior = draws["posterior"]
    assert posterior["effect"].shape == (2, 200, 8)
    assert posterior["scale"].shape == (2, 200, 1)
    # A contrast of two sites is a difference of their effects, draw by draw.
    names = [str(name) for name in posterior["coefficient"].values]
    contrast = posterior["coef"].values[..., names.index("site[T.c]")]
    effects = posterior["effect"].values
    assert np.allclose(contrast, effects[..., 2] - effects[..., 0], atol=1e-9)


def test_a_saved_fit_comes_back_under_its_terms(fit: MixedFit, tmp_path: Path) -> None:
    fit.save(str(tmp_path))
    again = dpi.load_regression(str(tmp_path))
    assert isinstance(again, MixedFit)
    assert np.array_equal(again.effects("site").mean, fit.effects("site").mean)
    assert "sd by site" in str(again.summary())


def test_terms_that_the_release_has_not_measured_are_refused(fit: MixedFit) -> None:
    with pytest.raises(ValueError, match="has not measured"):
        fit.with_prior("(1 + x | site)")
    with pytest.raises(ValueError, match="has not measured"):
        fit.with_prior("s(x)")
    with pytest.raises(ValueError, match="term must be one of"):
        fit.effects("x")
    with pytest.raises(ValueError, match=r"fit\.plain"):
        fit.compare("x")


def test_scales_and_effects_are_calibrated() -> None:
    """Scales drawn from their prior, effects given them: 90% intervals hold 90% of them, but for chance 1e-4 each."""
    rng = np.random.default_rng(20)
    runs, q, held, inside = 150, 6, [], []
    prior = ScalePrior(1.0, math.inf)
    root = rng.normal(size=(3 * q, q))
    precision = root.T @ root
    for run in range(runs):
        tau = float(prior.draw(1, rng)[0])
        effects = rng.normal(scale=tau, size=q)
        information = precision @ effects + np.linalg.cholesky(precision) @ rng.normal(size=q)
        found = pooled(
            likelihood(precision, information, 0.01),
            np.zeros((q, 0)),
            np.empty(0, np.int64),
            [Block((np.eye(q),), (prior,))],
            np.empty(0, np.int64),
            run,
        )
        low, high = np.quantile(found.stddev_draws[0], [0.05, 0.95])
        held.append(low <= tau <= high)
        spread = np.sqrt(found.covariance[:, 0, 0])
        rank = float(special.ndtr((effects[0] - found.mean[:, 0]) / spread).mean())
        inside.append(0.05 <= rank <= 0.95)
    error = math.sqrt(0.09 / runs)
    for share in (np.mean(held), np.mean(inside)):
        assert abs(share - 0.9) < 3.9 * error
