"""Tests of calibration: ranks (SBC) and TARP of draws at many known truths, and errors of predicted probabilities.

**Privacy.** Nothing here reads a training record.
"""

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "ExpectedCalibrationError": "calibration_error",
    "SbcResult": "ranks",
    "TarpAccumulator": "tarp",
    "TarpResult": "tarp",
    "TarpVerdict": "tarp",
    "check_tarp": "tarp",
    "expected_calibration_error": "calibration_error",
    "run_sbc": "ranks",
    "run_tarp": "tarp",
    "sbc_from_cdf": "ranks",
    "tarp_from_shares": "tarp",
}

__all__ = [
    "ExpectedCalibrationError",
    "SbcResult",
    "TarpAccumulator",
    "TarpResult",
    "TarpVerdict",
    "check_tarp",
    "expected_calibration_error",
    "run_sbc",
    "run_tarp",
    "sbc_from_cdf",
    "tarp_from_shares",
]

if TYPE_CHECKING:
    from dpinfer.lab.coverage.calibration_error import ExpectedCalibrationError, expected_calibration_error
    from dpinfer.lab.coverage.ranks import SbcResult, run_sbc, sbc_from_cdf
    from dpinfer.lab.coverage.tarp import (
        TarpAccumulator,
        TarpResult,
        TarpVerdict,
        check_tarp,
        run_tarp,
        tarp_from_shares,
    )


def __getattr__(name: str) -> Any:
    """Import public names on first use (PEP 562)."""
    if name in _NAMES:
        return getattr(importlib.import_module(f"dpinfer.lab.coverage.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'dpinfer.lab.coverage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
