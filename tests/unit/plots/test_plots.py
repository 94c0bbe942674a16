"""The pictures show the numbers they are given."""

import matplotlib as mpl
import numpy as np
import pytest

from dpinfer import plots
from dpinfer.accounting import PrivacyPlan
from dpinfer.diagnostics import calibration_curve
from dpinfer.inference import noise_aware_posterior
from dpinfer.plots.intervals import data_share, privacy_share, select_parameters
from dpinfer.release import release_from_arrays

mpl.use("Agg")

NAMES = ("alpha", "beta", "gamma")


@pytest.fixture(autouse=True)
def _close_figures():
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


@pytest.fixture(scope="module")
def release():
    """A stationary trace around known optima: loc at (2, 0.1, -1), standard deviations softplus(-2)."""
    rng = np.random.default_rng(8)
    optimum = np.array([2.0, 0.1, -1.0, -2.0, -2.0, -2.0])
    curvature = np.array([50.0, 20.0, 100.0, 30.0, 30.0, 30.0])
    positions = optimum + rng.normal(scale=0.3, size=(3000, 6))
    gradients = 0.5 * curvature * (positions - optimum) + 4.0 * rng.normal(size=(3000, 6))
    return release_from_arrays(positions, gradients, noise_stddev=4.0, sample_rate=0.5, names=NAMES)


@pytest.fixture(scope="module")
def posterior(release):
    return noise_aware_posterior(release, burn_in=300)


def test_posterior_bars_are_the_quantiles(posterior):
    ax = plots.posterior(posterior, level=0.8, reference={"alpha": 2.0})
    wide = ax.patches[:3]
    low, high = posterior.quantile([0.1, 0.9])
    np.testing.assert_allclose([bar.get_x() for bar in wide], low)
    np.testing.assert_allclose([bar.get_x() + bar.get_width() for bar in wide], high)
    inner = ax.patches[3:6]
    expected = 2 * 1.2815515655446004 * np.sqrt(data_share(posterior)) * posterior.stddev
    np.testing.assert_allclose([bar.get_width() for bar in inner], expected)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(NAMES)


def test_inner_bar_is_inside_the_outer_one_up_to_shape(posterior):
    assert np.all(data_share(posterior) <= 1.0 + 1e-9)
    assert np.all(data_share(posterior) + privacy_share(posterior) <= 1.0 + 1e-9)


def test_selection(posterior):
    mean = np.asarray(posterior.mean)
    clarity = np.abs(mean) / posterior.stddev
    assert select_parameters(posterior).tolist() == [0, 1, 2]
    assert select_parameters(posterior, sort="mean").tolist() == np.argsort(-mean).tolist()
    kept = select_parameters(posterior, max_parameters=2)
    assert kept.tolist() == sorted(np.argsort(-clarity)[:2].tolist())
    assert select_parameters(posterior, ["gamma", "alpha"]).tolist() == [2, 0]
    ax = plots.posterior(posterior, max_parameters=2)
    assert "2 of 3" in ax.get_title()


def test_gradient_line_has_the_fitted_slope(release, posterior):
    for column, name in enumerate(("alpha", "loc[beta]", 2, "raw_scale[alpha]")):
        ax = plots.gradient_fit(release, posterior, parameter=name)
        line = next(item for item in ax.lines if "kappa" in str(item.get_label()))
        x, y = line.get_data()
        slope = (y[1] - y[0]) / (x[1] - x[0])
        assert slope == pytest.approx(0.5 * float(posterior.hessian_mean[column]))
        root = x[0] - y[0] / slope
        assert root == pytest.approx(float(posterior.optimum_mean[column]))
        band = ax.collections[0].get_paths()[0].vertices[:, 1]
        assert np.ptp(band) == pytest.approx(y[1] - y[0] + 2 * 4.0)


def test_trace_lines_are_the_positions(release, posterior):
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    assert plots.trace(release, posterior, parameters=["beta", "raw_scale[gamma]"], ax=ax) is ax
    line = ax.lines[0]
    np.testing.assert_array_equal(line.get_ydata(), release.positions[:, 1])
    assert any(patch.get_width() == 300 for patch in ax.patches)
    standard = plots.trace(release, standardise=True)
    late = standard.lines[0].get_ydata()[1500:]
    assert abs(np.mean(late)) < 1e-9
    assert np.std(late) == pytest.approx(1.0)


def test_calibration_points():
    rng = np.random.default_rng(2)
    p = rng.uniform(size=500)
    curve = calibration_curve(p, rng.uniform(size=500) < p)
    ax = plots.calibration(curve)
    np.testing.assert_allclose(ax.lines[1].get_xydata(), np.column_stack([curve.predicted, curve.observed]))
    ax = plots.calibration_error({"exact": curve, "naive": curve})
    np.testing.assert_allclose(ax.lines[1].get_ydata(), curve.error)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["exact", "naive"]
    for bad in ({}, 3, {"x": 1}):
        with pytest.raises(TypeError, match="curves"):
            plots.calibration(bad)


def test_the_trade_off_is_the_guarantees():
    guarantee = PrivacyPlan.from_noise_multiplier(2.0, 1.0, 1, 1e-5).guarantee
    ax = plots.trade_off(guarantee)
    guessing, best = (line.get_xydata() for line in ax.lines)
    np.testing.assert_allclose(guessing.sum(axis=1), 1.0)
    np.testing.assert_array_equal(best[:, 1], guarantee.trade_off(best[:, 0]))
    assert np.all(best[1:-1, 1] < guessing[1:-1, 1])
    with pytest.raises(TypeError, match="guarantee"):
        plots.trade_off("(1, 1e-5)-differentially private")


def test_bad_arguments(release, posterior):
    with pytest.raises(ValueError, match="delta"):
        plots.posterior(posterior, parameters=["delta"])
    with pytest.raises(TypeError, match="parameters"):
        plots.posterior(posterior, parameters="alpha")
    with pytest.raises(ValueError, match="sort"):
        plots.posterior(posterior, sort="size")
    with pytest.raises(ValueError, match="level"):
        plots.posterior(posterior, level=1.0)
    with pytest.raises(ValueError, match="reference"):
        plots.posterior(posterior, reference={"delta": 1.0})
    with pytest.raises(ValueError, match="reference"):
        plots.posterior(posterior, reference=[1.0])
    with pytest.raises(ValueError, match="parameter"):
        plots.gradient_fit(release, posterior, parameter="delta")
    with pytest.raises(ValueError, match="parameter"):
        plots.gradient_fit(release, posterior, parameter=6)
    with pytest.raises(TypeError, match="release"):
        plots.trace(posterior)
    with pytest.raises(ValueError, match="at most 12"):
        plots.trace(release, parameters=["alpha"] * 13)
    naive = noise_aware_posterior(release, approximation="naive")
    with pytest.raises(ValueError, match="no line"):
        plots.gradient_fit(release, naive)
    assert plots.posterior(naive) is not None


def test_importing_dpinfer_does_not_import_matplotlib():
    import subprocess
    import sys

    code = "import sys, dpinfer.plots, dpinfer.cli.main; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
