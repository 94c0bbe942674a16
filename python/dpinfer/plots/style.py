"""Colours and axes shared by the pictures."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Distinguishable with the common colour-vision deficiencies (Okabe and Ito, 2008) and by lightness in print.
INK = "#222222"
FAINT = "#c9ced6"
NOISE = "#f0b27a"
SIGNAL = "#0072b2"
ACCENT = "#d55e00"


def axes_or_new(ax: "Axes | None", *, width: float = 6.4, height: float = 4.2) -> "Axes":
    """Return `ax`, or the axes of a new pyplot figure of this size in inches."""
    if ax is not None:
        return ax
    # Imported here: importing dpinfer must not import matplotlib.
    import matplotlib.pyplot as plt

    _, created = plt.subplots(figsize=(width, height), layout="constrained")
    return created


def tidy(ax: "Axes", *, grid: str = "y") -> None:
    """Remove the box and add a faint grid along `grid` ("x", "y" or "both")."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.spines["left"].set_color(FAINT)
    ax.spines["bottom"].set_color(FAINT)
    ax.tick_params(color=FAINT)
    ax.set_axisbelow(True)
    if grid in ("x", "both"):
        ax.xaxis.grid(True, color=FAINT, linewidth=0.5)
    if grid in ("y", "both"):
        ax.yaxis.grid(True, color=FAINT, linewidth=0.5)
