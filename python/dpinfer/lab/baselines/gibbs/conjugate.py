"""Gibbs sampling from a noisy statistic of a conjugate exponential family (Bernstein and Sheldon 2018)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, resolve_progress
from dpinfer._validate import check_float_array, check_integer
from dpinfer.lab.baselines.gibbs.families import (
    BinomialFamily,
    CategoricalFamily,
    ConjugateFamily,
    ExponentialFamily,
    conjugate_family,
)
from dpinfer.lab.baselines.gibbs.laplace_mixture import draw_noise_variance, draw_prior_noise_variance
from dpinfer.release import StatisticRelease

__all__ = ["bernstein_sheldon_posterior", "conjugate_states", "family_of", "gibbs_posterior"]


def gibbs_posterior(
    model: Any,
    noisy_statistics: npt.ArrayLike,
    *,
    laplace_scale: npt.ArrayLike,
    n_records: int,
    bounds: tuple[float, float] | None = None,
    n_burn_in: int = 500,
    n_samples: int = 1000,
    seed: int = 0,
    progress: bool | ProgressCallback = False,
) -> FloatArray:
    """Draw from the noise-aware posteriors of K independent runs by Gibbs sampling, one chain each, in step.

    **Privacy.** Post-processing of released statistics; reads no records.

    Parameters
    ----------
    model : ConjugateFamily or conjugate model
    noisy_statistics : (K, s) or (s,) float64
        Released statistics z.
    laplace_scale : float or (s,) float64
        Scale b of the noise in each statistic.
    n_records : int
        The *public* number of records N.
    bounds : pair of float, optional
        As in :func:`dpinfer.lab.baselines.release_statistics`.
    n_burn_in, n_samples : int
        Dropped and kept iterations.
    seed : int
    progress : bool or callable
        True draws a bar on a terminal; a callable gets (done, total).

    Returns
    -------
    (n_samples, K, n) float64
        Draws of the model's parameters on their natural space; (n_samples, n) for a one-dimensional input.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    Bernstein and Sheldon (2018), Algorithm 1, from theta drawn from the prior and noise variances from
    Exponential(mean 2 b**2).  Each iteration draws s given (theta, z, variances) from
    ``N(z, diag(variances)) N(N mu(theta), N Sigma(theta))`` restricted to valid statistics, then the variances
    (``draw_noise_variance`` of ``laplace_mixture.py``), then theta from its conjugate posterior given s.
    The normal law of s is the only approximation.  For unbounded data the moments are those of a public section, and
    the sum outside it is drawn too.

    Examples
    --------
    >>> from dpinfer.lab.baselines import BinomialFamily
    >>> draws = gibbs_posterior(BinomialFamily(), [[300.0], [700.0]], laplace_scale=10.0, n_records=1000, n_samples=200)
    >>> draws.shape, bool(draws[:, 0].mean() < 0.4), bool(draws[:, 1].mean() > 0.6)
    ((200, 2, 1), True, True)
    """
    family = conjugate_family(model, bounds=bounds)
    noisy = check_float_array("noisy_statistics", noisy_statistics)
    single = noisy.ndim == 1
    noisy = check_float_array("noisy_statistics", noisy[None] if single else noisy, (None, family.high.size))
    scale = np.broadcast_to(check_float_array("laplace_scale", laplace_scale), family.high.shape)
    if not np.all(scale > 0.0):
        raise ValueError("laplace_scale must be positive")
    n_records = check_integer("n_records", n_records, 1)
    n_burn_in, n_samples = check_integer("n_burn_in", n_burn_in, 0), check_integer("n_samples", n_samples, 1)
    rng = np.random.default_rng(check_integer("seed", seed, 0))
    report = resolve_progress(progress, "Gibbs iterations")
    states = conjugate_states(family, noisy, scale, n_records, rng)
    draws = np.empty((n_samples, noisy.shape[0], family.n_params))
    for iteration, (_, theta) in zip(range(n_burn_in + n_samples), states, strict=False):
        if iteration >= n_burn_in:
            draws[iteration - n_burn_in] = theta
        report(iteration + 1, n_burn_in + n_samples)
    return draws[:, 0] if single else draws


def conjugate_states(
    family: ConjugateFamily, noisy: FloatArray, scale: FloatArray, n_records: int, rng: np.random.Generator
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield the released statistics (K, s) and the parameters (K, n) of each iteration, without end."""
    theta = family.draw_prior(noisy.shape[0], rng)
    variance = draw_prior_noise_variance(scale, noisy.shape, rng)
    statistic: FloatArray | None = None
    while True:
        statistic = family.draw_statistic(theta, noisy, variance, n_records, statistic, rng)
        variance = draw_noise_variance(noisy - statistic, scale, rng)
        theta = family.draw_parameters(statistic, theta, n_records, rng)
        yield statistic, theta


def bernstein_sheldon_posterior(
    release: StatisticRelease, *, n_burn_in: int = 500, n_samples: int = 1000, seed: int = 0
) -> FloatArray:
    """Draw from the noise-aware posterior of one release.

    **Privacy.** Post-processing of a release: it costs nothing, however often it is called.

    Parameters
    ----------
    release : StatisticRelease
        From :func:`dpinfer.lab.baselines.release_statistics`; it knows the model's prior.
    n_burn_in, n_samples, seed
        As in :func:`gibbs_posterior`.

    Returns
    -------
    (n_samples, n) float64

    Raises
    ------
    TypeError, ValueError
        If `release` is not one of these, or an argument is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> from dpinfer.lab.baselines import BinomialFamily, release_statistics
    >>> release = release_statistics(BinomialFamily(), np.ones(5000), epsilon=1.0, n_records=5000)
    >>> bool(bernstein_sheldon_posterior(release, n_samples=100).mean() > 0.95)
    True
    """
    if not isinstance(release, StatisticRelease):
        raise TypeError(f"release must be a StatisticRelease, got {type(release).__name__}")
    if release.method != "bernstein_sheldon":
        raise ValueError(f"release must come from release_statistics, got method {release.method!r}")
    return gibbs_posterior(
        family_of(release),
        release.noisy_statistics,
        laplace_scale=release.laplace_scale,
        n_records=release.n_records,
        n_burn_in=n_burn_in,
        n_samples=n_samples,
        seed=seed,
    )


def family_of(release: StatisticRelease) -> ConjugateFamily:
    """Return the family that a release names."""
    settings = dict(release.settings)
    kind = settings["family"]
    if kind == "binomial":
        return BinomialFamily(settings["n_trials"], settings["a"], settings["b"])
    if kind == "categorical":
        return CategoricalFamily(tuple(settings["concentration"]))
    return ExponentialFamily(
        tuple(settings["bounds"]), settings["shape"], settings["rate"], sections=settings["sections"]
    )
