"""The tied posterior: one unknown per parameter, both the Hessian in the location and the variational precision."""

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
from scipy import interpolate

from dpinfer.errors import NumericalError
from dpinfer.inference.scales.noise_variance import VarianceSlope, with_variance_prior
from dpinfer.inference.trace.collapsed import CollapsedProblems, Nodes, SideRegression, collapsed_nodes
from dpinfer.inference.trace.priors import CoordinatePriors
from dpinfer.inference.trace.statistics import TraceStatistics, segment_statistics
from dpinfer.models import (
    ExpectedGradients,
    InformedModel,
    LinearRegression,
    Model,
    dispersion_clipping,
    expected_gradients,
)
from dpinfer.models.bijectors import sigmoid, softplus, softplus_inverse
from dpinfer.release import Release

__all__ = [
    "VARIANCE_TOLERANCE",
    "WHOLE_TRACE",
    "FisherRun",
    "SideSums",
    "TiedTrace",
    "fisher_tied_nodes",
    "pooled_slope_score",
    "raw_scale_sums",
]

FloatArray = npt.NDArray[np.float64]

_OPTIMUM_SPREADS = 10.0
VARIANCE_TOLERANCE = 0.02  # of the slope in the noise variance, which is the public number of records
_SMALLEST_VARIANCE = 1e-12
_RATIOS = np.array([0.4, 0.7, 1.0])
WHOLE_TRACE = 0.06  # the share of the first steps that even the judgement of excursions leaves out


@dataclass(frozen=True)
class SideSums:
    """Sums over the steps of the raw-scale regression ``response ~ N(h design, 1)``, in units of the noise, (k,) each.

    Parameters
    ----------
    count : int
        Number of steps.
    design_square, product, response_square, design, response : (k,) arrays
    """

    count: int
    design_square: FloatArray
    product: FloatArray
    response_square: FloatArray
    design: FloatArray
    response: FloatArray

    def regression(self, shift: FloatArray | float = 0.0) -> SideRegression:
        """Return the regression after adding `shift` to every response."""
        product = self.product + shift * self.design
        square = self.response_square + 2.0 * shift * self.response + self.count * np.square(shift)
        slope = product / self.design_square
        residual = np.maximum(square - product * slope, 0.0)
        return SideRegression(self.count, slope, self.design_square, residual)


def raw_scale_sums(
    raw_scale: FloatArray,
    gradients: FloatArray,
    noise_stddev: FloatArray,
    sample_rate: float,
    information: FloatArray | float = 1.0,
) -> SideSums:
    """Sum up the regression of the raw-scale gradients on the precision that makes them linear.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    raw_scale, gradients : (T, n) arrays
        u_t and its noisy gradients, the steps used.
    noise_stddev : (n,) or (T, n) array
    sample_rate : float
    information : (T, n) array or 1
        Where the slope is known up to a factor that changes with the iterate.

    Returns
    -------
    SideSums

    Notes
    -----
    At the mean-field optimum the precision 1 / s**2 is the Hessian's diagonal h, and with a quadratic loss the gradient
    is ``g_u ~ N(kappa s' (h s_t - 1 / s_t), tau_u**2)``, s = softplus(u), s' its derivative: linear in h wherever u is,
    so u need not have converged.  With h = eta I(phi_t) it is linear in eta.
    """
    scale, slope = softplus(raw_scale), sigmoid(raw_scale)
    design = sample_rate * slope * scale * information / noise_stddev
    response = (gradients + sample_rate * slope / scale) / noise_stddev
    return SideSums(
        raw_scale.shape[0],
        np.sum(design**2, axis=0),
        np.sum(design * response, axis=0),
        np.sum(response**2, axis=0),
        np.sum(design, axis=0),
        np.sum(response, axis=0),
    )


def pooled_slope_score(side: SideRegression, statistics: TraceStatistics, sample_rate: float) -> FloatArray:
    """Return h in standard errors when both regressions are pooled: how well it is identified, (n,)."""
    own = (sample_rate / statistics.slope_stderr) ** 2
    slope = statistics.slope_score * statistics.slope_stderr / sample_rate
    return np.asarray((own * slope + side.precision * side.slope) / np.sqrt(own + side.precision))


