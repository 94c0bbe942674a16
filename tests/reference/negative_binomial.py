"""A regression that the library does not have: negative binomial counts with a known dispersion."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import stats

from dpinfer.models import GeneralizedLinearModel

DISPERSION = 3.0


@dataclass(frozen=True)
class NegativeBinomial(GeneralizedLinearModel):
    """Counts of mean exp(eta) and variance mean + mean**2 / 3."""

    response: ClassVar[str] = "count"
    residual_link: ClassVar[str | None] = "poisson"

    def inverse_link(self, eta):
        return np.exp(eta)

    def log_density(self, eta, response):
        return stats.nbinom.logpmf(response, DISPERSION, DISPERSION / (DISPERSION + np.exp(eta)))

    def loss_slopes(self, eta, response, loc):
        mean = np.exp(eta)
        return -(response - mean) / (1.0 + mean / DISPERSION), np.full(np.shape(eta), np.nan)

    def draw_response(self, eta, params, generator):
        return generator.negative_binomial(DISPERSION, DISPERSION / (DISPERSION + np.exp(eta))) + 0.0
