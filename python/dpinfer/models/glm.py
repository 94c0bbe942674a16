"""Generalised linear models: the linear predictor is eta = x' w, with x extended by a constant 1 for the intercept."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.models.base import NormalPriorModel, log_sigmoid, sigmoid
from dpinfer.models.survey_weights import SurveyWeights

_LARGEST_LOG_RATE = 40.0  # exp(40) counts, more than any record
_NODES, _BISECTIONS = 40, 60  # of a public mean: far beyond what a prediction needs; tolerance
_REFERENCE_THETAS = 64  # parameters drawn from the prior where records are, too: time


def _by_row(design: FloatArray, weights: FloatArray) -> FloatArray:
    """Return design @ weights, each row's in the same order of operations for any other rows: no BLAS."""
    return np.asarray(np.sum(design * weights, axis=1))


@dataclass(frozen=True)
class GeneralizedLinearModel(NormalPriorModel):
    """Base of the generalised linear models; weights have independent N(0, prior_scale**2) priors.

    A link of your own is a subclass with :meth:`loss_slopes`, :meth:`expected_curvature`, :meth:`inverse_link` and
    :meth:`log_density`, and `response`: see docs/own-models.md.

    Attributes
    ----------
    response : {"binary", "count", "real"}
        Kind of responses: 0 or 1, integers of at least 0, or any numbers.
    likelihood : str
        The compiled kernels' name of the link, if they have it.
    residual_link : str or None
        Their name of E[y | eta], for a private Newton run: "logistic", "probit" or "poisson" (None: there is none).
    score_link : str or None
        Their name of the likelihood's derivative in eta, for the population's coefficients (None: there is none).
    largest_predictor : float
        The largest linear predictor at which responses can be drawn.

    Parameters
    ----------
    n_features : int
        Number of columns of X.
    prior_scale : float
        Prior standard deviation of every weight, positive.
    fit_intercept : bool
        Whether a weight for a constant 1 is appended (it needs no column in X).
    feature_names : sequence of n_features str, optional
        Names of the weights; ``coef[0]``, ... by default.
    feature_scale : float or sequence of n_features floats
        Public root mean square of each feature, as far as it is known without the records: 1 (default) for standardised
        ones.  Only the expected information uses it (recipe "tied"), never the posterior of a fully observed trace.
    feature_moments : (n_features + 1, n_features + 1) array, optional
        Public E[(x, 1)(x, 1)'], as far as it is known without the records; it takes the place of `feature_scale`.
        Uncorrelated features of mean 0 by default; ``Schema.feature_moments`` for a declared table.  The posterior with
        a full Hessian starts from it, and takes directions without variance (indicators that sum to one) as exact.
    feature_moments_known : bool
        Whether the means and mean squares in `feature_moments` are known (public counts, or released ones) and only the
        dependence between features is a guess, and moderate; ``Schema.shares_known`` for a declared table.  The
        posterior with a full Hessian is then narrower; with features that nearly determine one another, too narrow.
    survey_weights : SurveyWeights, optional
        Responses are then (N, 2) arrays of responses and weights, for runs whose target is the population's.
    response_mean : float, optional
        Public mean of the responses, as far as it is known without the records, of zeros and ones or counts.  Predicted
        widths alone use it: those of rare outcomes are larger.
    """

    n_features: int
    prior_scale: float = 1.0
    fit_intercept: bool = False
    feature_names: Sequence[str] | None = None
    feature_scale: float | Sequence[float] = 1.0
    feature_moments: npt.ArrayLike | None = None
    feature_moments_known: bool = field(default=False, kw_only=True)
    survey_weights: SurveyWeights | None = field(default=None, kw_only=True)
    response_mean: float | None = field(default=None, kw_only=True)

    likelihood: ClassVar[str]
    has_dispersion: ClassVar[bool] = False
    response: ClassVar[str] = "real"
    gradient_sum: ClassVar[str | None] = "numpy"
    has_quadrature: ClassVar[bool] = True
    residual_link: ClassVar[str | None] = None
    score_link: ClassVar[str | None] = None
    largest_predictor: ClassVar[float] = math.inf

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.response == "binary" and cls.site_sum is None:
            # Sites of any binary likelihood follow from its evidence.
            cls.site_sum = "evidence"

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "n_features", check_integer("n_features", self.n_features, 1))
        put(self, "prior_scale", check_interval("prior_scale", self.prior_scale, 1e-100, 1e100))
        for name in ("fit_intercept", "feature_moments_known"):
            flag = getattr(self, name)
            if not isinstance(flag, (bool, np.bool_)):
                raise TypeError(f"{name} must be a bool, got {type(flag).__name__}")
            put(self, name, bool(flag))
        if np.ndim(self.feature_scale) == 0:
            put(self, "feature_scale", check_interval("feature_scale", self.feature_scale, 0.0))
        else:
            scales = check_float_array("feature_scale", self.feature_scale, (self.n_features,))
            if not np.all(scales > 0.0):
                raise ValueError("feature_scale must be positive")
            put(self, "feature_scale", tuple(scales.tolist()))
        if self.feature_moments is not None:
            put(self, "feature_moments", self._check_moments(self.feature_moments))
        if self.feature_moments_known and self.feature_moments is None:
            raise ValueError("feature_moments must be given when feature_moments_known is True")
        if isinstance(self.survey_weights, Mapping):
            put(self, "survey_weights", SurveyWeights(**self.survey_weights))
        if self.survey_weights is not None and not isinstance(self.survey_weights, SurveyWeights):
            raise TypeError(f"survey_weights must be SurveyWeights, got {type(self.survey_weights).__name__}")
        if self.response_mean is not None:
            if self.response not in ("binary", "count"):
                raise TypeError(
                    f"response_mean must be None for a {type(self).__name__}, whose responses have no scale"
                )
            largest = 1.0 if self.response == "binary" else 1e10
            put(self, "response_mean", check_interval("response_mean", self.response_mean, 0.0, largest))
        if self.feature_names is not None:
            names = tuple(self.feature_names)
            if isinstance(self.feature_names, str) or not all(isinstance(name, str) for name in names):
                raise TypeError("feature_names must be a sequence of strings")
            if len(names) != self.n_features:
                raise ValueError(f"feature_names must have length {self.n_features}, got {len(names)}")
            if len(set(names) | {"intercept", "noise_variance"}) != len(names) + 2:
                raise ValueError("feature_names must be distinct and none may be 'intercept' or 'noise_variance'")
            put(self, "feature_names", names)

    def _check_moments(self, values: npt.ArrayLike) -> tuple[tuple[float, ...], ...]:
        size = self.n_features + 1
        moments = check_float_array("feature_moments", values, (size, size))
        if np.ndim(self.feature_scale) != 0 or self.feature_scale != 1.0:
            raise ValueError("feature_scale must be left at 1 when feature_moments is given")
        if moments[-1, -1] != 1.0:
            raise ValueError(f"feature_moments must end with 1, the constant's, got {moments[-1, -1]:g}")
        if not np.allclose(moments, moments.T, rtol=1e-9, atol=0.0):
            raise ValueError("feature_moments must be symmetric")
        if not np.all(np.diag(moments) > 0.0) or np.linalg.eigvalsh(moments)[0] < -1e-9 * np.trace(moments):
            raise ValueError("feature_moments must be positive semidefinite with a positive diagonal")
        return tuple(tuple(row) for row in moments.tolist())

    def usual_predictor(self, spread: float) -> float:
        """Return the mean of normal predictors of this spread whose responses have the public mean; 0 without one."""
        if self.response_mean is None or not self.fit_intercept:
            return 0.0
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        low, high = -_LARGEST_LOG_RATE, _LARGEST_LOG_RATE
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            mean = weights @ self.inverse_link(middle + spread * nodes) / np.sum(weights)
            low, high = (middle, high) if mean < self.response_mean else (low, middle)
        return 0.5 * (low + high)

    @property
    def n_coef(self) -> int:
        """Number of weights, the intercept's included."""
        return self.n_features + int(self.fit_intercept)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters: weights, then ``intercept``, then ``noise_variance``, where the model has them."""
        weights = self.feature_names or tuple(f"coef[{index}]" for index in range(self.n_features))
        extra = ("intercept",) * self.fit_intercept + ("noise_variance",) * self.has_dispersion
        return (*weights, *extra)

    @cached_property
    def second_moments(self) -> FloatArray:
        """Public E[x_j**2] of every weight's feature, the constant's included, shape (n_coef,)."""
        return np.diag(self.design_moments).copy()

    @cached_property
    def design_moments(self) -> FloatArray:
        """Public E[x x'] of the weights' features, the constant's included, shape (n_coef, n_coef)."""
        if self.feature_moments is not None:
            return np.array(self.feature_moments, dtype=np.float64)[: self.n_coef, : self.n_coef]
        moments = np.ones(self.n_coef)
        moments[: self.n_features] = np.square(self.feature_scale)
        return np.diag(moments)

    def expected_information(self) -> FloatArray:
        """Return one record's expected information about the weights, (n_coef, n_coef), at weights from the prior."""
        spread = self.prior_scale**2 * np.trace(self.design_moments)
        curvature = self.expected_curvature(np.zeros(self.n_params), np.asarray(spread))
        return np.asarray(curvature * self.design_moments)

    def information(self, loc: FloatArray, scale: FloatArray | None = None) -> FloatArray:
        """Return the expected information of one record about each parameter at theta = loc, (..., n) for (..., n).

        Features have the public second moments and no correlation; `scale` adds the spread of q to the linear
        predictor's.
        """
        spread = self.predictor_variance(loc, scale)
        return np.asarray(self.expected_curvature(loc, spread)[..., None] * self.second_moments)

    @property
    def site_prior_loc(self) -> FloatArray:
        """Prior mean of q's one block, (1, n_coef)."""
        return np.zeros((1, self.n_coef))

    @property
    def block_scale(self) -> float:
        """Nothing is drawn around the prior's mean: there is one block."""
        return 0.0

    @property
    def isotropic(self) -> bool:
        """Whether precisions are multiples of the identity: they are not."""
        return False

    def expected_site_precision(self, n_records: int) -> FloatArray:
        """Return the posterior precision that the model expects before any record is seen, (1, n_coef, n_coef)."""
        prior = np.eye(self.n_coef) / self.prior_scale**2
        return np.asarray((prior + n_records * np.diag(self.information(np.zeros(self.n_coef))))[None])

    def typical_site_norm(self, block_weight: float, quantile: float, size: int, rng: np.random.Generator) -> float:
        """Return a quantile of the norm of centred contributions of `size` records that the model expects."""
        norms = []
        for theta in self.sample_prior(_REFERENCE_THETAS, rng):
            records, _ = self.reference_records(theta, size // _REFERENCE_THETAS, rng)
            first, second = self.record_derivatives(records, theta)
            norms.append(np.sum(first**2, axis=1) + (block_weight * np.sum(second, axis=1)) ** 2)
        return float(np.sqrt(np.quantile(np.concatenate(norms), quantile)))

    def predictor_variance(self, loc: FloatArray, scale: FloatArray | None = None) -> FloatArray:
        """Return E[(x' w)**2] under the public second moments, (...,) for loc (..., n)."""
        weights = np.square(loc[..., : self.n_coef])
        if scale is not None:
            weights = weights + np.square(scale[..., : self.n_coef])
        return np.asarray(weights @ self.second_moments)

    def reference_design(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return normal features with the public moments, the constant's column included, (size, n_coef)."""
        design = np.ones((size, self.n_coef))
        values = rng.normal(size=(size, self.n_features))
        if self.feature_moments is None:
            design[:, : self.n_features] = values * np.asarray(self.feature_scale)
            return design
        moments = np.array(self.feature_moments)
        mean = moments[-1, :-1]
        variances, axes = np.linalg.eigh(moments[:-1, :-1] - np.outer(mean, mean))
        design[:, : self.n_features] = mean + values @ (axes * np.sqrt(np.maximum(variances, 0.0))).T
        return design

    def reference_records(
        self, loc: FloatArray, size: int, rng: np.random.Generator
    ) -> tuple[tuple[FloatArray, FloatArray], FloatArray]:
        """Return simulated ((design (size, n_coef), response (size,)), equal weights) at theta = loc.

        Features are normal, with the public moments.
        """
        design = self.reference_design(size, rng)
        # Releases may have extreme centres: if no response can be drawn, the nearest possible ones are used.
        predictors = np.minimum(design @ loc[: self.n_coef], self.largest_predictor)
        records = (design, self.draw_response(predictors, self.constrain(loc), rng))
        return records, np.full(size, 1.0 / size)

    def record_derivatives(
        self, records: tuple[FloatArray, FloatArray], loc: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return both derivatives of -log p(record | theta) in each parameter at loc, two (records, n) arrays."""
        design, response = records
        first, second = self.loss_slopes(design @ loc[: self.n_coef], response, loc)
        return design * first[:, None], np.square(design) * second[:, None]

    def record_gradients(self, features: FloatArray, response: FloatArray, theta: FloatArray) -> FloatArray:
        """Return the gradients of -log p(record | theta) in theta, (B, n): each row computed by itself."""
        design = self._design(features)
        return design * self.loss_slopes(_by_row(design, theta), response, theta)[0][:, None]

    def expected_record_gradients(
        self, features: FloatArray, response: FloatArray, q: tuple[FloatArray, FloatArray], rule: tuple[FloatArray, ...]
    ) -> tuple[FloatArray, FloatArray]:
        """Return E_q of the gradients of -log p(record | theta), and of its Hessian's diagonals, two (B, n) arrays.

        `features` (B, n_features), `response` (B,).  `q`: (loc, scale), each (n,).  `rule`: (nodes, weights), each
        (m,), with E f(Z) = sum(weights * f(nodes)), Z standard normal: for the linear predictor, normal under q.
        """
        (loc, scale), (nodes, weights) = q, rule
        design = self._design(features)
        spread = np.sqrt(_by_row(np.square(design), np.square(scale)))
        first, second = np.zeros((2, design.shape[0]))
        for node, weight in zip(nodes, weights, strict=True):
            slopes = self.loss_slopes(_by_row(design, loc) + spread * node, response, loc)
            first, second = first + weight * slopes[0], second + weight * slopes[1]
        return design * first[:, None], np.square(design) * second[:, None]

    def _design(self, features: FloatArray) -> FloatArray:
        """Return the features with the constant's column, if there is one, (B, n_coef)."""
        return np.hstack((features, np.ones((features.shape[0], 1)))) if self.fit_intercept else features

    def invalid_records(self, values: FloatArray) -> str | None:
        """Return a description of valid responses if some of `values` are not valid."""
        if self.response == "binary" and not np.all((values == 0.0) | (values == 1.0)):
            return "0 and 1 only"
        if self.response == "count" and not np.all((values >= 0.0) & (values == np.floor(values))):
            return "counts (integers of at least 0)"
        return None

    def expected_curvature(self, loc: FloatArray, spread: FloatArray) -> FloatArray:
        """Return E[-f''] for a linear predictor of variance `spread`, to about 10% at moderate sizes.

        f(eta) = log p(y | eta); the expectation is over eta ~ N(0, spread) and the response given it.
        """
        raise TypeError(f"{type(self).__name__} must define expected_curvature: it has no expected information")

    def loss_slopes(self, eta: FloatArray, response: FloatArray, loc: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return -f'(eta) and -f''(eta), f(eta) = log p(response | eta), elementwise; `loc` holds all parameters."""
        raise TypeError(f"{type(self).__name__} must define loss_slopes")

    def linear_predictor(self, theta: npt.ArrayLike, X: npt.ArrayLike) -> FloatArray:
        """Return eta = X w + intercept, shape (..., n_points) for theta (..., n) and X (n_points, n_features)."""
        points = check_float_array("X", X, (None, self.n_features))
        values = np.asarray(theta, dtype=np.float64)
        eta = values[..., : self.n_features] @ points.T
        if self.fit_intercept:
            eta = eta + values[..., self.n_features, None]
        return np.asarray(eta)

    def predict_mean(self, theta: npt.ArrayLike, X: npt.ArrayLike) -> FloatArray:
        """Return E[y | theta, x] for unconstrained theta (..., n): shape (..., n_points)."""
        return self.inverse_link(self.linear_predictor(theta, X))

    def simulate_features(
        self, n_records: int, rng: np.random.Generator | int, second_moments: npt.ArrayLike = 1.0
    ) -> FloatArray:
        """Draw features (n_records, n_features): independent N(0, second_moments), a public convention.

        `second_moments`: E[x_j**2], at least 0; a number or (n_features,).
        """
        moments = np.asarray(second_moments)
        moments = check_float_array("second_moments", moments, () if moments.ndim == 0 else (self.n_features,))
        if not np.all(moments >= 0.0):
            raise ValueError("second_moments must be at least 0")
        shape = (check_integer("n_records", n_records, 0), self.n_features)
        return np.sqrt(moments) * np.random.default_rng(rng).standard_normal(shape)

    def simulate(self, params: npt.ArrayLike, X: npt.ArrayLike, rng: np.random.Generator | int) -> FloatArray:
        """Draw responses (n_points,) given constrained parameters (n,) and features (n_points, n_features)."""
        values = check_float_array("params", params, (self.n_params,))
        return self.draw_response(self.linear_predictor(values, X), values, np.random.default_rng(rng))

    def draw_response(self, eta: FloatArray, params: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Draw responses given the linear predictor and constrained parameters; zeros and ones unless overridden."""
        return (generator.random(eta.shape) < self.inverse_link(eta)).astype(np.float64)

    def inverse_link(self, eta: FloatArray) -> FloatArray:
        """Return E[y | eta], elementwise."""
        raise TypeError(f"{type(self).__name__} must define inverse_link")

    def log_density(self, eta: FloatArray, response: FloatArray) -> FloatArray:
        """Return log p(response | eta), elementwise, for a model without a noise variance."""
        raise TypeError(f"{type(self).__name__} must define log_density")

    def log_likelihood(self, theta: npt.ArrayLike, X: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """Return log p(y_i | theta, x_i), shape (..., n_points)."""
        return self.log_density(self.linear_predictor(theta, X), np.asarray(y, dtype=np.float64))

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values."""
        moments = self.feature_moments
        return {
            "kind": type(self).__name__,
            "n_features": self.n_features,
            "prior_scale": self.prior_scale,
            "fit_intercept": self.fit_intercept,
            "feature_names": None if self.feature_names is None else list(self.feature_names),
            "feature_scale": self.feature_scale if isinstance(self.feature_scale, float) else list(self.feature_scale),
            **({} if moments is None else {"feature_moments": np.asarray(moments).tolist()}),
            **({"feature_moments_known": True} if self.feature_moments_known else {}),
            **({} if self.survey_weights is None else {"survey_weights": self.survey_weights.to_dict()}),
            **({} if self.response_mean is None else {"response_mean": self.response_mean}),
        }


@dataclass(frozen=True)
class LogisticRegression(GeneralizedLinearModel):
    """Bernoulli responses with the logit link: P(y = 1) = 1 / (1 + exp(-x' w)).

    Examples
    --------
    >>> LogisticRegression(n_features=2, fit_intercept=True).names
    ('coef[0]', 'coef[1]', 'intercept')
    """

    likelihood: ClassVar[str] = "logistic"
    residual_link: ClassVar[str | None] = "logistic"
    score_link: ClassVar[str | None] = "logistic"
    response: ClassVar[str] = "binary"
    gradient_sum: ClassVar[str | None] = "glm"
    site_sum: ClassVar[str | None] = "binary"

    def expected_curvature(self, loc: FloatArray, spread: FloatArray) -> FloatArray:
        """Return E[-f''] for a linear predictor of variance `spread`."""
        return np.asarray(0.25 / np.sqrt(1.0 + np.pi * spread / 8.0))

    def loss_slopes(self, eta: FloatArray, response: FloatArray, loc: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return -f'(eta) and -f''(eta)."""
        probability = sigmoid(eta)
        return probability - response, probability * sigmoid(-eta)

    def inverse_link(self, eta: FloatArray) -> FloatArray:
        """Return E[y | eta]."""
        return sigmoid(eta)

    def log_density(self, eta: FloatArray, response: FloatArray) -> FloatArray:
        """Return log p(response | eta) for responses 0 and 1."""
        return log_sigmoid((2.0 * response - 1.0) * eta)


@dataclass(frozen=True)
class ProbitRegression(GeneralizedLinearModel):
    """Bernoulli responses with the probit link: P(y = 1) = Phi(x' w)."""

    likelihood: ClassVar[str] = "probit"
    residual_link: ClassVar[str | None] = "probit"
    score_link: ClassVar[str | None] = "probit_score"
    response: ClassVar[str] = "binary"
    gradient_sum: ClassVar[str | None] = "glm"
    site_sum: ClassVar[str | None] = "binary"

    def expected_curvature(self, loc: FloatArray, spread: FloatArray) -> FloatArray:
        """Return E[-f''] for a linear predictor of variance `spread`."""
        return np.asarray(2.0 / (np.pi * np.sqrt(1.0 + spread)))

    def loss_slopes(self, eta: FloatArray, response: FloatArray, loc: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return -f'(eta) and -f''(eta)."""
        sign = 2.0 * response - 1.0
        t = sign * eta
        ratio = np.exp(-0.5 * t**2 - 0.5 * np.log(2.0 * np.pi) - special.log_ndtr(t))
        return -sign * ratio, ratio * (t + ratio)

    def inverse_link(self, eta: FloatArray) -> FloatArray:
        """Return E[y | eta]."""
        return np.asarray(special.ndtr(eta))

    def log_density(self, eta: FloatArray, response: FloatArray) -> FloatArray:
        """Return log p(response | eta) for responses 0 and 1."""
        return np.asarray(special.log_ndtr((2.0 * response - 1.0) * eta))


@dataclass(frozen=True)
class PoissonRegression(GeneralizedLinearModel):
    """Poisson counts with the log link: E[y] = exp(x' w)."""

    likelihood: ClassVar[str] = "poisson"
    residual_link: ClassVar[str | None] = "poisson"
    score_link: ClassVar[str | None] = "poisson"
    largest_predictor: ClassVar[float] = _LARGEST_LOG_RATE
    response: ClassVar[str] = "count"
    gradient_sum: ClassVar[str | None] = "glm"

    def expected_curvature(self, loc: FloatArray, spread: FloatArray) -> FloatArray:
        """Return E[-f''] for a linear predictor of variance `spread`."""
        return np.asarray(np.minimum(np.exp(np.minimum(0.5 * spread, 20.0)), 1e6))

    def loss_slopes(self, eta: FloatArray, response: FloatArray, loc: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return -f'(eta) and -f''(eta)."""
        rate = np.exp(np.minimum(eta, 138.0))
        return rate - response, rate

    def inverse_link(self, eta: FloatArray) -> FloatArray:
        """Return E[y | eta]."""
        return np.asarray(np.exp(eta))

    def draw_response(self, eta: FloatArray, params: FloatArray, generator: np.random.Generator) -> FloatArray:
        """Draw responses given the linear predictor."""
        if eta.size and eta.max() > _LARGEST_LOG_RATE:
            raise ValueError(f"params must keep the linear predictor at most {_LARGEST_LOG_RATE:g}")
        return generator.poisson(np.exp(eta)).astype(np.float64)

    def log_density(self, eta: FloatArray, response: FloatArray) -> FloatArray:
        """Return log p(response | eta) for counts."""
        return np.asarray(response * eta - np.exp(eta) - special.gammaln(response + 1.0))
