"""Posterior intervals with the part that privacy added."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._sinks import picture_label
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.plots.style import ACCENT, FAINT, INK, NOISE, SIGNAL, axes_or_new, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpinfer.inference import Posterior

_SORTS = ("given", "mean", "clarity", "privacy")


def posterior(
    posterior: "Posterior",
    *,
    parameters: Sequence[str] | None = None,
    max_parameters: int = 40,
    sort: str = "given",
    level: float = 0.9,
    reference: npt.ArrayLike | Mapping[str, float] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw each parameter's credible interval, and inside it the interval without privacy noise.

    Parameters
    ----------
    posterior : Posterior
    parameters : sequence of str, optional
        Names to draw; all by default.
    max_parameters : int
        Draw at most this many, at least 1; those with the largest ``|mean| / stddev`` are kept.
    sort : {"given", "mean", "clarity", "privacy"}
        Order from top to bottom: as in the model, or falling mean, ``|mean| / stddev`` or privacy share.
    level : float in (0, 1)
        Credibility of the intervals.
    reference : (n_params,) array or mapping from name to value, optional
        True or other values, drawn as crosses.

    Notes
    -----
    The outer bar runs between the posterior's quantiles.  The inner bar is a normal interval around the same mean
    with the variance that is not due to the privacy noise, by :meth:`Posterior.decompose`.
    """
    level = check_interval("level", level, 0.0, 1.0)
    rows = select_parameters(posterior, parameters, max_parameters=max_parameters, sort=sort)
    names = list(posterior.names)
    truth = _reference_values(names, reference)
    tail = 0.5 * (1.0 - level)
    low, high = (np.asarray(bound) for bound in posterior.quantile([tail, 1.0 - tail]))
    mean, variance = np.asarray(posterior.mean), np.asarray(posterior.stddev) ** 2
    half = float(special.ndtri(1.0 - tail)) * np.sqrt(data_share(posterior) * variance)
    ax = axes_or_new(ax, width=7.0, height=1.2 + 0.24 * len(rows))
    places = np.arange(len(rows))
    ax.axvline(0.0, color=FAINT, linewidth=1.0, zorder=0)
    ax.barh(places, (high - low)[rows], left=low[rows], height=0.62, color=NOISE, label=f"{level:.0%} interval")
    ax.barh(
        places, 2.0 * half[rows], left=(mean - half)[rows], height=0.26, color=SIGNAL, label="without privacy noise"
    )
    ax.plot(mean[rows], places, "o", color=INK, markersize=3.0, label="mean")
    if truth is not None:
        ax.plot(truth[rows], places, "x", color=ACCENT, markersize=6.0, markeredgewidth=1.6, label="reference")
    ax.set_yticks(places, [picture_label(names[row]) for row in rows], fontsize=8)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel("parameter value")
    if len(rows) < len(names) and parameters is None:
        chosen = f"{len(rows)} of {len(names)} parameters: those furthest from 0 in standard deviations"
        ax.set_title(chosen, fontsize=9)
    tidy(ax, grid="x")
    above = 1.0 + 0.05 / (1.2 + 0.24 * len(rows))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, above), ncols=4, frameon=False, fontsize=8)
    return ax


def select_parameters(
    posterior: "Posterior", parameters: Sequence[str] | None = None, *, max_parameters: int = 40, sort: str = "given"
) -> npt.NDArray[np.intp]:  # (n_rows,): indices into ``posterior.names``
    """Return the rows that :func:`posterior` draws, in its order, by its arguments of these names.

    Raises TypeError or ValueError if a name is unknown or an argument is out of range.
    """
    check_integer("max_parameters", max_parameters, 1)
    check_choice("sort", sort, _SORTS)
    names = list(posterior.names)
    if parameters is None:
        rows = np.arange(len(names), dtype=np.intp)
    else:
        if isinstance(parameters, str):
            raise TypeError("parameters must be a sequence of names, got a string")
        for name in parameters:
            if name not in names:
                raise ValueError(f"parameters must be names of the posterior's parameters, got {name!r}")
        rows = np.array([names.index(name) for name in parameters], dtype=np.intp)
    mean, stddev = np.asarray(posterior.mean), np.asarray(posterior.stddev)
    clarity = np.abs(mean) / np.where(stddev > 0.0, stddev, 1.0)
    if len(rows) > max_parameters:
        rows = np.sort(rows[np.argsort(-clarity[rows], kind="stable")[:max_parameters]])
    if sort == "given":
        return rows
    key = {"mean": mean, "clarity": clarity, "privacy": privacy_share(posterior)}[sort]
    return rows[np.argsort(-key[rows], kind="stable")]


def _reference_values(
    names: Sequence[str], reference: npt.ArrayLike | Mapping[str, float] | None
) -> npt.NDArray[np.float64] | None:
    if reference is None:
        return None
    if not isinstance(reference, Mapping):
        return check_float_array("reference", reference, (len(names),))
    for name in reference:
        if name not in names:
            raise ValueError(f"reference must name the posterior's parameters, got {name!r}")
    return np.array([reference.get(name, np.nan) for name in names], dtype=np.float64)


def data_share(posterior: "Posterior") -> npt.NDArray[np.float64]:
    """Return the share of each parameter's variance that is not the privacy noise's, (n_params,)."""
    records, _, _, prior = posterior.decompose().shares
    return np.asarray(records + prior)


def privacy_share(posterior: "Posterior") -> npt.NDArray[np.float64]:
    """Return the share of each parameter's variance that the privacy noise adds, (n_params,)."""
    return np.asarray(posterior.decompose().shares[1])
