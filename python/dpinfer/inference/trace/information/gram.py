"""Linear regression with a full Hessian: the features' Gram matrix integrated over, the noise variance given it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg, special

from dpinfer._arrays import TINY, FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.information import FullHessian
from dpinfer.inference.trace.information.under_model import NULL, InformationTrace, information_draws, information_mode
from dpinfer.inference.trace.scales.fisher import FisherRun
from dpinfer.inference.trace.scales.noise_variance import CELLS, TAIL, VarianceSlope
from dpinfer.models import LinearRegression, dispersion_clipping
from dpinfer.models.base import sigmoid, softplus, softplus_inverse
from dpinfer.release import GradientTrace

_ROUNDS = 2  # v from the trace at A's mode, the mode at v (docs/derivations/noise-aware-posterior.md)
_POINTS = 256  # points of h, in pairs (same page)


@dataclass(frozen=True)
class VarianceTrace:
    """A trace's information about the noise variance: the mean square u_t of all residuals, at the iterates."""

    # residual, error: estimate of the weighted mean of u_t and its standard deviation, from the privacy noise and the
    # sampling
    residual: float
    error: float
    spread: float  # factor by which clipping widens the distribution of the records' variance estimate
    position_mean: FloatArray  # (p,): mean of the weights' iterates, with the weights of that estimate
    position_cov: FloatArray  # (p, p): their covariance
    scale_square: FloatArray  # (p,): mean of s_tj**2


@dataclass(frozen=True)
class GramTrace:
    """The statistics of a linear regression's trace."""

    # of the weights' gradients over E_q[1 / v_t], which are linear in the weights with the slope X'X
    weights: InformationTrace
    variance: VarianceTrace
    n_records: int
    # clip_slope, clip_spread: effect of clipping on that slope, and on the spread of the optimum around the truth
    clip_slope: float
    clip_spread: float

    def at(self, variance: float) -> InformationTrace:
        """Return the weights' trace for a known noise variance."""
        return replace(self.weights, score_variance=self.clip_slope * self.clip_spread * variance)

    @classmethod
    def from_release(
        cls,
        # reparameterised gradients, a mean-field q, and noise that is the same for all weights up to a factor of the
        # step
        release: GradientTrace,
        model: LinearRegression,
        run: FisherRun | None,  # of a Fisher-scaled release: then clipping is corrected for
        # start, variance_start: first step used for the weights and for the noise variance
        start: int,
        variance_start: int,
    ) -> "GramTrace":
        """Take the statistics of a release."""
        n, p = release.n_params, release.n_params - 1
        rate, n_records = release.sample_rate, int(release.n_records or 0)
        noise = np.broadcast_to(release.noise_stddev, (release.n_steps, 2 * n))
        loc, squares = release.positions[:, :n], np.square(softplus(release.positions[:, n:]))
        rho = loc[:, -1]
        value = model.harmonic_variance(rho, np.sqrt(squares[:, -1]))
        # In its own value the noise variance's gradient is linear, without its prior's pull.
        unit = 2.0 * np.square(softplus(rho)) / sigmoid(rho)
        pull = model.log_prior_slope(np.sum(np.square(loc[:, :-1]) + squares[:, :-1], axis=1), rho)
        gradient = (release.noisy_gradients[:, n - 1] + rate * pull) * unit
        later = slice(variance_start, None)
        precision = (noise[later, n - 1] * unit[later]) ** -2.0
        share = precision / precision.sum()
        level = float(share @ gradient[later]) / (rate * n_records)
        centre = float(share @ value[later])
        clipping = None if run is None else dispersion_clipping(model, run.max_grad_norm, run.raw_ratio)
        slope = VarianceSlope.at(clipping, np.array([centre]), np.array([level]))
        ratio, gain, stretch, spread = (
            float(item[0]) for item in (slope.ratio, slope.gain, slope.stretch, slope.spread)
        )
        residual = max((centre - level / gain) * stretch, TINY)
        # The variance of a sampled sum of records' gradients v - r**2, clipped.
        sampled = rate * (1.0 - rate) * n_records * 2.0 * residual**2 * spread * (gain / stretch) ** 2
        noise_variance = 1.0 / precision.sum() + sampled / share.size
        mean = share @ loc[later, :-1]
        centred = loc[later, :-1] - mean
        variance = VarianceTrace(
            residual=residual,
            error=float(np.sqrt(noise_variance)) * stretch / (rate * n_records * gain),
            spread=spread,
            position_mean=mean,
            position_cov=(centred * share[:, None]).T @ centred,
            scale_square=share @ squares[later, :-1],
        )
        scaled = noise[start:, :p] * value[start:, None]
        weights = InformationTrace.build(
            loc[start:, :-1],
            release.noisy_gradients[start:, :p] * value[start:, None],
            np.mean(scaled**-2.0, axis=0) ** -0.5,
            sample_rate=rate,
            prior_variance=model.prior_scale**2,
            step_weight=scaled[:, 0] ** -2.0 / np.mean(scaled[:, 0] ** -2.0),
        )
        if run is None:
            return cls(weights, variance, n_records, 1.0, 1.0)
        expected = run.expected(loc[:1], np.array([ratio]))
        clip_slope, clip_spread = (
            float(np.mean(item[..., :-1])) for item in (expected.clip_slope, expected.clip_spread)
        )
        return cls(weights, variance, n_records, clip_slope, clip_spread)


