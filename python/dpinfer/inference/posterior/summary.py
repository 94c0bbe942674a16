"""Tables about a posterior: the summary and the variance decomposition."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._sinks import printable
from dpinfer.accounting import Guarantee
from dpinfer.inference.posterior.causes import DOMINATED, PRIOR_DOMINATES
from dpinfer.inference.posterior.monte_carlo import MonteCarloError
from dpinfer.inference.trace import tuning
from dpinfer.models import LinearRegression, PersonModel

if TYPE_CHECKING:
    from dpinfer.inference.posterior.posterior import Posterior

# Responses of real tables are not normal about the mean, and three of them missed it (docs/private-newton.md).
RESIDUAL_SPREAD = "spread of the residuals; covered less often than stated"

_OTHER_SHAPE = ": approximation='simulated' with model= has a shape of its own"


@dataclass(frozen=True)
class VarianceDecomposition:
    """Result of :meth:`Posterior.decompose`: parts of each parameter's variance, (n,) each.

    Parameters
    ----------
    data : (n,) array
        Sampling error.
    privacy : (n,) array
        Part of the privacy noise when Hessian and noise level are known.
    approximation : (n,) array
        Part of the unknown Hessian and of noise beyond the privacy noise.
    prior : (n,) array
        Part of the prior alone: all of the variance without other information.

    Notes
    -----
    :func:`dpinfer.inference.posterior.causes.causes` has the definition.
    """

    names: tuple[str, ...]
    data: FloatArray
    privacy: FloatArray
    approximation: FloatArray
    prior: FloatArray

    @property
    def total(self) -> FloatArray:
        """The variance, (n,): the sum of the four."""
        return self.data + self.privacy + self.approximation + self.prior

    @property
    def shares(self) -> FloatArray:
        """Shares of the variance, (4, n): data, privacy, approximation, prior; 0 without variance."""
        total = self.total
        parts = np.stack([self.data, self.privacy, self.approximation, self.prior])
        return np.divide(parts, total, out=np.zeros_like(parts), where=total != 0.0)

    def __repr__(self) -> str:
        rows = zip(map(printable, self.names), *(100.0 * self.shares), strict=True)
        lines = [
            f"{name:>20.20s} {data:6.1f}% {privacy:6.1f}% {rest:6.1f}% {prior:6.1f}%"
            for name, data, privacy, rest, prior in rows
        ]
        return "\n".join([f"{'variance from':>20s} {'data':>7s} {'privacy':>7s} {'approx.':>7s} {'prior':>7s}", *lines])


@dataclass(frozen=True)
class PosteriorSummary:
    """A table of the posterior; printing it shows the table and the warnings.

    Parameters
    ----------
    mean, stddev, lower, upper : (n,) arrays
        In the model's own space; the 5% and 95% quantiles.
    privacy_share : (n,) array
        Share of the variance that the privacy noise causes, on the unconstrained space.
    prior_share : (n,) array
        Share of the variance that is the prior's alone; a row with more than half is flagged.
    flags : tuple of n str
        Empty without a problem.
    verdict : str
        Fit of the trace to the posterior's model; empty if not tested.
    monte_carlo : MonteCarloError or None
        Of the two quantiles; its columns are printed where the posterior rests on draws.
    records : str
        The noisy number of records used, beside the declared one; empty if no sum tells it.
    """

    names: tuple[str, ...]
    mean: FloatArray
    stddev: FloatArray
    lower: FloatArray
    upper: FloatArray
    privacy_share: FloatArray
    prior_share: FloatArray
    flags: tuple[str, ...]
    warnings: tuple[str, ...]
    guarantee: Guarantee
    verdict: str = ""
    monte_carlo: MonteCarloError | None = None
    records: str = ""

    def __str__(self) -> str:
        names = [printable(name) for name in self.names]
        width = min(30, max(len(name) for name in (*names, "parameter")))
        head = (
            f"{'parameter':<{width}s} {'mean':>11s} {'sd':>10s} {'5%':>11s} {'95%':>11s} {'privacy':>8s} {'prior':>6s}"
        )
        drawn = self.monte_carlo if self.monte_carlo is not None and self.monte_carlo.drawn else None
        lines = [head if drawn is None else f"{head} {'mcse 5%':>9s} {'mcse 95%':>9s} {'ess':>7s}"]
        shares = (self.privacy_share, self.prior_share)
        rows = zip(names, self.mean, self.stddev, self.lower, self.upper, *shares, self.flags, strict=True)
        for index, (name, mean, stddev, lower, upper, share, prior, flag) in enumerate(rows):
            line = f"{name[:width]:<{width}s} {mean:11.4g} {stddev:10.3g} {lower:11.4g} {upper:11.4g} {share:8.1%}"
            line += f" {prior:6.0%}"
            if drawn is not None:
                low, high = drawn.quantile[:, index]
                line += f" {low:9.2g} {high:9.2g} {drawn.effective_draws[index]:7.0f}"
            lines.append(f"{line}  {flag}".rstrip())
        lines.extend(f"warning: {text}" for text in self.warnings)
        lines.extend(filter(None, [self.verdict, self.records]))
        return "\n".join([*lines, self.guarantee, *filter(None, [self.guarantee.in_other_terms()])])

    def __repr__(self) -> str:
        return str(self)


def summarise(posterior: "Posterior") -> PosteriorSummary:
    """Return the summary of a posterior."""
    lower, upper = posterior.quantile(np.array([0.05, 0.95]))
    flags, warnings = _flags(posterior)
    _, privacy, _, prior = posterior.decompose().shares
    return PosteriorSummary(
        posterior.names,
        posterior.mean,
        posterior.stddev,
        lower,
        upper,
        privacy,
        prior,
        flags,
        warnings,
        posterior.guarantee,
        posterior.diagnostics.verdict,
        posterior.monte_carlo_error([0.05, 0.95]),
        posterior.diagnostics.records,
    )


def _flags(posterior: "Posterior") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a flag per parameter and warnings about the whole."""
    n, diagnostics = posterior.n_params, posterior.diagnostics
    marks: list[list[str]] = [[] for _ in range(n)]
    warnings: list[str] = []
    if diagnostics.fallback:
        warnings.append(diagnostics.fallback)
    dominated = posterior.decompose().shares[3] > DOMINATED
    if diagnostics.prior_only is not None:
        dominated = dominated & ~diagnostics.prior_only
        _mark(marks, diagnostics.prior_only, "prior only")
    _mark(marks, dominated, PRIOR_DOMINATES)
    if isinstance(posterior.model, LinearRegression):
        marks[-1].append(RESIDUAL_SPREAD)
    score, ratio, pvalue = diagnostics.slope_score, diagnostics.noise_ratio, diagnostics.linearity_pvalue
    if score is not None and np.any(score < tuning.TUNING.well_identified):
        _mark(marks, score < tuning.TUNING.well_identified, "hessian not identified")
        warnings.append(
            "the trace does not identify the Hessian of some coordinates (flagged): their optimum is wide and leans on "
            "the prior; more steps, a larger learning rate or a better preconditioner would help"
        )
    if diagnostics.zero_hessian is not None:
        shares = [f"{share:.0%}" for share in diagnostics.zero_hessian]
        for text in sorted({*shares} - {"0%"}):
            _mark(marks, np.array(shares) == text, f"hessian 0 with probability {text}")
        warnings.append(
            f"the prior of v, Hessian softplus(v), reaches below zero: {diagnostics.zero_hessian.max():.2g} of the "
            "posterior of some coordinate, at most, has a Hessian of 0, where the optimum has its prior alone; "
            "prior='weak' has no such part"
        )
    if ratio is not None and np.any(ratio > tuning.TUNING.noise_ratio):
        _mark(marks, ratio > tuning.TUNING.noise_ratio, "extra noise")
        warnings.append(
            "the gradients are noisier than the privacy noise explains (flagged): small batches, Monte Carlo noise, "
            "correlated parameters or a trace that is not linear"
        )
    if pvalue is not None and np.any(pvalue < tuning.TUNING.level / pvalue.size):
        _mark(marks, pvalue < tuning.TUNING.level / pvalue.size, "not linear")
        warnings.append(
            "the linear trace model fails for some coordinates (flagged): correlated parameters, or too short a burn_in"
        )
    if (diagnostics.share_dropped or 0.0) > tuning.TUNING.dropped:
        warnings.append(
            f"{diagnostics.share_dropped:.0%} of the Hessian draws were not positive definite and dropped: the full "
            "Hessian is hardly identified; prefer hessian='diagonal'"
        )
    if diagnostics.optimum_only:
        warnings.append(
            "this is the optimum of the clipped objective, with the privacy noise around it: the sampling uncertainty "
            "of the records is not in these intervals; give curvature to release_from_arrays"
        )
    if diagnostics.clipping_uncounted:
        warnings.append(
            "clipping moves the optimum away from the parameters, and these intervals do not count by how much: they "
            "hold where hardly any gradient was clipped"
        )
    if diagnostics.curvature_shift is not None:
        warnings.append(
            f"the posterior is not near normal: curvature shifts its centre by about {diagnostics.curvature_shift:.2f} "
            "standard deviations, which widens the intervals; do not take tails or joint shapes from it"
            + ("" if isinstance(posterior.model, PersonModel) else _OTHER_SHAPE)
        )
    if posterior.computed == "plug-in":
        warnings.append(
            f"approximation {posterior.approximation!r} ignores the privacy noise: its intervals are too narrow"
        )
    return tuple(", ".join(mark) for mark in marks), tuple(warnings)


def _mark(marks: list[list[str]], where: npt.NDArray[np.bool_], text: str) -> None:
    """Add `text` to the parameters that own the coordinates `where` (location and raw scale share a parameter)."""
    for index in np.flatnonzero(where):
        mark = marks[int(index) % len(marks)]
        if text not in mark:
            mark.append(text)
