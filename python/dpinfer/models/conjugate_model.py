"""Base of conjugate models: expectations of gradients that are affine in a record's sufficient statistics."""

from abc import abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array
from dpinfer.models.base import GAUSS_HERMITE_NODES, Model, gauss_hermite, sigmoid, softplus
from dpinfer.models.conjugate_distributions import ConjugateDistribution

_MAX_POINTS = 1_000_000  # of a product rule: memory
_DIFFERENCE = 1e-4  # of central differences of smooth functions: error of order 1e-8
_START_RAW_SCALE = -4.0  # small scales: the start is near the prior's centre; tolerance


class ConjugateModel(Model):
    """Base of the conjugate models: n parameters theta, and a sufficient statistic t (n numbers) of each record.

    The gradient of -log p(record | theta) is affine in t, so E_q of it is ``matrix @ t + offset`` with a matrix and an
    offset that hold no record.

    **Privacy.** Public; holds no records.  ``sufficient_statistics``, ``posterior`` and ``posterior_from_total`` are
    exact functions of the records that they are given, *not* private: the mechanism keeps the first to itself, and the
    others are for simulated or public records.

    Constrained parameters are n in number: a categorical model's last probability is left out.
    """

    record_form: ClassVar[str] = "values"
    gradient_sum: ClassVar[str | None] = "affine"
    has_quadrature: ClassVar[bool] = True
    natural_steps: ClassVar[bool] = True
    published_raw_scale: ClassVar[float] = 100.0
    few_values: ClassVar[bool] = True  # whether records take few values, each of which many have

    @property
    @abstractmethod
    def prior(self) -> ConjugateDistribution:
        """The prior, with its marginals on both spaces."""

    @abstractmethod
    def posterior_from_total(self, total: npt.ArrayLike, n_records: int) -> ConjugateDistribution:
        """Return the exact posterior given the sum (n,) of the sufficient statistics of `n_records` records.

        **Privacy.** Not private: exact statistics in, exact posterior out.
        """

    def sufficient_statistics(self, X: npt.ArrayLike) -> FloatArray:
        """Return each record's sufficient statistic, (N, n) float64 for records (N,) or (N, 1): by default itself."""
        values = np.asarray(X)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        return check_float_array("X", values, (None,), finite=False)[:, None]

    def default_start(self) -> tuple[FloatArray, FloatArray]:
        """Return loc = 0 and raw_scale = -4, the paper's start."""
        return np.zeros(self.n_params), np.full(self.n_params, _START_RAW_SCALE)

    @abstractmethod
    def invalid_records(self, values: FloatArray) -> str | None:
        """Return a description of valid records if some of the finite `values` (N,) are not valid; else None."""

    def engine_family(self) -> tuple[str, FloatArray, float]:
        """Return the model's name, prior and number of trials for the studies' compiled engine."""
        raise TypeError(f"{type(self).__name__} is not known to the studies' engine: it must define engine_family")

    @abstractmethod
    def information(self, loc: FloatArray, scale: FloatArray | None = None) -> FloatArray:
        """Return the diagonal of the expected information of one record about theta at `loc`, (..., n) for (..., n).

        `scale` is there for models whose information also depends on the spread of q; these do not.
        """

    @abstractmethod
    def reference_records(self, loc: FloatArray, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return sufficient statistics (r, n) that represent the model at theta = loc, and their weights (r,).

        Every value with its probability if there are few; quantiles otherwise, `size` or fewer.
        """

    @abstractmethod
    def simulate(self, params: npt.ArrayLike, n_records: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw records (n_records,) given constrained parameters (n,)."""

    @abstractmethod
    def _affine_gradient(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (m, n, n) and (m, n): the gradient of -log p(record | theta) at each theta (m, n), affine in t."""

    @property
    def _interacting(self) -> bool:
        """Whether a coordinate of the gradient depends on other coordinates of theta."""
        return False

    def posterior(self, X: npt.ArrayLike) -> ConjugateDistribution:
        """Return the exact posterior given records (N,) or (N, 1).

        **Privacy.** Not private: this is the answer without any privacy.

        Examples
        --------
        >>> from dpinfer.models import GammaExponential
        >>> GammaExponential().posterior([0.5, 0.25, 0.25]).mean.round(4)
        array([3.6667])
        """
        statistics = self.sufficient_statistics(X)
        return self.posterior_from_total(statistics.sum(axis=0), statistics.shape[0])

    def record_derivatives(self, records: FloatArray, loc: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return both derivatives of -log p(record | theta) in each parameter at loc, two (records, n) arrays.

        `records` are sufficient statistics (records, n).  The second derivative is a central difference of the first.
        """
        n = self.n_params
        steps = _DIFFERENCE * np.vstack((np.zeros(n), np.eye(n), -np.eye(n)))
        matrix, offset = self._affine_gradient(loc + steps)
        first = records @ matrix[0].T + offset[0]
        second = np.empty_like(first)
        for j in range(n):
            slope = (matrix[1 + j, j] - matrix[1 + n + j, j]) / (2.0 * _DIFFERENCE)
            second[:, j] = records @ slope + (offset[1 + j, j] - offset[1 + n + j, j]) / (2.0 * _DIFFERENCE)
        return first, second

    def log_prior(self, theta: npt.ArrayLike) -> FloatArray:
        """Return the log prior density on the unconstrained space (Jacobian included), shape (...,) for (..., n)."""
        return self.prior.log_density(theta)

    def log_prior_gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log prior, (..., n) for (..., n)."""
        return self.prior.log_density_gradient(theta)

    def expected_log_prior_gradient(self, loc: FloatArray, raw_scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the gradient of E_q[log prior] in loc and raw_scale, two (n,) arrays.

        Gauss-Hermite with 64 nodes for each parameter; for the softmax of n > 3 parameters, with the largest number
        whose n-th power is at most 10**6.

        Raises ValueError for the softmax of more than 6 parameters, where fewer than 10 nodes would be left.
        """
        n_nodes = GAUSS_HERMITE_NODES
        if self._interacting:
            n_nodes = min(n_nodes, int(_MAX_POINTS ** (1.0 / self.n_params) + 1e-9))
            if n_nodes < 10:
                raise ValueError(f"quadrature needs at most 6 interacting parameters, got {self.n_params}")
        gradient = self.prior_gradient(loc, raw_scale, *gauss_hermite(n_nodes))
        return -gradient[: self.n_params], -gradient[self.n_params :]

    def check_points(self, n_nodes: int) -> None:
        """Refuse a quadrature of more than 10**6 points.

        Raises ValueError if parameters interact and ``n_nodes**n_params`` is larger.
        """
        if self._interacting and n_nodes**self.n_params > _MAX_POINTS:
            raise ValueError(
                f"n_nodes must be at most {int(_MAX_POINTS ** (1.0 / self.n_params) + 1e-9)} for {self.n_params} "
                f"parameters under a softmax, got {n_nodes}: or use expectation 'monte_carlo' or bijector "
                "'stick_breaking'"
            )

    def _points(self, nodes: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return standard normal points (m, n) and their weights (m,)."""
        if nodes.ndim == 2:
            return nodes, weights
        n = self.n_params
        if not self._interacting:
            return np.repeat(nodes[:, None], n, axis=1), weights
        self.check_points(nodes.size)
        grid = np.meshgrid(*[nodes] * n, indexing="ij")
        product = weights
        for _ in range(n - 1):
            product = np.multiply.outer(product, weights)
        return np.stack([axis.ravel() for axis in grid], axis=-1), product.ravel()

    def gradient_map(
        self, loc: FloatArray, raw_scale: FloatArray, nodes: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return E_q of the gradient of -log p(record | theta) in (loc, raw_scale) as ``matrix @ t + offset``.

        Parameters
        ----------
        loc, raw_scale : (n,) float64
            q(theta) = N(loc, diag(softplus(raw_scale)**2)).
        nodes : (m,) or (m, n) float64
            Standard normal points.  (m,): a rule for one parameter, used for each (for the softmax as a tensor
            product); (m, n): points or draws z, theta = loc + s z.
        weights : (m,) float64
            Of the points; they sum to 1.

        Returns
        -------
        matrix : (2 n, n) float64
        offset : (2 n,) float64
            The first n rows belong to loc: at one draw they are the gradient in theta itself.

        Notes
        -----
        d theta / d raw_scale = z s', so each row of raw_scale is that of loc weighted with z s' (reparameterisation).
        """
        z, w = self._points(nodes, weights)
        slope = sigmoid(raw_scale)
        matrix, offset = self._affine_gradient(loc + softplus(raw_scale) * z)
        weighted = w[:, None] * z
        return (
            np.concatenate(
                (np.einsum("k,kji->ji", w, matrix), slope[:, None] * np.einsum("kj,kji->ji", weighted, matrix))
            ),
            np.concatenate((w @ offset, slope * np.einsum("kj,kj->j", weighted, offset))),
        )

    def prior_gradient(
        self, loc: FloatArray, raw_scale: FloatArray, nodes: FloatArray, weights: FloatArray
    ) -> FloatArray:
        """Return E_q of the gradient of -log prior in (loc, raw_scale), (2 n,), over the points of gradient_map."""
        z, w = self._points(nodes, weights)
        gradient = -self.log_prior_gradient(loc + softplus(raw_scale) * z)
        raw = sigmoid(raw_scale) * np.einsum("kj,kj->j", w[:, None] * z, gradient)
        return np.concatenate((w @ gradient, raw))

    def prior_moments(self) -> tuple[FloatArray, FloatArray]:
        """Return the prior's mean and standard deviation of each unconstrained parameter, two (n,) arrays."""
        return self.prior.unconstrained_mean, self.prior.unconstrained_stddev

    def constrain(self, theta: npt.ArrayLike) -> FloatArray:
        """Map unconstrained parameters (..., n) to the constrained ones, (..., n)."""
        return self.prior.constrain(theta)

    def unconstrain(self, params: npt.ArrayLike) -> FloatArray:
        """Invert :meth:`constrain`."""
        return self.prior.unconstrain(params)

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values: the fields of a dataclass."""
        values = {item.name: getattr(self, item.name) for item in fields(cast(Any, self))}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {"kind": type(self).__name__, **plain}

    def sample_prior(self, size: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw constrained parameters from the prior, (size, n)."""
        return self.prior.sample(size, rng)
