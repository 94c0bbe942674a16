"""What Theorems 2 and 3 of NA-DPVI (2025) say of a run: how far its iterate wanders, how well it tells a Hessian."""

import math
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray


@dataclass(frozen=True)
class TraceTheory:
    """Theorems 2 and 3 for a recursion with constant learning rates and a diagonal Hessian, k coordinates.

    **Privacy.** Post-processing of a Release, or computed from public numbers.

    Parameters
    ----------
    curvature : (k,) array
        Hessian of the full-data loss, positive.
    learning_rate, noise_stddev : (k,) array
        Of each coordinate's step; of the noise in its gradient.
    sample_rate : float in (0, 1]
    n_steps : int
        Steps used, T - T*.
    radius : float, optional
        r*: how far from the optimum the loss is taken as quadratic; by default :attr:`distance`.

    Notes
    -----
    Appendices E and F, with a rate and a noise for each coordinate: ``lambda sigma**2 C**2 Tr(A^-1)`` becomes a sum
    over the coordinates, and ``d sigma**2 C**2`` the sum of the squared noises.  Theorem 2 is that of eq. A22, which
    bounds a standard deviation; eq. A9 prints a variance in its place.
    """

    curvature: FloatArray
    learning_rate: FloatArray
    noise_stddev: FloatArray
    sample_rate: float
    n_steps: int
    radius: float | None = None

    @property
    def distance(self) -> float:
        """Stationary root mean square distance from the optimum, in continuous time (eq. A32)."""
        variance = self.learning_rate * self.noise_stddev**2 / (2.0 * self.sample_rate * self.curvature)
        return float(np.sqrt(np.sum(variance)))

    @property
    def share_of_limit(self) -> float:
        """Learning rate over the limit of Theorem 3 (eq. A10)."""
        return (self.distance / (self.radius or self.distance)) ** 2

    @property
    def excess(self) -> float:
        """By which share the largest variance of the recursion exceeds the continuous one; infinite if it diverges."""
        step = float(np.max(self.learning_rate * self.sample_rate * self.curvature))
        return math.inf if step >= 2.0 else 1.0 / (1.0 - 0.5 * step) - 1.0

    @property
    def stddev_bound(self) -> float:
        """What the largest standard error of a Hessian's diagonal is at least (Theorem 2)."""
        noise = float(np.sqrt(np.sum(self.noise_stddev**2) / self.n_steps))
        return noise / (self.sample_rate * (self.radius or self.distance))

    def __str__(self) -> str:
        if self.radius is None:
            lines = [
                f"Theorem 3: at these learning rates the iterate wanders {self.distance:.3g} from the optimum (root "
                "mean square); the loss must be quadratic that far."
            ]
        else:
            where = "above" if self.share_of_limit >= 1.0 else "below"
            lines = [
                f"Theorem 3: the learning rate is {self.share_of_limit:.2g} times its limit, {where} it, for a loss "
                f"that is quadratic within {self.radius:.3g} of the optimum, the farthest iterate."
            ]
        if math.isinf(self.excess):
            lines.append("The recursion diverges: a step is longer than twice the way to the optimum.")
        else:
            lines.append(
                f"The variance of the recursion is up to {self.excess:.2%} larger than that of the Ornstein-Uhlenbeck "
                "process."
            )
        lines.append(
            f"Theorem 2: after {self.n_steps} steps the largest standard error of a Hessian is at least "
            f"{self.stddev_bound:.3g}; the Hessians are {np.min(self.curvature):.3g} to {np.max(self.curvature):.3g}."
        )
        return "\n".join(lines)
