"""From the release of a private Newton run for the population's coefficients to their posterior."""

import math
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference import _native
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.checks import Comparison, Told, compare, prior_conflict, told, weighed, within
from dpinfer.inference.newton.population_remarks import verdict, warnings
from dpinfer.inference.newton.posterior import MixtureError, mixture_error, theta_of_draws
from dpinfer.inference.newton.strata import BetweenStrata
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.mixture import in_parts
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, inverse_factors
from dpinfer.inference.request import OwnPopulationRequest, model_of
from dpinfer.models import GeneralizedLinearModel, LinearRegression, OwnModel
from dpinfer.models import tuning as common
from dpinfer.models.base import sigmoid, softplus_inverse
from dpinfer.models.clipping import SizeShares, combined, differences, pointed
from dpinfer.models.likely_records import Curves, KnownCurves, LikelyRecords
from dpinfer.models.whitening import at_least, steady_solve, symmetric_noise
from dpinfer.release import ClusteredPopulationRelease, OwnPopulationRelease, PopulationRelease
from dpinfer.release.newton.population import NO_WEIGHTS, PopulationSums

# Draws of bread and meat in the first round, and at most (memory); each round has as many as its error, to fall below
# so much of `Tuning.aim`, needs, and at most doubles them.  Half of the draws mirror the others, within a batch, so
# that errors in proportion to the noise cancel.  Batches show the error to 1 / sqrt(2 * 39), 11%.
_DRAWS, _MOST, _BELOW, _BATCHES = 160, 51_200, 0.9, 40
_MOST_RELIEF = 100.0  # of which the fourth power counts: no prior; tolerance
_SWEEPS = 6  # weights of scores depend on the zero, and the zero on them: tolerance


