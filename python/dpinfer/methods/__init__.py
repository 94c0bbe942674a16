"""The table of methods: the ways from records to a posterior, and what each plans, predicts, checks, runs and infers.

Whatever fits a model (``fit``, estimators, formulas, the command line, ``unknown=``, ledger, replay, audit) looks a
method up here by name, and knows nothing else of it.  A package brings another by an entry point (docs/stability.md).
"""

from dpinfer.methods.method import DoesNotApplyError, MechanismPlan, Method, RunSettings, StatisticPlan, Target
from dpinfer.methods.rows import METHODS, NewtonMethod, find_method, marked, method_with

__all__ = [
    "METHODS",
    "DoesNotApplyError",
    "MechanismPlan",
    "Method",
    "NewtonMethod",
    "RunSettings",
    "StatisticPlan",
    "Target",
    "find_method",
    "marked",
    "method_with",
]
