"""The noisy number of records that a release holds, beside the declared one."""

from dataclasses import fields

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.inference.newton.counted import _MEANS, as_counted, used_records
from dpinfer.mechanism import Units
from dpinfer.release import Release
from dpinfer.release.newton.regression import ScoreSums
from dpinfer.testing import InsecureRNG

N = 4000
COLUMNS = {
    "y": {"kind": "continuous", "bounds": [-5, 15]},
    "won": {"kind": "binary", "positive": "1", "negative": "0"},
    "k": {"kind": "continuous", "bounds": [0, 30]},
    "kind": {"kind": "categorical", "categories": ["a", "b", "c"]},
    "x": {"kind": "continuous", "bounds": [0, 10]},
    "home": {"kind": "ignore"},
}
SCHEMA = dpi.tabular.Schema.from_dict({"columns": COLUMNS})
RESPONSES = {
    "gaussian": "y", "binomial": "won", "probit": "won", "poisson": "k", "multinomial": "kind", "negativebinomial": "k",
}  # fmt: skip


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(12)
    x = rng.uniform(0.0, 10.0, N)
    return {
        "x": x,
        "y": 1.0 + 0.5 * x + rng.normal(size=N),
        "won": (rng.random(N) < 1.0 / (1.0 + np.exp(2.0 - 0.3 * x))).astype(int),
        "k": rng.poisson(np.exp(0.1 * x)),
        "kind": rng.choice(["a", "b", "c"], N),
        "home": np.arange(N) // 2,
    }


def fitted(table, family="gaussian", *, n_records=N, epsilon=2.0, **options):
    given = {"schema": SCHEMA, "epsilon": epsilon, "delta": 1e-6, "random_source": InsecureRNG(3)}
    formula = f"{RESPONSES[family]} ~ x"
    return dpi.regression(formula, table, family=family, n_records=n_records, **(given | options))


def with_gaps(table, share=0.6):
    """The table, and how many of its rows have every value."""
    gaps = np.random.default_rng(8).random(N) < share
    return {**table, "x": np.where(gaps, np.nan, table["x"])}, int(np.count_nonzero(~gaps))


@pytest.mark.parametrize("target", ["population", "model"])
@pytest.mark.parametrize("family", RESPONSES)
def test_every_newton_run_tells_its_number_of_records(table, family, target):
    """Within four standard deviations: a false alarm in 16 000 cells."""
    holed, complete = with_gaps(table)
    found = used_records(fitted(holed, family, target=target).release)
    assert found.stddev < 0.13 * N
    assert abs(found.count - complete) < 4.0 * found.stddev
    assert found.contradicts
    assert str(N) in found.warning
    right = used_records(fitted(table, family, target=target).release)
    assert abs(right.count - N) < 4.0 * right.stddev
    assert not right.contradicts
    assert right.warning == ""


def test_both_numbers_stand_wherever_a_fit_is_shown(table, tmp_path):
    holed, complete = with_gaps(table)
    fit = fitted(holed)
    used = fit.posterior.diagnostics.records_used
    assert abs(used - complete) < 300
    assert fit.fit.nobs == used
    for shown in (str(fit.summary()), str(fit.posterior.summary()), str(fit.fit.summary())):
        assert f"about {round(used)} used" in shown
        assert f"{N} declared" in shown
        assert f"n_records says {N}" in shown
    assert "n_records" in fit.posterior.diagnostics.warnings
    fit.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Records used" in page
    assert f"n_records says {N}" in page
    fit.save(tmp_path / "saved")
    again = dpi.formulas.load_regression(tmp_path / "saved")
    assert again.fit.nobs == used
    assert f"about {round(used)} used" in str(again.summary())


def test_a_right_number_is_shown_and_not_warned_of(table):
    fit = fitted(table)
    assert "used (privacy noise" in str(fit.summary())
    assert "n_records" not in fit.posterior.diagnostics.warnings
    assert as_counted(fit.release) is fit.release


@pytest.mark.parametrize("target", ["population", "model"])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_the_posterior_is_that_of_the_released_number(table, factor, target):
    """The residuals' variance is off by the factor where sums are divided by the declared number."""
    fit = fitted(table, n_records=round(factor * N), epsilon=5.0, target=target)
    slope, intercept, spread = (fit.coefficients()[name]["mean"] for name in ("x", "intercept", "sigma"))
    assert abs(slope - 0.5) < 0.05
    assert abs(intercept - 1.0) < 0.3
    assert 0.85 < spread < 1.2


def test_the_same_sums_per_another_number_of_records(table):
    """What the sums are, their noise and their cost do not change: only what they are divided by."""
    release = fitted(with_gaps(table)[0]).release
    counted = as_counted(release)
    assert counted.n_records != release.n_records
    assert counted.guarantee == release.guarantee
    assert counted.event == release.event
    for name in ("bread", "meat", "scores", "lengths", "bread_stddev", "sizes_stddev", "score_stddev"):
        before, after = getattr(release, name) * release.n_records, getattr(counted, name) * counted.n_records
        np.testing.assert_allclose(before, after, rtol=1e-12)
    np.testing.assert_array_equal(release.positions, counted.positions)
    assert as_counted(counted) is counted


