"""From a release to a tied posterior: of any mean-field run, and of a Fisher-scaled one."""

import numpy as np

from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import IndependentTheta
from dpinfer.inference.trace.analysis import Analysis
from dpinfer.inference.trace.burn_in import BurnIn
from dpinfer.inference.trace.by_coordinate import Coordinates
from dpinfer.inference.trace.checks import check_statistics
from dpinfer.inference.trace.information.posteriors import coupling_findings
from dpinfer.inference.trace.priors import optimum_under_model
from dpinfer.inference.trace.scales.fisher import FisherRun, TiedTrace, pooled_slope_score, raw_scale_sums
from dpinfer.inference.trace.scales.tied import fisher_tied_nodes
from dpinfer.models import LinearRegression, Model

# Shares of the trace: chosen with the recipe (docs/coverage-record.md).
_FISHER_BURN_IN, _FISHER_VARIANCE_BURN_IN = 0.35, 0.5


def fisher_burn_in(model: Model | None) -> float:
    """Return the share of the steps that the tied posterior of a Fisher-scaled run leaves out by default.

    Longer with a noise variance, at first inflated by the weights' distance: docs/coverage.md.
    """
    return _FISHER_VARIANCE_BURN_IN if isinstance(model, LinearRegression) else _FISHER_BURN_IN


def tied_coordinates(
    analysis: Analysis,  # of a mean-field trace with reparameterised gradients
    start: BurnIn,
) -> Coordinates:
    """Return the locations' regressions, each with that of its raw scale, which shares the slope."""
    n, rate = analysis.release.n_params, analysis.release.sample_rate
    statistics = start.statistics.take(slice(0, n))
    positions, gradients, noise = analysis.steps(start.start)
    side = raw_scale_sums(positions[:, n:], gradients[:, n:], noise[..., n:], rate).regression()
    score = pooled_slope_score(side, statistics, rate)
    return Coordinates(analysis.release.gradient_names[:n], statistics, side, score, coupled=True)


def fisher_tied_posterior(analysis: Analysis, start: BurnIn) -> Posterior:
    """Return the tied posterior of a Fisher-scaled run.

    Raises ValueError if the release lacks settings that a Fisher-scaled run has. Raises NumericalError if a coordinate
    does not move or its quadrature fails.
    """
    release, request, model = analysis.release, analysis.request, analysis.model
    if model is None:
        raise ValueError("release must hold its model, n_records, grad_scale and max_grad_norm: it is Fisher-scaled")
    run = FisherRun.from_release(release, model)
    names = release.gradient_names[: release.n_params]
    trace = TiedTrace.from_release(release, model, start.start, n_threads=request.threads)
    trace.statistics.check_moving(names)
    optimum = None
    if request.prior == "model":
        optimum = optimum_under_model(model, run.n_records, with_scales=False)
    nodes = fisher_tied_nodes(
        trace, run, names, extra_noise=bool(request.extra_noise), optimum=optimum, n_threads=request.threads
    )
    mean, variance = nodes.moments(nodes.mean, nodes.variance)
    hessian_mean, hessian_variance = nodes.moments(nodes.hessian)
    share = np.asarray(run.expected(mean[None, :]).clipped_share)[0]
    score = trace.slope_score(release.sample_rate)
    verdict = check_statistics(trace.statistics, start.linearity_pvalue, names, slope_score=score).verdict
    coupling, finding = coupling_findings(analysis)
    return analysis.posterior(
        burn_in=start.start,
        optimum_names=names,
        optimum_mean=mean,
        optimum_stddev=np.sqrt(variance),
        hessian_mean=hessian_mean,
        hessian_stddev=np.sqrt(hessian_variance),
        distribution=IndependentTheta.from_nodes(
            nodes, family=release.family, width=release.n_params, hessian_is_precision=True
        ),
        diagnostics=PosteriorDiagnostics(
            noise_ratio=trace.statistics.noise_ratio,
            slope_score=score,
            linearity_pvalue=start.linearity_pvalue,
            n_steps_used=trace.statistics.count,
            effective_weight=trace.statistics.weight,
            burn_in_holds=start.holds,
            verdict=verdict + finding,
            expected_clipped_share=float(share),
            coupling_pvalue=coupling,
        ),
    )
