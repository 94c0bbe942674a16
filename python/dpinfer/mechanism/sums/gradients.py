"""One step's private sum for each model, behind one protocol for the loop of a run.

**Privacy.** Sessions hold the records.  Only ``noisy_sum`` reads them, and its result carries its noise.
Gradients of a user's own model are computed here; ``PartialSum`` clips, rounds and sums them like all others, and its
integers bound the sensitivity for any numbers. Each record's contribution is computed on its own, elementwise or by
sums along its own row, so that it does not depend on other records.
"""

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.mechanism import _native
from dpinfer.mechanism.sources.row_source import Arrays, RowSource
from dpinfer.models import ConjugateModel, GeneralizedLinearModel, GradientModel, LinearRegression, Model, OwnModel
from dpinfer.models.adapters import FRAMEWORK_BLOCK
from dpinfer.models.base import sigmoid, softplus

_CACHE_LINE = 64  # bytes, on x86-64 and ARM


@dataclass(frozen=True, eq=False)
class SessionSettings:
    """Settings of the sessions of every model, with the run's key: they must not leave the mechanism."""

    aligned: bool  # whether only gradients at one draw are summed
    nodes: FloatArray  # nodes, weights: (m,), a Gauss-Hermite rule: E f(Z) = sum(weights * f(nodes)), Z standard normal
    weights: FloatArray
    sample_rate: float
    max_grad_norm: float
    key: bytes = field(repr=False)
    n_threads: int  # 0: all cores


class GradientSession(Protocol):
    """One step's interface between the mechanism and a model with its records.

    **Privacy.** ``prepare`` depends on public quantities only; ``noisy_sum`` is the private query.
    """

    def prepare(self, loc: FloatArray, raw_scale: FloatArray, draws: FloatArray | None) -> FloatArray:
        """Take the step's expectations under q, and return the gradient of -E_q[log prior]: (2 n,), or (n,) if aligned.

        loc, raw_scale: (n,).  draws: (m, n) standard normals shared by the batch (one for aligned gradients), or None
        for quadrature.
        """

    def noisy_sum(self, step: int, beta: FloatArray, offset: FloatArray, noise_multiplier: float) -> FloatArray:
        """Return the noisy sum of the sampled records' clipped ``beta * gradient + offset``; all of one length."""


class GlmSession:
    """Generalised linear models."""

    def __init__(
        self,
        model: GeneralizedLinearModel,
        features: npt.NDArray[np.float64] | npt.NDArray[np.float32],  # (N, n_features) float64 or float32
        response: FloatArray,  # (N,) float64
        settings: SessionSettings,  # its rule is for the linear predictor
    ) -> None:
        self._model, self._aligned = model, settings.aligned
        self._nodes, self._weights = settings.nodes, settings.weights
        self._chain = np.ones(model.n_params if settings.aligned else 2 * model.n_params)
        self._native = _native.StepSession(
            features=features,
            response=response,
            likelihood=model.likelihood,
            intercept=model.fit_intercept,
            aligned=settings.aligned,
            sample_rate=settings.sample_rate,
            max_grad_norm=settings.max_grad_norm,
            key=settings.key,
            n_threads=settings.n_threads,
        )

    def prepare(self, loc: FloatArray, raw_scale: FloatArray, draws: FloatArray | None) -> FloatArray:
        """Take the step's expectations; return the prior's gradient, which is exact for any likelihood rule."""
        n, n_coef = self._model.n_params, self._model.n_coef
        s = softplus(raw_scale)
        if draws is not None and self._aligned:
            theta = loc + s * draws
            self._set_draws(theta, draws)
            return -self._model.log_prior_gradient(theta[0])
        slope = sigmoid(raw_scale)
        if draws is None:
            self._native.set_quadrature(
                loc[:n_coef], s[:n_coef] ** 2, self._nodes, self._weights, self._moments(loc, raw_scale)
            )
            self._chain[n : n + n_coef] = s[:n_coef] * slope[:n_coef]
        else:
            self._set_draws(loc + s * draws, draws)
            self._chain[n:] = slope / draws.shape[0]
        prior_loc, prior_raw = self._model.expected_log_prior_gradient(loc, raw_scale)
        return -np.concatenate((prior_loc, prior_raw))

    def noisy_sum(self, step: int, beta: FloatArray, offset: FloatArray, noise_multiplier: float) -> FloatArray:
        """Return the noisy sum of clipped ``beta * gradient + offset``."""
        self._native.set_scales(beta * self._chain, offset)
        return self._native.noisy_sum(step, noise_multiplier)

    def _moments(self, loc: FloatArray, raw_scale: FloatArray) -> FloatArray:
        if not isinstance(self._model, LinearRegression):
            return np.empty(0)
        m = self._model.dispersion_moments(float(loc[-1]), float(raw_scale[-1]))
        of_log = (m.log_variance_loc, m.log_variance_raw_scale)
        return np.array([m.precision, m.precision_loc, m.precision_raw_scale, *of_log])

    def _set_draws(self, theta: FloatArray, z: FloatArray) -> None:
        n_coef = self._model.n_coef
        dispersion = np.empty((0, theta.shape[0]))
        if self._model.has_dispersion:
            variance, slope = softplus(theta[:, -1]), sigmoid(theta[:, -1])
            dispersion = np.stack((1.0 / variance, slope / variance, z[:, -1]))
        self._native.set_draws(np.ascontiguousarray(theta[:, :n_coef]), np.ascontiguousarray(z[:, :n_coef]), dispersion)


