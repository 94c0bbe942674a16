"""Likelihood of the weights from the last released scores of a private Newton run, given the second moments.

With M the weighted second moments in the last whitened coordinates z = W x, u* the zero of the exact score and sigma
the noise's standard deviation,

    g_t = a_t M (u* - u_t) + noise,   a_t = P(|r_t| < c_t),   r_t ~ N(0, sigma**2 + e_t),

e_t the mean squared error of the predictor at u_t; u* ~ N(u, kappa**2 M^-1) with the sandwich's kappa**2 = E[psi**2] /
(N a**2), and weights = W'u ~ N(0, (prior scale sigma)**2), an intercept with the spread of the responses more.  Scores
that were taken many standard deviations from their zero are left out: no such model holds there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.moments_law import MeanScores, MomentsDraws, combined, stratified
from dpinfer.inference.posterior.mixture import in_parts
from dpinfer.inference.posterior.theta import inverse_factors
from dpinfer.models import GeneralizedLinearModel, LinearRegression
from dpinfer.models.clipping import (
    ResponseGrid,
    chi_mean,
    chi_second_moment,
    chi_slope,
    huber_slope,
    huber_variance,
    mallows_mean,
    response_grid,
)
from dpinfer.models.likely_records import NormalDesign, PredictorLaw
from dpinfer.models.whitening import shrink_moments
from dpinfer.release import GlmNewtonRelease, NewtonRelease

SWEEPS = 4  # for the errors of the predictor
NoiseScalePrior: TypeAlias = Callable[[FloatArray], FloatArray]  # the log density of log sigma, up to a constant
_WIDE = np.linspace(math.log(2e-4), math.log(1.3), 500)  # log sigma around the spread of the responses: tolerance
_SAMPLED = np.linspace(-12.0, 12.0, 121)  # log sigma around that of the records, in standard deviations: tolerance
_FINE = np.linspace(-7.0, 7.0, 301)  # in standard deviations, when it is known about where: tolerance
_LEAST_EIGENVALUE = 1e-5  # of whitened second moments, which are about 1: keeps divisions finite
_AVERAGED = 16  # matrices: time


@dataclass(frozen=True)
class GivenMoments:
    """The weights' normal laws given draws of everything else."""

    mean: FloatArray  # (S, d): of the weights in their declared units
    factor: FloatArray  # (S, d, d): lower Cholesky factors of their precision
    variance: FloatArray  # (S, d): of each
    misfit: FloatArray  # (S, k): chi-squared sums of the model's residuals
    # log_scale, log_scale_stddev: (S,), or None: log sigma, and its sampling standard deviation
    log_scale: FloatArray | None = None
    log_scale_stddev: FloatArray | None = None


