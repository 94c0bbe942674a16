"""From a noisy sufficient statistic of a conjugate model to the posterior of its parameters.

That of a rate, given a noisy sum of clipped waiting times, is one-dimensional, by characteristic functions.
"""

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.accounting import PureEvent
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import (
    TabulatedTheta,
    ThetaDistribution,
    VarianceParts,
    mixture_of_table,
    visible_range,
)
from dpinfer.inference.request import PlannedRelease, StatisticRequest, model_of
from dpinfer.inference.statistic.counts import categorical_theta, success_theta
from dpinfer.inference.statistic.noise_laws import LaplaceLaw, LaplaceSharesLaw, NoiseLaw, TableLaw
from dpinfer.models import BetaBernoulli, BetaBinomial, ConjugateModel, DirichletCategorical, GammaExponential
from dpinfer.models.base import softplus, softplus_inverse
from dpinfer.release import CountRelease, StatisticRelease

_GRID = 301  # rates on the final grid
_COARSE = 101  # rates on the grids that locate the posterior
_MOST_FREQUENCIES = 2**12  # of the Fourier integral, which stops earlier when the transform is negligible
_LOG_VISIBLE = 34.0  # exp(-34) is 2e-15: below double precision
_REACH = 14.0  # standard deviations: exp(-14**2 / 2) is 3e-43
_SMALLEST_TRANSFORM = 1e-17  # below double precision relative to its start, 1


def clipped_moments(rate: FloatArray, clip: float) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of min(x, clip), x ~ Exponential(rate)."""
    product = rate * clip
    tail = np.exp(-product)
    mean = -np.expm1(-product) / rate
    second = 2.0 * (-np.expm1(-product) - product * tail) / rate**2
    return mean, np.maximum(second - mean**2, 0.0)


def clipped_sum_density(
    total: float,  # in units of the waiting times
    law: NoiseLaw,  # of the noise, in the same units; taken as continuous
    *,
    rate: FloatArray,  # (m,) float64: positive
    n_records: int,
    clip: float,  # each waiting time enters as min(x, clip)
) -> FloatArray:
    """Return the density at `total` of a sum of `n_records` clipped waiting times plus noise, for every rate, (m,).

    Its error is below 1e-9 of the largest with many records, below 2e-3 with a single one and little noise.

    The characteristic function of min(x, c) is ``r (1 - e^{-(r - i t) c}) / (r - i t) + e^{-(r - i t) c}``.  Its power
    times that of the noise is integrated by the trapezoidal rule, whose period exceeds the range of the sum, so that
    aliasing is below exp(-40).
    """
    mean, variance = clipped_moments(rate, clip)
    distance = np.abs(total - n_records * mean)
    near = distance <= _REACH * np.sqrt(n_records * variance) + law.reach(40.0) + clip
    density = np.zeros(rate.size)
    if near.any():
        density[near] = _fourier(total, law, rate[near], n_records, clip)
    return density


def _fourier(total: float, law: NoiseLaw, rate: FloatArray, n_records: int, clip: float) -> FloatArray:
    mean, variance = clipped_moments(rate, clip)
    spread = _REACH * np.sqrt(n_records * variance.max()) + law.reach(40.0) + clip
    spacing = 2.0 * np.pi / (2.0 * (spread + float(np.max(np.abs(total - n_records * mean)))))
    density = np.zeros(rate.size)
    start, block = 0, 64
    while start < _MOST_FREQUENCIES:
        frequency = spacing * np.arange(start, start + block)
        factor = rate[:, None] - 1j * frequency
        rest = np.exp(-factor * clip)
        transform = (rate[:, None] * (1.0 - rest) / factor + rest) * np.exp(-1j * frequency * mean[:, None])
        # |transform| <= 1; its power is taken in logarithms, where it does not underflow on the way.
        with np.errstate(divide="ignore"):
            power = np.exp(n_records * np.log(transform)) * law.transform(frequency)
        values = np.real(power * np.exp(-1j * frequency * (total - n_records * mean)[:, None]))
        if start == 0:
            values[:, 0] *= 0.5
        density += values.sum(axis=1)
        if np.max(np.abs(power[:, -16:])) < _SMALLEST_TRANSFORM:
            break
        start, block = start + block, min(2 * block, 1024)
    return np.asarray(np.maximum(density * spacing / np.pi, 0.0))


def rate_theta(noisy: float, law: NoiseLaw, *, model: GammaExponential, n_records: int, clip: float) -> TabulatedTheta:
    """Return the posterior of theta, rate = softplus(theta).

    `noisy`: released sum of min(x, clip), in units of x.  `law`: of its noise, in the same units.
    """
    total = float(np.clip(noisy, 0.0, n_records * clip))
    low, high = _plausible_rates(total, law, model=model, n_records=n_records, clip=clip)
    for size in (_COARSE, _COARSE, _GRID):
        theta = np.linspace(softplus_inverse(low), softplus_inverse(high), size)
        rate = softplus(theta)
        density = clipped_sum_density(total, law, rate=rate, n_records=n_records, clip=clip)
        with np.errstate(divide="ignore"):
            log_density = np.log(density) + model.prior.log_density(theta[:, None])
        low, high = rate[list(visible_range(log_density, _LOG_VISIBLE))].tolist()
    table = mixture_of_table(theta, np.maximum(log_density, log_density.max() - 700.0))
    return TabulatedTheta(table, _parts(table.variances, table.means, law, n_records=n_records, clip=clip))


def _plausible_rates(
    total: float, law: NoiseLaw, *, model: GammaExponential, n_records: int, clip: float
) -> tuple[float, float]:
    """Return the range of rates where a normal approximation of the sum's law leaves any probability."""
    centre = model.shape / model.rate
    rate = centre * np.exp(np.linspace(-60.0, 60.0, 4801))
    mean, variance = clipped_moments(rate, clip)
    distance = np.maximum(np.abs(total - n_records * mean) - law.reach(40.0), 0.0)
    log_density = -0.125 * distance**2 / np.maximum(n_records * variance + 1e-6 * clip**2, 1e-300)
    log_density += 0.5 * model.shape * np.log(rate) - 0.5 * model.rate * rate
    first, last = visible_range(log_density, _LOG_VISIBLE)
    return float(rate[first]), float(rate[last])


def _parts(variance: FloatArray, mean: FloatArray, law: NoiseLaw, *, n_records: int, clip: float) -> VarianceParts:
    """Split the variance as the linearised model does: by the variances of the sum and of its noise."""
    rate = softplus(mean)
    _, single = clipped_moments(rate, clip)
    data = variance * (n_records * single / (n_records * single + law.variance))
    return VarianceParts(data, variance - data, np.zeros_like(variance))


_NUMBERS = 40  # slices of the law of an unknown number of records: tolerance


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
        distribution = success_theta(noisy, law, trials=trials, a=model.a, b=model.b)
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