@dataclass(frozen=True, eq=False)
class Population:
    """Quantities computed from a release, in the coordinates of the scores, in which the bread is the identity."""

    release: PopulationSums
    model: GeneralizedLinearModel | OwnModel
    wider: float = 1.0  # the prior's standard deviations over the declared ones, for the verdict
    relief: FloatArray | float = 1.0  # (d,): of the prior's variances, where the release determines a weight
    threads: int = 1

    @cached_property
    def sizes(self) -> SizeShares:
        """Shares of the scores by norm."""
        release, alone, unit = self.release, self.scores_per_row == 1.0, self.release.size_unit
        expected = self.curves.size_shares(release.positions[0], unit) if alone else None
        trace, noise = np.trace(release.meat) / unit**2, math.sqrt(release.n_coef) * release.meat_stddev / unit**2
        bound = release.score_bound / unit
        square = None if self.dependent or self.weighted else (float(trace), noise, bound)
        return SizeShares(release.sizes, release.sizes_stddev, expected, square=square)

    @cached_property
    def lengths(self) -> SizeShares:
        """Shares of the records by length."""
        return SizeShares(self.release.lengths, self.release.lengths_stddev, groups=False)

    @cached_property
    def curves(self) -> Curves | KnownCurves:
        """How the bread changes with the weights."""
        white = self.release.score_transform
        if isinstance(self.release, OwnPopulationRelease):
            return KnownCurves(self.release.change_points, self.release.changes, self.release.likely_sizes)
        if isinstance(self.model, (OwnModel, LinearRegression)):
            return Curves(white)
        start = np.asarray(np.linalg.solve(white.T, self.release.bread_position))
        return Curves(white, LikelyRecords.of_moments(self.model, vars(self.release)), start)

    @cached_property
    def zero(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The zero of the scores, the weight of each, and their covariance by noise, distance and clip, (T, T)."""
        release, d = self.release, self.release.n_coef
        at, noise, clipped = release.positions, np.diag(np.square(release.score_stddev)), self.clipped
        bread, prior = self.curvatures(1, None)[0], self.prior_precision
        least = float(np.trace(self.meat[0])) / d / release.n_records
        found, first = at[-1], getattr(release, "n_approach", 0)
        for _ in range(_SWEEPS):
            changes = np.array([self.curves.change(0.5 * (point + found)) for point in at])
            between = changes @ bread @ changes
            said = release.scores - np.einsum("tij,tj->ti", between, found - at)
            away = np.diag(tuning.TUNING.step_error**2 * np.mean(np.square(found - at), axis=1))
            away[range(first), range(first)] /= tuning.TUNING.step_error**2  # the bread is that of a later point
            if not self.dependent:
                later = slice(first, None)
                away[later, later] *= pointed(away[later, later], (noise + clipped)[later, later], said[later], 1.0)
            clipped = self.clipped if self.weighted else pointed(self.clipped, noise + away, said) * self.clipped
            covariance = noise + away + clipped
            weight, variance = combined(covariance)
            slope = np.tensordot(weight, between, axes=1)
            said = weight @ (release.scores + np.einsum("tij,tj->ti", between, at))
            trusted = 1.0 / (least + variance)
            next_point = steady_solve(trusted * slope @ slope + prior, trusted * slope @ said)
            found = self.curves.within_reach(found, next_point)
        return found, weight, covariance

    @cached_property
    def _way(self) -> tuple[FloatArray, FloatArray]:
        """How the bread changes on the way from each score's point to the zero, (T, d, d), and that way, (T, d)."""
        at, found = self.release.positions, self.zero[0]
        changes = np.array([self.curves.change(0.5 * (point + found)) for point in at])
        return changes, np.einsum("tij,tj->ti", changes, found - at)

    def _scores_at_zero(self, breads: FloatArray) -> FloatArray:
        """Return what each score says of the zero, by the bread on the way there; (S, T, d) for breads (S, d, d)."""
        changes, way = self._way
        return np.asarray(self.release.scores - np.einsum("tij,stj->sti", changes, way @ breads))

    @cached_property
    def _change(self) -> FloatArray:
        """How the bread changes between its point and the zero."""
        return self.curves.change(self.zero[0])

    @cached_property
    def clipped(self) -> FloatArray:
        """Covariance of the shifts of a coordinate of each mean score by its clip, (T, T)."""
        release = self.release
        unit = release.size_unit / math.sqrt(release.n_coef) * self.scores_per_row
        bounds = release.score_bounds / release.size_unit
        found = self.sizes.weight_covariance(bounds) if self.weighted else self.sizes.clip_covariance(bounds)
        return np.asarray(found * unit**2)

    @property
    def weighted(self) -> bool:
        """Whether long scores have less weight, by their features alone."""
        return self.release.weight_bound < NO_WEIGHTS

    @property
    def _least_bread(self) -> float:
        return common.TUNING.least_weighted if self.weighted else common.TUNING.least_level

    @cached_property
    def clusters(self) -> SizeShares | None:
        """Sums of clusters by norm, per row, where rows are protected and clusters are not."""
        release = self.release
        if not isinstance(release, ClusteredPopulationRelease):
            return None
        rows = SizeShares(release.sizes, release.sizes_stddev)
        return SizeShares.of_sums(release.cluster_sizes, release.cluster_sizes_stddev, release.n_coef, rows)

    @property
    def dependent(self) -> bool:
        """Whether scores are summed over rows that may depend on each other."""
        return self.scores_per_row != 1.0 or self.clusters is not None

    @property
    def scores_per_row(self) -> float:
        """1, or units per row where scores are those of units."""
        return self.release.n_scores / self.release.n_records

    @cached_property
    def between(self) -> BetweenStrata | None:
        """Part of the meat between strata, as far as it exceeds the privacy noise; None without strata."""
        release = self.release
        if not isinstance(release, PopulationRelease) or not release.strata.size:
            return None
        noise, unit = release.strata_stddev, release.strata_unit
        shares = release.strata[:, -1] / unit
        return BetweenStrata.of(release.strata[:, :-1], shares, noise, noise / unit, release.n_records)

    @property
    def within_strata(self) -> bool:
        """Whether a part of the meat is taken off as that between strata."""
        return self.between is not None and bool(self.between.shown.any())

    @cached_property
    def meat(self) -> tuple[FloatArray, float]:
        """The meat, shrunk to a multiple of the identity, and the standard deviation of its remaining noise."""
        noisy, stddev, d = self.release.meat, self.release.meat_stddev, self.release.n_coef
        if self.clusters is not None and isinstance(self.release, ClusteredPopulationRelease):
            # What is cut off the longest sums, all of it as squares add up, is counted as if it pointed anywhere.
            unit = self.release.size_unit
            lost = 2.0 * self.clusters.lost_square(self.release.cluster_bound / unit) * unit**2 / d
            noisy = np.asarray(noisy + lost * np.eye(d))
        elif not self.weighted:
            noisy = np.asarray(noisy + self._lost_square / d * np.eye(d))
        if self.between is not None:
            noisy, stddev = self.between.taken_off(noisy, stddev)
        level = max(float(np.trace(noisy)) / d, common.TUNING.least_level * self.usual_variance)
        away = noisy - level * np.eye(d)
        energy = float(np.sum(np.square(away))) / (0.5 * d * (d + 1)) - stddev**2
        energy = max(energy, common.TUNING.least_energy * stddev**2)
        share = energy / (energy + stddev**2)
        remaining = math.sqrt(share) * stddev
        if self.between is not None:
            remaining = math.hypot(remaining, self.between.stddev)
        return at_least(level * np.eye(d) + share * away, common.TUNING.least_level * level), remaining

    @property
    def _lost_square(self) -> float:
        """What the bound of the meat cuts off its trace."""
        release = self.release
        unit = release.size_unit
        return 2.0 * self.sizes.lost_square(release.score_bound / unit) * unit**2 * self.scores_per_row

    @property
    def usual_variance(self) -> float:
        """Mean square of a coordinate of the scores, from the shares of their sizes."""
        sizes = self.clusters or self.sizes
        square = sizes.mean_square
        if self.weighted and not self.dependent:
            square = float(np.sum(sizes.squares_between(0.0, self.release.score_bound / self.release.size_unit)))
        return max(square, 1e-6) * self.release.size_unit**2 / self.release.n_coef * self.scores_per_row

    @cached_property
    def residual_variance(self) -> tuple[float, float]:
        """The residuals' mean square and its standard deviation: of a linear regression, noise and sampling counted."""
        return within(*self._residual_variance, getattr(self.model, "largest_spread", None), self._told)

    @property
    def _residual_variance(self) -> tuple[float, float]:
        release, d = self.release, self.release.n_coef
        weights = getattr(self.model, "survey_weights", None)
        effect = 1.0 if weights is None else weights.design_effect
        if self.dependent or effect is None:
            # Scores are sums over units or clusters, or weighted records: for residuals, their size during the steps.
            usual = release.size_unit**2 * self.scores_per_row / d
            return usual, tuning.TUNING.shares_error * usual
        if getattr(self.model, "fit_intercept", False):
            constant = np.linalg.solve(release.score_transform.T, np.eye(d)[-1])
            square = float(constant @ constant)
            value, noise = float(constant @ release.meat @ constant), release.meat_stddev * square
        else:
            value, noise = float(np.trace(release.meat)) / d, release.meat_stddev / math.sqrt(d)
        value, noise, guess = value / effect, noise / effect, self.usual_variance / effect
        bound = release.score_bound / release.size_unit
        lost = self.sizes.lost_square(bound) * release.size_unit**2 / d / effect
        value += lost
        first, second = noise**2 + lost**2, (tuning.TUNING.shares_error * guess) ** 2
        variance = (value / first + guess / second) / (1.0 / first + 1.0 / second)
        variance = max(variance, common.TUNING.least_level * guess)
        sampling = variance**2 * max(self.sizes.kurtosis - 1.0, 2.0) / release.n_records
        return variance, math.sqrt(1.0 / (1.0 / first + 1.0 / second) + sampling)

    @cached_property
    def prior_precision(self) -> FloatArray:
        """The prior's, of a point."""
        transform = self.release.score_transform
        return np.asarray((transform / self.prior_variance) @ transform.T)

    @property
    def origin(self) -> FloatArray:
        """The weights of the point 0: the prior's mean."""
        release = self.release
        return release.prior_mean if isinstance(release, OwnPopulationRelease) else np.zeros(release.n_coef)

    @cached_property
    def prior_variance(self) -> float | FloatArray:
        """Of each weight."""
        if isinstance(self.model, OwnModel):
            return np.square(self.model.parameters.prior_scale) * self.relief
        scale = self.residual_variance[0] if isinstance(self.model, LinearRegression) else 1.0
        return self.model.prior_scale**2 * scale * self.relief

    def relieved(self) -> "Population":
        """Return the same without a prior of the weights that the release determines: likelihoods have none.

        A prior's variance grows by the factor 1 + (determined p / v)**4, p the prior's variance, v the posterior's.
        """
        location, variance, *_ = self.draw(_DRAWS, np.random.default_rng(0))
        found = location.var(axis=0) + variance.mean(axis=0)
        ratio = np.minimum(tuning.TUNING.determined * self.prior_variance / found, _MOST_RELIEF)
        return replace(self, relief=1.0 + ratio**4)

    def widened(self, times: float) -> "Population":
        """Return the same under a prior that is wider by a factor."""
        if isinstance(self.model, OwnModel):
            model = copy(self.model)
            model.parameters = copy(model.parameters)
            model.parameters.prior_scale = times * model.parameters.prior_scale
            return replace(self, model=model, wider=times * self.wider)
        return replace(
            self, model=replace(self.model, prior_scale=times * self.model.prior_scale), wider=times * self.wider
        )

    def curvatures(self, size: int, rng: np.random.Generator | None) -> FloatArray:
        """Return draws of the bread at its point, (size, d, d); without `rng`, the released one."""
        if rng is None:
            return self._bread_given(np.zeros((size, 1, 1)), np.ones((size, 1, 1)))
        return self._bread_given(*self._bread_noise(size, rng))

    def _bread_noise(self, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Draw the noise of the bread, (size, d, d), and factors of the expected loss by its bound, (size, 1, 1)."""
        noise = symmetric_noise(rng, size, self.release.n_coef, self.release.bread_stddev)
        removed = rng.uniform(0.0, 2.0, size=(size // 2, 1, 1))
        return noise, np.concatenate((removed, 2.0 - removed))

    def _bread_given(self, noise: FloatArray, removed: FloatArray) -> FloatArray:
        release, onward = self.release, self._onward
        grown = 1.0 + (1.0 / self.lengths.kept(release.bread_bound / release.length_unit) - 1.0) * removed
        return at_least(grown * (onward @ (release.bread + noise) @ onward.T), self._least_bread)

    @cached_property
    def _onward(self) -> FloatArray:
        """From the coordinates of the bread's pass to those of the scores."""
        return np.asarray(self.release.score_transform @ np.linalg.inv(self.release.bread_transform))

    def draw(self, size: int, rng: np.random.Generator) -> tuple[FloatArray, ...]:
        """Return the weights' mean, variance, precision's factor and sampling covariance for draws of bread and meat.

        Shapes (size, d), (size, d), (size, d, d) and, averaged in each part of the draws, (parts, d, d).
        """
        (meat, left), *_ = self.meat, self._way, self._change, self._told  # computed before threads share them
        drawn = self._bread_noise(size, rng)
        meats = meat + symmetric_noise(rng, size, self.release.n_coef, left)
        return in_parts(self._laws_given, self.threads, *drawn, meats, entries=meat.size)

    @cached_property
    def _told(self) -> Told | None:
        """Directions of which scores tell something, and the projection to them; None if all do."""
        return told(self.release, self.model)

    def _seen(self, breads: FloatArray) -> FloatArray:
        """Return breads that are zero where scores tell nothing."""
        return breads if self._told is None else self._told[1] @ breads @ self._told[1].T

    def _laws_given(self, noise: FloatArray, removed: FloatArray, meats: FloatArray) -> tuple[FloatArray, ...]:
        release, d = self.release, self.release.n_coef
        curvature = self._seen(self._bread_given(noise, removed))
        meats = at_least(meats, common.TUNING.least_level * float(np.trace(self.meat[0])) / d)
        at, weight, covariance = self.zero
        missed = weight @ self._scores_at_zero(curvature)
        change, transform = self._change, release.score_transform
        sampling = meats / release.n_records
        spread = sampling + float(weight @ covariance @ weight) * np.eye(d)
        # The score's derivative in the weights, which are the origin + transform' point.
        curvature = self._seen(change @ curvature @ change)
        slope = np.linalg.solve(transform, curvature)
        flat = self._told is not None
        inverse = (np.linalg.pinv(curvature, hermitian=True) if flat else np.linalg.inv(curvature)) @ transform
        said = weighed(spread, np.swapaxes(slope, 1, 2), self._told)
        precision = slope @ said
        precision[:, np.arange(d), np.arange(d)] += 1.0 / np.asarray(self.prior_variance)
        factor = np.asarray(np.linalg.cholesky(0.5 * (precision + np.swapaxes(precision, 1, 2))), dtype=np.float64)
        root = inverse_factors(factor)
        information = (missed + curvature @ at)[:, None, :] @ said
        mean = self.origin + (information @ np.swapaxes(root, 1, 2) @ root)[:, 0]
        data = np.mean(np.swapaxes(inverse, 1, 2) @ sampling @ inverse, axis=0, keepdims=True)
        return mean, np.einsum("sij,sij->sj", root, root), factor, data

    @cached_property
    def n_unresolved(self) -> int:
        """Number of directions in which noise hides the bread."""
        least = tuning.TUNING.unresolved * self.release.bread_stddev * math.sqrt(2.0 * self.release.n_coef)
        return int(np.count_nonzero(np.linalg.eigvalsh(self.release.bread) < least))

    @cached_property
    def information(self) -> Comparison | None:
        """White's comparison; None where it was not measured."""
        if isinstance(self.model, OwnModel) or self.model.survey_weights is not None or self.dependent:
            return None
        change = self._change
        breads = change @ self.curvatures(_DRAWS, np.random.default_rng(0)) @ change
        bread = change @ self.curvatures(1, None)[0] @ change
        kept = self.lengths.kept(self.release.bread_bound / self.release.length_unit)
        matrices = breads, bread, self.meat[0]
        return compare(self.release, self.model, self.sizes, self.zero[:2], *matrices, kept, self.usual_variance)

    @cached_property
    def fit_pvalue(self) -> float:
        """p-value of the scores' differences: scores far from the zero are clipped."""
        release = self.release
        freedom = (len(release.scores) - 1) * release.n_coef
        if freedom == 0:
            return 1.0
        _, _, covariance = self.zero
        bread = self.curvatures(_DRAWS, np.random.default_rng(0))
        # In units of their covariance, and without their mean.
        root = np.linalg.inv(np.linalg.cholesky(covariance))
        rest = differences(root @ np.ones(len(root)))
        total = 0.0
        for own in np.swapaxes(rest @ root @ self._scores_at_zero(bread), 0, 1):
            noise = np.cov(own.T, bias=True).reshape(release.n_coef, -1) + np.eye(release.n_coef)
            centre = own.mean(axis=0)
            total += float(centre @ np.linalg.solve(noise, centre))
        return float(special.chdtrc(freedom, total))


def residual_prior_variance(release: PopulationRelease, model: GeneralizedLinearModel) -> float:
    """Return the prior variance of each weight: a linear regression's is in units of the residuals' mean square."""
    return float(np.mean(Population(release, model).prior_variance))


def population_posterior(release: PopulationSums, request: OwnPopulationRequest) -> Posterior:
    """Infer the population's coefficients from a release: of a model of the user's own, its parameters.

    Bread and meat are drawn until the Monte Carlo error of the 5% and 95% quantiles is below 5% of the posterior
    standard deviation; the request's `n_samples` has no effect.

    **Privacy.** Post-processing of a release: it costs nothing.

    Notes
    -----
    docs/derivations/population.md.  Given bread A and meat B the scores g = A (beta - u) + e have the error e ~ N(0,
    B / N + noise + clip), so that beta is normal (Mueller 2013); A and B are drawn from their laws given the noisy
    ones.
    """
    model = model_of(release, request.model)
    of_own = isinstance(release, OwnPopulationRelease)
    if not isinstance(model, (GeneralizedLinearModel, OwnModel)) or isinstance(model, OwnModel) is not of_own:
        raise TypeError(f"model must be the regression of the release, got {type(model).__name__}")
    population = Population(release, model, threads=_native.threads(request.threads))
    theta, error, conflict = _theta(population, request.seed)
    # Least squares do not know the prior: where it contradicts them, it is one that expects weights of their size.
    left, chosen = conflict, tuning.TUNING
    while conflict < chosen.contradicted and left < chosen.expected and population.wider < chosen.widest:
        population = population.widened(chosen.wider)
        theta, error, left = _theta(population, request.seed)
    population = population.relieved()
    theta, error, _ = _theta(population, request.seed)
    found = warnings(population, conflict)
    return Posterior(
        names=release.names,
        method="newton",
        prior="model",
        distribution=theta,
        model=population.model,
        guarantee=release.guarantee,
        diagnostics=PosteriorDiagnostics(
            n_steps_used=release.scores.shape[0],
            mcse=error.quantile,
            equivalent_draws=error.equivalent_draws,
            prior_pvalue=conflict,
            fit_pvalue=population.fit_pvalue,
            information_pvalue=None if population.information is None else population.information.pvalue,
            n_unresolved=population.n_unresolved,
            warnings=tuple(found),
            verdict=verdict(population, found),
        ),
    )


def _theta(population: Population, seed: int) -> tuple[DrawnTheta, MixtureError, float]:
    """Return the distribution of the parameters, its error, and the p-value of the weights' size under the prior."""
    rng, drawn, size, aim = np.random.default_rng(seed), [], 0, tuning.TUNING.aim
    more = _DRAWS
    while True:
        drawn.append(population.draw(more, rng))
        location, variance = (np.concatenate([part[i] for part in drawn]) for i in (0, 1))
        error, size = mixture_error(location, variance, _BATCHES), size + more
        if (worst := error.quantile.max()) < aim or size >= _MOST:
            break
        # The error falls as 1 / sqrt(draws).
        wanted = size * min(max((worst / (_BELOW * aim)) ** 2, 1.0), 2.0)
        more = min(math.ceil((wanted - size) / (2 * _BATCHES)) * 2 * _BATCHES, _MOST - size)
    factor = np.concatenate([part[2] for part in drawn])
    data = np.average([part[3].mean(axis=0) for part in drawn], axis=0, weights=[len(part[0]) for part in drawn])
    expected = population.prior_variance
    conflict = prior_conflict((location - population.origin) / np.sqrt(expected), variance / expected, np.ones(size))
    if isinstance(population.model, LinearRegression):
        value, spread = population.residual_variance
        rho = float(softplus_inverse(np.array(value)))
        deviation = spread / float(sigmoid(np.array(rho)))
        location = np.column_stack((location, np.full(size, rho)))
        variance = np.column_stack((variance, np.full(size, deviation**2)))
        factor = np.pad(factor, ((0, 0), (0, 1), (0, 1)))
        factor[:, -1, -1] = 1.0 / deviation
        data = np.pad(data, (0, 1))
        data[-1, -1] = 2.0 * deviation**2 / 3.0
        error = mixture_error(location, variance, _BATCHES)
    return theta_of_draws(location, variance, factor, data), error, conflict
