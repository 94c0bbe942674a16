"""The release of DP-SEP for a network: every noisy sum of sites, and the approximate posterior after each step."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.release.sites.trace import SumsOfSites


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
    names : tuple of n str
    max_site_norm, noise_multiplier : float
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`.

    Raises
    ------
    TypeError, ValueError
        If a field has the wrong type, shape or range, or if `event` is not that of these sums.
    """

    loc: FloatArray
    precision: FloatArray
    noise_variance: FloatArray
    noisy_sums: FloatArray
    weights: FloatArray
    damping: FloatArray
    floor: FloatArray
    noise_stddev: float
    sample_rate: float
    n_records: int
    prior_precision: float
    names: tuple[str, ...]
    max_site_norm: float
    noise_multiplier: float
    format_name: ClassVar[str] = "dpinfer-network-release"
    _part_name: ClassVar[str] = "network trace"

    def __post_init__(self) -> None:
        n = max(1, len(self.names))
        self._check_names(n)
        sums = self._checked_sums(2 * n + 1)
        steps = len(sums)
        shapes = {
            "noisy_sums": sums.shape,
            "loc": (steps + 1, n),
            "precision": (steps + 1, n),
            "noise_variance": (steps + 1,),
            "weights": (steps, 3),
            "damping": (steps,),
            "floor": (steps + 1,),
        }
        self._check_arrays(shapes, ("noise_variance", "weights", "floor"))
        self._check_steps(("prior_precision",), "poisson")

    @property
    def used_precision(self) -> FloatArray:
        """The precisions that were used: the raw ones, floored, (T + 1, n)."""
        return np.maximum(self.precision, self.floor[:, None])

    def __repr__(self) -> str:
        return f"NetworkRelease({self.n_steps} steps, {self.n_params} weights)\n  {self.guarantee}"
