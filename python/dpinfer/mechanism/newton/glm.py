"""Private Newton for generalised linear models: public arithmetic between passes.

Coordinates, in which each pass for second moments whitens better, the prior there, the score's zero, and the run of a
model without a scale. Other runs learn their coordinates here too.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dpinfer._arrays import NEGLIGIBLE, FloatArray
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.contributions import (
    ClippedCurvatures,
    ClippedScores,
    FeatureMeans,
    LogScaleCounts,
    Query,
    SecondMoments,
    smat,
)
from dpinfer.mechanism.newton.pass_records import NoisySum, Passes
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.models import GeneralizedLinearModel
from dpinfer.models.clipping import ClippedResidual, ResponseGrid, mallows_moment, response_grid
from dpinfer.models.likely_records import ExpectedResidual, NormalDesign, PredictorLaw, best_clip, means_of_laws
from dpinfer.models.whitening import Onward, ShrunkenMoments, moments_of_means, onward, shrink_moments, steady_solve

_SWEEPS, _HALVINGS = 12, 6  # Gauss-Newton steps at most, and halvings of each
_CLOSE = 1e-4  # squared length of the last step for each weight: 1% of a posterior standard deviation; tolerance


@dataclass(frozen=True)
class _Score:
    """A released score: its position, value, noise, and expectation under the model."""

    position: FloatArray
    value: FloatArray
    stddev: float
    expected: ExpectedResidual


@dataclass
class Localiser:
    """Mode and precision of the whitened weights given scores whose means are those of normal features.

    A score's error is its noise and a share of its own mean.  So the weight of a score falls with its distance from the
    zero, and the effect of features that are not normal vanishes.

    Parameters
    ----------
    prior_precision : (d, d) array
    sampling : float
        Variance of a score at its zero, per record and direction.
    position : (d,) array
        Where the first score is taken.
    prior_mean : (d,) array
    """

    design: NormalDesign
    prior_precision: FloatArray
    sampling: float
    position: FloatArray
    prior_mean: FloatArray
    _scores: list[_Score] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.precision = self.prior_precision

    @property
    def law(self) -> PredictorLaw:
        """The law of the linear predictor at `position`."""
        return self.design.law(self.position)

    def add(self, value: FloatArray, stddev: float, expected: ExpectedResidual) -> None:
        """Take in the score that was released at `position`, and move."""
        self._scores.append(_Score(self.position, value, stddev, expected))
        self._find_mode()

    def in_coordinates(self, forth: FloatArray) -> "Localiser":
        """Return a localiser for z' = forth z, whose prior is the normal law around this one's mode."""
        position = np.asarray(np.linalg.solve(forth.T, self.position), dtype=np.float64)
        return Localiser(
            design=NormalDesign(forth @ self.design.mean, forth @ self.design.covariance @ forth.T),
            prior_precision=forth @ self.precision @ forth.T,
            sampling=self.sampling,
            position=position,
            prior_mean=position,
        )

    def _noise(self, expected: FloatArray, score: _Score) -> float:
        share = tuning.TUNING.score_error**2 * float(expected @ expected) / expected.size
        return score.stddev**2 + self.sampling + share

    def _objective(self, position: FloatArray, errors: list[FloatArray], noises: list[float]) -> float:
        away = position - self.prior_mean
        value = 0.5 * float(away @ self.prior_precision @ away)
        for error, noise in zip(errors, noises, strict=True):
            value += 0.5 * float(np.sum(np.square(error))) / noise
        return value

    def _errors(self, position: FloatArray) -> list[FloatArray]:
        """Return each score less its expectation if the zero of the scores is at `position`."""
        return [
            score.value - self.design.expected_score(score.expected, position, score.position, jacobian=False)[0]
            for score in self._scores
        ]

    def _find_mode(self) -> None:
        """Gauss-Newton steps with halving; errors are those at the start of each."""
        for _ in range(_SWEEPS):
            precision = self.prior_precision.copy()
            gradient = self.prior_precision @ (self.prior_mean - self.position)
            errors, noises = [], []
            for score in self._scores:
                expected, jacobian = self.design.expected_score(score.expected, self.position, score.position)
                noise = self._noise(expected, score)
                precision += jacobian.T @ jacobian / noise
                gradient += jacobian.T @ (score.value - expected) / noise
                errors.append(score.value - expected)
                noises.append(noise)
            step = steady_solve(precision, gradient)
            before = self._objective(self.position, errors, noises)
            for _ in range(_HALVINGS):
                if self._objective(self.position + step, self._errors(self.position + step), noises) <= before:
                    break
                step = 0.5 * step
            self.position = self.position + step
            self.precision = 0.5 * (precision + precision.T)
            if float(step @ precision @ step) < _CLOSE * step.size:
                break


_TIGHTEST, _RANGE = 1e6, 1e12  # of weights in scaled units: over what records say, and what doubles hold apart


def prior_in(transform: FloatArray, variance: FloatArray, sizes: FloatArray, informed: float) -> FloatArray:
    """Return the prior's precision of weights in the coordinates z = transform x, within a relevant range, (d, d).

    A weight of a feature in another unit can have a precision of 1e24 times that of others, and no double holds both
    once they are mixed.  In units of the features' sizes, precisions are limited from above to a million times that of
    all records, and from below to a millionth of a millionth of it: beyond these limits nothing changes.

    Parameters
    ----------
    transform : (d, d) array
    variance : (d,) array
        Prior variances of the weights.
    sizes : (d,) array
        Declared root mean squares of the features.
    informed : float
        About the precision that the records give a weight in units of its feature's size.
    """
    precision = 1.0 / (variance * np.square(sizes))
    largest = min(float(precision.max()), _TIGHTEST * informed)
    held = np.clip(precision, largest / _RANGE, largest)
    if np.array_equal(held, precision):
        return np.asarray((transform / variance) @ transform.T)
    scaled = transform * (sizes * np.sqrt(held))
    return np.asarray(scaled @ scaled.T)


_DECLARED_FLOOR = 1e-3  # of the eigenvalues of the declared correlations: tolerance


class NoisySums(Protocol):
    """The passes of a run, or their expectation in a plan."""

    plan: NewtonPlan

    def leave_out(self, passes: Collection[int]) -> None:
        """Leave out later passes; measurements get their shares."""

    def noisy_sum(self, phase: str, query: Query) -> NoisySum:
        """Release a sum over all records."""


@dataclass(frozen=True)
class Geometry:
    """Results of the geometry passes.

    Parameters
    ----------
    arrays : dict
        Of the release.
    moments : ShrunkenMoments
        The shrunken last matrix.
    onward : Onward
        The way to the next coordinates.
    """

    arrays: dict[str, FloatArray]
    moments: ShrunkenMoments
    onward: Onward

    @property
    def transform(self) -> FloatArray:
        """The last coordinates, (d, d)."""
        return np.asarray(self.arrays["transforms"][-1])

    @property
    def bound(self) -> float:
        """B there."""
        return float(self.arrays["moment_bounds"][-1])


def _first_coordinates(model: GeneralizedLinearModel, moments: FloatArray) -> tuple[FloatArray, float]:
    """Return the first coordinates of the geometry, (d, d), and the expected trace there.

    Declared moments are whitened: directions without variance, as for indicators of all categories beside a
    constant, then have a scale in which their prior is narrow.
    """
    scale = 1.0 / np.sqrt(np.diag(moments))
    if model.residual_link is None and model.feature_moments is None:
        return np.diag(scale), float(model.n_coef)
    values, vectors = np.linalg.eigh(moments * scale[:, None] * scale)
    values = np.maximum(values, 0.0)
    transform = (vectors / np.sqrt(values + _DECLARED_FLOOR)).T * scale
    return transform, float(np.sum(values / (values + _DECLARED_FLOOR)))


def _declared_moments(
    model: GeneralizedLinearModel, passes: NoisySums, n_records: int
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Make the pass for the means, where the plan has one; return its arrays and the moments to begin with, (d, d)."""
    if not passes.plan.indices("means"):
        return {}, model.design_moments
    d, n = model.n_coef, model.n_features
    declared = np.asarray(model.feature_moments, dtype=np.float64)
    units = np.sqrt(model.second_moments)
    bound = math.sqrt(tuning.TUNING.bound * d)
    released = passes.noisy_sum("means", FeatureMeans(np.diag(1.0 / units), bound))
    values, stddev = released.values / n_records, released.stddev / n_records
    arrays = {"means": values[None], "means_stddev": np.array([stddev]), "means_bounds": np.array([bound])}
    return arrays, moments_of_means(declared, values[:n] * units[:n], stddev * units[:n])[:d, :d]


