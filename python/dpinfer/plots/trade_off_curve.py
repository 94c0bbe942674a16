"""The power of attacks under a guarantee."""

from typing import TYPE_CHECKING

import numpy as np

from dpinfer.accounting import Guarantee

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_N_POINTS = 201  # of a curve: no corner is visible


def trade_off(guarantee: Guarantee, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the trade-off curve: the least false negative rate of any attack at each false positive rate.

    **Privacy.** Draws a guarantee, which holds no records.

    Parameters
    ----------
    guarantee : Guarantee
        ``release.guarantee`` or ``plan.guarantee``.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Notes
    -----
    Dong, Roth and Su (2022), section 2.  The straight line is that of an attack that guesses.
    """
    from dpinfer.plots.style import FAINT, INK, SIGNAL, axes_or_new, tidy

    if not isinstance(guarantee, Guarantee):
        raise TypeError(f"guarantee must be a Guarantee, got {type(guarantee).__name__}")
    ax = axes_or_new(ax, width=3.8, height=3.6)
    alpha = np.linspace(0.0, 1.0, _N_POINTS)
    missed = guarantee.trade_off(alpha)
    ax.plot(alpha, 1.0 - alpha, color=INK, linewidth=0.8, linestyle="--", label="guessing")
    ax.plot(alpha, missed, color=SIGNAL, linewidth=1.6, label="the best attack, at most")
    ax.fill_between(alpha, missed, 1.0 - alpha, color=FAINT, alpha=0.5, linewidth=0.0)
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(0.0, 1.0)
    ax.set_aspect("equal")
    ax.set_xlabel("records wrongly claimed to be in")
    ax.set_ylabel("records in, and missed")
    ax.legend(frameon=False, fontsize="small")
    tidy(ax, grid="both")
    return ax