@dataclass(frozen=True)
class TiedTrace:
    """What the tied posterior needs of one or many Fisher-scaled traces; k = runs * n, run by run.

    Parameters
    ----------
    statistics : TraceStatistics
        Of the location gradients divided by the information at the iterate, k coordinates: loc, but for a noise
        variance its value, in which the quotient is exactly linear.
    side : SideSums or None
        Of the raw-scale gradients; None for aligned gradients, which have none.
    scale_square : (k,) array
        Mean of s_t**2 over the steps; 0 for aligned gradients, whose positions already are draws from q.
    last_position, last_spread : (k,) arrays
        Mean and spread of the positions with the weights of the run's last coordinate: where its steps find the others.
    whole_statistics, whole_side : TraceStatistics, SideSums or None
        The same with (nearly) all steps: where the iterate's excursions are judged, for the iterate remembers what the
        steps before the burn-in taught it.
    """

    statistics: TraceStatistics
    side: SideSums | None
    scale_square: FloatArray
    last_position: FloatArray
    last_spread: FloatArray
    whole_statistics: TraceStatistics
    whole_side: SideSums | None

    @classmethod
    def from_release(cls, release: Release, model: Model, burn_in: int, *, n_threads: int = 0) -> "TiedTrace":
        """Take the statistics of a Fisher-scaled release: all steps from `burn_in` on, and from 6% of them on.

        Parameters
        ----------
        release : Release
            With ``settings["scaling"] == "fisher"``: its grad_scale holds I**(-1/2) for loc.
        model : Model
            That of the release.
        burn_in : int
        n_threads : int
        """
        n, steps = release.n_params, release.n_steps
        aligned = release.gradient == "aligned"
        shape = release.noisy_gradients.shape
        scale = np.broadcast_to(np.asarray(release.grad_scale), shape)
        noise = np.broadcast_to(release.noise_stddev, shape)
        information = scale[:, :n] ** -2.0
        gradients = np.ascontiguousarray(release.noisy_gradients[:, :n] / information)
        stddev = np.ascontiguousarray(noise[:, :n] / information)
        positions = np.array(release.positions[:, :n], order="C")
        raw = release.positions[:, n:]
        if isinstance(model, LinearRegression):
            rho = release.positions[:, n - 1]
            chain = sigmoid(rho)
            positions[:, -1] = softplus(rho) if aligned else model.harmonic_variance(rho, softplus(raw[:, -1]))
            gradients[:, -1] *= chain
            stddev[:, -1] *= chain

        def part(first: int) -> tuple[TraceStatistics, SideSums | None]:
            boundaries = np.array([first, steps], dtype=np.int64)
            segments, reference = segment_statistics(positions, gradients, stddev, boundaries, n_threads=n_threads)
            statistics = TraceStatistics(steps - first, reference, *segments[0])
            if aligned:
                return statistics, None
            return statistics, raw_scale_sums(
                raw[first:],
                release.noisy_gradients[first:, n:],
                noise[first:, n:],
                release.sample_rate,
                information[first:],
            )

        statistics, side = part(burn_in)
        whole_statistics, whole_side = part(min(burn_in, int(WHOLE_TRACE * steps)))
        weight = stddev[burn_in:, -1] ** -2.0
        weight /= weight.sum()
        last_position = weight @ positions[burn_in:]
        return cls(
            statistics=statistics,
            side=side,
            scale_square=np.zeros(n) if aligned else np.mean(softplus(raw[burn_in:]) ** 2, axis=0),
            last_position=last_position,
            last_spread=np.sqrt(weight @ np.square(positions[burn_in:] - last_position)),
            whole_statistics=whole_statistics,
            whole_side=whole_side,
        )

    def slope_score(self, sample_rate: float) -> FloatArray:
        """Return how well the Hessian is identified, in standard errors, (k,)."""
        if self.side is None:
            return self.statistics.slope_score
        return pooled_slope_score(self.side.regression(), self.statistics, sample_rate)


@dataclass(frozen=True)
class FisherRun:
    """The public settings of Fisher-scaled runs that their posterior needs.

    Parameters
    ----------
    model : Model
    n_records : int
    sample_rate, noise_multiplier, max_grad_norm, raw_ratio : float
    tolerance : float
        Prior standard deviation of log(eta / N), where eta is the Hessian over the model's expected information: how
        far the public second moments of the features may be off.
    """

    model: Model
    n_records: int
    sample_rate: float
    noise_multiplier: float
    max_grad_norm: float
    raw_ratio: float
    tolerance: float

    @classmethod
    def from_release(cls, release: Release, model: Model) -> "FisherRun":
        """Return the settings of a Fisher-scaled release.

        Raises
        ------
        ValueError
            If the release lacks one.
        """
        if release.n_records is None or release.grad_scale is None or release.max_grad_norm is None:
            raise ValueError(
                "release must hold its model, n_records, grad_scale and max_grad_norm: it is Fisher-scaled"
            )
        return cls(
            model=model,
            n_records=release.n_records,
            sample_rate=release.sample_rate,
            noise_multiplier=float(release.noise_multiplier or 0.0),
            max_grad_norm=release.max_grad_norm,
            raw_ratio=float(release.settings["raw_ratio"]),
            tolerance=float(release.settings["tolerance"]),
        )

    def expected(self, positions: FloatArray, ratio: FloatArray | None = None) -> ExpectedGradients:
        """Return the expected gradients at positions (runs, n), with a leading axis: runs, or 1 where they agree.

        Parameters
        ----------
        positions : (runs, n) array
        ratio : (runs,) array, optional
            For a model with a noise variance: that of the residuals over that of the iterates.
        """

        def at(row: FloatArray, share: float = 1.0) -> ExpectedGradients:
            return expected_gradients(
                self.model,
                row,
                max_grad_norm=self.max_grad_norm,
                raw_ratio=self.raw_ratio,
                dispersion_ratio=share,
            )

        if not getattr(self.model, "pivotal", False):
            return _stacked([at(row) for row in positions])
        centre = self.model.prior_moments()[0]
        if ratio is None:
            return _stacked([at(centre)])
        table = [at(centre, share) for share in _RATIOS]

        def between(name: str) -> FloatArray:
            values = np.array([getattr(item, name) for item in table])
            return np.asarray(interpolate.make_interp_spline(_RATIOS, values, k=1)(np.clip(ratio, *_RATIOS[[0, -1]])))

        return ExpectedGradients(*(between(item.name) for item in fields(ExpectedGradients)))


