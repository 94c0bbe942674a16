"""Checks of a release: whether its trace fits the model that the noise-aware posterior rests on."""

import numpy as np

from dpinfer._validate import check_interval
from dpinfer.inference.burn_in import choose_burn_in
from dpinfer.inference.stationary import effective_sample_size
from dpinfer.inference.trace_checks import FALSE_POSITIVE_RATE, TraceCheck, check_statistics
from dpinfer.release import Release

__all__ = ["TraceCheck", "check_trace"]

_FEWEST_STEPS = 4


def check_trace(
    release: Release,
    *,
    burn_in: str | float | int = "auto",
    false_positive_rate: float = FALSE_POSITIVE_RATE,
    n_threads: int | None = None,
) -> TraceCheck:
    """Test noise level, linearity and settling of a released trace, and say in words what was found.

    **Privacy.** Post-processing of a Release: it costs nothing.

    Parameters
    ----------
    release : Release
    burn_in : "auto", float in [0, 1), or int
        First step used, as in :func:`dpinfer.noise_aware_posterior`.
    false_positive_rate : float in (0, 1)
        At most this share of the traces that follow the model and have settled is found fault with.
    n_threads : int, optional

    Returns
    -------
    TraceCheck
        Print it for a table; ``.verdict`` is a sentence, ``.sound`` whether nothing failed.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    NumericalError
        If a coordinate does not move.

    Notes
    -----
    A trace that has not settled is no fault of the posterior, which uses linear transients; it says that more steps or
    larger ones would have told more.  For a Fisher-scaled release the gradients are divided by the preconditioner's
    information, in which they are linear.

    Examples
    --------
    >>> import numpy as np
    >>> from dpinfer.release import release_from_arrays
    >>> rng = np.random.default_rng(1)
    >>> x = np.zeros((2000, 1)); g = np.zeros((2000, 1))
    >>> for t in range(2000):
    ...     g[t] = 5.0 * x[t] + rng.normal(0.0, 3.0)
    ...     if t < 1999: x[t + 1] = x[t] - 0.01 * g[t]
    >>> release = release_from_arrays(x, g, noise_stddev=3.0, sample_rate=0.1, family="point")
    >>> check_trace(release, burn_in=0).sound
    True
    """
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release, got {type(release).__name__}")
    rate = check_interval("false_positive_rate", false_positive_rate, 0.0, 1.0)
    positions, gradients, noise = release.positions, release.noisy_gradients, release.noise_stddev
    names = release.gradient_names
    if release.settings.get("scaling") == "fisher" and release.grad_scale is not None:
        n = release.n_params
        information = np.broadcast_to(release.grad_scale, gradients.shape)[:, :n] ** -2.0
        positions, names = np.ascontiguousarray(positions[:, :n]), names[:n]
        gradients = np.ascontiguousarray(gradients[:, :n] / information)
        noise = np.ascontiguousarray(np.broadcast_to(noise, release.noisy_gradients.shape)[:, :n] / information)
    start = choose_burn_in(burn_in, positions, gradients, noise, n_threads=0 if n_threads is None else n_threads)
    start.statistics.check_moving(names)
    used = positions[start.start :]
    sizes = effective_sample_size(used) if used.shape[0] >= _FEWEST_STEPS else np.full(used.shape[1], np.nan)
    return check_statistics(
        start.statistics,
        start.linearity_pvalue,
        names,
        effective_sample_size=sizes,
        false_positive_rate=rate,
    )
