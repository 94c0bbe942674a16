"""Coverage studies: many simulated runs of the mechanism, their posteriors, and whether those are calibrated.

**Privacy.** Simulated records only.
"""

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "STUDY_NAMES": "study",
    "ChunkResult": "study",
    "CoverageResult": "coverage_result",
    "ModelStudy": "model_study",
    "Study": "study",
    "StudyExecution": "execution",
    "coverage_study": "coverage",
    "find_study": "study",
}

__all__ = [
    "STUDY_NAMES",
    "ChunkResult",
    "CoverageResult",
    "ModelStudy",
    "Study",
    "StudyExecution",
    "coverage_study",
    "find_study",
]

if TYPE_CHECKING:
    from dpinfer.lab.studies.coverage import coverage_study
    from dpinfer.lab.studies.coverage_result import CoverageResult
    from dpinfer.lab.studies.execution import StudyExecution
    from dpinfer.lab.studies.model_study import ModelStudy
    from dpinfer.lab.studies.study import STUDY_NAMES, ChunkResult, Study, find_study


def __getattr__(name: str) -> Any:
    """Import public names on first use (PEP 562)."""
    if name in _NAMES:
        return getattr(importlib.import_module(f"dpinfer.lab.studies.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'dpinfer.lab.studies' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
