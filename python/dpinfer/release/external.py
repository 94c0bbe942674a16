"""Traces of other DP-SGD implementations as releases."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpinfer._validate import check_choice, check_float_array, check_interval
from dpinfer.accounting import Adjacency, Event, NonPrivateEvent
from dpinfer.release.trace import GradientTrace


def release_from_arrays(
    params: npt.ArrayLike,
    noisy_gradients: npt.ArrayLike,
    *,
    noise_stddev: npt.ArrayLike,
    sample_rate: float,
    names: Sequence[str] | None = None,
    family: str = "mean_field",
    final_params: npt.ArrayLike | None = None,
    event: Event | None = None,
    delta: float | None = None,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    curvature: npt.ArrayLike | None = None,
) -> GradientTrace:
    """Make a :class:`GradientTrace` from the noisy gradient trace of any DP-SGD implementation.

    **Privacy.** Post-processing, if the arrays are: gradients must already carry their noise.  No guarantee is claimed
    unless `event` is given; it is then computed here.

    Raises UnsupportedEventError if no accountant covers `event` under `adjacency`.

    Parameters
    ----------
    params : (T, d) array
        Parameters at which each gradient was computed: (loc, raw_scale), d = 2 n, with standard deviation
        softplus(raw_scale), or for ``family="point"`` the model's parameters, d = n.
    noisy_gradients : (T, d) array
        Noisy sums of the gradients of the sampled records' losses (not divided by the batch size).
    noise_stddev : scalar, (d,) or (T, d) array
        Standard deviation of the noise in each coordinate, positive.
    sample_rate : float in (0, 1]
        Poisson sampling rate.
    names : sequence of n str, optional
        Names of the parameters; ``theta[0]``, ... by default.
    family : {"mean_field", "point"}
    final_params : (d,) array, optional
        Parameters after the last step; the last row of `params` by default.
    event : Event, optional
        The other implementation's event; None claims no guarantee, and `epsilon` is infinite.
    delta : float in (0, 1), optional
        Needed with `event`.
    adjacency : {"add_remove", "zero_out", "replace_one"}
    curvature : (d,) array, optional
        For ``family="point"``: diagonal of the Hessian of the negative log posterior (all records and the prior) near
        the optimum, public or released with noise of its own.  Its inverse is the variance that the sample leaves open.
        Without it the posterior is that of the optimum of the clipped objective, and its summary warns.

    Examples
    --------
    >>> import numpy as np
    >>> from dpinfer.release import release_from_arrays
    >>> trace = np.linspace(1.0, 0.0, 50)[:, None] * np.ones((50, 2))
    >>> release_from_arrays(trace, 3.0 * trace, noise_stddev=0.5, sample_rate=0.1, family="point").n_params
    2
    """
    trace = check_float_array("params", params, (None, None))
    steps, width = trace.shape
    if steps < 1:
        raise ValueError("params must hold at least one step, got 0")
    check_choice("family", family, ("mean_field", "point"))
    if family == "mean_field" and width % 2:
        raise ValueError(f"params must have an even number of columns for family 'mean_field', got {width}")
    n_params = width // 2 if family == "mean_field" else width
    if names is None:
        names = tuple(f"theta[{index}]" for index in range(n_params))
    elif len(names) != n_params:
        raise ValueError(f"names must have length {n_params}, got {len(names)}")
    said: dict[str, list[float]] = {}
    if curvature is not None:
        if family != "point":
            raise ValueError("curvature must be None for family 'mean_field', whose raw scales determine it")
        values = check_float_array("curvature", curvature, (width,))
        if not np.all(values > 0.0):
            raise ValueError("curvature must be positive")
        said["curvature"] = values.tolist()
    stddev = np.asarray(noise_stddev)
    if stddev.ndim == 0:
        stddev = np.full(width, check_float_array("noise_stddev", stddev))
    claimed = event is not None and not isinstance(event, NonPrivateEvent)
    if claimed and delta is None:
        raise ValueError("delta must be given with event")
    return GradientTrace(
        params=trace,
        positions=trace,
        noisy_gradients=np.asarray(noisy_gradients),
        noise_stddev=stddev,
        final_params=trace[-1] if final_params is None else np.asarray(final_params),
        sample_rate=sample_rate,
        names=tuple(names),
        family=family,
        event=NonPrivateEvent() if event is None else event,
        adjacency=Adjacency(adjacency),
        delta=check_interval("delta", delta, 0.0, 1.0) if claimed else 0.0,
        settings={"source": "external", **said},
    )
