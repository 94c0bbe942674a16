"""One call from records to a posterior: a plan from public numbers, one private run, and post-processing.

**Privacy.** :func:`plan_fit` reads no records.  :func:`fit` and :meth:`FitPlan.run` hand them to one mechanism of
:mod:`dpinfer.mechanism`; everything else is post-processing of its release.
"""

from dpinfer.fitting.choice import Candidate, Choice
from dpinfer.fitting.one_call import FitOptions, fit
from dpinfer.fitting.plan import FitPlan, plan_fit
from dpinfer.fitting.result import Fit, FitSummary, load_fit
from dpinfer.methods import METHODS, DoesNotApplyError, Method, StatisticPlan, Target

__all__ = [
    "METHODS",
    "Candidate",
    "Choice",
    "DoesNotApplyError",
    "Fit",
    "FitOptions",
    "FitPlan",
    "FitSummary",
    "Method",
    "StatisticPlan",
    "Target",
    "fit",
    "load_fit",
    "plan_fit",
]
