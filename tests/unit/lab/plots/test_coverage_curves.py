"""Coverage and rank plots show the numbers they are given."""

import matplotlib as mpl
import numpy as np
import pytest

from dpinfer.lab import plots
from dpinfer.lab.coverage import run_sbc, run_tarp, sbc_from_cdf
from dpinfer.lab.coverage.uniformity import ecdf_band

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


@pytest.fixture(scope="module")
def study():
    rng = np.random.default_rng(5)
    return rng.normal(size=(100, 200, 2)), rng.normal(size=(200, 2))


def test_coverage_curve_band_and_marginals(study):
    import matplotlib.pyplot as plt

    result = run_tarp(*study)
    ax = plots.coverage(result)
    curve = ax.lines[-1]
    np.testing.assert_allclose(curve.get_xdata(), [0.0, *result.levels, 1.0])
    np.testing.assert_allclose(curve.get_ydata(), [0.0, *result.coverage, 1.0])
    np.testing.assert_allclose(ax.lines[1].get_ydata()[1:-1], result.marginal_coverage[0])
    vertices = ax.collections[0].get_paths()[0].vertices
    assert vertices[:, 1].max() == 1.0
    middle = np.abs(vertices[:, 0] - 0.5) < 1e-9
    assert np.ptp(vertices[middle, 1]) == pytest.approx(2.0 * ecdf_band(200))
    _, own = plt.subplots()
    assert plots.coverage(result, marginals=False, ax=own) is own
    assert len(own.lines) == 2


def test_rank_curves_mark_what_leaves_the_band(study):
    samples, thetas = study
    result = run_sbc(samples, np.column_stack([thetas[:, 0], thetas[:, 1] + 1.0]))
    ax = plots.ranks(result)
    named = [text.get_text() for text in ax.get_legend().get_texts()]
    assert named == ["95% band", "dimension 1"]
    line = ax.lines[1]
    np.testing.assert_allclose(line.get_xdata(), np.sort(result.pit[:, 0]))
    np.testing.assert_allclose(line.get_ydata(), np.arange(1, 201) / 200 - np.sort(result.pit[:, 0]))
    assert plots.ranks(sbc_from_cdf(np.linspace(0.01, 0.99, 50)), level=0.5) is not None


def test_bad_arguments(study):
    with pytest.raises(TypeError, match="result"):
        plots.coverage(run_sbc(*study))
    with pytest.raises(TypeError, match="result"):
        plots.ranks(run_tarp(*study))
    with pytest.raises(ValueError, match="level"):
        plots.ranks(run_sbc(*study), level=1.0)
