"""How wide the posterior of a one-shot statistic will be, before any record is read."""

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.accounting import Adjacency
from dpinfer.mechanism.statistic import clipped_information, default_clip
from dpinfer.models import BetaBernoulli, BetaBinomial, ConjugateModel, DirichletCategorical, GammaExponential

_PRIOR_DRAWS = 256  # the median over the prior errs by 1.25 / sqrt(256), 8% of its spread
_SEED = 20_261_122  # a date


def predict_statistic(
    model: ConjugateModel, *, epsilon: float, n_records: int, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> FloatArray:
    """Return the factor by which a one-shot statistic's noise widens intervals, at parameters from the prior, (m,).

    The prior counts as pseudo-records; noise of variance v acts like an increase of the sampling variance of a mean by
    v.  `n_records` is public.

    Raises TypeError if the model has no such statistic: :func:`dpinfer.run_statistic` does not take it.
    """
    truth = model.sample_prior(_PRIOR_DRAWS, np.random.default_rng(_SEED))
    if isinstance(model, GammaExponential):
        clip = default_clip(model, epsilon=epsilon, n_records=n_records)
        information = clipped_information(truth[:, 0], clip, epsilon=epsilon, n_records=n_records)
        return np.asarray(np.sqrt((n_records + model.shape) / (information + model.shape)))
    if isinstance(model, DirichletCategorical):
        trials, known = 1, float(np.sum(model.concentration))
    elif isinstance(model, (BetaBernoulli, BetaBinomial)):
        trials, known = model.trials, model.a + model.b
    else:
        raise TypeError(f"model must be a conjugate model with a sufficient statistic, got {type(model).__name__}")
    twice = adjacency is Adjacency.REPLACE_ONE and isinstance(model, DirichletCategorical)
    noise = 2.0 * ((2.0 if twice else float(trials)) / epsilon) ** 2
    spread = truth * (1.0 - truth)
    size = n_records * trials
    # In pseudo-records: size p(1 - p) is the variance of the exact sum.
    information = size * spread * size / (size * spread + noise)
    return np.asarray(np.sqrt((size + known) / (information + known)).ravel())
