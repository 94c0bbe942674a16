"""Histograms of the truth's ranks and z-scores in a simulation study."""

from typing import TYPE_CHECKING

import numpy as np

from dpinfer._sinks import picture_label
from dpinfer._validate import check_interval
from dpinfer.lab.coverage.ranks import SbcResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["rank_histogram", "z_scores"]

_Z_EDGES = np.linspace(-5.0, 5.0, 51)  # five standard deviations, in bins of 0.2
_MAX_LABELS = 12  # lines that a legend can hold


def rank_histogram(
    result: SbcResult, *, names: tuple[str, ...] | None = None, level: float = 0.95, ax: "Axes | None" = None
) -> "Axes":
    """Draw the histogram of the truth's ranks, one line for each dimension, relative to the uniform one.

    **Privacy.** Draws a study of simulated data.

    Parameters
    ----------
    result : SbcResult
    names : tuple of d str, optional
        Names of the dimensions.
    level : float in (0, 1)
        Probability that all bins of one exact posterior stay inside the band (Bonferroni, exact binomial).
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        If `result` is not an SbcResult, or another argument is wrong.

    Notes
    -----
    Talts et al. (2018), section 4.  A bowl is a posterior that is too narrow, a dome one too wide, a slope a shift.
    """
    labels = _labels(result, names)
    level = check_interval("level", level, 0.0, 1.0)

    from scipy import stats

    from dpinfer.plots.style import FAINT, INK, axes_or_new, tidy

    ax = axes_or_new(ax, width=5.6, height=3.4)
    tail = 0.5 * (1.0 - level) / result.n_bins
    expected = result.n_sims / result.n_bins
    low, high = (float(stats.binom.ppf(p, result.n_sims, 1.0 / result.n_bins)) for p in (tail, 1.0 - tail))
    ax.axhspan(
        low / expected, high / expected, color=FAINT, alpha=0.6, linewidth=0, zorder=0, label=f"{level:.0%} band"
    )
    ax.axhline(1.0, color=INK, linewidth=0.8, zorder=1)
    edges = np.linspace(0.0, 1.0, result.n_bins + 1)
    for index, (counts, label) in enumerate(zip(result.counts, labels, strict=True)):
        outside = bool(np.any((counts < low) | (counts > high)))
        ax.stairs(counts / expected, edges, color=_colour(index), linewidth=1.6 if outside else 0.8, label=label)
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel("rank of the truth")
    ax.set_ylabel("share relative to uniform")
    tidy(ax)
    _legend(ax, result.n_dims)
    return ax


def z_scores(result: SbcResult, *, names: tuple[str, ...] | None = None, ax: "Axes | None" = None) -> "Axes":
    """Draw the histogram of the truth's z-scores, one line for each dimension, with the standard normal density.

    **Privacy.** Draws a study of simulated data.

    Parameters
    ----------
    result : SbcResult
        With z-scores.
    names : tuple of d str, optional
        Names of the dimensions.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        If `result` is not an SbcResult, has no z-scores, or another argument is wrong.

    Notes
    -----
    Scores beyond five are counted in the outermost bins.  The density is that of normal posteriors; the mean 0
    and standard deviation 1 hold for exact posteriors of any shape.
    """
    labels = _labels(result, names)
    if result.z is None:
        raise ValueError("result must have z-scores, got one made from distribution functions alone")

    from dpinfer.plots.style import INK, axes_or_new, tidy

    ax = axes_or_new(ax, width=5.6, height=3.4)
    grid = np.linspace(_Z_EDGES[0], _Z_EDGES[-1], 400)
    ax.plot(grid, np.exp(-0.5 * grid**2) / np.sqrt(2.0 * np.pi), color=INK, linewidth=0.8, label="exact, normal")
    for index, (column, label) in enumerate(zip(result.z.T, labels, strict=True)):
        density, _ = np.histogram(np.clip(column, _Z_EDGES[0], _Z_EDGES[-1]), bins=_Z_EDGES, density=True)
        text = f"{label}: {result.mean_z[index]:+.2f}, sd {result.sd_z[index]:.2f}"
        ax.stairs(density, _Z_EDGES, color=_colour(index), linewidth=1.0, label=text)
    ax.set_xlim(_Z_EDGES[0], _Z_EDGES[-1])
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel("(truth - posterior mean) / posterior standard deviation")
    ax.set_ylabel("density")
    tidy(ax)
    _legend(ax, result.n_dims)
    return ax


def _labels(result: SbcResult, names: tuple[str, ...] | None) -> tuple[str, ...]:
    if not isinstance(result, SbcResult):
        raise TypeError(f"result must be an SbcResult, got {type(result).__name__}")
    if names is None:
        return tuple(f"dimension {index}" for index in range(result.n_dims))
    if len(names) != result.n_dims:
        raise ValueError(f"names must have {result.n_dims} elements, got {len(names)}")
    return tuple(picture_label(name) for name in names)


def _colour(index: int) -> str:
    """Return one of ten colours of matplotlib's default cycle."""
    return f"C{index % 10}"


def _legend(ax: "Axes", n_dims: int) -> None:
    """Add a legend while it is short enough to read."""
    if n_dims <= _MAX_LABELS:
        ax.legend(frameon=False, fontsize=7)
