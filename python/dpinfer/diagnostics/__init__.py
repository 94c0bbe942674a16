"""Checks of posteriors and predictions.

**Privacy.** Nothing here reads private training records; functions with labels compare predictions with the
caller's labels, and document it.
"""

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "CalibrationCurve": "calibration",
    "TraceCheck": "trace_checks",
    "calibration_curve": "calibration",
    "check_trace": "trace_checks",
}

__all__ = [
    "CalibrationCurve",
    "TraceCheck",
    "audit",
    "audit_one_run",
    "calibration_curve",
    "check_trace",
]

if TYPE_CHECKING:
    from dpinfer.diagnostics.calibration import CalibrationCurve, calibration_curve
    from dpinfer.diagnostics.trace_checks import TraceCheck, check_trace


def __getattr__(name: str) -> Any:
    """Import public names on first use (PEP 562)."""
    if name in _NAMES:
        return getattr(importlib.import_module(f"dpinfer.diagnostics.{_NAMES[name]}"), name)
    if name in ("audit", "audit_one_run"):
        # These run the mechanism, which this package must not import: the top-level package imports them.
        return getattr(importlib.import_module("dpinfer"), name)
    raise AttributeError(f"module 'dpinfer.diagnostics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
