"""Public facts of a release, known before its run too, and requests of a posterior, checked before any spending."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np

from dpinfer._validate import check_choice, check_integer, check_interval
from dpinfer.inference.trace.priors import PRIORS, TracePrior
from dpinfer.models import GeneralizedLinearModel, LinearRegression, Model, model_from_dict
from dpinfer.recipes import GradientSettings
from dpinfer.release import GradientTrace, Release

if TYPE_CHECKING:
    from dpinfer.inference.posterior.posterior import Posterior

APPROXIMATIONS = ("exact", "laplace", "simulated", "naive", "averaged")
PLUG_INS = ("naive", "averaged")
HESSIANS = ("auto", "diagonal", "full", "tied")
MIN_STEPS = 2  # of a trace: a regression line needs two; formula
_LARGEST_MODEL = 200  # the time of a draw grows as its cube; more were not measured (docs/coverage.md)


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts:
    """The public facts of a gradient trace that decide which posteriors it has: known before the run, too.

    Parameters
    ----------
    model : Model or None
    n_params, n_steps : int
    n_records : int or None
        Public.
    family : {"mean_field", "point", "full_rank"}
    gradient : {"reparameterised", "aligned"}
    fisher_scaled : bool
        Whether the run scaled gradients by the model's expected information (recipes "tied" and "steady").
    noise : {"constant", "proportional", "varying"}
        Whether the noise is the same at every step; "proportional": the same for all weights up to a factor of the
        step.
    """

    model: Model | None
    n_params: int
    n_steps: int
    n_records: int | None
    family: str = "mean_field"
    gradient: str = "reparameterised"
    fisher_scaled: bool = False
    noise: str = "constant"

    @classmethod
    def of(cls, release: GradientTrace, model: Model | None = None) -> "ReleaseFacts":
        """Return the facts of a release, with a `model` in place of the one that ``release.model_spec`` describes.

        Raises TypeError or ValueError if `model` is not one of the release's parameters.
        """
        model = model_of(release, model)
        noise = "constant" if release.noise_stddev.ndim == 1 else "varying"
        if isinstance(model, LinearRegression):
            stddev = np.atleast_2d(release.noise_stddev)[:, : model.n_coef]
            if np.allclose(stddev * stddev[0, 0], stddev[:, :1] * stddev[0], rtol=1e-9, atol=0.0):
                noise = "proportional"
        return cls(
            model=model,
            n_params=release.n_params,
            n_steps=release.n_steps,
            n_records=release.n_records,
            family=release.family,
            gradient=release.gradient,
            fisher_scaled=GradientSettings.of_release(release).fisher,
            noise=noise,
        )

    @classmethod
    def planned(
        cls, model: Model, *, n_steps: int, n_records: int, fisher_scaled: bool, gradient: str = "reparameterised"
    ) -> "ReleaseFacts":
        """Return the facts of the release that :func:`dpinfer.run_dpvi` will make, preconditioners that change apart.

        `fisher_scaled`: whether the recipe is "tied" or "steady".
        """
        linear = isinstance(model, LinearRegression)
        return cls(
            model=model,
            n_params=model.n_params,
            n_steps=n_steps,
            n_records=n_records,
            gradient=gradient,
            fisher_scaled=fisher_scaled,
            noise="proportional" if linear else "varying" if fisher_scaled else "constant",
        )

    @property
    def has_model_hessian(self) -> bool:
        """Whether a full Hessian can be inferred under the model's own prior."""
        model = self.model
        if not isinstance(model, GeneralizedLinearModel) or model.n_params > _LARGEST_MODEL:
            return False
        if self.n_records is None or self.gradient != "reparameterised":
            return False
        if isinstance(model, LinearRegression):
            return self.family == "mean_field" and self.noise != "varying"
        return has_model_hessian(model) and self.noise == "constant"

    def width(self, hessian: str) -> int:
        """Return how many coordinates have their own prior."""
        alone = self.family == "point" or self.gradient == "aligned" or hessian == "tied"
        return self.n_params if alone else 2 * self.n_params


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """Public facts about the planned release of a mechanism other than DPVI.

    Parameters
    ----------
    kind : type
        Of the release.
    model : Model
    n_steps : int
    """

    kind: type[Release]
    model: Model | None
    n_steps: int = 1


