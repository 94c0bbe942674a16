"""Checks of requests, and of a private Newton run against its model: release and draws, with thresholds.

Thresholds were chosen on the seen half of the design of bench/coverage/newton_warnings.py, so that fewer than 2% of
the releases that fit are doubted; docs/private-newton.md has the rates on both halves.
"""

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy import linalg, special

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer
from dpinfer.inference.newton import tuning
from dpinfer.inference.request import OwnNewtonRequest, OwnPopulationRequest, PlannedRelease, PopulationRequest
from dpinfer.models import GeneralizedLinearModel, LinearRegression, OwnModel, PersonModel
from dpinfer.models import tuning as common
from dpinfer.models.clipping import SizeShares
from dpinfer.release import GlmNewtonRelease, NewtonRelease, OwnNewtonRelease, OwnPopulationRelease, PopulationRelease
from dpinfer.release.newton.population import NO_WEIGHTS, PopulationSums
from dpinfer.release.newton.regression import spread_of_counts


def check_newton_request(request: OwnPopulationRequest, planned: PlannedRelease) -> None:
    """Refuse what no private Newton run answers.

    Raises
    ------
    TypeError, ValueError
        If the request or the model does not fit the kind of release.
    """
    kind, model = planned.kind, planned.model
    own, linear = issubclass(kind, OwnNewtonRelease), issubclass(kind, NewtonRelease)
    approximation = request.approximation if isinstance(request, OwnNewtonRequest) else "exact"
    simulated = approximation == "simulated"
    if approximation not in ("exact", "simulated"):
        raise ValueError(f"approximation must be 'exact' or 'simulated' for this release, got {approximation!r}")
    if simulated and isinstance(model, PersonModel):
        raise ValueError(
            "approximation must be 'exact' for a model of persons: its standard deviations have their own shape"
        )
    if simulated and not (isinstance(model, OwnModel) and model.has_sampler):
        raise ValueError("approximation='simulated' needs model=, the model of the run with its sampler")
    priors = ("auto", "weak", "model") if linear else ("auto", "model")
    if request.prior not in priors:
        raise ValueError(f"prior must be one of {', '.join(priors)} for this release, got {request.prior_name!r}")
    warmup = request.n_warmup if isinstance(request, PopulationRequest) else None
    for name, value, least in (("n_samples", request.n_samples, 20), ("n_warmup", warmup, 10)):
        if value is not None:
            check_integer(name, value, least)
    if own:
        return
    if linear and not isinstance(model, LinearRegression):
        raise TypeError(f"model must be a LinearRegression, got {type(model).__name__}")
    population = issubclass(kind, PopulationRelease) and isinstance(model, LinearRegression)
    population = population or (issubclass(kind, OwnPopulationRelease) and isinstance(model, OwnModel))
    glm = isinstance(model, GeneralizedLinearModel) and model.residual_link is not None
    if not linear and not glm and not population:
        raise TypeError(f"model must be the regression of the release, got {type(model).__name__}")


