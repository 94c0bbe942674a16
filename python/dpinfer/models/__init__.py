"""Model specifications: likelihood, prior and bijector as plain data.  No records live here.

**Privacy.** A model is public.  Methods that take ``X`` compute predictions for the caller's own points from posterior
draws; they are post-processing.
"""

from dpinfer.models.base import Model
from dpinfer.models.expected import ExpectedGradients, InformedModel, expected_gradients, prior_predictive_norm
from dpinfer.models.glm import (
    GeneralizedLinearModel,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    ProbitRegression,
)
from dpinfer.models.registry import model_from_dict

__all__ = [
    "ExpectedGradients",
    "GeneralizedLinearModel",
    "InformedModel",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "PoissonRegression",
    "ProbitRegression",
    "expected_gradients",
    "model_from_dict",
    "prior_predictive_norm",
]
