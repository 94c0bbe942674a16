"""The laws of conjugate analysis on a model's own space and on the unconstrained one: gamma and Dirichlet."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import TINY, FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.models.base import gauss_hermite, log_sigmoid, sigmoid, softplus, softplus_inverse

BIJECTORS = ("stick_breaking", "softmax")
SPACES = ("constrained", "unconstrained")

_SCORES = 32  # Gauss-Hermite nodes, exact to degree 63


def checked_probabilities(probability: npt.ArrayLike) -> FloatArray:
    """Return probabilities in (0, 1), of any shape, with one more axis: (..., 1)."""
    values = check_float_array("probability", probability)
    if values.size and not (values.min() > 0.0 and values.max() < 1.0):
        raise ValueError("probability must lie in (0, 1)")
    return values.reshape((*np.shape(probability), 1))


class ConjugateDistribution(ABC):
    """A prior or an exact posterior of n parameters, with its marginals on both spaces.

    **Privacy.** A prior is public.  A posterior is computed from exact statistics of the records without any noise: it
    is *not* private, and exists as the answer that private inference is compared with.
    """

    @property
    @abstractmethod
    def mean(self) -> FloatArray:
        """Means of the constrained parameters, (n,)."""

    @property
    @abstractmethod
    def stddev(self) -> FloatArray:
        """Standard deviations of the constrained parameters, (n,)."""

    @property
    @abstractmethod
    def unconstrained_mean(self) -> FloatArray:
        """Means of the unconstrained parameters, (n,)."""

    @property
    @abstractmethod
    def unconstrained_stddev(self) -> FloatArray:
        """Standard deviations of the unconstrained parameters, (n,)."""

    @abstractmethod
    def constrain(self, theta: npt.ArrayLike) -> FloatArray:
        """Map unconstrained parameters (..., n) to the constrained space."""

    @abstractmethod
    def unconstrain(self, params: npt.ArrayLike) -> FloatArray:
        """Invert :meth:`constrain`."""

    @abstractmethod
    def log_density(self, theta: npt.ArrayLike) -> FloatArray:
        """Return the log density on the unconstrained space (Jacobian included), shape (...,) for (..., n)."""

    @abstractmethod
    def log_density_gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of :meth:`log_density`, (..., n) for (..., n)."""

    @abstractmethod
    def sample(self, size: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw constrained parameters, (size, n)."""

    @abstractmethod
    def _quantiles(self, probability: FloatArray, space: str) -> FloatArray:
        """Return marginal quantiles, (..., n) for probabilities (..., 1)."""

    def quantile(self, probability: npt.ArrayLike, space: str = "constrained") -> FloatArray:
        """Return marginal quantiles, (..., n) for probabilities (...) in (0, 1), on one of the two spaces."""
        check_choice("space", space, SPACES)
        return self._quantiles(checked_probabilities(probability), space)

    def interval(self, level: float = 0.9, space: str = "constrained") -> FloatArray:
        """Return central marginal intervals that hold `level` of the probability: lower and upper ends, (2, n)."""
        tail = 0.5 - 0.5 * check_interval("level", level, 0.0, 1.0)
        return self.quantile(np.array([tail, 1.0 - tail]), space)


@dataclass(frozen=True)
class GammaOnSoftplus(ConjugateDistribution):
    """Gamma(shape, rate) for softplus(theta).

    Parameters
    ----------
    shape, rate : float
        Positive; the mean is shape / rate.

    Examples
    --------
    >>> GammaOnSoftplus(8.0, 2.0).mean
    array([4.])
    """

    shape: float
    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_interval("shape", self.shape, 0.0))
        object.__setattr__(self, "rate", check_interval("rate", self.rate, 0.0))

    @property
    def mean(self) -> FloatArray:
        """Mean, (1,)."""
        return np.array([self.shape / self.rate])

    @property
    def stddev(self) -> FloatArray:
        """Standard deviation, (1,)."""
        return np.array([np.sqrt(self.shape) / self.rate])

    def _unconstrained_moments(self) -> tuple[float, float]:
        from scipy import stats  # half a second to import, so only if needed

        # theta is a smooth function of a normal score, nearly linear: Gauss-Hermite in it converges fast.
        nodes, weights = gauss_hermite(_SCORES)
        law = stats.gamma(self.shape, scale=1.0 / self.rate)
        below = law.ppf(special.ndtr(np.minimum(nodes, 0.0)))
        above = law.isf(special.ndtr(-np.maximum(nodes, 0.0)))
        theta = softplus_inverse(np.maximum(np.where(nodes < 0.0, below, above), TINY))
        mean = float(weights @ theta)
        return mean, float(np.sqrt(weights @ (theta - mean) ** 2))

    @property
    def unconstrained_mean(self) -> FloatArray:
        """Mean of theta, (1,)."""
        return np.array([self._unconstrained_moments()[0]])

    @property
    def unconstrained_stddev(self) -> FloatArray:
        """Standard deviation of theta, (1,)."""
        return np.array([self._unconstrained_moments()[1]])

    def constrain(self, theta: npt.ArrayLike) -> FloatArray:
        """Return softplus(theta)."""
        return softplus(theta)

    def unconstrain(self, params: npt.ArrayLike) -> FloatArray:
        """Return log(exp(params) - 1)."""
        return softplus_inverse(params)

    def log_density(self, theta: npt.ArrayLike) -> FloatArray:
        """Return the log density of theta, (...,) for (..., 1)."""
        values = check_float_array("theta", theta, finite=False)[..., 0]
        rate = np.maximum(softplus(values), TINY)
        constant = self.shape * np.log(self.rate) - special.gammaln(self.shape)
        return np.asarray(constant + (self.shape - 1.0) * np.log(rate) - self.rate * rate + log_sigmoid(values))

    def log_density_gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of :meth:`log_density`, (..., 1)."""
        rate = np.maximum(softplus(theta), TINY)
        return np.asarray(((self.shape - 1.0) / rate - self.rate) * sigmoid(theta) + sigmoid(-theta))

    def sample(self, size: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw rates, (size, 1)."""
        size = check_integer("size", size, 0)
        return np.random.default_rng(rng).gamma(self.shape, 1.0 / self.rate, (size, 1))

    def _quantiles(self, probability: FloatArray, space: str) -> FloatArray:
        from scipy import stats  # half a second to import, so only if needed

        values = np.asarray(stats.gamma.ppf(probability, self.shape, scale=1.0 / self.rate))
        return values if space == "constrained" else softplus_inverse(np.maximum(values, TINY))


@dataclass(frozen=True)
class DirichletOnLogits(ConjugateDistribution):
    """Dirichlet(concentration) for M probabilities, of which the first n = M - 1 are the parameters.

    Parameters
    ----------
    concentration : tuple of M >= 2 positive floats
    bijector : {"stick_breaking", "softmax"}
        "stick_breaking": sigmoid(theta_j) is the share of category j in the remainder of the earlier ones; those
        shares are independent betas.  "softmax": the probabilities are softmax(theta_1, ..., theta_n, 0).  With M = 2
        both are p = sigmoid(theta), a Beta(concentration[0], concentration[1]).

    Examples
    --------
    >>> DirichletOnLogits((5.0, 5.0, 5.0), "softmax").mean.round(3)
    array([0.333, 0.333])
    """

    concentration: tuple[float, ...]
    bijector: str = "stick_breaking"

    def __post_init__(self) -> None:
        values = check_float_array("concentration", self.concentration, (None,))
        if values.size < 2 or not values.min() > 0.0:
            raise ValueError("concentration must hold at least two positive numbers")
        object.__setattr__(self, "concentration", tuple(values.tolist()))
        check_choice("bijector", self.bijector, BIJECTORS)

    @property
    def _alpha(self) -> FloatArray:
        return np.array(self.concentration)

    @property
    def _rest(self) -> FloatArray:
        """Concentration of the categories after each of the first n."""
        return np.cumsum(self._alpha[::-1])[::-1][1:]

    @property
    def _logit_shapes(self) -> tuple[FloatArray, FloatArray]:
        """Shapes (a, b) such that sigmoid(theta_j) ~ Beta(a_j, b_j) marginally."""
        alpha = self._alpha
        # For softmax, sigmoid(theta_j) = p_j / (p_j + p_M), a beta by the aggregation property.
        return alpha[:-1], self._rest if self.bijector == "stick_breaking" else np.full(alpha.size - 1, alpha[-1])

    @property
    def mean(self) -> FloatArray:
        """Means of the first n probabilities."""
        return np.asarray(self._alpha[:-1] / self._alpha.sum())

    @property
    def stddev(self) -> FloatArray:
        """Standard deviations of the first n probabilities."""
        return np.asarray(np.sqrt(self.mean * (1.0 - self.mean) / (self._alpha.sum() + 1.0)))

    @property
    def unconstrained_mean(self) -> FloatArray:
        """Means of theta: digamma(a) - digamma(b) of the betas behind it."""
        a, b = self._logit_shapes
        return np.asarray(special.digamma(a) - special.digamma(b))

    @property
    def unconstrained_stddev(self) -> FloatArray:
        """Standard deviations of theta: sqrt(trigamma(a) + trigamma(b))."""
        a, b = self._logit_shapes
        return np.asarray(np.sqrt(special.polygamma(1, a) + special.polygamma(1, b)))

    def constrain(self, theta: npt.ArrayLike) -> FloatArray:
        """Return the first n probabilities, (..., n)."""
        values = np.asarray(theta, dtype=np.float64)
        if self.bijector == "softmax":
            top = np.maximum(values.max(axis=-1, keepdims=True), 0.0)
            power = np.exp(values - top)
            return np.asarray(power / (power.sum(axis=-1, keepdims=True) + np.exp(-top)))
        remaining = np.cumprod(sigmoid(-values), axis=-1)
        before = np.concatenate((np.ones_like(remaining[..., :1]), remaining[..., :-1]), axis=-1)
        return np.asarray(sigmoid(values) * before)

    def unconstrain(self, params: npt.ArrayLike) -> FloatArray:
        """Return theta for the first n probabilities, (..., n)."""
        values = np.asarray(params, dtype=np.float64)
        if self.bijector == "softmax":
            remaining = 1.0 - values.sum(axis=-1, keepdims=True)
        else:
            remaining = 1.0 - np.cumsum(values, axis=-1)
        return np.asarray(np.log(values) - np.log(remaining))

    def log_density(self, theta: npt.ArrayLike) -> FloatArray:
        """Return the log density of theta, (...,) for (..., n).

        With stick-breaking that of independent logits of Beta(alpha_j, rest_j), rest_j the concentration of the later
        categories; with softmax, whose Jacobian is the product of all M probabilities, prod_k p_k**alpha_k over the
        Dirichlet's constant.
        """
        values = check_float_array("theta", theta, finite=False)
        alpha = self._alpha
        if self.bijector == "stick_breaking":
            a, b = self._logit_shapes
            return np.asarray(
                np.sum(a * log_sigmoid(values) + b * log_sigmoid(-values) - special.betaln(a, b), axis=-1)
            )
        constant = special.gammaln(alpha.sum()) - special.gammaln(alpha).sum()
        total = special.logsumexp(np.concatenate((values, np.zeros_like(values[..., :1])), axis=-1), axis=-1)
        return np.asarray(constant + values @ alpha[:-1] - alpha.sum() * total)

    def log_density_gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of :meth:`log_density`, (..., n)."""
        alpha = self._alpha
        if self.bijector == "stick_breaking":
            return np.asarray(alpha[:-1] - (alpha[:-1] + self._rest) * sigmoid(theta))
        return np.asarray(alpha[:-1] - alpha.sum() * self.constrain(theta))

    def sample(self, size: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw the first n probabilities, (size, n)."""
        size = check_integer("size", size, 0)
        return np.random.default_rng(rng).dirichlet(self._alpha, size)[:, :-1].copy()

    def _quantiles(self, probability: FloatArray, space: str) -> FloatArray:
        if space == "constrained":
            from scipy import stats  # half a second to import, so only if needed

            alpha = self._alpha[:-1]
            return np.asarray(stats.beta.ppf(probability, alpha, self._alpha.sum() - alpha))
        a, b = self._logit_shapes
        # From the nearer end, so that neither tail rounds to 0 or 1.
        low, high = special.betaincinv(a, b, probability), special.betaincinv(b, a, 1.0 - probability)
        with np.errstate(divide="ignore"):
            return np.asarray(np.where(probability < 0.5, special.logit(low), -special.logit(high)))
