"""What the records determine, and White's comparison of a robust and a model-based fit along it."""

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy import linalg, special

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton import tuning
from dpinfer.models import GeneralizedLinearModel, LinearRegression
from dpinfer.models import tuning as common
from dpinfer.models.clipping import SizeShares
from dpinfer.release import PopulationRelease
from dpinfer.release.newton.population import NO_WEIGHTS, PopulationSums

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
    back = release.bread_transform @ np.linalg.inv(release.score_transform)
    rows = np.asarray(vectors[:, ~flat].T @ back)
    return rows, np.asarray(np.linalg.solve(back, vectors[:, ~flat] @ rows))


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