def _is_white(moments: ShrunkenMoments) -> bool:
    """Return whether coordinates need no other round: the matrix is near a multiple of the identity."""
    return float(moments.eigenvalues[0]) - moments.floor >= tuning.TUNING.white * float(np.mean(moments.eigenvalues))


def learn_geometry(model: GeneralizedLinearModel, passes: NoisySums, n_records: int) -> Geometry:
    """Make the passes for means and second moments: no more rounds than the coordinates need.

    Notes
    -----
    docs/derivations/private-newton.md, "Rounds that stop".  The last round stays where no later pass releases a matrix.
    """
    d = model.n_coef
    means, declared = _declared_moments(model, passes, n_records)
    transform, trace = _first_coordinates(model, declared)
    transforms, matrices, stddevs, bounds = [], [], [], []
    left = passes.plan.indices("geometry")
    kept = 0 if "slope" in passes.plan.phases else 1
    ahead = Onward(transform, np.zeros((d, d)), None)
    while left:
        bound = math.sqrt(tuning.TUNING.bound * trace)
        released = passes.noisy_sum("geometry", SecondMoments(transform, bound))
        noisy, stddev = smat(released.values, d) / n_records, released.stddev / n_records
        transforms.append(transform)
        matrices.append(noisy)
        stddevs.append(stddev)
        bounds.append(bound)
        shrunken = shrink_moments(noisy, stddev, trace)
        ahead = onward(shrunken, ahead.foretold * mallows_moment(d, bound), ahead.wanted)
        if len(left) > kept + 1 and passes.plan.stops and _is_white(shrunken):
            passes.leave_out(left[1 : len(left) - kept])
        left = passes.plan.indices("geometry")[len(matrices) :]
        if left:
            transform, trace = ahead.transform @ transform, shrunken.whitened_trace
    arrays = {
        **means,
        "transforms": np.array(transforms),
        "moments": np.array(matrices),
        "moment_stddev": np.array(stddevs),
        "moment_bounds": np.array(bounds),
    }
    return Geometry(arrays, shrunken, ahead)


