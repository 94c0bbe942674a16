"""The gradient-trace release: the whole noisy trace of DP-SGD, its noise model and its privacy event."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import Range, Shape, check_choice, check_integer
from dpinfer.accounting import NonPrivateEvent, SelfComposed, run_event
from dpinfer.release.guarantee import Release

GRADIENTS = ("reparameterised", "aligned")
FAMILIES = ("mean_field", "point", "full_rank")


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientTrace(Release):
    """Everything a private run has published: the noisy gradient trace and the public facts needed to use it.

    The trace model is ``noisy_gradients[t] ~ N(sample_rate * A @ (positions[t] - optimum), noise_stddev[t]**2)``
    (NA-DPVI, eq. 20, with the preconditioner's ``1 / beta**2`` in the variance).

    **Privacy.** Safe to publish: the gradients carry the noise that `event` accounts for, and everything else is
    public or computed from earlier noisy gradients.  No record, exact statistic, seed or generator state is in it.

    Parameters
    ----------
    params : (T, d) float64
        Variational parameters (loc, raw_scale) before each step; d = 2 n for ``family="mean_field"``, n for "point",
        n + n (n + 1) / 2 for "full_rank": loc, and the lower triangle L of the covariance L L', row by row.
    positions : (T, k) float64
        Points at which the gradient is modelled as linear: `params` itself, or for ``gradient="aligned"`` the sampled
        parameters theta_t (k = n).
    noisy_gradients : (T, k) float64
        Released gradients of ``sample_rate`` times the full loss.
    noise_stddev : (k,) or (T, k) float64
        Known standard deviation tau of the privacy noise in each gradient coordinate, positive.
    final_params : (d,) float64
        Variational parameters after the last step.
    sample_rate : float in (0, 1]
    names : tuple of n str
        Names of the model's parameters.
    n_records : int or None
        The *public* number of records.
    family : {"mean_field", "point", "full_rank"}
        Whether `params` are (loc, raw_scale) of a Gaussian with standard deviation softplus(raw_scale), the model's
        parameters themselves, or (loc, L) of a Gaussian with covariance L L'.
    gradient : {"reparameterised", "aligned"}
    grad_scale : (k,) or (T, k) float64 or None
        Preconditioner beta.
    learning_rate : (d,) or (T, d) float64 or None
    max_grad_norm, noise_multiplier : float or None
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`dpinfer.Release`.
    """

    params: Annotated[FloatArray, Shape("T d")]
    positions: Annotated[FloatArray, Shape("T k")]
    noisy_gradients: Annotated[FloatArray, Shape("T k")]
    noise_stddev: FloatArray
    final_params: Annotated[FloatArray, Shape("d")]
    sample_rate: Annotated[float, Range(0.0, 1.0, last=True)]
    names: tuple[str, ...]
    n_records: int | None = None
    family: str = "mean_field"
    gradient: str = "reparameterised"
    grad_scale: FloatArray | None = None
    learning_rate: FloatArray | None = None
    max_grad_norm: float | None = None
    noise_multiplier: float | None = None
    format_name: ClassVar[str] = "dpinfer-release"
    _part_name: ClassVar[str] = "gradient trace"

    def __post_init__(self) -> None:
        put = object.__setattr__
        check_choice("family", self.family, FAMILIES)
        check_choice("gradient", self.gradient, GRADIENTS)
        if self.family == "point" and self.gradient == "aligned":
            raise ValueError("gradient must be 'reparameterised' for family 'point', got 'aligned'")
        if self.family == "full_rank" and self.gradient != "aligned":
            raise ValueError(f"gradient must be 'aligned' for family 'full_rank', got {self.gradient!r}")
        names = tuple(self.names)
        if not all(isinstance(name, str) for name in names) or not names:
            raise TypeError("names must be a non-empty sequence of strings")
        if len(set(names)) != len(names):
            raise ValueError("names must be distinct")
        put(self, "names", names)
        n = len(names)
        d = {"mean_field": 2 * n, "point": n, "full_rank": n + n * (n + 1) // 2}[self.family]
        k = n if self.gradient == "aligned" else d
        same = self.positions is self.params
        sizes = self._check_fields({"d": d, "k": k})
        if same:
            put(self, "positions", self.params)
        for name, axis in (("noise_stddev", "k"), ("grad_scale", "k"), ("learning_rate", "d")):
            value = getattr(self, name)
            if value is not None:
                shape = Shape(f"T {axis}" if np.ndim(value) == 2 else axis, positive=name != "learning_rate")
                put(self, name, shape.checked(name, value, sizes))
        if self.learning_rate is not None and np.any(self.learning_rate < 0.0):
            raise ValueError("learning_rate must be at least 0")
        if self.n_records is not None:
            put(self, "n_records", check_integer("n_records", self.n_records, 1))
        self._check_guarantee()
        self._check_event()

    def _check_event(self) -> None:
        """Refuse an event whose noise, rate or number of steps contradicts the trace."""
        if self.noise_multiplier is None or isinstance(self.event, NonPrivateEvent):
            return
        count = self.event.count if isinstance(self.event, SelfComposed) else 0
        least = max(count, self.n_steps)
        if self.event != run_event(self.noise_multiplier, self.sample_rate, least):
            raise ValueError("event must be that of the trace: its noise_multiplier, its sample_rate, all of its steps")

    @property
    def n_steps(self) -> int:
        """Number of released gradients T."""
        return int(self.params.shape[0])

    @property
    def n_params(self) -> int:
        """Number of model parameters n."""
        return len(self.names)

    @property
    def n_variational(self) -> int:
        """Number of variational parameters d."""
        return int(self.params.shape[1])

    @property
    def gradient_names(self) -> tuple[str, ...]:
        """Names of the k gradient coordinates: ``loc[name]``, then ``raw_scale[name]``."""
        if self.family == "point":
            return self.names
        loc = tuple(f"loc[{name}]" for name in self.names)
        return loc if self.gradient == "aligned" else loc + tuple(f"raw_scale[{name}]" for name in self.names)

    def __repr__(self) -> str:
        model = self.model_spec.get("kind", "unknown model")
        head = f"GradientTrace({model}: {self.n_steps} steps, {self.n_params} parameters, {self.gradient} gradients)"
        return f"{head}\n  {self.guarantee}"
