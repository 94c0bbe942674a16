"""One step's private sum for each model, behind one protocol for the loop of a run.

**Privacy.** Sessions hold the records.  Only ``noisy_sum`` reads them, and its result carries its noise.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.mechanism import _native
from dpinfer.mechanism.sources.row_source import Arrays, RowSource
from dpinfer.mechanism.sums.registry import find_sum, sums
from dpinfer.models import ConjugateModel, GeneralizedLinearModel, LinearRegression, Model
from dpinfer.models.base import sigmoid, softplus


@dataclass(frozen=True, eq=False)
class SessionSettings:
    """Settings of the sessions of every model.

    **Privacy.** Holds the run's key: it must not leave the mechanism.

    Parameters
    ----------
    aligned : bool
        Whether only gradients at one draw are summed.
    nodes, weights : (m,) float64
        Gauss-Hermite rule: E f(Z) = sum(weights * f(nodes)), Z standard normal.
    sample_rate, max_grad_norm : float
    key : bytes
    n_threads : int
        0: all cores.
    """

    aligned: bool
    nodes: FloatArray
    weights: FloatArray
    sample_rate: float
    max_grad_norm: float
    key: bytes = field(repr=False)
    n_threads: int


class GradientSession(Protocol):
    """The interface of one step of the mechanism to a model and its records.

    **Privacy.** ``prepare`` depends on public quantities only; ``noisy_sum`` is the private query.
    """

    def prepare(self, loc: FloatArray, raw_scale: FloatArray, draws: FloatArray | None) -> FloatArray:
        """Take the step's expectations under q, and return the gradient of -E_q[log prior].

        Parameters
        ----------
        loc, raw_scale : (n,) float64
        draws : (m, n) float64 or None
            Standard normal draws shared by the batch (one for aligned gradients), or None for quadrature.

        Returns
        -------
        (2 n,) float64, or (n,) for aligned gradients.
        """
        ...

    def noisy_sum(self, step: int, beta: FloatArray, offset: FloatArray, noise_multiplier: float) -> FloatArray:
        """Return the noisy sum of the sampled records' clipped ``beta * gradient + offset``; all of one length."""
        ...


class GlmSession:
    """Generalised linear models.

    **Privacy.** Holds the records; see :class:`GradientSession`.

    Parameters
    ----------
    features : (N, n_features) float64 or float32
    response : (N,) float64
    settings : SessionSettings
        Its rule is for the linear predictor.
    """

    def __init__(
        self,
        model: GeneralizedLinearModel,
        features: npt.NDArray[np.float64] | npt.NDArray[np.float32],
        response: FloatArray,
        settings: SessionSettings,
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
        return np.array(
            [m.precision, m.precision_loc, m.precision_raw_scale, m.log_variance_loc, m.log_variance_raw_scale]
        )

    def _set_draws(self, theta: FloatArray, z: FloatArray) -> None:
        n_coef = self._model.n_coef
        dispersion = np.empty((0, theta.shape[0]))
        if self._model.has_dispersion:
            variance, slope = softplus(theta[:, -1]), sigmoid(theta[:, -1])
            dispersion = np.stack((1.0 / variance, slope / variance, z[:, -1]))
        self._native.set_draws(np.ascontiguousarray(theta[:, :n_coef]), np.ascontiguousarray(z[:, :n_coef]), dispersion)


class ConjugateSession:
    """Conjugate models, whose gradients are affine in each record's sufficient statistics.

    **Privacy.** Holds the records' statistics; see :class:`GradientSession`.

    Parameters
    ----------
    records : (N,) float64
    settings : SessionSettings
        Its rule is for each parameter.
    """

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


def open_gradients(model: Model, records: RowSource, settings: SessionSettings) -> GradientSession:
    """Return a session over checked records, kept in memory or read anew for every step.

    **Privacy.** The session reads the records.
    """
    if not records.kept:
        return StreamedSession(model, records, settings)
    session: GradientSession = find_sum("gradients", model.gradient_sum)(model, records.kept, settings)
    return session


@sums("gradients", "glm")
def _open_glm(model: GeneralizedLinearModel, records: Arrays, settings: SessionSettings) -> GlmSession:
    return GlmSession(model, records[0], records[1], settings)


@sums("gradients", "affine")
def _open_affine(model: ConjugateModel, records: Arrays, settings: SessionSettings) -> ConjugateSession:
    return ConjugateSession(model, records[0], settings)


class StreamedSession:
    """Records that are read again for every step, a block at a time: memory holds only a step's sample.

    **Privacy.** Each step's sample is that of the records in memory, and so is its sum: integer addition does not
    depend on the source of the rows.  See :class:`GradientSession`.

    Parameters
    ----------
    source : RowSource
        Checked.
    """

    def __init__(self, model: Model, source: RowSource, settings: SessionSettings) -> None:
        self._model, self._source, self._settings = model, source, settings
        self._open = find_sum("gradients", model.gradient_sum)

    def prepare(self, loc: FloatArray, raw_scale: FloatArray, draws: FloatArray | None) -> FloatArray:
        """Note the step's state, and return the prior's gradient, from a session without records."""
        self._state = (loc, raw_scale, draws)
        session: GradientSession = self._open(self._model, self._source.empty, self._settings)
        return session.prepare(*self._state)

    def noisy_sum(self, step: int, beta: FloatArray, offset: FloatArray, noise_multiplier: float) -> FloatArray:
        """Return the noisy sum over the whole sample of the step."""
        settings = self._settings
        rows = _native.poisson_sample(settings.key, step, settings.sample_rate, self._source.n_rows)
        session: GradientSession = self._open(self._model, self._source.take(rows), replace(settings, sample_rate=1.0))
        session.prepare(*self._state)
        return session.noisy_sum(step, beta, offset, noise_multiplier)
