"""White's comparison of robust and model-based covariances, from one release of noisy matrices."""

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer.models.size_shares import SizeShares
from dpinfer.release.newton.population import PopulationSums

__all__ = ["white_comparison", "white_in_words"]

FloatArray = npt.NDArray[np.float64]

_LEVEL = 0.01  # false-positive rate on true models: 2 of 180 runs
_INDEPENDENT = 0.5  # share of the entries of a matrix that vary by themselves


def white_comparison(
    release: PopulationSums,
    sizes: SizeShares,
    breads: FloatArray,
    bread: FloatArray,
    meat: FloatArray,
    least_level: float | None,
) -> tuple[float, FloatArray]:
    """Return a p-value, and the robust over the model-based standard error of each weight, (d,).

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
    return float(special.chdtrc(freedom, freedom * found / expected)), np.sqrt(robust / own)


def white_in_words(found: tuple[float, FloatArray] | None) -> str:
    """Return the comparison as a sentence; nothing where there is none."""
    if found is None:
        return ""
    pvalue, ratios = found
    if pvalue >= _LEVEL:
        return f"  White's comparison of robust and model-based standard errors finds no difference (p = {pvalue:.2g})."
    return (
        f"  The model is not true (White's comparison, p = {pvalue:.2g}): robust standard errors are "
        f"{ratios.min():.2f} to {ratios.max():.2f} times the model-based ones."
    )
