"""Models whose parameters have independent normal priors with mean 0."""

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer
from dpinfer.models.base import Model
from dpinfer.models.bijectors import sigmoid, softplus

_START_RAW_SCALE = -6.0  # small scales: the start is near the prior's centre


class NormalPriorModel(Model):
    """Base of models with independent N(0, prior_scale**2) priors.

    **Privacy.** Public; holds no records.

    Attributes
    ----------
    prior_scale : float
        Prior standard deviation of every parameter, positive.
    """

    prior_scale: float

    def log_prior(self, theta: npt.ArrayLike) -> FloatArray:
        """Return the log prior density, (...,) for (..., n)."""
        values = check_float_array("theta", theta, finite=False)
        scaled = values / self.prior_scale
        constant = 0.5 * np.log(2.0 * np.pi) + np.log(self.prior_scale)
        return np.asarray(-0.5 * np.sum(scaled**2, axis=-1) - self.n_params * constant)

    def log_prior_gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log prior at one theta (n,)."""
        return -theta / self.prior_scale**2

    def expected_log_prior_gradient(self, loc: FloatArray, raw_scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the gradient of E_q[log prior] in loc and raw_scale, in closed form."""
        variance = self.prior_scale**2
        return -loc / variance, -softplus(raw_scale) * sigmoid(raw_scale) / variance

    def prior_moments(self) -> tuple[FloatArray, FloatArray]:
        """Return the prior's mean and standard deviation of each parameter, two (n,) arrays."""
        return np.zeros(self.n_params), np.full(self.n_params, self.prior_scale)

    def default_start(self) -> tuple[FloatArray, FloatArray]:
        """Return loc = 0 and raw_scale = -6, the paper's start for Adult."""
        return np.zeros(self.n_params), np.full(self.n_params, _START_RAW_SCALE)

    def sample_prior(self, size: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw constrained parameters from the prior, (size, n)."""
        return np.random.default_rng(rng).normal(0.0, self.prior_scale, (check_integer("size", size, 0), self.n_params))
