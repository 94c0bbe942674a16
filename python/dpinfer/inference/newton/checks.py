"""Checks of requests, and of a private Newton run against its model: release and draws, with thresholds.

Thresholds were chosen on the seen half of the design of bench/coverage/newton_warnings.py, so that fewer than 2% of
the releases that fit are doubted; docs/private-newton.md has the rates on both halves.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer
from dpinfer.inference.newton import tuning
from dpinfer.inference.request import OwnNewtonRequest, OwnPopulationRequest, PlannedRelease, PopulationRequest
from dpinfer.models import GeneralizedLinearModel, LinearRegression, OwnModel, PersonModel
from dpinfer.release import GlmNewtonRelease, NewtonRelease, OwnNewtonRelease, OwnPopulationRelease, PopulationRelease
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
