"""From a release to a posterior with a full Hessian: under flat priors of its rows, or under the model's own prior."""

from typing import Any, cast

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.analysis import Analysis
from dpinfer.inference.trace.burn_in import BurnIn
from dpinfer.inference.trace.checks import check_statistics
from dpinfer.inference.trace.information import FullHessian
from dpinfer.inference.trace.information.gram import GramTrace, gram_posterior
from dpinfer.inference.trace.information.laplace import full_laplace
from dpinfer.inference.trace.information.rows import full_hessian_posterior, row_regressions
from dpinfer.inference.trace.information.under_model import NULL, InformationTrace, information_posterior
from dpinfer.inference.trace.scales.fisher import FisherRun
from dpinfer.models import GeneralizedLinearModel, LinearRegression
from dpinfer.recipes import GradientSettings
from dpinfer.release import GradientTrace


def coupling_pvalue(
    trace: InformationTrace,  # of p weights
    expected: FloatArray,  # (p,): information of all records about each weight, to about 10%
) -> float:
    """Return the p-value of "the information is diagonal, with the expected diagonal"; 1 for a single weight.

    With a diagonal information every weight has a recursion of its own, so that given the paths of all others the noise
    in its gradient is still independent normal.  A gradient less its expected slope is projected on the paths of
    the others: in units of the noise the square of that is chi-square with p - 1 degrees of freedom, exactly.  The
    smallest of the p p-values counts p times (Bonferroni), since they depend on each other.
    """
    size = expected.size
    if size < 2:
        return 1.0
    rate = trace.sample_rate
    noise = trace.noise_variance + rate * (1.0 - rate) * trace.score_variance * expected
    scale = np.sqrt(np.diag(trace.gram))
    correlation = trace.gram / np.outer(scale, scale)
    slopes = (trace.cross - rate * expected[:, None] * trace.gram) / scale
    smallest = 1.0
    for j in range(size):
        others = np.arange(size) != j
        values, axes = np.linalg.eigh(correlation[np.ix_(others, others)])
        nonzero = values > NULL * values[-1]
        explained = np.sum(np.square(slopes[j, others] @ axes[:, nonzero]) / values[nonzero]) / noise[j]
        smallest = min(smallest, float(special.chdtrc(np.count_nonzero(nonzero), explained)))
    return min(1.0, size * smallest)


_FLAT_DRAWS = 1000  # Monte Carlo error 2% of a standard deviation (1 / sqrt(2 * 1000))
_MODEL_DRAWS, _MODEL_WARMUP = 200, 100  # each draw is a mixture component: 200 give smooth marginals


def _fisher_run(release: GradientTrace, model: LinearRegression) -> FisherRun | None:
    """Return the settings of a Fisher-scaled release, None for another."""
    return FisherRun.from_release(release, model) if GradientSettings.of_release(release).fisher else None


def features_coupled(release: GradientTrace, model: LinearRegression) -> float:
    """Return the p-value of "the weights' Hessian is as diagonal as declared"; 0 if the declared one is not diagonal.

    From a tenth of the steps on: earlier ones are clipped more than the model expects at the optimum, later ones move
    little.  See :func:`dpinfer.inference.trace.information.posteriors.coupling_pvalue`.
    """
    declared = np.diag(model.design_moments)
    if np.any(np.abs(model.design_moments - np.diag(declared)) > 1e-9 * np.sqrt(np.outer(declared, declared))):
        return 0.0
    shares = (tuning.TUNING.gram_burn_in, tuning.TUNING.variance_burn_in)
    first, half = (int(share * release.n_steps) for share in shares)
    trace = GramTrace.from_release(release, model, _fisher_run(release, model), first, half)
    return coupling_pvalue(trace.at(trace.variance.residual), trace.clip_slope * trace.n_records * declared)


def coupling_findings(
    analysis: Analysis,  # of a model other than linear regression: nothing is found
) -> tuple[float | None, str]:
    """Return the p-value of coupled features for a diagonal posterior, and an addition to its verdict."""
    if not isinstance(analysis.model, LinearRegression) or not analysis.facts.has_model_hessian:
        return None, ""
    pvalue = features_coupled(analysis.release, analysis.model)
    finding = (
        " Features are correlated, as declared or as the trace shows: intervals with a diagonal Hessian do not hold; "
        "use hessian='full'."
    )
    return pvalue, finding if pvalue < tuning.TUNING.level else ""


def flat_full_posterior(analysis: Analysis, start: BurnIn) -> Posterior:
    """Regress every gradient coordinate on all positions, with flat priors, and draw from the result or its Laplace.

    Raises NumericalError if the trace does not identify a full Hessian.
    """
    release, request = analysis.release, analysis.request
    rows = row_regressions(*analysis.steps(start.start), n_threads=request.threads)
    options: dict[str, Any] = {
        "sample_rate": release.sample_rate,
        "n_params": release.n_params,
        "family": release.family,
        "aligned": release.gradient == "aligned",
        "extra_noise": bool(request.extra_noise),
        "n_draws": _FLAT_DRAWS if request.n_samples is None else request.n_samples,
        "seed": request.seed,
    }
    if request.approximation == "laplace":
        result = full_laplace(rows, start.statistics.spread, **options)
    else:
        result = full_hessian_posterior(rows, **options)
    # The diagonals of the inverse Gram matrices: of one for all rows, or of each row's own.
    squares = np.sum(np.linalg.inv(rows.factor) ** 2, axis=1)
    variance = squares[0] if len(squares) == 1 else np.diag(squares)
    score = np.diag(rows.coefficients) / (rows.stddev * np.sqrt(variance))
    weight = rows.stddev**2 / rows.intercept_variance
    return _posterior(analysis, start, result, slope_score=score, effective_weight=weight)


