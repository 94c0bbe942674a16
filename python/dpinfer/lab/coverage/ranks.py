"""Simulation-based calibration: ranks of the truth among posterior draws, and its z-scores (Talts et al. 2018)."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer
from dpinfer.lab.coverage.counts import DrawArray, check_draws, check_thetas, draw_moments
from dpinfer.lab.coverage.uniformity import chi_square_pvalue, ks_pvalue

__all__ = ["SbcResult", "run_sbc", "sbc_from_cdf"]

_SIMS_PER_BIN = 10  # enough for the chi-square approximation
_MAX_BINS = 20  # more bins show no further shape
_CHUNK_BYTES = 1 << 24  # of draws compared at a time, so that the comparison needs little memory


@dataclass(frozen=True, eq=False)
class SbcResult:
    """Ranks and z-scores of the truth over K simulations, dimension by dimension.

    **Privacy.** Post-processing of Releases made from simulated data: safe to publish.

    Parameters
    ----------
    pit : (K, d) float64
        Probability integral transforms: uniform on (0, 1) for an exact posterior.
    counts : (d, n_bins) int64
        Histogram of `pit` in equal bins.
    chi2_pvalue : (d,) float64
        Chi-square p-value of the histogram.
    ks_pvalue : (d,) float64
        Exact two-sided Kolmogorov-Smirnov p-value.
    z : (K, d) float64 or None
        (theta - posterior mean) / posterior standard deviation; None where only distribution functions were given.
    """

    pit: FloatArray
    counts: npt.NDArray[np.int64]
    chi2_pvalue: FloatArray
    ks_pvalue: FloatArray
    z: FloatArray | None

    @property
    def n_sims(self) -> int:
        """Number K of simulations."""
        return int(self.pit.shape[0])

    @property
    def n_dims(self) -> int:
        """Number d of dimensions."""
        return int(self.pit.shape[1])

    @property
    def n_bins(self) -> int:
        """Number of bins of the histogram."""
        return int(self.counts.shape[1])

    @cached_property
    def mean_z(self) -> FloatArray:
        """Mean z-score, (d,): 0 for an exact posterior of any shape; nan without z-scores."""
        return np.full(self.n_dims, np.nan) if self.z is None else np.asarray(self.z.mean(axis=0))

    @cached_property
    def mean_z_stderr(self) -> FloatArray:
        """Monte Carlo standard error of :attr:`mean_z`, (d,)."""
        return np.asarray(self.sd_z / np.sqrt(self.n_sims))

    @cached_property
    def mean_z_pvalue(self) -> FloatArray:
        """Two-sided p-value of a zero mean z-score by Student's t, (d,)."""
        t = np.abs(self.mean_z) / self.mean_z_stderr
        return np.asarray(2.0 * special.stdtr(self.n_sims - 1, -t))

    @cached_property
    def sd_z(self) -> FloatArray:
        """Standard deviation of the z-scores, (d,): 1 for an exact posterior, above 1 for one that is too narrow."""
        return np.full(self.n_dims, np.nan) if self.z is None else np.asarray(self.z.std(axis=0, ddof=1))

    @cached_property
    def sd_z_stderr(self) -> FloatArray:
        """Monte Carlo standard error of :attr:`sd_z` from the fourth moment (delta method), (d,)."""
        if self.z is None:
            return np.full(self.n_dims, np.nan)
        squares = (self.z - self.mean_z) ** 2
        return np.asarray(squares.std(axis=0, ddof=1) / (2.0 * self.sd_z * np.sqrt(self.n_sims)))

    @cached_property
    def pvalue(self) -> float:
        """Smallest p-value of all dimensions and tests (chi-square, Kolmogorov-Smirnov, mean z) times their number."""
        tests = [self.chi2_pvalue, self.ks_pvalue]
        if self.z is not None:
            tests.append(self.mean_z_pvalue)
        every = np.concatenate(tests)
        return float(min(1.0, every.size * np.min(every)))

    def __repr__(self) -> str:
        lines = [
            f"SbcResult: {self.n_sims} simulations, {self.n_dims} dimensions, p = {self.pvalue:.3g} (Bonferroni)",
            "  dimension  chi2 p    KS p          mean z             sd z",
        ]
        lines += [
            f"  {j:9d} {self.chi2_pvalue[j]:7.3g} {self.ks_pvalue[j]:7.3g}  "
            f"{self.mean_z[j]:+.3f} +/- {self.mean_z_stderr[j]:.3f}  {self.sd_z[j]:.3f} +/- {self.sd_z_stderr[j]:.3f}"
            for j in range(self.n_dims)
        ]
        return "\n".join(lines)


