"""Conjugate exponential families as the Bernstein-Sheldon sampler sees them: one object per model, no records."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.lab.baselines.gibbs.truncated_normal import truncated_normal

__all__ = ["BinomialFamily", "CategoricalFamily", "ConjugateFamily", "ExponentialFamily", "conjugate_family"]

_MAX_TRIES = 50  # as the docstring of `draw_statistic` states; the target does not depend on it
_SMALLEST_PROBABILITY = 1e-12  # avoids division by zero


class ConjugateFamily(ABC):
    """A likelihood with its conjugate prior, its released statistic and that statistic's large-sample normal law.

    **Privacy.** Public; holds no records.
    """

    names: tuple[str, ...]
    n_params: int
    n_nonzero: int | None = None

    @property
    @abstractmethod
    def high(self) -> FloatArray:
        """Upper bounds (s,) of one record's contribution; the lower bounds are 0."""

    @abstractmethod
    def draw_prior(self, n_runs: int, rng: np.random.Generator) -> FloatArray:
        """Draw parameters from the prior, (K, n)."""

    @abstractmethod
    def draw_statistic(
        self,
        theta: FloatArray,
        noisy: FloatArray,
        noise_variance: FloatArray,
        n_records: int,
        current: FloatArray | None,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Draw the released statistic (K, s) given theta (K, n), noisy values (K, s) and noise variances (K, s)."""

    @abstractmethod
    def draw_parameters(
        self, statistic: FloatArray, theta: FloatArray, n_records: int, rng: np.random.Generator
    ) -> FloatArray:
        """Draw parameters (K, n) from the conjugate posterior given the statistic (K, s)."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the family as plain values."""


@dataclass(frozen=True)
class BinomialFamily(ConjugateFamily):
    """y ~ Binomial(n_trials, theta), theta ~ Beta(a, b); the statistic is the sum of y.

    **Privacy.** A record contributes an integer in [0, n_trials], so the L1 sensitivity is exactly n_trials under every
    adjacency.

    Parameters
    ----------
    n_trials : int
        At least 1; 1 is the Bernoulli model.
    a, b : float
        Positive.
    """

    n_trials: int = 1
    a: float = 10.0
    b: float = 10.0

    names = ("sum",)
    n_params = 1

    def __post_init__(self) -> None:
        check_integer("n_trials", self.n_trials, 1, 2**30)
        check_interval("a", self.a, 0.0)
        check_interval("b", self.b, 0.0)

    @property
    def high(self) -> FloatArray:
        """The number of trials."""
        return np.array([float(self.n_trials)])

    def draw_prior(self, n_runs: int, rng: np.random.Generator) -> FloatArray:
        """Draw from Beta(a, b)."""
        return np.asarray(rng.beta(self.a, self.b, (n_runs, 1)))

    def draw_statistic(
        self,
        theta: FloatArray,
        noisy: FloatArray,
        noise_variance: FloatArray,
        n_records: int,
        current: FloatArray | None,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Draw from the product of two normals restricted to [0, N n_trials]."""
        trials = float(n_records * self.n_trials)
        variance = np.maximum(trials * theta * (1.0 - theta), _SMALLEST_PROBABILITY)
        mean, stddev = _product(trials * theta, variance, noisy, noise_variance)
        return truncated_normal(mean[:, 0], stddev[:, 0], 0.0, trials, rng)[:, None]

    def draw_parameters(
        self, statistic: FloatArray, theta: FloatArray, n_records: int, rng: np.random.Generator
    ) -> FloatArray:
        """Draw from Beta(a + s, b + N n_trials - s)."""
        trials = float(n_records * self.n_trials)
        return np.asarray(rng.beta(self.a + statistic, self.b + np.maximum(trials - statistic, 0.0)))

    def settings(self) -> dict[str, Any]:
        """Return the family as plain values."""
        return {"family": "binomial", "n_trials": self.n_trials, "a": self.a, "b": self.b}


@dataclass(frozen=True)
class CategoricalFamily(ConjugateFamily):
    """x ~ Categorical(theta) with M categories, theta ~ Dirichlet; the statistic is the first M - 1 counts.

    **Privacy.** A record contributes a single 1, or nothing if it is of the last category: the L1 sensitivity is
    exactly 1 under add/remove and zero-out, and 2 under replace-one (1 when M = 2).

    Parameters
    ----------
    concentration : tuple of M float
        Positive; M >= 2.
    """

    concentration: tuple[float, ...] = (5.0, 5.0, 5.0)

    n_nonzero = 1

    def __post_init__(self) -> None:
        values = check_float_array("concentration", self.concentration, (None,))
        if values.size < 2 or not np.all(values > 0.0):
            raise ValueError("concentration must hold at least two positive numbers")
        object.__setattr__(self, "concentration", tuple(float(value) for value in values))
        object.__setattr__(self, "names", tuple(f"count[{index}]" for index in range(values.size - 1)))
        object.__setattr__(self, "n_params", values.size)

    @property
    def high(self) -> FloatArray:
        """One for each count."""
        return np.ones(len(self.concentration) - 1)

    def draw_prior(self, n_runs: int, rng: np.random.Generator) -> FloatArray:
        """Draw from the Dirichlet prior."""
        return np.asarray(rng.dirichlet(self.concentration, n_runs))

    def draw_statistic(
        self,
        theta: FloatArray,
        noisy: FloatArray,
        noise_variance: FloatArray,
        n_records: int,
        current: FloatArray | None,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Draw from the product of two normals restricted to counts of at least 0 that sum to at most N.

        Up to 50 independent draws by rejection; where none is admissible, one sweep over the coordinates from the
        current state.  Which of the two is used does not depend on the current state, so the target stays invariant.
        """
        total = float(n_records)
        p = np.maximum(theta, _SMALLEST_PROBABILITY)
        p = p / p.sum(axis=1, keepdims=True)
        head = p[:, :-1]
        cov = total * (head[:, :, None] * np.eye(head.shape[1]) - head[:, :, None] * head[:, None, :])
        gain = np.linalg.solve(cov + noise_variance[:, :, None] * np.eye(head.shape[1]), cov).swapaxes(1, 2)
        statistic = head * total if current is None else current.copy()
        open_runs = np.arange(head.shape[0])
        for _ in range(_MAX_TRIES):
            q = p[open_runs]
            normal = rng.standard_normal(q.shape)
            root = np.sqrt(q)
            model = total * q + np.sqrt(total) * (root * normal - q * np.sum(root * normal, axis=1, keepdims=True))
            noise = np.sqrt(noise_variance[open_runs]) * rng.standard_normal(noise_variance[open_runs].shape)
            innovation = noisy[open_runs] - model[:, :-1] - noise
            draw = model[:, :-1] + np.einsum("kij,kj->ki", gain[open_runs], innovation)
            valid = (draw >= 0.0).all(axis=1) & (draw.sum(axis=1) <= total)
            statistic[open_runs[valid]] = draw[valid]
            open_runs = open_runs[~valid]
            if not open_runs.size:
                return statistic
        statistic[open_runs] = _sweep(
            statistic[open_runs], p[open_runs], noisy[open_runs], noise_variance[open_runs], total, rng
        )
        return statistic

    def draw_parameters(
        self, statistic: FloatArray, theta: FloatArray, n_records: int, rng: np.random.Generator
    ) -> FloatArray:
        """Draw from the Dirichlet posterior."""
        last = np.maximum(n_records - statistic.sum(axis=1, keepdims=True), 0.0)
        gammas = rng.standard_gamma(np.asarray(self.concentration) + np.concatenate((statistic, last), axis=1))
        gammas = np.maximum(gammas, 1e-300)
        return np.asarray(gammas / gammas.sum(axis=1, keepdims=True))

    def settings(self) -> dict[str, Any]:
        """Return the family as plain values."""
        return {"family": "categorical", "concentration": list(self.concentration)}


@dataclass(frozen=True)
class ExponentialFamily(ConjugateFamily):
    """x ~ Exponential(rate theta), theta ~ Gamma(shape, rate); unbounded, so only a public section is released.

    The statistic is the sum of the records inside [low_bound, high_bound].

    **Privacy.** A record contributes 0 or a number in [low_bound, high_bound], so the L1 sensitivity is exactly
    high_bound under every adjacency (up to the lattice, which rounds it down).

    Parameters
    ----------
    bounds : tuple of 2 float
        The *public* section, 0 <= low < high, in the units of x.
    shape, rate : float
        Positive.
    sections : {"joint", "independent"}
        Whether the sum outside the section is drawn given the sum inside, as the multinomial split of N records asks,
        or independently of it, as published.
    """

    bounds: tuple[float, float]
    shape: float = 8.0
    rate: float = 2.0
    sections: str = "joint"

    names = ("sum_inside",)
    n_params = 1

    def __post_init__(self) -> None:
        if not isinstance(self.bounds, tuple) or len(self.bounds) != 2:
            raise TypeError("bounds must be a pair (low, high)")
        low = check_interval("bounds[0]", self.bounds[0], 0.0, low_open=False)
        check_interval("bounds[1]", self.bounds[1], low)
        check_interval("shape", self.shape, 0.0)
        check_interval("rate", self.rate, 0.0)
        if self.sections not in ("joint", "independent"):
            raise ValueError(f"sections must be 'joint' or 'independent', got {self.sections!r}")

    @property
    def high(self) -> FloatArray:
        """The upper end of the section."""
        return np.array([float(self.bounds[1])])

    def draw_prior(self, n_runs: int, rng: np.random.Generator) -> FloatArray:
        """Draw from Gamma(shape, rate)."""
        return np.asarray(rng.gamma(self.shape, 1.0 / self.rate, (n_runs, 1)))

    def section_moments(self, theta: FloatArray, n_records: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the moments of the sums below, inside and above the section.

        Parameters
        ----------
        theta : (K,) float64
        n_records : int

        Returns
        -------
        mean, variance : (3, K) float64
            ``N P mu`` and ``N P Sigma + N P (1 - P) mu**2``.
        proportion_mean : (3, K) float64
            ``P mu``: the covariance of two sections is ``-N (P mu)_a (P mu)_b``.
        """
        low, high = self.bounds
        # E[x**j; x > c] of an exponential: exp(-theta c) times 1, c + 1 / theta, c**2 + 2 c / theta + 2 / theta**2.
        ends = [_tail_moments(theta, point) for point in (0.0, low, high)]
        first = np.stack((ends[0][0] - ends[1][0], ends[1][0] - ends[2][0], ends[2][0]))
        second = np.stack((ends[0][1] - ends[1][1], ends[1][1] - ends[2][1], ends[2][1]))
        first, second = np.maximum(first, 0.0), np.maximum(second, 0.0)
        # N P Sigma + N P (1 - P) mu**2 = N (E[x**2; section] - E[x; section]**2).
        return n_records * first, n_records * np.maximum(second - first**2, 1e-300), first

    def draw_statistic(
        self,
        theta: FloatArray,
        noisy: FloatArray,
        noise_variance: FloatArray,
        n_records: int,
        current: FloatArray | None,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Draw the sum inside from the product of two normals restricted to [0, N high]."""
        mean, variance, _ = self.section_moments(theta[:, 0], n_records)
        centre, stddev = _product(mean[1], variance[1], noisy[:, 0], noise_variance[:, 0])
        return truncated_normal(centre, stddev, 0.0, n_records * self.bounds[1], rng)[:, None]

    def draw_parameters(
        self, statistic: FloatArray, theta: FloatArray, n_records: int, rng: np.random.Generator
    ) -> FloatArray:
        """Add the sums outside the section, then draw from Gamma(shape + N, rate + s)."""
        inside = statistic[:, 0]
        mean, variance, part = self.section_moments(theta[:, 0], n_records)
        if self.sections == "joint":
            outer = part[0] + part[2]
            spread = variance[0] + variance[2] - 2.0 * n_records * part[0] * part[2]
            cross = -n_records * part[1] * outer
            centre = mean[0] + mean[2] + cross / variance[1] * (inside - mean[1])
            spread = np.maximum(spread - cross**2 / variance[1], 1e-300)
            outside = truncated_normal(centre, np.sqrt(spread), 0.0, np.inf, rng)
        else:
            outside = np.zeros_like(inside)
            for section in (0, 2):
                outside += truncated_normal(mean[section], np.sqrt(variance[section]), 0.0, np.inf, rng)
        return rng.gamma(self.shape + n_records, 1.0 / (self.rate + inside + outside))[:, None]

    def settings(self) -> dict[str, Any]:
        """Return the family as plain values."""
        return {
            "family": "exponential",
            "bounds": list(self.bounds),
            "shape": self.shape,
            "rate": self.rate,
            "sections": self.sections,
        }


def conjugate_family(model: Any, *, bounds: tuple[float, float] | None = None) -> ConjugateFamily:
    """Return the sampler's view of a conjugate model.

    **Privacy.** Reads no records.

    Parameters
    ----------
    model : ConjugateFamily, or a model with the parameters of one
        ``GammaExponential(shape, rate)``, ``BetaBernoulli(a, b)``, ``BetaBinomial(n_trials, a, b)`` or
        ``DirichletCategorical(concentration)`` of :mod:`dpinfer.models`.
    bounds : pair of float, optional
        The *public* section of the Gamma-Exponential model; required for it and refused for the others.

    Raises
    ------
    TypeError, ValueError
        If the model is none of these, or `bounds` does not fit it.

    Examples
    --------
    >>> conjugate_family(BinomialFamily(n_trials=3)).n_params
    1
    """
    kind = type(model).__name__
    if kind == "GammaExponential":
        if bounds is None:
            raise ValueError("bounds must be given for GammaExponential: its data are unbounded")
        return ExponentialFamily(bounds=bounds, shape=model.shape, rate=model.rate)
    if bounds is not None:
        raise ValueError(f"bounds must not be given for {kind}")
    if isinstance(model, ConjugateFamily):
        return model
    if kind == "BetaBernoulli":
        return BinomialFamily(1, model.a, model.b)
    if kind == "BetaBinomial":
        return BinomialFamily(model.n_trials, model.a, model.b)
    if kind == "DirichletCategorical":
        return CategoricalFamily(tuple(model.concentration))
    raise TypeError(f"model must be a conjugate model, got {kind}")


def _product(
    mean: FloatArray, variance: FloatArray, noisy: FloatArray, noise_variance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of N(noisy, noise_variance) N(mean, variance)."""
    total = variance + noise_variance
    return mean + variance / total * (noisy - mean), np.sqrt(variance * (noise_variance / total))


def _tail_moments(theta: FloatArray, point: float) -> tuple[FloatArray, FloatArray]:
    tail = np.exp(-theta * point)
    return tail * (point + 1.0 / theta), tail * (point**2 + 2.0 * point / theta + 2.0 / theta**2)


def _sweep(
    statistic: FloatArray,
    p: FloatArray,
    noisy: FloatArray,
    noise_variance: FloatArray,
    total: float,
    rng: np.random.Generator,
) -> FloatArray:
    """One sweep of truncated conditionals; the inverse of the multinomial covariance is (diag(1/p) + 1/p_M) / N."""
    head, last = p[:, :-1], p[:, -1:]
    result = statistic.copy()
    for j in range(head.shape[1]):
        precision = 1.0 / noise_variance[:, j] + (1.0 / head[:, j] + 1.0 / last[:, 0]) / total
        others = result.sum(axis=1) - result[:, j]
        offset = 1.0 + (total * (1.0 - last[:, 0]) - others) / (total * last[:, 0])
        mean = (noisy[:, j] / noise_variance[:, j] + offset) / precision
        room = np.maximum(total - others, 1e-9)
        result[:, j] = truncated_normal(mean, 1.0 / np.sqrt(precision), 0.0, room, rng)
    return result