_COARSE, _FINE = 1.0 / 8.0, 1.0 / 512.0  # between nodes of the predictor: of what is expected, and of what records add
_APART, _WITHIN, _MOST_HALVINGS = 1.25, 2.0, 3  # standard deviations of a response, of predictors (private-newton.md)
_EDGES = np.concatenate(([0.5], np.ldexp(1.0, np.arange(1, 13)) - 0.5))  # octaves of counts: format
_FIRST_LAW = PredictorLaw(0.0, 1.0)  # of the predictor of outcomes, of which no pass tells: tolerance
_LOCS, _SCALES = np.linspace(-6.0, 7.5, 109), np.linspace(0.0, 2.5, 26)  # means to e**7.5 = 1800: tables end at 2000
_FLATTEST = 1e-6  # of the steepest slope that there is: a positive norm for runs that end far out; tolerance


@dataclass(frozen=True)
class Localised:
    """State of a run before its measurements.

    Parameters
    ----------
    arrays : dict
        Of the release.
    residual : ClippedResidual
        That of the steps so far.
    slope : float
        Expected derivative of the mean in the predictor.
    """

    arrays: dict[str, FloatArray | float]
    geometry: Geometry
    localiser: Localiser
    residual: ClippedResidual
    slope: float

    @property
    def transform(self) -> FloatArray:
        """The coordinates of the steps, (d, d)."""
        return self.geometry.transform

    @property
    def position(self) -> FloatArray:
        """The weights reached, in these, (d,)."""
        return self.localiser.position


