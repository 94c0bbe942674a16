"""The table of methods, and the library's rows of it: private Newton, one statistic, gradient traces, sites.

A method asks its mechanism whether it supports a model; no method names the library's models.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpinfer import mechanism as runs
from dpinfer import planning
from dpinfer._lazy import find_plugin
from dpinfer._validate import check_interval
from dpinfer.accounting import Adjacency, PrivacyPlan, plan_privacy
from dpinfer.inference import PlannedRelease, PosteriorRequest, ReleaseFacts
from dpinfer.mechanism.newton.plan import NewtonPlan, has_population_target, plan_newton
from dpinfer.mechanism.newton.run import check_run, run_newton
from dpinfer.methods.method import (
    DoesNotApplyError,
    MechanismPlan,
    Method,
    RunSettings,
    Settings,
    StatisticPlan,
    Target,
)
from dpinfer.models import GeneralizedLinearModel, LinearRegression, Model, OwnModel, tuning
from dpinfer.planning import tuning as choice
from dpinfer.release import (
    GlmNewtonRelease,
    NetworkRelease,
    NewtonRelease,
    OwnNewtonRelease,
    OwnPopulationRelease,
    PopulationRelease,
    Release,
    SiteRelease,
    StatisticRelease,
)

_GROUP = "dpinfer.methods"
_SEP_RATE, _SEP_STEPS = 1.0, 50  # full batches: subsampling buys no accuracy; tens of steps (docs/dp-sep.md)
_NETWORK = "network"  # the kind of site that has a run of its own
_HIDDEN = "the noise would hide how large scores are"


class NewtonMethod(Method):
    """A few full-batch passes: :func:`dpinfer.run_newton`."""

    name = "newton"
    told = "a few noisy sums over all records"
    offers = ("unit", "unknown", "cuda", "levels")

    def targets(self, model: Model) -> tuple[str, ...]:
        """Return both where the likelihood has a population's target."""
        return ("population", "model") if has_population_target(model) else ()

    def plan(self, target: Target) -> tuple[MechanismPlan, dict[str, Any]]:
        """Ask the mechanism for its plan."""
        model: Any = target.model
        aim = "population" if target.estimand == "population" else "model"
        public: Any = {"n_records": target.n_records, "adjacency": target.adjacency, "clusters": target.clusters}
        try:
            plan = plan_newton(model, **target.budget, **public, target=aim)
        except TypeError as error:
            raise DoesNotApplyError("not for this model") from error
        return plan, {}

    def predicted_width(self, target: Target, plan: MechanismPlan) -> tuple[float, str]:
        """Return the closed form of the plan, or what a model of the user's own simulates."""
        if isinstance(target.model, OwnModel) and isinstance(plan, NewtonPlan):
            return self._predict_own(target.model, plan, target.n_records)
        if not isinstance(plan, NewtonPlan) or not isinstance(target.model, GeneralizedLinearModel):
            return math.nan, "no width is predicted"
        try:
            predict = planning.predict_population if plan.target == "population" else planning.predict_newton
            # Binary responses have residuals of at most 1, and features a public size: so have their scores.
            bounded = target.model.response == "binary"
            if not bounded and _hides_sizes(plan, target.n_records):
                return math.nan, _HIDDEN
            widths = predict(target.model, plan, target.n_records, predictor_spread=_spread(target))
        except ValueError as error:
            return math.nan, str(error)
        return float(np.median(widths)), ""

    def widest(self, target: Target, plan: MechanismPlan) -> float:
        """Return the width along a direction that noise can hide; one column has no correlation."""
        model = target.model
        if not isinstance(plan, NewtonPlan) or not isinstance(model, GeneralizedLinearModel) or model.n_features < 2:
            return math.nan
        return planning.widest_newton(model, plan, target.n_records, predictor_spread=_spread(target))

    @staticmethod
    def _predict_own(model: OwnModel, plan: NewtonPlan, n_records: int) -> tuple[float, str]:
        if not model.has_sampler and plan.target == "population":
            return math.nan, "no width is predicted: the model has no sampler"
        if _hides_sizes(plan, n_records):
            return math.nan, _HIDDEN
        if not model.has_sampler:
            return math.nan, "no width is predicted, and intervals will be flagged: the model has no sampler"
        try:
            if plan.target == "population":
                widths = planning.predict_own_population(model, plan, n_records)
                return float(np.median(widths)), "by the model's own simulation"
            widths, squared_shift = planning.predict_own_newton(model, plan, n_records)
        except Exception as error:
            # A user's code, on made-up records: a plan does without a prediction.
            failure = str(error).partition(":")[0] or type(error).__name__
            return math.nan, f"no width is predicted: in a simulation at parameters from the prior, {failure}"
        reason = "by the model's own simulation"
        if squared_shift > OwnNewtonRelease.large_shift:
            reason += "; its posterior is not near normal, so intervals are widened and flagged"
        return float(np.median(widths)), reason

    def n_passes(self, plan: MechanismPlan) -> float:
        """Return the passes of the plan."""
        return float(plan.n_passes) if isinstance(plan, NewtonPlan) else math.nan

    def plan_from_dict(self, data: Mapping[str, Any]) -> MechanismPlan:
        """Rebuild a NewtonPlan."""
        return NewtonPlan.from_dict(data)

    def check(self, target: Target, plan: MechanismPlan, request: PosteriorRequest | None, run: RunSettings) -> None:
        """Ask for the scale of the responses where the run needs one."""
        population = isinstance(plan, NewtonPlan) and plan.target == "population"
        linear = isinstance(target.model, LinearRegression)
        if linear and target.response_scale is None:
            raise ValueError(
                "response_scale must be given to fit a linear regression with method 'newton': a public order of "
                "magnitude of y in its units, within a factor of 10 of its root mean square (never taken from y); "
                "method='dpvi' does without it"
            )
        if not linear and target.response_scale is not None:
            raise ValueError(
                f"response_scale must be None for a {type(target.model).__name__}: its responses have no scale"
            )
        if isinstance(target.model, GeneralizedLinearModel):
            check_interval("model.prior_scale", target.model.prior_scale, 1e-30, 1e30)
        if request is not None:
            kind: type[Release] = NewtonRelease if linear else GlmNewtonRelease
            if isinstance(target.model, OwnModel):
                kind = OwnPopulationRelease if population else OwnNewtonRelease
            elif population:
                kind = PopulationRelease
            request.check(PlannedRelease(kind=kind, model=target.model))

    def run(self, target: Target, plan: MechanismPlan, settings: Settings, X: Any, y: Any, run: RunSettings) -> Release:
        """Run it."""
        model: Any = target.model
        mechanism: Any = plan
        public: Any = {"n_records": target.n_records, "response_scale": target.response_scale}
        return run_newton(model, X, y, plan=mechanism, **public, **vars(run))

    def check_records(self, target: Target, plan: MechanismPlan, X: Any, y: Any) -> None:
        """Check dimensions, columns and types."""
        model: Any = target.model
        mechanism: Any = plan
        check_run(model, X, y, mechanism, None, target.response_scale)


