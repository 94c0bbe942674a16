"""The tied posterior: one unknown per parameter, both the Hessian in the location and the variational precision."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpinfer.errors import NumericalError
from dpinfer.inference.collapsed import CollapsedProblems, Nodes, SideRegression, collapsed_nodes
from dpinfer.inference.priors import CoordinatePriors
from dpinfer.inference.statistics import TraceStatistics, segment_statistics
from dpinfer.models import ExpectedGradients, InformedModel, Model, expected_gradients
from dpinfer.models.bijectors import sigmoid, softplus
from dpinfer.release import Release

__all__ = [
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
        Of the location gradients divided by the information at the iterate, k coordinates.
    side : SideSums
        Of the raw-scale gradients.
    scale_square : (k,) array
        Mean of s_t**2 over the steps.
    whole_statistics, whole_side : TraceStatistics, SideSums
        The same with (nearly) all steps: where the iterate's excursions are judged, for the iterate remembers what the
        steps before the burn-in taught it.
    """

    statistics: TraceStatistics
    side: SideSums
    scale_square: FloatArray
    whole_statistics: TraceStatistics
    whole_side: SideSums

    @classmethod
    def from_release(cls, release: Release, burn_in: int, *, n_threads: int = 0) -> "TiedTrace":
        """Take the statistics of a Fisher-scaled release: all steps from `burn_in` on, and from 6% of them on.

        Parameters
        ----------
        release : Release
            With ``settings["scaling"] == "fisher"``: its grad_scale holds I**(-1/2) for loc.
        burn_in : int
        n_threads : int
        """
        n, steps = release.n_params, release.n_steps
        scale = np.broadcast_to(np.asarray(release.grad_scale), (steps, 2 * n))
        noise = np.broadcast_to(release.noise_stddev, (steps, 2 * n))
        information = scale[:, :n] ** -2.0
        gradients = np.ascontiguousarray(release.noisy_gradients[:, :n] / information)
        stddev = np.ascontiguousarray(noise[:, :n] / information)
        positions = np.ascontiguousarray(release.positions[:, :n])
        raw = release.positions[:, n:]

        def part(first: int) -> tuple[TraceStatistics, SideSums]:
            boundaries = np.array([first, steps], dtype=np.int64)
            segments, reference = segment_statistics(positions, gradients, stddev, boundaries, n_threads=n_threads)
            sums = raw_scale_sums(
                raw[first:],
                release.noisy_gradients[first:, n:],
                noise[first:, n:],
                release.sample_rate,
                information[first:],
            )
            return TraceStatistics(steps - first, reference, *segments[0]), sums

        statistics, side = part(burn_in)
        whole_statistics, whole_side = part(min(burn_in, int(WHOLE_TRACE * steps)))
        scale_square = np.mean(softplus(raw[burn_in:]) ** 2, axis=0)
        return cls(statistics, side, scale_square, whole_statistics, whole_side)


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

    def expected(self, positions: FloatArray) -> list[ExpectedGradients]:
        """Return the expected gradients at each position (runs, n); only one where they do not depend on it."""
        if getattr(self.model, "pivotal", False):
            positions = self.model.prior_moments()[0][None, :]
        return [
            expected_gradients(self.model, row, max_grad_norm=self.max_grad_norm, raw_ratio=self.raw_ratio)
            for row in positions
        ]


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
    moved = trace.side.design_square > 0.0
    if not np.all(moved & np.isfinite(statistics.xx)):
        name = names[int(np.argmin(moved))]
        raise NumericalError(
            f"the scale of {name!r} vanished or the trace of it left the finite numbers: the noise is too large for "
            "this number of records and steps"
        )
    n = run.model.n_params
    shape = (statistics.position_mean.shape[0] // n, n)
    positions = statistics.position_mean.reshape(shape)
    expected = run.expected(positions) if correct else None
    width = statistics.position_mean.shape[0]

    def solve(part: TraceStatistics, side: SideSums, shift: FloatArray | float = 0.0) -> Nodes:
        factor: FloatArray | float = 1.0
        shift_raw: FloatArray | float = 0.0
        gradient_mean = part.gradient_mean - shift
        if expected is not None:
            unit = run.sample_rate * run.n_records / (run.noise_multiplier * run.max_grad_norm)
            bias = _spread(np.stack([item.clip_bias for item in expected]), shape[0]) * unit
            factor = _spread(np.stack([item.clip_slope for item in expected]), shape[0]).ravel()
            shift_raw = bias[:, n:].ravel()
            typical_noise = part.reference_stddev * np.sqrt(part.count / part.weight)
            gradient_mean = gradient_mean + bias[:, :n].ravel() * typical_noise
        loc, scale = optimum or (part.position_mean, _OPTIMUM_SPREADS * part.spread)
        zero = np.zeros(width)
        priors = CoordinatePriors(loc, scale, zero, zero, zero + np.log(run.n_records), zero + run.tolerance)
        problems = CollapsedProblems.build(
            replace(part, gradient_mean=gradient_mean),
            priors,
            run.sample_rate * factor,
            extra_noise=extra_noise,
            side=side.regression(shift_raw),
        )
        return collapsed_nodes(problems, names, n_threads=n_threads)

    nodes = solve(statistics, trace.side)
    added = np.zeros(width)
    if expected is not None:
        whole = solve(trace.whole_statistics, trace.whole_side)
        shift, added = _bend(nodes, whole, trace, run, expected, shape)
        nodes = solve(statistics, trace.side, shift)
    centre = nodes.expectation(nodes.mean).reshape(shape)
    information = np.maximum(run.model.information(centre), 1e-12).ravel()
    return replace(
        nodes,
        hessian=nodes.hessian * nodes.spread_to_nodes(information),
        variance=nodes.variance + nodes.spread_to_nodes(added),
    )


def _spread(values: FloatArray, runs: int) -> FloatArray:
    """Repeat the one row that all runs share."""
    return np.broadcast_to(values, (runs, *values.shape[1:])) if values.shape[0] == 1 else values


def _bend(
    nodes: Nodes,
    whole: Nodes,
    trace: TiedTrace,
    run: FisherRun,
    expected: list[ExpectedGradients],
    shape: tuple[int, int],
) -> tuple[FloatArray, FloatArray]:
    """Return the mean of the scaled gradients that excursions of the iterate cause, and what it adds to the variance.

    To second order ``E_q g_k / I_k`` is off its linear part by kappa N / 2 times the sum over j of
    ``bend_kj / sqrt(I_k)`` times ``I_j ((mu_t - mu*)_j**2 + s_tj**2 - 1 / h_j)``, less, as the divisor I_k changes with
    mu_t, ``2 information_slope_k / sqrt(I_k)`` times ``I_k (mu_t - mu*)_k**2``.  The information is taken at the mean
    of the positions.
    """
    statistics, model = trace.statistics, run.model
    runs, n = shape
    at = np.maximum(model.information(statistics.position_mean.reshape(shape)), 1e-12)  # type: ignore[attr-defined]
    moved, doubt = _excursions(statistics, whole, at)
    own, _ = _excursions(statistics, nodes, at)  # of the coordinate that bends, by the steps that are linear in it
    precision = nodes.expectation(1.0 / nodes.hessian).reshape(shape) / at  # E[1 / h]
    widened = at * (trace.scale_square.reshape(shape) - precision)
    bend = _spread(np.stack([item.bend for item in expected]), runs)
    slope = _spread(np.stack([item.information_slope for item in expected]), runs)
    others = bend * (1.0 - np.eye(n))
    itself = np.einsum("rkk->rk", bend)
    effect = 0.5 * (np.einsum("rkj,rj->rk", others, moved) + itself * own) - slope * own
    effect += 0.5 * np.einsum("rkj,rj->rk", bend, widened)
    effect_variance = 0.25 * np.einsum("rkj,rj->rk", others**2, doubt)
    kappa_n = run.sample_rate * run.n_records
    return (kappa_n * effect / np.sqrt(at)).ravel(), (effect_variance / at).ravel()


def _excursions(statistics: TraceStatistics, nodes: Nodes, at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of I (mu_t - mu*)**2, averaged over the steps, under the posterior of mu*."""
    mean, variance = nodes.moments(nodes.mean, nodes.variance)
    offset = statistics.position_mean - mean
    square = (statistics.spread**2 + offset**2 + variance).reshape(at.shape)
    doubt = (2.0 * variance**2 + 4.0 * offset**2 * variance).reshape(at.shape)
    return at * square, at**2 * doubt