def _stacked(rows: list[ExpectedGradients]) -> ExpectedGradients:
    return ExpectedGradients(
        *(np.array([getattr(row, item.name) for row in rows]) for item in fields(ExpectedGradients))
    )


def fisher_tied_nodes(
    trace: TiedTrace,
    run: FisherRun,
    names: tuple[str, ...],
    *,
    extra_noise: bool = True,
    optimum: tuple[FloatArray, FloatArray] | None = None,
    correct: bool = True,
    n_threads: int = 0,
) -> Nodes:
    """Integrate the tied posterior of Fisher-scaled traces, corrected for clipping and for the bend of the loss.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    trace : TiedTrace
        k coordinates of one or more runs.
    run : FisherRun
    names : tuple of k str
    extra_noise : bool
        Whether the gradients may be noisier than the privacy noise.
    optimum : pair of (k,) arrays, optional
        Location and scale of the optimum's prior; by default wide against the trace.
    correct : bool
        Whether to correct for clipping and for the second-order effect of the iterate's excursions.
    n_threads : int
        0: as many as there are.

    Returns
    -------
    Nodes
        With the Hessian h = eta I(optimum) at every node.

    Raises
    ------
    NumericalError
        If a scale vanished, or the quadrature did not converge for some coordinate.

    Notes
    -----
    The slope of the loss at the iterate is eta_j I_j(phi_t), eta_j unknown with log eta_j ~ N(log N, tolerance**2), so
    that gradients divided by I_j(phi_t) have a constant slope.  Derivation, and what the two corrections are:
    docs/derivations/noise-aware-posterior.md, "Fisher-scaled traces".
    """
    statistics = trace.statistics
    if not isinstance(run.model, InformedModel):
        raise TypeError(f"model must know its expected information, got {type(run.model).__name__}")
    moved = np.ones(statistics.xx.shape, dtype=bool) if trace.side is None else trace.side.design_square > 0.0
    if not np.all(moved & np.isfinite(statistics.xx)):
        name = names[int(np.argmin(moved))]
        raise NumericalError(
            f"the scale of {name!r} vanished or the trace of it left the finite numbers: the noise is too large for "
            "this number of records and steps"
        )
    n = run.model.n_params
    shape = (statistics.position_mean.shape[0] // n, n)
    model = run.model if isinstance(run.model, LinearRegression) else None
    at = statistics.position_mean.reshape(shape)
    if model is not None:
        at = _with_last(at, softplus_inverse(np.maximum(at[:, -1], _SMALLEST_VARIANCE)))
    width = statistics.position_mean.shape[0]
    slope: VarianceSlope | None = None
    if model is not None:
        clipping = dispersion_clipping(model, run.max_grad_norm, run.raw_ratio) if correct else None
        level = statistics.gradient_mean.reshape(shape)[:, -1] / (run.sample_rate * run.n_records)
        slope = VarianceSlope.at(clipping, statistics.position_mean.reshape(shape)[:, -1], level)
    expected = run.expected(at, None if slope is None else slope.ratio) if correct else None
    tolerance = np.full(shape, run.tolerance)
    if model is not None:
        tolerance[:, -1] = VARIANCE_TOLERANCE

    def solve(part: TraceStatistics, side: SideSums | None, shift: FloatArray | float = 0.0) -> Nodes:
        factor, bias_loc = np.ones(shape), np.zeros(shape)
        shift_raw: FloatArray | float = 0.0
        if expected is not None:
            unit = run.sample_rate * run.n_records / (run.noise_multiplier * run.max_grad_norm)
            bias = _spread(expected.clip_bias, shape[0]) * unit
            factor = _spread(expected.clip_slope, shape[0])
            bias_loc, shift_raw = bias[:, :n], bias[:, n:].ravel()
        if slope is not None:  # clipping moves the zero of its gradients, by a factor that is taken out at the end
            factor, bias_loc = _with_last(factor, slope.gain), _with_last(bias_loc, np.zeros(shape[0]))
        typical_noise = part.reference_stddev * np.sqrt(part.count / part.weight)
        gradient_mean = part.gradient_mean - shift + bias_loc.ravel() * typical_noise
        loc, scale = part.position_mean, _OPTIMUM_SPREADS * part.spread
        if optimum is not None:
            own = np.tile(np.arange(n) < n - (model is not None), shape[0])  # a variance has its own prior, at the end
            loc, scale = np.where(own, optimum[0], loc), np.where(own, optimum[1], scale)
        zero = np.zeros(width)
        priors = CoordinatePriors(loc, scale, zero, zero, zero + np.log(run.n_records), tolerance.ravel())
        problems = CollapsedProblems.build(
            replace(part, gradient_mean=gradient_mean),
            priors,
            run.sample_rate * factor.ravel(),
            extra_noise=extra_noise,
            side=None if side is None else side.regression(shift_raw),
        )
        return collapsed_nodes(problems, names, n_threads=n_threads)

    nodes = solve(statistics, trace.side)
    added = np.zeros(width)
    excess = excess_variance = np.zeros(shape[0])
    if expected is not None:
        whole = solve(trace.whole_statistics, trace.whole_side)
        shift, added, excess, excess_variance = _bend(nodes, whole, trace, run, expected, at)
        nodes = solve(statistics, trace.side, shift)
    nodes = replace(nodes, variance=nodes.variance + nodes.spread_to_nodes(added))
    if model is not None and slope is not None:
        nodes = with_variance_prior(nodes, model, slope.stretch, excess, excess_variance)
    centre = nodes.expectation(nodes.mean).reshape(shape)
    information = np.maximum(run.model.information(centre), 1e-12).ravel()
    hessian = nodes.hessian * nodes.spread_to_nodes(information)
    if expected is None:
        return replace(nodes, hessian=hessian)
    # The optimum of clipped gradients lies farther from the truth than that of the likelihood.
    widening = _spread(expected.clip_spread, shape[0]) - 1.0
    if slope is not None:
        widening = _with_last(widening, slope.spread - 1.0)
    variance = nodes.variance + nodes.spread_to_nodes(np.maximum(widening, 0.0).ravel()) / hessian
    return replace(nodes, hessian=hessian, variance=variance)


def _with_last(values: FloatArray, last: FloatArray) -> FloatArray:
    """Return a copy of (runs, n) values with another last column."""
    changed = values.copy()
    changed[:, -1] = last
    return changed


def _spread(values: FloatArray, runs: int) -> FloatArray:
    """Repeat the one row that all runs share."""
    return np.broadcast_to(values, (runs, *values.shape[1:])) if values.shape[0] == 1 else values


def _bend(
    nodes: Nodes,
    whole: Nodes,
    trace: TiedTrace,
    run: FisherRun,
    expected: ExpectedGradients,
    at: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the mean of the scaled gradients that excursions of the iterate cause, and what it adds to the variance.

    To second order ``E_q g_k / I_k`` is off its linear part by kappa N / 2 times the sum over j of
    ``bend_kj / sqrt(I_k)`` times ``I_j ((mu_t - mu*)_j**2 + s_tj**2 - 1 / h_j)``, less, as the divisor I_k changes with
    mu_t, ``2 information_slope_k / sqrt(I_k)`` times ``I_k (mu_t - mu*)_k**2``.  The information is taken at the mean
    of the positions, `at`.  A noise variance is different: in its own value its gradient is linear, and excursions of
    the weights add exactly ``sum_j E[x_j**2] ((mu_t - mu*)_j**2 + s_tj**2 - 1 / h_j)`` to the variance of the
    residuals.  Mean and variance of that sum are the last two arrays.
    """
    statistics, model = trace.statistics, run.model
    runs, n = at.shape
    information = np.maximum(model.information(at), 1e-12)  # type: ignore[attr-defined]
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
    return shift, (effect_variance / information).ravel(), excess, excess_variance


def _excursions(
    position: FloatArray, spread: FloatArray, nodes: Nodes, information: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of I (mu_t - mu*)**2, averaged over the steps, under the posterior of mu*."""
    mean, variance = nodes.moments(nodes.mean, nodes.variance)
    offset = position - mean
    square = (spread**2 + offset**2 + variance).reshape(information.shape)
    doubt = (2.0 * variance**2 + 4.0 * offset**2 * variance).reshape(information.shape)
    return information * square, information**2 * doubt
