"""Checks of posteriors and predictions.

**Privacy.** Nothing here reads private training records; functions that take labels compare predictions with labels
that the caller supplies and say so.
"""

from dpinfer.diagnostics.calibration import CalibrationCurve, calibration_curve

__all__ = ["CalibrationCurve", "calibration_curve"]
