"""The gradient trace: parameters over the steps, and the linear model fitted to the noisy gradients."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpinfer._sinks import picture_label
from dpinfer._validate import check_integer, check_type
from dpinfer.plots.style import ACCENT, FAINT, INK, NOISE, SIGNAL, axes_or_new, tidy
from dpinfer.release import GradientTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpinfer.inference import Posterior

_MAXIMUM_LINES = 12  # lines that a picture can hold
_FIT_BINS = 20  # of a scatter, each with a visible mean


def trace(
    release: GradientTrace,
    posterior: "Posterior | None" = None,
    *,
    parameters: Sequence[str] | None = None,
    standardise: bool = False,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw parameters of the trace over the steps, with the burn-in shaded.

    Raises TypeError or ValueError if a name is unknown or there are more than 12.

    Parameters
    ----------
    release : GradientTrace
    posterior : Posterior, optional
        Adds the burn-in and the mean of each optimum.
    parameters : sequence of str, optional
        Names of gradient coordinates (``loc[x]``, ``raw_scale[x]``) or, for short, of parameters (their ``loc``).  By
        default the locations of the first six parameters.  At most 12.
    standardise : bool
        Centre each line at its mean and divide by its standard deviation over the second half of the steps.
    """
    check_type("release", release, GradientTrace)
    chosen = list(release.names[:6]) if parameters is None else list(parameters)
    if len(chosen) > _MAXIMUM_LINES:
        raise ValueError(f"parameters must hold at most {_MAXIMUM_LINES} names, got {len(chosen)}")
    columns = [coordinate(release, name) for name in chosen]
    ax = axes_or_new(ax, width=7.0, height=3.4)
    steps = np.arange(release.n_steps)
    # A line of ten thousand points is drawn no better than one of two thousand, and weighs five times as much.
    stride = max(1, release.n_steps // 2000)
    for column in columns:
        values = release.positions[:, column]
        if standardise:
            late = values[release.n_steps // 2 :]
            values = (values - late.mean()) / (late.std() or 1.0)
        label = picture_label(release.gradient_names[column])
        (line,) = ax.plot(steps[::stride], values[::stride], linewidth=0.8, label=label)
        if posterior is not None and not standardise and column < len(posterior.optimum_mean):
            ax.axhline(float(posterior.optimum_mean[column]), color=line.get_color(), linewidth=0.8, linestyle=":")
    if posterior is not None and posterior.burn_in > 0:
        ax.axvspan(0, posterior.burn_in, color=FAINT, alpha=0.45, linewidth=0)
        ax.text(0.0, 1.01, "burn-in", transform=ax.get_xaxis_transform(), fontsize=8, color=INK, va="bottom")
    ax.set(xlim=(0, max(1, release.n_steps - 1)), xlabel="step")
    ax.set_ylabel("position (standardised)" if standardise else "position")
    tidy(ax)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    return ax


def gradient_fit(
    release: GradientTrace,
    posterior: "Posterior",
    *,
    parameter: str | int = 0,
    max_points: int = 4000,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the noisy gradients of one coordinate against its position, with the line the posterior fits to them.

    Raises TypeError or ValueError if the coordinate is unknown or the posterior fits no line to it.

    Parameters
    ----------
    release : GradientTrace
    posterior : Posterior
        Of this release, by a method that fits the trace (not "naive" or "averaged").
    parameter : str or int
        Gradient coordinate (``loc[x]``, ``raw_scale[x]``), a parameter's name (its ``loc``), or an index.
    max_points : int
        Thin the points to at most about this many, at least 1.

    Notes
    -----
    NA-DPVI, figure 1: the line is kappa a (phi - phi*) at the posterior means of a and phi*; the band adds and
    subtracts the known noise tau.  Larger dots are averages over twenty equal-count bins of positions, whose noise is
    small enough to judge the line by.
    """
    check_type("release", release, GradientTrace)
    check_integer("max_points", max_points, 1)
    column = coordinate(release, parameter)
    name = release.gradient_names[column]
    optimum = np.asarray(posterior.optimum_mean)
    curvature = np.asarray(posterior.hessian_mean)
    curvature = np.diag(curvature) if curvature.ndim == 2 else curvature
    if column >= len(optimum) or column >= len(curvature) or not np.isfinite(curvature[column]):
        approximation = posterior.approximation
        raise ValueError(f"posterior fits no line to the gradients of {name!r} (approximation {approximation!r})")
    start = posterior.burn_in
    position = release.positions[start:, column]
    gradient = release.noisy_gradients[start:, column]
    stddev = release.noise_stddev[start:, column] if release.noise_stddev.ndim == 2 else release.noise_stddev[column]
    tau = float(np.sqrt(np.mean(np.square(stddev))))
    ax = axes_or_new(ax)
    thinned = slice(None, None, max(1, len(position) // max_points))
    dots: dict[str, Any] = {"color": FAINT, "markersize": 2.0, "rasterized": True, "label": "noisy gradients"}
    ax.plot(position[thinned], gradient[thinned], ".", **dots)
    ends = np.array([position.min(), position.max()])
    line = release.sample_rate * float(curvature[column]) * (ends - float(optimum[column]))
    ax.fill_between(ends, line - tau, line + tau, color=NOISE, alpha=0.35, linewidth=0, label=r"line $\pm\,\tau$")
    ax.plot(ends, line, color=SIGNAL, linewidth=2.0, label=r"$\kappa\,a\,(\phi-\phi^*)$")
    parts = np.array_split(np.argsort(position, kind="stable"), min(_FIT_BINS, len(position)))
    centres = [float(position[part].mean()) for part in parts]
    averages = [float(gradient[part].mean()) for part in parts]
    spread = [tau / np.sqrt(len(part)) for part in parts]
    dots = {"color": INK, "markersize": 4.0, "linewidth": 1.0, "label": "averages of bins"}
    ax.errorbar(centres, averages, yerr=spread, fmt="o", **dots)
    ax.axvline(float(optimum[column]), color=ACCENT, linewidth=1.2, linestyle="--", label=r"$\phi^*$")
    span = max(3.0 * tau, 1.5 * float(np.max(np.abs(line))))
    ax.set(ylim=(-span, span), xlabel=f"position of {picture_label(name)}", ylabel="noisy gradient")
    tidy(ax, grid="both")
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.26))
    return ax


def coordinate(release: GradientTrace, parameter: str | int) -> int:
    """Return the column of a gradient coordinate given by its name, its parameter's name or its index.

    Raises TypeError or ValueError if there is no such coordinate.
    """
    names = release.gradient_names
    if isinstance(parameter, str):
        if parameter in names:
            return names.index(parameter)
        if parameter in release.names:
            return release.names.index(parameter)
        raise ValueError(f"parameter must name a parameter or gradient coordinate of the release, got {parameter!r}")
    return check_integer("parameter", parameter, 0, len(names) - 1)
