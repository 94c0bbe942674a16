"""Linear combinations of parameters: quantiles and Monte Carlo errors, exact given the draws of a chain."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.inference.posterior.causes import causes
from dpinfer.inference.posterior.mixture import mixture_quantile
from dpinfer.inference.posterior.monte_carlo import effective_draws
from dpinfer.inference.posterior.theta import DrawnTheta

if TYPE_CHECKING:
    from dpinfer.inference.posterior.posterior import Posterior

_DRAWS, _SEED = 16_384, 0  # Monte Carlo error below 1% of a standard deviation; the seed is arbitrary
_FEWEST = 4  # fewer draws have no batches


@dataclass(frozen=True)
class Combined:
    """The posterior of k linear combinations.

    Parameters
    ----------
    quantiles : (m, k) array
    mcse, ess : (k,) arrays
        Monte Carlo error of the mean, and the independent draws that the quantiles rest on.
    privacy, prior : (k,) arrays
        Shares of the variance due to the privacy noise, and to the prior alone; NaN if the posterior does not have
        them.
    """

    quantiles: FloatArray
    mcse: FloatArray
    ess: FloatArray
    privacy: FloatArray
    prior: FloatArray


def combine(posterior: "Posterior", rows: FloatArray, levels: FloatArray) -> Combined:
    """Return quantiles of linear combinations of the unconstrained parameters.

    Parameters
    ----------
    rows : (k, n) array
        The weights of the parameters in each combination.
    levels : (m,) array in (0, 1)

    Notes
    -----
    Given a draw of the chain the parameters are normal, and so is a combination.  A posterior without a chain is drawn
    from, 16384 times with a fixed seed.
    """
    distribution = posterior.distribution
    _, privacy, prior = causes(posterior, rows)
    if not isinstance(distribution, DrawnTheta) or len(distribution.location) < _FEWEST:
        draws = posterior.sample(_DRAWS, seed=_SEED, space="unconstrained") @ rows.T
        ess = min(float(_DRAWS), float(posterior.monte_carlo_error(levels).effective_draws.min()))
        ends = np.quantile(draws, levels, axis=0)
        return Combined(ends, draws.std(axis=0) / np.sqrt(ess), np.full(len(rows), ess), privacy, prior)
    mean, variance = distribution.combined(rows)
    weight = np.full(len(mean), 1.0 / len(mean))
    ends = np.array([mixture_quantile(weight, *pair, levels) for pair in zip(mean.T, variance.T, strict=True)])
    worth = effective_draws(mean)
    return Combined(ends.T, mean.std(axis=0) / np.sqrt(worth), worth, privacy, prior)
