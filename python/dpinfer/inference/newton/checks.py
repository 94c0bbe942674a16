"""Checks of a private Newton run against its model, from the release and its posterior's draws, with thresholds.

Thresholds were chosen on the seen half of the design of bench/coverage/newton_warnings.py, so that fewer than 2% of
the releases that fit are doubted; docs/private-newton.md has the rates on both halves.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.conflict import prior_conflict
from dpinfer.release import GlmNewtonRelease, NewtonRelease, PopulationRelease
from dpinfer.release.newton.linear import spread_of_counts


@dataclass(frozen=True)
class Checks:
    """Results of the checks.

    Parameters
    ----------
    beyond_scale, below_scale : float
        Share of the responses that are larger, smaller than the declared scale allows for, less the effect of noise;
        nan for a logistic regression.  Zeros among responses of the declared size, such as scores in whole numbers, do
        not count as too small.
    tail : float
        The same for responses far out.
    prior_pvalue : float
        Of the weights' size under their prior.
    fit_pvalue : float
        The smaller one of scores and scale scores: posterior predictive, so closer to a half than to uniform.
    saturation : float
        Trace of the features' second moments over the largest that it can be.
    n_unresolved : int
        Directions of the features that the privacy noise hides: their variance is not distinguished from zero.
    """

    beyond_scale: float
    below_scale: float
    tail: float
    prior_pvalue: float
    fit_pvalue: float
    saturation: float
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
                f"the privacy noise hides {self.n_unresolved} of {self.n_coef} directions of the features: intervals "
                "along them rest on priors, and may fail where features nearly determine each other: give more "
                "epsilon, or fewer columns and categories."
            )
            return f"{said} {weak}" if said else f"The release leaves its model open: {weak}"
        if said:
            return said
        passed = "No contradiction of scale, features, scores or prior was found"
        if self.fit_pvalue < tuning.TUNING.doubt:
            return (
                f"{passed}, and that of the scores only just (p = {self.fit_pvalue:.2g}): the model is in doubt; the "
                "same intervals at another budget can come with a warning."
            )
        return (
            f"{passed} (p = {self.fit_pvalue:.2g} of the scores). That does not show that the model is right: these "
            "checks do not see where the population's coefficients lie, and skewed errors or a bent mean can move them "
            "by many standard errors: target='population', where the model has it, does not assume that it is true."
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
    misfit: FloatArray,
    freedom: FloatArray,
    location: FloatArray,
    covariance: FloatArray,
    prior_variance: FloatArray,
) -> Checks:
    """Check a release and the draws of its posterior.

    **Privacy.** Post-processing of a release.

    Parameters
    ----------
    misfit, freedom : (S, k) and (k,) arrays
        Chi-squared sums of each draw's residuals, and their degrees of freedom.
    location, covariance, prior_variance : arrays
        As for :func:`prior_conflict`.
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
        prior_pvalue=prior_conflict(location, covariance, prior_variance),
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
