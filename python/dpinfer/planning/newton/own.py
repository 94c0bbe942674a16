"""How wide the posterior of a private Newton run of a user's own model will be: by its own simulation, no records."""

import math

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton import NewtonPlan
from dpinfer.mechanism.newton.own_bounds import simulate_bounds, symmetric_inverse_root
from dpinfer.mechanism.newton.own_model import TALLY_SHARE
from dpinfer.mechanism.newton.own_shift import NormalPosterior, simulate_shift
from dpinfer.models import OwnModel

_SEED = 20_261_123  # a date
# Parameters from the prior, those with a simulated shift, and rows: seconds of a plan (docs/any-model.md).
_POINTS, _SHIFTED, _ROWS = 8, 3, 500


def predict_own_newton(model: OwnModel, plan: NewtonPlan, n_records: int) -> tuple[FloatArray, float]:
    """Return the factor by which privacy widens each parameter's interval, before the maps, and the squared shift.

    Parameters
    ----------
    model : OwnModel
        With a sampler.
    plan : NewtonPlan
    n_records : int
        Public.

    Returns
    -------
    widths : (n,) array
    squared_shift : float
        Shift by curvature, as in the release; both are medians over parameters drawn from the prior.

    Raises
    ------
    Exception
        Any error of the model's code on simulated records.

    Notes
    -----
    docs/derivations/any-model.md, "The posterior", with the slope known and the bounds that a run would choose there.
    """
    rng = np.random.default_rng(_SEED)
    prior = model.parameters
    measured = math.fsum(plan.shares[index] for index in plan.indices("measure"))
    noise = plan.noise_multiplier / math.sqrt(measured * (1.0 - TALLY_SHARE))
    widths: list[FloatArray] = []
    shifts: list[float] = []
    for _ in range(_POINTS):
        theta = prior.prior_mean + prior.prior_scale * rng.standard_normal(model.n_params)
        bounds = simulate_bounds(
            model, theta, prior.prior_scale, noise=noise, n_records=n_records, rng=rng, n_rows=_ROWS
        )
        white = symmetric_inverse_root(bounds.information)
        stddev = noise * (1.0 + bounds.share) * bounds.clip / n_records
        variance = bounds.variance_ratio / (bounds.slope * n_records) + (stddev / bounds.slope) ** 2
        private, plain = (_spread(white, 1.0 / own) for own in (variance, 1.0 / n_records))
        widths.append(private / plain)
        if len(shifts) < _SHIFTED:
            one = np.eye(len(white))
            normal = NormalPosterior.of(bounds.slope * one, bounds.slope**2 * variance * one, white @ white.T)
            shifts.append(simulate_shift(model, theta, theta, white * prior.prior_scale, bounds, normal, rng))
    shift = float(np.median(shifts))
    return np.median(widths, axis=0) * math.sqrt(1.0 + shift), shift


def _spread(white: FloatArray, precision: float) -> FloatArray:
    """Return standard deviations, in prior units, of parameters measured alike in all whitened directions."""
    inner = precision * np.eye(len(white)) + white @ white.T
    return np.asarray(np.sqrt(np.diag(white.T @ np.linalg.solve(inner, white))))