class StatisticMethod(Method):
    """One noisy sufficient statistic: :func:`dpinfer.run_statistic`."""

    name = "statistic"
    told = "one noisy statistic of all records"
    offers = ("pure",)

    def plan(self, target: Target) -> tuple[MechanismPlan, dict[str, Any]]:
        """Spend epsilon on one release; delta is not needed."""
        if not target.model.has_statistic:
            raise DoesNotApplyError("no sufficient statistic of a few numbers")
        return StatisticPlan(target.epsilon, target.adjacency), {}

    def predicted_width(self, target: Target, plan: MechanismPlan) -> tuple[float, str]:
        """Return the median over parameters from the prior."""
        model: Any = target.model
        widths = planning.predict_statistic(
            model, epsilon=target.epsilon, n_records=target.n_records, adjacency=target.adjacency
        )
        return float(np.median(widths)), "pure epsilon"

    def n_passes(self, plan: MechanismPlan) -> float:
        """Return one."""
        return 1.0

    def plan_from_dict(self, data: Mapping[str, Any]) -> MechanismPlan:
        """Rebuild a StatisticPlan."""
        return StatisticPlan.from_dict(data)

    def check(self, target: Target, plan: MechanismPlan, request: PosteriorRequest | None, run: RunSettings) -> None:
        """Refuse a checkpoint: there is one pass."""
        _refuse_scale(target, self.name)
        if run.checkpoint is not None:
            raise ValueError("checkpoint must be None with method 'statistic': one pass has nothing to go on from")
        if request is not None:
            request.check(PlannedRelease(kind=StatisticRelease, model=target.model))

    def run(self, target: Target, plan: MechanismPlan, settings: Settings, X: Any, y: Any, run: RunSettings) -> Release:
        """Run it."""
        if y is not None:
            raise TypeError(f"y must be None for a {type(target.model).__name__}, whose records are the values in X")
        model: Any = target.model
        return runs.run_statistic(
            model,
            X,
            epsilon=plan.epsilon,
            n_records=target.n_records,
            adjacency=plan.adjacency,
            random_source=run.random_source,
            ledger=run.ledger,
        )


