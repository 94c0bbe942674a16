"""Public settings of a run of (DP-)SEP: starts, clipping norms, damping.  None of them depends on a record.

**Privacy.** Reads no records.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.accounting import PrivacyPlan
from dpinfer.mechanism.sites import tuning
from dpinfer.mechanism.sums.sites import site_prior
from dpinfer.models import SiteModel

Damping: TypeAlias = float | str | npt.ArrayLike | Callable[[int], float]

_REFERENCE_SEED = 20_230  # an arbitrary seed
_REFERENCE_RECORDS = 64 * 256  # simulated sites


class SiteOptions(TypedDict, total=False):
    """Fields of :class:`SiteArguments` as keyword arguments."""

    damping: Damping
    max_site_norm: float | str
    sites: str
    sampling: str | None
    block_weight: float | None
    isotropic: bool | None
    floor: float
    trust_radius: float | None
    annealing: tuple[float, float] | str | None
    start: npt.ArrayLike | None
    n_nodes: int


@dataclass(frozen=True, eq=False, kw_only=True)
class SiteArguments:
    """Arguments of :func:`dpinfer.run_dp_sep`.

    They are checked, together and against model and plan, when the run is called, before anything is spent.

    **Privacy.** Public; holds no records.  None of them may depend on the records.

    Parameters
    ----------
    damping : "auto", float, (T,) array or callable of the step
        For Poisson sampling the rate r in (0, 1] of x <- (1 - r) x + r (x0 + sum / sample_rate); "auto" is
        min(0.3, 8 / T) for a mixture and min(0.3, 11 / T) for a regression.  For one record per step the published
        gamma in (0, N], r = gamma / N**2; "auto" is N, the standard update of Li et al. (2015).
    max_site_norm : "auto" or float in [1e-30, 1e30]
        Clipping norm C of a contribution.  "auto" (default), for centred sites: a quantile of its norm among records
        that the model expects, 0.6 for a mixture and 0.99 for a regression.
    sites : {"centred", "natural"}
        Whether linear terms are relative to the released mean of q (default), so that noise in the precision does not
        enter the mean, or natural parameters (the paper).
    sampling : {"poisson", "uniform", "permutation"}, optional
        Must agree with the plan's, which is the default.
    block_weight : float, optional
        Weight of the precisions in a contribution; 0.1 for a mixture, 1 for a regression and for natural sites.
    isotropic : bool, optional
        Whether precisions are projected to multiples of the identity before they are used (post-processing); by
        default for a mixture whose covariances are such multiples.
    floor : float
        Precisions are used with eigenvalues of at least the prior's plus so many standard deviations of their known
        noise, at least 0.  The raw ones are kept.
    trust_radius : float, optional
        Largest move of a block's mean in one step (centred sites); none by default.
    annealing : "auto", (temperature, share) or None
        For a mixture: multiply the covariances by a factor that falls geometrically from `temperature`, at least 1, to
        1 over the first `share` of the steps, in [0, 1].  A public schedule: it costs nothing.  "auto" is (8, 0.6) for
        a mixture whose start is not given, and None otherwise.
    start : (J, d) array, optional
        Means at which to start; must not depend on the records.  By default the prior's mean, for a mixture normal
        draws near it.
    n_nodes : int
        Gauss-Hermite nodes of the logistic evidence.

    Examples
    --------
    >>> SiteArguments(damping=0.1).max_site_norm
    'auto'
    """

    damping: Damping = "auto"
    max_site_norm: float | str = "auto"
    sites: str = "centred"
    sampling: str | None = None
    block_weight: float | None = None
    isotropic: bool | None = None
    floor: float = 1.0
    trust_radius: float | None = None
    annealing: tuple[float, float] | str | None = "auto"
    start: npt.ArrayLike | None = None
    n_nodes: int = 20


def typical_site_norm(model: SiteModel, block_weight: float, quantile: float = 0.9) -> float:
    """Return a quantile of the norm of centred contributions among the records that the model itself expects.

    In a contribution the precisions have the weight `block_weight`, which is positive.

    **Privacy.** Reads no records: parameters are drawn from the prior, records from the model, with a fixed seed.
    """
    check_interval("quantile", quantile, 0.0, 1.0)
    rng = np.random.default_rng(_REFERENCE_SEED)
    return model.typical_site_norm(block_weight, quantile, _REFERENCE_RECORDS, rng)


def start_loc(model: SiteModel, start: npt.ArrayLike | None, draws: Callable[[int], FloatArray]) -> FloatArray:
    """Return the means at which a run starts, (J, d): those given, or the prior's mean.

    For a mixture the prior's mean is a symmetric point, which no update would leave: components start around it, at a
    public 0.6 of their standard deviation.
    """
    prior = site_prior(model)
    blocks, d = prior.loc.shape
    if start is not None:
        array = check_float_array("start", start)
        if array.shape not in ((blocks, d), (blocks * d,)):
            raise ValueError(f"start must have shape ({blocks}, {d}), got {array.shape}")
        return array.reshape(blocks, d).copy()
    if model.exchangeable_blocks:
        spread = tuning.TUNING.start_spread * model.block_scale
        return np.asarray(prior.loc + spread * draws(blocks * d).reshape(blocks, d))
    return prior.loc.copy()


def damping_rates(model: SiteModel, damping: Damping, plan: PrivacyPlan) -> FloatArray:
    """Return the rate r of each step, (T,): the damping itself, or gamma / N**2 where a step reads one record."""
    steps = plan.n_steps
    single = plan.n_records
    if isinstance(damping, str):
        check_choice("damping", damping, ("auto",))
        if single is not None:
            return np.full(steps, 1.0 / single)
        total = tuning.TUNING.mixture_total if model.exchangeable_blocks else tuning.TUNING.regression_total
        return np.full(steps, min(tuning.TUNING.largest_rate, total / steps))
    if callable(damping):
        damping = [damping(step) for step in range(steps)]
    values = check_float_array("damping", damping)
    values = values[0] if np.ndim(damping) == 0 else values
    if values.shape not in ((), (steps,)):
        raise ValueError(f"damping must be a number or have shape ({steps},), got {values.shape}")
    most = 1.0 if single is None else float(single)
    if not np.all((values > 0.0) & (values <= most)):
        kind = "a rate r" if single is None else "gamma"
        raise ValueError(f"damping must be {kind} in (0, {most:g}] with sampling={plan.sampling!r}")
    rates = np.full(steps, values) if values.ndim == 0 else values
    return np.asarray(rates if single is None else rates / float(check_integer("n_records", single, 1)) ** 2)
