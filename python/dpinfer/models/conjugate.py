"""Gamma-exponential, beta-Bernoulli, beta-binomial and Dirichlet-categorical: models with a known exact posterior."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import NEGLIGIBLE, TINY, FloatArray
from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.models.base import sigmoid, softplus
from dpinfer.models.conjugate_distributions import DirichletOnLogits, GammaOnSoftplus
from dpinfer.models.conjugate_model import ConjugateModel

_QUANTILES = 2048  # of an exponential record (docs/derivations/noise-aware-posterior.md)
_MAX_CATEGORIES = 33  # 32 parameters: limit of the compiled engine; format
_CATEGORICAL_START_RAW_SCALE = -6.0  # below that of one parameter, for several: tolerance


def _one_probability(params: npt.ArrayLike) -> float:
    return check_interval(
        "params", check_float_array("params", params, (1,))[0], 0.0, 1.0, low_open=False, high_open=False
    )


def _total(total: npt.ArrayLike, n_params: int, n_records: int) -> tuple[FloatArray, int]:
    return check_float_array("total", total, (n_params,)), check_integer("n_records", n_records, 0)


@dataclass(frozen=True)
class GammaExponential(ConjugateModel):
    """Exponential waiting times with rate softplus(theta), under a Gamma(shape, rate) prior; t = y.

    Parameters
    ----------
    shape, rate : float
        Of the prior, positive.

    Examples
    --------
    >>> model = GammaExponential()
    >>> X = model.simulate([4.0], 1000, 1)
    >>> bool(abs(model.posterior(X).mean[0] - 4.0) < 0.5)
    True
    """

    few_values: ClassVar[bool] = False
    has_statistic: ClassVar[bool] = True

    shape: float = 8.0
    rate: float = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_interval("shape", self.shape, 0.0))
        object.__setattr__(self, "rate", check_interval("rate", self.rate, 0.0))

    @cached_property
    def prior(self) -> GammaOnSoftplus:
        """Gamma(shape, rate)."""
        return GammaOnSoftplus(self.shape, self.rate)

    @property
    def names(self) -> tuple[str, ...]:
        """``("rate",)``."""
        return ("rate",)

    def posterior_from_total(self, total: npt.ArrayLike, n_records: int) -> GammaOnSoftplus:
        """Return Gamma(shape + N, rate + total).  **Privacy.** Not private."""
        sums, count = _total(total, 1, n_records)
        return GammaOnSoftplus(self.shape + count, self.rate + float(sums[0]))

    def invalid_records(self, values: FloatArray) -> str | None:
        """Return "numbers of at least 0" unless they are."""
        return None if np.all(values >= 0.0) else "numbers of at least 0"

    def information(self, loc: FloatArray, scale: FloatArray | None = None) -> FloatArray:
        """Return (sigmoid(loc) / softplus(loc))**2, (..., 1)."""
        ratio = sigmoid(loc) / np.maximum(softplus(loc), TINY)
        return np.maximum(ratio**2, NEGLIGIBLE)

    def reference_records(self, loc: FloatArray, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return at most 2048 quantiles of the waiting time, (r, 1), with equal weights (r,)."""
        count = min(size, _QUANTILES)
        levels = (np.arange(count) + 0.5) / count
        return -np.log1p(-levels)[:, None] / np.maximum(softplus(loc[0]), TINY), np.full(count, 1.0 / count)

    def simulate(self, params: npt.ArrayLike, n_records: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw waiting times (n_records,) at the rate params[0]."""
        rate = check_interval("params", check_float_array("params", params, (1,))[0], 0.0)
        return np.random.default_rng(rng).exponential(1.0 / rate, check_integer("n_records", n_records, 0))

    def engine_family(self) -> tuple[str, FloatArray, float]:
        """Return the model's name, prior and number of trials for the studies' compiled engine."""
        return "exponential", np.array([self.shape, self.rate]), 1.0

    def _affine_gradient(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        slope = sigmoid(theta)  # of -log rate + rate t, rate = softplus(theta)
        return slope[:, :, None], -slope / np.maximum(softplus(theta), TINY)


class _BetaModel(ConjugateModel):
    """Counts out of a known number of trials, p = sigmoid(theta) under a Beta(a, b) prior; t = y."""

    has_statistic: ClassVar[bool] = True

    a: float
    b: float

    @property
    @abstractmethod
    def trials(self) -> int:
        """Number of trials of a record."""

    @cached_property
    def prior(self) -> DirichletOnLogits:
        """Beta(a, b), the Dirichlet of two categories."""
        return DirichletOnLogits((self.a, self.b))

    @property
    def names(self) -> tuple[str, ...]:
        """``("probability",)``."""
        return ("probability",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", check_interval("a", self.a, 0.0))
        object.__setattr__(self, "b", check_interval("b", self.b, 0.0))

    def posterior_from_total(self, total: npt.ArrayLike, n_records: int) -> DirichletOnLogits:
        """Return Beta(a + total, b + trials N - total).  **Privacy.** Not private."""
        sums, count = _total(total, 1, n_records)
        return DirichletOnLogits((self.a + float(sums[0]), self.b + self.trials * count - float(sums[0])))

    def information(self, loc: FloatArray, scale: FloatArray | None = None) -> FloatArray:
        """Return trials p (1 - p), (..., 1)."""
        return np.maximum(self.trials * sigmoid(loc) * sigmoid(-loc), NEGLIGIBLE)

    def reference_records(self, loc: FloatArray, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return every count, (trials + 1, 1), and its probability."""
        from scipy import stats  # half a second to import, so only if needed

        counts = np.arange(self.trials + 1.0)
        return counts[:, None], stats.binom.pmf(counts, self.trials, sigmoid(loc[0]))

    def engine_family(self) -> tuple[str, FloatArray, float]:
        """Return the model's name, prior and number of trials for the studies' compiled engine."""
        return "binomial", np.array([self.a, self.b]), float(self.trials)

    def _affine_gradient(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        return np.full((*theta.shape, 1), -1.0), self.trials * sigmoid(theta)


@dataclass(frozen=True)
class BetaBernoulli(_BetaModel):
    """Records 0 or 1 with P(1) = sigmoid(theta), under a Beta(a, b) prior.

    Parameters
    ----------
    a, b : float
        Of the prior, positive.

    Examples
    --------
    >>> BetaBernoulli(1.0, 1.0).posterior([1, 1, 0]).mean
    array([0.6])
    """

    a: float = 10.0
    b: float = 10.0

    @property
    def trials(self) -> int:
        """1."""
        return 1

    def invalid_records(self, values: FloatArray) -> str | None:
        """Return "0 or 1" unless they are."""
        return None if np.all((values == 0.0) | (values == 1.0)) else "0 or 1"

    def simulate(self, params: npt.ArrayLike, n_records: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw zeros and ones (n_records,), each 1 with probability params[0]."""
        uniform = np.random.default_rng(rng).random(check_integer("n_records", n_records, 0))
        return (uniform < _one_probability(params)).astype(np.float64)


@dataclass(frozen=True)
class BetaBinomial(_BetaModel):
    """Counts of successes in `n_trials`, each with probability sigmoid(theta), under a Beta(a, b) prior.

    Parameters
    ----------
    n_trials : int
        Trials of each record, at least 1; public.
    a, b : float
        Of the prior, positive.
    """

    n_trials: int
    a: float = 10.0
    b: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_trials", check_integer("n_trials", self.n_trials, 1, 2**31))
        super().__post_init__()

    @property
    def trials(self) -> int:
        """The number of trials of each record."""
        return self.n_trials

    def invalid_records(self, values: FloatArray) -> str | None:
        """Return "integers in 0..n_trials" unless they are."""
        fits = (values >= 0.0) & (values <= self.n_trials) & (values == np.floor(values))
        return None if np.all(fits) else f"integers in 0..{self.n_trials}"

    def simulate(self, params: npt.ArrayLike, n_records: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw counts (n_records,)."""
        generator = np.random.default_rng(rng)
        size = check_integer("n_records", n_records, 0)
        return np.asarray(generator.binomial(self.n_trials, _one_probability(params), size), dtype=np.float64)


@dataclass(frozen=True)
class DirichletCategorical(ConjugateModel):
    """Categories 0..M-1 under a Dirichlet prior; t = indicators of all categories but the last.

    The n = M - 1 parameters are the probabilities of all categories but the last, whose probability is the rest.

    Parameters
    ----------
    concentration : sequence of M floats
        Of the prior, positive; 2 to 33 categories.
    bijector : {"stick_breaking", "softmax"}
        "stick_breaking": sigmoid(theta_j) is the share of category j in the remainder of the earlier ones.  The
        information is diagonal and the posterior of theta factorises, as q does.  "softmax": softmax(theta_1, ...,
        theta_n, 0), the NA-DPVI paper's.

    Examples
    --------
    >>> DirichletCategorical().posterior([0, 0, 1, 2]).mean.round(3)
    array([0.368, 0.316])
    """

    has_statistic: ClassVar[bool] = True

    concentration: Sequence[float] = (5.0, 5.0, 5.0)
    bijector: str = "stick_breaking"

    def __post_init__(self) -> None:
        law = DirichletOnLogits(tuple(self.concentration), self.bijector)
        if len(law.concentration) > _MAX_CATEGORIES:
            raise ValueError(f"concentration must have at most {_MAX_CATEGORIES} entries, got {len(law.concentration)}")
        object.__setattr__(self, "concentration", law.concentration)

    @cached_property
    def prior(self) -> DirichletOnLogits:
        """Dirichlet(concentration)."""
        return DirichletOnLogits(tuple(self.concentration), self.bijector)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """``("probability[0]", ..., f"probability[{M - 2}]")``."""
        return tuple(f"probability[{index}]" for index in range(len(self.concentration) - 1))

    @property
    def _interacting(self) -> bool:
        return self.bijector == "softmax" and self.n_params > 1

    def posterior_from_total(self, total: npt.ArrayLike, n_records: int) -> DirichletOnLogits:
        """Return Dirichlet(concentration + counts), `total` the counts but the last.  **Privacy.** Not private."""
        sums, count = _total(total, self.n_params, n_records)
        counts = np.append(sums, count - sums.sum())
        return DirichletOnLogits(tuple((np.asarray(self.concentration) + counts).tolist()), self.bijector)

    def sufficient_statistics(self, X: npt.ArrayLike) -> FloatArray:
        """Return the indicators of all categories but the last, (N, n) float64."""
        return np.asarray(super().sufficient_statistics(X) == np.arange(self.n_params), dtype=np.float64)

    def invalid_records(self, values: FloatArray) -> str | None:
        """Return "integers in 0..M - 1" unless they are."""
        last = self.n_params
        fits = (values >= 0.0) & (values <= last) & (values == np.floor(values))
        return None if np.all(fits) else f"integers in 0..{last}"

    def information(self, loc: FloatArray, scale: FloatArray | None = None) -> FloatArray:
        """Return the diagonal of the information, (..., n): p_j (1 - p_j), or left_j v_j (1 - v_j) for sticks."""
        if self.bijector == "softmax":
            p = self.constrain(loc)
            return np.maximum(p * (1.0 - p), NEGLIGIBLE)
        # p_j = left_j v_j, where left_j is the remainder of the earlier categories.
        return np.maximum(self.constrain(loc) * sigmoid(-loc), NEGLIGIBLE)

    def reference_records(self, loc: FloatArray, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return every category's indicators, (n + 1, n), and its probability."""
        p = self.constrain(loc)
        return np.eye(self.n_params + 1)[:, : self.n_params], np.append(p, max(0.0, 1.0 - float(p.sum())))

    def simulate(self, params: npt.ArrayLike, n_records: int, rng: np.random.Generator | int) -> FloatArray:
        """Draw categories (n_records,) given the probabilities (n,) of all but the last."""
        p = check_float_array("params", params, (self.n_params,))
        if not (p.min() >= 0.0 and p.sum() <= 1.0 + 1e-12):
            raise ValueError("params must be probabilities with a sum of at most 1")
        uniform = np.random.default_rng(rng).random(check_integer("n_records", n_records, 0))
        return np.asarray(np.searchsorted(np.cumsum(p), uniform, side="right"), dtype=np.float64)

    def default_start(self) -> tuple[FloatArray, FloatArray]:
        """Return raw_scale = -6 and loc = 0 (softmax: the paper's start), or loc at equal probabilities (sticks)."""
        n = self.n_params
        loc = np.zeros(n) if self.bijector == "softmax" else -np.log(np.arange(n, 0, -1, dtype=np.float64))
        return loc, np.full(n, _CATEGORICAL_START_RAW_SCALE)

    def engine_family(self) -> tuple[str, FloatArray, float]:
        """Return the model's name, prior and number of trials for the studies' compiled engine."""
        return "sticks" if self.bijector == "stick_breaking" else "softmax", np.array(self.concentration), 1.0

    def _affine_gradient(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        n = self.n_params
        if self.bijector == "softmax":
            return np.repeat(-np.eye(n)[None], theta.shape[0], axis=0), self.constrain(theta)
        share = sigmoid(theta)
        # A record of an earlier category has no information about theta_j; of category j or a later one, share_j - [it
        # is j].
        earlier = np.tril(np.ones((n, n)), -1)
        return -np.eye(n) - share[:, :, None] * earlier, share