class _OfSteps(Method):
    """A method whose plan is a :class:`dpinfer.PrivacyPlan`."""

    def n_passes(self, plan: MechanismPlan) -> float:
        """Return the expected number."""
        return plan.sample_rate * plan.n_steps if isinstance(plan, PrivacyPlan) else math.nan

    def plan_from_dict(self, data: Mapping[str, Any]) -> MechanismPlan:
        """Rebuild a PrivacyPlan."""
        return PrivacyPlan.from_dict(data)


class DPVIMethod(_OfSteps):
    """A noisy gradient trace: :func:`dpinfer.run_dpvi`, with the settings that the planner recommends."""

    name = "dpvi"
    told = "noisy gradients of many steps"

    def plan(self, target: Target) -> tuple[MechanismPlan, dict[str, Any]]:
        """Take the planner's sampling, steps and clipping norm, and calibrate the noise for the adjacency."""
        if target.model.gradient_sum is None:
            raise DoesNotApplyError("not for this model")
        if target.adjacency is Adjacency.REPLACE_ONE:
            raise DoesNotApplyError("its sampling is not accounted for under replace_one adjacency")
        try:
            plan, norm = planning.recommended_run(target.model, n_records=target.n_records, **target.budget)
        except TypeError as error:
            raise DoesNotApplyError("no default settings for this model: call run_dpvi") from error
        except ValueError as error:
            raise DoesNotApplyError(f"no default settings: {error}") from error
        if target.adjacency is not plan.adjacency:
            steps: Any = {"sample_rate": plan.sample_rate, "n_steps": plan.n_steps}
            plan = plan_privacy(**target.budget, **steps, adjacency=target.adjacency)
        return plan, {"max_grad_norm": norm}

    def predicted_width(self, target: Target, plan: MechanismPlan) -> tuple[float, str]:
        """Return the planner's closed form, or its simulated runs where they are asked for."""
        if target.adjacency is not Adjacency.ADD_REMOVE:
            return math.nan, "predicted under add_remove adjacency only"
        closed = target.model.natural_steps
        if not closed and not target.simulate:
            return math.nan, "no closed form; simulate=True predicts it"
        mechanism: Any = plan
        planned = planning.plan_inference(
            target.model,
            n_records=target.n_records,
            **target.budget,
            sample_rate=mechanism.sample_rate,
            n_steps=mechanism.n_steps,
            learning_rate_factor=None if closed else 1.0,
        ).prediction
        remarks = [] if closed else [f"simulated, +- {planned.typical_stderr:.2g}"]
        if self.allowance(target) > 1.0:
            remarks.append("for features that are not correlated, and parameters as the prior draws them")
        return planned.typical_widening, "; ".join(remarks)

    def allowance(self, target: Target) -> float:
        """Ask for more of a regression, whose trace is clipped and noised without whitening."""
        return choice.TUNING.unwhitened if isinstance(target.model, GeneralizedLinearModel) else 1.0

    def check(self, target: Target, plan: MechanismPlan, request: PosteriorRequest | None, run: RunSettings) -> None:
        """Check the posterior of the planned trace."""
        if request is not None and isinstance(plan, PrivacyPlan):
            model, n, fisher = target.model, target.n_records, target.model.natural_steps
            request.check(ReleaseFacts.planned(model, n_steps=plan.n_steps, n_records=n, fisher_scaled=fisher))

    def run(self, target: Target, plan: MechanismPlan, settings: Settings, X: Any, y: Any, run: RunSettings) -> Release:
        """Run it."""
        mechanism: Any = plan
        public: Any = {"n_records": target.n_records, "max_grad_norm": settings["max_grad_norm"]}
        return runs.run_dpvi(target.model, X, y, plan=mechanism, **public, **run.of_rows)


