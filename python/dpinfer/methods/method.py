"""What a method is: how it plans, predicts its width, runs, and answers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from dpinfer._surroundings import ProgressCallback
from dpinfer._validate import check_choice, check_integer, check_interval, check_type
from dpinfer.accounting import Adjacency, Event, LedgerAccount, PrivacyPlan, PureEvent, as_adjacency
from dpinfer.accounting.decimals import check_epsilon
from dpinfer.inference import Posterior, PosteriorRequest, noise_aware_posterior
from dpinfer.mechanism import Clusters, NewtonPlan, Units
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.mechanism.private_run import CheckpointArgument
from dpinfer.models import Model
from dpinfer.release import Release

Settings: TypeAlias = Mapping[str, Any]
ESTIMANDS = ("auto", "model", "population")


class DoesNotApplyError(ValueError):
    """A mechanism has no run for a model; its text says why."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The public numbers that a fit is planned from, checked.

    Parameters
    ----------
    model : Model
    epsilon, delta : float
    n_records : int
    adjacency : Adjacency
    response_scale : float or None
    predictor_spread : float or None
        None: 1, or that of the prior if it is smaller or runs are simulated.
    simulate : bool
    estimand : {"auto", "model", "population"}
        Target of the coefficients of a regression.
    clusters : bool
        Whether the run gets clusters, which are not protected.
    """

    model: Model
    epsilon: float
    delta: float
    n_records: int
    adjacency: Adjacency
    response_scale: float | None = None
    predictor_spread: float | None = None
    simulate: bool = False
    estimand: str = "auto"
    clusters: bool = False

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "epsilon", check_epsilon("epsilon", self.epsilon))
        put(self, "delta", check_interval("delta", self.delta, 0.0, 1.0, low_open=False))
        put(self, "n_records", check_integer("n_records", self.n_records, 1, 2**31))
        put(self, "adjacency", as_adjacency(self.adjacency))
        for name in ("response_scale", "predictor_spread"):
            if getattr(self, name) is not None:
                put(self, name, check_interval(name, getattr(self, name), 1e-100, 1e100))
        check_type("simulate", self.simulate, bool)
        check_choice("target", self.estimand, ESTIMANDS)

    @property
    def budget(self) -> dict[str, Any]:
        """What plans of private runs are asked to meet."""
        return {"target_epsilon": self.epsilon, "target_delta": self.delta}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings common to all private runs."""

    ledger: LedgerAccount | None = None
    checkpoint: CheckpointArgument = None
    random_source: RandomSource | None = None
    progress: bool | ProgressCallback | None = None
    n_threads: int | None = None
    unit: Units | Clusters | None = None

    @property
    def of_rows(self) -> dict[str, Any]:
        """The settings of runs that protect rows."""
        return {name: value for name, value in vars(self).items() if name != "unit"}


@dataclass(frozen=True)
class StatisticPlan:
    """Plan of a one-shot statistic.

    **Privacy.** Holds no records.
    """

    epsilon: float
    adjacency: Adjacency

    @property
    def delta(self) -> float:
        """Nothing: the guarantee is pure."""
        return 0.0

    @property
    def event(self) -> Event:
        """The privacy event of the release."""
        return PureEvent(self.epsilon, self.adjacency.value)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {"epsilon": self.epsilon, "adjacency": self.adjacency.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "StatisticPlan":
        """Rebuild from the result of :meth:`to_dict`."""
        return cls(check_epsilon("epsilon", data["epsilon"]), as_adjacency(data["adjacency"]))


MechanismPlan: TypeAlias = NewtonPlan | PrivacyPlan | StatisticPlan


class Method(ABC):
    """A row of the table: one mechanism, its release and its posterior, as a way to fit a model.

    Attributes
    ----------
    name : str
        By which it is asked for.
    told : str
        What it releases, in a few words, for reports.
    offers : tuple of {"unit", "unknown", "cuda", "levels", "pure"}
        Which options of a fit it has; "levels": a release from which scales of groups of coefficients are learned;
        "pure": a guarantee with delta = 0.
        "unknown": its event must be no worse than that of a Gaussian mechanism at the plan's epsilon and delta, which
        is what is composed with the releases before it.
    releases : tuple of type
        Kinds of release that are its own, for :func:`dpinfer.load_release`; the library's need not be named.
    """

    name: ClassVar[str]
    told: ClassVar[str] = "a method of another package"
    offers: ClassVar[tuple[str, ...]] = ()
    releases: ClassVar[tuple[type[Release], ...]] = ()

    @abstractmethod
    def plan(self, target: Target) -> tuple[MechanismPlan, dict[str, Any]]:
        """Return the mechanism's plan and its further public settings, as JSON values.

        Raises DoesNotApplyError if the mechanism has no run for the model.
        """

    @abstractmethod
    def predicted_width(self, target: Target, plan: MechanismPlan) -> tuple[float, str]:
        """Return the predicted relative width, nan without one, and a remark."""

    def targets(self, model: Model) -> tuple[str, ...]:
        """Return the possible targets of the coefficients, "model" and "population"; none without a choice."""
        return ()

    def widest(self, target: Target, plan: MechanismPlan) -> float:
        """Return the largest relative width over designs with unknown correlations; nan: no range."""
        return math.nan

    def allowance(self, target: Target) -> float:
        """Return the factor of the predicted width in the comparison, for its assumptions."""
        return 1.0

    @abstractmethod
    def n_passes(self, plan: MechanismPlan) -> float:
        """Return the number of passes over the records."""

    @abstractmethod
    def plan_from_dict(self, data: Mapping[str, Any]) -> MechanismPlan:
        """Rebuild the mechanism's plan from its ``to_dict``."""

    @abstractmethod
    def check(self, target: Target, plan: MechanismPlan, request: PosteriorRequest | None, run: RunSettings) -> None:
        """Refuse, from public facts alone, a run that would fail, or whose requested posterior would."""

    @abstractmethod
    def run(self, target: Target, plan: MechanismPlan, settings: Settings, X: Any, y: Any, run: RunSettings) -> Release:
        """Make the private run."""

    def check_records(self, target: Target, plan: MechanismPlan, X: Any, y: Any) -> None:  # noqa: B027
        """Refuse records whose form, which is public, does not fit the model: before what is unknown is paid for."""

    def posterior(self, release: Release, request: PosteriorRequest) -> Posterior:
        """Return the posterior of its release."""
        return noise_aware_posterior(release, request)

    def scenarios(self) -> Sequence[Any]:
        """Return the scenarios of this method that the replay audit runs beside the library's: docs/architecture.md."""
        return ()

    def audited_paths(self) -> Sequence[Any]:
        """Return the paths of this method that :func:`dpinfer.audit` runs beside the library's."""
        return ()