def model_full_posterior(analysis: Analysis, start: BurnIn) -> Posterior:
    """Integrate over the information matrix of a generalised linear model, given the trace and the model's priors.

    Raises NumericalError if the draws did not converge and `check_convergence`.

    See :func:`dpinfer.inference.trace.information.under_model.information_posterior`.  The information is expected to
    be N times that of one record under the public moments of the features, its curvature that at the prior's weights.
    """
    release = analysis.release
    model = cast(GeneralizedLinearModel, analysis.model)
    n, steps = release.n_params, slice(start.start, None)
    positions, gradients = release.positions[steps, :n], release.noisy_gradients[steps, :n]
    variance = model.prior_scale**2
    trace = InformationTrace.build(
        positions, gradients, release.noise_stddev[:n], sample_rate=release.sample_rate, prior_variance=variance
    )
    result = information_posterior(
        trace,
        float(release.n_records or 0) * model.expected_information(),
        prior_variance=variance,
        moments_known=model.feature_moments_known,
        **_sampling(analysis),
    )
    fitted = release.sample_rate * (positions - trace.position_mean) @ result.hessian_mean
    residual = gradients - gradients.mean(axis=0) - fitted
    return _posterior(
        analysis,
        start,
        result,
        noise_ratio=residual.std(axis=0) / release.noise_stddev[:n],
        slope_score=np.diag(result.hessian_mean) / np.diag(result.hessian_stddev),
        effective_weight=np.full(n, trace.weight),
    )


def gram_full_posterior(
    analysis: Analysis,
    # which steps are used for the weights; the noise variance, at first inflated by the weights' distance, takes none
    # of the first half
    start: BurnIn,
) -> Posterior:
    """Integrate over the Gram matrix of the features of a linear regression, given the trace and the model's priors.

    Raises NumericalError if the draws did not converge and `check_convergence`.

    See :func:`dpinfer.inference.trace.information.gram.gram_posterior`.
    """
    release = analysis.release
    model = cast(LinearRegression, analysis.model)
    n = release.n_params
    run = _fisher_run(release, model)
    variance_start = max(start.start, int(tuning.TUNING.variance_burn_in * release.n_steps))
    trace = GramTrace.from_release(release, model, run, start.start, variance_start)
    result = gram_posterior(trace, model, **_sampling(analysis))
    checked = start.statistics.take(slice(0, n))
    clipped = None
    if run is not None:
        clipped = float(np.asarray(run.expected(result.optimum_mean[None, :]).clipped_share)[0])
    return _posterior(
        analysis,
        start,
        result,
        noise_ratio=checked.noise_ratio,
        slope_score=np.diag(result.hessian_mean) / np.maximum(np.diag(result.hessian_stddev), 1e-300),
        effective_weight=checked.weight,
        expected_clipped_share=clipped,
    )


def _posterior(analysis: Analysis, start: BurnIn, result: FullHessian, **known: Any) -> Posterior:
    """Return the posterior of the first coordinates of a trace, with diagnostics that are `known` besides."""
    size = len(result.optimum_mean)
    names = analysis.release.gradient_names[:size]
    checked, pvalue = start.statistics.take(slice(0, size)), start.linearity_pvalue[:size]
    drawn: dict[str, Any] = {"acceptance": result.acceptance, "share_dropped": result.share_dropped}
    for name, value in (("rhat", result.rhat), ("effective_draws", result.effective_draws)):
        drawn[name] = None if value is None else np.array([value])
    return analysis.posterior(
        burn_in=start.start,
        optimum_names=names,
        optimum_mean=result.optimum_mean,
        optimum_stddev=result.optimum_stddev,
        hessian_mean=result.hessian_mean,
        hessian_stddev=result.hessian_stddev,
        distribution=result.theta,
        diagnostics=PosteriorDiagnostics(
            n_steps_used=analysis.release.n_steps - start.start,
            burn_in_holds=start.holds,
            verdict=check_statistics(checked, pvalue, names).verdict,
            **{"noise_ratio": result.noise_ratio} | drawn | known,
        ),
    )


def _sampling(analysis: Analysis) -> dict[str, Any]:
    """Return the settings of the draws of the information matrix."""
    request = analysis.request
    return {
        "n_draws": _MODEL_DRAWS if request.n_samples is None else request.n_samples,
        "n_warmup": _MODEL_WARMUP if request.n_warmup is None else request.n_warmup,
        "seed": request.seed,
        "check_convergence": bool(request.check_convergence),
        "report": analysis.report,
    }
