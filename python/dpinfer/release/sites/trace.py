"""Releases of DP-SEP, for sites and for a network: every noisy sum, and the approximate posterior after each step."""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import POSITIVE, Range, Shape, check_choice, check_float_array
from dpinfer.accounting import Adjacency, NonPrivateEvent, run_event
from dpinfer.release.guarantee import Release

SITES = ("centred", "natural")
_ROOT_TWO = math.sqrt(2.0)  # of svec, which keeps the Frobenius norm


@lru_cache(maxsize=64)
def _triangle(d: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], FloatArray]:
    """Return row and column indices of the upper triangle, and the factors of its entries."""
    rows, columns = np.triu_indices(d)
    return rows, columns, np.where(rows == columns, 1.0, _ROOT_TWO)


def svec(matrices: FloatArray) -> FloatArray:
    """Return symmetric (..., d, d) as vectors (..., d (d + 1) / 2) of the same (Frobenius) norm.

    The upper triangle, row by row, with off-diagonal entries times sqrt(2).

    Examples
    --------
    >>> svec(np.eye(2)).tolist()
    [1.0, 0.0, 1.0]
    """
    rows, columns, factors = _triangle(matrices.shape[-1])
    return np.asarray(matrices[..., rows, columns] * factors)


def smat(vectors: FloatArray, d: int) -> FloatArray:
    """Invert :func:`svec`: (..., d (d + 1) / 2) to symmetric (..., d, d)."""
    rows, columns, factors = _triangle(d)
    result = np.empty((*vectors.shape[:-1], d, d))
    values = vectors / factors
    result[..., rows, columns] = values
    result[..., columns, rows] = values
    return result


@dataclass(frozen=True, eq=False, kw_only=True)
class SumsOfSites(Release):
    """What the releases of DP-SEP share: a noisy sum of sites for each step."""

    noisy_sums: Annotated[FloatArray, Shape("T k")]
    damping: Annotated[FloatArray, Shape("T", positive=True)]
    floor: Annotated[FloatArray, Shape("T+1", positive=True)]
    noise_stddev: Annotated[float, POSITIVE]
    sample_rate: Annotated[float, Range(0.0, 1.0, last=True)]
    n_records: int
    max_site_norm: Annotated[float, POSITIVE]
    noise_multiplier: Annotated[float, POSITIVE]

    def _check_steps(self, sampling: str) -> None:
        """Refuse a guarantee for anything but these sums: their number, sampling and noise."""
        if np.any(self.damping > 1.0):
            raise ValueError("damping must lie in (0, 1]")
        self._check_guarantee()
        if isinstance(self.event, NonPrivateEvent):
            return
        single = None if sampling == "poisson" else self.n_records
        if self.event != run_event(self.noise_multiplier, self.sample_rate, self.n_steps, sampling, single):
            raise ValueError(f"event must be that of {self.n_steps} sums with {sampling!r} sampling, got another")
        if single is not None and self.adjacency is Adjacency.ADD_REMOVE:
            raise ValueError(f"adjacency must not be 'add_remove' with sampling={sampling!r}")
        if self.noise_stddev < self.noise_multiplier * self.max_site_norm * (1.0 - 1e-12):
            raise ValueError("noise_stddev must be noise_multiplier * max_site_norm")

    @property
    def n_steps(self) -> int:
        """Number of released sums T."""
        return int(self.noisy_sums.shape[0])

    @property
    def n_params(self) -> int:
        """Number of model parameters."""
        return len(self.names)


@dataclass(frozen=True, eq=False, kw_only=True)
class SiteRelease(SumsOfSites):
    """Everything a run of DP-SEP has published: the noisy sums of sites and the public facts needed to use them.

    q is a product of J Gaussian blocks of dimension d, q(theta_j) = N(loc_j, precision_j**-1).  Step t released
    ``noisy_sums[t]``: the sum over the step's sample of the records' clipped sites, in the coordinates
    (linear terms of every block, block_weight times svec of the precision of every block), plus Gaussian noise of
    standard deviation `noise_stddev` in each.  Centred sites have their linear terms relative to ``loc[t]``.

    **Privacy.** Safe to publish: the sums carry the noise that `event` accounts for; loc and precision are computed
    from earlier sums and public numbers.  No record, exact statistic, seed or generator state is in it.

    Parameters
    ----------
    loc : (T + 1, J, d) float64
        Mean of each block before each step, and after the last.
    precision : (T + 1, J, d (d + 1) / 2) float64
        svec of each block's raw precision, before flooring: it may be indefinite.
    noisy_sums : (T, k) float64
        k = J (d + d (d + 1) / 2).
    noise_stddev : float
        Known standard deviation of the noise in each coordinate of each sum, positive.
    block_weight : float
        Weight w of the precisions in a contribution, positive.
    damping : (T,) float64
        Rate r of each step: x <- (1 - r) x + r (x0 + sum / sample_rate) in natural parameters; gamma / N**2 if one
        record is read per step.
    sample_rate : float in (0, 1]
        Expected share of the records in a step.
    n_records : int
        The *public* number of records.
    prior_loc : (J, d) float64
    prior_scale : float
        The prior is N(prior_loc, prior_scale**2 I).
    names : tuple of J d str
        Names of the model's parameters.
    sites : {"centred", "natural"}
    sampling : {"poisson", "uniform", "permutation"}
    isotropic : bool
        Whether precisions were used as multiples of the identity.
    floor : (T + 1,) float64
        Least eigenvalue of the precisions that were used.
    max_site_norm, noise_multiplier : float
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`.
    """

    loc: Annotated[FloatArray, Shape("T+1 J d")]
    precision: Annotated[FloatArray, Shape("T+1 J triangle")]
    prior_loc: Annotated[FloatArray, Shape("J d")]
    block_weight: Annotated[float, POSITIVE]
    prior_scale: Annotated[float, POSITIVE]
    sites: str
    sampling: str
    isotropic: bool
    format_name: ClassVar[str] = "dpinfer-site-release"
    _part_name: ClassVar[str] = "site trace"

    def __post_init__(self) -> None:
        blocks, d = check_float_array("prior_loc", self.prior_loc, (None, None)).shape
        half = d * (d + 1) // 2
        sizes = {"J": blocks, "d": d, "triangle": half, "k": blocks * (d + half), "T+1": len(self.noisy_sums) + 1}
        self._check_fields(sizes)
        self._check_names(blocks * d)
        check_choice("sites", self.sites, SITES)
        check_choice("sampling", self.sampling, ("poisson", "uniform", "permutation"))
        if not isinstance(self.isotropic, (bool, np.bool_)):
            raise TypeError(f"isotropic must be a bool, got {type(self.isotropic).__name__}")
        self._check_steps(self.sampling)

    @property
    def n_blocks(self) -> int:
        """Number of independent blocks J of q."""
        return int(self.prior_loc.shape[0])

    @property
    def block_size(self) -> int:
        """Dimension d of a block."""
        return int(self.prior_loc.shape[1])

    def linear_sums(self) -> FloatArray:
        """Noisy sums of the linear terms, (T, J, d)."""
        return self.noisy_sums[:, : self.n_params].reshape(-1, self.n_blocks, self.block_size)

    def precision_sums(self) -> FloatArray:
        """Noisy sums of the precisions' svec, the weight taken off, (T, J, d (d + 1) / 2)."""
        return self.noisy_sums[:, self.n_params :].reshape(self.n_steps, self.n_blocks, -1) / self.block_weight

    def __repr__(self) -> str:
        model = self.model_spec.get("kind", "unknown model")
        blocks = f"{self.n_blocks} blocks of {self.block_size}"
        head = f"SiteRelease({model}: {self.n_steps} steps, {blocks}, {self.sites} sites)"
        return f"{head}\n  {self.guarantee}"


