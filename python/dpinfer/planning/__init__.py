"""Planning: how wide a private posterior will be, and with which settings, before any record is read.

**Privacy.** Nothing here reads a record; pilot data sets and guesses must be public.
"""

from dpinfer.planning.fisher import Prediction, predict_tied
from dpinfer.planning.newton_width import predict_newton, widest_newton
from dpinfer.planning.own_width import predict_own_newton
from dpinfer.planning.planner import plan_inference, recommended_run, widening_grid
from dpinfer.planning.population_width import predict_population
from dpinfer.planning.result import InferencePlan, PlanGrid
from dpinfer.planning.settings import PlanSettings
from dpinfer.planning.statistic_width import predict_statistic

__all__ = [
    "InferencePlan",
    "PlanGrid",
    "PlanSettings",
    "Prediction",
    "plan_inference",
    "predict_newton",
    "predict_own_newton",
    "predict_population",
    "predict_statistic",
    "predict_tied",
    "recommended_run",
    "widening_grid",
    "widest_newton",
]
