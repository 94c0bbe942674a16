"""The plan of a private Newton run: a sequence of full-batch sums with unequal shares of one budget."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dpinfer._validate import check_choice, check_integer, check_interval
from dpinfer.accounting import Adjacency, Composed, Event, GaussianEvent, as_adjacency
from dpinfer.accounting.accountant import calibrate, certify
from dpinfer.accounting.bound import PrivacyBound
from dpinfer.accounting.plan import StoredPlan
from dpinfer.mechanism.newton import tuning
from dpinfer.models import GeneralizedLinearModel, LinearRegression, OwnModel, PersonModel

PHASES = (
    *("scale", "means", "geometry", "localise", "measure", "slope"),
    *("rare", "reach", "frame", "lengths", "bread", "sizes", "approach", "clusters", "meat", "strata"),
)
TARGETS = ("model", "population")


@dataclass(frozen=True, kw_only=True)
class NewtonPlan(StoredPlan):
    """The passes of a private Newton run, and the guarantee that was certified for them.

    **Privacy.** Holds no records.  Pass k is a sum over all records, released with Gaussian noise of standard deviation
    ``noise_multiplier / sqrt(shares[k])`` times the bound on one record's contribution.  Gaussian mechanisms compose
    exactly (Dong, Roth and Su 2022, Corollary 3.3): with shares that sum to 1 the run costs what one Gaussian sum with
    ``noise_multiplier`` costs.  Build plans with :func:`plan_newton`, which certifies ``epsilon``; the constructor
    checks types and intervals only, and :meth:`certify` does the accounting again.

    Parameters
    ----------
    noise_multiplier : float
        Of the whole run, as if it were one sum; positive.
    phases : tuple of str
        Purpose of each pass, in order: "scale", "means", "geometry", "localise", "measure", "slope".
    shares : tuple of float
        Share of each pass in the squared signal-to-noise ratio, positive; they sum to at most 1.
    epsilon, delta : float
        Certified guarantee.
    adjacency : Adjacency
    target_epsilon : float or None
    stops : bool
        Whether a run leaves out rounds of geometry that it does not need, and gives their shares to the measurements;
        for the model's target alone.

    Raises
    ------
    TypeError, ValueError
        If a field is not of its type or outside its interval, if ``epsilon`` exceeds ``target_epsilon``, or if `stops`
        is True for the population's target.
    """

    noise_multiplier: float
    phases: tuple[str, ...]
    shares: tuple[float, ...]
    epsilon: float
    delta: float
    adjacency: Adjacency
    target_epsilon: float | None = None
    stops: bool = False
    _not_always: ClassVar[Mapping[str, Any]] = {"stops": False}

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "noise_multiplier", check_interval("noise_multiplier", self.noise_multiplier, 0.0, 1e6))
        put(self, "phases", tuple(check_choice("phases", phase, PHASES) for phase in self.phases))
        put(self, "shares", tuple(check_interval("shares", share, 1e-4, 1.0, low_open=False) for share in self.shares))
        if len(self.shares) != len(self.phases) or "measure" not in self.phases:
            raise ValueError("shares must have one number for each of phases, which must hold 'measure'")
        if math.fsum(self.shares) > 1.0 + 1e-12:
            raise ValueError(f"shares must sum to at most 1, got {math.fsum(self.shares):g}")
        put(self, "delta", check_interval("delta", self.delta, 0.0, 1.0))
        put(self, "adjacency", as_adjacency(self.adjacency))
        if not isinstance(self.stops, bool):
            raise TypeError(f"stops must be a bool, got {type(self.stops).__name__}")
        if self.stops and self.target == "population":
            raise ValueError("stops must be False for the population's target, whose rounds are fixed")
        epsilon = math.inf if self.epsilon == math.inf else check_interval("epsilon", self.epsilon, 0.0, low_open=False)
        put(self, "epsilon", epsilon)
        if self.target_epsilon is not None:
            target = check_interval("target_epsilon", self.target_epsilon, 0.0)
            if epsilon > target:
                raise ValueError(f"epsilon must be at most target_epsilon={target:g}, got {epsilon:g}")
            put(self, "target_epsilon", target)

    @property
    def n_passes(self) -> int:
        """Number of passes over the records, at most: a run may leave out rounds of geometry."""
        return len(self.shares)

    @property
    def target(self) -> str:
        """Target of the coefficients: "model", or "population", which assumes no model."""
        return "population" if "bread" in self.phases else "model"

    @property
    def clusters(self) -> bool:
        """Whether rows may depend on each other within clusters, which are not protected."""
        return "clusters" in self.phases

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Noise multiplier of each pass."""
        return tuple(self.noise_multiplier / math.sqrt(share) for share in self.shares)

    @property
    def event(self) -> Event:
        """The privacy event of the whole run."""
        return Composed(tuple(GaussianEvent(value) for value in self.noise_multipliers))

    def without(self, left_out: Collection[int]) -> "NewtonPlan":
        """Return the plan less these passes; the measurements get their shares, in proportion to their own.

        **Privacy.** Reads no records.  The shares sum to what they did: the guarantee stays, also where earlier
        releases decide on the passes (docs/derivations/private-newton.md, "Rounds that stop").

        Parameters
        ----------
        left_out : collection of int
            Numbers of passes.

        Raises
        ------
        ValueError
            If one of them is no pass of the plan, or a measurement.
        """
        measured = self.indices("measure")
        if not set(left_out) <= set(range(self.n_passes)) - set(measured):
            raise ValueError("left_out must hold numbers of passes that are no measurements")
        freed = math.fsum(self.shares[index] for index in left_out)
        factor = 1.0 + freed / math.fsum(self.shares[index] for index in measured)
        shares = [share * factor if index in measured else share for index, share in enumerate(self.shares)]
        kept = [index for index in range(self.n_passes) if index not in left_out]
        phases = tuple(self.phases[index] for index in kept)
        return replace(self, phases=phases, shares=tuple(shares[index] for index in kept))

    def indices(self, phase: str) -> tuple[int, ...]:
        """Return the numbers of the passes of a phase."""
        return tuple(index for index, name in enumerate(self.phases) if name == phase)

    def noise_of(self, phase: str, n_records: int) -> float:
        """Return the noise in the mean contribution to a phase's first pass, in units of its bound."""
        return self.noise_multipliers[self.indices(phase)[0]] / n_records

    def certify(self) -> PrivacyBound:
        """Account the plan's event again.

        **Privacy.** Reads no records.
        """
        return certify(self.event, delta=self.delta, adjacency=self.adjacency, accountant="pld")

    @classmethod
    def from_noise_multiplier(
        cls,
        noise_multiplier: float,
        passes: Mapping[str, tuple[float, ...]],
        delta: float,
        *,
        adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    ) -> "NewtonPlan":
        """Certify the epsilon of given noise and shares.

        **Privacy.** Reads no records.

        Parameters
        ----------
        noise_multiplier : float
        passes : mapping from phase to its shares
        delta : float
        adjacency : Adjacency or str
        """
        phases, shares = _flat(passes)
        event = Composed(tuple(GaussianEvent(noise_multiplier / math.sqrt(share)) for share in shares))
        bound = certify(event, delta=delta, adjacency=adjacency, accountant="pld")
        return cls(
            noise_multiplier=noise_multiplier,
            phases=phases,
            shares=shares,
            epsilon=bound.epsilon,
            delta=delta,
            adjacency=bound.adjacency,
        )


