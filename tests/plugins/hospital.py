"""A package outside of dpinfer that brings a model, a method, a source and a law of noise, by entry points."""

import math
from dataclasses import fields, replace

import numpy as np

import dpinfer as dpi
from dpinfer.auditing.paths import model_paths
from dpinfer.fitting import DoesNotApplyError, Method, StatisticPlan
from dpinfer.inference.request import Room, StatisticRequest
from dpinfer.inference.statistic.conjugate import check_statistic_request, one_shot_posterior
from dpinfer.lab.replays.mechanisms import library_scenarios
from dpinfer.mechanism import RowSource, run_statistic
from dpinfer.methods import NewtonMethod
from dpinfer.models import LogisticRegression
from dpinfer.release import StatisticRelease


class HospitalRegression(LogisticRegression):
    """A model of another package."""


class HalvesRelease(StatisticRelease):
    """A kind of release of another package, with its own format of files."""

    format_name = "hospital-halves"
    room = Room("half of a statistic", StatisticRequest, check_statistic_request, one_shot_posterior)


class Halves(Method):
    """A method: the library's statistic at half of the budget, in a release of its own kind."""

    name = "halves"
    releases = (HalvesRelease,)

    def plan(self, target):
        if not isinstance(target.model, dpi.models.BetaBernoulli):
            raise DoesNotApplyError("for a Beta-Bernoulli model only")
        return StatisticPlan(0.5 * target.epsilon, target.adjacency), {}

    def predicted_width(self, target, plan):
        return math.nan, "no width is predicted"

    def n_passes(self, plan):
        return 1.0

    def plan_from_dict(self, data):
        return StatisticPlan.from_dict(data)

    def check(self, target, plan, request, run):
        if run.checkpoint is not None:
            raise ValueError("checkpoint must be None with method 'halves'")

    def run(self, target, plan, settings, X, y, run):
        release = run_statistic(
            target.model,
            X,
            epsilon=plan.epsilon,
            n_records=target.n_records,
            adjacency=plan.adjacency,
            random_source=run.random_source,
            ledger=run.ledger,
        )
        return HalvesRelease(**{item.name: getattr(release, item.name) for item in fields(release)})


class Thrift(NewtonMethod):
    """A method of regressions: the library's private Newton run at half of the budget."""

    name = "thrift"
    told = "the sums of a private Newton run, at half of the budget"

    def plan(self, target):
        return super().plan(replace(target, epsilon=0.5 * target.epsilon))

    def audited_paths(self):
        return [replace(path, name=f"thrift, {path.name}") for path in model_paths(LogisticRegression(2))[:1]]

    def scenarios(self):
        return [replace(scenario, name=f"thrift: {scenario.name}") for scenario in library_scenarios()[:1]]


class Careless(Halves):
    """A method that spends more than its plan says."""

    name = "careless"

    def run(self, target, plan, settings, X, y, run):
        return super().run(target, StatisticPlan(9.0, plan.adjacency), settings, X, y, run)


def wards(count, size):
    """Return the records of wards, a block for each."""

    def blocks():
        for number in range(count):
            yield np.random.default_rng(number).integers(0, 2, size).astype(float)

    return RowSource(blocks)


def lists(count):
    """Return what is no source."""
    return [0.0] * count


class Staircase:
    """A law of noise: steps as wide as the sensitivity, each lower by exp(-epsilon); cut off after 40 steps."""

    def weights(self, epsilon, sensitivity):
        steps = [max(1, round(2**63 * math.exp(-epsilon * step))) for step in range(math.ceil(40.0 / epsilon))]
        return [weight for weight in steps for _ in range(sensitivity)]


class Hollow:
    """A law that hides nothing: it is no table of positive numbers."""

    def weights(self, epsilon, sensitivity):
        return [1.0, 0.0]
