"""Fisher-scaled runs: public settings, the second regression of raw-scale gradients, and the tied input."""

from dataclasses import dataclass, fields

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.collapsed import SideRegression
from dpinfer.inference.trace.statistics import TraceStatistics, segment_statistics
from dpinfer.models import ExpectedGradients, LinearRegression, Model, expected_gradients
from dpinfer.models.base import sigmoid, softplus
from dpinfer.recipes import GradientSettings
from dpinfer.release import GradientTrace


@dataclass(frozen=True)
class SideSums:
    """Sums over the steps of ``response ~ N(h design, 1)``, the raw-scale regression in units of noise, (k,) each."""

    count: int  # number of steps
    # (k,)
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
    # raw_scale, gradients: (T, n): u_t and its noisy gradients, the steps used
    raw_scale: FloatArray,
    gradients: FloatArray,
    noise_stddev: FloatArray,  # (n,) or (T, n) array
    sample_rate: float,
    # (T, n) or 1: where the slope is known up to a factor that changes with the iterate
    information: FloatArray | float = 1.0,
) -> SideSums:
    """Sum up the regression of the raw-scale gradients on the precision that makes them linear.

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
    precision = (sample_rate / statistics.slope_stderr) ** 2
    slope = statistics.slope_score * statistics.slope_stderr / sample_rate
    return np.asarray((precision * slope + side.precision * side.slope) / np.sqrt(precision + side.precision))


_RATIOS = np.array([0.4, 0.7, 1.0])  # grid of u / v for clipping: weights' excursions make u smaller than v


@dataclass(frozen=True)
class TiedTrace:
    """Input of the tied posterior from one or many Fisher-scaled traces; k = runs * n, run by run."""

    # of the location gradients divided by the information at the iterate, k coordinates: loc, but for a noise
    # variance its value, in which the quotient is exactly linear
    statistics: TraceStatistics
    side: SideSums | None  # of the raw-scale gradients; None for aligned gradients, which have none
    # (k,): mean of s_t**2 over the steps; 0 for aligned gradients, whose positions already are draws from q
    scale_square: FloatArray
    # last_position, last_spread: (k,): mean and spread of the positions with the weights of the run's last
    # coordinate: where its steps find the others
    last_position: FloatArray
    last_spread: FloatArray
    # whole_statistics, whole_side: the same with (nearly) all steps: they estimate the iterate's excursions, since
    # the iterate depends on the steps before the burn-in
    whole_statistics: TraceStatistics
    whole_side: SideSums | None

    @classmethod
    def from_release(cls, release: GradientTrace, model: Model, burn_in: int, *, n_threads: int = 0) -> "TiedTrace":
        """Take the statistics of a Fisher-scaled release: all steps from `burn_in` on, and from 6% of them on.

        `release`: with ``settings["scaling"] == "fisher"``: its grad_scale holds I**(-1/2) for loc.  `model`: that of
        the release.
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
        whole_statistics, whole_side = part(min(burn_in, int(tuning.TUNING.whole_trace * steps)))
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
    """The public settings of Fisher-scaled runs that their posterior needs."""

    model: Model
    n_records: int
    sample_rate: float
    noise_multiplier: float
    max_grad_norm: float
    raw_ratio: float
    # prior standard deviation of log(eta / N), where eta is the Hessian over the model's expected information: how
    # far the public second moments of the features may be off
    tolerance: float

    @classmethod
    def from_release(cls, release: GradientTrace, model: Model) -> "FisherRun":
        """Return the settings of a Fisher-scaled release.

        Raises ValueError if the release lacks one.
        """
        if release.n_records is None or release.grad_scale is None or release.max_grad_norm is None:
            raise ValueError(
                "release must hold its model, n_records, grad_scale and max_grad_norm: it is Fisher-scaled"
            )
        settings = GradientSettings.of_release(release)
        if settings.raw_ratio is None or settings.tolerance is None:
            raise ValueError("release must hold raw_ratio and tolerance in its settings: it is Fisher-scaled")
        return cls(
            model=model,
            n_records=release.n_records,
            sample_rate=release.sample_rate,
            noise_multiplier=float(release.noise_multiplier or 0.0),
            max_grad_norm=release.max_grad_norm,
            raw_ratio=settings.raw_ratio,
            tolerance=settings.tolerance,
        )

    def expected(
        self,
        positions: FloatArray,  # (runs, n)
        # (runs,): for a model with a noise variance: that of the residuals over that of the iterates
        ratio: FloatArray | None = None,
    ) -> ExpectedGradients:
        """Return the expected gradients at positions (runs, n), with a leading axis: runs, or 1 if they agree."""

        def at(row: FloatArray, share: float = 1.0) -> ExpectedGradients:
            return expected_gradients(
                self.model, row, max_grad_norm=self.max_grad_norm, raw_ratio=self.raw_ratio, dispersion_ratio=share
            )

        if not getattr(self.model, "pivotal", False):
            return _stacked([at(row) for row in positions])
        centre = self.model.prior_moments()[0]
        if ratio is None:
            return _stacked([at(centre)])
        table = [at(centre, share) for share in _RATIOS]

        from scipy import interpolate  # slow to import, so only if needed

        def between(name: str) -> FloatArray:
            values = np.array([getattr(item, name) for item in table])
            return np.asarray(interpolate.make_interp_spline(_RATIOS, values, k=1)(np.clip(ratio, *_RATIOS[[0, -1]])))

        return ExpectedGradients(*(between(item.name) for item in fields(ExpectedGradients)))


def _stacked(rows: list[ExpectedGradients]) -> ExpectedGradients:
    return ExpectedGradients(
        *(np.array([getattr(row, item.name) for row in rows]) for item in fields(ExpectedGradients))
    )