def gram_posterior(
    trace: GramTrace,
    model: LinearRegression,
    *,
    # as in :func:`dpinfer.inference.trace.information.under_model.information_draws`, which gets the others, too
    seed: int,
    check_convergence: bool,
    **sampling: Any,
) -> FullHessian:
    """Draw the features' Gram matrix from its posterior; weights and rho are taken as normal given each.

    Raises NumericalError if the draws did not converge in the end, or hardly any agrees with the noise variance's
    trace.

    docs/derivations/noise-aware-posterior.md, "Linear regression with a full Hessian".
    """
    expected = trace.clip_slope * trace.n_records * model.design_moments
    prior = model.prior_scale**2
    low, high = (float(item) for item in model.variance_prior_quantile([1e-3, 1.0 - 1e-3]))
    level = min(max(trace.variance.residual, low), high)
    rng = np.random.default_rng([seed, 1])
    for _ in range(_ROUNDS):
        at = trace.at(level)
        mode = information_mode(at, expected, prior_variance=prior * level, moments_known=model.feature_moments_known)
        level = _variance_given(_Scores(trace, level, prior, mode, at.mean_noise_at(mode), rng), model).mean
    at = trace.at(level)
    draws = information_draws(
        at,
        expected,
        prior_variance=prior * level,
        moments_known=model.feature_moments_known,
        seed=seed,
        check_convergence=check_convergence,
        **sampling,
    )
    size, p = draws.location.shape
    conditionals = [
        _variance_given(_Scores(trace, level, prior, a, draws.mean_noise, rng), model) for a in draws.information
    ]
    evidence = np.array([item.log_evidence for item in conditionals])
    share = np.exp(evidence - evidence.max())
    share /= share.sum()
    effective = float(1.0 / np.sum(share**2))
    if check_convergence and effective < min(tuning.TUNING.fewest_draws, size):
        raise NumericalError(
            "the noise variance's trace contradicts nearly all draws of the Gram matrix: they are worth "
            f"{effective:.1f}, at least {tuning.TUNING.fewest_draws:g} are needed; the weights wander too far, use the "
            "recipe 'tied', or opt out with check_convergence=False"
        )
    # Systematic resampling: copies in proportion to the share, up to rounding.
    chosen = np.minimum(np.searchsorted(np.cumsum(share), (np.arange(size) + rng.uniform()) / size), size - 1)
    location, factor = np.empty((size, p + 1)), np.zeros((size, p + 1, p + 1))
    variances, data = np.empty_like(location), np.empty_like(location)
    total, total_squares = np.zeros((p + 1, p + 1)), np.zeros((p + 1, p + 1))
    for index, source in enumerate(chosen):
        a, own = draws.information[source], conditionals[source]
        v = float(rng.choice(own.values, p=own.probability))
        location[index, :-1], cov = _Scores(trace, v, prior, a, draws.mean_noise, rng).weights()
        location[index, -1] = own.rho_mean
        factor[index, :-1, :-1] = np.linalg.cholesky(np.linalg.inv(cov))
        factor[index, -1, -1] = own.rho_variance**-0.5
        variances[index] = np.append(np.diag(cov), own.rho_variance)
        hessian = np.zeros((p + 1, p + 1))
        hessian[:-1, :-1] = a / (trace.clip_slope * v) + np.eye(p) / (prior * v)
        hessian[-1, -1] = 0.5 * trace.n_records * float(sigmoid(softplus_inverse(np.array(v))) / v) ** 2
        total += hessian
        total_squares += hessian**2
        data[index] = np.diag(np.linalg.inv(hessian))
    # Clipping and rounding aside the noise can only widen.
    within, between = variances.mean(axis=0), np.var(location, axis=0)
    privacy = np.maximum(within - data.mean(axis=0), 0.0)
    mean = total / size
    return FullHessian(
        DrawnTheta(location, None, factor, VarianceParts(within - privacy, privacy, between)),
        location.mean(axis=0),
        np.sqrt(privacy + between),
        mean,
        np.sqrt(np.maximum(total_squares / size - mean**2, 0.0)),
        draws.acceptance,
        draws.rhat,
        effective,
    )


