"""Mixtures of Gaussians with known weights and covariances: the means of the components are the parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer, check_interval, check_real
from dpinfer.models.base import IndependentNormalPriors

_START_RAW_SCALE = -2.0  # small scales: the start is near the prior's centre; tolerance


@dataclass(frozen=True)
class GaussianMixture(IndependentNormalPriors):
    """x ~ sum_j weights_j N(mean_j, covariance_j), with independent N(prior_loc, prior_scale**2 I) priors on the means.

    Parameters
    ----------
    n_components : int
        Number of components J.
    n_features : int
        Dimension d of a record.
    covariance : float, (d, d) or (J, d, d) nested sequence
        Known covariances; a number is the variance of every coordinate.
    weights : sequence of J floats, optional
        Known weights, positive, normalised here; equal by default.
    prior_loc : float or sequence of d floats
        Prior mean of every component's mean.
    prior_scale : float
        Prior standard deviation of every coordinate of the means.

    Examples
    --------
    >>> GaussianMixture(2, 2, covariance=0.25).names
    ('mean[0, 0]', 'mean[0, 1]', 'mean[1, 0]', 'mean[1, 1]')
    """

    record_form: ClassVar[str] = "points"
    site_sum: ClassVar[str | None] = "mixture"
    exchangeable_blocks: ClassVar[bool] = True

    n_components: int
    n_features: int
    covariance: Any = 1.0
    weights: Sequence[float] | None = None
    prior_loc: Any = 0.0
    prior_scale: float = 1.0

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "n_components", check_integer("n_components", self.n_components, 1, 10_000))
        put(self, "n_features", check_integer("n_features", self.n_features, 1, 1000))
        put(self, "prior_scale", check_interval("prior_scale", self.prior_scale, 0.0))
        covariance = check_float_array("covariance", self.covariance)
        d = self.n_features
        if np.ndim(self.covariance) == 0:
            put(self, "covariance", check_interval("covariance", self.covariance, 0.0))
        elif covariance.shape not in ((d, d), (self.n_components, d, d)):
            raise ValueError(f"covariance must be a number, ({d}, {d}) or ({self.n_components}, {d}, {d})")
        elif not np.allclose(covariance, np.swapaxes(covariance, -1, -2), rtol=1e-12, atol=0.0) or np.any(
            np.linalg.eigvalsh(covariance) <= 0.0
        ):
            raise ValueError("covariance must be symmetric and positive definite")
        else:
            put(self, "covariance", covariance.tolist())
        if self.weights is not None:
            weights = check_float_array("weights", self.weights, (self.n_components,))
            if not np.all(weights > 0.0):
                raise ValueError("weights must be positive")
            put(self, "weights", tuple((weights / weights.sum()).tolist()))
        if np.ndim(self.prior_loc) == 0:
            put(self, "prior_loc", check_real("prior_loc", self.prior_loc))
        else:
            put(self, "prior_loc", tuple(check_float_array("prior_loc", self.prior_loc, (d,)).tolist()))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the J d parameters, component by component."""
        return tuple(f"mean[{j}, {i}]" for j in range(self.n_components) for i in range(self.n_features))

    @cached_property
    def covariances(self) -> FloatArray:
        """Covariance of each component, (J, d, d)."""
        shape = (self.n_components, self.n_features, self.n_features)
        value = np.asarray(self.covariance)
        if value.ndim == 0:
            value = value * np.eye(self.n_features)
        return np.ascontiguousarray(np.broadcast_to(value, shape))

    @cached_property
    def log_weights(self) -> FloatArray:
        """Logarithm of each component's weight, (J,)."""
        if self.weights is None:
            return np.full(self.n_components, -np.log(self.n_components))
        return np.asarray(np.log(np.asarray(self.weights, dtype=np.float64)))

    @property
    def site_prior_loc(self) -> FloatArray:
        """Prior mean of the J blocks of q, (J, d)."""
        return self.prior_means

    @property
    def block_scale(self) -> float:
        """Root of the components' mean variance."""
        return float(np.sqrt(np.mean(np.diagonal(self.covariances, axis1=1, axis2=2))))

    def expected_site_precision(self, n_records: int) -> FloatArray:
        """Return the posterior precision of every block that the model expects before any record is seen, (J, d, d)."""
        share = np.exp(self.log_weights)[:, None, None]
        prior = np.eye(self.n_features) / self.prior_scale**2
        return np.asarray(prior + n_records * share * np.linalg.inv(self.covariances))

    def typical_site_norm(self, block_weight: float, quantile: float, size: int, rng: np.random.Generator) -> float:
        """Return a quantile of the norm of centred contributions of `size` records that the model expects."""
        inverse = np.linalg.inv(self.covariances)
        labels = rng.choice(self.n_components, size, p=np.exp(self.log_weights))
        whitened = rng.standard_normal((labels.size, self.n_features))
        linear = np.einsum("nij,nj->ni", np.linalg.cholesky(inverse)[labels], whitened)
        precision = np.sum(inverse**2, axis=(1, 2))[labels]
        norms = np.sqrt(np.sum(linear**2, axis=1) + block_weight**2 * precision)
        return float(np.quantile(norms, quantile))

    @cached_property
    def prior_means(self) -> FloatArray:
        """Prior mean of each component's mean, (J, d)."""
        return np.array(np.broadcast_to(np.asarray(self.prior_loc), (self.n_components, self.n_features)))

    @property
    def isotropic(self) -> bool:
        """Whether every covariance is a multiple of the identity."""
        variance = np.mean(np.diagonal(self.covariances, axis1=1, axis2=2), axis=1)
        return bool(np.allclose(self.covariances, variance[:, None, None] * np.eye(self.n_features), atol=0.0))

    def _prior_law(self) -> tuple[FloatArray | float, FloatArray | float]:
        return self.prior_means.ravel(), self.prior_scale

    def default_start(self) -> tuple[FloatArray, FloatArray]:
        """Return the prior mean, where all components coincide, and raw_scale = -2.

        A symmetric point: :func:`dpinfer.run_dp_sep` starts from draws around it instead.
        """
        return self.prior_means.ravel(), np.full(self.n_params, _START_RAW_SCALE)

    def log_likelihood(self, theta: npt.ArrayLike, X: npt.ArrayLike) -> FloatArray:
        """Return log p(x | theta) of the caller's own points: (..., n_points) for theta (..., J d).

        **Privacy.** Exact: not private if the points are.
        """
        points = check_float_array("X", X, (None, self.n_features))
        values = np.asarray(theta, dtype=np.float64)
        means = values.reshape(*values.shape[:-1], self.n_components, 1, self.n_features)
        gaps = points - means
        factor = np.linalg.cholesky(self.covariances)
        whitened = np.linalg.solve(factor, np.swapaxes(gaps, -1, -2))
        log_norm = np.sum(np.log(np.diagonal(factor, axis1=1, axis2=2)), axis=1)
        log_norm = self.log_weights - log_norm - 0.5 * self.n_features * np.log(2.0 * np.pi)
        return np.asarray(
            special.logsumexp(log_norm[:, None] - 0.5 * np.sum(whitened**2, axis=-2), axis=-2), dtype=np.float64
        )

    def simulate(self, theta: npt.ArrayLike, n_records: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw records (n_records, d) from the mixture at theta (J d,)."""
        generator = np.random.default_rng(rng)
        means = check_float_array("theta", theta, (self.n_params,)).reshape(self.n_components, self.n_features)
        labels = generator.choice(
            self.n_components, check_integer("n_records", n_records, 0), p=np.exp(self.log_weights)
        )
        noise = generator.standard_normal((labels.size, self.n_features))
        return np.asarray(means[labels] + np.einsum("nij,nj->ni", np.linalg.cholesky(self.covariances)[labels], noise))

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values."""
        return {
            "kind": "GaussianMixture",
            "n_components": self.n_components,
            "n_features": self.n_features,
            "covariance": self.covariance,
            "weights": None if self.weights is None else list(self.weights),
            "prior_loc": list(self.prior_loc) if isinstance(self.prior_loc, tuple) else self.prior_loc,
            "prior_scale": self.prior_scale,
        }
