"""The exact posterior of linear regression with unknown noise variance."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer, check_interval


@dataclass(frozen=True, eq=False)
class NormalInverseGamma:
    """variance ~ InvGamma(shape, rate), and weights given it ~ N(loc, variance * inverse(precision)).

    Parameters are the weights, then the variance: n = p + 1 of them.

    **Privacy.** As a posterior it is computed from the records without any noise, so it is *not* private: it is the
    reference for private inference.

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

        checked = check_float_array("probability", probability)
        if checked.size and not (checked.min() > 0.0 and checked.max() < 1.0):
            raise ValueError("probability must lie in (0, 1)")
        values = checked.reshape((*np.shape(probability), 1))
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
