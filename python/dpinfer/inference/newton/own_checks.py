"""Checks of a private Newton run of a user's own model against its declarations, from its release, with thresholds.

Thresholds were chosen on the seen half of the design of bench/coverage/newton_warnings.py; docs/any-model.md has
the rates.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton import tuning
from dpinfer.release import OwnNewtonRelease

_SATURATED = 0.5  # of the way from the expected slope to the largest possible one
_MANY = 2.0  # times the declared number of records, or a share of one over it
_BEYOND = 0.5  # share of the first scores that are longer than the largest edge


@dataclass(frozen=True)
class OwnChecks:
    """Results of the checks; nan without data in the release."""

    saturation: float  # how far the first slope is on the way from the expected one, 0, to the largest, 1
    saturation_stddev: float
    beyond: float  # without a sampler: share of the first scores beyond the last edge, less three times its noise
    # count, count_stddev: released number of records over the declared one, and its noise
    count: float
    count_stddev: float
    spread: float  # mean squared norm of the clipped scores over that of the model's own draws
    spread_pvalue: float  # of that, if the model holds
    prior_pvalue: float  # of the parameters' distance from the prior's mean

    @property
    def warnings(self) -> dict[str, str]:
        """Failed checks, by name."""
        found = {}
        if self.saturation > max(_SATURATED, tuning.TUNING.sure * self.saturation_stddev):
            found["features"] = (
                "the features are far larger than the declared ones: standardise the columns by public numbers, or "
                "give features= like them"
            )
        if self.beyond > _BEYOND:
            found["scores"] = (
                "scores are far larger than those of made-up records: standardise the columns and the responses by "
                "public numbers, or give features= like them"
            )
        noise = tuning.TUNING.sure * self.count_stddev
        if self.count - noise > _MANY or self.count + noise < 1.0 / _MANY:
            found["n_records"] = (
                f"{max(self.count, 0.0):.2g} times n_records were counted (noise {self.count_stddev:.1g}), and all "
                "bounds were chosen for n_records: give the number of records"
            )
        if self.spread_pvalue < tuning.TUNING.fit_level:
            found["spread"] = (
                f"scores vary {max(self.spread, 0.0):.2g} times as much as those of the model's own draws (p = "
                f"{self.spread_pvalue:.2g}): the responses have another coding, unit, range or law than the model's"
            )
        if self.prior_pvalue < tuning.TUNING.prior_level:
            found["prior"] = (
                f"parameters are farther from the prior's mean than it expects (p = {self.prior_pvalue:.2g}): check "
                "the units of columns and responses, or use a larger prior_scale"
            )
        return found

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        found = self.warnings
        if found:
            return "The release does not fit its model: " + "; ".join(found.values()) + ". Intervals may not hold."
        if math.isnan(self.spread_pvalue):
            return "No check of scores, number of records or prior fails."
        return (
            f"No check of features, number of records, spread of scores or prior fails (p = {self.spread_pvalue:.2g} "
            "of the spread). That does not show that the model is right: intervals rest on its likelihood."
        )


def check_own(
    release: OwnNewtonRelease,
    mean: FloatArray,  # (n,): of the unconstrained parameters
    covariance: FloatArray,  # (n, n)
) -> OwnChecks:
    """Check a release and its posterior.

    **Privacy.** Post-processing of a release.

    Notes
    -----
    docs/derivations/any-model.md, "Checks of the model".
    """
    count, count_stddev = _counted(release)
    saturation, saturation_stddev = _saturation(release, count)
    spread, pvalue = _spread(release, count, mean, covariance)
    away = float(np.sum((np.square(mean - release.prior_mean) + np.diag(covariance)) / release.prior_scale**2))
    beyond = math.nan
    if release.clipped:
        beyond = float(release.norm_shares[0, -1] - tuning.TUNING.sure * release.norm_stddev[0])
    return OwnChecks(
        saturation=saturation,
        saturation_stddev=saturation_stddev,
        beyond=beyond,
        count=count,
        count_stddev=count_stddev,
        spread=spread,
        spread_pvalue=pvalue,
        prior_pvalue=float(special.chdtrc(release.n_params, away)),
    )


def _mean(values: FloatArray, stddev: FloatArray) -> tuple[float, float]:
    """Return the mean by precision, and its standard deviation."""
    precision = 1.0 / np.square(stddev)
    return float(precision @ values / precision.sum()), float(1.0 / np.sqrt(precision.sum()))


def _counted(release: OwnNewtonRelease) -> tuple[float, float]:
    if release.clipped:
        shares = release.norm_shares
        return _mean(shares.sum(axis=1), release.norm_stddev * math.sqrt(shares.shape[1]))
    return _mean(release.tallies[:, 1], release.tally_stddev) if release.tallied else (math.nan, math.nan)


def _saturation(release: OwnNewtonRelease, count: float) -> tuple[float, float]:
    """Compare the first slope, which nothing was adapted for, with the expected and the largest one."""
    if not release.tallied or count <= 0.0:
        return math.nan, math.nan
    n, expected = release.n_params, float(release.expected_slopes[0])
    room = release.largest_trace / (n * expected) - 1.0
    if not room > 0.0:
        return math.nan, math.nan
    found = float(np.trace(release.matrices[0])) / (n * expected * count) - 1.0
    return found / room, float(release.matrix_stddev[0]) / (math.sqrt(n) * expected * count) / room


def _spread(release: OwnNewtonRelease, count: float, mean: FloatArray, covariance: FloatArray) -> tuple[float, float]:
    """Return the ratio of mean squares, and the p-value of its excess over the effect of a distant truth."""
    if not release.tallied or count <= 0.0:
        return math.nan, math.nan
    excess, noise = _mean(release.tallies[:, 0], release.tally_stddev)
    weights = 1.0 / np.square(release.tally_stddev)
    moved = mean - weights @ release.positions / weights.sum()
    explained = count * float(release.square_slope @ moved)
    variance = noise**2 + count * release.square_variance / release.n_records
    variance += count**2 * float(release.square_slope @ covariance @ release.square_slope)
    return 1.0 + excess / (count * release.square), 2.0 * float(special.ndtr(-abs(excess - explained) / variance**0.5))
