"""Base of the private estimators: spending, state and checks."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Protocol, Self, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._records import warn_of_clamped
from dpinfer.accounting import Adjacency, LedgerAccount, PrivacyBound, as_adjacency
from dpinfer.errors import PrivacyLeakWarning
from dpinfer.estimators.pipelines import steps_that_learned
from dpinfer.estimators.protocol import Estimator, not_fitted_error
from dpinfer.estimators.records import as_features, feature_names
from dpinfer.estimators.spending import Spending
from dpinfer.estimators.unknown import UnknownParameters
from dpinfer.fitting.unknown import ReleasedArguments
from dpinfer.inference import Posterior, PosteriorRequest, noise_aware_posterior
from dpinfer.mechanism import RandomSource
from dpinfer.release import GradientTrace

_LEAKS = {
    "classes": "the classes were read from the private records",
    "n_records": "the number of records was read from the private records",
}


class RunOptions(TypedDict, total=False):
    """How an estimator's run is made, whatever it fits: further keyword arguments of every estimator."""

    n_threads: int | None
    progress: bool | None
    random_source: RandomSource | Callable[[], RandomSource] | None


class _Planned(Protocol):
    """A run that is ready to be made."""

    @property
    def plan(self) -> Any:
        """The mechanism's plan."""


Prepared = TypeVar("Prepared", bound=_Planned)


class PrivateEstimator(Estimator):
    """Base of the estimators: one private run in ``fit``, and post-processing of its release.

    **Privacy.** Reads no records itself; it keeps a release and its post-processing.

    Subclasses have the parameters `epsilon`, `delta`, `n_records`, `unknown`, `adjacency`, `n_threads`, `progress`,
    `random_source` and `ledger`.

    Attributes
    ----------
    release_ : any release
    posterior_ : Posterior
    privacy_ : plan
        The certified guarantee and the noise it took.
    n_features_in_ : int
    feature_names_in_ : (n_features,) object array
        Only when X had string column names.
    unknown_ : ReleasedArguments
        Only with `unknown`: the released values of parameters.
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
    adjacency: Adjacency | str
    n_threads: int | None
    progress: bool | None
    random_source: RandomSource | Callable[[], RandomSource] | None
    ledger: LedgerAccount | None
    _bounds: FloatArray | None
    _spending: Spending
    # Steps of the pipeline that is fitting it.
    _learned: tuple[str, ...] = ()
    # Parameters that are read from the records, with a warning, if not given.
    _options: ClassVar[Mapping[str, Any]] = {"n_threads": None, "progress": None, "random_source": None}
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
        self._forget_fit()
        self.release_ = release.with_parts(*released.parts).with_leaks(*self._leaks(plan.adjacency))
        self._family().add(plan)
        if released.parts:
            self.unknown_ = released
        self.privacy_ = plan
        self.n_features_in_ = n_features
        self._bounds = bounds
        if names is not None:
            self.feature_names_in_ = names

    def _prepared(
        self,
        asked: tuple[str, ...],
        given: dict[str, Any],
        n_features: int,
        make: Callable[[dict[str, Any], float], Prepared],
    ) -> tuple[Prepared, Any, UnknownParameters | None]:
        """Return the checked run (a stand-in if parameters are unknown), its charges, and the unknown parameters.

        **Privacy.** Reads no records.
        """
        if not asked:
            checked = make(given, self.epsilon)
            return checked, checked.plan, None
        unknown = UnknownParameters.of(
            asked, given, n_features, epsilon=self.epsilon, delta=self.delta, adjacency=self._relation()
        )
        tried = unknown.try_out(lambda values, epsilon: make(given | values, epsilon), self.ledger)
        return tried, unknown.charge(), unknown

    def _release_unknown(self, unknown: UnknownParameters, X: Any, y: Any, source: RandomSource) -> ReleasedArguments:
        """Release unknown parameters, and count them as spent."""
        released = unknown.release(X, y, n_records=self.n_records, ledger=self.ledger, random_source=source)
        self._family().add(unknown.charge(released.parts))
        return released

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
        """Return an unfitted copy, whose fits are counted with those of this estimator."""
        copied = type(self)(**{name: copy.deepcopy(value) for name, value in self.get_params().items()})
        copied._spending = self._family()
        return copied

    def _family(self) -> Spending:
        if not hasattr(self, "_spending"):
            self._spending = Spending()
        return self._spending

    def _forget_fit(self) -> None:
        """Drop the results of an earlier fit, which belong to another release."""
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]:
            delattr(self, name)

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