class SepMethod(_OfSteps):
    """A site trace: :func:`dpinfer.run_dp_sep`, all records in every step; a network's by its own rule."""

    name = "sep"
    told = "noisy sites of many steps"

    def plan(self, target: Target) -> tuple[MechanismPlan, dict[str, Any]]:
        """Calibrate the noise of the steps."""
        if target.model.site_sum is None:
            raise DoesNotApplyError("not for this model")
        steps: Any = {"sample_rate": _SEP_RATE, "n_steps": _SEP_STEPS}
        if target.model.site_sum == _NETWORK:
            if target.adjacency is Adjacency.REPLACE_ONE:
                raise DoesNotApplyError("its sampling is not accounted for under replace_one adjacency")
            steps = runs.network_plan_arguments(target.n_records)
        return plan_privacy(**target.budget, **steps, adjacency=target.adjacency), {}

    def predicted_width(self, target: Target, plan: MechanismPlan) -> tuple[float, str]:
        """Return that there is no prediction."""
        return math.nan, "no width is predicted"

    def check(self, target: Target, plan: MechanismPlan, request: PosteriorRequest | None, run: RunSettings) -> None:
        """Check the posterior of the planned trace."""
        _refuse_scale(target, self.name)
        if request is not None and isinstance(plan, PrivacyPlan):
            kind = NetworkRelease if target.model.site_sum == _NETWORK else SiteRelease
            request.check(PlannedRelease(kind=kind, model=target.model, n_steps=plan.n_steps))

    def run(self, target: Target, plan: MechanismPlan, settings: Settings, X: Any, y: Any, run: RunSettings) -> Release:
        """Run it."""
        model: Any = target.model
        mechanism: Any = plan
        call = runs.run_network_dp_sep if model.site_sum == _NETWORK else runs.run_dp_sep
        return call(model, X, y, plan=mechanism, n_records=target.n_records, **run.of_rows)


def _hides_sizes(plan: NewtonPlan, n_records: int) -> bool:
    return plan.target == "population" and plan.noise_of("sizes", n_records) > tuning.TUNING.hidden_sizes


def _spread(target: Target) -> float:
    """Return the spread of the linear predictor that a prediction assumes."""
    model: Any = target.model
    spread = target.predictor_spread or prior_spread(model)
    return spread if target.predictor_spread is not None or target.simulate else min(1.0, spread)


def prior_spread(model: GeneralizedLinearModel) -> float:
    """Return the root mean square of the linear predictor under the prior and the public second moments."""
    return model.prior_scale * math.sqrt(float(np.trace(model.design_moments)))


