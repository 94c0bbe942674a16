"""Checks of a release: whether its trace fits the model of its posterior, how many independent draws a trace has."""

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer, check_interval, check_type
from dpinfer.inference.posterior.monte_carlo import effective_draws
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.burn_in import choose_burn_in
from dpinfer.inference.trace.checks import TraceCheck, check_statistics
from dpinfer.inference.trace.scales.fisher import TiedTrace
from dpinfer.inference.trace.statistics import TraceStatistics
from dpinfer.inference.trace.theory import TraceTheory
from dpinfer.models import model_from_dict
from dpinfer.recipes import GradientSettings
from dpinfer.release import GradientTrace

__all__ = ["TraceCheck", "check_trace"]

_FEWEST_STEPS = 4  # fewer have no autocorrelation


def check_trace(
    release: GradientTrace,
    *,
    burn_in: str | float | int = "auto",
    false_positive_rate: float = tuning.TUNING.level,
    n_threads: int | None = None,
) -> TraceCheck:
    """Test noise level, linearity and settling of a released trace, and report the results in words.

    The check prints as a table; its ``verdict`` is a sentence, ``sound`` whether nothing failed.  Below the table is
    what Theorems 2 and 3 of NA-DPVI (2025) say of a trace with constant learning rates (``theory``).

    **Privacy.** Post-processing of a Release: it costs nothing.

    Raises NumericalError if a coordinate does not move.

    Parameters
    ----------
    release : GradientTrace
    burn_in : "auto", float in [0, 1), or int
        First step used, as in :func:`dpinfer.noise_aware_posterior`.
    false_positive_rate : float in (0, 1)
        At most this share of the traces that follow the model and have settled is found fault with.
    n_threads : int, optional

    Notes
    -----
    A trace that has not settled is no fault of the posterior, which uses linear transients; it means that more or
    larger steps would have been more informative.  Of a Fisher-scaled release the gradients of loc are tested, divided
    by the information that preconditioned them, in which they are linear; the slope counts both kinds of gradients.

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
    check_type("release", release, GradientTrace)
    rate = check_interval("false_positive_rate", false_positive_rate, 0.0, 1.0)
    threads = 0 if n_threads is None else check_integer("n_threads", n_threads, 1)
    positions, gradients, noise = release.positions, release.noisy_gradients, release.noise_stddev
    names = release.gradient_names
    fisher = GradientSettings.of_release(release).fisher and release.grad_scale is not None and release.model_spec
    watched = release.n_params if fisher else None  # raw_scale is not linear, and the posterior takes that into account
    start = choose_burn_in(burn_in, positions, gradients, noise, watched=watched, n_threads=threads)
    statistics, score = start.statistics, None
    if fisher:
        trace = TiedTrace.from_release(release, model_from_dict(release.model_spec), start.start, n_threads=threads)
        statistics, names = trace.statistics, names[: release.n_params]
        score = trace.slope_score(release.sample_rate)
        positions = positions[:, : release.n_params]
    statistics.check_moving(names)
    used = positions[start.start :]
    sizes = effective_draws(used) if used.shape[0] >= _FEWEST_STEPS else np.full(used.shape[1], np.nan)
    return check_statistics(
        statistics,
        start.linearity_pvalue,
        names,
        slope_score=score,
        effective_sample_size=sizes,
        false_positive_rate=rate,
        theory=None if fisher else _theory(release, statistics, used),
    )


def _theory(release: GradientTrace, statistics: TraceStatistics, used: FloatArray) -> TraceTheory | None:
    """Return what Theorems 2 and 3 say, None for sampled positions, or rates or noise that change."""
    rate, noise = release.learning_rate, release.noise_stddev
    if release.gradient == "aligned" or rate is None or rate.shape != used.shape[1:] or noise.ndim > 1:
        return None
    if not np.all(rate > 0.0):
        return None
    error = statistics.slope_stderr / release.sample_rate
    farthest = float(np.max(np.linalg.norm(used - statistics.position_mean, axis=1)))
    # A Hessian that is less than its standard error is taken as that.
    curvature = error * np.maximum(statistics.slope_score, 1.0)
    return TraceTheory(curvature, rate, noise, release.sample_rate, used.shape[0], farthest)