_ALIKE = 0.05  # of the largest coefficient of a hidden direction: what noise may turn it by: tolerance
_FAR = 6.0  # standard deviations, beyond which a normal law is not cut off: tolerance
_WITHIN = (np.arange(500) + 0.5) / 500.0  # of the largest variance: tolerance
Told: TypeAlias = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a robust and a model-based fit differ by."""

    widths_pvalue: float
    ratios: FloatArray  # (d,): robust over model-based standard error of each weight
    centres_pvalue: float | None = None  # where the release has scores whose large residuals are clipped
    # (d,): from the weights with clipped residuals to the robust ones, in robust standard errors
    distances: FloatArray | None = None

    @property
    def pvalue(self) -> float:
        """Of both comparisons together (Bonferroni)."""
        if self.centres_pvalue is None:
            return self.widths_pvalue
        return min(1.0, 2.0 * min(self.widths_pvalue, self.centres_pvalue))

    def __str__(self) -> str:
        what = "standard errors" if self.centres_pvalue is None else "standard errors and coefficients"
        if self.pvalue >= tuning.TUNING.level:
            return f"White's comparison of robust and model-based {what} finds no difference (p = {self.pvalue:.2g})."
        said = (
            f"The model is not true (White's comparison, p = {self.pvalue:.2g}): robust standard errors are "
            f"{self.ratios.min():.2f} to {self.ratios.max():.2f} times the model-based ones"
        )
        level = tuning.TUNING.level
        if self.distances is not None and self.centres_pvalue is not None and 2.0 * self.centres_pvalue < level:
            said += (
                f", and coefficients with clipped residuals are up to {self.distances.max():.1f} standard errors away"
            )
        return f"{said}."


def compare(
    release: PopulationSums,
    model: GeneralizedLinearModel,
    sizes: SizeShares,
    zero: tuple[FloatArray, FloatArray],  # of the scores, in their coordinates, and the weight of each
    # breads, bread, meat, kept: as in :func:`compare_widths`
    breads: FloatArray,
    bread: FloatArray,
    meat: FloatArray,
    kept: float,
    usual_variance: float,
) -> Comparison | None:
    """Compare widths, and of a linear regression centres; None if the records determine nothing.

    **Privacy.** Post-processing of a release.
    """
    rows = determined(release, np.sqrt(model.second_moments))
    if not len(rows):
        return None
    if not (isinstance(model, LinearRegression) and isinstance(release, PopulationRelease)):
        return compare_widths(release, sizes, rows, breads, bread, meat, kept, None)
    least = common.TUNING.least_level * usual_variance
    widths = compare_widths(release, sizes, rows, breads, bread, meat, kept, least)
    if len(release.localise_scores) < 2:
        return widths
    at, weight = zero
    noise = float(np.square(weight) @ np.square(release.score_stddev))
    centres, distances = compare_centres(release, sizes, rows, breads, at, noise, meat)
    return replace(widths, centres_pvalue=centres, distances=distances)


def determined(release: PopulationSums, sizes: FloatArray) -> FloatArray:
    """Return maps from the scores' coordinates to directions that the records determine, (k, d).

    **Privacy.** Post-processing of a release.

    Left out are directions that noise hides, and those with the information of a few records: along these bread and
    meat differ by chance, whatever the model is.

    Parameters
    ----------
    sizes : (d,) array
        Declared root mean squares of the features.
    """
    values, vectors = np.linalg.eigh(release.bread)
    clear = values > tuning.TUNING.unresolved * release.bread_stddev * math.sqrt(2.0 * release.n_coef)
    if not clear.any():
        return np.empty((0, release.n_coef))
    along = vectors[:, clear]
    reach = along.T @ release.bread_transform * sizes
    records, turn = linalg.eigh(np.diag(values[clear]), reach @ reach.T)
    turn = turn[:, records * release.n_records > tuning.TUNING.few]
    back = release.bread_transform @ np.linalg.inv(release.score_transform)
    return np.asarray(turn.T @ along.T @ back)


def told(release: PopulationSums, model: object) -> Told | None:
    """Return the directions of which scores tell something, (k, d), and the projection to them, (d, d).

    None if all do, or the sizes of features are not declared.  Noise hides the others, and hides at most the
    information of a few records: an empty cell, equal columns, weights of zero.  Noise that is read as information
    there would make intervals narrower than the prior.

    **Privacy.** Post-processing of a release.
    """
    if not isinstance(model, GeneralizedLinearModel):
        return None
    sizes = np.sqrt(model.second_moments)
    values, vectors = np.linalg.eigh(release.bread)
    noise = tuning.TUNING.unresolved * release.bread_stddev * math.sqrt(2.0 * release.n_coef)
    reach = np.sum(np.square(vectors.T @ release.bread_transform * sizes), axis=1)
    flat = (values < noise) & ((values + noise) * release.n_records < tuning.TUNING.few * reach)
    if not flat.any():
        return None
    clean = np.column_stack([_plain(vector, release, sizes, noise) for vector in vectors[:, flat].T])
    seen = np.linalg.svd(clean)[0][:, clean.shape[1] :]
    back = release.bread_transform @ np.linalg.inv(release.score_transform)
    rows = np.asarray(seen.T @ back)
    return rows, np.asarray(np.linalg.solve(back, seen @ rows))


def _plain(vector: FloatArray, release: PopulationSums, sizes: FloatArray, noise: float) -> FloatArray:
    """Return a hidden direction of few columns, as of an unused level or two equal ones, where such a one is as hidden.

    Noise turns an eigenvector a little to other columns, whose coefficients would then depend on what is unknown.
    """
    columns = sizes * (release.bread_transform.T @ vector)
    size, most = np.abs(columns), float(np.max(np.abs(columns)))
    columns = np.where(
        size < _ALIKE * most, 0.0, np.where(size > (1.0 - _ALIKE) * most, np.sign(columns) * most, columns)
    )
    found = np.linalg.solve(release.bread_transform.T, columns / sizes)
    found /= np.linalg.norm(found)
    return np.asarray(found if float(found @ release.bread @ found) < noise else vector, dtype=np.float64)


def weighed(spread: FloatArray, slope: FloatArray, along: Told | None) -> FloatArray:
    """Return spread^-1 slope, both (S, d, d), from the directions of which scores tell something alone."""
    if along is None:
        return np.asarray(np.linalg.solve(spread, slope))
    rows = along[0]
    return np.asarray(rows.T @ np.linalg.solve(rows @ spread @ rows.T, rows @ slope))


def compare_widths(
    release: PopulationSums,
    sizes: SizeShares,  # of its scores
    rows: FloatArray,  # of :func:`determined`
    # breads, bread: (S, d, d) and (d, d): draws of the bread at the zero of the scores, and the released one
    breads: FloatArray,
    bread: FloatArray,
    meat: FloatArray,  # (d, d): shrunken, positive definite
    kept: float,  # part of the bread that its bound leaves
    # smallest variance that the errors can have, where it is unknown; None if the variance is 1
    least_level: float | None,
) -> Comparison:
    """Compare covariances along the directions that the records determine.

    **Privacy.** Post-processing of a release.

    Notes
    -----
    Bread and meat are proportional where the model is true, equal without a scale (White 1982).  Their distance is
    compared with its expectation under noise, sampling of fourth moments and the clips of both
    (docs/derivations/population.md).
    """
    d, k = release.n_coef, len(rows)
    rows = np.linalg.solve(np.linalg.cholesky(rows @ bread @ rows.T), rows)
    found = rows @ release.meat @ rows.T
    level = 1.0 if least_level is None else max(float(np.trace(found)) / k, least_level)
    unit, bound, drawn = release.size_unit**2 / d, release.score_bound / release.size_unit, rows @ breads @ rows.T
    usual = tuning.TUNING.independent * (0.5 * k * (k + 1) - (least_level is not None))
    gram = rows @ rows.T
    noise = 0.5 * (float(np.sum(np.square(gram))) + float(np.trace(gram)) ** 2) * release.meat_stddev**2
    noise += level**2 * float(np.mean(np.sum(np.square(drawn - drawn.mean(axis=0)), axis=(1, 2))))
    fourth, along = sizes.fourths(bound), k * sizes.parts(bound)
    sampling = fourth * (unit * d) ** 2 / release.n_records
    lost = (sizes.lost_square(bound) * unit) ** 2 * k
    # What the bread's bound takes off may lie along one direction.
    short = (0.5 * level * k * (1.0 / kept - 1.0)) ** 2
    # Bread and meat differ by what weights take a second time.
    weighted = release.weight_bound < NO_WEIGHTS
    light = (k * sizes.lighter(bound)) ** 2 if weighted else 0.0
    parts = np.append(sampling, [noise + (0.0 if weighted else lost), short, light])
    entries = np.append(0.5 * along * (along + 1.0), [usual, 1.0, 1.0])
    pvalue = _of_parts(float(np.sum(np.square(found - level * np.eye(k)))), parts, np.minimum(entries, usual))
    back = rows @ release.score_transform
    robust = np.einsum("ji,jk,ki->i", back, rows @ meat @ rows.T, back)
    return Comparison(pvalue, np.sqrt(robust / (level * np.sum(np.square(back), axis=0))))


def compare_centres(
    release: PopulationRelease,
    # sizes, rows, breads, meat: as in :func:`compare_widths`
    sizes: SizeShares,
    rows: FloatArray,
    breads: FloatArray,
    zero: FloatArray,  # (d,): robust weights, in the coordinates of the scores
    noise: float,  # variance of the noise in a coordinate of it
    meat: FloatArray,
) -> tuple[float, FloatArray]:
    """Compare the weights of a linear regression with those of its localising scores: p-value and distances, (d,).

    **Privacy.** Post-processing of a release.

    Notes
    -----
    Localising scores are clipped at three times their usual size: where errors are symmetric given x, both have the
    same zero (Hausman 1978).  What differs is noise, of the bread too, the sampling error of what one clip takes off
    and the other leaves, and steps that have not arrived.  The first score is left out: its clip rests on a guess of
    the scale.
    """
    basis = np.linalg.qr(rows.T)[0]
    at, scores = release.localise_positions[1:] @ basis, release.localise_scores[1:] @ basis
    away = np.mean(np.square(zero @ basis - at), axis=1)
    # A clip flattens the scores as far as it shortens them.
    flat = [1.0 - sizes.kept(bound) for bound in release.localise_bounds[1:] / release.size_unit]
    own, away = np.square(release.localise_score_stddev[1:]), (tuning.TUNING.step_error**2 + np.square(flat)) * away
    share = 1.0 / (own + away)
    share /= np.sum(share)
    gap = share @ (scores - (zero @ basis - at))
    near, far = share @ release.localise_bounds[1:] / release.size_unit, release.score_bound / release.size_unit
    sampling = sizes.squares_between(near, far) * release.size_unit**2 / release.n_records
    moved = np.cov((share @ (zero - release.localise_positions[1:])) @ breads @ basis, rowvar=False, bias=True)
    moved = np.atleast_2d(moved)
    spread = float(np.trace(moved))
    # A clip may shorten the scores of one direction alone.
    parts = [len(gap) * (float(np.square(share) @ own) + noise), spread, len(gap) * float(np.square(share) @ away)]
    entries = [len(gap), spread**2 / max(float(np.sum(np.square(moved))), 1e-300), 1.0]
    along = len(gap) * sizes.parts(far)
    pvalue = _of_parts(float(gap @ gap), np.append(sampling, parts), np.append(along, entries))
    white = basis.T @ release.score_transform
    stddev = np.sqrt(np.einsum("ji,jk,ki->i", white, basis.T @ meat @ basis, white) / release.n_records)
    return pvalue, np.abs(gap @ white) / stddev


def _of_parts(square: float, expected: FloatArray, entries: FloatArray) -> float:
    """Return the p-value of a squared distance that has parts, each spread over so many entries (Satterthwaite 1946).

    Few long records vary along few directions: the distance is then as uncertain as one squared normal number.
    """
    total = float(np.sum(expected))
    freedom = total**2 / float(np.sum(np.square(expected) / np.maximum(entries, 1.0)))
    return float(special.chdtrc(freedom, freedom * square / total))


def within(value: float, stddev: float, largest: float | None, along: Told | None) -> tuple[float, float]:
    """Return mean and standard deviation of a variance given that its root is at most `largest`.

    Where scores tell nothing in any direction, it is uniform below its bound, or as uncertain as large.
    """
    nothing = along is not None and not len(along[0])
    if largest is None:
        return (value, value) if nothing else (value, stddev)
    most = largest**2
    if value + _FAR * stddev < most and not nothing:
        return value, stddev
    place = most * _WITHIN
    logs = np.zeros(len(place)) if nothing else -0.5 * np.square((place - value) / stddev)
    weight = np.exp(logs - logs.max())
    mean = float(weight @ place / np.sum(weight))
    return mean, math.sqrt(float(weight @ np.square(place - mean) / np.sum(weight)))


def prior_conflict(
    location: FloatArray,  # (S, d): mean of the weights given each draw of the rest
    variance: FloatArray,  # (S, d)
    prior_variance: FloatArray,  # (S,)
) -> float:
    """Return the p-value of the weights' size under their prior.

    The statistic is the posterior mean of |weights|**2 / prior variance, which is chi-squared with d degrees of freedom
    if the data determine the weights, and nearer to its mean d if they do not: under the prior the p-value
    is below a level at most about that often.

    Notes
    -----
    Box (1980): the prior predictive law of a statistic checks the prior.
    """
    statistic = float(np.mean(np.sum(np.square(location) + variance, axis=1) / prior_variance))
    return float(special.chdtrc(location.shape[1], statistic))


@dataclass(frozen=True)
class Checks:
    """Results of the checks."""

    # beyond_scale, below_scale: share of the responses that are larger, smaller than the declared scale allows for,
    # less the effect of noise; nan for a logistic regression; Zeros among responses of the declared size, such as
    # scores in whole numbers, do not count as too small
    beyond_scale: float
    below_scale: float
    tail: float  # the same for responses far out
    prior_pvalue: float  # of the weights' size under their prior
    # the smaller one of scores and scale scores: posterior predictive, so closer to a half than to uniform
    fit_pvalue: float
    saturation: float  # trace of the features' second moments over the largest that it can be
    # directions of the features that the privacy noise hides: their variance is not distinguished from zero
    n_unresolved: int
    n_coef: int

    @property
    def warnings(self) -> dict[str, str]:
        """Failed checks, by name."""
        found = _of_sizes(self.beyond_scale, self.below_scale, self.saturation)
        if self.tail > tuning.TUNING.tail:
            found["tails"] = (
                "responses lie much farther out than normal ones do: transform them, or declare closer bounds"
            )
        if self.fit_pvalue < tuning.TUNING.fit_level:
            found["fit"] = (
                f"the scores contradict each other (p = {self.fit_pvalue:.2g}): the mean is not the model's, or the "
                "errors are not normal; intervals may be too narrow: try curves or interactions of the columns, or "
                "another scale of the response"
            )
        if self.prior_pvalue < tuning.TUNING.prior_level:
            found["prior"] = (
                f"the weights are larger than their prior expects (p = {self.prior_pvalue:.2g}): use a larger "
                "prior_scale"
            )
        return found

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        found = self.warnings
        said = "The release does not fit its model: " + "; ".join(found.values()) + "." if found else ""
        if self.n_unresolved:
            weak = (
                f"the privacy noise hides {self.n_unresolved} of {self.n_coef} directions of the features. Intervals "
                "along them rest on priors, and may fail if features nearly determine each other: give more epsilon, "
                "or fewer columns and categories."
            )
            return f"{said} {weak}" if said else f"The release cannot confirm its model: {weak}"
        if said:
            return said
        passed = "No contradiction of scale, features, scores or prior was found"
        if self.fit_pvalue < tuning.TUNING.doubt:
            return (
                f"{passed}, but the scores fit poorly (p = {self.fit_pvalue:.2g}): the model is in doubt, and "
                "a run at another budget may warn."
            )
        return (
            f"{passed} (p = {self.fit_pvalue:.2g} of the scores). This does not prove the model: skewed errors or a "
            "bent mean can move the population's coefficients by many standard errors, unseen by these checks. "
            "target='population', where the model has it, does not assume that the model is true."
        )


def _of_sizes(beyond: float, below: float, saturation: float) -> dict[str, str]:
    found = {}
    if beyond > tuning.TUNING.beyond or below > tuning.TUNING.below:
        which = "small" if beyond > tuning.TUNING.beyond else "large"
        found["scale"] = f"the response_scale is far too {which}: use one within a factor of 10 of the responses' size"
    if saturation > tuning.TUNING.saturated:
        found["features"] = "the features are larger than declared: declare a larger feature_scale"
    return found


def declared_sizes(release: PopulationRelease) -> dict[str, str]:
    """Return the checks of the declared sizes of responses and features, by name.

    **Privacy.** Post-processing of a release.
    """
    beyond, below = _shares(release)[:2] if release.scale_scores.size else (math.nan, math.nan)
    return _of_sizes(beyond, below, _saturation(release))


def check_draws(
    release: NewtonRelease | GlmNewtonRelease,
    *,
    # misfit, freedom: (S, k) and (k,): chi-squared sums of each draw's residuals, and their degrees of freedom
    misfit: FloatArray,
    freedom: FloatArray,
    # location, variance, prior_variance: as for :func:`prior_conflict`
    location: FloatArray,
    variance: FloatArray,
    prior_variance: FloatArray,
) -> Checks:
    """Check a release and the draws of its posterior.

    **Privacy.** Post-processing of a release.
    """
    fit = [float(np.mean(special.chdtrc(size, misfit[:, k]))) for k, size in enumerate(freedom)]
    beyond, below, tail = _shares(release) if isinstance(release, NewtonRelease) else (math.nan,) * 3
    if isinstance(release, NewtonRelease):
        matrix, stddev = release.moments[-1], float(release.moment_stddev[-1])
    else:
        matrix, stddev = release.slope, release.slope_stddev
    return Checks(
        beyond_scale=beyond,
        below_scale=below,
        tail=tail,
        prior_pvalue=prior_conflict(location, variance, prior_variance),
        fit_pvalue=min(fit),
        saturation=_saturation(release),
        n_unresolved=count_unresolved(matrix, stddev),
        n_coef=release.n_coef,
    )


def _shares(release: NewtonRelease | PopulationRelease) -> tuple[float, float, float]:
    """Return the shares of responses beyond the declared scale, below it, and far out, less three times their noise."""
    noise = tuning.TUNING.sure * release.counts_stddev
    spread = spread_of_counts(release.counts, release.edges)
    first = int(np.searchsorted(release.edges, tuning.TUNING.far * spread)) + 1
    far = release.counts[first:]
    tail = float(np.sum(far)) - noise * math.sqrt(max(far.size, 1))
    small = spread < tuning.TUNING.spread_below * release.edges[0]
    return float(release.counts[-1]) - noise, float(release.counts[0]) - noise if small else 0.0, tail


def _saturation(release: NewtonRelease | GlmNewtonRelease | PopulationRelease) -> float:
    """Return the trace of the first second moments over the largest that it can be, less noise beyond the margin."""
    largest = float(release.moment_bounds[0]) ** 2
    noise = tuning.TUNING.sure * float(release.moment_stddev[0]) * math.sqrt(release.n_coef) / largest
    return float(np.trace(release.moments[0])) / largest - max(noise - tuning.TUNING.margin, 0.0)


def count_unresolved(matrix: FloatArray, stddev: float) -> int:
    """Count eigenvalues of a released matrix that noise alone might have; its norm is about stddev sqrt(2 d)."""
    least = tuning.TUNING.unresolved * stddev * math.sqrt(2.0 * len(matrix))
    return int(np.count_nonzero(np.linalg.eigvalsh(matrix) < least))
