"""Planning: how wide a private posterior will be, and with which settings, before any record is read.

**Privacy.** Nothing here reads a record; pilot data sets and guesses must be public.
"""

from typing import TYPE_CHECKING

from dpinfer._lazy import lazy_names

if TYPE_CHECKING:
    from dpinfer.planning.newton.model import (
        predict_newton,
        predict_own_newton,
        predict_own_population,
        predict_population,
        widest_newton,
    )
    from dpinfer.planning.statistic import predict_statistic
    from dpinfer.planning.trace.fisher import Prediction, predict_tied
    from dpinfer.planning.trace.planner import plan_inference, widening_grid
    from dpinfer.planning.trace.result import InferencePlan, PlanGrid
    from dpinfer.planning.trace.settings import PlanSettings, recommended_run

__all__ = [
    "InferencePlan",
    "PlanGrid",
    "PlanSettings",
    "Prediction",
    "plan_inference",
    "predict_newton",
    "predict_own_newton",
    "predict_own_population",
    "predict_population",
    "predict_statistic",
    "predict_tied",
    "recommended_run",
    "widening_grid",
    "widest_newton",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".newton.model": "predict_newton predict_own_newton predict_own_population predict_population widest_newton",
        ".statistic": "predict_statistic",
        ".trace.fisher": "Prediction predict_tied",
        ".trace.planner": "plan_inference widening_grid",
        ".trace.result": "InferencePlan PlanGrid",
        ".trace.settings": "PlanSettings recommended_run",
    },
)
