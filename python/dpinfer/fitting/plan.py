"""The plan of a fit: which mechanism, from public numbers alone."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy.typing as npt

from dpinfer._surroundings import ProgressCallback
from dpinfer._validate import check_choice, check_real
from dpinfer.accounting import Adjacency, Event, LedgerAccount, as_adjacency
from dpinfer.accounting.guarantee import caution_of_delta
from dpinfer.errors import WeakGuaranteeWarning
from dpinfer.fitting.choice import MODEL, NOT_COMPARED, POPULATION, Candidate, Choice, choose, robust_of
from dpinfer.inference import PosteriorRequest
from dpinfer.mechanism import Clusters, Units
from dpinfer.mechanism.newton.plan import has_population_target
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.mechanism.private_run import CheckpointArgument
from dpinfer.methods import METHODS, DoesNotApplyError, MechanismPlan, Method, RunSettings, Target, find_method, marked
from dpinfer.methods.method import ESTIMANDS
from dpinfer.models import GeneralizedLinearModel, Model, OwnModel, model_from_dict
from dpinfer.release import Release

_LARGEST_SCALE = 1e10  # of responses, for the population's target: what run_newton admits; formula


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """One mechanism, its settings, and the candidates it was chosen from.  Made by :func:`plan_fit`.

    **Privacy.** Public numbers alone; :meth:`run` reads the records.

    Parameters
    ----------
    target : Target
        The public numbers.
    method : {"newton", "statistic", "dpvi", "sep"}
    mechanism : NewtonPlan, PrivacyPlan or StatisticPlan
        The certified guarantee, and the noise that it takes.
    settings : mapping
        Further public settings of the mechanism.
    choice : Choice
    """

    target: Target
    method: str
    mechanism: MechanismPlan
    settings: Mapping[str, Any]
    choice: Choice

    @property
    def model(self) -> Model:
        """The model that is fitted."""
        return self.target.model

    @property
    def n_records(self) -> int:
        """The public number of records."""
        return self.target.n_records

    @property
    def epsilon(self) -> float:
        """The certified epsilon of the run."""
        return self.mechanism.epsilon

    @property
    def delta(self) -> float:
        """The delta that it is certified at; 0 for a pure guarantee."""
        return self.mechanism.delta

    @property
    def adjacency(self) -> Adjacency:
        """The relation that the guarantee is stated under."""
        return self.mechanism.adjacency

    @property
    def event(self) -> Event:
        """The event that a ledger is charged with."""
        return self.mechanism.event

    @property
    def predicted_width(self) -> float:
        """Predicted 90% width of the median parameter over that without privacy; nan without a prediction.

        If correlations of the features are not public, it is the lower end of :attr:`predicted_range`.
        """
        return self.choice.chosen.predicted_width

    @property
    def predicted_range(self) -> tuple[float, float]:
        """Predicted widths for features as declared, and for a design with directions that the noise can hide."""
        chosen = self.choice.chosen
        widest = chosen.widest if math.isfinite(chosen.widest) else chosen.predicted_width
        return chosen.predicted_width, widest

    @property
    def n_passes(self) -> float:
        """Passes over the records, expected ones where records are sampled."""
        return self.choice.chosen.n_passes

    def check(self, posterior: PosteriorRequest | None = None, run: RunSettings | None = None) -> None:
        """Refuse, from public facts alone, a run that would fail, or whose posterior would.

        Raises TypeError or ValueError if a setting is missing or does not fit; the message names it. Raises
        BackendUnavailableError if the posterior needs a package that is not installed.
        """
        settings = RunSettings() if run is None else run
        method = find_method(self.method)[0]
        if settings.unit is not None and "unit" not in method.offers:
            raise ValueError(f"unit must be None for a plan of method {self.method!r}, which protects rows")
        method.check(self.target, self.mechanism, posterior, settings)

    def run(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike | None = None,
        *,
        ledger: LedgerAccount | None = None,
        checkpoint: CheckpointArgument = None,
        random_source: RandomSource | None = None,
        progress: bool | ProgressCallback | None = None,
        n_threads: int | None = None,
        unit: Units | Clusters | None = None,
    ) -> Release:
        """Make the private run alone, and return its release for :func:`dpinfer.noise_aware_posterior`.

        **Privacy.** Hands the records to one mechanism, which is (epsilon, delta)-differentially private with the
        plan's numbers.  All that can be refused from public facts is refused before anything is spent.

        `X`, `y`, `ledger`, `checkpoint`, `random_source`, `progress`, `n_threads` and `unit` are as in :func:`fit`.
        """
        told: Any = {"ledger": ledger, "checkpoint": checkpoint, "random_source": random_source, "unit": unit}
        run = RunSettings(progress=progress, n_threads=n_threads, **told)
        self.check(run=run)
        method, package = find_method(self.method)
        release = method.run(self.target, self.mechanism, self.settings, X, y, run)
        return marked(release, self.event, self.method, package) if package else release

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values for :meth:`from_dict`."""
        target = {name: value for name, value in vars(self.target).items() if name not in ("model", "clusters")}
        return {
            "model": self.model.to_dict(),
            "target": target | {"adjacency": self.adjacency.value},
            "method": self.method,
            "mechanism": self.mechanism.to_dict(),
            "settings": dict(self.settings),
            **self.choice.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, model: Model | None = None) -> "FitPlan":
        """Rebuild a plan from the result of :meth:`to_dict`.

        **Privacy.** Reads no records. The stored epsilon is taken unchanged.

        Raises ValueError if the data is not that of a plan.

        Parameters
        ----------
        data : mapping
        model : Model, optional
            In place of the one that the data describes, for a model of your own.
        """
        try:
            parsed = model_from_dict(data["model"]) if model is None else model
            target = Target(model=parsed, **data["target"])
            method = str(data["method"])
            choice = Choice.from_dict({"candidates": data["candidates"], "assumes": data["assumes"]})
            mechanism = find_method(method)[0].plan_from_dict(data["mechanism"])
            settings = {str(name): check_real(str(name), value) for name, value in data["settings"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the plan of the fit is malformed: {error}") from error
        if choice.chosen.method != method:
            raise ValueError("the plan of the fit is malformed: the chosen method differs from the method of its run")
        return cls(target=target, method=method, mechanism=mechanism, settings=settings, choice=choice)

    def __str__(self) -> str:
        cost = f"epsilon <= {self.epsilon:.4g}" + (f" at delta = {self.delta:g}" if self.delta else "")
        head = f"{type(self.model).__name__}, {self.n_records} records: {self.method}, {cost} ({self.adjacency.value})"
        return f"{head}\n{self.choice}"

    __repr__ = __str__


def plan_fit(
    model: Model,
    *,
    epsilon: float,
    delta: float,
    n_records: int,
    method: str = "auto",
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    response_scale: float | None = None,
    predictor_spread: float | None = None,
    simulate: bool = False,
    target: str = "auto",
    clusters: bool = False,
) -> FitPlan:
    """Choose the mechanism with the narrowest predicted posterior, before any record is read.

    ``plan.choice`` is the table of candidates; ``plan.run(X, y)`` makes the private run alone.

    **Privacy.** Reads no records, and is deterministic.

    Raises TypeError or ValueError if an argument is wrong, or the requested method does not fit the model. Raises
    BudgetExceededError if no noise meets the target. Warns by WeakGuaranteeWarning if delta is at least
    ``1 / n_records``.

    Parameters
    ----------
    model : Model
    epsilon : float
        Privacy budget, positive.
    delta : float in [0, 1)
        Not needed, and not spent, by a one-shot statistic: the other methods refuse 0.
    n_records : int
        A *public* number of records.
    method : {"auto", "newton", "statistic", "dpvi", "sep"}
        "auto" takes the population's coefficients where `target` does.  Elsewhere it takes the narrowest predicted
        width, or the fewest passes over the records among methods within 10% of it.  The gradient trace of a regression
        must be predicted narrower by a factor of 1.5, because its prediction ignores correlations of features, which
        make it many times wider.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
    response_scale : float, optional
        For a linear regression by "newton": a public order of magnitude of y, in its units, within a factor of 10 of
        its root mean square.  A run needs it, a plan does not.
    predictor_spread : float, optional
        Root mean square of a logistic regression's linear predictor, for its predicted width.  By default 1, or the
        prior's if that is smaller, or with `simulate`.
    simulate : bool
        Whether all methods are planned, and simulated runs, which take seconds to minutes, predict the width of a
        gradient trace without a closed form. By default that is not predicted, and the trace is not chosen if another
        method has a predicted width.
    target : {"auto", "model", "population"}
        Target of a regression by "newton". "population": least squares, or maximum likelihood, on the whole
        population, with robust intervals (HC-type), whether or not the model is true. "model": the model's parameters,
        assuming that it is true, with less noise in small samples. "auto": the population's if its predicted intervals
        are at most 60% wider, and for a model of your own without a sampler.
    clusters : bool
        Whether the run gets ``clusters=`` (see :func:`fit`): for the population's target, by "newton".

    Examples
    --------
    >>> import dpinfer as dpi
    >>> model = dpi.models.LogisticRegression(4, fit_intercept=True)
    >>> plan = dpi.plan_fit(model, epsilon=1.0, delta=1e-5, n_records=20_000)
    >>> plan.method, plan.n_passes, plan.epsilon <= 1.0
    ('newton', 19.0, True)
    """
    if not isinstance(model, Model):
        raise TypeError(f"model must be a Model, got {type(model).__name__}")
    methods = METHODS if method == "auto" else {**METHODS, method: find_method(method)[0]}
    check_choice("target", target, ESTIMANDS)
    if getattr(model, "survey_weights", None) is not None:
        if target == MODEL:
            raise ValueError("target must be 'auto' or 'population' for a model with survey_weights")
        target = POPULATION
    if clusters:
        if target == MODEL or isinstance(model, OwnModel) or not has_population_target(model):
            raise ValueError(
                "clusters must be False for target 'model', and for what has no compiled sums of the population's "
                "scores: they are for linear, logistic, probit and Poisson regressions"
            )
        target = POPULATION
    public = Target(
        model=model,
        epsilon=epsilon,
        delta=delta,
        n_records=n_records,
        adjacency=as_adjacency(adjacency),
        response_scale=response_scale,
        predictor_spread=predictor_spread,
        simulate=simulate,
        estimand=target,
        clusters=clusters,
    )
    with warnings.catch_warnings():
        # Stated once, below.
        warnings.simplefilter("ignore", WeakGuaranteeWarning)
        plans, candidates = _candidates(public, methods, every=simulate or method != "auto")
    if not plans and not public.delta:
        raise ValueError(f"delta must be positive: no method fits a {type(model).__name__} with delta = 0")
    if target == POPULATION and not any(aim == POPULATION for _, aim in plans):
        raise ValueError(f"target must be 'auto' or 'model' for a {type(model).__name__}: it has no population target")
    if not plans:
        raise ValueError(f"model must be one that some mechanism fits; none does a {type(model).__name__} by default")
    if method != "auto" and method not in (own for own, _ in plans):
        reason = next((item.reason for item in candidates if item.method == method), f"target is {target!r}")
        names = ", ".join(dict.fromkeys(own for own, _ in plans))
        raise ValueError(f"method must be one of auto, {names} for this model, got {method!r} ({reason})")
    predicted = any(math.isfinite(item.predicted_width) for item in candidates)
    choice = Choice(choose(candidates, method), _assumptions(public) if predicted else ())
    mechanism, settings = plans[choice.chosen.method, choice.chosen.target]
    if mechanism.delta:
        caution_of_delta(mechanism.delta, public.n_records)
    return FitPlan(target=public, method=choice.chosen.method, mechanism=mechanism, settings=settings, choice=choice)


Plans: TypeAlias = dict[tuple[str, str], tuple[MechanismPlan, dict[str, Any]]]


def _candidates(public: Target, methods: Mapping[str, Method], *, every: bool) -> tuple[Plans, list[Candidate]]:
    """Return the plan and settings of every mechanism that has a run for the model, and a candidate for each.

    Unless every one is asked for, none is planned that assumes a true model after one that need not and costs little.
    """
    plans: Plans = {}
    candidates: list[Candidate] = []
    scale = public.response_scale
    # A scale that was released may be anything: squares of scores must be ordinary numbers.
    usable = public.estimand == POPULATION or scale is None or 1.0 / _LARGEST_SCALE < scale < _LARGEST_SCALE
    for name, aim in [(own, aim) for own in methods for aim in _aims(methods[own], public, both=usable)]:
        method, target = methods[name], replace(public, estimand=aim) if aim else public
        if not every and not aim and robust_of(candidates) is not None:
            candidates.append(Candidate(method=name, applies=False, reason=NOT_COMPARED))
            continue
        try:
            if not target.delta and "pure" not in method.offers:
                raise DoesNotApplyError("delta must be positive")
            plans[name, aim] = method.plan(target)
        except DoesNotApplyError as error:
            candidates.append(Candidate(method=name, applies=False, reason=str(error), target=aim))
            continue
        plan = plans[name, aim][0]
        width, remark = method.predicted_width(target, plan)
        widest = method.widest(target, plan) if math.isfinite(width) else math.nan
        candidates.append(
            Candidate(
                method=name,
                applies=True,
                predicted_width=width,
                widest=max(width, widest) if math.isfinite(widest) else math.nan,
                n_passes=method.n_passes(plan),
                reason=remark,
                allowance=method.allowance(target),
                target=aim,
            )
        )
    return plans, candidates


def _aims(method: Method, public: Target, *, both: bool) -> tuple[str, ...]:
    """Return the targets that a method is planned for; an empty one where it has no choice."""
    found = method.targets(public.model) if both else ()
    model = public.model
    # Without a sampler nothing centres the scores of the model's own target: its intervals would be flagged.
    bare = isinstance(model, OwnModel) and not model.has_sampler and POPULATION in found
    if public.estimand == POPULATION or (public.estimand == "auto" and bare):
        return tuple(aim for aim in found if aim == POPULATION)
    return tuple(aim for aim in found if public.estimand in ("auto", aim)) or ("",)


def _assumptions(target: Target) -> tuple[str, ...]:
    """Return the assumptions of the predicted widths, as clauses."""
    model = target.model
    if not isinstance(model, GeneralizedLinearModel):
        return ("parameters as the prior draws them",)
    declared = model.feature_moments is not None
    moments = "the declared moments of the features" if declared else "features of the declared scales, not correlated"
    assumed = [moments + ("" if declared else " (correlation is not known in public)")]
    if model.n_features > 1:
        assumed.append("for the upper end of a range: features that nearly determine each other, hidden by the noise")
    if not model.has_dispersion:
        spread = "as the prior draws it" if target.simulate else "of size 1, or of the prior's where that is smaller"
        if target.predictor_spread is not None:
            spread = f"of size {target.predictor_spread:g}"
        assumed.append(f"a linear predictor {spread}")
    return tuple(assumed)
