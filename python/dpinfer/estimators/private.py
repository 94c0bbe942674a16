"""Base of the private estimators: state, checks, and spending, since searches fit many clones of an estimator."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._types import refuse_array_type
from dpinfer._validate import DeferredArray, check_container, check_type, warn_of_clamped
from dpinfer.accounting import (
    Adjacency,
    Composed,
    Event,
    LedgerAccount,
    PrivacyBound,
    PrivacyPlan,
    account,
    as_adjacency,
)
from dpinfer.errors import PrivacyLeakWarning, RepeatedSpendingWarning
from dpinfer.estimators.protocol import Estimator, not_fitted_error, steps_that_learned
from dpinfer.estimators.records import as_features, as_numbers, feature_names, fitted_features
from dpinfer.fitting.unknown import ReleasedArguments, keep_with, release_numbers, split_arguments, try_out
from dpinfer.inference import Posterior, PosteriorRequest, noise_aware_posterior
from dpinfer.inference.posterior.units import Units
from dpinfer.mechanism import NewtonPlan, RandomSource
from dpinfer.mechanism.unknowns.plan import UnknownPlan, names_of
from dpinfer.methods import method_with
from dpinfer.models import GeneralizedLinearModel, SurveyWeights
from dpinfer.release import BoundsRelease, GradientTrace


@dataclass(frozen=True)
class Charge:
    """A part of a fit without a plan of its own: released unknown parameters."""

    event: Event
    delta: float  # of the fit that it is a part of
    adjacency: Adjacency


AnyPlan: TypeAlias = PrivacyPlan | NewtonPlan | Charge


class Spending:
    """The plans of all fits of an estimator and its clones, in this process.

    **Privacy.** Public plans.  Copies share it; a pickle carries the spending so far, and later spending of another
    process does not return.
    """

    def __init__(self, plans: Sequence[AnyPlan] = (), *, elsewhere: bool = False) -> None:
        self._plans, self._elsewhere, self._told = list(plans), elsewhere, False

    def total(self) -> PrivacyBound:
        """Return the guarantee of all fits together, if all are of the same records.

        Raises ValueError if nothing was fitted, or under several adjacency relations.
        """
        if not self._plans:
            raise ValueError("spent needs a fit: nothing has been spent yet")
        if len({plan.adjacency for plan in self._plans}) > 1:
            raise ValueError("spent needs fits under one adjacency: those under several do not add up")
        delta = max(plan.delta for plan in self._plans)
        events = [plan.event for plan in self._plans]
        event = events[0] if len(events) == 1 else Composed(tuple(events))
        return account(event, delta=delta, adjacency=self._plans[0].adjacency)

    def add(self, plan: AnyPlan) -> None:
        """Count a fit, or a part of one."""
        self._plans.append(plan)

    def warn_of(self, plan: AnyPlan, ledger: LedgerAccount | None) -> None:
        """Warn, once, that the next fit is not the only one: at the second, or the first of a copy from elsewhere."""
        alike = [earlier for earlier in self._plans if earlier.adjacency is plan.adjacency]
        if self._told or not (alike or self._elsewhere):
            return
        self._told = True
        text = (
            "this fit spends its own budget, as does every fit of the estimator's clones in cross-validation and grid "
            "search: "
        )
        together = Spending([*alike, plan]).total()
        if self._elsewhere:
            text += "this is a copy from another process or file, and fits there are not counted here"
        else:
            text += (
                f"with this one, number {len(alike) + 1}, they are together at epsilon <= {together.epsilon:.4g} "
                f"at delta = {together.delta:g} if all are of the same records, and each further one adds to it; see "
                "spent()"
            )
        if ledger is None:
            text += ". Without ledger= nothing adds up the fits of several estimators and processes"
        else:
            before = ledger.spent(together.delta).epsilon
            text += f". The ledger counts them all: before this fit, data set {ledger.dataset!r} is at {before:.4g}"
        warnings.warn(text, RepeatedSpendingWarning, stacklevel=3)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __copy__(self) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _elsewhere, (tuple(self._plans),)


def _elsewhere(plans: tuple[AnyPlan, ...]) -> Spending:
    return Spending(plans, elsewhere=True)


_LEAKS = {
    "classes": "the classes were read from the private records",
    "n_records": "the number of records was read from the private records",
}

_REACH = 4.0  # released bounds reach as many scales to either side of the centre
RELEASED_WIDTH = 2.0 * _REACH  # released bounds are centre +- reach scales (BoundsRelease.bounds)
_NO_CLASSES = (
    "unknown must not hold 'classes': the positive label determines the sign of the coefficients, and has to be "
    "public; give classes=(negative, positive)"
)
# Values like those that may be released.
_STAND_INS = {"n_records": 10_000, "data_bounds": (-1.0, 1.0), "target_bounds": (-1.0, 1.0)}


class RunOptions(TypedDict, total=False):
    """How an estimator's run is made, whatever it fits: further keyword arguments of every estimator."""

    n_threads: int | None
    progress: bool | None
    random_source: RandomSource | Callable[[], RandomSource] | None
    survey_weights: SurveyWeights | None


