"""Settings of runs: plain frozen data without records, chosen in one place.

The mechanism runs by them, a release carries them, inference reads them back, the planner predicts from them, and the
studies hand them to the compiled engine.

**Privacy.** Reads no records: settings are functions of public numbers and of past releases.
"""

from dpinfer.recipes.gradients import (
    RECIPES,
    GradientArguments,
    GradientOptions,
    GradientRun,
    GradientSettings,
    choose_gradient_run,
    natural_scaling,
)
from dpinfer.recipes.scaling import (
    FisherScaling,
    GradScale,
    LearningRate,
    StepPolicy,
    largest_natural_rate,
    steady_rate,
)

__all__ = [
    "RECIPES",
    "FisherScaling",
    "GradScale",
    "GradientArguments",
    "GradientOptions",
    "GradientRun",
    "GradientSettings",
    "LearningRate",
    "StepPolicy",
    "choose_gradient_run",
    "largest_natural_rate",
    "natural_scaling",
    "steady_rate",
]
