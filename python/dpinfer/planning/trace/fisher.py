"""Prediction for the recipe "tied": a closed form, since its steps make all parameters alike."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.scales.tied import fisher_burn_in
from dpinfer.models import LinearRegression, Model, expected_gradients
from dpinfer.planning.trace.drift import inflated_noise, window_moments
from dpinfer.recipes import FisherScaling, natural_scaling

_PRIOR_DRAWS = 8  # draws of the prior in the average: the plan's time is proportional to them
_SEED = 20_261_121  # a date


@dataclass(frozen=True)
class Prediction:
    """Expected results of a run, per parameter on the unconstrained space, (n,) arrays.

    Parameters
    ----------
    width90 : (n,) array
        Expected width of the 90% interval.
    reference_width90 : (n,) array
        The same without privacy.
    mixing_time : (n,) array
        Steps in which the distance of loc to its optimum falls by a factor e, at the largest learning rate.
    clipped_share : float
        Share of the records whose gradient is clipped.
    spread : (n,) array
        Standard deviation of the logarithm of the widening over the simulations; nan for a formula.
    typical_stderr : float
        Its Monte Carlo error; nan for a formula.
    coverage90 : float
        Share of the simulated parameters inside their 90% intervals; nan without simulations.
    coverage_stderr : float
        Its Monte Carlo error; nan with fewer than two simulated runs.
    score90 : float
        Mean interval score of the 90% intervals (Gneiting and Raftery 2007, eq. 43), in widths without privacy: the
        width, and 20 times the distance of a truth outside; nan without simulations.
    typical_widening : float
        Widening of a run's median parameter: the median over the simulated runs, or over the parameters.
    """

    width90: FloatArray
    reference_width90: FloatArray
    mixing_time: FloatArray
    clipped_share: float
    spread: FloatArray
    typical_widening: float
    typical_stderr: float = math.nan
    coverage90: float = math.nan
    coverage_stderr: float = math.nan
    score90: float = math.nan

    @property
    def widening(self) -> FloatArray:
        """By which factor privacy widens the 90% intervals, (n,)."""
        return self.width90 / self.reference_width90


def predict_tied(
    model: Model,
    *,
    n_records: int,
    sample_rate: float,
    n_steps: int,
    noise_multiplier: float,
    max_grad_norm: float,
    information: FloatArray | None = None,
) -> Prediction:
    """Predict the intervals of the recipe "tied", averaged over the model's prior.

    **Privacy.** Public: the model and public numbers only.

    Parameters
    ----------
    model : Model
        A model with an expected information.
    n_records : int
    sample_rate, noise_multiplier, max_grad_norm : float
    n_steps : int
    information : (n,) array, optional
        Information of one record about each parameter, if known better than the model's at its prior.

    Notes
    -----
    In units of 1 / sqrt(N I) all parameters follow ``x' = x - r_t (c x + q eta)``, ``q = sigma C / (kappa sqrt(N))``;
    docs/derivations/planner.md.
    """
    scaling = natural_scaling(model, n_records, sample_rate, n_steps, noise_multiplier * max_grad_norm)
    rates = np.array([scaling.rate(step) for step in range(n_steps)])
    first = math.floor(fisher_burn_in(model) * n_steps)
    subsampling = (1.0 - sample_rate) * sample_rate * n_records / (noise_multiplier * max_grad_norm) ** 2
    q = noise_multiplier * max_grad_norm / (sample_rate * math.sqrt(n_records)) * math.sqrt(1.0 + subsampling)
    prior_mean, prior_stddev = model.prior_moments()
    if getattr(model, "pivotal", False):
        draws = prior_mean[None, :]
    else:
        generator: Any = model
        draws = generator.unconstrain(generator.sample_prior(_PRIOR_DRAWS, np.random.default_rng(_SEED)))
    rows = []
    for theta in draws:
        own: Any = model
        about = np.maximum(own.information(theta), 1e-12) if information is None else information
        rows.append(_relative(model, scaling, theta, rates, first, q, about, prior_stddev, max_grad_norm))
    widening, reference, contraction, clipped = (np.array(part) for part in zip(*rows, strict=True))
    reference_width = 2.0 * 1.6448536269514722 * np.median(reference, axis=0)
    return Prediction(
        width90=reference_width * np.median(widening, axis=0),
        reference_width90=reference_width,
        mixing_time=1.0 / (rates[0] * np.median(contraction, axis=0)),
        clipped_share=float(np.median(clipped)),
        spread=np.full(model.n_params, np.nan),
        typical_widening=float(np.median(widening)),
    )


def _relative(
    model: Model,
    scaling: FisherScaling,
    theta: FloatArray,
    rates: FloatArray,
    first: int,
    q: float,
    information: FloatArray,
    prior_stddev: FloatArray,
    max_grad_norm: float,
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Return widening, standard deviation without privacy, contraction of a step over its rate, and clipped share."""
    n_records, n = scaling.n_records, model.n_params
    expected = expected_gradients(model, theta, max_grad_norm=max_grad_norm, raw_ratio=scaling.raw_ratio)
    slope = np.clip(expected.clip_slope, 0.05, 1.5)
    size = rates.shape[0] - first
    noise = np.full((n, rates.shape[0]), q)
    tolerance = np.full(n, scaling.tolerance)
    if isinstance(model, LinearRegression):
        start = float(np.median(n_records * (information * prior_stddev**2)[:-1]))
        inflation = inflated_noise(
            rates,
            (float(slope[0]), float(slope[-1])),
            q,
            start=start,
            n_weights=n - 1,
            n_records=n_records,
            max_grad_norm=max_grad_norm,
        )
        # The noise of a weight's scaled gradient grows like the iterate's standard deviation, that of the variance's
        # like the variance itself.
        noise[:-1] *= np.sqrt(inflation)
        noise[-1] *= inflation
        tolerance[-1] = tuning.TUNING.variance_tolerance
    total, data = np.empty(n), np.empty(n)
    estimate, offset = np.empty(n), np.empty(n)
    for j in range(n):
        whole = window_moments(rates, float(slope[j]), noise[j], math.floor(tuning.TUNING.whole_trace * rates.shape[0]))
        window = window_moments(rates, float(slope[j]), noise[j], first)
        # Information about log eta: the prior, the raw_scale gradients, and the location gradients.
        precision = tolerance[j] ** -2.0 + size * scaling.raw_ratio**2 * n_records / q**2
        precision += window.spread * slope[j] ** 2 * float(np.sum(noise[j, first:] ** -2.0))
        doubt = 1.0 / precision
        estimate[j] = math.exp(2.0 * doubt) / (slope[j] ** 2 * float(np.sum(noise[j, first:] ** -2.0)))
        offset[j] = whole.gradient_mean
        total[j] = estimate[j] + window.gradient_mean * doubt
        data[j] = math.exp(0.5 * doubt) * max(float(expected.clip_spread[j]), 1.0)
    others = expected.bend * (1.0 - np.eye(n))
    total += 0.25 * others**2 @ (2.0 * estimate**2 + 4.0 * offset * estimate) / n_records
    if isinstance(model, LinearRegression):  # combine the trace's information about the variance with its prior
        total[-1] = 1.0 / (1.0 / total[-1] + 1.0 / (prior_stddev[-1] ** 2 * n_records * information[-1]))
    return (
        np.sqrt(data + total),
        (n_records * information + prior_stddev**-2.0) ** -0.5,
        slope,
        float(expected.clipped_share),
    )
