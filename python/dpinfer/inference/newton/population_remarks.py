"""What a person is told of a posterior of the population's coefficients: warnings, and the verdict."""

import math
from typing import Any

import numpy as np

from dpinfer.inference.newton import tuning
from dpinfer.inference.newton.checks import declared_sizes
from dpinfer.models import LinearRegression, OwnModel
from dpinfer.models import tuning as common
from dpinfer.release import PopulationRelease


def warnings(population: Any, prior_pvalue: float) -> dict[str, str]:
    """Return the warnings for users, by name."""
    found = declared_sizes(population.release) if isinstance(population.release, PopulationRelease) else {}
    if getattr(population.model, "feature_moments", None) is not None:
        found.pop("features", None)  # a schema's bounds give them: there is no feature_scale to declare
    sampling = math.sqrt(float(np.trace(population.meat[0])) / population.release.n_coef / population.release.n_records)
    values = np.linalg.eigvalsh(population.release.bread)
    noise = population.release.bread_stddev * math.sqrt(2.0 * population.release.n_coef)
    long = population.lengths.kurtosis > tuning.TUNING.long * (1.0 + 2.0 / population.release.n_coef)
    lost = 1.0 - population.lengths.kept(population.release.bread_bound / population.release.length_unit)
    few = values[-1] - noise > tuning.TUNING.dominated * max(np.median(values), noise)
    if few or (long and lost > tuning.TUNING.lost):
        found["leverage"] = (
            "few records determine a combination of the coefficients: the privacy noise hides their effect, and "
            "its interval may be too narrow: use closer bounds, or transform the column with the longest tail"
        )
    if math.sqrt(population.zero[1] @ population.clipped @ population.zero[1]) > tuning.TUNING.biased * sampling:
        found["clip"] = "scores have a longer tail than the budget can follow: intervals allow for the clipped part"
    if population.sizes.far:
        found["far"] = "few records are far from all others, and intervals are wide to keep their effect"
    binary = getattr(population.model, "response", "") == "binary"
    if population.release.sizes_stddev > common.TUNING.hidden_sizes and not binary:
        found["sizes"] = (
            "the privacy noise hides how large scores are, and intervals may be too narrow: use target='model', or "
            "give more epsilon"
        )
    if population.fit_pvalue < tuning.TUNING.fit_level:
        found["fit"] = (
            f"the steps have not reached the solution (p = {population.fit_pvalue:.2g}): intervals may be too narrow: "
            "give more epsilon, or fewer columns"
        )
    if prior_pvalue < tuning.TUNING.prior_level:
        found["prior"] = (
            f"the weights are larger than their prior expects (p = {prior_pvalue:.2g}): use a larger prior_scale"
        )
    return found


def verdict(population: Any, found: dict[str, str]) -> str:
    """Return the verdict, which states these warnings."""
    by = "least squares" if isinstance(population.model, LinearRegression) else "maximum likelihood"
    survey = getattr(population.model, "survey_weights", None)
    kind = "design-based" if survey is not None else "robust"
    kind += " (cluster-robust" if population.dependent else " (HC-type"
    kind += ", within strata" if population.within_strata else ""
    what = "parameters" if isinstance(population.model, OwnModel) else "coefficients"
    said = (
        f"The {what} are the population's, by {by} on the whole population.  Intervals are {kind}): they hold "
        "whether or not the model is true"
    )
    whose = "unit" if population.scores_per_row != 1.0 else "cluster"
    said += f", and rows of a {whose} may depend on each other." if population.dependent else "."
    if survey is not None and survey.strata and not population.within_strata:
        said += "  The strata do not stand out of the privacy noise: intervals are as without them, and not narrower."
    said += "" if population.information is None else f"  {population.information}"
    if found:
        told = "; ".join(found.values())
        said += f"  {told[0].upper()}{told[1:]}."
    if population.wider > 1.0:
        said += (
            f"  The declared prior expects smaller {what}: intervals are those of a prior {population.wider:g} times "
            "as wide."
        )
    if population.n_unresolved:
        said += (
            f"  The privacy noise hides {population.n_unresolved} of {population.release.n_coef} directions of the "
            "features: intervals along them rest on the prior: give more epsilon, or fewer columns and categories."
        )
    return said
