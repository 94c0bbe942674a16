"""By how much privacy is expected to widen a posterior, over epsilon and the number of records."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpinfer.planning import PlanGrid


def widening(grid: "PlanGrid", *, ax: "Axes | None" = None) -> "Axes":
    """Draw the factor by which privacy widens the median parameter's interval against epsilon, a line for each N.

    **Privacy.** Draws plans, which read no records.

    Parameters
    ----------
    grid : PlanGrid
        From :func:`dpinfer.planning.widening_grid`.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    # Imported here: planning reaches the private mechanism, which pictures do not need.
    from dpinfer.planning import PlanGrid
    from dpinfer.plots.style import ACCENT, INK, NOISE, SIGNAL, axes_or_new, tidy

    if not isinstance(grid, PlanGrid):
        raise TypeError(f"grid must be a PlanGrid, got {type(grid).__name__}")
    ax = axes_or_new(ax)
    colours = (NOISE, ACCENT, SIGNAL, INK)
    order = sorted(range(len(grid.epsilons)), key=grid.epsilons.__getitem__)
    epsilons = [grid.epsilons[index] for index in order]
    for row, (count, factors) in enumerate(zip(grid.n_records, grid.widening, strict=True)):
        ax.plot(epsilons, factors[order], marker="o", color=colours[row % len(colours)], label=f"{count} records")
    ax.axhline(1.0, color=INK, linewidth=0.8)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    ticks = [tick for tick in (1, 1.5, 2, 3, 5, 10, 20, 50, 100) if tick <= 1.3 * float(grid.widening.max())]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_xlabel("epsilon")
    ax.set_ylabel("90% interval, over that without privacy")
    ax.legend(frameon=False)
    tidy(ax, grid="both")
    return ax