class _Scores:
    """Points of the records' score h given an information matrix, the weights' trace and a noise variance."""

    def __init__(
        self,
        trace: GramTrace,
        level: float,  # the noise variance
        prior_variance: float,  # of a weight, over the noise variance
        # information, mean_noise: (p, p)
        information: FloatArray,
        mean_noise: FloatArray,
        rng: np.random.Generator,
    ) -> None:
        own, weights, p = trace.variance, trace.at(level), information.shape[0]
        prior = level * prior_variance * information @ information + weights.score_variance * information
        observed = information @ weights.position_mean - weights.gradient_mean / weights.sample_rate
        factor = linalg.cholesky(prior + mean_noise, lower=True)
        half = linalg.solve_triangular(factor, prior, lower=True)
        whitened = linalg.solve_triangular(factor, observed, lower=True)
        values, vectors = np.linalg.eigh(prior - half.T @ half)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        score = half.T @ whitened + _normal_points(p, rng) @ root.T
        # The share of the level's covariance that is in proportion to the noise variance, by direction.
        self._share, vectors = np.linalg.eigh(linalg.solve_triangular(factor, half.T, lower=True))
        self._level, self._square = level, np.square(whitened @ vectors)
        self._inside = np.linalg.inv(information / weights.score_variance + np.eye(p) / (level * prior_variance))
        self._location = score @ self._inside / weights.score_variance
        values, vectors = np.linalg.eigh(information)
        nonzero = values > NULL * values[-1]
        values, vectors = values[nonzero], vectors[:, nonzero]
        offset = own.position_mean @ vectors - (score @ vectors) / values
        moved = float(np.sum(information * own.position_cov) + np.diag(information) @ own.scale_square)
        # Residuals at the iterates exceed the records' own by (mu_t - mle)' X'X (mu_t - mle) and by q's spread.
        self.found = own.residual - (np.square(offset) @ values + moved) / (trace.clip_slope * trace.n_records)
        self._size, self._lost, self._error, self._spread = trace.n_records, values.size, own.error, own.spread

    def log_likelihood(self, variance: FloatArray) -> FloatArray:
        """Return the log density of the noise variance's trace at each point, (K, c) for `variance` (c,)."""
        spread = self._error**2 + 2.0 * self._spread * np.square(variance) / self._size
        mean = variance * (1.0 - self._lost / self._size)
        return np.asarray(-0.5 * np.square(self.found[:, None] - mean) / spread - 0.5 * np.log(spread))

    def log_level(self, variance: FloatArray) -> FloatArray:
        """Return the log density of the weights' mean gradient, over that at the level, (c,) for `variance` (c,)."""
        ratio = 1.0 + np.outer(variance / self._level - 1.0, self._share)
        return np.asarray(-0.5 * np.sum(np.log(ratio) + self._square * (1.0 / ratio - 1.0), axis=1))

    def reach(self) -> tuple[float, float]:
        """Return the range of the noise variance by its trace."""
        mean = float(self.found.mean())
        width = np.sqrt(self._error**2 + 2.0 * self._spread * mean**2 / self._size + self.found.var())
        return mean - 8.0 * float(width), mean + 8.0 * float(width)

    def weights(self) -> tuple[FloatArray, FloatArray]:
        """Return mean (p,) and covariance (p, p) of the weights given all this and the noise variance's trace."""
        log_share = self.log_likelihood(np.array([self._level]))[:, 0]
        share = np.exp(log_share - log_share.max())
        share /= share.sum()
        mean = share @ self._location
        centred = self._location - mean
        return mean, self._inside + (centred * share[:, None]).T @ centred


def _normal_points(p: int, rng: np.random.Generator) -> FloatArray:
    """Return points (K, p) in pairs of opposite sign, of covariance I exactly."""
    half = rng.standard_normal((max(_POINTS // 2, 2 * p), p))
    half = half @ np.linalg.inv(np.linalg.cholesky(half.T @ half / half.shape[0])).T
    return np.concatenate([half, -half])


@dataclass(frozen=True)
class _VarianceGiven:
    """The noise variance given an information matrix: values and probabilities, and the law of rho."""

    values: FloatArray
    probability: FloatArray
    mean: float
    rho_mean: float
    rho_variance: float
    log_evidence: float


def _variance_given(scores: _Scores, model: LinearRegression) -> _VarianceGiven:
    """Return the noise variance's posterior given the information and the traces."""
    shape, scale = model.variance_shape, model.variance_rate
    low, high = (float(item) for item in scale / special.gammainccinv(shape, [TAIL, 1.0 - TAIL]))
    least, most = scores.reach()
    low, high = min(max(low, least), 0.5 * high), max(min(high, most), 2.0 * low)
    logs = np.linspace(np.log(low), np.log(high), CELLS)
    v = np.exp(logs)
    likelihood = special.logsumexp(scores.log_likelihood(v), axis=0) + scores.log_level(v)
    log_density = likelihood - shape * logs - scale / v  # of log v
    top = float(np.max(log_density))
    density = np.exp(log_density - top)
    mass = float(density.sum())
    density /= mass
    rho = softplus_inverse(v)
    rho_mean = float(density @ rho)
    return _VarianceGiven(
        values=v,
        probability=density,
        mean=float(density @ v),
        rho_mean=rho_mean,
        rho_variance=float(density @ np.square(rho - rho_mean)),
        log_evidence=top + float(np.log(mass * (logs[1] - logs[0]))),
    )
