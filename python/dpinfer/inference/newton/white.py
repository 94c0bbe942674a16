"""White's comparison of a robust and a model-based fit, from one release of noisy sums."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer.models.size_shares import SizeShares
from dpinfer.release import PopulationRelease
from dpinfer.release.newton.population import PopulationSums

FloatArray = npt.NDArray[np.float64]

_LEVEL = 0.01  # false-positive rate on true models, which bench/coverage/real_responses.py measures
_INDEPENDENT = 0.5  # share of the entries of a matrix that vary by themselves
_MODEL_ERROR = 0.2  # relative error granted to a score far from its zero: it is clipped there


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a robust and a model-based fit differ by.

    Parameters
    ----------
    widths_pvalue : float
    ratios : (d,) array
        Robust over model-based standard error of each weight.
    centres_pvalue : float, optional
        Where the release has scores whose large residuals are clipped.
    distances : (d,) array, optional
        From the weights with clipped residuals to the robust ones, in robust standard errors.
    """

    widths_pvalue: float
    ratios: FloatArray
    centres_pvalue: float | None = None
    distances: FloatArray | None = None

    @property
    def pvalue(self) -> float:
        """Of both comparisons together (Bonferroni)."""
        if self.centres_pvalue is None:
            return self.widths_pvalue
        return min(1.0, 2.0 * min(self.widths_pvalue, self.centres_pvalue))

    def __str__(self) -> str:
        what = "standard errors" if self.centres_pvalue is None else "standard errors and coefficients"
        if self.pvalue >= _LEVEL:
            return f"White's comparison of robust and model-based {what} finds no difference (p = {self.pvalue:.2g})."
        said = (
            f"The model is not true (White's comparison, p = {self.pvalue:.2g}): robust standard errors are "
            f"{self.ratios.min():.2f} to {self.ratios.max():.2f} times the model-based ones"
        )
        if self.distances is not None and self.centres_pvalue is not None and 2.0 * self.centres_pvalue < _LEVEL:
            said += (
                f", and coefficients with clipped residuals are up to {self.distances.max():.1f} standard errors away"
            )
        return f"{said}."


def compare_widths(
    release: PopulationSums,
    sizes: SizeShares,
    breads: FloatArray,
    bread: FloatArray,
    meat: FloatArray,
    least_level: float | None,
) -> Comparison:
    """Compare covariances.

    **Privacy.** Post-processing of a release.

    Parameters
    ----------
    release : PopulationSums
    sizes : SizeShares
        Of its scores.
    breads, bread : (S, d, d) and (d, d) arrays
        Draws of the bread at the zero of the scores, and the released one.
    meat : (d, d) array
        Shrunken, positive definite.
    least_level : float or None
        Least variance of the errors where it is unknown; None: it is 1.

    Notes
    -----
    Bread and meat are proportional where the model is true, equal without a scale (White 1982).  Their distance is
    compared with its expectation under noise, sampling of fourth moments and the meat's clip
    (docs/derivations/population.md).
    """
    d = release.n_coef
    level = 1.0 if least_level is None else max(float(np.trace(release.meat) / np.trace(bread)), least_level)
    unit, bound = release.size_unit**2 / d, release.score_bound / release.size_unit
    expected = 0.5 * d * (d + 1) * release.meat_stddev**2
    expected += level**2 * float(np.mean(np.sum(np.square(breads - breads.mean(axis=0)), axis=(1, 2))))
    expected += sizes.fourth(bound) * (unit * d) ** 2 / release.n_records
    expected += (sizes.lost_square(bound) * unit) ** 2 * d
    found = float(np.sum(np.square(release.meat - level * bread)))
    freedom = _INDEPENDENT * (0.5 * d * (d + 1) - (least_level is not None))
    back = np.linalg.inv(bread) @ release.score_transform
    robust = np.einsum("ji,jk,ki->i", back, meat, back)
    own = level * np.einsum("ji,ji->i", release.score_transform, back)
    return Comparison(float(special.chdtrc(freedom, freedom * found / expected)), np.sqrt(robust / own))


def compare_centres(
    release: PopulationRelease, sizes: SizeShares, zero: FloatArray, noise: float, meat: FloatArray
) -> tuple[float, FloatArray]:
    """Compare the weights of a linear regression with those of its localising scores: p-value and distances, (d,).

    **Privacy.** Post-processing of a release.

    Parameters
    ----------
    release : PopulationRelease
    sizes, meat
        As in :func:`compare_widths`.
    zero : (d,) array
        Robust weights, in the coordinates of the scores.
    noise : float
        Variance of the noise in a coordinate of it.

    Notes
    -----
    Localising scores are clipped at three times their usual size: where errors are symmetric given x, both have the
    same zero (Hausman 1978).  What differs is noise, the sampling error of what one clip takes off and the other
    leaves, and steps that have not arrived.  The first score is left out: its clip rests on a guess of the scale.
    """
    at, scores = release.localise_positions[1:], release.localise_scores[1:]
    away = np.mean(np.square(zero - at), axis=1)
    weight = 1.0 / (np.square(release.localise_score_stddev[1:]) + _MODEL_ERROR**2 * away)
    share = weight / np.sum(weight)
    gap = share @ (scores - (zero - at))
    near, far = share @ release.localise_bounds[1:] / release.size_unit, release.score_bound / release.size_unit
    sampling = sizes.square_between(near, far) * release.size_unit**2 / release.n_coef / release.n_records
    pvalue = special.chdtrc(release.n_coef, float(gap @ gap) / (1.0 / np.sum(weight) + noise + sampling))
    white = release.score_transform
    stddev = np.sqrt(np.einsum("ji,jk,ki->i", white, meat, white) / release.n_records)
    return float(pvalue), np.abs(gap @ white) / stddev
