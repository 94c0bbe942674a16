"""Bugs in a private Newton run, each put in the place of a method of the library: see ``replay_mutants``."""

import contextlib
from dataclasses import replace

import numpy as np

from dpinfer.mechanism import _native
from dpinfer.mechanism.newton import linear
from dpinfer.mechanism.newton.contributions import ClippedScores, LogScaleCounts, RobustScores, SecondMoments, smat
from dpinfer.mechanism.newton.joint import StratumScores
from dpinfer.mechanism.newton.pass_records import NoisySum, Passes
from dpinfer.mechanism.newton.population import PopulationNewton


def in_place_of(owner, name, make):
    """`make(right)` in the place of a method."""

    @contextlib.contextmanager
    def installed():
        right = getattr(owner, name)
        setattr(owner, name, make(right))
        try:
            yield
        finally:
            setattr(owner, name, right)

    return installed


def _released(passes, total, query, multiplier):
    """Release a sum as `Passes` does, with this multiplier and the noise that was planned."""
    index = passes._next
    passes._next += 1
    passes._released[f"pass_{index}"] = total.noisy_sum(passes._key, index, multiplier)
    passes._report(passes._next, passes.plan.n_passes)
    planned = passes.plan.noise_multipliers[index]
    return NoisySum(passes._released[f"pass_{index}"].copy(), planned * query.max_norm)


def weight_not_applied(right):
    """Vectors of any length are let through, and the noise is that of weighted ones."""

    def noisy_sum(passes, phase, query):
        if not isinstance(query, (RobustScores, ClippedScores, SecondMoments)):
            return right(passes, phase, query)
        longer = 1e3
        total = _native.PartialSum(length=query.length, max_norm=longer * query.max_norm)
        passes._records.add(total, replace(query, bound=longer * query.bound))
        return _released(passes, total, query, passes.plan.noise_multipliers[passes._next] / longer)

    return noisy_sum


def wrong_sensitivity(right):
    """Residuals are taken to be at most half of what they can be, without clipping them."""

    def noisy_sum(passes, phase, query):
        total = _native.PartialSum(length=query.length, max_norm=query.max_norm)
        passes._records.add(total, query)
        return _released(passes, total, query, 0.5 * passes.plan.noise_multipliers[passes._next])

    return noisy_sum


def the_same_noise_twice(right):
    """Every second pass has the stream of the one before it."""

    def noisy_sum(passes, phase, query):
        index = passes._next
        total = _native.PartialSum(length=query.length, max_norm=query.max_norm)
        passes._records.add(total, query)
        passes._next += 1
        values = total.noisy_sum(passes._key, index // 2, passes.plan.noise_multipliers[index])
        passes._released[f"pass_{index}"] = values
        passes._report(passes._next, passes.plan.n_passes)
        return NoisySum(values.copy(), passes.plan.noise_multipliers[index] * query.max_norm)

    return noisy_sum


def centred_by_the_records(right):
    """The centre is the mean response of the records instead of that of the model."""

    def add(query, total, rows):
        centre = np.clip(rows.response, -1.0, 1.0).mean() + 0.0 * query.residual.centre
        return right(replace(query, residual=replace(query.residual, centre=centre)), total, rows)

    return add


def bounded_by_the_records(right):
    """The bound of the weights is that of the records' own mean square."""

    def add(query, total, rows):
        exact = _native.PartialSum(length=query.length, max_norm=1e6)
        right(replace(query, bound=1e3), exact, rows)
        square = np.trace(smat(exact.integers * exact.lattice_step, len(query.transform))) / rows.response.size
        return right(replace(query, bound=float(np.sqrt(1e-3 + min(square, 1e6)))), total, rows)

    return add


def a_block_counted_thrice(right):
    """Blocks overlap: a record is in three of them."""

    def add(query, total, rows):
        for _ in range(3):
            right(query, total, rows)

    return add


def without_noise(right):
    """What is public follows from the exact sum."""

    def noisy_sum(passes, phase, query):
        if phase != "geometry":
            return right(passes, phase, query)
        total = _native.PartialSum(length=query.length, max_norm=query.max_norm)
        passes._records.add(total, query)
        exact = total.integers * total.lattice_step
        return NoisySum(exact, right(passes, phase, query).stddev)

    return noisy_sum


def stopped_by_the_records(right):
    """The number of records says whether there is a second round of geometry."""

    def learned(model, passes, n_records):
        if passes._records.n_rows % 2:
            passes.leave_out(passes.plan.indices("geometry")[1:2])
        return right(model, passes, n_records)

    return learned


def a_round_that_gives_more_than_it_had(right):
    """The measurements get the share of a round twice, after the charge."""

    def learned(model, passes, n_records):
        passes.leave_out(passes.plan.indices("geometry")[1:2])
        passes.plan = replace(passes.plan, noise_multiplier=0.9 * passes.plan.noise_multiplier)
        return right(model, passes, n_records)

    return learned


def clusters_as_if_they_were_small(right):
    """A row is taken to move a cluster's product by an eighth of what it can: the release refuses its own noise."""

    def products(self, white, position, bound, reach):
        query = right(self, white, position, bound, reach)
        return replace(query, max_norm=query.max_norm / 8.0, parts=8 * query.parts) if reach else query

    return products


CLUSTERS = "run_newton: LinearRegression, population, clusters, add_remove"
STRATA = "run_newton: population, linear, strata"
LINEAR, PROBIT, POISSON = "run_newton: linear", "run_newton: probit, replaced", "run_newton: Poisson"
LOGISTIC = "run_newton: logistic"
PASSES, CENTRE = (Passes, "noisy_sum"), (ClippedScores, "add")
# Name: scenario, what is replaced, the bug, the kind of finding.
NEWTON_MUTANTS = {
    "newton_weight_not_applied_linear": (LINEAR, PASSES, weight_not_applied, "accounting"),
    "newton_weight_not_applied_logistic": (LOGISTIC, PASSES, weight_not_applied, "accounting"),
    "newton_weight_not_applied_poisson": (POISSON, PASSES, weight_not_applied, "accounting"),
    "newton_wrong_sensitivity_linear": (LINEAR, PASSES, wrong_sensitivity, "accounting"),
    "newton_wrong_sensitivity_probit": (PROBIT, PASSES, wrong_sensitivity, "accounting"),
    "newton_same_noise_twice": (LOGISTIC, PASSES, the_same_noise_twice, "noise"),
    "newton_centred_by_the_records_logistic": (LOGISTIC, CENTRE, centred_by_the_records, "public"),
    "newton_centred_by_the_records_poisson": (POISSON, CENTRE, centred_by_the_records, "public"),
    "newton_bounded_by_the_records": (LINEAR, (SecondMoments, "add"), bounded_by_the_records, "public"),
    "newton_a_block_counted_thrice": (POISSON, (LogScaleCounts, "add"), a_block_counted_thrice, "sensitivity"),
    "newton_strata_counted_thrice": (STRATA, (StratumScores, "add"), a_block_counted_thrice, "sensitivity"),
    "newton_clusters_as_if_they_were_small": (
        CLUSTERS,
        (PopulationNewton, "_products"),
        clusters_as_if_they_were_small,
        "outcome",
    ),
    "newton_stopped_by_the_records": (LINEAR, (linear, "learn_geometry"), stopped_by_the_records, "public"),
    "newton_a_round_that_gives_more_than_it_had": (
        f"{LINEAR}, streamed",
        (linear, "learn_geometry"),
        a_round_that_gives_more_than_it_had,
        "order",
    ),
    "newton_whitened_by_the_exact_moments": (LINEAR, PASSES, without_noise, "unnoised"),
}
