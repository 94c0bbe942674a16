"""Posteriors with independent coordinates: the plug-in ones, and one regression per coordinate."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, IndependentTheta, VarianceParts
from dpinfer.inference.trace.analysis import Analysis
from dpinfer.inference.trace.burn_in import BurnIn, choose_burn_in
from dpinfer.inference.trace.checks import check_statistics
from dpinfer.inference.trace.collapsed import CollapsedProblems, Nodes, SideRegression, collapsed_nodes, solved_nodes
from dpinfer.inference.trace.laplace import laplace_posterior
from dpinfer.inference.trace.priors import coordinate_priors, optimum_under_model
from dpinfer.inference.trace.statistics import TraceStatistics
from dpinfer.recipes.full_rank import unpack_guide
from dpinfer.release import GradientTrace

_NO_SCALE = -700.0  # where softplus is 0 to double precision: a q that adds nothing to the location


def plug_in_posterior(analysis: Analysis) -> Posterior:
    """Return q at the last iterate ("naive") or at the mean of the iterates ("averaged")."""
    release, request = analysis.release, analysis.request
    n = release.n_params
    first = release.n_steps
    params = release.final_params
    if request.approximation == "averaged":
        chosen = choose_burn_in(request.burn_in, *analysis.steps(0), n_threads=request.threads)
        first = max(chosen.start, release.n_steps // 2) if isinstance(request.burn_in, str) else chosen.start
        params = release.params[first:].mean(axis=0)
    zero = np.zeros(n)
    theta: IndependentTheta | DrawnTheta
    names = release.names
    if release.family == "full_rank":
        theta = _full_rank_theta(params, n)
        params = params[:n]
    else:
        scale = NormalMixtures.single(params[n:], zero) if release.family == "mean_field" else None
        theta = IndependentTheta(NormalMixtures.single(params[:n].copy(), zero), np.ones(n), zero, scale)
    if release.family == "mean_field":
        names = tuple(f"loc[{name}]" for name in names) + tuple(f"raw_scale[{name}]" for name in names)
    return analysis.posterior(
        burn_in=first,
        optimum_names=names,
        optimum_mean=params.copy(),
        optimum_stddev=np.zeros_like(params),
        distribution=theta,
        diagnostics=PosteriorDiagnostics(n_steps_used=release.n_steps - first),
    )


def _full_rank_theta(params: FloatArray, n: int) -> DrawnTheta:
    """Return q itself, for the packed parameters of a full-rank guide."""
    loc, factor = unpack_guide(params, n)
    covariance = factor @ factor.T
    precision = np.linalg.cholesky(np.linalg.inv(covariance))
    nothing = np.zeros(n)
    parts = VarianceParts(np.diag(covariance).copy(), nothing, nothing)
    return DrawnTheta(loc[None, :].copy(), None, precision[None, :, :], parts)


@dataclass(frozen=True)
class Coordinates:
    """The regressions of k coordinates, all of the trace's or the locations alone."""

    names: tuple[str, ...]
    statistics: TraceStatistics
    side: SideRegression | None  # regression of the raw scales, if it shares the slope of the locations
    score: FloatArray  # (k,): how well the Hessian is identified
    coupled: bool  # whether the Hessian is also the precision of theta given the optimum

    @classmethod
    def of(cls, release: GradientTrace, start: BurnIn) -> "Coordinates":
        """Return all coordinates of a trace, from a step on."""
        statistics = start.statistics
        aligned = release.gradient == "aligned"
        return cls(release.gradient_names, statistics, None, statistics.slope_score, aligned)

    def problems(self, analysis: Analysis) -> CollapsedProblems:
        """State the problems of the coordinates under the requested prior."""
        release, request, model = analysis.release, analysis.request, analysis.model
        largest = None if self.side is None else np.abs(self.side.slope) + 1.0 / np.sqrt(self.side.precision)
        optimum = None
        if request.prior == "model" and model is not None and release.n_records is not None:
            with_scales = not self.coupled and release.family == "mean_field"
            optimum = optimum_under_model(model, release.n_records, with_scales=with_scales)
        priors = coordinate_priors(
            request.prior,
            self.statistics,
            release.sample_rate,
            precision=self.coupled,
            largest=largest,
            optimum=optimum,
        )
        return CollapsedProblems.build(
            self.statistics, priors, release.sample_rate, extra_noise=bool(request.extra_noise), side=self.side
        )


def coordinate_posterior(
    analysis: Analysis,
    start: BurnIn,
    coordinates: Coordinates,
    *,
    # give parameters whose coordinates the trace model fails their prior under the model, instead of raising
    rescue: bool = False,
    # takes the analysis, the first step, the problems and the coordinates; by quadrature, or Laplace's approximation
    solve: "Solver | None" = None,
) -> Posterior:
    """Return the posterior of independent coordinates: a diagonal Hessian.

    Raises NumericalError if a coordinate does not move or its quadrature fails, and `rescue` is off or the model is not
    known.
    """
    if rescue:
        solved = _rescued(analysis, coordinates)
    else:
        coordinates.statistics.check_moving(coordinates.names)
        solved = (solve or _solve)(analysis, coordinates.problems(analysis), coordinates)
    return solved_posterior(analysis, start, coordinates, solved)


