"""Regressions that the compiled kernels do not have: with an offset in the link, or with a size to learn.

They run as models written as code: docs/derivations/any-model.md.

**Privacy.** Public; holds no records. Every function acts on each record on its own.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array
from dpinfer.models import OwnModel, tuning
from dpinfer.models.adapters.gradients import uniforms_of
from dpinfer.models.adapters.own_model import ModelCode, Words
from dpinfer.models.base import sigmoid

SIZE = "size"
_LARGEST_LOG_MEAN = 10.0  # of the logarithm of a mean: responses are drawn up to a mean of 22 000
_SMALL_RATE, _MOST_STEPS = 30.0, 150  # larger rates take SciPy's quantile; P(Poisson(30) > 150) is below 1e-50


class OwnRegression(OwnModel):
    """A regression with a linear predictor eta = x'w + offset, written as code.

    A negative binomial has mean mu = exp(eta) and variance mu + mu**2 / size, with log(size) ~ N(1, 1.5**2).
    """

    def __init__(
        self,
        family: str,  # {"binomial", "probit", "poisson", "negativebinomial"}
        weights: Sequence[str],  # names of the columns' weights, then ``intercept`` if there is one
        *,
        fit_intercept: bool,
        offset: bool,  # whether the last column of X is an offset
        prior_scale: float,  # of every weight
        intercept_mean: float,  # of the intercept's prior, where a run starts
        features: FloatArray,  # (M, p): public rows like the private ones
    ) -> None:
        self.family, self.fit_intercept, self.has_offset = family, fit_intercept, offset
        self.n_coef = len(weights)
        self.has_size = family == "negativebinomial"
        names = (*weights, *((SIZE,) if self.has_size else ()))
        scale = dict.fromkeys(names, prior_scale) | ({SIZE: tuning.PRIORS.log_size[1]} if self.has_size else {})
        means = dict.fromkeys(names, 0.0) | ({SIZE: tuning.PRIORS.log_size[0]} if self.has_size else {})
        if fit_intercept:
            means[weights[-1]] = intercept_mean
        super().__init__(
            parameters=names,
            n_features=features.shape[1],
            bijectors={SIZE: "exp"} if self.has_size else None,
            prior_mean=means,
            prior_scale=scale,
            response="binary" if family in ("binomial", "probit") else "count",
            name=family + (" regression with an offset" if offset else " regression"),
            code=ModelCode(self._score, None, self._draw, 2 if self.has_size else 1, features),
        )
        self.take_fingerprint()

    def _predictor(self, params: FloatArray, X: FloatArray) -> FloatArray:
        """Return eta (B,) for flat params, each row's in one order of operations: no BLAS."""
        columns = self.n_coef - int(self.fit_intercept)
        eta = np.sum(X[:, :columns] * params[:columns], axis=1)
        if self.fit_intercept:
            eta = eta + params[columns]
        return np.asarray(eta + X[:, -1] if self.has_offset else eta)

    def _mean(self, eta: FloatArray) -> FloatArray:
        """Return E[y | eta], elementwise."""
        if self.family == "binomial":
            return sigmoid(eta)
        if self.family == "probit":
            return np.asarray(special.ndtr(eta))
        return np.exp(np.minimum(eta, _LARGEST_LOG_MEAN))

    def predict_mean(self, theta: npt.ArrayLike, X: npt.ArrayLike) -> FloatArray:
        """Return E[y | theta, x] for unconstrained theta (..., n): shape (..., n_points)."""
        points = check_float_array("X", X, (None, self.n_features))
        values = np.asarray(theta, dtype=np.float64)
        columns = self.n_coef - int(self.fit_intercept)
        eta = values[..., :columns] @ points[:, :columns].T
        if self.fit_intercept:
            eta = eta + values[..., columns, None]
        return self._mean(eta + points[:, -1] if self.has_offset else eta)

    def _score(self, params: FloatArray, X: FloatArray, y: FloatArray) -> FloatArray:
        eta = self._predictor(params, X)
        mean = self._mean(eta)
        columns = X[:, : self.n_coef - int(self.fit_intercept)]
        more: list[FloatArray] = []
        if self.family == "probit":
            sign = 2.0 * y - 1.0
            ratio = np.exp(-0.5 * eta**2 - 0.5 * np.log(2.0 * np.pi) - special.log_ndtr(sign * eta))
            slope = sign * ratio
        elif self.has_size:
            size = params[-1]
            slope = (y - mean) * (size / (size + mean))
            in_size = special.digamma(y + size) - special.digamma(size) + np.log(size) + 1.0
            more = [in_size - np.log(size + mean) - (size + y) / (size + mean)]
        else:
            slope = y - mean
        one = [slope] if self.fit_intercept else []
        return np.column_stack((columns * slope[:, None], *one, *more))

    def _draw(self, params: FloatArray, X: FloatArray, words: Words) -> FloatArray:
        uniform = uniforms_of(words)
        mean = self._mean(self._predictor(params, X))
        if self.response == "binary":
            return np.asarray(uniform[:, 0] < mean, dtype=np.float64)
        if self.has_size:
            size = params[-1]
            mean = mean * (special.gammaincinv(size, uniform[:, 1]) / size)
        return poisson_quantile(uniform[:, 0], mean)


def poisson_quantile(uniform: FloatArray, rate: FloatArray) -> FloatArray:
    """Return Poisson draws by inversion, elementwise: the least count with at least this probability below or at it."""
    count, large = np.zeros_like(rate), rate > _SMALL_RATE
    density = np.exp(-np.minimum(rate, _SMALL_RATE))
    # Continue only for draws that have not reached their count.
    places = np.flatnonzero((density < uniform) & ~large)
    level, size, density = uniform[places], rate[places], density[places]
    total = density
    for step in range(1, _MOST_STEPS):
        if not places.size:
            break
        count[places] = float(step)
        density = density * (size / step)
        total = total + density
        below = total < level
        if not below.all():
            places, level, size = places[below], level[below], size[below]
            density, total = density[below], total[below]
    if np.any(large):
        count[large] = np.ceil(special.pdtrik(uniform[large], rate[large]))
    return count
