"""Model specifications: likelihood, prior and bijector as plain data.  No records live here.

**Privacy.** A model is public.  Methods that take ``X`` compute predictions for the caller's own points from posterior
draws; they are post-processing.  Methods that compute an exact posterior or sufficient statistics say that they are not
private.
"""

from dpinfer.models.base import Model
from dpinfer.models.conjugate import BetaBernoulli, BetaBinomial, DirichletCategorical, GammaExponential
from dpinfer.models.conjugate_distributions import ConjugateDistribution, DirichletOnLogits, GammaOnSoftplus
from dpinfer.models.conjugate_model import ConjugateModel
from dpinfer.models.expected import (
    DispersionClipping,
    ExpectedGradients,
    InformedModel,
    default_max_grad_norm,
    dispersion_clipping,
    expected_gradients,
    prior_predictive_norm,
)
from dpinfer.models.glm import (
    GeneralizedLinearModel,
    LogisticRegression,
    PoissonRegression,
    ProbitRegression,
)
from dpinfer.models.linear_regression import LinearRegression
from dpinfer.models.normal_inverse_gamma import NormalInverseGamma
from dpinfer.models.registry import model_from_dict

__all__ = [
    "BetaBernoulli",
    "BetaBinomial",
    "ConjugateDistribution",
    "ConjugateModel",
    "DirichletCategorical",
    "DirichletOnLogits",
    "DispersionClipping",
    "ExpectedGradients",
    "GammaExponential",
    "GammaOnSoftplus",
    "GeneralizedLinearModel",
    "InformedModel",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "NormalInverseGamma",
    "PoissonRegression",
    "ProbitRegression",
    "default_max_grad_norm",
    "dispersion_clipping",
    "expected_gradients",
    "model_from_dict",
    "prior_predictive_norm",
]
