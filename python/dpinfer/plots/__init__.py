"""Pictures of posteriors, traces and calibration, drawn with matplotlib (imported when first needed).

**Privacy.** Every function draws a release, a posterior or a result it is given; none reads records.  Each takes
``ax=None`` and returns the matplotlib ``Axes`` it has drawn on; without `ax` it makes a figure with pyplot.
"""

from typing import TYPE_CHECKING

from dpinfer._lazy import lazy_names

__all__ = ["audit", "calibration", "calibration_error", "gradient_fit", "posterior", "trace", "trade_off", "widening"]

if TYPE_CHECKING:
    from dpinfer.plots.audit_bounds import audit
    from dpinfer.plots.calibration_curves import calibration, calibration_error
    from dpinfer.plots.intervals import posterior
    from dpinfer.plots.traces import gradient_fit, trace
    from dpinfer.plots.trade_off_curve import trade_off
    from dpinfer.plots.widening_curves import widening

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".audit_bounds": "audit",
        ".calibration_curves": "calibration calibration_error",
        ".intervals": "posterior",
        ".traces": "gradient_fit trace",
        ".trade_off_curve": "trade_off",
        ".widening_curves": "widening",
    },
)