def _refuse_scale(target: Target, method: str) -> None:
    if target.response_scale is not None:
        raise ValueError(f"response_scale must be None with method {method!r}")


METHODS: dict[str, Method] = {
    method.name: method for method in (NewtonMethod(), StatisticMethod(), DPVIMethod(), SepMethod())
}


def find_method(name: str) -> tuple[Method, str]:
    """Return a method, and the package that brings it: empty for the library's own, whose names are theirs.

    Raises TypeError or ValueError if no method has this name, or the package's object is no subclass of Method.
    """
    if isinstance(name, str) and name in METHODS:
        return METHODS[name], ""
    found = find_plugin(_GROUP, name) if isinstance(name, str) else None
    if found is None:
        listed = ", ".join(repr(own) for own in ("auto", *METHODS))
        raise ValueError(f"method must be one of {listed}, or an entry point of {_GROUP}, got {name!r}")
    kind, package = found
    if not isinstance(kind, type) or not issubclass(kind, Method):
        raise TypeError(f"method {name!r} of {package} must be a subclass of Method")
    for release in kind.releases:
        _check_kind(release, name, package)
    return kind(), package


# What states a release's guarantee, or keeps its marks.
_OURS = (
    "replace", "__replace__", "with_parts", "with_leaks", "parts", "joint_event", "epsilon", "guarantee",
    "_check_guarantee", "_stated", "_values", "__reduce__", "__getattribute__", "__setattr__",
)  # fmt: skip
_MARKS = ("event", "adjacency", "delta", "certified_epsilon", "secure", "other_parts", "leaks", "settings")


def _check_kind(kind: Any, method: str, package: str) -> None:
    """Refuse a kind of release that states its guarantee, or keeps its marks, in a way of its own."""
    own: dict[str, Any] = {}
    for base in reversed(Release.__mro__):
        own |= vars(base)
    for base in kind.__mro__[: -len(Release.__mro__)] if isinstance(kind, type) and issubclass(kind, Release) else ():
        if base.__module__.partition(".")[0] == "dpinfer":
            continue
        changed = [name for name in _OURS if vars(base).get(name, own.get(name)) is not own.get(name)]
        changed += [name for name in _MARKS if hasattr(vars(base).get(name), "__get__")]
        # A frozen dataclass has a __setattr__ of its own, which no other code can be told from.
        if changed := [name for name in changed if name != "__setattr__" or not hasattr(base, "__dataclass_params__")]:
            raise TypeError(
                f"{kind.__name__}, a release of method {method!r} of {package}, must leave {changed[0]} as it is"
            )


def method_with(
    option: str,  # {"unit", "unknown", "cuda", "levels", "pure"}
    name: str,  # "auto", or a method
    *,
    argument: str | None = None,  # what messages call the option
) -> str:
    """Return the method that was asked for, if it has an option of a fit; for "auto" the library's first that has it.

    Raises ValueError if the method does not have it.
    """
    having = [own for own, method in METHODS.items() if option in method.offers]
    if name == "auto":
        return having[0]
    if option not in find_method(name)[0].offers:
        listed = " or ".join(repr(own) for own in ("auto", *having))
        raise ValueError(f"method must be {listed} with {argument or option}, got {name!r}")
    return name


def marked(release: Release, event: object, method: str, package: str) -> Release:
    """Return the release of another package's method, marked with the package's name.

    **Privacy.** The charge is the plan's `event`.  A release with another event has no guarantee; it is still returned,
    since it was paid for, with the reason.
    """
    if not isinstance(release, Release):
        raise TypeError(f"method {method!r} of {package} must return a release, got {type(release).__name__}")
    _check_kind(type(release), method, package)
    said: Release = Release.replace(
        release, settings={**release.settings, "method_of": {"name": method, "package": package}}
    )
    if release.event != event:
        return said.with_leaks(f"the method {method!r} of {package} deviates from its plan")
    return said
