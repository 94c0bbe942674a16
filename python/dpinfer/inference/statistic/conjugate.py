"""From a noisy sufficient statistic of a conjugate model to the posterior of its parameters."""

import numpy as np
import numpy.typing as npt

from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.accounting import PureEvent
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import ThetaDistribution
from dpinfer.inference.request import PlannedRelease, StatisticRequest, model_of
from dpinfer.inference.statistic.counts import categorical_theta, success_theta, success_theta_of_some_trials
from dpinfer.inference.statistic.noise_laws import LaplaceLaw, LaplaceSharesLaw, NoiseLaw, TableLaw
from dpinfer.inference.statistic.waiting import rate_theta
from dpinfer.models import BetaBernoulli, BetaBinomial, ConjugateModel, DirichletCategorical, GammaExponential
from dpinfer.release import CountRelease, StatisticRelease

# Slices of the law of an unknown number of records.
_NUMBERS = 40


def statistic_posterior(
    model: ConjugateModel,
    # (s,) float64: the released sums: successes; counts of all M categories; or the sum of min(x, clip), in units of
    # x
    noisy: npt.ArrayLike,
    law: NoiseLaw,  # law of the noise in each number, in the same units
    *,
    n_records: int,  # public
    clip: float | None = None,  # for waiting times only
) -> ThetaDistribution:
    """Return the exact posterior of theta given one noisy sum over the records.

    Raises TypeError or ValueError if the model is not conjugate, or a number is out of range.

    Notes
    -----
    p(theta | noisy) is proportional to p(theta) sum_s p(s | theta) P(noisy - s): summed over every count s for discrete
    s, by a Fourier integral otherwise.  docs/derivations/one-shot-statistic.md.
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


def check_statistic_request(request: StatisticRequest, planned: PlannedRelease) -> None:
    """Refuse what no one-shot release answers.

    Raises ValueError if the request or the model does not fit.
    """
    if planned.model is None:
        raise ValueError(
            "release must be that of run_statistic: noisy statistics of a published baseline have their posterior from "
            "dpinfer.lab.baselines.gibbs_sampler_posterior"
        )
    if not isinstance(planned.model, ConjugateModel):
        raise ValueError(f"model must be a conjugate model, got {type(planned.model).__name__}")


def one_shot_posterior(
    release: StatisticRelease,  # from :func:`dpinfer.run_statistic`
    request: StatisticRequest,
) -> Posterior:
    """Return the exact posterior of a one-shot release."""
    model = model_of(release, request.model)
    if not isinstance(model, ConjugateModel):
        raise ValueError("release must name its conjugate model, or model must be given")
    law = _law_of(release)
    distribution: ThetaDistribution
    if "noisy_n_records" in release.settings:
        if not isinstance(model, (BetaBernoulli, BetaBinomial)):
            raise ValueError("model must be one of successes where the number of records was released with noise")
        trials = model.trials * _likely_numbers(release)
        noisy = float(release.noisy_statistics[0])
        distribution = success_theta_of_some_trials(noisy, law, trials=trials, a=model.a, b=model.b)
    else:
        distribution = statistic_posterior(
            model, release.noisy_statistics, law, n_records=release.n_records, clip=release.settings.get("clip")
        )
    return Posterior(
        names=model.names,
        method="statistic",
        prior="model",
        distribution=distribution,
        model=model,
        guarantee=release.guarantee,
    )


def _law_of(release: StatisticRelease) -> NoiseLaw:
    """Return the law of the noise in units of the statistics; sites may have added more shares than would suffice."""
    if "noise" in release.settings:
        return TableLaw(tuple(int(weight) for weight in release.settings["noise"]["weights"]))
    scale = float(release.laplace_scale[0])
    silos = release.settings.get("silos")
    if silos is None:
        return LaplaceLaw(scale)
    return LaplaceSharesLaw(scale, silos["present"][0] / silos["noise_shares"])


def _likely_numbers(release: StatisticRelease) -> npt.NDArray[np.int64]:
    """Return numbers of records that are alike likely given the noisy one: the middles of as many slices."""
    scale = check_interval("settings['n_records_scale']", release.settings["n_records_scale"], 0.0)
    count = CountRelease(
        noisy_count=release.settings["noisy_n_records"],
        laplace_scale=scale,
        event=PureEvent(1.0 / scale, release.adjacency.value),
        adjacency=release.adjacency,
    )
    return count.quantile((np.arange(_NUMBERS) + 0.5) / _NUMBERS)
