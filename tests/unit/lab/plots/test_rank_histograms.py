"""Histograms of ranks and z-scores."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpinfer.lab import plots
from dpinfer.lab.coverage import sbc_from_cdf


@pytest.fixture
def result(rng):
    """A uniform dimension and one that is not."""
    pit = rng.uniform(size=(400, 2))
    pit[:, 1] = pit[:, 1] ** 3
    return sbc_from_cdf(pit, z=rng.normal(size=(400, 2)) * [1.0, 20.0])


def axes():
    return Figure().subplots()


def test_rank_histogram(result):
    ax = axes()
    assert plots.rank_histogram(result, names=("one", "two"), ax=ax) is ax
    stairs = {patch.get_label(): patch for patch in ax.patches if patch.get_label() in ("one", "two")}
    np.testing.assert_allclose(stairs["two"].get_data().values, result.counts[1] / 20.0)
    # What leaves the band is drawn thicker.
    assert stairs["two"].get_linewidth() > stairs["one"].get_linewidth()


def test_z_scores_hold_everything(result):
    ax = plots.z_scores(result, ax=axes())
    values, edges, _ = ax.patches[1].get_data()
    np.testing.assert_allclose(np.sum(values * np.diff(edges)), 1.0)
    assert values[0] * 0.2 == pytest.approx(np.mean(result.z[:, 1] < -4.8))


@pytest.mark.parametrize("function", [plots.rank_histogram, plots.z_scores])
def test_refusals(function, result):
    with pytest.raises(TypeError, match="result must be an SbcResult"):
        function(3)
    with pytest.raises(ValueError, match="names must have 2 elements, got 1"):
        function(result, names=("one",))
    with pytest.raises(ValueError, match="result must have z-scores"):
        plots.z_scores(sbc_from_cdf(result.pit))
    with pytest.raises(ValueError, match="level must lie in"):
        plots.rank_histogram(result, level=1.0)
