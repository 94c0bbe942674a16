"""The release of a private Newton run of a logistic regression: noisy second moments, curvature and scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._validate import check_float_array, check_interval
from dpinfer.accounting import Adjacency, Event, NonPrivateEvent
from dpinfer.release.guarantee import DERIVED
from dpinfer.release.newton_trace import SumsOfPasses
from dpinfer.release.parts import Part

__all__ = ["LogisticNewtonRelease"]

FloatArray = npt.NDArray[np.float64]

_POSITIVE = ("moment_stddev", "moment_bounds", "localise_stddev", "score_stddev")


@dataclass(frozen=True, eq=False, kw_only=True)
class LogisticNewtonRelease(SumsOfPasses):
    """Everything a private Newton run of a logistic regression has published.

    Sums are divided by the public number of records.  With z, w, B and u as in :class:`NewtonRelease` and p =
    sigmoid(u'z), score t is the mean of w (y - p) z at u_t plus noise of standard deviation score_stddev[t] in every
    coordinate, and the slope is the mean of w p (1 - p) z z' at `slope_position`, with noise of standard deviation
    `slope_stddev` on the diagonal and 1 / sqrt(2) of it beside the diagonal.

    **Privacy.** Safe to publish: the sums carry the noise that `event` accounts for, and everything else is public or
    computed from earlier noisy sums.  No record, exact statistic, seed or generator state is in it.

    Parameters
    ----------
    transforms, moments : (K, d, d) float64
    moment_stddev, moment_bounds : (K,) float64
    localise_positions, localise_scores : (L, d) float64
        Of the steps toward the zero of the score.
    localise_stddev : (L,) float64
    slope : (d, d) float64
    slope_stddev : float
    slope_position : (d,) float64
    positions, scores : (T, d) float64
        Of the measurements near the zero.
    score_stddev : (T,) float64
    names : tuple of str
    n_records : int
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks, model_spec, settings
        As in :class:`NewtonRelease`.

    Raises
    ------
    TypeError, ValueError
        If a field has the wrong type, shape or range, or `event` claims other sums or less noise than these.
    """

    transforms: FloatArray
    moments: FloatArray
    moment_stddev: FloatArray
    moment_bounds: FloatArray
    localise_positions: FloatArray
    localise_scores: FloatArray
    localise_stddev: FloatArray
    slope: FloatArray
    slope_stddev: float
    slope_position: FloatArray
    positions: FloatArray
    scores: FloatArray
    score_stddev: FloatArray
    names: tuple[str, ...]
    n_records: int
    event: Event = field(default_factory=NonPrivateEvent)
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    delta: float = 0.0
    certified_epsilon: float = DERIVED
    accountant: str = "pld"
    secure: bool = True
    other_parts: tuple[Part, ...] = ()
    leaks: tuple[str, ...] = ()
    model_spec: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rounds, d, _ = check_float_array("transforms", self.transforms, (None, None, None)).shape
        steps = check_float_array("positions", self.positions, (None, d)).shape[0]
        found = check_float_array("localise_positions", self.localise_positions, (None, d)).shape[0]
        if rounds < 1 or steps < 1 or found < 1:
            raise ValueError("a release must hold at least one matrix and one score of each kind")
        shapes: dict[str, tuple[int, ...]] = {
            "transforms": (rounds, d, d),
            "moments": (rounds, d, d),
            "moment_stddev": (rounds,),
            "moment_bounds": (rounds,),
            "localise_positions": (found, d),
            "localise_scores": (found, d),
            "localise_stddev": (found,),
            "slope": (d, d),
            "slope_position": (d,),
            "positions": (steps, d),
            "scores": (steps, d),
            "score_stddev": (steps,),
        }
        self._check_arrays(shapes, _POSITIVE)
        object.__setattr__(self, "slope_stddev", check_interval("slope_stddev", self.slope_stddev, 0.0))
        self._check_names(d)
        self._check_event()
        self._check_guarantee()

    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Return each pass's noise and the largest norm that a record's contribution may have there, in order."""
        bound = float(self.moment_bounds[-1])
        scores = self.localise_stddev.size, self.score_stddev.size
        stddev = np.concatenate((self.moment_stddev, self.localise_stddev, [self.slope_stddev], self.score_stddev))
        slope = [0.25 * bound**2]
        norms = (np.square(self.moment_bounds), np.full(scores[0], bound), slope, np.full(scores[1], bound))
        return stddev * self.n_records, np.concatenate(norms)

    @property
    def n_coef(self) -> int:
        """Number of weights d."""
        return int(self.positions.shape[1])

    def __repr__(self) -> str:
        model = self.model_spec.get("kind", "unknown model")
        return f"LogisticNewtonRelease({model}: {self.n_passes} passes, {self.n_coef} weights)\n  {self.guarantee}"
