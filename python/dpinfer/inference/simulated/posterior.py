"""From a release of a user's own model to a posterior of any shape, by the model's own simulator."""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import TINY, FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference.newton.own_model import check_own
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import OwnNewtonRequest, model_of, parse_burn_in
from dpinfer.inference.simulated.emulator import MeanScore, Prior, ratio_draws, simulated_draws
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.analysis import Analysis
from dpinfer.models import OwnModel
from dpinfer.release import GradientTrace, OwnNewtonRelease

_MADE, _RESPONSES = 1000, 8  # made-up records, and responses of each: as many as for a run's centre (`OwnTuning`)


@dataclass(frozen=True)
class _Measured:
    """Made-up records at one point of measurement."""

    at: FloatArray  # (n,)
    weight: FloatArray  # (B, 1)
    centre: FloatArray  # (n, B)
    # (n,): correction of the mean clipped score of drawn responses, which removes the randomness at the point itself
    known: FloatArray


class NewtonScore:
    """Centred clipped scores averaged over the measurements of a run, by their precision.

    Made-up rows and random words are the same for every truth, and for every point of measurement: a record has one
    response in all passes. Words for weights and centres differ from those of the responses, as in the run.
    """

    def __init__(
        self,
        model: OwnModel,  # with a sampler
        release: OwnNewtonRelease,
        rng: np.random.Generator,
    ) -> None:
        self._model, self._release = model, release
        self.n_records = release.n_records
        precision = 1.0 / release.score_stddev**2
        self._gain = precision / precision.sum()
        self.observed = self._gain @ release.scores
        self.noise = np.eye(release.n_params) / precision.sum()
        self._share = release.centre_share
        self._clip = float(release.score_bounds[-1]) / (1.0 + self._share)
        self._weight_bound = release.slope_bound / release.matrix_factor
        features = model.made_up_features(_MADE, rng)
        # One for each draw of a response.
        self._rows = np.repeat(features, _RESPONSES, axis=0)
        self._responses = self._words(len(self._rows), rng)
        self._points = [self._point(point, features, rng) for point in release.positions]
        self._slope = self._slope_at(release.slope_position, rng)

    def _drawn(self, rows: FloatArray, words: npt.NDArray[np.uint64], truth: FloatArray, at: FloatArray) -> FloatArray:
        """Return scores at a point of responses drawn at the truth, (n, rows, draws)."""
        with np.errstate(all="ignore"):
            responses = self._model.draw_responses(truth, rows, words)
            scores = self._model.scores(rows, responses, at) @ self._release.transform.T
        scores[~np.all(np.isfinite(scores), axis=1)] = 0.0
        return np.ascontiguousarray(scores.T).reshape(self._release.n_params, -1, _RESPONSES)

    def _words(self, size: int, rng: np.random.Generator) -> npt.NDArray[np.uint64]:
        return rng.integers(0, 2**64, (size, self._model.n_words), dtype=np.uint64)

    def _weighted(self, features: FloatArray, at: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, ...]:
        """Return weights (rows, 1), and scores under the model for centres, plain and clipped: (n, rows, draws)."""
        rows = np.repeat(features, _RESPONSES, axis=0)
        first, second = (self._drawn(rows, self._words(len(rows), rng), at, at) for _ in range(2))
        size = np.mean(np.sum(first**2, axis=0), axis=1)
        weight = np.minimum(1.0, self._weight_bound / (size + TINY))[:, None]
        return weight, second, _cut(second * weight, self._clip)

    def _point(self, at: FloatArray, features: FloatArray, rng: np.random.Generator) -> "_Measured":
        weight, plain, clipped = self._weighted(features, at, rng)
        excess = np.mean(plain * weight - clipped, axis=2)
        centre = _cut(excess, self._share * self._clip)
        here = _cut(self._drawn(self._rows, self._responses, at, at) * weight, self._clip)
        # The weighted score has mean zero here: of the clipped one and the centre together the cut alone is left.
        known = np.mean(centre - excess, axis=1) - np.mean(here, axis=(1, 2))
        return _Measured(at, weight, centre, known)

    def _slope_at(self, at: FloatArray, rng: np.random.Generator) -> FloatArray:
        _, plain, clipped = self._weighted(self._model.made_up_features(_MADE, rng), at, rng)
        slope = np.einsum("ard,brd->ab", clipped, plain) / (_MADE * _RESPONSES)
        return np.asarray(0.5 * (slope + slope.T))

    def expected(self, truth: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and covariance of a record's centred clipped score, averaged over the measurements."""
        n = self._release.n_params
        mean, scores = np.zeros(n), np.zeros((n, len(self._rows) // _RESPONSES, _RESPONSES))
        for gain, one in zip(self._gain, self._points, strict=True):
            clipped = _cut(self._drawn(self._rows, self._responses, truth, one.at) * one.weight, self._clip)
            mean += gain * (clipped.mean(axis=(1, 2)) + one.known)
            scores += gain * (clipped + one.centre[:, :, None])
        return mean, np.cov(scores.reshape(n, -1)).reshape(n, n)

    def ratios(self, truth: FloatArray, size: int, rng: np.random.Generator) -> FloatArray:
        """Draw the ratio of the slope that was released and the simulated one at its point."""
        return ratio_draws(self._release.slope, self._slope, self._release.slope_stddev, size, rng)


def _cut(values: FloatArray, bound: float) -> FloatArray:
    """Return columns (n, ...) cut to a norm of at most `bound`."""
    norm = np.sqrt(np.sum(values**2, axis=0))
    return np.asarray(values * np.minimum(1.0, bound / np.maximum(norm, math.sqrt(TINY))))


_ROWS, _COVARIANCE_ROWS = 12_000, 800  # error 1 / sqrt(12 000) of a score's deviation; a covariance needs fewer
_POINTS_PER_PARAMETER, _LEAST_POINTS = 4, 24  # points that represent a trace (docs/derivations/any-model.md)


class AlignedScore:
    """Clipped scores averaged over the steps of a run with aligned gradients.

    A few of the sampled points represent all, with weights that keep the mean of the points: the expected clipped
    score is nearly linear in the point.  Made-up rows and random words are the same for every truth.
    """

    def __init__(
        self,
        model: OwnModel,  # with a sampler
        release: GradientTrace,  # aligned, split, with a constant preconditioner
        first: int,  # first step used
        rng: np.random.Generator,
    ) -> None:
        if release.grad_scale is None or release.max_grad_norm is None or release.n_records is None:
            raise ValueError("release must hold grad_scale, max_grad_norm and n_records")
        self._model, self._norm, self._beta = model, release.max_grad_norm, release.grad_scale
        self.n_records = release.n_records
        n, rate = release.n_params, release.sample_rate
        points = release.positions[first:]
        prior = np.stack([model.log_prior_gradient(point) for point in points])
        # The released gradients are of minus the log joint density, times the sampling rate.
        self._clipped = -(release.noisy_gradients[first:] + rate * prior) * self._beta / (rate * self.n_records)
        self.observed = self._clipped.mean(axis=0)
        stddev = np.broadcast_to(release.noise_stddev * self._beta / (rate * self.n_records), (n,))
        self._points, self._stddev, self._rate = points, float(np.sqrt(np.mean(stddev**2))), rate
        self.noise = np.diag(stddev**2) / len(points)
        self._chosen, self._weights = _thinned(points, rng)
        self._rows = model.made_up_features(_ROWS, rng)
        self._words = rng.integers(0, 2**64, (_ROWS, model.n_words), dtype=np.uint64)
        self._blocks = np.array_split(np.arange(_ROWS), len(self._chosen))
        self._centre = points.mean(axis=0)

    def _scores(self, rows: FloatArray, responses: FloatArray, point: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            scores = self._model.scores(rows, responses, point) * self._beta
        scores[~np.all(np.isfinite(scores), axis=1)] = 0.0
        norm = np.sqrt(np.sum(scores**2, axis=1)) + TINY
        return np.asarray(scores * np.minimum(1.0, self._norm / norm)[:, None])

    def _means(self, truth: FloatArray) -> FloatArray:
        """Return the expected clipped score at each chosen point, (K, n)."""
        with np.errstate(all="ignore"):
            drawn = self._model.draw_responses(truth, self._rows, self._words)
        pairs = zip(self._blocks, self._chosen, strict=True)
        return np.stack([self._scores(self._rows[own], drawn[own], point).mean(axis=0) for own, point in pairs])

    def expected(self, truth: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and covariance of a record's clipped score, averaged over the steps."""
        rows = slice(0, _COVARIANCE_ROWS)
        with np.errstate(all="ignore"):
            drawn = self._model.draw_responses(truth, self._rows[rows], self._words[rows])
        scores = self._scores(self._rows[rows], drawn, self._centre)
        covariance = np.atleast_2d(np.cov(scores, rowvar=False))
        # Records that a step leaves out are others in every step.
        left_out = (1.0 / self._rate - 1.0) / len(self._points) * (scores.T @ scores / len(scores))
        return self._weights @ self._means(truth), covariance + left_out

    def ratios(self, truth: FloatArray, size: int, rng: np.random.Generator) -> FloatArray:
        """Draw the ratio of the slopes of clipped scores in the point: the trace's, and the simulated one's."""
        around = (self._points - self._centre) / self._beta
        gram = around.T @ around
        released = -np.linalg.solve(gram, around.T @ (self._clipped - self.observed)).T
        chosen = (self._chosen - self._chosen.mean(axis=0)) / self._beta
        means = self._means(truth)
        simulated = -np.linalg.lstsq(chosen, means - means.mean(axis=0), rcond=None)[0].T
        error = self._stddev * float(np.sqrt(np.trace(np.linalg.inv(gram)) / len(gram)))
        return ratio_draws(0.5 * (released + released.T), 0.5 * (simulated + simulated.T), error, size, rng)


def _thinned(points: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return a sample of the points, and nearly equal weights that keep the mean of all points."""
    steps, n = points.shape
    size = min(steps, max(_LEAST_POINTS, _POINTS_PER_PARAMETER * (n + 1)))
    chosen = points[rng.choice(steps, size, replace=False)]
    moments = np.vstack((np.ones(size), (chosen - points.mean(axis=0)).T))
    equal = np.full(size, 1.0 / size)
    targets = np.concatenate(([1.0], np.zeros(n)))
    return chosen, equal + np.linalg.pinv(moments) @ (targets - moments @ equal)


_DRAWS = 1000  # Monte Carlo error 2% of a standard deviation (1 / sqrt(2 * 1000))
_WORDS = (
    "Intervals rest on the model: its simulations at each truth are compared with the mean score; the "
    "emulator's error is {error:.0%} of the noise. This release cannot show a wrong likelihood."
)


def simulated_posterior(
    analysis: Analysis,  # of an aligned trace, with a model of the user's own that has a sampler
) -> Posterior:
    """Infer parameters by simulating the expected mean clipped score of the trace under each truth.

    Raises NumericalError if the simulation leads to no posterior.
    """
    release, request, model = analysis.release, analysis.request, analysis.model
    if not isinstance(model, OwnModel):
        raise TypeError("model must be one of your own")
    share = tuning.TUNING.simulated_burn_in if request.burn_in == "auto" else request.burn_in
    first = int(parse_burn_in(share, release.n_steps) or 0)
    rng = np.random.default_rng(request.seed)
    draws, error = _draws(AlignedScore(model, release, first, rng), model, request.n_samples, rng)
    posterior = analysis.posterior(
        burn_in=first,
        distribution=_smoothed(draws),
        diagnostics=PosteriorDiagnostics(n_steps_used=release.n_steps - first, verdict=_WORDS.format(error=error)),
    )
    return replace(posterior, hessian="none", prior="model")


def simulated_newton_posterior(
    release: OwnNewtonRelease,
    request: OwnNewtonRequest,  # its model has a sampler
) -> Posterior:
    """Infer parameters by simulating the expected scores of a few-pass run under each truth.

    **Privacy.** Post-processing of an OwnNewtonRelease.

    Raises NumericalError if the simulation leads to no posterior.
    """
    model = model_of(release, request.model)
    if not isinstance(model, OwnModel):
        raise TypeError("model must be one of your own")
    rng = np.random.default_rng(request.seed)
    draws, error = _draws(NewtonScore(model, release, rng), model, request.n_samples, rng)
    checks = check_own(release, draws.mean(axis=0), np.atleast_2d(np.cov(draws, rowvar=False)))
    return Posterior(
        names=release.names,
        method="newton",
        approximation="simulated",
        prior="model",
        distribution=_smoothed(draws),
        model=model,
        guarantee=release.guarantee,
        diagnostics=PosteriorDiagnostics(
            n_steps_used=len(release.scores),
            verdict=f"{_WORDS.format(error=error)} {checks.verdict}",
            warnings=tuple(checks.warnings),
        ),
    )


def _draws(
    score: MeanScore, model: OwnModel, n_samples: int | None, rng: np.random.Generator
) -> tuple[FloatArray, float]:
    prior = Prior(model.parameters.prior_mean, model.parameters.prior_scale)
    size = _DRAWS if n_samples is None else n_samples
    try:
        draws, error = simulated_draws(score, prior, size, rng)
    except np.linalg.LinAlgError as failure:
        raise NumericalError("the model's simulation leads to no posterior near the prior") from failure
    if not np.all(np.isfinite(draws)):
        raise NumericalError("the model's simulation leads to no posterior near the prior")
    return draws, error


def _smoothed(draws: FloatArray) -> DrawnTheta:
    """Return a mixture of normals around the draws, contracted so that its covariance is that of the draws."""
    covariance = np.atleast_2d(np.cov(draws, rowvar=False))
    centre = draws.mean(axis=0)
    location = centre + np.sqrt(1.0 - tuning.TUNING.kernel**2) * (draws - centre)
    factor = np.linalg.cholesky(np.linalg.inv(tuning.TUNING.kernel**2 * covariance))
    nothing = np.zeros(len(centre))
    parts = VarianceParts(nothing, nothing, np.diag(covariance).copy())
    return DrawnTheta(location, None, np.broadcast_to(factor, (len(draws), *factor.shape)), parts)