def has_model_hessian(model: Model | None) -> bool:
    """Return whether the model has an expectation of its full Hessian, and is small enough for it."""
    return isinstance(model, GeneralizedLinearModel) and not model.has_dispersion and model.n_params <= _LARGEST_MODEL


def model_of(release: Release, model: Model | None) -> Model | None:
    """Return the model that was given, or else the release's own, checked."""
    if model is None and release.model_spec:
        model = model_from_dict(dict(release.model_spec))
    if model is not None and not isinstance(model, Model):
        raise TypeError(f"model must be a Model, got {type(model).__name__}")
    if model is not None and release.n_params is not None and model.n_params != release.n_params:
        raise ValueError(f"model must have {release.n_params} parameters like the release, got {model.n_params}")
    return model


class PosteriorOptions(TypedDict, total=False):
    """Fields of a :class:`PosteriorRequest` as keyword arguments."""

    approximation: str
    method: str | None
    hessian: str
    burn_in: str | float | int
    prior: str | TracePrior
    extra_noise: bool
    level: float
    model: Model | None
    prior_scale: float | None
    n_samples: int | None
    n_warmup: int | None
    seed: int
    progress: bool | None
    check_convergence: bool
    fallback: bool
    n_threads: int | None
    sampler: Any


_Trace = TypeVar("_Trace", bound="TraceRequest")


