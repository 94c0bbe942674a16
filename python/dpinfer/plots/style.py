"""Colours and axes shared by the pictures."""

from typing import TYPE_CHECKING, Literal

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


def tidy(ax: "Axes", *, grid: Literal["x", "y", "both"] = "y") -> None:
    """Remove the box and add a faint grid along `grid` ("x", "y" or "both")."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(color=FAINT)
    ax.set_axisbelow(True)
    ax.grid(True, axis=grid, color=FAINT, linewidth=0.5)