@dataclass(frozen=True)
class Measured:
    """Scores over their slopes: y_t measures M (u* - u_t) with precision p_t; (S, ...) for draws of sigma."""

    positions: FloatArray  # (T, d)
    value: FloatArray  # (S, T, d)
    precision: FloatArray  # (S, T)
    sampling: FloatArray  # (S,): kappa**2
    prior_variance: FloatArray  # (S, d): of the weights in their declared units

    @property
    def together(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean of the scores and of their positions, (S, d), and the variance of the former, (S, 1)."""
        positions = np.broadcast_to(self.positions, self.value.shape)
        return combined(self.value, positions, 1.0 / self.precision[..., None])

    def mean_scores(self, whitening: FloatArray) -> MeanScores:
        """Return the first row's information about the weights, in the coordinates of z."""
        value, position, noise = (part[0] for part in self.together)
        factor = np.linalg.inv(whitening).T * np.sqrt(self.prior_variance[0])
        away, known = position - self.positions, self.precision[0][:, None]
        steps = (known * away).T @ away, (known * (self.value[0] - value)).T @ away
        return MeanScores(value, position, float(noise[0]), float(self.sampling[0]), factor, steps)

    def without_noise(self, draws: MomentsDraws, whitening: FloatArray) -> FloatArray:
        """Return the weights' covariance without privacy noise, (d, d), averaged over M, of the first row."""
        values, vectors = np.linalg.eigh(draws.matrix[:_AVERAGED])
        back = np.linalg.inv(whitening) @ draws.basis @ vectors
        values = np.maximum(values, _LEAST_EIGENVALUE)[:, None, :]
        precision = (back * values) @ np.swapaxes(back, 1, 2) / self.sampling[0] + np.diag(1.0 / self.prior_variance[0])
        return np.asarray(np.linalg.inv(precision).mean(axis=0))

    def predictor_errors(self, positions: FloatArray, moments: FloatArray, whitening: FloatArray) -> FloatArray:
        """Return the expected (u_t - u*)' M (u_t - u*) at positions (T, d) given M, (T,), of the first row."""
        said = self.mean_scores(whitening)
        spread = said.prior_covariance + said.sampling * np.linalg.inv(moments)
        covariance = moments @ spread @ moments + said.noise * np.eye(len(moments))
        gain = np.linalg.solve(covariance, moments @ spread).T
        away = positions - gain @ (said.score + moments @ said.position)
        left = float(np.sum((spread - gain @ moments @ spread) * moments))
        return np.asarray(np.maximum(np.sum((away @ moments) * away, axis=1), 0.0) + max(left, 0.0))

    def given(self, draws: MomentsDraws, whitening: FloatArray, rng: np.random.Generator) -> GivenMoments:
        """Return the weights' laws given draws of M; the misfit of each score counts the error of M.

        With b = mean y + M mean u_t, normal around M u with variance n = 1 / P + kappa**2 (what the release expects of
        M), the precision of u is M n^-1 M + that of the prior.  Weights are W'u.
        """
        basis, matrix = draws.basis, draws.matrix
        value, position, noise = self.together
        target = value @ basis + np.einsum("sij,sj->si", matrix, position @ basis)
        own = self.sampling[:, None] * draws.sampled
        noise = noise + own + draws.extra
        back = np.linalg.inv(whitening) @ basis
        # A draw of u, and of what sampling adds to the score; what the scores miss of that.
        drawn = rng.standard_normal((2, *target.shape))

        def laws(
            matrix: FloatArray, noise: FloatArray, target: FloatArray, prior: FloatArray, drawn: FloatArray
        ) -> tuple[FloatArray, ...]:
            pushed = back @ matrix
            precision = (pushed / noise[:, None, :]) @ np.swapaxes(pushed, 1, 2)
            np.einsum("sii->si", precision)[:] += 1.0 / prior
            factor = np.asarray(np.linalg.cholesky(precision), dtype=np.float64)
            inverse = inverse_factors(factor)
            told = np.einsum("sij,sj->si", inverse, np.einsum("sij,sj->si", pushed, target / noise))
            mean = np.einsum("sji,sj->si", inverse, told)
            u = (mean + np.einsum("sji,sj->si", inverse, drawn)) @ back
            return mean, u, np.einsum("sij,sij->sj", inverse, inverse), factor

        each = matrix, noise, target, self.prior_variance, drawn[0]
        mean, u, variance, factor = in_parts(laws, draws.threads, *each, entries=basis.size)
        left = target - np.einsum("sij,sj->si", matrix, u)
        sampled = own / noise * left + np.sqrt(own * (1.0 - own / noise)) * drawn[1]
        away = self.positions @ basis - u[:, None]
        missed = self.value @ basis + away @ matrix
        known = 1.0 / (1.0 / self.precision + draws.variance[:, None] * np.sum(np.square(away), axis=2))
        return GivenMoments(
            mean=mean,
            factor=factor,
            variance=variance,
            misfit=np.einsum("st,sti->s", known, np.square(missed - sampled[:, None]))[:, None],
        )


class LinearScores:
    """The last scores of a linear regression, and the law of its noise variance.

    Its attributes are `noisy`, M with noise of `stddev`, `whitening` W, and the misfit's degrees of `freedom`.

    Notes
    -----
    The errors e_t of the predictor follow from the weights and the noise variance of the scores themselves, in a
    few sweeps; the law of sigma given them follows from the scale scores, on a grid.
    """

    def __init__(self, release: NewtonRelease, model: LinearRegression, prior: NoiseScalePrior) -> None:
        self._release, self._model, self._prior = release, model, prior
        # Coordinates whiten what earlier rounds say, with their noise: the last one's is independent of them.
        self.noisy, self.stddev = release.moments[-1], float(release.moment_stddev[-1])
        self.whitening = release.transforms[-1]
        steps = len(release.scores)
        self._last = np.arange(max(steps - tuning.TUNING.scores, 0), steps)
        self._weight = mallows_mean(release.n_coef, float(release.moment_bounds[-1]))
        # Every record is in one octave: the noisy shares sum to the number of records over the public one.
        noise = release.counts_stddev * math.sqrt(release.counts.size)
        gain = tuning.TUNING.records_error**2 / (tuning.TUNING.records_error**2 + noise**2)
        self._ratio = 1.0 + gain * (float(np.sum(release.counts)) - 1.0)
        self._ratio_error = tuning.TUNING.records_error * math.sqrt(1.0 - gain)
        self._excess, self._read = np.zeros(steps), self._last
        self._find_law()
        moments = shrink_moments(self.noisy, self.stddev, float(release.moment_bounds[-1]) ** 2).matrix
        for _ in range(SWEEPS):
            self._excess = self.middle().predictor_errors(release.positions, moments, self.whitening)
            self._find_law()
        near = self._excess < tuning.TUNING.near * math.exp(2.0 * float(self._shares @ self._nodes))
        self._read = np.union1d(np.flatnonzero(near), self._last)
        self.freedom = np.array([len(self._read) * release.n_coef, len(self._last)], dtype=np.float64)

    def given(self, draws: MomentsDraws, rng: np.random.Generator) -> GivenMoments:
        """Return the weights' laws given draws of M, and of sigma."""
        log_scale = self._nodes[stratified(self._shares, len(draws.matrix), draws.sets, rng)]
        found = self._measured(log_scale, self._read).given(draws, self.whitening, rng)
        missed, variance = self._scale_misfit(log_scale)
        nodes, which = np.unique(log_scale, return_inverse=True)
        _, centre, sampling = (part[which] for part in self._population(nodes))
        return replace(
            found,
            misfit=np.column_stack((found.misfit, np.sum(np.square(missed) / variance, axis=1))),
            log_scale=centre,
            log_scale_stddev=np.sqrt(sampling),
        )

    def every(self, log_scale: FloatArray) -> Measured:
        """Return the scores of the steps, then the last ones, for sigma, (S,)."""
        return self._measured(log_scale, np.arange(len(self._release.scores)))

    def _population(self, log_scale: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the law of the population's log sigma given that of these records, (S,): log weight, mean, variance.

        It is the prior times the law of a mean of squares, whose degrees of freedom follow from the sampling error.
        """
        release = self._release
        bound = release.scale_units[-1] / np.exp(log_scale)
        spread = np.maximum(chi_second_moment(bound) - np.square(chi_mean(bound)), 1e-30)
        sampling = np.minimum(spread / (release.n_records * np.square(chi_slope(bound)) + 1e-30), 1.0)[:, None]
        # The residuals' spread around a fit of d weights is smaller than sigma by a factor sqrt(1 - d / N).
        centre = log_scale - 0.5 * math.log(1.0 - min(release.n_coef / release.n_records, 0.5))
        away = np.sqrt(sampling) * _SAMPLED
        density = self._prior(centre[:, None] + away)
        density = density - (away + 0.5 * np.expm1(-2.0 * away)) / (2.0 * sampling)
        shares = np.exp(density - density.max(axis=1, keepdims=True))
        total = shares.sum(axis=1)
        mean = np.sum(shares * away, axis=1) / total
        variance = np.sum(shares * np.square(away - mean[:, None]), axis=1) / total
        return density.max(axis=1) + np.log(total), centre + mean, variance

    def _scale_misfit(self, log_scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the difference of the scale scores from their expectation, and its variance, (S, T)."""
        release, last = self._release, self._last
        excess = self._excess[last]
        spread = np.sqrt(np.exp(2.0 * log_scale)[:, None] + excess / self._weight)
        expected = self._weight * (chi_mean(release.scale_units[last] / spread) - release.scale_centre)
        error = np.square(tuning.TUNING.scale_error_of_excess * excess / np.square(spread))
        error = error + (self._ratio_error**2 + tuning.TUNING.weight_error**2) * np.square(expected)
        missed = release.scale_scores[last] - self._ratio * expected
        return missed, np.square(release.scale_stddev[last]) + error

    def _find_law(self) -> None:
        """Find the law of log sigma, at nodes that are dense at its peak."""
        self._nodes = math.log(usual_spread(self._release, self._model)) + _WIDE
        for fine in (True, False):
            missed, variance = self._scale_misfit(self._nodes)
            # If the law is narrower than the distance of two nodes, the nearest node represents the interval.
            variance = variance + np.square(np.gradient(missed, axis=0))
            density = self._population(self._nodes)[0] - 0.5 * np.sum(
                np.log(variance) + np.square(missed) / variance, axis=1
            )
            shares = np.exp(density - density.max())
            self._shares = np.asarray(shares / shares.sum())
            mean = float(self._shares @ self._nodes)
            stddev = math.sqrt(float(self._shares @ np.square(self._nodes - mean)) + (_WIDE[1] - _WIDE[0]) ** 2)
            if fine:
                self._nodes = np.clip(mean + stddev * _FINE, self._nodes[0], self._nodes[-1])

    def middle(self) -> Measured:
        """Return the last scores over their slopes for the mean of log sigma."""
        return self._measured(np.array([self._shares @ self._nodes]), self._read)

    def _measured(self, log_scale: FloatArray, steps: npt.NDArray[np.int64]) -> Measured:
        """Return scores over their slopes for sigma, (S,)."""
        release, excess = self._release, self._excess[steps]
        n, d = release.n_records, release.n_coef
        variance = np.exp(2.0 * log_scale)[:, None]
        spread = np.sqrt(variance + excess)
        clips = release.clips[steps]
        slope = huber_slope(clips / spread)
        relative = tuning.TUNING.slope_error**2 + np.square(
            tuning.TUNING.slope_error_of_excess * excess / (variance + excess)
        )
        noise = np.square(release.score_stddev[steps] / slope) + relative * excess / d
        bound = clips[-1] / spread[:, -1]
        sampling = np.square(spread[:, -1] / huber_slope(bound)) * huber_variance(bound) / n
        prior = np.repeat(self._model.prior_scale**2 * variance, d, axis=1)
        if self._model.fit_intercept:
            prior[:, -1] += usual_spread(release, self._model) ** 2
        value = release.scores[steps] / slope[..., None]
        return Measured(release.positions[steps], value, 1.0 / noise, sampling, prior)


def usual_spread(release: NewtonRelease, model: LinearRegression) -> float:
    """Return the spread of the responses that the run has found, as far as their bounds allow it."""
    return min(release.response_spread, model.largest_spread or math.inf)


_SPACING = 1.0 / 8.0  # nodes of the predictor: as coarse as the run's for what is expected (mechanism/newton/glm.py)
_LEAST_TRACE = 0.01  # of the slope, per weight: tolerance


class BoundedScores:
    """Scores near their zeros: g_t = J (u* - u_t) + noise, u* ~ N(u, kappa**2 J^-1), in the place of M the slope J.

    The score's variance is taken for kappa**2 N J.  The noise takes in a relative error of the slope, which is released
    at one point and used at others.
    """

    def __init__(self, release: GlmNewtonRelease, model: GeneralizedLinearModel) -> None:
        self._release, self._model, self._prior_variance = release, model, model.prior_scale**2
        self.noisy, self.stddev = release.slope, float(release.slope_stddev)
        self.whitening = release.score_transform
        self._sampling = sampling_ratio(release, model) / release.n_records
        self._excess = np.zeros(len(release.scores))
        self.freedom = np.array([float(release.scores.size)])
        trace = max(float(np.trace(self.noisy)), _LEAST_TRACE * release.n_coef)
        slope = shrink_moments(self.noisy, self.stddev, trace).matrix
        for _ in range(SWEEPS):
            self._excess = self.middle().predictor_errors(release.positions, slope, self.whitening)

    def middle(self) -> Measured:
        """Return the scores."""
        return self._measured(1)

    def given(self, draws: MomentsDraws, rng: np.random.Generator) -> GivenMoments:
        """Return the weights' laws given draws of J."""
        return self._measured(len(draws.matrix)).given(draws, self.whitening, rng)

    def _measured(self, size: int) -> Measured:
        """Return the scores, the same for each of `size` draws."""
        release = self._release
        # |J away|**2 <= (largest eigenvalue of J) away'J away, and w z z' is near the identity on average.
        wrong = release.slope_bound * tuning.TUNING.slope_error**2 * self._excess / release.n_coef
        precision = 1.0 / (np.square(release.score_stddev) + wrong)
        return Measured(
            release.positions,
            np.broadcast_to(release.scores, (size, *release.scores.shape)),
            np.broadcast_to(precision, (size, len(precision))),
            np.full(size, self._sampling),
            np.full((size, release.n_coef), self._prior_variance),
        )

    def every(self, size: int) -> Measured:
        """Return the scores of the steps in the coordinates of the measurements, then these, as of `size` draws.

        The steps' clip is another: their scores are brought to the slope of the measurements' residual.
        """
        release, found = self._release, self._measured(size)
        forth = release.score_transform @ np.linalg.inv(release.transforms[-1])
        grid, law = _at_the_end(release, self._model)
        slopes = [law.mean(grid, grid.clipped(clip).slope) for clip in (release.localise_clip, release.clip)]
        ratio = slopes[1] / max(slopes[0], 1e-300)
        own = release.n_coef / np.square(ratio * release.localise_score_stddev) / np.sum(np.square(forth))
        value = ratio * release.localise_scores @ forth.T
        return replace(
            found,
            positions=np.vstack([np.linalg.solve(forth.T, release.localise_positions.T).T, found.positions]),
            value=np.concatenate([np.broadcast_to(value, (size, *value.shape)), found.value], axis=1),
            precision=np.hstack([np.broadcast_to(own, (size, len(own))), found.precision]),
        )


def _at_the_end(release: GlmNewtonRelease, model: GeneralizedLinearModel) -> tuple[ResponseGrid, PredictorLaw]:
    """Return the responses' table, and the law of the predictor where the run ended."""
    whitening = release.transforms[-1]
    trace = float(release.moment_bounds[-1]) ** 2
    moments = shrink_moments(release.moments[-1], float(release.moment_stddev[-1]), trace).matrix
    constant = np.linalg.solve(whitening.T, np.eye(model.n_coef)[-1]) if model.fit_intercept else None
    position = np.linalg.solve(whitening.T, release.score_transform.T @ release.positions[-1])
    return response_grid(model, _SPACING), NormalDesign.of_moments(moments, constant).law(position)


def sampling_ratio(release: GlmNewtonRelease, model: GeneralizedLinearModel) -> float:
    """Return the variance of a clipped residual over its slope, each expected at the predictors where the run ended."""
    grid, law = _at_the_end(release, model)
    residual = grid.clipped(release.clip).with_slope_at_most(release.slope_bound)
    return law.mean(grid, residual.variance) / max(law.mean(grid, residual.slope), 1e-300)
