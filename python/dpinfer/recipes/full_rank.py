"""The full-rank normal guide of DPVI: natural steps along one released gradient, and where to start, by simulation.

**Privacy.** Functions of public settings, of simulated records and of earlier releases.
"""

from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import NEGLIGIBLE, FloatArray
from dpinfer.models import OwnModel, tuning
from dpinfer.models.base import softplus

_POINTS, _ROWS, _SEED = 32, 500, 513  # draws of the prior, rows, arbitrary seed (docs/derivations/any-model.md)


@dataclass(frozen=True)
class GuideStart:
    """Results of simulated records before a run."""

    max_grad_norm: float  # 98% quantile of the preconditioned gradient's norm
    grad_scale: FloatArray  # (n,)
    # (n + n (n + 1) / 2,) array: the guide around the prior's mean, with the covariance that N records would leave
    params: FloatArray


def pack_guide(loc: FloatArray, factor: FloatArray) -> FloatArray:
    """Return location (n,) and lower triangle (n, n) of a guide N(loc, L L') as one vector, row by row."""
    return np.concatenate((loc, factor[np.tril_indices(loc.size)]))


def unpack_guide(params: FloatArray, n: int) -> tuple[FloatArray, FloatArray]:
    """Return location (n,) and lower triangle (n, n) of a packed guide."""
    factor = np.zeros((n, n))
    factor[np.tril_indices(n)] = params[n:]
    return params[:n], factor


def full_rank_start(loc: FloatArray, raw_scale: FloatArray) -> FloatArray:
    """Return the packed guide whose parameters are independent."""
    return pack_guide(loc, np.diag(softplus(raw_scale)))


def simulated_start(model: OwnModel, n_records: int) -> GuideStart:
    """Choose clipping norm, preconditioner and start, of a model with a sampler, by made-up records at prior draws."""
    prior, rng = model.parameters, np.random.default_rng(_SEED)
    scores_of = []
    for _ in range(_POINTS):
        theta = prior.prior_mean + prior.prior_scale * rng.standard_normal(model.n_params)
        X = model.made_up_features(_ROWS, rng)
        words = rng.integers(0, 2**64, (_ROWS, model.n_words), dtype=np.uint64)
        with np.errstate(all="ignore"):
            scores = model.scores(X, model.draw_responses(theta, X, words), theta)
        scores_of.append(scores[np.all(np.isfinite(scores), axis=1)])
    squares = [np.maximum(np.mean(scores**2, axis=0), NEGLIGIBLE) for scores in scores_of if len(scores)]
    information = np.median(squares, axis=0)
    scaled = [scores / np.sqrt(size) for scores, size in zip([s for s in scores_of if len(s)], squares, strict=True)]
    correlation = np.mean([part.T @ part / len(part) for part in scaled], axis=0)
    root = np.sqrt(information)
    precision = n_records * correlation * np.outer(root, root) + np.diag(prior.prior_scale**-2.0)
    norms = np.linalg.norm(np.concatenate(scores_of) / root, axis=1)
    factor = np.linalg.cholesky(np.linalg.inv(precision))
    return GuideStart(
        float(np.quantile(norms, tuning.FULL_RANK.clip_level)), 1.0 / root, pack_guide(prior.prior_mean, factor)
    )


def moved_guide(
    params: FloatArray,  # (n + n (n + 1) / 2,) array
    eta: FloatArray,  # (n,): the step's public draw
    gradient: FloatArray,  # (n,): of minus the log joint density of all records, with its noise
    stddev: FloatArray,  # (n,): of that noise
    n_steps: int,  # of the run
) -> FloatArray:
    """Return the guide after a natural step along the gradient at loc + L eta.

    With w = L' gradient the natural gradient of the location is L w, and that of L, in K = L^-1 dL, is the lower
    triangle of the symmetric part of w eta' less the identity, its diagonal halved: E[w eta'] = L' E[Hessian] L
    (Bonnet, Price).  Rates are such that noise leaves a stationary variance of at most 1/2 in units of q for the
    location, and a tenth for K, summed over their entries: docs/derivations/any-model.md.
    """
    n = eta.size
    loc, factor = unpack_guide(params, n)
    noise = float(np.sum((factor * stddev[:, None]) ** 2))
    rate = min(tuning.FULL_RANK.largest_rate, tuning.FULL_RANK.mixing_times / n_steps, 1.0 / max(noise, NEGLIGIBLE))
    turn_rate = min(rate, tuning.FULL_RANK.turn_variance / (n * (n + noise)))
    white = factor.T @ gradient
    step = rate * white
    step *= min(1.0, tuning.FULL_RANK.longest / max(float(np.linalg.norm(step)), NEGLIGIBLE))
    product = np.outer(white, eta)
    excess = 0.5 * (product + product.T) - np.eye(n)
    turn = turn_rate * (np.tril(excess, -1) + 0.5 * np.diag(np.diag(excess)))
    turn *= min(1.0, tuning.FULL_RANK.longest_turn / max(float(np.linalg.norm(turn)), NEGLIGIBLE))
    # A product of lower triangles with positive diagonals is one: the turn is shorter than the identity.
    return pack_guide(loc - factor @ step, factor @ (np.eye(n) - turn))
