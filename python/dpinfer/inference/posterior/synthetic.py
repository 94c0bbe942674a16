"""Synthetic records: posterior predictive draws, a set for each draw of the parameters, and how to combine analyses."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.accounting import Guarantee
from dpinfer.inference.posterior.mixture import NormalMixtures, ThetaMarginals

RULES = ("mixture", "moments")


@dataclass(frozen=True, eq=False)
class CombinedEstimates:
    """Combined analyses of all synthetic sets, for k numbers.

    Parameters
    ----------
    rule : {"mixture", "moments"}
    estimates, variances : (m, k) arrays
        Of the analysis of each set.
    """

    rule: str
    estimates: FloatArray
    variances: FloatArray

    @property
    def mean(self) -> FloatArray:
        """Mean over the sets, (k,)."""
        return np.asarray(self.estimates.mean(axis=0))

    @property
    def between(self) -> FloatArray:
        """Variance of the estimates between sets, (k,)."""
        return np.asarray(self.estimates.var(axis=0, ddof=1))

    @property
    def within(self) -> FloatArray:
        """Mean of the variances that the analyses state, (k,)."""
        return np.asarray(self.variances.mean(axis=0))

    @property
    def stddev(self) -> FloatArray:
        """Standard deviation, (k,): of the mixture, or by moments."""
        if self.rule == "mixture":
            return np.asarray(np.sqrt(self.estimates.var(axis=0) + self.within))
        return np.asarray(np.sqrt(self._moments()))

    def _moments(self) -> FloatArray:
        m = len(self.estimates)
        total = (1.0 + 1.0 / m) * self.between - self.within
        # A variance that is negative by chance is replaced by a lower bound of its expectation, for sets as large as
        # the records.
        return np.where(total > 0.0, total, self.within)

    def interval(self, level: float = 0.9) -> FloatArray:
        """Return equal-tailed intervals, (2, k), that hold `level` of the probability."""
        tail = 0.5 * (1.0 - check_interval("level", level, 0.0, 1.0))
        if self.rule == "mixture":
            mixtures = NormalMixtures.from_draws(self.estimates, self.variances)
            return np.asarray(ThetaMarginals(mixtures, None).quantile(np.array([tail, 1.0 - tail])))
        m = len(self.estimates)
        ratio = self.within / ((1.0 + 1.0 / m) * self.between)
        freedom = (m - 1) * np.maximum(1.0 - ratio, 1e-3) ** 2
        reach = -special.stdtrit(freedom, tail) * self.stddev
        return np.stack([self.mean - reach, self.mean + reach])


@dataclass(frozen=True, eq=False, kw_only=True)
class SyntheticSets:
    """Sets of synthetic records from the fitted model.

    Each set is drawn from the model at one draw of the parameters from the posterior, so that the sets vary with the
    posterior uncertainty, privacy noise included. One set alone does not show this: analyse all, and combine.

    **Privacy.** Post-processing of a Release: as safe to publish as the release, and under its guarantee.

    Parameters
    ----------
    points : (P, n_features) array, mapping of columns, or None
        The caller's own features, the same in every set.
    responses : (m, P) or (m, P, d) array
        Responses at the points; or records without features.
    response : str
        Name of the response in a table.
    parameters : (m, n) array
        The draw that each set is from, in the model's own space.
    guarantee : Guarantee
        The release's.
    """

    points: FloatArray | Mapping[str, npt.NDArray[Any]] | None
    responses: npt.NDArray[Any]
    response: str
    parameters: FloatArray
    guarantee: Guarantee

    @property
    def leaks(self) -> tuple[str, ...]:
        """Contents of the release without a guarantee."""
        return self.guarantee.leaks

    @property
    def n_sets(self) -> int:
        """The number of sets m."""
        return len(self.responses)

    def __len__(self) -> int:
        return self.n_sets

    def __getitem__(self, index: int) -> Any:
        """Return a set: (X, y), the records, or a mapping of columns where the points are one."""
        own = self.responses[check_integer("index", index, -self.n_sets, self.n_sets - 1)]
        if self.points is None:
            return own
        if isinstance(self.points, Mapping):
            return {**self.points, self.response: own}
        return self.points, own

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(self.n_sets))

    def combine(
        self, estimates: npt.ArrayLike, variances: npt.ArrayLike, *, rule: str = "mixture"
    ) -> CombinedEstimates:
        """Combine the results of an analysis of each set.

        Parameters
        ----------
        estimates, variances : (m, k) or (m,) arrays
            Posterior mean and variance, or estimate and squared standard error, of each set's analysis.
        rule : {"mixture", "moments"}
            "mixture": the equally weighted mixture of the analyses' (normal) posteriors, for sets that are many times
            larger than the records; with sets of any size its intervals are too wide rather than too narrow.
            "moments": (1 + 1/m) between - within, for sets of any size, and many of them.

        Notes
        -----
        Raisa, Jalko and Honkela (2025), On consistent Bayesian inference from synthetic data; Raghunathan, Reiter and
        Rubin (2003), section 4, for "moments".
        """
        check_choice("rule", rule, RULES)
        found = [
            check_float_array(name, np.atleast_2d(np.asarray(value).T).T, (self.n_sets, None))
            for name, value in (("estimates", estimates), ("variances", variances))
        ]
        if found[0].shape != found[1].shape or self.n_sets < 2:
            raise ValueError("estimates and variances must have a row for each of at least two sets, and one shape")
        if not np.all(found[1] > 0.0):
            raise ValueError("variances must be positive")
        return CombinedEstimates(rule, *found)

    def mix(self, draws: npt.ArrayLike) -> FloatArray:
        """Return draws of the mixture of the analyses' posteriors, (m S,) or (m S, k).

        `draws`, (m, S) or (m, S, k), are as many from each set's posterior.
        """
        array = check_float_array("draws", draws)
        if array.ndim not in (2, 3) or len(array) != self.n_sets:
            raise ValueError(f"draws must have as many rows of draws as there are sets, {self.n_sets}")
        return array.reshape(-1, *array.shape[2:])

    def __repr__(self) -> str:
        return f"SyntheticSets({self.n_sets} sets of {self.responses.shape[1]} records)\n  {self.guarantee}"