class ConjugateSession:
    """Conjugate models: gradients are affine in records' sufficient statistics, and the rule is for each parameter."""

    def __init__(self, model: ConjugateModel, records: FloatArray, settings: SessionSettings) -> None:
        self._model = model
        self._nodes, self._weights = settings.nodes, settings.weights
        self._width = model.n_params if settings.aligned else 2 * model.n_params
        self._native = _native.AffineSession(
            statistics=model.sufficient_statistics(records),
            length=self._width,
            sample_rate=settings.sample_rate,
            max_grad_norm=settings.max_grad_norm,
            key=settings.key,
            n_threads=settings.n_threads,
        )

    def prepare(self, loc: FloatArray, raw_scale: FloatArray, draws: FloatArray | None) -> FloatArray:
        """Take the step's expectations, and return the prior's gradient by the same rule or draws."""
        nodes, weights = self._nodes, self._weights
        if draws is not None:
            nodes, weights = draws, np.full(draws.shape[0], 1.0 / draws.shape[0])
        matrix, offset = self._model.gradient_map(loc, raw_scale, nodes, weights)
        # At one draw the rows of loc are the gradient in theta.
        self._matrix, self._offset = matrix[: self._width], offset[: self._width]
        return self._model.prior_gradient(loc, raw_scale, nodes, weights)[: self._width]

    def noisy_sum(self, step: int, beta: FloatArray, offset: FloatArray, noise_multiplier: float) -> FloatArray:
        """Return the noisy sum of clipped ``beta * gradient + offset``."""
        self._native.set_map(beta[:, None] * self._matrix, beta * self._offset + offset)
        return self._native.noisy_sum(step, noise_multiplier)


def _aligned(rows: int, columns: int) -> FloatArray:
    """Return an array that begins at a cache line: JAX then reads it where it is."""
    flat = np.zeros(rows * columns + _CACHE_LINE // 8)
    first = -flat.ctypes.data % _CACHE_LINE // 8
    return flat[first : first + rows * columns].reshape(rows, columns)


class NumpySession:
    """Gradients that the model computes: a record's that is not finite, or cannot be computed, contributes zero."""

    def __init__(
        self,
        model: GeneralizedLinearModel | GradientModel,
        records: Arrays,  # (features,) or (features, response)
        settings: SessionSettings,  # its rule is for the linear predictor
    ) -> None:
        self._model, self._settings = model, settings
        self._features = records[0]
        self._response = records[1] if len(records) > 1 else None
        # Scores without maps are gradients but for the sign, which their one product with the preconditioner takes in.
        self._as_scores = settings.aligned and isinstance(model, OwnModel) and model.parameters.unmapped
        # Blocks are copied to one place: fresh memory costs more than the arithmetic.
        self._block = _aligned(FRAMEWORK_BLOCK, self._features.shape[1]) if self._features.ndim == 2 else None

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
            for first in range(0, rows.size, FRAMEWORK_BLOCK):
                gradients = self._gradients(rows[first : first + FRAMEWORK_BLOCK])
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
        # An error would reveal that there is such a record: a record on which the model fails contributes nothing.
        with contextlib.suppress(Exception):
            gradients = self._at_state(features, response)
            if gradients.shape == (rows.size, width):
                return gradients
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


def open_gradients(model: Model, records: RowSource, settings: SessionSettings) -> GradientSession:
    """Return a session over checked records, kept in memory or read anew for every step.

    **Privacy.** The session reads the records.
    """
    if not records.kept:
        return StreamedSession(model, records, settings)
    return _open(model, records.kept, settings)


def _open(model: Any, records: Arrays, settings: SessionSettings) -> GradientSession:
    """Return a session over records in memory, of the model's kind of sum.

    Raises TypeError if no code sums the gradients of the model.
    """
    match model.gradient_sum:
        case "glm":
            return GlmSession(model, records[0], records[1], settings)
        case "affine":
            return ConjugateSession(model, records[0], settings)
        case "numpy":
            return NumpySession(model, records, settings)
    raise TypeError(f"no code sums the gradients of models of kind {model.gradient_sum!r}")


class StreamedSession:
    """Records that are read again for every step, a block at a time: memory holds only a step's sample.

    **Privacy.** Each step's sample is that of the records in memory, and so is its sum: integer addition does not
    depend on the source of the rows, which is checked.
    """

    def __init__(self, model: Model, source: RowSource, settings: SessionSettings) -> None:
        self._model, self._source, self._settings = model, source, settings

    def prepare(self, loc: FloatArray, raw_scale: FloatArray, draws: FloatArray | None) -> FloatArray:
        """Note the step's state, and return the prior's gradient, from a session without records."""
        self._state = (loc, raw_scale, draws)
        session = _open(self._model, self._source.empty, self._settings)
        return session.prepare(*self._state)

    def noisy_sum(self, step: int, beta: FloatArray, offset: FloatArray, noise_multiplier: float) -> FloatArray:
        """Return the noisy sum over the whole sample of the step."""
        settings = self._settings
        rows = _native.poisson_sample(settings.key, step, settings.sample_rate, self._source.n_rows)
        session = _open(self._model, self._source.take(rows), replace(settings, sample_rate=1.0))
        session.prepare(*self._state)
        return session.noisy_sum(step, beta, offset, noise_multiplier)
