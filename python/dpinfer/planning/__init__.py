"""Planning: how wide a private posterior will be, and with which settings, before any record is read.

**Privacy.** Nothing here reads a record; pilot data sets and guesses must be public.
"""

from dpinfer.planning.fisher import Prediction, predict_tied
from dpinfer.planning.planner import plan_inference, widening_grid
from dpinfer.planning.result import InferencePlan, PlanGrid
from dpinfer.planning.settings import PlanSettings

__all__ = ["InferencePlan", "PlanGrid", "PlanSettings", "Prediction", "plan_inference", "predict_tied", "widening_grid"]
