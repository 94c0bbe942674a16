"""Public settings of a run of (DP-)SEP: starts, clipping norms, damping.  None of them depends on a record.

**Privacy.** Reads no records.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.accounting import PrivacyPlan
from dpinfer.mechanism.sums.sites import site_prior
from dpinfer.models import SiteModel

__all__ = ["Damping", "damping_rates", "start_loc", "typical_site_norm"]

FloatArray = npt.NDArray[np.float64]
Damping: TypeAlias = float | str | npt.ArrayLike | Callable[[int], float]

_REFERENCE_SEED = 20_230
_REFERENCE_RECORDS = 64 * 256
# Rates add up to so much by default: less and the mean has not arrived when the steps count, more and its excursions
# are wide enough to bend the drift (docs/dp-sep.md).
_AUTO_TOTAL_MIXTURE, _AUTO_TOTAL_REGRESSION = 8.0, 11.0
_AUTO_MOST = 0.3
_START_SPREAD = 0.6


def typical_site_norm(model: SiteModel, block_weight: float, quantile: float = 0.9) -> float:
    """Return a quantile of the norm of centred contributions among the records that the model itself expects.

    **Privacy.** Reads no records: parameters are drawn from the prior, records from the model, with a fixed seed.

    Parameters
    ----------
    model : SiteModel
    block_weight : float
        Weight of the precisions in a contribution, positive.
    quantile : float in (0, 1)

    Returns
    -------
    float

    Examples
    --------
    >>> from dpinfer.models import GaussianMixture
    >>> round(typical_site_norm(GaussianMixture(4, 4, covariance=0.25), 0.1, 0.5), 1)
    3.7
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
        given = check_float_array("start", start)
        if given.shape not in ((blocks, d), (blocks * d,)):
            raise ValueError(f"start must have shape ({blocks}, {d}), got {given.shape}")
        return given.reshape(blocks, d).copy()
    if model.exchangeable_blocks:
        return np.asarray(prior.loc + _START_SPREAD * model.block_scale * draws(blocks * d).reshape(blocks, d))
    return prior.loc.copy()


def damping_rates(model: SiteModel, damping: Damping, plan: PrivacyPlan) -> FloatArray:
    """Return the rate r of each step, (T,): the damping itself, or gamma / N**2 where a step reads one record."""
    steps = plan.n_steps
    single = plan.n_records
    if isinstance(damping, str):
        check_choice("damping", damping, ("auto",))
        if single is not None:
            return np.full(steps, 1.0 / single)
        total = _AUTO_TOTAL_MIXTURE if model.exchangeable_blocks else _AUTO_TOTAL_REGRESSION
        return np.full(steps, min(_AUTO_MOST, total / steps))
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
