"""Pictures of privacy: attacks under a guarantee, an audit's lower bounds beside the claim, and widened posteriors."""

from typing import TYPE_CHECKING

import numpy as np

from dpinfer._validate import check_type
from dpinfer.accounting import Guarantee
from dpinfer.auditing import AuditResult
from dpinfer.plots.style import ACCENT, FAINT, INK, NOISE, SIGNAL, axes_or_new, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpinfer.planning import PlanGrid


_N_POINTS = 201  # of a curve: no corner is visible


def audit(result: AuditResult, *, ax: "Axes | None" = None) -> "Axes":
    """Draw each lower bound on mu as a share of the claim; a correct mechanism stays left of 1.

    **Privacy.** Draws findings about made-up records.

    Raises ValueError if it has no check that distinguishes data sets.

    Parameters
    ----------
    result : AuditResult
    """
    check_type("result", result, AuditResult)
    checks = [check for check in result.checks if check.kind == "distinguishing"]
    if not checks:
        raise ValueError("result must have distinguishing checks, got none")
    ax = axes_or_new(ax, width=6.4, height=1.0 + 0.22 * len(checks))
    places = range(len(checks), 0, -1)
    shares = [check.value / check.bound for check in checks]
    ax.scatter(shares, places, s=18, color=[SIGNAL if check.passed else ACCENT for check in checks], zorder=3)
    ax.axvline(1.0, color=INK, linewidth=0.8)
    ax.set_yticks(list(places), [check.name for check in checks], fontsize=7)
    ax.set(xlim=(0.0, max(1.1, 1.1 * max(shares))), xlabel="lower bound on mu / claim")
    verdict = "passed" if result.passed else f"FAILED {len(result.failures)} of {len(result.checks)} checks"
    ax.set_title(f"Privacy audit {verdict}, {result.n_runs} trials a data set", fontsize=10)
    tidy(ax, grid="x")
    return ax


def trade_off(guarantee: Guarantee, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the trade-off curve: the least false negative rate of any attack at each false positive rate.

    Source: Dong, Roth and Su (2022), section 2.  The straight line is that of an attack that guesses.

    **Privacy.** Draws a guarantee, which holds no records.

    Parameters
    ----------
    guarantee : Guarantee
        ``release.guarantee`` or ``plan.guarantee``.
    """
    check_type("guarantee", guarantee, Guarantee)
    ax = axes_or_new(ax, width=3.8, height=3.6)
    alpha = np.linspace(0.0, 1.0, _N_POINTS)
    missed = guarantee.trade_off(alpha)
    ax.plot(alpha, 1.0 - alpha, color=INK, linewidth=0.8, linestyle="--", label="guessing")
    ax.plot(alpha, missed, color=SIGNAL, linewidth=1.6, label="the best attack, at most")
    ax.fill_between(alpha, missed, 1.0 - alpha, color=FAINT, alpha=0.5, linewidth=0.0)
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), xlabel="records wrongly claimed to be in", ylabel="records in, and missed")
    ax.set_aspect("equal")
    ax.legend(frameon=False, fontsize="small")
    tidy(ax, grid="both")
    return ax


def widening(grid: "PlanGrid", *, ax: "Axes | None" = None) -> "Axes":
    """Draw the factor by which privacy widens the median parameter's interval against epsilon, a line for each N.

    **Privacy.** Draws plans, which read no records.

    Parameters
    ----------
    grid : PlanGrid
        From :func:`dpinfer.planning.widening_grid`.
    """
    # Imported here: planning reaches the private mechanism, which pictures do not need.
    from dpinfer.planning import PlanGrid

    check_type("grid", grid, PlanGrid)
    ax = axes_or_new(ax)
    colours = (NOISE, ACCENT, SIGNAL, INK)
    order = sorted(range(len(grid.epsilons)), key=grid.epsilons.__getitem__)
    epsilons = [grid.epsilons[index] for index in order]
    for row, (count, factors) in enumerate(zip(grid.n_records, grid.widening, strict=True)):
        ax.plot(epsilons, factors[order], marker="o", color=colours[row % len(colours)], label=f"{count} records")
    ax.axhline(1.0, color=INK, linewidth=0.8)
    ax.set(xscale="log", yscale="log", xlabel="epsilon", ylabel="90% interval, over that without privacy")
    ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    ticks = [tick for tick in (1, 1.5, 2, 3, 5, 10, 20, 50, 100) if tick <= 1.3 * float(grid.widening.max())]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.legend(frameon=False)
    tidy(ax, grid="both")
    return ax
