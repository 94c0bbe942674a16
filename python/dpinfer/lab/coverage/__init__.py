"""Tests of calibration: ranks (SBC) and TARP of draws at many known truths, and errors of predicted probabilities.

**Privacy.** Nothing here reads a training record.
"""

from typing import TYPE_CHECKING

from dpinfer._lazy import lazy_names

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".calibration_error": "ExpectedCalibrationError expected_calibration_error",
        ".ranks": "SbcResult run_sbc sbc_from_cdf",
        ".tarp": "TarpAccumulator TarpResult TarpVerdict check_tarp run_tarp tarp_from_shares",
    },
)