class WeightOptions(TypedDict, total=False):
    """Further keyword arguments of ``fit``."""

    sample_weight: npt.ArrayLike | None


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """A private run with public settings: it is given records, and makes a release."""

    plan: Any  # the mechanism's
    make: Callable[..., Any]  # the release, from features, responses and the settings of the run
    bounds: FloatArray | None  # of the features
    units: Units | None = None  # of the records, where the model has others


class PrivateEstimator(Estimator):
    """Base of the estimators: one private run in ``fit``, and post-processing of its release.

    **Privacy.** Reads no records itself; it keeps a release and its post-processing.

    Subclasses have the parameters `epsilon`, `delta`, `n_records`, `unknown`, `adjacency`, `n_threads`, `progress`,
    `random_source` and `ledger`; attributes are those of :class:`BayesianLogisticRegression`.
    """

    n_features_in_: int
    feature_names_in_: npt.NDArray[np.object_]
    posterior_: Posterior
    privacy_: Any
    release_: Any
    unknown_: ReleasedArguments
    epsilon: float
    delta: float
    n_records: int | None
    unknown: Sequence[str] | None
    method: str
    adjacency: Adjacency | str
    n_threads: int | None
    progress: bool | None
    random_source: RandomSource | Callable[[], RandomSource] | None
    survey_weights: SurveyWeights | None
    ledger: LedgerAccount | None
    _bounds: FloatArray | None
    _spending: Spending
    # Steps of the pipeline that is fitting it.
    _learned: tuple[str, ...] = ()
    # Parameters that are read from the records, with a warning, if not given.
    _options: ClassVar[Mapping[str, Any]] = dict.fromkeys(RunOptions.__annotations__)
    _facts: ClassVar[tuple[str, ...]] = ("n_records",)

    def _run_settings(self) -> dict[str, Any]:
        """Return the settings common to all runs."""
        return {
            "n_threads": self.n_threads,
            "progress": self.progress,
            "random_source": self.random_source() if callable(self.random_source) else self.random_source,
            "ledger": self.ledger,
        }

    def _keep(
        self,
        release: Any,
        plan: Any,
        n_features: int,
        names: npt.NDArray[np.object_] | None,
        bounds: FloatArray | None,
        released: ReleasedArguments,
    ) -> None:
        """Keep the release before the posterior: it must survive a failure of the post-processing."""
        # Results of an earlier fit belong to another release.
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]:
            delattr(self, name)
        self.release_ = release.with_parts(*released.parts).with_leaks(*self._leaks(plan.adjacency))
        self._family().add(plan)
        if released.parts:
            self.unknown_ = released
        self.privacy_ = plan
        self.n_features_in_ = n_features
        self._bounds = bounds
        if names is not None:
            self.feature_names_in_ = names

    def _unknown_names(self) -> tuple[str, ...]:
        """Return the unknown parameters, none where `unknown` is None, after refusing what no fit can release."""
        if self.unknown is None:
            return ()
        names = names_of(self.unknown)
        if "classes" in names:
            raise ValueError(_NO_CLASSES)
        method_with("unknown", self.method)
        return names

    def _run_private(
        self,
        X: Any,
        y: Any,
        given: dict[str, Any],  # the parameters that may be unknown; None if not given
        names: npt.NDArray[np.object_] | None,
        n_features: int,
        # returns the run, checked, given these parameters and an epsilon
        make: Callable[[dict[str, Any], float], PreparedRun],
        records: Callable[[PreparedRun], tuple[Any, Any]],  # features and responses, which the run reads later
    ) -> PreparedRun:
        """Check the run, release what is unknown, make the run and keep its release; return the run.

        **Privacy.** Reads the records, after the charge.
        """
        asked, settings = self._unknown_names(), self._run_settings()
        released = ReleasedArguments({}, ())
        if not asked:
            made = make(given, self.epsilon)
            self._warn_of_leaks()
            self._family().warn_of(made.plan, self.ledger)
        else:
            columns = {"n_records": 0, "data_bounds": n_features, "target_bounds": 1}
            split = split_arguments(
                asked, given, columns, epsilon=self.epsilon, delta=self.delta, adjacency=self._relation()
            )
            stand_ins = {name: _STAND_INS[name] for name in asked}
            try_out(split, lambda: make(given | stand_ins, split.fit_epsilon), self.ledger)
            self._warn_of_leaks()
            self._family().warn_of(Charge(split.event, split.delta, split.adjacency), self.ledger)
            released = _release_parameters(
                asked,
                split,
                X,
                y,
                n_features,
                n_records=self.n_records,
                ledger=self.ledger,
                random_source=settings["random_source"],
            )
            event = Composed(tuple(part.event for part in released.parts))
            self._family().add(Charge(event, split.delta, split.adjacency))
        with keep_with(released):
            if asked:
                made = make(given | released.values, split.fit_epsilon)
            self._keep(made.make(*records(made), **settings), made.plan, n_features, names, made.bounds, released)
        return made

    def _checked_weights(self, options: Mapping[str, Any]) -> Any:
        """Return the weights of the records, not read, after refusing those without public facts, and these without."""
        for name in options:
            if name not in WeightOptions.__annotations__:
                raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
        weights = options.get("sample_weight")
        if (weights is None) != (self.survey_weights is None):
            raise ValueError(
                "sample_weight and survey_weights must be given together: weights are records, and the estimator's "
                "survey_weights=SurveyWeights(largest, mean) are public facts about them"
            )
        if weights is not None:
            if check_type("survey_weights", self.survey_weights, SurveyWeights).strata:
                raise ValueError("survey_weights must be without strata: dpinfer.regression has them")
            if self.unknown is not None:
                raise ValueError("unknown must be None with sample_weight: unknown parameters are released for rows")
            check_container("sample_weight", weights)
            refuse_array_type("sample_weight", weights)
        return weights

    def _with_weights(self, model: Any) -> Any:
        """Return the model with the public facts of its records' weights, if there are any."""
        if self.survey_weights is None:
            return model
        if not isinstance(model, GeneralizedLinearModel):
            raise ValueError(f"survey_weights must be None for {type(self).__name__}")
        return replace(model, survey_weights=self.survey_weights)

    def _infer(self, request: PosteriorRequest) -> Posterior:
        """Return the posterior of the release; errors carry the release."""
        try:
            return self._posterior(request)
        except BaseException as error:
            # The estimator may be a temporary clone.
            error.release = self.release_  # type: ignore[attr-defined]
            error.add_note(
                "The private run is done and paid for: its release is release_ of the estimator and 'release' of this "
                "error; save it, and go on with dpinfer.noise_aware_posterior(release, ...)."
            )
            raise

    def _posterior(self, request: PosteriorRequest) -> Posterior:
        return noise_aware_posterior(self.release_, request)

    def _posterior_request(self) -> PosteriorRequest:
        """Return the settings of the posterior."""
        return PosteriorRequest(progress=self.progress)

    def spent(self) -> PrivacyBound:
        """Return the guarantee of all fits of this estimator and its clones together, in this process.

        Cross-validation and grid search fit clones, on overlapping parts of the records.

        **Privacy.** Reads no records.  Only a ledger counts across estimators and processes.

        Raises ValueError if nothing was fitted.
        """
        return self._family().total()

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy; its fits are charged together with those of this estimator."""
        # A source cannot be copied, as no key may be used twice: clones take the next ones of the same source.
        copied = type(self)(
            **{
                name: value if isinstance(value, RandomSource) else copy.deepcopy(value)
                for name, value in self.get_params().items()
            }
        )
        copied._spending = self._family()
        return copied

    def _family(self) -> Spending:
        if not hasattr(self, "_spending"):
            self._spending = Spending()
        return self._spending

    def _relation(self) -> Adjacency:
        relation = as_adjacency(self.adjacency)
        if relation is Adjacency.ZERO_OUT:
            raise ValueError("adjacency must be 'add_remove' or 'replace_one', got 'zero_out': a label cannot be blank")
        return relation

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a pickle: the release as plain data; the posterior is computed from it again."""
        state = vars(self).copy()
        state["posterior_"] = "posterior_" in state
        release = state.pop("release_", None)
        if release is not None:
            values = {item.name: getattr(release, item.name) for item in fields(release)}
            plain = values | {name: dict(values[name]) for name in ("model_spec", "settings")}
            state["release_"] = (type(release), plain)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the parameters and the release, and compute the posterior from it."""
        state = state.copy()
        fitted = state.pop("posterior_")
        values = state.pop("release_", None)
        vars(self).update(state)
        if values is not None:
            # Up to version 0.1 there was one kind of release, and it was not named.
            kind, fields_of_release = values if isinstance(values, tuple) else (GradientTrace, values)
            self.release_ = kind(**fields_of_release)
        if fitted:
            self.posterior_ = self._posterior(self._posterior_request())

    def _points(self, X: Any) -> FloatArray:
        if not self.__sklearn_is_fitted__():
            raise not_fitted_error(self)
        self._check_names(X)
        points = as_features(X)
        if points.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {points.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input"
            )
        if self._bounds is None:
            return points
        inside = np.clip(points, self._bounds[:, 0], self._bounds[:, 1])
        names = getattr(self, "feature_names_in_", np.arange(self.n_features_in_))
        warn_of_clamped("X", [str(name) for name in names[np.any(points != inside, axis=0)]])
        return inside

    def _check_names(self, X: Any) -> None:
        given, fitted = feature_names(X), getattr(self, "feature_names_in_", None)
        if given is not None and fitted is not None and list(given) != list(fitted):
            raise ValueError("The feature names should match those that were passed during fit, in the same order.")

    def _leaks(self, adjacency: Adjacency) -> list[str]:
        """Return the permanent marks of the release for values read from the records without noise."""
        read = self._read_facts()
        # Neighbours of the other relations have as many records.
        leaks = [_LEAKS[name] for name in read if name != "n_records" or adjacency is Adjacency.ADD_REMOVE]
        return leaks + [f"step {name!r} of the pipeline learned from the private records" for name in self._learned]

    def _read_facts(self) -> list[str]:
        """Return the facts that are read from the records without noise."""
        return [name for name in self._facts if getattr(self, name) is None and name not in (self.unknown or ())]

    def _refuse_reading_before_a_charge(self, n_features: int | None) -> None:
        """Refuse a ledger where something would be read from the records before it is charged."""
        if self.ledger is None and self.unknown is None:
            return
        cause = "unknown" if self.ledger is None else "ledger"
        missing = self._read_facts()
        if missing:
            raise ValueError(
                f"{' and '.join(missing)} must be given with {cause}: read from the records it would leak, which no "
                "ledger counts"
            )
        if n_features is None:
            raise TypeError(f"X must have a two-dimensional shape with {cause} (an array or a data frame, not lists)")

    def _warn_of_leaks(self) -> None:
        self._learned = steps_that_learned(self)
        if self._learned:
            warnings.warn(
                f"{' and '.join(map(repr, self._learned))} of the pipeline learned from all private records, without "
                "noise, and the result depends on it: the guarantee is lost; give constants from public "
                "knowledge in a FunctionTransformer, or a transformer fitted to public data in a FrozenEstimator",
                PrivacyLeakWarning,
                stacklevel=3,
            )
        read = self._read_facts()
        if read:
            warnings.warn(
                f"{' and '.join(read)} {'was' if len(read) == 1 else 'were'} read from the private records and will be "
                f"published; give a public value with {' and '.join(f'{name}=' for name in read)}",
                PrivacyLeakWarning,
                stacklevel=3,
            )


def _release_parameters(
    asked: Sequence[str], split: UnknownPlan, X: Any, y: Any, n_features: int, **charged: Any
) -> ReleasedArguments:
    """Release unknown parameters of an estimator; `charged` goes to :func:`dpinfer.fitting.unknown.release_numbers`.

    **Privacy.** Reads the records, through :func:`dpinfer.release_count` and :func:`dpinfer.release_bounds`.
    """

    def columns() -> FloatArray:
        table = fitted_features(X)
        parts = [table] if "data_bounds" in asked else []
        if "target_bounds" in asked:
            parts.append(as_numbers(y, len(table))[:, None])
        return np.hstack(parts)

    names = [f"X{column}" for column in range(n_features)] if "data_bounds" in asked else []
    names += ["y"] if "target_bounds" in asked else []

    def values(found: BoundsRelease) -> dict[str, Any]:
        bounds = found.bounds(_REACH)
        values: dict[str, Any] = {}
        if "data_bounds" in asked:
            values["data_bounds"] = bounds[:n_features]
        if "target_bounds" in asked:
            values["target_bounds"] = (float(bounds[-1, 0]), float(bounds[-1, 1]))
        return values

    records = DeferredArray(lambda: fitted_features(X))
    return release_numbers(split, records, DeferredArray(columns), names, values, **charged)
