"""Model specifications: likelihood, prior and bijector as plain data.  No records live here.

**Privacy.** A model is public.  Methods that take ``X`` compute predictions for the caller's own points from posterior
draws; they are post-processing.  Methods that compute an exact posterior or sufficient statistics are documented
as not private.
"""

from dpinfer.models.adapters import OwnModel, from_gradient, from_jax, from_numpyro, from_torch
from dpinfer.models.base import Model, SiteModel, model_from_dict, register_model
from dpinfer.models.bayesian_neural_network import BayesianNeuralNetwork, NetworkWeights
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
from dpinfer.models.gaussian_mixture import GaussianMixture
from dpinfer.models.glm import GeneralizedLinearModel, LogisticRegression, PoissonRegression, ProbitRegression
from dpinfer.models.gradient_model import GradientModel
from dpinfer.models.linear_regression import LinearRegression, NormalInverseGamma
from dpinfer.models.multinomial import MultinomialRegression
from dpinfer.models.person_model import PersonModel
from dpinfer.models.survey_weights import SurveyWeights

__all__ = [
    "BayesianNeuralNetwork",
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
    "GaussianMixture",
    "GeneralizedLinearModel",
    "GradientModel",
    "InformedModel",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "MultinomialRegression",
    "NetworkWeights",
    "NormalInverseGamma",
    "OwnModel",
    "PersonModel",
    "PoissonRegression",
    "ProbitRegression",
    "SiteModel",
    "SurveyWeights",
    "default_max_grad_norm",
    "dispersion_clipping",
    "expected_gradients",
    "from_gradient",
    "from_jax",
    "from_numpyro",
    "from_torch",
    "model_from_dict",
    "prior_predictive_norm",
    "register_model",
]

for _kind in (
    BayesianNeuralNetwork,
    BetaBernoulli,
    BetaBinomial,
    DirichletCategorical,
    GammaExponential,
    GaussianMixture,
    LinearRegression,
    LogisticRegression,
    OwnModel,
    PersonModel,
    PoissonRegression,
    ProbitRegression,
):
    register_model(_kind)
