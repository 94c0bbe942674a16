"""Diagnostics of a posterior's computation: fit of the trace to its model, and mixing of the draws."""

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PosteriorDiagnostics:
    """Diagnostics of a posterior; None, or an empty text, if not available for its method.

    **Privacy.** Post-processing of a Release: as safe to publish as the release.

    Raises TypeError if a field is unknown.

    Parameters
    ----------
    noise_ratio : (k,) array, optional
        Residual over known noise: 1 when the privacy noise is all there is.
    slope_score : (k,) array, optional
        The Hessian's estimate in standard errors.
    zero_hessian : (k,) array, optional
        Posterior probability that the Hessian of each coordinate is 0 in double precision, where its prior reaches
        below: there the optimum has its prior alone.
    linearity_pvalue : (k,) array, optional
        Of the trend test.
    n_steps_used : int, optional
        Steps, or sums, after the burn-in.
    effective_weight : (k,) array, optional
        Sum of the steps' weights.
    burn_in_holds : bool, optional
        Whether the linear model holds from there on.
    verdict : str
        How the trace fits its model, in words.
    expected_clipped_share : float, optional
        How many of the gradients the model expects to be clipped at the optimum.
    clipped_share : float, optional
        Share of the records' scores that were clipped and not centred, as it was released, with noise.
    coupling_pvalue : float, optional
        Of the test that the features of a linear regression are correlated.
    prior_pvalue : float, optional
        Of the size of the weights under their prior.
    fit_pvalue : float, optional
        Posterior predictive p-value of the residuals of the released sums.
    information_pvalue : float, optional
        p-value of White's comparison of robust and model-based covariances.
    n_unresolved : int, optional
        Directions of the features that the privacy noise hides.
    warnings : tuple of str
        Names of the checks that fail.
    share_dropped : float, optional
        Share of the Hessian draws that were not positive definite.
    acceptance : float, optional
        Share of the proposals that the sampler took.
    autocorrelation : (k,) array, optional
        Integrated autocorrelation time of the sampler, in steps.
    rhat : (k,) or (1,) array, optional
        Split R-hat of each coordinate, or the largest of them.
    effective_draws : (k,) or (1,) array, optional
        Effective number of draws of each coordinate, or of the worst.
    equivalent_draws, mcse : (n,) array, optional
        How many independent draws of the posterior would give as exact a mean of each parameter, and the larger Monte
        Carlo error of its 5% and 95% quantiles in posterior standard deviations.
    noise_variance : float, optional
        Of a network's standardised response.
    prior_only : (n,) bool array, optional
        Which parameters keep their prior.
    optimum_only : bool, optional
        Whether the sampling uncertainty of the records is left out: a bare trace of parameters, without curvature.
    clipping_uncounted : bool, optional
        Whether the posterior ignores the bias of clipping, although it counts the sampling error.
    curvature_shift : float, optional
        Where a posterior is not near normal: by how much curvature shifts its centre, in standard deviations, as it was
        simulated; the intervals are widened by it.
    records_used, records_noise : float, optional
        The noisy number of records, or protected units, that the sums were over, and the standard deviation of its
        noise.
    records_declared : int, optional
        The public number of records of the run.
    fallback : str
        Reason of a fallback from the requested posterior.

    Examples
    --------
    >>> PosteriorDiagnostics(n_steps_used=90, noise_ratio=np.array([0.5, 1.0, 1.5]))
    PosteriorDiagnostics
      noise_ratio   median 1, from 0.5 to 1.5
      n_steps_used  90
    """

    noise_ratio: FloatArray | None = None
    slope_score: FloatArray | None = None
    zero_hessian: FloatArray | None = None
    linearity_pvalue: FloatArray | None = None
    n_steps_used: int | None = None
    effective_weight: FloatArray | None = None
    burn_in_holds: bool | None = None
    verdict: str = ""
    expected_clipped_share: float | None = None
    clipped_share: float | None = None
    coupling_pvalue: float | None = None
    prior_pvalue: float | None = None
    fit_pvalue: float | None = None
    information_pvalue: float | None = None
    n_unresolved: int | None = None
    warnings: tuple[str, ...] = ()
    share_dropped: float | None = None
    acceptance: float | None = None
    autocorrelation: FloatArray | None = None
    rhat: FloatArray | None = None
    effective_draws: FloatArray | None = None
    equivalent_draws: FloatArray | None = None
    mcse: FloatArray | None = None
    noise_variance: float | None = None
    prior_only: npt.NDArray[np.bool_] | None = None
    optimum_only: bool | None = None
    clipping_uncounted: bool | None = None
    curvature_shift: float | None = None
    records_used: float | None = None
    records_noise: float | None = None
    records_declared: int | None = None
    fallback: str = ""

    def __post_init__(self) -> None:
        names: Any = self.warnings  # a text of names in files of earlier versions
        object.__setattr__(
            self, "warnings", tuple(filter(None, names.split(", ") if isinstance(names, str) else names))
        )
        for name, value in self.to_dict().items():
            plain = value.item() if isinstance(value, np.generic) else value
            if isinstance(plain, np.ndarray):
                plain = plain.view()
                plain.flags.writeable = False
            object.__setattr__(self, name, plain)

    @property
    def records(self) -> str:
        """The noisy number of records used, beside the declared one, in words; empty if no sum tells it."""
        if self.records_used is None or self.records_noise is None:
            return ""
        used = f"about {max(round(self.records_used), 0)} used (privacy noise {self.records_noise:.2g})"
        return f"Records: {used}, {self.records_declared} declared."

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name: arrays, numbers, texts and the names of checks."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        present = {name: value for name, value in values.items() if value is not None}
        return {name: value for name, value in present.items() if not isinstance(value, (str, tuple)) or value}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.to_dict()), ()

    def __repr__(self) -> str:
        rows = self.to_dict()
        width = max((len(name) for name in rows), default=0)
        return "\n".join([type(self).__name__, *(f"  {name:<{width}}  {in_words(rows[name])}" for name in rows)])


def in_words(value: Any) -> str:
    """Return a diagnostic for people: a number, a text, or the median and the range of an array."""
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.6g}"
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu" and value.size > 1:
        finite = value[np.isfinite(value)]
        if not finite.size:
            return "not available"
        return f"median {np.median(finite):.4g}, from {finite.min():.4g} to {finite.max():.4g}"
    if isinstance(value, np.ndarray):
        return ", ".join(in_words(item) for item in value.ravel().tolist())
    return ", ".join(map(in_words, value)) if isinstance(value, (tuple, list)) else str(value)
