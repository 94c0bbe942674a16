"""Linear regression with unknown noise variance and a normal-inverse-gamma prior, and its exact posterior."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import TINY, FloatArray
from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.models.base import (
    GAUSS_HERMITE_NODES,
    START_RAW_SCALE,
    gauss_hermite,
    log_sigmoid,
    sigmoid,
    softplus,
    softplus_inverse,
)
from dpinfer.models.conjugate_distributions import checked_probabilities
from dpinfer.models.glm import GeneralizedLinearModel


@dataclass(frozen=True, eq=False)
class NormalInverseGamma:
    """variance ~ InvGamma(shape, rate), and weights given it ~ N(loc, variance * inverse(precision)).

    Parameters are the weights, then the variance: n = p + 1 of them.

    **Privacy.** It is computed from the records without noise, and *not* private: the reference for private inference.

    Parameters
    ----------
    loc : (p,) float64
    precision : (p, p) float64
        Positive definite; relative to 1 / variance.
    shape, rate : float
        Positive.
    """

    loc: FloatArray
    precision: FloatArray
    shape: float
    rate: float

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "loc", check_float_array("loc", self.loc, (None,)))
        p = self.loc.size
        put(self, "precision", check_float_array("precision", self.precision, (p, p)))
        put(self, "shape", check_interval("shape", self.shape, 0.0))
        put(self, "rate", check_interval("rate", self.rate, 0.0))
        try:
            np.linalg.cholesky(self.precision)
        except np.linalg.LinAlgError as error:
            raise ValueError("precision must be positive definite") from error

    @cached_property
    def _root(self) -> FloatArray:
        """R with R R' = inverse(precision)."""
        return np.asarray(np.linalg.inv(np.linalg.cholesky(self.precision)).T, dtype=np.float64)

    @property
    def mean(self) -> FloatArray:
        """Means, (n,); that of the variance is infinite for shape <= 1."""
        return np.append(self.loc, self.rate / (self.shape - 1.0) if self.shape > 1.0 else np.inf)

    @property
    def stddev(self) -> FloatArray:
        """Standard deviations, (n,), infinite where the shape is too small for them to exist."""
        a, b = self.shape, self.rate
        spread = np.sqrt(self._unit_variances * (b / (a - 1.0) if a > 1.0 else np.inf))
        last = b / ((a - 1.0) * np.sqrt(a - 2.0)) if a > 2.0 else np.inf
        return np.append(spread, last)

    @property
    def _unit_variances(self) -> FloatArray:
        return np.asarray(np.sum(self._root**2, axis=1))

    def quantile(self, probability: npt.ArrayLike) -> FloatArray:
        """Return marginal quantiles, (..., n) for probabilities (...) in (0, 1).

        A weight's marginal is Student's t with 2 shape degrees of freedom.
        """
        from scipy import stats  # half a second to import, so only if needed

        values = checked_probabilities(probability)
        scale = np.sqrt(self._unit_variances * self.rate / self.shape)
        weights = self.loc + scale * stats.t.ppf(values, 2.0 * self.shape)
        return np.concatenate((weights, stats.invgamma.ppf(values, self.shape, scale=self.rate)), axis=-1)

    def interval(self, level: float = 0.9) -> FloatArray:
        """Return central marginal intervals: lower and upper ends, (2, n)."""
        tail = 0.5 - 0.5 * check_interval("level", level, 0.0, 1.0)
        return self.quantile(np.array([tail, 1.0 - tail]))

    def sample(self, size: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw (weights, variance), (size, n)."""
        size = check_integer("size", size, 0)
        generator = np.random.default_rng(rng)
        variance = self.rate / generator.gamma(self.shape, 1.0, (size, 1))
        weights = self.loc + np.sqrt(variance) * (generator.standard_normal((size, self.loc.size)) @ self._root.T)
        return np.concatenate((weights, variance), axis=1)


@dataclass(frozen=True)
class DispersionMoments:
    """Expectations under q of functions of the noise variance, and their gradients in (loc, raw_scale)."""

    # precision, precision_loc, precision_raw_scale: E[1 / variance] and its two derivatives
    precision: float
    precision_loc: float
    precision_raw_scale: float
    # log_variance, log_variance_loc, log_variance_raw_scale: E[log variance] and its two derivatives
    log_variance: float
    log_variance_loc: float
    log_variance_raw_scale: float


@dataclass(frozen=True)
class LinearRegression(GeneralizedLinearModel):
    """Gaussian responses with unknown noise variance and a normal-inverse-gamma prior.

    variance ~ InvGamma(variance_shape, variance_rate); each weight given it ~ N(0, prior_scale**2 * variance).  The
    last unconstrained parameter rho maps to the variance by softplus.

    Parameters
    ----------
    n_features, prior_scale, fit_intercept, feature_names
        As in :class:`GeneralizedLinearModel`; `prior_scale` is relative to the noise standard deviation.
    variance_shape, variance_rate : float
        Parameters of the inverse-gamma prior, positive.
    largest_spread : float, optional
        Public bound of the residuals' standard deviation about the population's line: half of the range of bounded
        responses with an intercept, their largest size without one.  The population's posterior stays below it.
    """

    prior_scale: float = 2.0
    variance_shape: float = 20.0
    variance_rate: float = 0.5
    largest_spread: float | None = field(default=None, kw_only=True)

    likelihood: ClassVar[str] = "gaussian"
    score_link: ClassVar[str | None] = "gaussian"
    gradient_sum: ClassVar[str | None] = "glm"
    natural_steps: ClassVar[bool] = True
    pivotal: ClassVar[bool] = True  # scaled by the information, gradients have the same distribution at every theta
    has_dispersion: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        put = object.__setattr__
        put(self, "variance_shape", check_interval("variance_shape", self.variance_shape, 0.0))
        put(self, "variance_rate", check_interval("variance_rate", self.variance_rate, 0.0))
        if self.largest_spread is not None:
            put(self, "largest_spread", check_interval("largest_spread", self.largest_spread, 0.0))

    def constrain(self, theta: npt.ArrayLike) -> FloatArray:
        """Map rho to the noise variance softplus(rho)."""
        values = np.array(theta, dtype=np.float64)
        values[..., -1] = softplus(values[..., -1])
        return values

    def unconstrain(self, params: npt.ArrayLike) -> FloatArray:
        """Map the noise variance to rho."""
        values = np.array(params, dtype=np.float64)
        values[..., -1] = softplus_inverse(values[..., -1])
        return values

    def log_prior(self, theta: npt.ArrayLike) -> FloatArray:
        """Return the log prior density of (w, rho), the Jacobian of softplus included."""
        values = check_float_array("theta", theta, finite=False)
        weights, rho = values[..., :-1], values[..., -1]
        variance = softplus(rho)
        shape, rate = self.variance_shape, self.variance_rate
        scale2 = self.prior_scale**2 * variance
        normal = -0.5 * np.sum(weights**2, axis=-1) / scale2 - 0.5 * self.n_coef * np.log(2.0 * np.pi * scale2)
        gamma = shape * np.log(rate) - special.gammaln(shape) - (shape + 1.0) * np.log(variance) - rate / variance
        return np.asarray(normal + gamma + log_sigmoid(rho))

    def log_prior_gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log prior at one theta (n,)."""
        weights, rho = theta[:-1], float(theta[-1])
        last = self.log_prior_slope(weights @ weights, theta[-1])
        return np.append(-weights / (self.prior_scale**2 * float(softplus(rho))), last)

    def log_prior_slope(self, squares: FloatArray, rho: FloatArray) -> FloatArray:
        """Return d log prior / d rho, any shape, from the sum of the squared weights and rho."""
        variance, slope = softplus(rho), sigmoid(rho)
        quadratic = 0.5 * squares / self.prior_scale**2 + self.variance_rate
        power = 0.5 * self.n_coef + self.variance_shape + 1.0
        return np.asarray((quadratic / variance**2 - power / variance) * slope + sigmoid(-rho))

    def information(self, loc: FloatArray, scale: FloatArray | None = None) -> FloatArray:
        """Return E[x_j**2] / variance for a weight, (d log variance / d rho)**2 / 2 for rho; (..., n)."""
        rho = loc[..., -1:]
        variance = np.maximum(softplus(rho), TINY)
        return np.concatenate((self.second_moments / variance, 0.5 * np.square(sigmoid(rho) / variance)), axis=-1)

    def reference_records(
        self, loc: FloatArray, size: int, rng: np.random.Generator
    ) -> tuple[tuple[FloatArray, FloatArray], FloatArray]:
        """Return simulated records at theta = loc, as the other models do, with residuals in pairs and in strata.

        Each row of features comes with a residual and with its negative, so that expectations that vanish by symmetry
        are exactly zero; the sizes of the residuals are a shuffled stratified sample of the half-normal.
        """
        half = (size + 1) // 2
        design = self.reference_design(half, rng)
        strata = (rng.permutation(half) + rng.uniform(size=half)) / half
        residual = np.sqrt(softplus(loc[-1])) * special.ndtri(0.5 + 0.5 * strata)
        mean = design @ loc[: self.n_coef]
        records = (np.vstack((design, design)), np.concatenate((mean + residual, mean - residual)))
        return records, np.full(2 * half, 0.5 / half)

    def variance_prior_logpdf(self, variance: FloatArray) -> FloatArray:
        """Return the log density of the noise variance under its prior, up to a constant; any shape."""
        return np.asarray(-(self.variance_shape + 1.0) * np.log(variance) - self.variance_rate / variance)

    def variance_prior_quantile(self, probability: npt.ArrayLike) -> FloatArray:
        """Return quantiles of the noise variance under its prior."""
        return np.asarray(self.variance_rate / special.gammainccinv(self.variance_shape, probability))

    def record_derivatives(
        self, records: tuple[FloatArray, FloatArray], loc: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return both derivatives of -log p(record | theta) in each parameter at loc, two (records, n) arrays."""
        design, response = records
        variance, slope = float(softplus(loc[-1])), float(sigmoid(loc[-1]))
        residual = response - design @ loc[:-1]
        ratio = slope / variance  # d log variance / d rho
        bend = ratio * float(sigmoid(-loc[-1])) - ratio**2
        square = np.square(residual) / variance
        first = np.column_stack((-design * (residual / variance)[:, None], 0.5 * ratio * (1.0 - square)))
        second = np.column_stack((np.square(design) / variance, 0.5 * (bend * (1.0 - square) + ratio**2 * square)))
        return first, second

    def dispersion_moments(self, loc: float, raw_scale: float) -> DispersionMoments:
        """Return E_q[1 / variance], E_q[log variance] and their gradients, for rho ~ N(loc, softplus(raw_scale)**2).

        Gauss-Hermite with 64 nodes on the derivatives (Bonnet and Price: dE[h]/d loc = E[h'], dE[h]/d raw_scale =
        E[h''] s s').
        """
        scale, slope = float(softplus(raw_scale)), float(sigmoid(raw_scale))
        nodes, weights = gauss_hermite(GAUSS_HERMITE_NODES)
        rho = loc + scale * nodes
        variance, d1 = softplus(rho), sigmoid(rho)
        d2 = d1 * sigmoid(-rho)
        precision = 1.0 / variance
        ratio = d1 * precision
        chain = scale * slope
        return DispersionMoments(
            precision=float(weights @ precision),
            precision_loc=float(weights @ (-ratio * precision)),
            precision_raw_scale=chain * float(weights @ ((2.0 * ratio**2 - d2 * precision) * precision)),
            log_variance=float(weights @ np.log(variance)),
            log_variance_loc=float(weights @ ratio),
            log_variance_raw_scale=chain * float(weights @ (d2 * precision - ratio**2)),
        )

    def harmonic_variance(self, loc: FloatArray, scale: FloatArray) -> FloatArray:
        """Return 1 / E_q[1 / variance] for rho ~ N(loc, scale**2), element by element."""
        nodes, weights = gauss_hermite(GAUSS_HERMITE_NODES)
        return np.asarray(1.0 / ((1.0 / softplus(loc[..., None] + scale[..., None] * nodes)) @ weights))

    def expected_log_prior_gradient(self, loc: FloatArray, raw_scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the gradient of E_q[log prior]; closed form in the weights, quadrature in rho."""
        moments = self.dispersion_moments(float(loc[-1]), float(raw_scale[-1]))
        scale, slope = softplus(raw_scale), sigmoid(raw_scale)
        weight_precision = moments.precision / self.prior_scale**2
        grad_loc, grad_raw = np.empty_like(loc), np.empty_like(raw_scale)
        grad_loc[:-1] = -weight_precision * loc[:-1]
        grad_raw[:-1] = -weight_precision * scale[:-1] * slope[:-1]
        squares = float(loc[:-1] @ loc[:-1] + scale[:-1] @ scale[:-1])
        quadratic = 0.5 * squares / self.prior_scale**2 + self.variance_rate
        power = 0.5 * self.n_coef + self.variance_shape + 1.0
        nodes, weights = gauss_hermite(GAUSS_HERMITE_NODES)
        rho = float(loc[-1]) + float(scale[-1]) * nodes
        grad_loc[-1] = -quadratic * moments.precision_loc - power * moments.log_variance_loc + weights @ sigmoid(-rho)
        grad_raw[-1] = (
            -quadratic * moments.precision_raw_scale
            - power * moments.log_variance_raw_scale
            - float(scale[-1] * slope[-1]) * float(weights @ (sigmoid(rho) * sigmoid(-rho)))
        )
        return grad_loc, grad_raw

    def prior_moments(self) -> tuple[FloatArray, FloatArray]:
        """Return means and standard deviations, (n,) each: for rho those of a normal with the prior's central 68%.

        The weights' standard deviation is `prior_scale` times the square root of the variance's prior median.
        """
        low, median, high = softplus_inverse(self.variance_prior_quantile(special.ndtr([-1.0, 0.0, 1.0])))
        weight_scale = self.prior_scale * float(np.sqrt(softplus(median)))
        loc, scale = np.zeros(self.n_params), np.full(self.n_params, weight_scale)
        loc[-1], scale[-1] = 0.5 * (low + high), 0.5 * (high - low)
        return loc, scale

    def sample_prior(self, size: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw weights and noise variance from the prior, (size, n)."""
        p = self.n_coef
        law = NormalInverseGamma(np.zeros(p), np.eye(p) / self.prior_scale**2, self.variance_shape, self.variance_rate)
        return law.sample(size, rng)

    def exact_posterior(self, X: npt.ArrayLike, y: npt.ArrayLike) -> NormalInverseGamma:
        """Return the exact posterior given records, without any privacy.

        **Privacy.** Not private: an exact function of the records, for simulated or public ones.

        Parameters
        ----------
        X : (N, n_features) array
        y : (N,) array

        Notes
        -----
        With P = X'X + I / prior_scale**2 and m = P^-1 X'y: shape + N / 2 and rate + (y'y - m'P m) / 2 (Gelman et al.,
        Bayesian Data Analysis, 3rd ed., section 14.8).

        Examples
        --------
        >>> model = LinearRegression(1)
        >>> model.exact_posterior([[1.0], [2.0]], [1.0, 2.0]).mean.round(3)
        array([0.952, 0.031])
        """
        points = check_float_array("X", X, (None, self.n_features))
        response = check_float_array("y", y, (points.shape[0],))
        if self.fit_intercept:
            points = np.hstack((points, np.ones((points.shape[0], 1))))
        precision = points.T @ points + np.eye(self.n_coef) / self.prior_scale**2
        loc = np.asarray(np.linalg.solve(precision, points.T @ response), dtype=np.float64)
        # As a sum of squares, so that no digits cancel: y'y - m'P m.
        residual = response - points @ loc
        excess = float(residual @ residual + loc @ loc / self.prior_scale**2)
        return NormalInverseGamma(
            loc, precision, self.variance_shape + 0.5 * points.shape[0], self.variance_rate + 0.5 * excess
        )

    def draw_response(self, eta: FloatArray, params: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Draw responses given the linear predictor."""
        variance = check_interval("params[-1]", params[-1], 0.0, low_open=False)
        return np.asarray(eta + np.sqrt(variance) * generator.standard_normal(eta.shape))

    def default_start(self) -> tuple[FloatArray, FloatArray]:
        """Return loc = 1 for the weights and -4 for rho, raw_scale = -6: the paper's start."""
        loc = np.append(np.ones(self.n_coef), -4.0)
        return loc, np.full(self.n_params, START_RAW_SCALE)

    def inverse_link(self, eta: FloatArray) -> FloatArray:
        """Return E[y | eta]."""
        return eta

    def log_likelihood(self, theta: npt.ArrayLike, X: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """Return log p(y_i | theta, x_i), shape (..., n_points)."""
        values = np.asarray(theta, dtype=np.float64)
        variance = softplus(values[..., -1])[..., None]
        residual = np.asarray(y, dtype=np.float64) - self.linear_predictor(values, X)
        return np.asarray(-0.5 * residual**2 / variance - 0.5 * np.log(2.0 * np.pi * variance))

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values."""
        shape = {"variance_shape": self.variance_shape, "variance_rate": self.variance_rate}
        bound = {} if self.largest_spread is None else {"largest_spread": self.largest_spread}
        return super().to_dict() | shape | bound