def solved_posterior(analysis: Analysis, start: BurnIn, coordinates: Coordinates, solved: "Solved") -> Posterior:
    """Return the posterior of solved coordinates; a verdict that `solved` has is added to the trace's."""
    release, nodes, statistics = analysis.release, solved.nodes, coordinates.statistics
    optimum_mean, optimum_variance = nodes.moments(nodes.mean, nodes.variance)
    if solved.hessian is None:
        hessian_mean, hessian_variance = nodes.moments(nodes.hessian)
        hessian_stddev = np.sqrt(hessian_variance)
    else:
        hessian_mean, hessian_stddev = solved.hessian
    # A slope of so few standard errors moves no number of the posterior.
    nothing = nodes.hessian <= 1e-12 * nodes.spread_to_nodes(statistics.slope_stderr / release.sample_rate)
    zero = nodes.expectation(nothing.astype(np.float64))
    verdict = check_statistics(
        statistics, start.linearity_pvalue, coordinates.names, slope_score=coordinates.score
    ).verdict
    return analysis.posterior(
        burn_in=start.start,
        optimum_names=coordinates.names,
        optimum_mean=optimum_mean,
        optimum_stddev=np.sqrt(optimum_variance),
        hessian_mean=hessian_mean,
        hessian_stddev=hessian_stddev,
        distribution=_with_curvature(
            IndependentTheta.from_nodes(
                nodes, family=release.family, width=release.n_params, hessian_is_precision=coordinates.coupled
            ),
            release,
            nodes,
        ),
        diagnostics=replace(
            solved.diagnostics,
            noise_ratio=statistics.noise_ratio,
            slope_score=coordinates.score,
            zero_hessian=zero if np.any(zero > 1e-9) else None,
            linearity_pvalue=start.linearity_pvalue,
            n_steps_used=statistics.count,
            effective_weight=statistics.weight,
            burn_in_holds=start.holds,
            verdict=verdict + solved.diagnostics.verdict,
        ),
    )


def _with_curvature(theta: IndependentTheta, release: GradientTrace, nodes: Nodes) -> IndependentTheta:
    """Return theta around its optimum with the variance of a stated curvature, where a bare trace has one."""
    curvature = release.settings.get("curvature")
    if curvature is None:
        return theta
    return replace(theta, q_variance=np.repeat(1.0 / np.asarray(curvature, dtype=np.float64), np.diff(nodes.offsets)))


@dataclass(frozen=True)
class Solved:
    """Result of a solver: nodes, the Hessian's moments if they differ from those of the nodes, and diagnostics."""

    nodes: Nodes
    hessian: tuple[FloatArray, FloatArray] | None = None
    diagnostics: PosteriorDiagnostics = field(default_factory=PosteriorDiagnostics)


Solver = Callable[[Analysis, CollapsedProblems, Coordinates], Solved]


def _solve(analysis: Analysis, problems: CollapsedProblems, coordinates: Coordinates) -> Solved:
    """Integrate, or approximate, the likelihood of the steps that the problems hold."""
    nodes = collapsed_nodes(problems, coordinates.names, n_threads=analysis.request.threads)
    if analysis.request.approximation == "laplace":
        approximation = laplace_posterior(problems, nodes, coordinates.names)
        return Solved(approximation.nodes(coupled=coordinates.coupled), approximation.hessian_moments())
    return Solved(nodes)


@np.errstate(all="ignore")
def _rescued(analysis: Analysis, coordinates: Coordinates) -> Solved:
    """Integrate each coordinate; a parameter whose coordinates fail has its prior under the model."""
    problems = coordinates.problems(analysis)
    posed = coordinates.statistics.moving & np.all(np.isfinite(problems.table), axis=1)
    if np.any(posed):
        # A coordinate without a problem is solved like another one, and its result is dropped.
        table = np.where(posed[:, None], problems.table, problems.table[int(np.argmax(posed))])
        nodes, converged = solved_nodes(replace(problems, table=table), n_threads=analysis.request.threads)
        mean, variance = nodes.moments(nodes.mean, nodes.variance)
        proper = posed & converged & np.isfinite(mean) & np.isfinite(variance) & (variance > 0.0)
        if coordinates.coupled:
            proper &= np.isfinite(nodes.expectation(1.0 / nodes.hessian))
    else:
        nodes = Nodes(np.arange(posed.size + 1, dtype=np.int64), *np.ones((5, posed.size)))
        proper, variance = posed, np.ones(posed.size)
    release, model = analysis.release, analysis.model
    n = release.n_params
    if model is None:
        if np.all(proper):
            return Solved(nodes)
        coordinates.statistics.check_moving(coordinates.names)
        name = coordinates.names[int(np.argmin(proper))]
        raise NumericalError(f"the trace has no information about {name!r}, and without a model it has no prior")
    with_scales = proper.size > n
    centre, spread = optimum_under_model(model, int(release.n_records or 1), with_scales=with_scales)
    # A run that diverged is less informative than the prior; and if the information that scaled the gradients does not
    # describe the trace, intervals of the other coordinates would be too narrow.
    failed = ~(proper & (variance <= spread**2)) | analysis.facts.fisher_scaled
    if with_scales:
        # q adds its own variance to the location's: none where the location already has the whole prior.
        lost = failed[:n]
        centre[n:], spread[n:] = np.where(lost, _NO_SCALE, centre[n:]), np.where(lost, 0.0, spread[n:])
        failed = np.concatenate((lost, lost | failed[n:]))
    if not np.any(failed):
        return Solved(nodes)
    nodes = nodes.replaced(failed, hessian=np.inf, inflation=1.0, mean=centre[failed], variance=spread[failed] ** 2)
    hessian, hessian_variance = nodes.moments(nodes.hessian)
    return Solved(
        nodes,
        (np.where(failed, np.nan, hessian), np.where(failed, np.nan, np.sqrt(hessian_variance))),
        PosteriorDiagnostics(prior_only=failed[:n]),
    )