def _flat(passes: Mapping[str, tuple[float, ...]]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    phases = tuple(phase for phase, shares in passes.items() for _ in shares)
    return phases, tuple(share for shares in passes.values() for share in shares)


def has_population_target(model: object) -> bool:
    """Return whether there are sums of a model's scores: of the compiled regressions, and of models as code."""
    if isinstance(model, OwnModel):
        # The score of a person is that of a marginal likelihood: a target of its own.
        return not isinstance(model, PersonModel)
    return getattr(model, "score_link", None) is not None


def phases_of(
    model: GeneralizedLinearModel | OwnModel, target: str = "model", *, clusters: bool = False
) -> tuple[str, ...]:
    """Return the phases of a model's run, in order."""
    if isinstance(model, OwnModel):
        rest = ("slope", "measure") if target == "model" else ("lengths", "bread", "sizes", "measure", "meat")
        return ("localise", *rest)
    begin = ("scale", "means", "geometry")
    phases: tuple[str, ...]
    if target == "model":
        phases = (*begin, "localise", "measure", "slope")
    elif model.residual_link is None:
        phases = (*begin, "rare", "lengths", "bread", "localise", "sizes", "measure", "meat")
    else:
        phases = (
            *begin,
            "localise",
            "rare",
            "reach",
            "frame",
            "sizes",
            "approach",
            "lengths",
            "bread",
            "measure",
            "meat",
        )
    without = {"slope"} if model.residual_link is None else {"scale"} if model.response == "binary" else set()
    if model.feature_moments is None or model.feature_moments_known:
        without.add("means")
    if clusters:
        phases = (*phases[:-1], "clusters", "meat")
    if target == "population" and model.survey_weights is not None and model.survey_weights.strata:
        phases = (*phases, "strata")
    return tuple(phase for phase in phases if phase not in without)


def default_passes(
    model: GeneralizedLinearModel | OwnModel,
    noise_multiplier: float,
    n_records: int,
    target: str = "model",
    *,
    clusters: bool = False,
) -> dict[str, tuple[float, ...]]:
    """Return the default shares of each phase, from public numbers alone."""
    if isinstance(model, OwnModel):
        if target == "model":
            return {"localise": tuning.OWN.localise, "slope": tuning.OWN.slope, "measure": tuning.OWN.measure}
        shares = _matrices(noise_multiplier * model.n_params / n_records)
        shares = {**shares, "localise": tuning.POPULATION.own_localise, "lengths": tuning.POPULATION.lengths}
        return _measured_last(shares, phases_of(model, target))
    ratio = noise_multiplier * model.n_coef / n_records
    if target == "population":
        passes = _for_population(model, noise_multiplier / n_records, clusters=clusters)
    elif model.residual_link is None:
        passes = _with_scale(noise_multiplier, n_records, ratio)
    else:
        passes = _without_scale(model, ratio)
    if "means" not in phases_of(model, target):
        return passes
    chosen = tuning.TUNING
    share = min(max((ratio / chosen.means_noise) ** 2, chosen.least_means), chosen.most_means)
    passes = {phase: tuple((1.0 - share) * own for own in shares) for phase, shares in passes.items()}
    phases = phases_of(model, target, clusters=clusters)
    return {phase: (share,) if phase == "means" else passes[phase] for phase in phases}


def _matrices(ratio: float) -> dict[str, tuple[float, ...]]:
    """Return the shares of the population's matrices and sizes, by the noise times parameters per record."""
    return next(shares for least, shares in tuning.POPULATION.matrices if ratio >= least)


def _for_population(model: GeneralizedLinearModel, noise: float, *, clusters: bool) -> dict[str, tuple[float, ...]]:
    chosen = tuning.POPULATION
    begin = {"scale": (_scale_share(noise),), "rare": (chosen.rare,), "lengths": chosen.lengths}
    begin |= {"localise": chosen.localise, "clusters": (chosen.clusters,), "strata": (chosen.strata,)}
    shares = begin | _matrices(noise * model.n_coef)
    if model.residual_link is not None:
        (bread,) = shares["bread"]
        frame = chosen.frame * bread
        shares |= {"reach": chosen.lengths, "frame": (frame,), "bread": (bread - frame,)}
        shares |= {"localise": tuning.TUNING.sloped_localise, "scale": (tuning.TUNING.counted_scale,)}
    phases = phases_of(model, "population", clusters=clusters)
    approach: tuple[float, ...] = ()
    if model.residual_link is not None:
        approach = next(own for least, own in chosen.approach if noise * model.n_coef >= least)
    return _measured_last(shares, tuple(phase for phase in phases if phase != "means"), approach)


def _measured_last(
    shares: Mapping[str, tuple[float, ...]], phases: tuple[str, ...], approach: tuple[float, ...] = ()
) -> dict[str, tuple[float, ...]]:
    """Return the shares of the phases, in order; the measurements have the rest, with the `approach` to them."""
    rest = 1.0 - math.fsum(share for phase in phases for share in shares.get(phase, ()))
    measure = tuning.POPULATION.measure
    if approach:
        later = (1.0 - math.fsum(approach)) / math.fsum(measure[1:])
        measure = tuple(later * share for share in measure[1:])
    last = {"approach": approach, "measure": measure}
    return {phase: tuple(rest * share for share in last[phase]) if phase in last else shares[phase] for phase in phases}


def _without_scale(model: GeneralizedLinearModel, ratio: float) -> dict[str, tuple[float, ...]]:
    chosen = tuning.TUNING
    geometry = next(shares for least, shares in chosen.sloped_geometry if ratio >= least)
    if "means" in phases_of(model):
        geometry = chosen.after_means
    scale = {"scale": (chosen.counted_scale,)} if model.response == "count" else {}
    passes = {**scale, "geometry": geometry, "localise": chosen.sloped_localise}
    rest = 1.0 - chosen.slope - math.fsum(share for shares in passes.values() for share in shares)
    return {**passes, "measure": tuple(rest * share for share in chosen.sloped_measure), "slope": (chosen.slope,)}


def _with_scale(noise_multiplier: float, n_records: int, ratio: float) -> dict[str, tuple[float, ...]]:
    chosen = tuning.TUNING
    geometry = next(shares for least, shares in chosen.geometry if ratio >= least)
    scale = _scale_share(noise_multiplier / n_records)
    rest = 1.0 - scale - math.fsum(geometry) - math.fsum(chosen.localise)
    measure = tuple(rest * share for share in chosen.measure)
    return {"scale": (scale,), "geometry": geometry, "localise": chosen.localise, "measure": measure}


def _scale_share(noise: float) -> float:
    """Return the share of the pass that counts responses by octave, so that noise leaves their spread visible."""
    chosen = tuning.TUNING
    return min(max((noise / chosen.scale_noise) ** 2, chosen.least_scale), chosen.most_scale)


def check_model(model: object) -> None:
    """Refuse a model for which there is no private Newton run.

    **Privacy.** Reads no records.

    Raises TypeError or ValueError if it is of another kind, or the model of a loaded release, which has no code.
    """
    if isinstance(model, LinearRegression):
        return
    if isinstance(model, OwnModel):
        if model.code is None:
            raise TypeError("model must have its code: that of a loaded release has none, build it again")
        return
    if not isinstance(model, GeneralizedLinearModel) or model.residual_link is None:
        raise TypeError(
            "model must be a LinearRegression, LogisticRegression, ProbitRegression or PoissonRegression, have a "
            "residual_link, or be a model of your own (from_gradient, from_jax, from_torch, from_numpyro), got "
            f"{type(model).__name__}"
        )


def plan_newton(
    model: GeneralizedLinearModel | OwnModel,
    *,
    target_epsilon: float,
    target_delta: float,
    n_records: int,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    target: str = "model",
    clusters: bool = False,
) -> NewtonPlan:
    """Find the least noise with which a private Newton run meets a privacy target, and the shares of its passes.

    **Privacy.** Reads no records.  The guarantee is that of :class:`NewtonPlan`, with ``epsilon`` at most
    ``target_epsilon``.

    Parameters
    ----------
    model : LinearRegression, LogisticRegression, ProbitRegression, PoissonRegression, or OwnModel
    target_epsilon : float
        In (0, inf).
    target_delta : float
        In (0, 1).
    n_records : int
        The *public* number of records, which determines the shares; of units, for a run with ``unit=``.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
    target : {"model", "population"}
        Target of the coefficients. "model": the model's parameters, assuming that it is true. "population": least
        squares, or maximum likelihood, on the whole population, whether or not the model is true (White 1980).
    clusters : bool
        Whether the run gets clusters that are not protected; for target "population".

    Raises
    ------
    BudgetExceededError
        If no noise multiplier up to 1e6 meets the target.

    Examples
    --------
    >>> import dpinfer as dpi
    >>> model = dpi.models.LinearRegression(10, fit_intercept=True)
    >>> plan = plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=5000)
    >>> plan.n_passes, round(plan.noise_multiplier, 2), plan.epsilon <= 1.0
    (16, 3.73, True)
    """
    check_model(model)
    count = check_integer("n_records", n_records, 1)
    noise_multiplier, _ = calibrate(GaussianEvent, target_epsilon, target_delta, as_adjacency(adjacency), "pld")
    # Shares that sum to 1 in floating point may cost a rounding error more than one sum: certified with some to spare.
    check_choice("target", target, TARGETS)
    if target == "model" and getattr(model, "survey_weights", None) is not None:
        raise TypeError("target must be 'population' for a model with survey_weights: they weight the population")
    if target == "population" and not has_population_target(model):
        raise TypeError(f"target must be 'model' for {type(model).__name__}: its likelihood has no population target")
    if not isinstance(clusters, bool):
        raise TypeError(f"clusters must be a bool, got {type(clusters).__name__}")
    if clusters and (target != "population" or isinstance(model, OwnModel)):
        raise TypeError(
            "clusters must be False but for target='population' of a linear, logistic, probit or Poisson one"
        )
    passes = default_passes(model, noise_multiplier, count, target, clusters=clusters)
    bound = NewtonPlan.from_noise_multiplier(
        noise_multiplier * (1.0 + 1e-9), passes, target_delta, adjacency=as_adjacency(adjacency)
    )
    phases, shares = _flat(passes)
    return NewtonPlan(
        noise_multiplier=bound.noise_multiplier,
        phases=phases,
        shares=shares,
        epsilon=bound.epsilon,
        delta=bound.delta,
        adjacency=bound.adjacency,
        target_epsilon=target_epsilon,
        stops=target == "model" and "geometry" in phases,
    )


def check_phases(plan: NewtonPlan, phases: tuple[str, ...]) -> None:
    """Refuse a plan whose passes are not of these phases in this order, the scale and the slope being one pass.

    Raises ValueError.
    """
    once = tuple(dict.fromkeys(plan.phases))
    grouped = tuple(phase for phase in once for _ in plan.indices(phase)) == plan.phases
    if once != phases or not grouped or any(len(plan.indices(phase)) > 1 for phase in ("scale", "slope")):
        raise ValueError(f"plan must have the phases {', '.join(phases)} in this order, got {', '.join(once)}")
