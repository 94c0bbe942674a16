"""Result of a TARP coverage test: shares, coverage curve, RMSE with its floor, p-values, and a verdict in words."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.lab.coverage.uniformity import (
    combine_dependent_pvalues,
    ecdf_band,
    ks_pvalue,
    randomised_ranks,
    rmse_of_uniforms,
)

__all__ = ["TarpResult", "TarpVerdict", "check_levels", "check_tarp", "tarp_from_shares"]

_TAIL = 0.1  # shares below it or above 1 - it say whether a posterior is too narrow or too wide


@dataclass(frozen=True, eq=False)
class TarpResult:
    """Coverage of K posteriors at R sets of reference points.

    **Privacy.** Post-processing of Releases made from simulated data: safe to publish.

    Parameters
    ----------
    shares : (R, K) float64
        f_i: the share of posterior draws nearer to the reference point than the truth is.
    marginal_shares : (R, K, d) float64
        The same in each dimension alone.
    levels : (L,) float64
        Credibility levels 1 - alpha.
    n_draws : int or None
        Posterior draws for each simulation; None when the shares are exact.
    references : str
        Where the reference points came from.
    ks_pvalues : (R,) float64
        Exact two-sided Kolmogorov-Smirnov p-value of the shares of each repeat.
    marginal_ks_pvalues : (R, d) float64
    """

    shares: FloatArray
    marginal_shares: FloatArray
    levels: FloatArray
    n_draws: int | None
    references: str
    ks_pvalues: FloatArray
    marginal_ks_pvalues: FloatArray

    @property
    def n_repeats(self) -> int:
        """Number R of sets of reference points."""
        return int(self.shares.shape[0])

    @property
    def n_sims(self) -> int:
        """Number K of simulations."""
        return int(self.shares.shape[1])

    @property
    def n_dims(self) -> int:
        """Number d of dimensions."""
        return int(self.marginal_shares.shape[2])

    @cached_property
    def coverage_by_repeat(self) -> FloatArray:
        """Share of simulations with f_i < level, (R, L) (NA-DPVI 2025, eq. A62)."""
        return _coverage(self.shares, self.levels)

    @cached_property
    def coverage(self) -> FloatArray:
        """Mean over the repeats of :attr:`coverage_by_repeat`, (L,)."""
        return np.asarray(self.coverage_by_repeat.mean(axis=0))

    @cached_property
    def marginal_coverage_by_repeat(self) -> FloatArray:
        """Coverage of each dimension alone, (R, d, L)."""
        return _coverage(np.moveaxis(self.marginal_shares, 1, 2), self.levels)

    @cached_property
    def marginal_coverage(self) -> FloatArray:
        """Mean over the repeats of :attr:`marginal_coverage_by_repeat`, (d, L)."""
        return np.asarray(self.marginal_coverage_by_repeat.mean(axis=0))

    @cached_property
    def rmse_by_repeat(self) -> FloatArray:
        """Root mean square over the levels of coverage minus level, (R,) (NA-DPVI 2025, eq. 27)."""
        return np.asarray(np.sqrt(np.mean((self.coverage_by_repeat - self.levels) ** 2, axis=1)))

    @property
    def rmse(self) -> float:
        """Mean of :attr:`rmse_by_repeat`."""
        return float(np.mean(self.rmse_by_repeat))

    @property
    def rmse_stddev(self) -> float:
        """Standard deviation of :attr:`rmse_by_repeat`, nan for one repeat; not an error, for they share runs."""
        return float(np.std(self.rmse_by_repeat, ddof=1)) if self.n_repeats > 1 else float("nan")

    @property
    def rmse_floor(self) -> float:
        """Average of :attr:`rmse` for an exact posterior at this K, these levels and this number of draws.

        From a seeded simulation; about 0.9 sqrt(1 / (6 K)) for a fine grid.
        """
        return rmse_of_uniforms(self.n_sims, self.n_draws, tuple(self.levels.tolist()))[0]

    @property
    def rmse_floor_stddev(self) -> float:
        """Standard deviation of the RMSE of one repeat for an exact posterior."""
        return rmse_of_uniforms(self.n_sims, self.n_draws, tuple(self.levels.tolist()))[1]

    @property
    def excess_rmse(self) -> float:
        """:attr:`rmse` minus :attr:`rmse_floor`: about zero for an exact posterior, negative by chance."""
        return self.rmse - self.rmse_floor

    @cached_property
    def ks_pvalue(self) -> float:
        """Twice the median of :attr:`ks_pvalues`, valid although the repeats share their runs (Rueger 1978)."""
        return float(combine_dependent_pvalues(self.ks_pvalues))

    @cached_property
    def marginal_rmse(self) -> FloatArray:
        """RMSE of each dimension alone, averaged over the repeats, (d,)."""
        errors = self.marginal_coverage_by_repeat - self.levels
        return np.asarray(np.sqrt(np.mean(errors**2, axis=2)).mean(axis=0))

    @cached_property
    def marginal_ks_pvalue(self) -> FloatArray:
        """Like :attr:`ks_pvalue` for each dimension alone, (d,)."""
        return combine_dependent_pvalues(self.marginal_ks_pvalues)

    @cached_property
    def band(self) -> FloatArray:
        """Lower and upper edge, (2, L), of the band that holds one exact repeat's whole curve with probability 0.95.

        The exact Kolmogorov-Smirnov quantile around the diagonal.
        """
        half = ecdf_band(self.n_sims)
        return np.stack([np.maximum(self.levels - half, 0.0), np.minimum(self.levels + half, 1.0)])

    def __repr__(self) -> str:
        spread = f" +/- {self.rmse_stddev:.4f}" if self.n_repeats > 1 else ""
        lines = [
            f"TarpResult: {self.n_sims} simulations, {self.n_dims} dimensions, {self.n_repeats} sets of "
            f"{self.references} references, {'exact shares' if self.n_draws is None else f'{self.n_draws} draws'}",
            f"  RMSE {self.rmse:.4f}{spread}, expected {self.rmse_floor:.4f} of an exact posterior, "
            f"excess {self.excess_rmse:+.4f}",
            f"  uniformity p = {self.ks_pvalue:.3g} (Kolmogorov-Smirnov, combined over the repeats)",
        ]
        if self.n_dims > 1:
            rows = zip(self.marginal_rmse, self.marginal_ks_pvalue, strict=True)
            lines += [f"  dimension {j}: RMSE {rmse:.4f}, p = {p:.3g}" for j, (rmse, p) in enumerate(rows)]
        return "\n".join(lines)


@dataclass(frozen=True)
class TarpVerdict:
    """The verdict of :func:`check_tarp`; true as a condition when calibration is not rejected.

    **Privacy.** Post-processing of Releases made from simulated data: safe to publish.

    Parameters
    ----------
    passed : bool
        Whether calibration was not rejected.
    level : float
        Probability of rejecting an exact posterior, at most.
    pvalue : float
        Smallest p-value of the joint and the marginal tests times their number (Bonferroni), at most 1.
    message : str
    """

    passed: bool
    level: float
    pvalue: float
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.message


def check_tarp(result: TarpResult, level: float = 0.05) -> TarpVerdict:
    """State in words whether coverage is consistent with an exact posterior.

    **Privacy.** Post-processing of Releases made from simulated data.

    Parameters
    ----------
    result : TarpResult
    level : float in (0, 1)
        Probability of rejecting an exact posterior, at most.

    Returns
    -------
    TarpVerdict

    Raises
    ------
    TypeError, ValueError
        If `result` is not a TarpResult or `level` lies outside (0, 1).

    Notes
    -----
    Rejects when the smallest of the joint and the marginal p-values, times their number, is below `level`.  References
    placed symmetrically around the posterior hardly see a shift of its mean: run :func:`run_sbc` as well.

    Examples
    --------
    >>> import numpy as np
    >>> grid = (np.arange(100) + 0.5)[None] / 100
    >>> check_tarp(tarp_from_shares(grid, grid[..., None])).passed
    True
    """
    if not isinstance(result, TarpResult):
        raise TypeError(f"result must be a TarpResult, got {type(result).__name__}")
    level = check_interval("level", level, 0.0, 1.0)
    # In one dimension the joint and the marginal test are one.
    marginal = result.marginal_ks_pvalue if result.n_dims > 1 else np.empty(0)
    pvalues = np.concatenate([[result.ks_pvalue], marginal])
    pvalue = float(min(1.0, pvalues.size * np.min(pvalues)))
    passed = pvalue >= level
    size = f"{result.n_sims} simulations, RMSE {result.rmse:.4f}, expected {result.rmse_floor:.4f}"
    if passed:
        message = f"Coverage agrees with an exact posterior (p = {pvalue:.2g}; {size})."
    else:
        worst = int(np.argmin(pvalues))
        shares = result.shares if worst == 0 else result.marginal_shares[..., worst - 1]
        where = "jointly" if worst == 0 else f"in dimension {worst - 1}"
        message = f"Coverage differs from an exact one (p = {pvalue:.2g}; {size}), most {where}: {_shape(shares)}."
    return TarpVerdict(passed, level, pvalue, message)


def tarp_from_shares(
    joint_shares: npt.ArrayLike,
    marginal_shares: npt.ArrayLike,
    *,
    levels: npt.ArrayLike | None = None,
    n_draws: int | None = None,
    references: str = "given",
    seed: int = 0,
) -> TarpResult:
    """Make a result from shares that are already there.

    **Privacy.** Post-processing of Releases made from simulated data.

    Parameters
    ----------
    joint_shares : (R, K) array in [0, 1]
        One row for each set of reference points.
    marginal_shares : (R, K, d) array in [0, 1]
    levels : (L,) array in (0, 1), increasing, optional
        Credibility levels; 0.01, 0.02, ..., 0.99 by default.
    n_draws : int, optional
        How many posterior draws a share counts; None for exact probabilities.  With it, the p-values come from
        :func:`~dpinfer.lab.coverage.uniformity.randomised_ranks` and are exact for any number of draws.
    references : str
        Where the reference points came from, for display.
    seed : int
        Of the randomisation.

    Returns
    -------
    TarpResult

    Raises
    ------
    TypeError, ValueError
        If shapes disagree or a number lies outside its interval.

    Examples
    --------
    >>> import numpy as np
    >>> shares = np.linspace(0.0005, 0.9995, 1000)[None]
    >>> tarp_from_shares(shares, shares[..., None]).rmse < 0.001
    True
    """
    joint = check_float_array("joint_shares", joint_shares, (None, None))
    marginal = check_float_array("marginal_shares", marginal_shares, (*joint.shape, None))
    if marginal.size == 0:
        raise ValueError(f"marginal_shares must not be empty, got shape {marginal.shape}")
    for name, array in (("joint_shares", joint), ("marginal_shares", marginal)):
        if array.min() < 0.0 or array.max() > 1.0:
            raise ValueError(f"{name} must lie in [0, 1]")
    grid = check_levels(levels)
    if n_draws is not None:
        check_integer("n_draws", n_draws, 1)
    generator = np.random.default_rng(check_integer("seed", seed, 0))
    if n_draws is None:
        joint_values, marginal_values = joint, marginal
    else:
        joint_values = randomised_ranks(joint, n_draws, generator)
        marginal_values = randomised_ranks(marginal, n_draws, generator)
    return TarpResult(
        shares=joint,
        marginal_shares=marginal,
        levels=grid,
        n_draws=n_draws,
        references=references,
        ks_pvalues=ks_pvalue(joint_values),
        marginal_ks_pvalues=ks_pvalue(np.moveaxis(marginal_values, 1, 2)),
    )


def check_levels(levels: npt.ArrayLike | None) -> FloatArray:
    """Return the grid of credibility levels, 0.01 to 0.99 by default; the paper does not print its own.

    **Privacy.** No data.
    """
    if levels is None:
        return np.arange(1, 100) / 100.0
    grid = check_float_array("levels", levels, (None,))
    if grid.size == 0 or grid[0] <= 0.0 or grid[-1] >= 1.0 or np.any(np.diff(grid) <= 0.0):
        raise ValueError("levels must increase strictly inside (0, 1), and there must be at least one")
    return grid


def _coverage(shares: FloatArray, levels: FloatArray) -> FloatArray:
    """Return the share of values below each level along the last axis."""
    ordered = np.sort(shares, axis=-1)
    rows = ordered.reshape(-1, ordered.shape[-1])
    below = np.stack([np.searchsorted(row, levels, side="left") for row in rows])
    return np.asarray(below / ordered.shape[-1]).reshape(*ordered.shape[:-1], levels.size)


def _shape(shares: FloatArray) -> str:
    """Say in words how shares of several repeats (R, K) differ from uniform ones."""
    tails = float(np.mean((shares < _TAIL) | (shares > 1.0 - _TAIL)))
    expected = 2.0 * _TAIL
    error = np.sqrt(expected * (1.0 - expected) / shares.shape[-1])
    text = f"{tails:.0%} of the shares are within {_TAIL:g} of 0 or 1 instead of {expected:.0%}"
    if tails > expected + 2.0 * error:
        return f"the posterior is too narrow or off centre, for {text}"
    if tails < expected - 2.0 * error:
        return f"the posterior is too wide, for {text}"
    return "the posterior is off centre or of another shape"
