"""The tied posterior: one unknown per parameter, both the Hessian in the location and the variational precision."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpinfer._arrays import NEGLIGIBLE, FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.analysis import Analysis
from dpinfer.inference.trace.burn_in import BurnIn
from dpinfer.inference.trace.by_coordinate import Coordinates, Solved, solved_posterior
from dpinfer.inference.trace.collapsed import CollapsedProblems, Nodes, collapsed_nodes
from dpinfer.inference.trace.information.posteriors import coupling_findings
from dpinfer.inference.trace.priors import CoordinatePriors, optimum_under_model
from dpinfer.inference.trace.scales.fisher import FisherRun, SideSums, TiedTrace, pooled_slope_score, raw_scale_sums
from dpinfer.inference.trace.scales.noise_variance import VarianceSlope, with_variance_prior
from dpinfer.inference.trace.statistics import TraceStatistics
from dpinfer.models import ExpectedGradients, InformedModel, LinearRegression, Model, dispersion_clipping
from dpinfer.models.base import softplus, softplus_inverse


def fisher_tied_nodes(
    trace: TiedTrace,  # k coordinates of one or more runs
    run: FisherRun,
    names: tuple[str, ...],
    *,
    extra_noise: bool = True,  # whether the gradients may be noisier than the privacy noise
    # pair of (k,) arrays, optional: location and scale of the optimum's prior; by default wide against the trace
    optimum: tuple[FloatArray, FloatArray] | None = None,
    correct: bool = True,  # whether to correct for clipping and for the second-order effect of the iterate's excursions
    n_threads: int = 0,
) -> Nodes:  # with the Hessian h = eta I(optimum) at every node
    """Integrate the tied posterior of Fisher-scaled traces, corrected for clipping and for the bend of the loss.

    Raises NumericalError if a scale vanished, or the quadrature did not converge for some coordinate.

    The slope of the loss at the iterate is eta_j I_j(phi_t), eta_j unknown with log eta_j ~ N(log N, tolerance**2), so
    that gradients divided by I_j(phi_t) have a constant slope.  Derivation, with the two corrections:
    docs/derivations/noise-aware-posterior.md, "Fisher-scaled traces".
    """
    problems = _TiedProblems.of(
        trace, run, names, extra_noise=extra_noise, optimum=optimum, correct=correct, n_threads=n_threads
    )
    model, expected, slope, shape = problems.noisy, problems.expected, problems.slope, problems.at.shape
    nodes = problems.solve(trace.statistics, trace.side)
    bend = _Bend.none(shape)
    if expected is not None:
        whole = problems.solve(trace.whole_statistics, trace.whole_side)
        bend = _Bend.of(nodes, whole, trace, run, expected, problems.at)
        nodes = problems.solve(trace.statistics, trace.side, bend.shift)
    nodes = replace(nodes, variance=nodes.variance + nodes.spread_to_nodes(bend.variance))
    if model is not None and slope is not None:
        nodes = with_variance_prior(nodes, model, slope.stretch, bend.excess, bend.excess_variance)
    centre = nodes.expectation(nodes.mean).reshape(shape)
    hessian = nodes.hessian * nodes.spread_to_nodes(_information(run, centre).ravel())
    if expected is None:
        return replace(nodes, hessian=hessian)
    # The optimum of clipped gradients lies farther from the truth than that of the likelihood.
    widening = _spread(expected.clip_spread, shape[0]) - 1.0
    if slope is not None:
        widening = _with_last(widening, slope.spread - 1.0)
    variance = nodes.variance + nodes.spread_to_nodes(np.maximum(widening, 0.0).ravel()) / hessian
    return replace(nodes, hessian=hessian, variance=variance)


@dataclass(frozen=True)
class _TiedProblems:
    """Common parts of the problems of the coordinates, for all steps and shifts."""

    run: FisherRun
    names: tuple[str, ...]
    at: FloatArray  # (runs, n): mean positions; rho for a noise variance, whose positions are values
    expected: ExpectedGradients | None  # none: no corrections
    slope: VarianceSlope | None  # of a noise variance
    optimum: tuple[FloatArray, FloatArray] | None  # pair of (k,) arrays or None
    extra_noise: bool
    n_threads: int

    @classmethod
    def of(
        cls,
        trace: TiedTrace,
        run: FisherRun,
        names: tuple[str, ...],
        *,
        extra_noise: bool,
        optimum: tuple[FloatArray, FloatArray] | None,
        correct: bool,
        n_threads: int,
    ) -> "_TiedProblems":
        statistics, model = trace.statistics, run.model
        if not isinstance(model, InformedModel):
            raise TypeError(f"model must have an expected information, got {type(model).__name__}")
        moved = np.ones(statistics.xx.shape, dtype=bool) if trace.side is None else trace.side.design_square > 0.0
        if not np.all(moved & np.isfinite(statistics.xx)):
            name = names[int(np.argmin(moved))]
            raise NumericalError(
                f"the scale of {name!r} vanished or the trace of it left the finite numbers: the noise is too large "
                "for this number of records and steps"
            )
        at = statistics.position_mean.reshape(-1, model.n_params)
        slope: VarianceSlope | None = None
        if isinstance(model, LinearRegression):
            clipping = dispersion_clipping(model, run.max_grad_norm, run.raw_ratio) if correct else None
            level = statistics.gradient_mean.reshape(at.shape)[:, -1] / (run.sample_rate * run.n_records)
            slope = VarianceSlope.at(clipping, at[:, -1], level)
            at = _with_last(at, softplus_inverse(np.maximum(at[:, -1], NEGLIGIBLE)))
        expected = run.expected(at, None if slope is None else slope.ratio) if correct else None
        return cls(run, names, at, expected, slope, optimum, extra_noise, n_threads)

    @property
    def noisy(self) -> LinearRegression | None:
        """The model, if its last parameter is a noise variance."""
        return self.run.model if isinstance(self.run.model, LinearRegression) else None

    def solve(self, part: TraceStatistics, side: SideSums | None, shift: FloatArray | float = 0.0) -> Nodes:
        """Integrate over the Hessians, given the effect of the iterate's excursions on the scaled gradients' mean."""
        run, shape, slope = self.run, self.at.shape, self.slope
        runs, n = shape
        factor, bias_loc = np.ones(shape), np.zeros(shape)
        shift_raw: FloatArray | float = 0.0
        if self.expected is not None:
            unit = run.sample_rate * run.n_records / (run.noise_multiplier * run.max_grad_norm)
            bias = _spread(self.expected.clip_bias, runs) * unit
            factor = _spread(self.expected.clip_slope, runs)
            bias_loc, shift_raw = bias[:, :n], bias[:, n:].ravel()
        tolerance = np.full(shape, run.tolerance)
        if slope is not None:  # clipping moves the zero of its gradients, by a factor that is taken out at the end
            factor, bias_loc = _with_last(factor, slope.gain), _with_last(bias_loc, np.zeros(runs))
            tolerance[:, -1] = tuning.TUNING.variance_tolerance
        typical_noise = part.reference_stddev * np.sqrt(part.count / part.weight)
        gradient_mean = part.gradient_mean - shift + bias_loc.ravel() * typical_noise
        loc, scale = part.position_mean, tuning.TUNING.optimum_spreads * part.spread
        if self.optimum is not None:
            bounded = np.tile(np.arange(n) < n - (slope is not None), runs)  # a variance has its own prior, at the end
            loc, scale = np.where(bounded, self.optimum[0], loc), np.where(bounded, self.optimum[1], scale)
        zero = np.zeros(runs * n)
        priors = CoordinatePriors(loc, scale, zero, zero, zero + np.log(run.n_records), tolerance.ravel())
        problems = CollapsedProblems.build(
            replace(part, gradient_mean=gradient_mean),
            priors,
            run.sample_rate * factor.ravel(),
            extra_noise=self.extra_noise,
            side=None if side is None else side.regression(shift_raw),
        )
        return collapsed_nodes(problems, self.names, n_threads=self.n_threads)


def _information(run: FisherRun, at: FloatArray) -> FloatArray:
    """Return the per-record information at positions (runs, n), positive."""
    model: Any = run.model
    return np.asarray(np.maximum(model.information(at), 1e-12))


def _with_last(values: FloatArray, last: FloatArray) -> FloatArray:
    """Return a copy of (runs, n) values with another last column."""
    changed = values.copy()
    changed[:, -1] = last
    return changed


def _spread(values: FloatArray, runs: int) -> FloatArray:
    """Repeat the one row that all runs share."""
    return np.broadcast_to(values, (runs, *values.shape[1:])) if values.shape[0] == 1 else values


@dataclass(frozen=True)
class _Bend:
    """Effects of the iterate's excursions, to second order.

    ``E_q g_k / I_k`` is off its linear part by kappa N / 2 times the sum over j of ``bend_kj / sqrt(I_k)`` times
    ``I_j ((mu_t - mu*)_j**2 + s_tj**2 - 1 / h_j)``, less, as the divisor I_k changes with mu_t,
    ``2 information_slope_k / sqrt(I_k)`` times ``I_k (mu_t - mu*)_k**2``.  The information is taken at the mean of the
    positions.  A noise variance is different: in its own value its gradient is linear, and excursions of the weights
    add exactly ``sum_j E[x_j**2] ((mu_t - mu*)_j**2 + s_tj**2 - 1 / h_j)`` to the variance of the residuals.
    """

    # shift, variance: (k,): mean of the scaled gradients, and its part in the variance of the optimum
    shift: FloatArray
    variance: FloatArray
    # excess, excess_variance: (runs,): mean and variance of the addition to the variance of the residuals
    excess: FloatArray
    excess_variance: FloatArray

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "_Bend":
        """Return that of no excursions, for (runs, n) coordinates."""
        zero, none = np.zeros(int(np.prod(shape))), np.zeros(shape[0])
        return cls(zero, zero, none, none)

    @classmethod
    def of(
        cls, nodes: Nodes, whole: Nodes, trace: TiedTrace, run: FisherRun, expected: ExpectedGradients, at: FloatArray
    ) -> "_Bend":
        """Find it from the posteriors of the optimum on the steps used, `nodes`, and on nearly all, `whole`."""
        statistics, model = trace.statistics, run.model
        runs, n = at.shape
        information = _information(run, at)
        moved, doubt = _excursions(statistics.position_mean, statistics.spread, whole, information)
        # Of the coordinate that bends, by the steps linear in it.
        own, _ = _excursions(statistics.position_mean, statistics.spread, nodes, information)
        precision = nodes.expectation(1.0 / nodes.hessian).reshape(at.shape) / information  # E[1 / h]
        widened = information * (trace.scale_square.reshape(at.shape) - precision)
        excess = excess_variance = np.zeros(runs)
        if isinstance(model, LinearRegression):
            variance = softplus(at[:, -1])
            met, met_doubt = _excursions(trace.last_position, trace.last_spread, whole, information)
            excess = variance * np.sum(met[:, :-1] + widened[:, :-1], axis=1)
            excess_variance = variance**2 * np.sum(met_doubt[:, :-1], axis=1)
            # Weights over their information do not bend with rho, nor rho, in the variance, with itself.
            moved, doubt, own, widened = (_with_last(item, np.zeros(runs)) for item in (moved, doubt, own, widened))
        bend, slope = _spread(expected.bend, runs), _spread(expected.information_slope, runs)
        others = bend * (1.0 - np.eye(n))
        itself = np.einsum("rkk->rk", bend)
        effect = 0.5 * (np.einsum("rkj,rj->rk", others, moved) + itself * own) - slope * own
        effect += 0.5 * np.einsum("rkj,rj->rk", bend, widened)
        effect_variance = 0.25 * np.einsum("rkj,rj->rk", others**2, doubt)
        if isinstance(model, LinearRegression):
            effect, effect_variance = _with_last(effect, np.zeros(runs)), _with_last(effect_variance, np.zeros(runs))
        kappa_n = run.sample_rate * run.n_records
        shift = (kappa_n * effect / np.sqrt(information)).ravel()
        return cls(shift, (effect_variance / information).ravel(), excess, excess_variance)


def _excursions(
    position: FloatArray, spread: FloatArray, nodes: Nodes, information: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of I (mu_t - mu*)**2, averaged over the steps, under the posterior of mu*."""
    mean, variance = nodes.moments(nodes.mean, nodes.variance)
    offset = position - mean
    square = (spread**2 + offset**2 + variance).reshape(information.shape)
    doubt = (2.0 * variance**2 + 4.0 * offset**2 * variance).reshape(information.shape)
    return information * square, information**2 * doubt


def fisher_burn_in(model: Model | None) -> float:
    """Return the share of the steps that the tied posterior of a Fisher-scaled run leaves out by default.

    Longer with a noise variance, at first inflated by the weights' distance: docs/coverage.md.
    """
    return tuning.TUNING.variance_burn_in if isinstance(model, LinearRegression) else tuning.TUNING.fisher_burn_in


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
    share = np.asarray(run.expected(nodes.expectation(nodes.mean)[None, :]).clipped_share)[0]
    coupling, finding = coupling_findings(analysis)
    known = PosteriorDiagnostics(verdict=finding, expected_clipped_share=float(share), coupling_pvalue=coupling)
    coordinates = Coordinates(names, trace.statistics, None, trace.slope_score(release.sample_rate), coupled=True)
    return solved_posterior(analysis, start, coordinates, Solved(nodes, diagnostics=known))
