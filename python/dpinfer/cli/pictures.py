"""The pictures of a fit, drawn without a display and kept as bytes."""

import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dpinfer import plots
from dpinfer.diagnostics import CalibrationCurve
from dpinfer.fitting.report import NARROW, Picture
from dpinfer.inference import Posterior
from dpinfer.release import GradientTrace, Release

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    # A drawing function, the size in inches, and a caption.
    _Plan = tuple[Callable[[Axes], Axes], tuple[float, float], str]
_DOTS_PER_INCH = 130  # sharp on screens at the report's width


def draw_all(
    release: Release,  # only a gradient trace has pictures of steps
    posterior: Posterior,
    *,
    calibration: CalibrationCurve | None = None,
    # receives a line for each picture that could not be drawn, so that a paid fit does not fail for a picture
    failures: list[str] | None = None,
) -> dict[str, Picture]:
    """Return the pictures of a fit, as ``name: (media type, content, caption)``.

    Names: ``trace``, ``trace-narrow`` for narrow screens, ``gradients-clear`` and ``gradients-noisy`` of a gradient
    trace; ``calibration`` and ``calibration-error``.

    **Privacy.** Post-processing of a Release; the calibration pictures show the labels they were computed from.
    """
    plans: dict[str, _Plan] = {}
    if isinstance(release, GradientTrace):
        plans |= _of_the_trace(release, posterior)
    if calibration is not None:
        plans["calibration"] = (
            lambda ax: plots.calibration(calibration, ax=ax),
            (4.6, 4.4),
            "Calibration on the test records",
        )
        plans["calibration-error"] = (
            lambda ax: plots.calibration_error(calibration, ax=ax),
            (4.6, 4.4),
            "Observed share minus predicted probability; the band is two standard errors",
        )
    if "trace" in plans:
        draw, (_, height), caption = plans["trace"]
        plans["trace" + NARROW] = (_with_stacked_legend(draw), (3.9, height + 0.5), caption)
    pictures = {}
    for name, (draw, size, caption) in plans.items():
        try:
            pictures[name] = draw_picture(draw, size, caption)
        except Exception as error:
            # Pictures show releases, so that the text of a renderer's error is not private.
            if failures is None:
                raise
            failures.append(f"The picture {name!r} could not be drawn ({type(error).__name__}: {error}).")
    return pictures


def _with_stacked_legend(draw: "Callable[[Axes], Axes]") -> "Callable[[Axes], Axes]":
    """Return a function that draws a narrow picture, with the legend above in two columns."""

    def narrow(ax: "Axes") -> "Axes":
        draw(ax)
        handles, labels = ax.get_legend_handles_labels()
        if handles:
            ax.legend(handles, labels, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, fontsize=8)
        return ax

    return narrow


def _of_the_trace(release: GradientTrace, posterior: Posterior) -> "dict[str, _Plan]":
    """Return drawings of the steps of a gradient trace, and of its gradients if the posterior has fitted lines."""
    chosen = _contrasting(posterior)
    names = [posterior.names[index] for index in dict.fromkeys((*chosen.values(), *range(len(posterior.names))))][:6]
    plans: dict[str, _Plan] = {
        "trace": (
            lambda ax: plots.trace(release, posterior, parameters=names, ax=ax),
            (7.4, 3.4),
            "Locations over the steps; dotted lines are the estimated optima",
        )
    }
    for kind, index in chosen.items():
        plans[f"gradients-{kind}"] = (
            _gradient_drawer(release, posterior, index),
            (5.2, 4.2),
            f"Noisy gradients of {posterior.names[index]} and the fitted line",
        )
    return plans


def _gradient_drawer(release: GradientTrace, posterior: Posterior, index: int) -> "Callable[[Axes], Axes]":
    return lambda ax: plots.gradient_fit(release, posterior, parameter=index, ax=ax)


def _contrasting(posterior: Posterior) -> dict[str, int]:
    """Return the best and the worst determined optimum for which the posterior has fitted a line."""
    optimum = np.asarray(posterior.optimum_stddev)[: len(posterior.names)]
    curvature = np.asarray(posterior.hessian_mean)
    curvature = (np.diag(curvature) if curvature.ndim == 2 else curvature)[: len(posterior.names)]
    fitted = np.flatnonzero(np.isfinite(curvature)) if len(curvature) == len(optimum) else np.array([], dtype=np.intp)
    if not len(fitted):
        return {}
    order = fitted[np.argsort(optimum[fitted], kind="stable")]
    return {"clear": int(order[0])} | ({"noisy": int(order[-1])} if len(order) > 1 else {})


def draw_picture(draw: "Callable[[Axes], Axes]", size: tuple[float, float], caption: str) -> Picture:
    """Return the figure as PNG; width and height are in inches."""
    # Imported here: `dpinfer --help` must not wait for matplotlib.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    content = io.BytesIO()
    with warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes.
        warnings.simplefilter("ignore")
        draw(figure.subplots())
        # Not `savefig`, which draws a figure with a layout twice.
        canvas.print_png(content, metadata={"Software": None})
    return "image/png", content.getvalue(), caption
