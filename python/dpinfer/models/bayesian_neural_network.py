"""Regression by a Bayesian neural network with one hidden ReLU layer, and its Gaussian approximations."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.accounting import Adjacency, Event, NonPrivateEvent
from dpinfer.models.base import Model, sigmoid, softplus
from dpinfer.release.guarantee import DERIVED, Guaranteed, Part

_CHUNK = 4096  # rows at once: memory only
_LEAST_VARIANCE = 1e-290  # avoids division by zero


@dataclass(frozen=True)
class BayesianNeuralNetwork(Model):
    """y ~ N(f(x), 1 / gamma), f(x) = (w . max(W z, 0) / sqrt(d + 1) + w_bias) / sqrt(H + 1) with z = (x, 1).

    Weights have independent N(0, 1 / prior_precision) priors and the noise precision gamma a Gamma(noise_shape,
    noise_rate) prior, all for standardised records: x = (X - feature_loc) / feature_scale, and the same for y.

    **Privacy.** Public; holds no records.  The scales must be public knowledge: means and standard deviations of
    private records would be a release of their own.

    Parameters
    ----------
    n_features : int
        Number of inputs d, in [1, 4096].
    n_hidden : int
        Number of hidden units H, in [1, 4096].
    prior_precision : float
        Positive.
    noise_shape, noise_rate : float
        Of the noise precision's gamma prior; the shape above 1, the rate positive.
    feature_loc, feature_scale : float or sequence of d floats
        Public location and (positive) scale of each feature.
    target_loc, target_scale : float
        Public location and (positive) scale of the response.

    Notes
    -----
    Hernandez-Lobato and Adams (2015), eqs. 1-5: activations are divided by the root of the number of their inputs, the
    bias included.  theta is the d + 1 rows of W (H weights each, the bias last), then w, then its bias.

    Examples
    --------
    >>> BayesianNeuralNetwork(2, 3).n_params
    13
    """

    record_form: ClassVar[str] = "regression"
    site_sum: ClassVar[str | None] = "network"

    n_features: int
    n_hidden: int = 50
    prior_precision: float = 1.0
    noise_shape: float = 6.0
    noise_rate: float = 6.0
    feature_loc: Any = 0.0
    feature_scale: Any = 1.0
    target_loc: float = 0.0
    target_scale: float = 1.0

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("n_features", "n_hidden"):
            put(self, name, check_integer(name, getattr(self, name), 1, 4096))
        put(self, "prior_precision", check_interval("prior_precision", self.prior_precision, 0.0))
        put(self, "noise_shape", check_interval("noise_shape", self.noise_shape, 1.0))
        put(self, "noise_rate", check_interval("noise_rate", self.noise_rate, 0.0))
        put(self, "target_loc", check_interval("target_loc", self.target_loc))
        put(self, "target_scale", check_interval("target_scale", self.target_scale, 0.0))
        for name in ("feature_loc", "feature_scale"):
            value = getattr(self, name)
            shape = () if np.ndim(value) == 0 else (self.n_features,)
            array = check_float_array(name, value, shape)
            if name == "feature_scale" and not np.all(array > 0.0):
                raise ValueError("feature_scale must be positive")
            put(self, name, array.item() if array.ndim == 0 else tuple(array.tolist()))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the (d + 2) H + 1 weights."""
        inputs = [str(j) for j in range(self.n_features)] + ["bias"]
        hidden = tuple(f"hidden[{j}, {h}]" for j in inputs for h in range(self.n_hidden))
        return hidden + tuple(f"output[{h}]" for h in range(self.n_hidden)) + ("output[bias]",)

    @property
    def n_params(self) -> int:
        """Number of weights."""
        return (self.n_features + 2) * self.n_hidden + 1

    @property
    def hidden_scale(self) -> float:
        """1 / sqrt(d + 1)."""
        return 1.0 / math.sqrt(self.n_features + 1.0)

    @property
    def output_scale(self) -> float:
        """1 / sqrt(H + 1)."""
        return 1.0 / math.sqrt(self.n_hidden + 1.0)

    def standardise_features(self, X: npt.ArrayLike) -> FloatArray:
        """Return (X - feature_loc) / feature_scale, C-contiguous; not private if X is not."""
        scaled = (np.asarray(X, dtype=np.float64) - np.asarray(self.feature_loc)) / np.asarray(self.feature_scale)
        return np.ascontiguousarray(scaled)

    def standardise_target(self, y: npt.ArrayLike) -> FloatArray:
        """Return (y - target_loc) / target_scale; not private if y is not."""
        return np.ascontiguousarray((np.asarray(y, dtype=np.float64) - self.target_loc) / self.target_scale)

    def start_loc(self, seed: int = 0, *, hidden: float = 1.0, output: float = 1.0) -> FloatArray:
        """Return random weights, N(0, hidden^2) and N(0, output^2) in the two layers; data-independent."""
        rng = np.random.default_rng(check_integer("seed", seed, 0))
        layer = (self.n_features + 1) * self.n_hidden
        weights = rng.standard_normal(self.n_params)
        weights[:layer] *= check_interval("hidden", hidden, 0.0, low_open=False)
        weights[layer:] *= check_interval("output", output, 0.0, low_open=False)
        return weights

    def log_prior(self, theta: npt.ArrayLike) -> FloatArray:
        """Return the log prior density of the weights, (...,) for (..., n)."""
        values = check_float_array("theta", theta, finite=False)
        constant = 0.5 * self.n_params * math.log(self.prior_precision / (2.0 * math.pi))
        return np.asarray(constant - 0.5 * self.prior_precision * np.sum(values**2, axis=-1))

    def log_prior_gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log prior at one theta (n,)."""
        return np.asarray(-self.prior_precision * theta)

    def expected_log_prior_gradient(self, loc: FloatArray, raw_scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the gradient of E_q[log prior] in loc and raw_scale, in closed form."""
        return self.log_prior_gradient(loc), -self.prior_precision * softplus(raw_scale) * sigmoid(raw_scale)

    def prior_moments(self) -> tuple[FloatArray, FloatArray]:
        """Return the prior's mean and standard deviation of each weight, two (n,) arrays."""
        return np.zeros(self.n_params), np.full(self.n_params, self.prior_precision**-0.5)

    def default_start(self) -> tuple[FloatArray, FloatArray]:
        """Return random weights (a fixed draw: symmetric ones would stay symmetric) and raw_scale = -3."""
        return self.start_loc(0), np.full(self.n_params, -3.0)

    def simulate(self, theta: npt.ArrayLike, noise_variance: float, X: npt.ArrayLike, seed: int) -> FloatArray:
        """Draw responses (N,) of the network with weights theta at features X (N, d)."""
        weights = check_float_array("theta", theta, (self.n_params,))
        exact = NetworkWeights(self, weights, np.zeros(self.n_params), noise_variance)
        mean, variance = exact.predict(X)
        return np.asarray(mean + np.sqrt(variance) * np.random.default_rng(seed).standard_normal(mean.size))

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values."""
        arrays = {
            name: list(value) if isinstance(value := getattr(self, name), tuple) else value
            for name in ("feature_loc", "feature_scale")
        }
        return {
            "kind": "BayesianNeuralNetwork",
            "n_features": self.n_features,
            "n_hidden": self.n_hidden,
            "prior_precision": self.prior_precision,
            "noise_shape": self.noise_shape,
            "noise_rate": self.noise_rate,
            **arrays,
            "target_loc": self.target_loc,
            "target_scale": self.target_scale,
        }


def output_moments(
    model: BayesianNeuralNetwork,
    # loc, variance: (n,) float64: of the weights; variances of at least 0
    loc: FloatArray,
    variance: FloatArray,
    features: FloatArray,  # (m, d) float64: standardised
) -> tuple[FloatArray, FloatArray]:
    """Return the mean and variance of f at standardised features, (m,) each, for independent Gaussian weights.

    They are exact: pre-activations are Gaussian and the hidden units independent.

    **Privacy.** Not private if the features are not; for public points post-processing.

    Hernandez-Lobato and Adams (2015), eqs. 13-17.
    """
    d, hidden = model.n_features, model.n_hidden
    layer = (d + 1) * hidden
    W, V = loc[:layer].reshape(d + 1, hidden), variance[:layer].reshape(d + 1, hidden)
    w, v = loc[layer:-1], variance[layer:-1]
    means, variances = np.empty(features.shape[0]), np.empty(features.shape[0])
    for first in range(0, features.shape[0], _CHUNK):
        rows = slice(first, first + _CHUNK)
        x = features[rows]
        m = model.hidden_scale * (x @ W[:d] + W[d])
        spread = np.maximum(model.hidden_scale**2 * (x**2 @ V[:d] + V[d]), _LEAST_VARIANCE)
        sd = np.sqrt(spread)
        alpha = m / sd
        above, below = special.ndtr(alpha), special.ndtr(-alpha)
        density = np.exp(-0.5 * alpha**2) / math.sqrt(2.0 * math.pi)
        a = np.maximum(m * above + sd * density, 0.0)
        # The form of cpp/mechanism/simd/network_moments-inl.hpp, which does not cancel where alpha is large.
        inner = above + alpha**2 * above * below - alpha * density * (above - below) - density**2
        va = spread * np.maximum(np.where(np.abs(alpha) < 38.0, inner, above), 0.0)
        means[rows] = model.output_scale * (a @ w + loc[-1])
        variances[rows] = model.output_scale**2 * ((va + a**2) @ v + va @ w**2 + variance[-1])
    return means, variances


def _half_width(variance: FloatArray, noise: FloatArray, upper: float) -> FloatArray:
    """Return the `upper` quantile of N(0, v + w) for v in `variance` (m,), w at random one of `noise` (K,)."""
    spread = np.sqrt(variance[:, None] + noise)
    low, high = (special.ndtri(upper) * end for end in (spread.min(axis=1), spread.max(axis=1)))
    for _ in range(50):  # halves: to rounding
        middle = 0.5 * (low + high)
        below = special.ndtr(middle[:, None] / spread).mean(axis=1) < upper
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(0.5 * (low + high))


@dataclass(frozen=True, eq=False)
class NetworkWeights(Guaranteed):
    """Independent Gaussians over a network's weights, with a noise variance: an approximate posterior that predicts.

    **Privacy.** As private as its source: post-processing of a release, or, from
    :func:`dpinfer.lab.baselines.run_network_sep` and other runs without a plan, not private.

    Parameters
    ----------
    model : BayesianNeuralNetwork
    loc : (n,) float64
    variance : (n,) float64
        At least 0.
    noise_variance : float
        Of a standardised response about f, positive.
    replicas : (K, n) float64, optional
        Weights at which K replicas of a private run ended: their spread is that of the privacy noise.
    replica_noise : (K,) float64, optional
        Noise variance of each replica, positive.
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks
        As in :class:`dpinfer.Release`.
    """

    model: BayesianNeuralNetwork
    loc: FloatArray
    variance: FloatArray
    noise_variance: float
    replicas: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    replica_noise: FloatArray = field(default_factory=lambda: np.zeros(0))
    event: Event = field(default_factory=NonPrivateEvent)
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    delta: float = 0.0
    certified_epsilon: float = DERIVED
    accountant: str = "pld"
    secure: bool = True
    other_parts: tuple[Part, ...] = ()
    leaks: tuple[str, ...] = ()
    _part_name: ClassVar[str] = "weights"
    _released: ClassVar[str] = "the weights' distribution"

    def __post_init__(self) -> None:
        n, count = self.model.n_params, len(self.replica_noise)
        shapes = {"loc": (n,), "variance": (n,), "replicas": (count, n if count else 0), "replica_noise": (count,)}
        for name, shape in shapes.items():
            array = check_float_array(name, getattr(self, name), shape).view()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if not np.all(self.variance >= 0.0) or not np.all(self.replica_noise > 0.0):
            raise ValueError("variance must be at least 0, and replica_noise positive")
        if count in (1, 2, 3):
            raise ValueError(f"replicas must be at least 4, or none, got {count}")
        self._check_guarantee()
        object.__setattr__(self, "noise_variance", check_interval("noise_variance", self.noise_variance, 0.0))

    @property
    def private(self) -> bool:
        """Whether it was computed from noisy sums alone, and the noise was secure."""
        return self.secure and not self.leaks and not isinstance(self.event, NonPrivateEvent)

    @property
    def safe_to_publish(self) -> bool:
        """Whether it may be published, as post-processing of a release."""
        return self.private

    def __repr__(self) -> str:
        return f"NetworkWeights({self.loc.size} weights)\n  {self.guarantee}"

    def _moments(self, X: npt.ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the mean of f at standardised points, its variance given the sums, and that of the privacy noise."""
        points = check_float_array("X", X, (None, self.model.n_features))
        features = self.model.standardise_features(points)
        mean, variance = output_moments(self.model, self.loc, self.variance, features)
        if not len(self.replicas):
            return mean, variance, np.zeros(len(mean))
        ends = [output_moments(self.model, loc, self.variance, features)[0] for loc in self.replicas]
        return mean, variance, np.var(ends, axis=0, ddof=1)

    @property
    def _heavier(self) -> float:
        """Variance of Student's t with K - 1 degrees of freedom: the replicas' spread is an estimate."""
        count = len(self.replicas)
        return (count - 1.0) / (count - 3.0) if count else 1.0

    def predict(self, X: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return the predictive mean and variance (noise included) of the response at X (m, d); two (m,) arrays.

        The variance counts the privacy noise if there are replicas.

        **Privacy.** Reads the caller's own points, not the training records.
        """
        mean, variance, privacy = self._moments(X)
        scale = self.model.target_scale
        total = variance + self._heavier * privacy + self.noise_variance
        return self.model.target_loc + scale * mean, scale**2 * total

    def interval(
        self, X: npt.ArrayLike, level: float = 0.9, *, kind: str = "response"
    ) -> tuple[FloatArray, FloatArray]:
        """Return the ends of intervals at X (m, d), two (m,) arrays.

        **Privacy.** Reads the caller's own points, not the training records.

        Parameters
        ----------
        X : (m, d) array
        level : float in (0, 1)
        kind : {"response", "mean", "retrained"}
            Of a response; of the function f, given records and privacy noise; or of the mean of f over the privacy
            noise alone, which many runs on the same records would show, and which needs replicas.
        """
        level = check_interval("level", level, 0.0, 1.0)
        mean, variance, privacy = self._moments(X)
        upper, count = 0.5 + 0.5 * level, len(self.replicas)
        if check_choice("kind", kind, ("response", "mean", "retrained")) != "response":
            if kind == "retrained" and not count:
                raise ValueError("kind must be 'response' or 'mean' without replicas, got 'retrained'")
            half = special.ndtri(upper) * np.sqrt(variance if kind == "mean" else 0.0 * variance)
            if count:
                half = np.hypot(half, special.stdtrit(count - 1.0, upper) * np.sqrt(privacy))
        else:
            noise = np.array([self.noise_variance])
            if count:
                noise = self.noise_variance * self.replica_noise.mean() / self.replica_noise
            half = _half_width(variance + self._heavier * privacy, noise, upper)
        low, high = (self.model.target_loc + self.model.target_scale * (mean + end) for end in (-half, half))
        return low, high

    def log_predictive_density(self, X: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """Return log p(y | X) under the Gaussian predictive, (m,) for X (m, d) and y (m,)."""
        mean, variance = self.predict(X)
        targets = check_float_array("y", y, (mean.size,))
        return np.asarray(-0.5 * np.log(2.0 * np.pi * variance) - 0.5 * (targets - mean) ** 2 / variance)

    def sample(self, size: int, *, seed: int = 0) -> FloatArray:
        """Draw weights, (size, n)."""
        rng = np.random.default_rng(check_integer("seed", seed, 0))
        shape = (check_integer("size", size, 0), self.loc.size)
        return np.asarray(self.loc + np.sqrt(self.variance) * rng.standard_normal(shape))
