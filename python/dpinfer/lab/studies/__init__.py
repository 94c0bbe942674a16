"""Coverage studies: many simulated runs of the mechanism, their posteriors, and whether those are calibrated.

**Privacy.** Simulated records only.
"""

from typing import TYPE_CHECKING

from dpinfer._lazy import lazy_names

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
    from dpinfer.lab.studies.chunk import ChunkResult
    from dpinfer.lab.studies.coverage import coverage_study
    from dpinfer.lab.studies.coverage_result import CoverageResult
    from dpinfer.lab.studies.execution import StudyExecution
    from dpinfer.lab.studies.model_study import ModelStudy
    from dpinfer.lab.studies.study import STUDY_NAMES, Study, find_study

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".coverage": "coverage_study",
        ".coverage_result": "CoverageResult",
        ".execution": "StudyExecution",
        ".model_study": "ModelStudy",
        ".chunk": "ChunkResult",
        ".study": "STUDY_NAMES Study find_study",
    },
)
