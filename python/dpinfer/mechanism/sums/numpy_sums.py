"""Sums of contributions computed by NumPy code: gradients of any model, and sites of any binary likelihood.

**Privacy.** Contributions are computed here; ``PartialSum`` clips, rounds and sums them like all others, and its
integers bound the sensitivity for any numbers. Each record's contribution is computed on its own, elementwise or by
sums along its own row, so that it does not depend on other records.
"""

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.mechanism import _native
from dpinfer.mechanism.sources.row_source import Arrays
from dpinfer.mechanism.sums.gradients import SessionSettings
from dpinfer.mechanism.sums.registry import sums
from dpinfer.models import GeneralizedLinearModel, GradientModel, OwnModel
from dpinfer.models.adapters import FRAMEWORK_BLOCK
from dpinfer.models.base import sigmoid, softplus

_BLOCK = FRAMEWORK_BLOCK
_CACHE_LINE = 64  # bytes, on x86-64 and ARM


def _aligned(rows: int, columns: int) -> FloatArray:
    """Return an array that begins at a cache line: JAX then reads it where it is."""
    flat = np.zeros(rows * columns + _CACHE_LINE // 8)
    first = -flat.ctypes.data % _CACHE_LINE // 8
    return flat[first : first + rows * columns].reshape(rows, columns)


class NumpySession:
    """Gradients that the model computes.

    **Privacy.** Holds the records; see :class:`dpinfer.mechanism.sums.gradients.GradientSession`.  A record whose
    gradient is not finite, or cannot be computed, contributes zero.

    Parameters
    ----------
    records : (features,) or (features, response)
    settings : SessionSettings
        Its rule is for the linear predictor.
    """

    def __init__(
        self, model: GeneralizedLinearModel | GradientModel, records: Arrays, settings: SessionSettings
    ) -> None:
        self._model, self._settings = model, settings
        self._features = records[0]
        self._response = records[1] if len(records) > 1 else None
        # Scores without maps are gradients but for the sign, which their one product with the preconditioner takes in.
        self._as_scores = settings.aligned and isinstance(model, OwnModel) and model.parameters.unmapped
        # Blocks are copied to one place: fresh memory costs more than the arithmetic.
        self._block = _aligned(_BLOCK, self._features.shape[1]) if self._features.ndim == 2 else None

    def prepare(self, loc: FloatArray, raw_scale: FloatArray, draws: FloatArray | None) -> FloatArray:
        """Note the step's state, and return the prior's gradient."""
        self._state = (loc, softplus(raw_scale), sigmoid(raw_scale), draws)
        if self._settings.aligned and draws is not None:
            return -self._model.log_prior_gradient(loc + softplus(raw_scale) * draws[0])
        prior_loc, prior_raw = self._model.expected_log_prior_gradient(loc, raw_scale)
        return -np.concatenate((prior_loc, prior_raw))

    def noisy_sum(self, step: int, beta: FloatArray, offset: FloatArray, noise_multiplier: float) -> FloatArray:
        """Return the noisy sum of clipped ``beta * gradient + offset``."""
        settings = self._settings
        rows = _native.poisson_sample(settings.key, step, settings.sample_rate, self._features.shape[0])
        total = _native.PartialSum(length=beta.size, max_norm=settings.max_grad_norm)
        shifted, factor = bool(np.any(offset)), -beta if self._as_scores else beta
        with np.errstate(all="ignore"):
            for first in range(0, rows.size, _BLOCK):
                gradients = self._gradients(rows[first : first + _BLOCK])
                if shifted:
                    total.add_contributions(gradients * factor + offset, settings.n_threads or 1)
                else:
                    values = np.ascontiguousarray(gradients, dtype=np.float64)
                    total.add_contributions(values, settings.n_threads or 1, factor)
        return total.noisy_sum(settings.key, step, noise_multiplier)

    def _gradients(self, rows: npt.NDArray[np.int64]) -> FloatArray:
        features = self._chosen(rows)
        response = np.empty(0) if self._response is None else self._response[rows]
        width = self._model.n_params * (1 if self._settings.aligned else 2)
        try:
            gradients = self._at_state(features, response)
            if gradients.shape == (rows.size, width):
                return gradients
        except Exception:
            # An error would reveal that there is such a record: a record on which the model fails contributes nothing.
            if rows.size == 1:
                return np.full((1, width), np.nan)
        if rows.size == 1:
            return np.full((1, width), np.nan)
        # Copies: the result may be a view of the argument, which the next record overwrites.
        return np.concatenate([self._gradients(rows[index : index + 1]).copy() for index in range(rows.size)])

    def _chosen(self, rows: npt.NDArray[np.int64]) -> FloatArray:
        """Return these rows of the features, in double precision, until the next call."""
        if self._block is None or self._features.dtype != np.float64:
            return np.ascontiguousarray(self._features[rows], dtype=np.float64)
        # The mode writes to the block directly; rows are inside.
        return np.take(self._features, rows, axis=0, out=self._block[: rows.size], mode="clip")

    def _at_state(self, features: FloatArray, response: FloatArray) -> FloatArray:
        model, (loc, scale, slope, draws) = self._model, self._state
        if draws is None:
            rule = (self._settings.nodes, self._settings.weights)
            if not isinstance(model, GeneralizedLinearModel):
                raise TypeError("expectations without draws are those of a linear predictor")
            first, second = model.expected_record_gradients(features, response, (loc, scale), rule)
            return np.concatenate((first, slope * scale * second), axis=1)
        if self._as_scores and isinstance(model, OwnModel):
            return model.mapped_scores(features, response, loc + scale * draws[0])
        points = [model.record_gradients(features, response, loc + scale * draw) for draw in draws]
        if self._settings.aligned:
            return np.asarray(points[0])
        in_loc, in_raw = np.zeros((2, *points[0].shape))
        for draw, gradient in zip(draws, points, strict=True):
            in_loc, in_raw = in_loc + gradient / len(draws), in_raw + slope * draw * gradient / len(draws)
        return np.concatenate((in_loc, in_raw), axis=1)


@sums("gradients", "numpy")
def _open_numpy(
    model: GeneralizedLinearModel | GradientModel, records: Arrays, settings: SessionSettings
) -> NumpySession:
    return NumpySession(model, records, settings)


class EvidenceSession:
    """Sites of a binary regression of any link, by Gauss-Hermite in the linear predictor.

    With Z(m, v) = E p(y | eta), eta ~ N(m, v), and a = d log Z / dm, b = -d^2 log Z / dm^2, taken under the integral,
    the site has precision b / (1 - b v) x x' and the linear term (a + b x'(m - c)) / (1 - b v) x; where 1 - b v is not
    positive, and if anything is not finite, it is the neutral one: docs/derivations/dp-sep.md.

    **Privacy.** Holds the records.  Has the interface of compiled sessions.

    Parameters
    ----------
    features : (N, n_features) float64
    response : (N,) float64
    rule : (nodes, weights)
    """

    def __init__(
        self,
        model: GeneralizedLinearModel,
        features: FloatArray,
        response: FloatArray,
        *,
        rule: tuple[FloatArray, FloatArray],
        max_site_norm: float,
        key: bytes,
    ) -> None:
        self._model, self._features, self._response = model, features, response
        self._rule, self._norm, self._key = rule, max_site_norm, key
        d = model.n_coef
        self._pairs = np.triu_indices(d)
        self._roots = np.where(self._pairs[0] == self._pairs[1], 1.0, np.sqrt(2.0))
        self.length = d + self._roots.size

    def set_state(
        self,
        *,
        cavity_loc: FloatArray,
        cavity_cov: FloatArray,
        centre: FloatArray,
        neutral: FloatArray,
        block_weight: float,
    ) -> None:
        """Take the public state of a step."""
        self._state = (cavity_loc[0], cavity_cov[0], centre[0], neutral, block_weight)

    def poisson_sum(self, step: int, sample_rate: float, noise_multiplier: float) -> FloatArray:
        """Return the noisy sum of the sampled records' clipped sites."""
        rows = _native.poisson_sample(self._key, step, sample_rate, self._features.shape[0])
        total = _native.PartialSum(length=self.length, max_norm=self._norm)
        for first in range(0, rows.size, _BLOCK):
            total.add_contributions(self.contributions(rows[first : first + _BLOCK]))
        return total.noisy_sum(self._key, step, noise_multiplier)

    def plain_sum(self, max_norm: float) -> FloatArray:
        """Return the sum of all records' sites, clipped to `max_norm`: not private."""
        total = np.zeros(self.length)
        for first in range(0, self._features.shape[0], _BLOCK):
            sites = self.contributions(np.arange(first, min(first + _BLOCK, self._features.shape[0])))
            norms = np.linalg.norm(sites, axis=1, keepdims=True)
            total += np.sum(sites * np.minimum(1.0, max_norm / np.maximum(norms, 1e-300)), axis=0)
        return total

    def contributions(self, rows: npt.NDArray[np.int64]) -> FloatArray:
        """Return these records' sites before clipping, (B, length): not private."""
        loc, cov, centre, neutral, weight = self._state
        design = self._model._design(np.ascontiguousarray(self._features[rows]))
        with np.errstate(all="ignore"):
            mean = np.sum(design * loc, axis=1)
            spread = [design[:, i] * design[:, j] * cov[i, j] for i in range(loc.size) for j in range(loc.size)]
            variance = np.sum(spread, axis=0)
            first, second = self._slopes(mean, variance, self._response[rows])
            remaining = 1.0 - second * variance
            precision = second / remaining
            linear = (first + second * np.sum(design * (loc - centre), axis=1)) / remaining
            pairs = design[:, self._pairs[0]] * design[:, self._pairs[1]] * (weight * self._roots)
            sites = np.concatenate((design * linear[:, None], pairs * precision[:, None]), axis=1)
            invalid = ~((remaining > 0.0) & np.all(np.isfinite(sites), axis=1))
        sites[invalid] = neutral
        return np.ascontiguousarray(sites)

    def _slopes(self, mean: FloatArray, variance: FloatArray, response: FloatArray) -> tuple[FloatArray, FloatArray]:
        nodes, weights = self._rule
        root = np.sqrt(variance)
        densities, firsts, seconds = [], [], []
        for node in nodes:
            eta = mean + root * node
            slopes = self._model.loss_slopes(eta, response, self._state[0])
            densities.append(self._model.log_density(eta, response))
            firsts.append(-slopes[0])
            seconds.append(-slopes[1])
        most = np.max(densities, axis=0)
        z, z1, z2 = np.zeros((3, mean.size))
        for weight, density, f1, f2 in zip(weights, densities, firsts, seconds, strict=True):
            share = weight * np.exp(density - most)
            z, z1, z2 = z + share, z1 + share * f1, z2 + share * (f2 + f1**2)
        return z1 / z, (z1 / z) ** 2 - z2 / z
