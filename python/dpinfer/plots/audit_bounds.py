"""Lower bounds of an audit, next to the mechanism's claim."""

from typing import TYPE_CHECKING

from dpinfer.auditing import AuditResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def audit(result: AuditResult, *, ax: "Axes | None" = None) -> "Axes":
    """Draw each lower bound on mu as a share of the claim; a correct mechanism stays left of 1.

    **Privacy.** Draws findings about made-up records.

    Parameters
    ----------
    result : AuditResult
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        If it has no check that distinguishes data sets.
    """
    if not isinstance(result, AuditResult):
        raise TypeError(f"result must be an AuditResult, got {type(result).__name__}")
    checks = [check for check in result.checks if check.kind == "distinguishing"]
    if not checks:
        raise ValueError("result must have distinguishing checks, got none")

    from dpinfer.plots.style import ACCENT, INK, SIGNAL, axes_or_new, tidy

    ax = axes_or_new(ax, width=6.4, height=1.0 + 0.22 * len(checks))
    places = range(len(checks), 0, -1)
    shares = [check.value / check.bound for check in checks]
    ax.scatter(shares, places, s=18, color=[SIGNAL if check.passed else ACCENT for check in checks], zorder=3)
    ax.axvline(1.0, color=INK, linewidth=0.8)
    ax.set_yticks(list(places), [check.name for check in checks], fontsize=7)
    ax.set_xlim(0.0, max(1.1, 1.1 * max(shares)))
    ax.set_xlabel("lower bound on mu / claim")
    verdict = "passed" if result.passed else f"FAILED {len(result.failures)} of {len(result.checks)} checks"
    ax.set_title(f"Privacy audit {verdict}, {result.n_runs} trials a data set", fontsize=10)
    tidy(ax, grid="x")
    return ax
