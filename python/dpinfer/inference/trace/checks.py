"""Whether a trace fits the model that the posterior rests on: tests with known false-positive rates, and a verdict."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.statistics import TraceStatistics
from dpinfer.inference.trace.theory import TraceTheory

_DRIFT_VARIANCE = 2.0  # of the statistic, by which two independent terms of variance 1 add up (see Notes)
_FITTED = 30.0  # a fit lowers the sum by more with probability below 1e-6 (see Notes)
_NAMED = 3  # names in a sentence: format


@dataclass(frozen=True)
class TraceCheck:
    """Tests of the trace model on the steps that a posterior uses; k coordinates.

    Parameters
    ----------
    names : tuple of k str
    n_steps : int
        Steps used.
    noise_ratio, noise_pvalue : (k,) arrays
        Residual over known noise, and the two-sided p-value of "the noise is the known one".
    linearity_pvalue : (m,) array, m <= k
        Of "the gradient is linear in the position", first m coordinates; nan where the trace is too short.
    drift_score, drift_pvalue : (k,) arrays
        Mean gradient in units of its noise, and the p-value of "the iterate has settled".
    slope_score : (k,) array
        The Hessian's estimate in standard errors.
    effective_sample_size : (k,) array
        Of the positions; nan if not computed.
    false_positive_rate : float
        Of the whole verdict on a trace that follows the model and has settled.
    theory : TraceTheory, optional
        Theorems 2 and 3 of NA-DPVI for this trace, where its learning rates are constant.
    """

    names: tuple[str, ...]
    n_steps: int
    noise_ratio: FloatArray
    noise_pvalue: FloatArray
    linearity_pvalue: FloatArray
    drift_score: FloatArray
    drift_pvalue: FloatArray
    slope_score: FloatArray
    effective_sample_size: FloatArray
    false_positive_rate: float = tuning.TUNING.level
    theory: TraceTheory | None = None

    @property
    def allowed(self) -> float:
        """The p-value below which a test of a coordinate fails (Bonferroni over all tests)."""
        return self.false_positive_rate / (3.0 * len(self.names))

    @property
    def noisier(self) -> npt.NDArray[np.bool_]:
        """Coordinates whose gradients are noisier than the known noise, (k,)."""
        return np.asarray((self.noise_pvalue < self.allowed) & (self.noise_ratio > 1.0))

    @property
    def quieter(self) -> npt.NDArray[np.bool_]:
        """Coordinates whose gradients are less noisy than claimed, (k,)."""
        return np.asarray((self.noise_pvalue < self.allowed) & (self.noise_ratio < 1.0))

    @property
    def bent(self) -> npt.NDArray[np.bool_]:
        """Coordinates whose gradients are not linear in the position, (k,)."""
        result = np.zeros(len(self.names), dtype=np.bool_)
        result[: self.linearity_pvalue.size] = self.linearity_pvalue < self.allowed
        return result

    @property
    def travelling(self) -> npt.NDArray[np.bool_]:
        """Coordinates that have not settled at their optimum, (k,)."""
        return np.asarray(self.drift_pvalue < self.allowed)

    @property
    def unidentified(self) -> npt.NDArray[np.bool_]:
        """Coordinates whose Hessian has a relative error above a third, (k,); not a test."""
        return np.asarray(self.slope_score < tuning.TUNING.well_identified)

    @property
    def sound(self) -> bool:
        """Whether no test fails."""
        return not np.any(self.noisier | self.quieter | self.bent | self.travelling)

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        total = len(self.names)
        findings = []
        for where, order, text in (
            (self.noisier, self.noise_ratio, "have gradients noisier than the privacy noise"),
            (self.quieter, -self.noise_ratio, "have gradients less noisy than the release claims"),
            (self.bent, -self._padded(self.linearity_pvalue), "have gradients that are not linear in the parameters"),
            (self.travelling, np.abs(self.drift_score), "are still on their way to the optimum"),
        ):
            if np.any(where):
                findings.append(f"{np.count_nonzero(where)} of {total} coordinates {text} ({self._most(where, order)})")
        if findings:
            opening = "The trace does not fit its model everywhere: " + "; ".join(findings) + "."
        else:
            opening = (
                f"The trace fits its model: over {self.n_steps} steps and {total} coordinate{'s' * (total > 1)} the "
                "gradients are linear in the parameters and as noisy as the privacy noise, and no iterate is seen to "
                "travel."
            )
        weak = np.count_nonzero(self.unidentified)
        if weak:
            opening += (
                f" {weak} of {total} coordinates hardly determine their curvature: they mix too slowly for this noise."
            )
        sizes = self.effective_sample_size[np.isfinite(self.effective_sample_size)]
        if sizes.size:
            opening += f" Effective sample size: median {np.median(sizes):.0f}, smallest {sizes.min():.0f}."
        return opening

    def _padded(self, values: FloatArray) -> FloatArray:
        return np.concatenate((values, np.ones(len(self.names) - values.size)))

    def _most(self, where: npt.NDArray[np.bool_], order: FloatArray) -> str:
        chosen = np.flatnonzero(where)
        chosen = chosen[np.argsort(-order[chosen], kind="stable")][:_NAMED]
        listed = ", ".join(self.names[index] for index in chosen)
        return listed if np.count_nonzero(where) <= _NAMED else f"most of all {listed}"

    def __str__(self) -> str:
        lines = [self.verdict, ""]
        width = max(10, *(len(name) for name in self.names))
        lines.append(
            f"{'coordinate':<{width}} {'noise':>7} {'p':>8} {'linear p':>9} {'drift':>7} {'slope':>7} {'ESS':>8}"
        )
        linear = self._padded(self.linearity_pvalue)
        columns = (
            self.noise_ratio,
            self.noise_pvalue,
            linear,
            self.drift_score,
            self.slope_score,
            self.effective_sample_size,
        )
        for name, noise, p, line, drift, slope, size in zip(self.names, *columns, strict=True):
            lines.append(f"{name:<{width}} {noise:7.3f} {p:8.2g} {line:9.2g} {drift:7.2f} {slope:7.1f} {size:8.0f}")
        if self.theory is not None:
            lines += ["", str(self.theory)]
        return "\n".join(lines)


def check_statistics(
    statistics: TraceStatistics,
    linearity_pvalue: FloatArray,  # (m,), m <= k: from :func:`dpinfer.inference.trace.burn_in.choose_burn_in`
    names: tuple[str, ...],
    *,
    # (k,): score of the slope if other gradients also determine the Hessian; by default that of `statistics`
    slope_score: FloatArray | None = None,
    effective_sample_size: FloatArray | None = None,  # (k,)
    false_positive_rate: float = tuning.TUNING.level,
    theory: TraceTheory | None = None,
) -> TraceCheck:
    """Test a trace from its sufficient statistics.

    Notes
    -----
    Noise: at the true parameters the squared residuals over tau**2 sum up to a chi-square variable with n degrees of
    freedom, whatever moved the positions; a fit lowers the sum, and by more than 30 with probability below 1e-6, so
    that neither tail of the test rejects more often than stated.

    Settling: with a constant rate the mean gradient is the way from the first to the last position over lambda n, and
    for a stationary linear recursion with contractions between 0 and 1 its variance is at most 2 / (1 + q) <= 2 times
    that of the noise alone, q the factor by which a step shortens the distance to the optimum.

    Linearity: docs/derivations/noise-aware-posterior.md, "Burn-in".
    """
    count, residual = statistics.count, statistics.residual
    high = special.chdtrc(count, residual)
    low = special.chdtr(count, residual + _FITTED)
    drift = statistics.mean_score
    return TraceCheck(
        names=names,
        n_steps=count,
        noise_ratio=np.sqrt(residual / max(count - 2, 1)),
        noise_pvalue=np.minimum(1.0, 2.0 * np.minimum(high, low)),
        linearity_pvalue=linearity_pvalue,
        drift_score=drift,
        drift_pvalue=2.0 * special.ndtr(-np.abs(drift) / math.sqrt(_DRIFT_VARIANCE)),
        slope_score=statistics.slope_score if slope_score is None else slope_score,
        effective_sample_size=np.full(len(names), np.nan) if effective_sample_size is None else effective_sample_size,
        false_positive_rate=false_positive_rate,
        theory=theory,
    )