def late_steps(n_steps: int) -> slice:
    """Return the last quarter of the steps, over which the noise variance of a network is averaged."""
    return slice(n_steps - max(1, n_steps // 4), n_steps)


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkRelease(SumsOfSites):
    """Everything that a run of DP-SEP for a network has published.

    q is N(loc, diag(1 / precision)) over the n weights.  Step t released ``noisy_sums[t]``: over the step's sample the
    sum of ``(weights[t, 0] * linear, weights[t, 1] * precision, weights[t, 2] * noise statistic)`` of the records'
    sites, clipped, plus Gaussian noise of standard deviation `noise_stddev` in each of the 2 n + 1 coordinates.  Linear
    terms are relative to the cavity's mean, which ``loc[t]`` and ``precision[t]`` determine.

    **Privacy.** Safe to publish: the sums carry the noise that `event` accounts for; everything else is computed from
    earlier sums and public numbers.  No record, exact statistic, seed or generator state is in it.

    Parameters
    ----------
    loc : (T + 1, n) float64
        Mean of q before each step, and after the last.
    precision : (T + 1, n) float64
        Raw precision, before flooring: it may be negative.
    noise_variance : (T + 1,) float64
        Variance of a standardised response about the network, positive.
    noisy_sums : (T, 2 n + 1) float64
    weights : (T, 3) float64
        Public weights of the three parts of a contribution, positive.
    damping : (T,) float64
        Rate r of each step, in (0, 1].
    floor : (T + 1,) float64
        Least precision that was used, positive.
    noise_stddev : float
    sample_rate : float in (0, 1]
    n_records : int
        The *public* number of records.
    prior_precision : float
    replica_loc : (K, n) float64, optional
        Weights at which replicas of the run ended: runs with the same settings and noise of their own, on records that
        the released network made up (:func:`dpinfer.mechanism.run_network_dp_sep`).
    replica_noise : (K,) float64, optional
        Mean noise variance of each replica over its last quarter.
    names : tuple of n str
    max_site_norm, noise_multiplier : float
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`.
    """

    loc: Annotated[FloatArray, Shape("T+1 n")]
    precision: Annotated[FloatArray, Shape("T+1 n")]
    noise_variance: Annotated[FloatArray, Shape("T+1", positive=True)]
    weights: Annotated[FloatArray, Shape("T 3", positive=True)]
    prior_precision: Annotated[float, POSITIVE]
    replica_loc: Annotated[FloatArray, Shape("replicas weights")] = field(default_factory=lambda: np.zeros((0, 0)))
    replica_noise: Annotated[FloatArray, Shape("replicas", positive=True)] = field(default_factory=lambda: np.zeros(0))
    format_name: ClassVar[str] = "dpinfer-network-release"
    _part_name: ClassVar[str] = "network trace"

    def __post_init__(self) -> None:
        n = max(1, len(self.names))
        self._check_names(n)
        replicas = len(self.replica_noise)
        known = {"n": n, "k": 2 * n + 1, "T+1": len(self.noisy_sums) + 1}
        self._check_fields(known | {"replicas": replicas, "weights": n if replicas else 0})
        self._check_steps("poisson")

    @property
    def used_precision(self) -> FloatArray:
        """The precisions that were used: the raw ones, floored, (T + 1, n)."""
        return np.maximum(self.precision, self.floor[:, None])

    @property
    def late_noise(self) -> float:
        """Mean noise variance of a standardised response over the last quarter of the steps."""
        return float(self.noise_variance[late_steps(self.n_steps)].mean())

    def __repr__(self) -> str:
        return f"NetworkRelease({self.n_steps} steps, {self.n_params} weights)\n  {self.guarantee}"