@dataclass(frozen=True, kw_only=True)
class KindRequest:
    """The settings that every kind of release takes, whether its posterior needs them or not: each kind adds its own.

    Parameters
    ----------
    level : float in (0, 1)
        Of the credible intervals that are shown.
    model, seed, progress, check_convergence, fallback, n_threads
        As in :func:`dpinfer.noise_aware_posterior`, like the settings that a kind adds.
    """

    level: float = 0.9
    model: Model | None = None
    seed: int = 0
    progress: bool | None = None
    check_convergence: bool = True
    fallback: bool = True
    n_threads: int | None = None

    def __post_init__(self) -> None:
        given = vars(self)
        for name, choices in (("approximation", APPROXIMATIONS), ("hessian", HESSIANS)):
            check_choice(name, given.get(name, choices[0]), choices)
        prior = given.get("prior", "auto")
        if isinstance(prior, str):
            check_choice("prior", prior, ("auto", *PRIORS))
        elif not isinstance(prior, TracePrior):
            raise TypeError(f"prior must be a string or a TracePrior, got {type(prior).__name__}")
        parse_burn_in(given.get("burn_in", "auto"), None)
        for name in ("extra_noise", "check_convergence", "fallback", *(() if self.progress is None else ("progress",))):
            flag = given.get(name, True)
            if not isinstance(flag, (bool, np.bool_)):
                raise TypeError(f"{name} must be a bool, got {type(flag).__name__}")
        check_interval("level", self.level, 0.0, 1.0)
        if self.model is not None and not isinstance(self.model, Model):
            raise TypeError(f"model must be a Model, got {type(self.model).__name__}")
        if given.get("prior_scale") is not None:
            check_interval("prior_scale", given["prior_scale"], 1e-30, 1e30)
        for name, least in (("n_samples", 1), ("n_warmup", 0), ("n_threads", 1)):
            if given.get(name) is not None:
                check_integer(name, given[name], least)
        check_integer("seed", self.seed, 0)
        sampler = given.get("sampler")
        if sampler is not None and not all(callable(getattr(sampler, name, None)) for name in ("init", "step")):
            raise TypeError(f"sampler must have init and step, got {type(sampler).__name__}")

    @property
    def threads(self) -> int:
        """The number of threads as kernels take it: 0 for all."""
        return self.n_threads or 0

    def check(self, release: ReleaseFacts | PlannedRelease | Release) -> None:
        """Refuse requests that would fail for this release, or for the release of a planned run.

        **Privacy.** Reads public facts alone: call it before anything is spent.

        Raises TypeError or ValueError if the settings do not fit each other or the release; the message names the
        argument.
        """
        facts: ReleaseFacts | PlannedRelease
        if isinstance(release, ReleaseFacts):
            facts = release
        elif isinstance(release, PlannedRelease):
            facts = release if self.model is None else replace(release, model=self.model)
        elif isinstance(release, GradientTrace):
            facts = ReleaseFacts.of(release, self.model)
        elif isinstance(release, Release):
            steps = getattr(release, "n_steps", 1)
            facts = PlannedRelease(kind=type(release), model=model_of(release, self.model), n_steps=steps)
        else:
            raise TypeError(f"release must be a Release, got {type(release).__name__}")
        room = room_of(GradientTrace if isinstance(facts, ReleaseFacts) else facts.kind)
        room.check(self.of_kind(room), facts)

    def of_kind(self, room: "Room") -> "KindRequest":
        """Return the request of the room's own kind, after refusing settings that this kind does not have."""
        taken = [item.name for item in fields(room.request)]
        self.refuse_changed([name for name in vars(self) if name not in taken], room.told)
        return room.request(**{name: value for name, value in vars(self).items() if name in taken})

    def refuse_changed(self, names: Sequence[str], why: str) -> None:
        """Refuse settings that are not at their defaults.

        Raises ValueError if one is not; the message names it, and ends with `why`.
        """
        defaults = {item.name: item.default for item in fields(self)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                hint = "; give model=, the release's model with another prior" if name == "prior_scale" else ""
                raise ValueError(f"{name} must be left at its default for {why}{hint}")


class StatisticRequest(KindRequest):
    """The request of a statistic."""


@dataclass(frozen=True, kw_only=True)
class SiteRequest(KindRequest):
    """The request of a trace of sites."""

    approximation: str = "exact"
    burn_in: str | float | int = "auto"
    n_samples: int | None = None


@dataclass(frozen=True, kw_only=True)
class OwnPopulationRequest(KindRequest):
    """The request of a private Newton run for the population, of a model of the user's own."""

    prior: str | TracePrior = "auto"
    n_samples: int | None = None

    @property
    def prior_name(self) -> str:
        """The posterior's name of the prior."""
        return self.prior if isinstance(self.prior, str) else "own"


@dataclass(frozen=True, kw_only=True)
class OwnNewtonRequest(OwnPopulationRequest):
    """The request of a private Newton run of a model of the user's own."""

    approximation: str = "exact"


@dataclass(frozen=True, kw_only=True)
class PopulationRequest(OwnPopulationRequest):
    """The request of a private Newton run of a regression for the population."""

    prior_scale: float | None = None
    n_warmup: int | None = None


@dataclass(frozen=True, kw_only=True)
class NewtonRequest(PopulationRequest):
    """The request of a private Newton run of a regression."""

    sampler: Any = None


@dataclass(frozen=True, kw_only=True)
class TraceRequest(OwnPopulationRequest):
    """The request of a gradient trace."""

    approximation: str = "exact"
    hessian: str = "auto"
    burn_in: str | float | int = "auto"
    extra_noise: bool = True
    n_warmup: int | None = None

    def left_to_trace(self, facts: ReleaseFacts) -> bool:
        """Return whether the trace decides between "tied" and "full": for a Fisher-scaled linear regression."""
        free = self.hessian == "auto" and self.approximation == "exact" and self.prior in ("auto", "model")
        return free and facts.fisher_scaled and facts.has_model_hessian and isinstance(facts.model, LinearRegression)

    def resolve(self: _Trace, facts: ReleaseFacts) -> _Trace:
        """Return the request with "auto" replaced for the Hessian and the prior, from public facts.

        If the trace decides, the Hessian is "tied" here.
        """
        hessian, prior = self.hessian, self.prior
        if hessian == "auto":
            tied = self.approximation == "exact" and facts.fisher_scaled
            full = self.approximation == "exact" and facts.has_model_hessian and prior in ("auto", "model")
            full = full and not isinstance(facts.model, LinearRegression)
            full = full or (facts.family == "full_rank" and self.approximation == "exact" and prior in ("auto", "weak"))
            hessian = "tied" if tied else "full" if full else "diagonal"
        if prior == "auto":
            under_model = hessian == "full" and facts.has_model_hessian and self.approximation != "laplace"
            prior = "model" if under_model else "weak"
        return replace(self, hessian=hessian, prior=prior)


@dataclass(frozen=True, kw_only=True)
class PosteriorRequest(TraceRequest, NewtonRequest, SiteRequest):
    """The settings of any kind's posterior, checked one by one when made, and together by :meth:`check`.

    A kind's own request (:class:`NewtonRequest`, :class:`TraceRequest`, ...) has only the settings that the kind takes;
    :func:`dpinfer.noise_aware_posterior` takes both.

    Parameters
    ----------
    approximation, hessian, burn_in, prior, extra_noise, model, prior_scale, n_samples, n_warmup, seed, progress, \
check_convergence, fallback, n_threads, sampler
        As in :func:`dpinfer.noise_aware_posterior`.
    level : float in (0, 1)
        Of the credible intervals that are shown.

    Examples
    --------
    >>> request = PosteriorRequest(approximation="laplace", hessian="tied")
    >>> from dpinfer.models import LogisticRegression
    >>> facts = ReleaseFacts.planned(LogisticRegression(2), n_steps=100, n_records=500, fisher_scaled=False)
    >>> request.check(facts)
    Traceback (most recent call last):
        ...
    ValueError: approximation must be 'exact' with hessian='tied', got 'laplace'
    """

    method: InitVar[str | None] = None  # the name of `approximation` before 0.2

    def __post_init__(self, method: str | None = None) -> None:  # noqa: RUF033
        if method is not None:
            warnings.warn("method= is now approximation=; it ends in 0.3", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "approximation", method)
        super().__post_init__()


@dataclass(frozen=True)
class Room:
    """How one kind of release is asked for its posterior, and answers.

    Parameters
    ----------
    told : str
        The kind, in messages.
    request : type
        Of its requests, a :class:`KindRequest`: all other settings must be left at their defaults.
    check : callable
        Gets a request and a :class:`PlannedRelease` (of a gradient trace :class:`ReleaseFacts`), and refuses what the
        kind cannot answer, from public facts alone.
    posterior : callable
        Gets a release and a request that it has passed, and returns a :class:`dpinfer.Posterior`.
    """

    told: str
    request: type[KindRequest]
    check: Callable[[Any, Any], None]
    posterior: Callable[[Any, Any], "Posterior"]


def room_of(kind: type[Release]) -> Room:
    """Return the room of a kind of release: the kind's own, or the library's.

    Raises TypeError if it has none.
    """
    from dpinfer.inference.fit import ROOMS

    room: Room | None = kind.room
    if room is None and kind not in ROOMS:
        raise TypeError(f"release must be of a kind that has a posterior, got {kind.__name__}")
    return room or ROOMS[kind]()


def parse_burn_in(burn_in: str | float | int, steps: int | None, *, least: int = MIN_STEPS) -> int | None:
    """Return the number of steps that `burn_in` leaves out: "auto" (then None), a share of the steps, or a number.

    An unknown number of steps (None) leaves the check of `burn_in` alone; otherwise `least` steps must remain.

    Raises TypeError or ValueError if `burn_in` is none of these or leaves too few steps.
    """
    start: int | None
    if isinstance(burn_in, str):
        if burn_in != "auto":
            raise ValueError(f"burn_in must be 'auto', a share of the steps or a number of steps, got {burn_in!r}")
        start = None
    elif isinstance(burn_in, (float, np.floating)):
        start = math.floor(check_interval("burn_in", burn_in, 0.0, 1.0, low_open=False) * (steps or 0))
    else:
        start = check_integer("burn_in", burn_in, 0)
    if steps is not None and steps - (start or 0) < least:
        raise ValueError(
            f"burn_in must leave at least {least} of the release's {steps} steps, got {burn_in!r}; "
            "a trace model needs more"
        )
    return start
