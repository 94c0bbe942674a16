"""From the release of a private Newton run of a regression to a posterior of its weights, and of its noise variance.

A mixture of normal laws over draws of the second moments, as many as quantiles need; a sampler of one's own may draw
them, which knows a log density and nothing else.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import resolve_progress
from dpinfer.errors import NumericalError
from dpinfer.inference import _native
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.checks import check_draws, count_unresolved
from dpinfer.inference.newton.error_law import ErrorDraws
from dpinfer.inference.newton.moments_law import MomentsDraws, MomentsLaw
from dpinfer.inference.newton.scores import (
    BoundedScores,
    GivenMoments,
    LinearScores,
    NoiseScalePrior,
    usual_spread,
)
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import NewtonRequest, model_of
from dpinfer.models import GeneralizedLinearModel, LinearRegression
from dpinfer.models.base import sigmoid, softplus, softplus_inverse
from dpinfer.release import GlmNewtonRelease, NewtonRelease

# From positions (S, d) to values (S,) and gradients (S, d).
LogDensity: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray]]

_BETWEEN = 5  # steps from one draw to the next: memory of chains alone, whose sets are independent


class Sampler(Protocol):
    """A sampler of many chains at once, for a posterior of a private Newton run: see docs/architecture.md."""

    def init(self, position: FloatArray, logdensity: LogDensity) -> tuple[Any, ...]:
        """Return the state of chains that begin at positions (S, d), which are its first item."""

    def step(self, state: tuple[Any, ...], logdensity: LogDensity, rng: np.random.Generator) -> tuple[Any, ...]:
        """Return the next state, under which the density of `logdensity` is invariant."""


class SampledErrors(ErrorDraws):
    """Draws of errors by a sampler that knows nothing but their log density.

    Its positions have a law not far from standard normal: errors less the mean of all proposals, over their spread.
    """

    def __init__(
        self,
        law: MomentsLaw,
        sampler: Sampler,
        size: int,  # number of chains
        n_warmup: int,  # steps before a draw
        rng: np.random.Generator,
    ) -> None:
        super().__init__(law)
        self._at = self._share @ self._place
        away = np.sqrt(self._share)[:, None] * (self._place - self._at)
        spread = np.tensordot(self._share[:, None, None] * self._root, self._root, axes=((0, 2), (0, 2)))
        self._scale = np.linalg.cholesky(spread + away.T @ away)
        self._sampler = sampler
        self._state = sampler.init(rng.standard_normal((size, len(self._at))), self.logdensity)
        for _ in range(n_warmup):
            self._state = sampler.step(self._state, self.logdensity, rng)

    def logdensity(self, position: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the log density at positions (S, d), up to a constant, and its gradient, (S,) and (S, d)."""
        value, gradient = self.log_density(self._at + position @ self._scale.T)
        return value, gradient @ self._scale

    def draw(self, size: int, sets: int, rng: np.random.Generator) -> MomentsDraws:
        """Draw t, c and M given the errors of all chains, some steps after the draw before."""
        for _ in range(_BETWEEN):
            self._state = self._sampler.step(self._state, self.logdensity, rng)
        error = self._at + np.asarray(self._state[0]) @ self._scale.T
        size, nodes = len(error), len(self._kept)  # chains, whatever is asked for
        of, each = np.repeat(np.arange(nodes), size), np.tile(error, (nodes, 1))
        logs = self._score_given(of, each)[0].reshape(-1, size)
        chosen = np.argmax(logs + rng.gumbel(size=logs.shape), axis=0)
        centre = self._score_given(chosen, error)[1:]
        return self._moments_given(error, chosen, centre, size, sets, rng)

    def log_density(self, error: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the log density of errors (S, d), up to a constant, and its gradient, (S,) and (S, d)."""
        size = len(error)
        of, each = np.repeat(np.arange(len(self._kept)), size), np.tile(error, (len(self._kept), 1))
        mass, mean, precision, below, above, _ = self._score_given(of, each)
        # Mean and mean square of c, a normal variable that is cut at the ends.
        root, log_share = np.sqrt(precision), above + np.log1p(-np.exp(below - above))
        low, high = ((end - mean) * root for end in self._ends)
        at = [np.exp(-0.5 * np.square(z) - log_share) / math.sqrt(2.0 * math.pi) for z in (low, high)]
        moved = (at[0] - at[1]) / root
        square = np.square(mean + moved) + (1.0 + low * at[0] - high * at[1]) / precision - np.square(moved)
        c, square = (mean + moved)[:, None], square[:, None]
        # What a score misses is b0 - c b1, of covariance C: u0, u1 are the inverse of C times it.  Nodes by draws.
        variance, means, slope = self._variance, self._mean, self._slope[:, None]
        e, c, twice = (part.reshape(-1, size, part.shape[1]) for part in (each, c, square))
        covariance = variance[:, None] * e[..., None] * e[..., None, :]
        np.einsum("ksii->ksi", covariance)[:] += self.noise[:, None] + np.square(e) @ variance
        inverse = np.linalg.inv(covariance)
        u0, u1 = (np.einsum("ksij,ksj->ksi", inverse, part) for part in (self.score - e @ means, slope * e))
        gradient = u0 @ means + c * (slope * u0 - u1 @ means) - twice * slope * u1
        gradient += e * ((np.square(u0) - 2.0 * c * u0 * u1 + twice * np.square(u1)) @ variance)
        along = [(e * part) @ variance for part in (u0, u1)]
        gradient += u0 * along[0] - c * (u0 * along[1] + u1 * along[0]) + twice * u1 * along[1]
        gradient -= e * (np.einsum("ksii->ksi", inverse) @ variance)
        gradient -= np.einsum("ksij,ksj,kij->ksi", inverse, e, variance, optimize=True)
        gradient -= (error + self.position) @ self.prior_precision
        logs = mass.reshape(-1, size)
        value = special.logsumexp(logs, axis=0)
        return value, np.sum(np.exp(logs - value)[:, :, None] * gradient, axis=0)


_LEVELS = np.array([0.05, 0.95])  # ends of 90% intervals: format


@dataclass(frozen=True)
class MixtureError:
    """Errors of n coordinates."""

    # (n,): the larger standard error of the 5% and 95% quantiles, in posterior standard deviations
    quantile: FloatArray
    # (n,): number of independent draws of the posterior with as exact a mean: more than were drawn, since each of these
    # is a normal distribution
    equivalent_draws: FloatArray


def mixture_error(
    # location, variance: (S, n)
    location: FloatArray,
    variance: FloatArray,
    sets: int,  # how many independent sets the draws of a batch are, innermost
    batches: int = 1,  # independent ones, outermost
) -> MixtureError:
    """Return the Monte Carlo error of a mixture of N(location, variance) over draws in independent sets.

    Notes
    -----
    Sets are independent, so the error of a mean is that of the sets' own means.  A quantile's error is that of the
    distribution function there, divided by the density (Doss, Flegal, Jones and Neath 2014, with the distribution
    function of each normal in place of an indicator).
    """
    ends = NormalMixtures.from_draws(location, variance).quantile(_LEVELS)
    mean = location.mean(axis=0)
    total = variance.mean(axis=0) + np.square(location - mean).mean(axis=0)

    def error(values: FloatArray) -> FloatArray:
        by_set = values.reshape(batches, -1, sets, values.shape[1]).mean(axis=1)
        return np.asarray(np.sqrt(by_set.var(axis=(0, 1), ddof=1) / (batches * sets)))

    scale, spread = np.sqrt(variance), np.sqrt(total)
    worst = np.zeros_like(mean)
    for end in ends:
        z = (end - location) / scale
        density = (np.exp(-0.5 * z**2) / scale).mean(axis=0) / np.sqrt(2.0 * np.pi)
        worst = np.maximum(worst, error(special.ndtr(z)) / density)
    least = 1e-300 * np.maximum(total, 1.0)
    return MixtureError(worst / spread, total / np.maximum(np.square(error(location)), least))


_GROWTH = 1.3, 2.0  # ends of the factor by which draws grow
_SETS, _FEWEST = 32, 8  # independent sets of a batch of draws; of many weights
_CHAINS, _WARM_UP = 8, 100  # of a set, where a sampler draws; its steps before, unless the request has others
_ENTRIES, _DRAWN, _NORMAL = 50_000, (32, 64), (1, 16)  # draws of a set: as many as entries allow, where drawn or not
_KEPT, _MOST = (3_000_000, 180_000_000), (24_576, 98_304)  # entries of factors, draws: while they cost little; in all

_TAKEN = (
    "The noise hides directions of so many weights that the posterior is taken for normal: intervals may be much too "
    "narrow. "
)


@dataclass(frozen=True)
class Mixture:
    """A posterior distribution, its Monte Carlo error, and both in words."""

    distribution: DrawnTheta
    error: MixtureError
    words: str
    variance: FloatArray  # (S, n): given each draw of the rest
    misfit: FloatArray  # (S, k): chi-squared sums of the draws


def mixture_of(scores: LinearScores | BoundedScores, request: NewtonRequest) -> Mixture:
    """Draw second moments until the error of both quantiles is below 5% of the posterior standard deviation.

    Raises
    ------
    NumericalError
        If the error stays larger, unless `check_convergence` is False or `fallback` allows a warning.
    """
    report = resolve_progress(request.progress, "posterior")
    d, rng = len(scores.noisy), np.random.default_rng(request.seed)
    middle = scores.middle()
    law = MomentsLaw(scores.noisy, scores.stddev, middle.mean_scores(scores.whitening))
    hidden = count_unresolved(scores.noisy, scores.stddev) > 0
    errors: ErrorDraws | None = None
    each, sets = int(np.clip(_ENTRIES // d**2, *_NORMAL)), _SETS
    if request.sampler is not None:
        n_warmup = _WARM_UP if request.n_warmup is None else request.n_warmup
        errors, each = SampledErrors(law, request.sampler, _SETS * _CHAINS, n_warmup, rng), _CHAINS
    elif _drawn(law, hidden):
        errors = ErrorDraws(law, _native.threads(request.threads))
        each = int(np.clip(_ENTRIES // d**2, *_DRAWN))
        sets = int(np.clip(_SETS * _ENTRIES // (each * d**2), _FEWEST, _SETS))
    size = each * sets
    few, most = (max(min(entries // d**2, draws) // size, 1) for entries, draws in zip(_KEPT, _MOST, strict=True))
    kept: list[tuple[FloatArray, ...]] = []
    wanted = 1
    report(0, most)
    while True:
        while len(kept) < wanted:
            draws = errors.draw(size, sets, rng) if errors else law.normal(size, sets, rng)
            if errors and not kept and errors.hidden and errors.counted < tuning.TUNING.definite:
                errors.hidden = 0
                continue
            given = scores.given(draws, rng)
            kept.append((*_normal_laws(given), given.misfit))
            report(min(len(kept), most - 1), most)
        location, variance = (np.concatenate([part[k] for part in kept]) for k in (0, 1))
        # The states of chains continue from batch to batch: these are not independent.
        error = mixture_error(location, variance, sets, 1 if request.sampler else len(kept))
        worst = float(np.max(error.quantile))
        cheap = wanted < few and request.sampler is None
        aim, end = (tuning.TUNING.fine, few) if cheap else (tuning.TUNING.aim, most)
        if worst < aim or wanted >= most:
            break
        growth = float(np.clip(1.2 * (worst / aim) ** 2, *_GROWTH))
        wanted = min(math.ceil(growth * wanted), end)
    factor, misfit = (np.concatenate([part[k] for part in kept]) for k in (2, 3))
    report(most, most)
    taken = ""
    if errors is None and hidden:
        worst, taken = max(worst, tuning.TUNING.rough), _TAKEN
        error = replace(error, quantile=np.maximum(error.quantile, worst))
    said = (
        f"{taken}Monte Carlo error of the 5% and 95% quantiles: at most {worst:.1%} of a posterior standard deviation "
        f"(means as exact as of {np.min(error.equivalent_draws):.0f} independent draws or more)"
    )
    if worst >= tuning.TUNING.error:
        if request.check_convergence and not request.fallback:
            raise NumericalError(f"{said}: pass check_convergence=False")
        said = f"{said}: more than {tuning.TUNING.error:.0%}"
    data = np.zeros((location.shape[1], location.shape[1]))
    data[:d, :d] = middle.without_noise(draws, scores.whitening)
    data[d:, d:] = variance[:, d:].mean(axis=0)
    return Mixture(theta_of_draws(location, variance, factor, data), error, f"{said}.", variance, misfit)


def _drawn(law: MomentsLaw, hidden: bool) -> bool:
    """Return whether errors are drawn, and the posterior is not taken for normal."""
    chosen = tuning.TUNING
    return len(law.eigenvalues) <= chosen.many_weights and (hidden or law.bent > chosen.near_hidden)


def _normal_laws(found: GivenMoments) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return mean, variance, (S, n) each, and factors (S, n, n) of precisions of all parameters."""
    mean, variance, factor = found.mean, found.variance, found.factor
    if found.log_scale is None or found.log_scale_stddev is None:
        return mean, variance, factor
    square = np.exp(2.0 * found.log_scale)
    rho = softplus_inverse(square)
    spread = 2.0 * square * found.log_scale_stddev / sigmoid(rho)
    wider = np.zeros((len(mean), mean.shape[1] + 1, mean.shape[1] + 1))
    wider[:, :-1, :-1], wider[:, -1, -1] = factor, 1.0 / spread
    return np.column_stack((mean, rho)), np.column_stack((variance, np.square(spread))), wider


def theta_of_draws(
    # location, variance: (..., n)
    location: FloatArray,
    variance: FloatArray,
    factor: FloatArray,  # (S, n, n): lower Cholesky factors of the precisions
    data: FloatArray,  # (n, n): covariance without privacy noise
) -> DrawnTheta:
    """Return the distribution of theta, N(location, variance) in every draw, and the causes of its variance.

    Variance beyond the sampling error is due to the privacy noise, which includes unknown second moments.
    """
    n = location.shape[-1]
    location, variance = location.reshape(-1, n), variance.reshape(-1, n)
    total = variance.mean(axis=0) + location.var(axis=0)
    from_data = np.minimum(np.diag(data), total)
    parts = VarianceParts(from_data, total - from_data, np.zeros_like(total))
    return DrawnTheta(location, None, factor, parts, data)


_WALL = 0.02  # of log sigma, beyond what bounds allow: tolerance
_TAIL = 0.05  # of a prior, on either side of what the summary says of it: format


def newton_posterior(release: NewtonRelease, request: NewtonRequest) -> Posterior:
    """Infer weights and noise variance from the release of a private Newton run.

    **Privacy.** Post-processing of a NewtonRelease: it costs nothing.

    Parameters
    ----------
    request : NewtonRequest
        `prior` is that of the noise variance: "weak" (default), log-normal around the spread of the responses that the
        run has found, over four powers of ten of the standard deviation (95%); "model", the model's inverse gamma.
        `n_samples` and `n_warmup` change nothing: the posterior is a mixture of normal laws over as many draws of the
        second moments as the Monte Carlo error needs, which is below 5% of the posterior standard deviation in the 5%
        and 95% quantiles.  Draws of the posterior come from the mixture.

    Returns
    -------
    Posterior
        With ``diagnostics.mcse``, the larger Monte Carlo error of the two quantiles in posterior standard deviations,
        and ``diagnostics.equivalent_draws``, both (n,); ``diagnostics.warnings``, ``fit_pvalue``, ``prior_pvalue`` and
        ``n_unresolved`` of :class:`Checks`, whose verdict the summary prints.

    Raises
    ------
    TypeError, ValueError
        If a setting does not fit.
    NumericalError
        If the error stays larger and the request has no fallback.

    Notes
    -----
    docs/derivations/private-newton.md.  Given the second moments M and the noise variance the scores are linear in the
    weights, which are integrated out; M and the noise variance are drawn.
    """
    model = model_of(release, request.model)
    if not isinstance(model, LinearRegression):
        raise TypeError(f"model must be a LinearRegression, got {type(model).__name__}")
    name = "weak" if request.prior == "auto" else request.prior_name
    density, said = noise_prior(release, model, name)
    scores = LinearScores(release, model, density)
    found = mixture_of(scores, request)
    variance = softplus(found.distribution.location[:, -1]) * model.prior_scale**2
    if model.fit_intercept:
        said += ", and of the intercept, whose standard deviation is the spread of the responses more"
    return _posterior(release, model, scores, found, prior=name, words=f"{said}.\n{found.words}", variance=variance)


def glm_newton_posterior(
    release: GlmNewtonRelease,
    request: NewtonRequest,  # as for a linear regression
) -> Posterior:
    """Infer the weights from the release of a private Newton run of a logistic, probit or Poisson regression.

    **Privacy.** Post-processing of a GlmNewtonRelease: it costs nothing.

    Returns
    -------
    Posterior
        With ``diagnostics.mcse``, ``diagnostics.equivalent_draws`` and the checks, as for a linear regression.

    Raises
    ------
    TypeError, ValueError
        If a setting does not fit.
    NumericalError
        If the Monte Carlo error stays large and the request has no fallback.

    Notes
    -----
    docs/derivations/private-newton.md, "The posterior".
    """
    model = model_of(release, request.model)
    if not isinstance(model, GeneralizedLinearModel):
        raise TypeError(f"model must be the regression of the release, got {type(model).__name__}")
    if type(model).__name__ != release.model_spec.get("kind", type(model).__name__):
        raise TypeError(f"model must be a {release.model_spec['kind']}, got {type(model).__name__}")
    scores = BoundedScores(release, model)
    found = mixture_of(scores, request)
    variance = np.full(len(found.distribution.location), model.prior_scale**2)
    return _posterior(release, model, scores, found, prior="model", words=found.words, variance=variance)


def noise_prior(release: NewtonRelease, model: LinearRegression, name: str) -> tuple[NoiseScalePrior, str]:
    """Return the prior of the noise variance, with its text for the summary."""
    shape, rate = model.variance_shape, model.variance_rate
    end = math.log(model.largest_spread or math.inf)

    def beyond(eta: FloatArray) -> FloatArray:
        # Smooth on the grid of log sigma, and steep: what bounds exclude has no weight.
        return np.asarray(-0.5 * np.square(np.maximum(eta - end, 0.0) / _WALL))

    if name == "weak":
        spread = usual_spread(release, model)
        loc, stddev = math.log(spread) + tuning.TUNING.log_scale_shift, tuning.TUNING.log_scale_stddev
        tail = float(special.ndtri(1.0 - _TAIL))
        low, high = (math.exp(2.0 * (loc + sign * tail * stddev)) for sign in (-1.0, 1.0))
        words = f"Prior of the noise variance: weak, 90% of it between {low:.3g} and {high:.3g}"
        return (
            lambda eta: beyond(eta) - 0.5 * np.square((eta - loc) / stddev),
            f"{words} (squared units of the response)",
        )
    low, high = model.variance_prior_quantile([_TAIL, 1.0 - _TAIL])
    words = f"Prior of the noise variance: the model's inverse gamma, 90% of it between {low:.3g} and {high:.3g}"
    return lambda eta: beyond(eta) - 2.0 * shape * eta - rate * np.exp(-2.0 * eta), words


def _posterior(
    release: NewtonRelease | GlmNewtonRelease,
    model: GeneralizedLinearModel,
    scores: LinearScores | BoundedScores,
    found: Mixture,
    *,
    prior: str,
    words: str,
    variance: FloatArray,
) -> Posterior:
    d = release.n_coef
    # The prior of a linear regression's intercept has the spread of the responses, too.
    n_checked = d - (isinstance(model, LinearRegression) and model.fit_intercept and d > 1)
    checks = check_draws(
        release,
        misfit=found.misfit,
        freedom=scores.freedom,
        location=found.distribution.location[:, :n_checked],
        variance=found.variance[:, :n_checked],
        prior_variance=variance,
    )
    return Posterior(
        names=release.names,
        method="newton",
        prior=prior,
        distribution=found.distribution,
        model=model,
        guarantee=release.guarantee,
        diagnostics=PosteriorDiagnostics(
            n_steps_used=release.scores.shape[0],
            mcse=found.error.quantile,
            equivalent_draws=found.error.equivalent_draws,
            prior_pvalue=checks.prior_pvalue,
            fit_pvalue=checks.fit_pvalue,
            n_unresolved=checks.n_unresolved,
            warnings=tuple(checks.warnings),
            verdict=f"{words}\n{checks.verdict}",
        ),
    )