def run_sbc(
    samples: npt.ArrayLike,
    thetas: npt.ArrayLike,
    *,
    n_bins: int | None = None,
    seed: int = 0,
    n_threads: int | None = None,
) -> SbcResult:
    """Check posteriors over simulations by the ranks of the truth among their draws.

    **Privacy.** Post-processing of Releases made from simulated data: no private records.

    Parameters
    ----------
    samples : (S, K, d) float64 or float32 array
        S >= 2 independent posterior draws for each of K >= 2 simulations, all finite.
    thetas : (K, d) array
        The value from the prior that each simulation was made from.
    n_bins : int, optional
        Bins of the histogram, from 2 to K; by default one for every ten simulations, from 2 to 20.
    seed : int
        Of the uniforms that spread the ranks over their cells.
    n_threads : int, optional
        All by default.  The result does not depend on it.

    Returns
    -------
    SbcResult

    Raises
    ------
    TypeError, ValueError
        If shapes disagree, a number is not finite, or posterior draws do not vary.

    Notes
    -----
    Talts, Betancourt, Simpson, Vehtari and Gelman (2018), algorithm 1.  A rank k, with ties broken at random, becomes
    (k + U) / (S + 1), which is exactly uniform for an exact posterior.  Thin the draws of a Markov chain first: ranks
    of dependent draws are not uniform.  The z-scores use the draws' mean and standard deviation, so their variance is
    about 1 + 1 / S.  Ranks and z see a shift of the mean that coverage with symmetric reference points does not.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(3)
    >>> centre = rng.normal(size=(500, 1))
    >>> thetas = centre + rng.normal(size=(500, 1))
    >>> draws = centre + rng.normal(size=(200, 500, 1))
    >>> run_sbc(draws, thetas).pvalue > 0.05, run_sbc(draws + 0.3, thetas).pvalue < 0.001
    (True, True)
    """
    draws = check_draws("samples", samples)
    truth = check_thetas(thetas, draws)
    n_draws = draws.shape[0]
    if n_draws < 2:
        raise ValueError(f"samples must hold at least 2 draws, got {n_draws}")
    mean, squares = draw_moments(draws, n_threads=n_threads)
    if not np.all(squares > 0.0):
        raise ValueError("samples must vary in every dimension of every simulation")
    less, equal = _ranks(draws, truth)
    generator = np.random.default_rng(check_integer("seed", seed, 0))
    # A rank at random among the equal draws, and a place at random in its cell, are one uniform over both.
    pit = (less + (equal + 1.0) * generator.random(truth.shape)) / (n_draws + 1.0)
    return _result(pit, (truth - mean) / np.sqrt(squares / (n_draws - 1.0)), n_bins)


def sbc_from_cdf(cdf: npt.ArrayLike, *, z: npt.ArrayLike | None = None, n_bins: int | None = None) -> SbcResult:
    """Check posteriors over simulations by their distribution functions at the truth.

    **Privacy.** Post-processing of Releases made from simulated data: no private records.

    Parameters
    ----------
    cdf : (K, d) or (K,) array in [0, 1]
        Posterior probability of a value below the truth (probability integral transform), K >= 2.
    z : array of the same shape, optional
        (theta - posterior mean) / posterior standard deviation.
    n_bins : int, optional
        As for :func:`run_sbc`.

    Returns
    -------
    SbcResult

    Raises
    ------
    TypeError, ValueError
        If a shape or a number is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> result = sbc_from_cdf((np.arange(100) + 0.5) / 100)
    >>> result.counts.tolist()
    [[10, 10, 10, 10, 10, 10, 10, 10, 10, 10]]
    """
    pit = check_float_array("cdf", cdf)
    if pit.ndim == 1:
        pit = pit[:, None]
    if pit.ndim != 2 or pit.size == 0:
        raise ValueError(f"cdf must have shape (n_sims, n_dims) or (n_sims,), none of them 0, got {pit.shape}")
    if pit.min() < 0.0 or pit.max() > 1.0:
        raise ValueError("cdf must lie in [0, 1]")
    scores = None if z is None else check_float_array("z", z)
    if scores is not None:
        scores = scores[:, None] if scores.ndim == 1 else scores
        if scores.shape != pit.shape:
            raise ValueError(f"z must have the shape of cdf, {pit.shape}, got {scores.shape}")
    return _result(pit, scores, n_bins)


def _ranks(draws: DrawArray, truth: FloatArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return how many draws are less than, and how many equal to, the truth, each (K, d)."""
    less = np.zeros(truth.shape, dtype=np.int64)
    equal = np.zeros(truth.shape, dtype=np.int64)
    step = max(1, _CHUNK_BYTES // (truth.size * draws.itemsize))
    for first in range(0, draws.shape[0], step):
        part = draws[first : first + step]
        less += np.count_nonzero(part < truth, axis=0)
        equal += np.count_nonzero(part == truth, axis=0)
    return less, equal


def _result(pit: FloatArray, z: FloatArray | None, n_bins: int | None) -> SbcResult:
    n_sims = pit.shape[0]
    if n_sims < 2:
        raise ValueError(f"at least 2 simulations are needed, got {n_sims}")
    if n_bins is None:
        bins = int(np.clip(n_sims // _SIMS_PER_BIN, 2, _MAX_BINS))
    else:
        bins = check_integer("n_bins", n_bins, 2, n_sims)
    histograms = [chi_square_pvalue(column, bins) for column in pit.T]
    return SbcResult(
        pit=pit,
        counts=np.stack([counts for counts, _ in histograms]),
        chi2_pvalue=np.array([pvalue for _, pvalue in histograms]),
        ks_pvalue=ks_pvalue(pit.T),
        z=z,
    )
