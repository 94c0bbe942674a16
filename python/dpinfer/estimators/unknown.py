"""Parameters of an estimator that are not public: ``fit`` releases them first, for a part of its budget."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._records import DeferredArray
from dpinfer.accounting import Adjacency, Composed, LedgerAccount
from dpinfer.estimators.records import as_features, as_numbers, check_enough
from dpinfer.estimators.spending import Charge
from dpinfer.fitting.unknown import ReleasedArguments, check_unknown_names, release_numbers, split_arguments, try_out
from dpinfer.mechanism import RandomSource
from dpinfer.mechanism.unknowns.plan import UnknownPlan
from dpinfer.methods import method_with
from dpinfer.release import BoundsRelease
from dpinfer.release.parts import Part

T = TypeVar("T")
# Released bounds reach as many scales to either side of the centre.
_REACH = 4.0
RELEASED_WIDTH = 2.0 * _REACH  # released bounds are centre +- reach scales (BoundsRelease.bounds)
_NO_CLASSES = (
    "unknown must not hold 'classes': the positive label determines the sign of the coefficients, and has to be "
    "public; give classes=(negative, positive)"
)


def check_unknown_parameters(unknown: Any, method: str) -> tuple[str, ...]:
    """Return the names of unknown parameters, none where `unknown` is None.

    Raises TypeError or ValueError if they are no names, or the method is not that of a fit with unknown parameters.
    """
    if unknown is None:
        return ()
    names = check_unknown_names(unknown)
    if "classes" in names:
        raise ValueError(_NO_CLASSES)
    method_with("unknown", method)
    return names


@dataclass(frozen=True)
class UnknownParameters:
    """The unknown parameters of one fit, and the split of its budget.

    **Privacy.** Reads no records until :meth:`release`.
    """

    names: tuple[str, ...]
    n_features: int
    split: UnknownPlan

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        given: Mapping[str, Any],
        n_features: int,
        *,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
    ) -> "UnknownParameters":
        """Split the budget.

        Raises TypeError or ValueError if a name is given as a parameter too, or cannot be released.

        Parameters
        ----------
        given : mapping
            The estimator's parameters that may be unknown; None if not given.
        epsilon, delta, adjacency
            Of all together.
        """
        n_columns = {"n_records": 0, "data_bounds": n_features, "target_bounds": 1}
        allowed = {name: n_columns[name] for name in given}
        split = split_arguments(names, given, allowed, epsilon=epsilon, delta=delta, adjacency=adjacency)
        return cls(names, n_features, split)

    def charge(self, parts: Sequence[Part] | None = None) -> Charge:
        """Return the charge of all parts together, or of the given ones."""
        event = self.split.event if parts is None else Composed(tuple(part.event for part in parts))
        return Charge(event, self.split.delta, self.split.adjacency)

    @property
    def stand_ins(self) -> dict[str, Any]:
        """Values like those that may be released."""
        bounds = np.tile([-1.0, 1.0], (self.n_features, 1))
        values = {"n_records": 10_000, "data_bounds": bounds, "target_bounds": (-1.0, 1.0)}
        return {name: values[name] for name in self.names}

    def try_out(self, check: Callable[[dict[str, Any], float], T], ledger: LedgerAccount | None) -> T:
        """Check the later fit, and that the ledger's budget covers all parts; return the result of the check.

        Raises TypeError or ValueError if an argument is wrong (BudgetExceededError: the ledger's budget would be
        exceeded).

        Parameters
        ----------
        check : callable
            Gets stand-ins of the unknown parameters, and the rest of epsilon.
        """
        return try_out(self.split, lambda: check(self.stand_ins, self.split.fit_epsilon), ledger)

    def release(
        self, X: Any, y: Any, *, n_records: int | None, ledger: LedgerAccount | None, random_source: RandomSource | None
    ) -> ReleasedArguments:
        """Release the unknown parameters.

        **Privacy.** Reads the records, through :func:`dpinfer.release_count` and :func:`dpinfer.release_bounds`.

        Parameters
        ----------
        X, y
            As in ``fit``.
        n_records : int or None
            The public number, if there is one.
        ledger, random_source
            As of the estimator.
        """

        def features() -> FloatArray:
            table = as_features(X)
            check_enough(len(table))
            return table

        def columns() -> FloatArray:
            table = features()
            parts = [table] if "data_bounds" in self.names else []
            if "target_bounds" in self.names:
                parts.append(as_numbers(y, len(table))[:, None])
            return np.hstack(parts)

        names = [f"X{column}" for column in range(self.n_features)] if "data_bounds" in self.names else []
        names += ["y"] if "target_bounds" in self.names else []
        return release_numbers(
            self.split,
            DeferredArray(features),
            DeferredArray(columns),
            names,
            self._values,
            n_records=n_records,
            ledger=ledger,
            random_source=random_source,
        )

    def _values(self, found: BoundsRelease) -> dict[str, Any]:
        bounds = found.bounds(_REACH)
        values: dict[str, Any] = {}
        if "data_bounds" in self.names:
            values["data_bounds"] = bounds[: self.n_features]
        if "target_bounds" in self.names:
            values["target_bounds"] = (float(bounds[-1, 0]), float(bounds[-1, 1]))
        return values