@dataclass
class GlmNewton:
    """One run.

    Parameters
    ----------
    model : GeneralizedLinearModel
        With a `residual_link`.
    """

    model: GeneralizedLinearModel
    n_records: int

    def __post_init__(self) -> None:
        self.link = str(self.model.residual_link)
        self.coarse, self.fine = (response_grid(self.model, spacing) for spacing in (_COARSE, _FINE))

    def localise(self, passes: Passes) -> Localised:
        """Make the passes up to the measurements."""
        counts, law = self._count_scales(passes)
        self.coarse = self._grid_for(law)
        geometry = learn_geometry(self.model, passes, self.n_records)
        transform, bound = geometry.transform, geometry.bound
        design, start = self._design(transform, geometry.moments.matrix, law)
        sizes = np.sqrt(self.model.second_moments)
        variance = np.full(sizes.size, self.model.prior_scale**2)
        localiser = Localiser(
            design=design,
            prior_precision=prior_in(transform, variance, sizes, float(self.n_records)),
            sampling=law.mean(self.coarse, np.square(self.coarse.spread)) / self.n_records,
            position=start,
            prior_mean=np.zeros(self.model.n_coef),
        )
        residual = self.fine.clipped(max(self._clip("localise", passes.plan, bound, law), self._reach(law)))
        steps = self._take_steps("localise", passes, (transform, bound), localiser, residual)
        arrays = {**counts, **geometry.arrays, **{f"localise_{name}": value for name, value in steps.items()}}
        slope = localiser.law.mean(self.coarse, self.coarse.information)
        return Localised(arrays, geometry, localiser, residual, max(slope, _FLATTEST * residual.slope_bound))

    def run(self, passes: Passes) -> dict[str, FloatArray | float | int]:
        """Make the plan's passes and return the arrays of the release."""
        localised = self.localise(passes)
        geometry, localiser, residual = localised.geometry, localised.localiser, localised.residual
        transform = geometry.transform
        forth, radius = self._measured_coordinates(geometry, localiser, residual)
        localiser, transform = localiser.in_coordinates(forth), forth @ transform
        residual = self.fine.clipped(self._clip("measure", passes.plan, radius, localiser.law))
        measured = self._take_steps("measure", passes, (transform, radius), localiser, residual)
        steepest = localiser.law.largest(self.fine, residual.slope, tuning.TUNING.steepest)
        residual = residual.with_slope_at_most(max(steepest, _FLATTEST * residual.slope_bound))
        query = ClippedCurvatures(transform, radius, transform.T @ localiser.position, self.link, residual)
        released = passes.noisy_sum("slope", query)
        return {
            **localised.arrays,
            **measured,
            "score_transform": transform,
            "score_radius": radius,
            "slope": smat(released.values, self.model.n_coef) / self.n_records,
            "slope_stddev": released.stddev / self.n_records,
            "slope_position": localiser.position,
            "slope_bound": residual.slope_bound,
        }

    def _measured_coordinates(
        self, geometry: Geometry, localiser: Localiser, residual: ClippedResidual
    ) -> tuple[FloatArray, float]:
        """Return the map to coordinates in which the slope of normal features is nearly white, and a bound there.

        They whiten the moments once more, flat directions less than others, and then divide out the slope.
        """
        moments = geometry.moments.matrix
        white = geometry.moments.whitening
        root = np.linalg.cholesky(white @ moments @ white.T)
        back = np.linalg.inv(root)
        slope = localiser.design.expected_slope(self.fine, residual.slope, localiser.position)
        values, vectors = np.linalg.eigh(back @ white @ slope @ white.T @ back.T)
        values = np.maximum(values, NEGLIGIBLE)
        forth = np.asarray(root @ (vectors / np.sqrt(values)) @ vectors.T @ back @ white, dtype=np.float64)
        bound = math.sqrt(tuning.TUNING.bound * float(np.sum((forth @ moments) * forth)))
        return geometry.onward.transform @ np.linalg.inv(white) @ forth, bound

    def _count_scales(self, passes: Passes) -> tuple[dict[str, FloatArray | float], PredictorLaw]:
        """Return the released shares of the counts' octaves, and the predictor's law that fits them best."""
        if not passes.plan.indices("scale"):
            return {"counts": np.empty(0), "counts_stddev": 0.0, "edges": np.empty(0)}, _FIRST_LAW
        released = passes.noisy_sum("scale", LogScaleCounts(_EDGES))
        counts, stddev = released.values / self.n_records, released.stddev / self.n_records
        law = fit_law(self.coarse, counts, stddev, self.n_records)
        return {"counts": counts, "counts_stddev": stddev, "edges": _EDGES}, law

    def _grid_for(self, law: PredictorLaw) -> ResponseGrid:
        """Return a grid between whose nodes a response's law moves by no more than about its standard deviation.

        Expected scores are interpolated linearly between nodes: too few nodes make steps too long.
        """
        root = np.sqrt(self.coarse.information)
        apart = self.coarse.spacing * law.largest(self.coarse, root, _WITHIN)
        halvings = 0 if apart <= _APART else min(math.ceil(math.log2(2.0 * apart / _APART)), _MOST_HALVINGS)
        return self.coarse if halvings == 0 else response_grid(self.model, _COARSE / 2.0**halvings)

    def _design(self, transform: FloatArray, moments: FloatArray, law: PredictorLaw) -> tuple[NormalDesign, FloatArray]:
        """Return the features' law, and the weights whose predictor is the mean of `law` for every record."""
        if not self.model.fit_intercept:
            return NormalDesign.of_moments(moments, None), np.zeros(self.model.n_coef)
        constant = np.zeros(self.model.n_coef)
        constant[-1] = 1.0
        constant = np.asarray(np.linalg.solve(transform.T, constant), dtype=np.float64)
        return NormalDesign.of_moments(moments, constant), law.loc * constant

    def _clip(self, phase: str, plan: NewtonPlan, bound: float, law: PredictorLaw) -> float:
        information = sum(plan.shares[index] for index in plan.indices(phase))
        noise = plan.noise_multiplier / math.sqrt(information) * bound / self.n_records
        return best_clip(self.coarse, self.model.response, law, noise, self.n_records)

    def _reach(self, law: PredictorLaw) -> float:
        """Return the residual of counts for a predictor with the error of the first steps.

        A score clipped below it shows the direction of its zero, and not the distance.
        """
        if self.model.response != "count":
            return 0.0
        return tuning.TUNING.misplaced * law.mean(self.coarse, np.gradient(self.coarse.mean, self.coarse.spacing))

    def _take_steps(
        self,
        phase: str,
        passes: Passes,
        coordinates: tuple[FloatArray, float],
        localiser: Localiser,
        residual: ClippedResidual,
    ) -> dict[str, FloatArray | float]:
        """Make a phase's steps toward the zero of the exact score, and return their releases."""
        transform, bound = coordinates
        expected = ExpectedResidual(self.coarse, residual.clip)
        positions, scores, stddevs = [], [], []
        for _ in passes.plan.indices(phase):
            position = localiser.position
            query = ClippedScores(transform, bound, transform.T @ position, self.link, residual)
            released = passes.noisy_sum(phase, query)
            positions.append(position)
            scores.append(released.values / self.n_records)
            stddevs.append(released.stddev / self.n_records)
            localiser.add(scores[-1], stddevs[-1], expected)
        return {
            "positions": np.array(positions),
            "scores": np.array(scores),
            "score_stddev": np.array(stddevs),
            "clip": residual.clip,
            "residual_bound": residual.bound,
        }


def fit_law(grid: ResponseGrid, counts: FloatArray, stddev: float, n_records: int) -> PredictorLaw:
    """Return the law of the predictor that fits noisy shares of the counts' octaves best: least squares on a grid."""
    variance = stddev**2 + np.maximum(counts, 0.0) / n_records
    locs, scales = (part.ravel() for part in np.meshgrid(_LOCS, _SCALES, indexing="ij"))
    misfit = np.zeros(locs.size)
    for share, noise, column in zip(counts, variance, grid.shares(_EDGES).T, strict=True):
        misfit += np.square(share - means_of_laws(grid, column, locs, scales)) / noise
    best = int(np.argmin(misfit))
    return PredictorLaw(float(locs[best]), float(scales[best]))