# What no number of records divides: public facts of the passes, places, units, bounds, and parts of a budget.
UNDIVIDED = {
    *("positions", "localise_positions", "bread_position", "frame_position", "meat_position", "slope_position"),
    *("transforms", "transform", "localise_transforms", "bread_transform", "rare_transform", "frame_transform"),
    *("score_transform", "change_points", "changes", "prior_mean", "prior_scale", "edges", "norm_edges"),
    *("length_unit", "size_unit", "reach_unit", "scale_units", "strata_unit", "scale_centre", "response_scale"),
    *("score_share", "count_share", "count_shares", "centre_share", "n_measured", "n_approach", "likely_sizes"),
    *("clip", "clips", "score_radius", "localise_clip"),
    *(
        "slope_spread",
        "variance_ratio",
        "squared_shift",
        "expected_slopes",
        "square",
        "square_slope",
        "square_variance",
    ),
}


def every_kind(kind):
    return [kind, *(each for own in kind.__subclasses__() for each in every_kind(own))]


def test_every_field_of_a_release_is_divided_or_known_not_to_be():
    """A new sum of a release is a mean over the records too, and must be in the list of those."""
    kinds = [kind for kind in every_kind(ScoreSums) if kind.format_name and kind.__module__.startswith("dpinfer")]
    assert len(kinds) > 5
    shared = {item.name for item in fields(Release)}
    for kind in kinds:
        names = {item.name for item in fields(kind)} - shared
        named = {name for name in names if name.endswith(("bound", "bounds")) or name in UNDIVIDED}
        divided = {name for name in names if name in _MEANS or name.endswith("stddev")}
        assert names == named | divided, names - named - divided
        assert not named & divided


def test_thousands_separators_are_seen(table):
    """Values from 1000 on are text with a comma, and no numbers: the fit says how many rows are left."""
    text = [f"{1000.0 * value:,.2f}" for value in table["x"]]
    schema = dpi.tabular.Schema.from_dict(
        {"columns": {"x": {"kind": "continuous", "bounds": [0, 10_000]}, "y": COLUMNS["y"]}}
    )
    fit = fitted({"x": text, "y": table["y"]}, schema=schema)
    left = sum("," not in value for value in text)
    assert abs(fit.fit.nobs - left) < 300
    assert "n_records" in fit.posterior.diagnostics.warnings
    assert "unreadable" in str(fit.summary())


def test_units_are_counted_where_units_are_protected(table):
    unit = Units("home", max_rows=4)
    right, wrong = (used_records(fitted(table, n_records=size, unit=unit).release) for size in (N // 2, N))
    assert right.units
    assert not right.contradicts
    assert wrong.contradicts
    assert abs(wrong.count - N // 2) < 4.0 * wrong.stddev
    assert "units" in wrong.warning
    assert as_counted(fitted(table, n_records=N, unit=unit).release).n_records == 4 * N


def test_clusters_and_strata_and_weights_keep_their_counts(table):
    schema = dpi.tabular.Schema.from_dict(
        {"columns": {**COLUMNS, "w": {"kind": "continuous", "bounds": [0, 5], "mean": 2.0}}}
    )
    held = {**table, "w": np.tile([1.0, 3.0], N // 2)}
    for options in ({"clusters": "home"}, {"weights": "w"}, {"strata": "kind"}, {"weights": "w", "strata": "kind"}):
        found = fitted(held, schema=schema, n_records=2 * N, **options)
        assert abs(found.fit.nobs - N) < 400
        assert found.failure == ""
        assert "n_records" in found.posterior.diagnostics.warnings


def test_a_trace_counts_nobody(table):
    model = dpi.models.LogisticRegression(1, fit_intercept=True)
    fit = dpi.fit(
        model, table["x"][:, None] / 5.0 - 1.0, table["won"], epsilon=2.0, delta=1e-6, n_records=N, method="dpvi"
    )
    assert used_records(fit.release) is None
    assert fit.nobs == N
    assert fit.posterior.diagnostics.records == ""


def test_a_learned_scale_reads_the_released_number(table):
    """Effects of places under a law of their own: the posterior under the new prior has the same unit of sums."""
    schema = dpi.tabular.Schema.from_dict({"columns": COLUMNS})
    fit = dpi.regression(
        "y ~ x + (1 | kind)", table, schema=schema, epsilon=5.0, delta=1e-6, n_records=2 * N,
        random_source=InsecureRNG(3),
    )  # fmt: skip
    assert fit.failure == ""
    assert abs(fit.fit.nobs - N) < 300
    assert abs(fit.coefficients()["x"]["mean"] - 0.5) < 0.05
