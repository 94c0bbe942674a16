"""From a noisy sufficient statistic of a conjugate model to the distribution of its parameters."""

import numpy as np
import numpy.typing as npt

from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.inference.statistic.counts import categorical_theta, success_theta
from dpinfer.inference.statistic.noise_laws import NoiseLaw
from dpinfer.inference.statistic.tabulated import TabulatedTheta
from dpinfer.inference.statistic.waiting import rate_theta
from dpinfer.models import BetaBernoulli, BetaBinomial, ConjugateModel, DirichletCategorical, GammaExponential

__all__ = ["statistic_posterior"]


def statistic_posterior(
    model: ConjugateModel, noisy: npt.ArrayLike, law: NoiseLaw, *, n_records: int, clip: float | None = None
) -> TabulatedTheta:
    """Return the exact posterior of theta given one noisy sum over the records.

    **Privacy.** Post-processing of a release; reads no records.

    Parameters
    ----------
    model : BetaBernoulli, BetaBinomial, DirichletCategorical or GammaExponential
    noisy : (s,) float64
        The released sums: successes; counts of all M categories; or the sum of min(x, clip), in units of x.
    law : NoiseLaw
        Of the noise in each of them, in the same units.
    n_records : int
        Public.
    clip : float, optional
        For waiting times only.

    Raises
    ------
    TypeError, ValueError
        If the model is none of these, or a number is out of range.

    Notes
    -----
    p(theta | noisy) is proportional to p(theta) sum_s p(s | theta) P(noisy - s): summed over every count s where s is
    discrete, by a Fourier integral where it is not.  docs/derivations/one-shot-statistic.md.
    """
    n_records = check_integer("n_records", n_records, 1, 2**31)
    if isinstance(model, (BetaBernoulli, BetaBinomial)):
        (count,) = check_float_array("noisy", noisy, (1,))
        return success_theta(float(count), law, trials=n_records * model.trials, a=model.a, b=model.b)
    if isinstance(model, DirichletCategorical):
        alpha = np.asarray(model.concentration, dtype=np.float64)
        counts = check_float_array("noisy", noisy, (alpha.size,))
        sticks = model.bijector == "stick_breaking"
        return categorical_theta(counts, law, n_records=n_records, concentration=alpha, sticks=sticks)
    if isinstance(model, GammaExponential):
        (total,) = check_float_array("noisy", noisy, (1,))
        bound = check_interval("clip", clip, 0.0)
        return rate_theta(float(total), law, model=model, n_records=n_records, clip=bound)
    raise TypeError(f"model must be a conjugate model with a sufficient statistic, got {type(model).__name__}")
