"""Pictures of posteriors, traces and calibration, drawn with matplotlib (imported when first needed).

**Privacy.** Every function draws a release, a posterior or a result it is given; none reads records.  Each takes
``ax=None`` and returns the matplotlib ``Axes`` it has drawn on; without `ax` it makes a figure with pyplot.
"""

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "audit": "audit_bounds",
    "calibration": "calibration_curves",
    "calibration_error": "calibration_curves",
    "gradient_fit": "traces",
    "posterior": "intervals",
    "trace": "traces",
    "trade_off": "trade_off_curve",
    "widening": "widening_curves",
}

__all__ = ["audit", "calibration", "calibration_error", "gradient_fit", "posterior", "trace", "trade_off", "widening"]

if TYPE_CHECKING:
    from dpinfer.plots.audit_bounds import audit
    from dpinfer.plots.calibration_curves import calibration, calibration_error
    from dpinfer.plots.intervals import posterior
    from dpinfer.plots.traces import gradient_fit, trace
    from dpinfer.plots.trade_off_curve import trade_off
    from dpinfer.plots.widening_curves import widening


def __getattr__(name: str) -> Any:
    """Import public names on first use (PEP 562)."""
    if name in _NAMES:
        return getattr(importlib.import_module(f"dpinfer.plots.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'dpinfer.plots' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
