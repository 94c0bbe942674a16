"""Coverage curves and rank plots of simulation studies."""

from typing import TYPE_CHECKING

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_interval
from dpinfer.lab.coverage.ranks import SbcResult
from dpinfer.lab.coverage.tarp_result import TarpResult
from dpinfer.lab.coverage.uniformity import ecdf_band

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["coverage", "ranks"]


def coverage(result: TarpResult, *, marginals: bool = True, ax: "Axes | None" = None) -> "Axes":
    """Draw expected coverage against credibility, with the band that an exact posterior stays in.

    **Privacy.** Draws a study of simulated data.

    Parameters
    ----------
    result : TarpResult
    marginals : bool
        Whether to add thin curves of each dimension alone.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError
        If `result` is not a TarpResult.

    Notes
    -----
    The curve is the mean over the repeats.  The band is simultaneous: one exact repeat leaves it anywhere with
    probability 0.05.
    """
    if not isinstance(result, TarpResult):
        raise TypeError(f"result must be a TarpResult, got {type(result).__name__}")

    from dpinfer.plots.style import FAINT, INK, NOISE, SIGNAL, axes_or_new, tidy

    ax = axes_or_new(ax, width=4.6, height=4.4)
    levels = _with_ends(result.levels)
    low, high = (_with_ends(edge) for edge in result.band)
    ax.fill_between(levels, low, high, color=FAINT, alpha=0.6, linewidth=0, zorder=0, label="95% band")
    ax.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=0.8, zorder=1)
    if marginals and result.n_dims > 1:
        for index, curve in enumerate(result.marginal_coverage):
            label = "one dimension alone" if index == 0 else None
            ax.plot(levels, _with_ends(curve), color=NOISE, linewidth=0.8, zorder=2, label=label)
    label = f"RMSE {result.rmse:.3f} (exact: {result.rmse_floor:.3f})"
    ax.plot(levels, _with_ends(result.coverage), color=SIGNAL, linewidth=2.0, zorder=3, label=label)
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(0.0, 1.0)
    ax.set_aspect("equal")
    ax.set_xlabel("credibility level")
    ax.set_ylabel("expected coverage")
    tidy(ax, grid="both")
    ax.legend(frameon=False, fontsize=8, loc="upper left")
    return ax


def ranks(result: SbcResult, *, level: float = 0.95, ax: "Axes | None" = None) -> "Axes":
    """Draw how the distribution of the truth's ranks differs from the uniform one, a curve for each dimension.

    **Privacy.** Draws a study of simulated data.

    Parameters
    ----------
    result : SbcResult
    level : float in (0, 1)
        Probability that the curve of one exact posterior stays inside the band.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        If `result` is not an SbcResult or `level` lies outside (0, 1).

    Notes
    -----
    Empirical distribution function minus diagonal (Sailynoja, Buerkner and Vehtari 2022) with the exact
    Kolmogorov-Smirnov band.  An S shape is a posterior of the wrong width; a hump on one side, a shifted one.
    """
    if not isinstance(result, SbcResult):
        raise TypeError(f"result must be an SbcResult, got {type(result).__name__}")
    half = ecdf_band(result.n_sims, check_interval("level", level, 0.0, 1.0))

    from dpinfer.plots.style import ACCENT, FAINT, INK, SIGNAL, axes_or_new, tidy

    ax = axes_or_new(ax, width=5.6, height=3.4)
    ax.axhspan(-half, half, color=FAINT, alpha=0.6, linewidth=0, zorder=0, label=f"{level:.0%} band")
    ax.axhline(0.0, color=INK, linewidth=0.8, zorder=1)
    steps = np.arange(1, result.n_sims + 1) / result.n_sims
    largest = half
    for index, column in enumerate(np.sort(result.pit, axis=0).T):
        difference = steps - column
        outside = max(float(np.max(difference)), float(np.max(1.0 / result.n_sims - difference))) > half
        largest = max(largest, float(np.max(np.abs(difference))))
        label = f"dimension {index}" if outside else None
        ax.plot(column, difference, color=ACCENT if outside else SIGNAL, linewidth=1.0, label=label)
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(-1.2 * largest, 1.2 * largest)
    ax.set_xlabel("rank of the truth")
    ax.set_ylabel("distribution minus uniform")
    tidy(ax, grid="both")
    ax.legend(frameon=False, fontsize=8)
    return ax


def _with_ends(curve: FloatArray) -> FloatArray:
    """Return the curve with its certain values at credibility 0 and 1."""
    return np.concatenate([[0.0], curve, [1.0]])
