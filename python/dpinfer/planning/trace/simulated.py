"""Prediction for the recipes "plain" and "paper": the library's posterior of simulated traces."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback
from dpinfer.errors import NumericalError
from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.request import PosteriorOptions
from dpinfer.models import Model
from dpinfer.models.base import softplus
from dpinfer.planning.trace.drift import Drift, scale_gradient
from dpinfer.planning.trace.fisher import Prediction
from dpinfer.release import release_from_arrays

_MOST_STEPS, _FEWEST_STEPS = 2000, 400  # merged steps of a simulated run: time only
_LARGEST_CONTRACTION = 0.25  # of a merged step: the linear recursion then errs to second order, 3%; tolerance
_TAILS = (0.05, 0.95)  # ends of 90% intervals: format
_PENALTY = 20.0  # 2 over the share outside, 0.1: formula
_NORMAL90 = 2.0 * 1.6448536269514722  # width of a normal 90% interval in standard deviations: formula


@dataclass(frozen=True)
class PlainRun:
    """Public settings of a run with a constant preconditioner and a constant learning rate."""

    n_steps: int
    sample_rate: float
    noise_multiplier: float
    max_grad_norm: float
    grad_scale: FloatArray  # (2 n,)
    learning_rate: FloatArray  # (2 n,)
    start: FloatArray  # (2 n,): loc and raw_scale

    @property
    def noise_stddev(self) -> FloatArray:
        """Standard deviation of the privacy noise in every coordinate, (2 n,)."""
        return self.noise_multiplier * self.max_grad_norm / self.grad_scale


@dataclass(frozen=True)
class SimulatedTraces:
    """Traces of R simulated runs in which several steps are merged into one larger step."""

    # positions, gradients: (K, R, 2 n)
    positions: FloatArray
    gradients: FloatArray
    noise_stddev: FloatArray  # (2 n,): privacy noise of these gradients
    # the sampling rate whose gradients these would be, in their mean and in the sampling's own noise
    sample_rate: float
    merged: int  # steps taken together: as many as leave the largest contraction of a step below 1/4


def simulate_trace(run: PlainRun, drift: Drift, rng: np.random.Generator) -> SimulatedTraces:
    """Simulate R runs of the trace model, several steps at a time.

    **Privacy.** Reads no records, unless the drift holds a pilot data set, which must be public.

    The mean of m gradients has expectation kappa h and variance (tau**2 + kappa (1 - kappa) V) / m, with V the
    information.  Times ``c = m / (1 + (m - 1) kappa)`` these are a step's at the rate ``c kappa``, with the noise
    ``c tau / sqrt(m)``, for ``c kappa (1 - c kappa) = c**2 kappa (1 - kappa) / m``.
    """
    hessian, information = drift.hessian(), drift.information()
    runs, n = hessian.shape[:2]
    rate, kappa = run.learning_rate, run.sample_rate
    root = np.sqrt(rate[:n])
    largest = float(np.max(np.linalg.eigvalsh(kappa * root[:, None] * hessian * root)))
    raw_contraction = 2.0 * kappa * float(np.max(rate[n:]))  # at the optimum h s**2 = 1, s' is about s
    merged = int(np.clip(_LARGEST_CONTRACTION / max(largest, raw_contraction), 1, run.n_steps / _FEWEST_STEPS))
    merged = max(merged, math.ceil(run.n_steps / _MOST_STEPS) if merged > 1 else 1, 1)
    steps = run.n_steps // merged
    larger = merged / (1.0 + (merged - 1.0) * kappa)
    privacy = run.noise_stddev / math.sqrt(merged)
    # The records' own spread: correlated like the features, which one-hot columns make singular.
    values, vectors = np.linalg.eigh(information)
    spread = vectors * np.sqrt(kappa * (1.0 - kappa) / merged * np.maximum(values, 0.0))[:, None, :]
    params = np.tile(run.start, (runs, 1))
    positions, gradients = np.empty((2, steps, runs, 2 * n))
    for step in range(steps):
        first, second = drift.gradient(params[:, :n], softplus(params[:, n:]))
        gradient = kappa * np.concatenate((first, scale_gradient(params[:, n:], second)), axis=1)
        gradient += privacy * rng.standard_normal(gradient.shape)
        gradient[:, :n] += (spread @ rng.standard_normal((runs, n, 1)))[:, :, 0]
        positions[step], gradients[step] = params, larger * gradient
        params = params - merged * rate * gradient
    return SimulatedTraces(positions, gradients, larger * privacy, larger * kappa, merged)


def predict_simulated(
    run: PlainRun,
    drift: Drift,  # of R simulated runs
    model: Model,
    # keyword arguments of :func:`dpinfer.noise_aware_posterior`, one for each prediction
    posteriors: Sequence[PosteriorOptions] = (PosteriorOptions(),),
    *,
    n_records: int,
    seed: int = 0,
    report: ProgressCallback = lambda done, total: None,  # gets (done, total), in posteriors
) -> list[Prediction]:
    """Predict the intervals of a run by simulating its traces and inferring posteriors from them.

    There is one prediction for each of `posteriors`: medians over the R runs, and the standard deviation of the
    logarithm of the width as `spread`.

    **Privacy.** Reads no records, unless the drift holds a pilot data set, which must be public.

    Raises NumericalError if every simulated run diverged.
    """
    rng = np.random.default_rng(seed)
    traces = simulate_trace(run, drift, rng)
    hessian = drift.hessian()
    n = model.n_params
    # The sampling error without privacy: the truth relative to the optimum.
    root = np.linalg.cholesky(np.linalg.inv(hessian))
    truth = drift.optima() + np.einsum("rij,rj->ri", root, rng.standard_normal(hessian.shape[:2]))
    reference = _NORMAL90 * np.sqrt(np.einsum("rii->ri", np.linalg.inv(hessian)))
    contraction = run.sample_rate * run.learning_rate[:n] * np.einsum("rii->ri", hessian)
    releases = []
    for index in range(hessian.shape[0]):
        trace, noisy = traces.positions[:, index], traces.gradients[:, index]
        if not (np.all(np.isfinite(trace)) and np.all(np.isfinite(noisy))):
            continue
        release = release_from_arrays(
            trace, noisy, noise_stddev=traces.noise_stddev, sample_rate=traces.sample_rate, names=model.names
        )
        releases.append((index, replace(release, n_records=n_records, model_spec=model.to_dict())))
    predictions: list[Prediction] = []
    for arguments in posteriors:
        widths, covered, scores, kept = [], [], [], []
        for place, (index, release) in enumerate(releases):
            report(len(predictions) * len(releases) + place, len(posteriors) * len(releases))
            try:
                posterior = noise_aware_posterior(release, **(arguments | PosteriorOptions(fallback=False)))
                low, high = posterior.quantile(_TAILS, space="unconstrained")
            except NumericalError:
                continue
            widths.append(high - low)
            covered.append((low <= truth[index]) & (truth[index] <= high))
            missed = np.maximum(low - truth[index], 0.0) + np.maximum(truth[index] - high, 0.0)
            scores.append((high - low + _PENALTY * missed) / reference[index])
            kept.append(index)
        if not widths:
            raise NumericalError("no simulated run gave a posterior: the learning rate is too large for this noise")
        ratio = np.array(widths) / reference[kept]
        centre = np.median(reference, axis=0)
        typical = np.median(ratio, axis=1)
        predictions.append(
            Prediction(
                width90=centre * np.median(ratio, axis=0),
                reference_width90=centre,
                mixing_time=1.0 / np.median(contraction, axis=0),
                clipped_share=math.nan,
                spread=np.std(np.log(ratio), axis=0) if len(widths) > 1 else np.full(n, np.nan),
                coverage90=float(np.mean(covered)),
                coverage_stderr=float(np.std(np.mean(covered, axis=1), ddof=1)) / math.sqrt(len(covered))
                if len(covered) > 1
                else math.nan,
                score90=float(np.mean(scores)),
                typical_widening=float(np.median(typical)),
                typical_stderr=1.25 * float(np.std(typical, ddof=1)) / math.sqrt(len(typical))
                if len(typical) > 1
                else math.nan,
            )
        )
    report(1, 1)
    return predictions
