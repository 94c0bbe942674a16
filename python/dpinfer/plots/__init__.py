"""Pictures of posteriors, traces and calibration, drawn with matplotlib (imported when first needed).

**Privacy.** Every function draws a release, a posterior or a result it is given; none reads records.  Each takes
``ax=None`` and returns the matplotlib ``Axes`` it has drawn on; without `ax` it makes a figure with pyplot.
"""

from typing import TYPE_CHECKING

from dpinfer._lazy import lazy_names

__all__ = ["audit", "calibration", "calibration_error", "gradient_fit", "posterior", "trace", "trade_off", "widening"]

if TYPE_CHECKING:
    from dpinfer.plots.calibration_curves import calibration, calibration_error
    from dpinfer.plots.intervals import posterior
    from dpinfer.plots.privacy_curves import audit, trade_off, widening
    from dpinfer.plots.traces import gradient_fit, trace

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".calibration_curves": "calibration calibration_error",
        ".intervals": "posterior",
        ".privacy_curves": "audit trade_off widening",
        ".traces": "gradient_fit trace",
    },
)
