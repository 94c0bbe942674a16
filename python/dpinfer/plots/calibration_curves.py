"""Calibration curves of predicted probabilities."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dpinfer._sinks import picture_label
from dpinfer.diagnostics import CalibrationCurve
from dpinfer.plots.style import FAINT, axes_or_new, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = CalibrationCurve | Mapping[str, CalibrationCurve]


def calibration(curves: Curves, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the observed share of positives against the predicted probability.

    **Privacy.** Draws the labels' frequencies without noise: publish it only if the labels are public.

    Parameters
    ----------
    curves : CalibrationCurve or mapping from name to CalibrationCurve
    """
    named = _named(curves)
    ax = axes_or_new(ax, width=4.6, height=4.4)
    ax.plot([0.0, 1.0], [0.0, 1.0], color=FAINT, linewidth=1.2, zorder=0)
    for name, curve in named.items():
        ax.errorbar(
            curve.predicted,
            curve.observed,
            yerr=2.0 * curve.standard_error,
            marker="o",
            markersize=4.0,
            linewidth=1.2,
            elinewidth=0.8,
            label=f"{picture_label(name)} (RMSE {curve.rmse:.3f})" if name else f"RMSE {curve.rmse:.3f}",
        )
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="predicted probability", ylabel="observed share")
    ax.set_aspect("equal")
    tidy(ax, grid="both")
    ax.legend(frameon=False, fontsize=8, loc="upper left")
    return ax


def calibration_error(curves: Curves, *, ax: "Axes | None" = None) -> "Axes":
    """Draw observed share minus predicted probability, with two standard errors of perfect predictions as a band.

    **Privacy.** Draws the labels' frequencies without noise: publish it only if the labels are public.

    Parameters, result and errors are those of :func:`calibration`.
    """
    named = _named(curves)
    ax = axes_or_new(ax, width=4.6, height=3.0)
    ax.axhline(0.0, color=FAINT, linewidth=1.2, zorder=0)
    first = next(iter(named.values()))
    band = 2.0 * first.standard_error
    ax.fill_between(first.predicted, -band, band, color=FAINT, alpha=0.5, linewidth=0, zorder=0)
    for name, curve in named.items():
        label = picture_label(name) if name else None
        ax.plot(curve.predicted, curve.error, "o-", markersize=4.0, linewidth=1.2, label=label)
    largest = max(float(np.max(np.abs(curve.error))) for curve in named.values())
    limit = 1.2 * max(largest, float(np.max(band)), 0.02)
    ax.set(xlim=(-0.02, 1.02), ylim=(-limit, limit), xlabel="predicted probability", ylabel="observed − predicted")
    tidy(ax, grid="both")
    if any(named):
        ax.legend(frameon=False, fontsize=8)
    return ax


def _named(curves: Curves) -> dict[str, CalibrationCurve]:
    if isinstance(curves, CalibrationCurve):
        return {"": curves}
    named = dict(curves) if isinstance(curves, Mapping) else {}
    if not named or not all(isinstance(curve, CalibrationCurve) for curve in named.values()):
        raise TypeError("curves must be a CalibrationCurve or a non-empty mapping from names to them")
    return named
