"""Sufficient statistics of the trace regression, of a size that does not depend on the length of the trace."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference import _native


@dataclass(frozen=True)
class TraceStatistics:
    """Weighted sufficient statistics of ``g ~ N(b (x - optimum), tau_t**2)``, one regression per coordinate.

    NA-DPVI (2025), eq. 20 with A diagonal; the merge of chunks is Chan, Golub and LeVeque (1983).
    """

    count: int  # number of steps n
    # (k,): the noise standard deviation tau that weight 1 belongs to; steps have weights ``(tau / tau_t)**2``
    reference_stddev: FloatArray
    weight: FloatArray  # (k,): sum of the weights W; n when tau does not change
    # position_mean, gradient_mean: (k,)
    position_mean: FloatArray
    gradient_mean: FloatArray
    # xx, xg, gg: (k,): centred sums S_xx, S_xg, S_gg
    xx: FloatArray
    xg: FloatArray
    gg: FloatArray

    @cached_property
    def spread(self) -> FloatArray:
        """D, the weighted standard deviation of the positions."""
        return np.sqrt(self.xx / self.weight)

    @cached_property
    def slope_stderr(self) -> FloatArray:
        """Standard error tau / sqrt(S_xx) of the least-squares slope."""
        return self.reference_stddev / np.sqrt(self.xx)

    @cached_property
    def slope_score(self) -> FloatArray:
        """The least-squares slope in standard errors: how well the Hessian is identified."""
        return self.xg / (self.reference_stddev * np.sqrt(self.xx))

    @cached_property
    def residual(self) -> FloatArray:
        """Residual sum of squares in units of tau**2: chi-square with n - 2 degrees of freedom without extra noise."""
        squares = np.maximum(self.gg - self.xg**2 / self.xx, 0.0)
        return np.asarray(squares / self.reference_stddev**2)

    @cached_property
    def mean_score(self) -> FloatArray:
        """The mean gradient in units of its standard deviation tau / sqrt(W)."""
        return np.asarray(self.gradient_mean * np.sqrt(self.weight) / self.reference_stddev)

    @cached_property
    def noise_ratio(self) -> FloatArray:
        """Residual standard deviation over tau: 1 when the privacy noise is all there is; nan below 3 steps."""
        degrees = self.count - 2
        return np.sqrt(self.residual / degrees) if degrees > 0 else np.full_like(self.weight, np.nan)

    def take(self, coordinates: slice) -> "TraceStatistics":
        """Return the statistics of some coordinates."""
        return TraceStatistics(
            self.count,
            *(
                getattr(self, name)[coordinates]
                for name in ("reference_stddev", "weight", "position_mean", "gradient_mean", "xx", "xg", "gg")
            ),
        )

    @property
    def moving(self) -> npt.NDArray[np.bool_]:
        """Coordinates that move, (k,): of the others no slope can be learnt."""
        return np.asarray(self.spread > 1e-12 * np.abs(self.position_mean))

    def check_moving(self, names: tuple[str, ...]) -> None:
        """Raise a NumericalError that names the first coordinate that never moves, if there is one."""
        still = ~self.moving
        if np.any(still):
            name = names[int(np.argmax(still))]
            raise NumericalError(
                f"the positions of {name!r} do not change after the burn-in, so the trace has no information about its "
                "Hessian; give it a positive learning rate or a shorter burn-in"
            )


def segment_statistics(
    # positions, gradients: (T, k) float64
    positions: FloatArray,
    gradients: FloatArray,
    noise_stddev: FloatArray,  # (k,) or (T, k) float64
    # (segments + 1,) int64: segment s holds the steps ``boundaries[s] <= t < boundaries[s + 1]``
    boundaries: npt.NDArray[np.int64],
    *,
    n_threads: int = 0,
) -> tuple[FloatArray, FloatArray]:
    """Return statistics of consecutive segments, (segments, 6, k), and the noise at the first step used, (k,).

    A segment's are weight, position mean, gradient mean, S_xx, S_xg and S_gg.
    """
    first = int(boundaries[0])
    reference = noise_stddev if noise_stddev.ndim == 1 else noise_stddev[first]
    reference = np.ascontiguousarray(reference)
    segments = _native.trace_statistics(positions, gradients, noise_stddev, reference, boundaries, n_threads)
    return segments, reference


def merge_segments(segments: FloatArray) -> FloatArray:
    """Merge statistics of segments (segments, 6, k) into one (6, k) by the pooled formulas.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.array([[2.0], [1.0], [0.0], [2.0], [0.0], [0.0]])
    >>> merge_segments(np.stack([one, one]))[[0, 3], 0].tolist()
    [4.0, 4.0]
    """
    weight, mx, mg, xx, xg, gg = (segments[:, field] for field in range(6))
    total = weight.sum(axis=0)
    share = weight / total
    mean_x, mean_g = (share * mx).sum(axis=0), (share * mg).sum(axis=0)
    dx, dg = mx - mean_x, mg - mean_g
    return np.stack(
        [
            total,
            mean_x,
            mean_g,
            (xx + weight * dx * dx).sum(axis=0),
            (xg + weight * dx * dg).sum(axis=0),
            (gg + weight * dg * dg).sum(axis=0),
        ]
    )
