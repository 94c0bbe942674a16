"""Checks of posteriors and predictions.

**Privacy.** Nothing here reads private training records; functions with labels compare predictions with the
caller's labels, and document it.
"""

from typing import TYPE_CHECKING

from dpinfer._lazy import lazy_names

__all__ = ["CalibrationCurve", "TraceCheck", "audit", "audit_one_run", "calibration_curve", "check_trace"]

if TYPE_CHECKING:
    from dpinfer.diagnostics.calibration import CalibrationCurve, calibration_curve
    from dpinfer.diagnostics.trace_checks import TraceCheck, check_trace

# The audits run the mechanism, which this package must not import: the top-level package imports them.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".calibration": "CalibrationCurve calibration_curve",
        ".trace_checks": "TraceCheck check_trace",
        "dpinfer": "audit audit_one_run",
    },
)
