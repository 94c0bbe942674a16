"""Posteriors from a site trace: the last iterate, the average, and the one that counts the noise."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._validate import check_choice, check_integer, check_interval
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.models import Model, model_from_dict
from dpinfer.release import SiteRelease
from dpinfer.release.site_trace import smat

__all__ = ["SITE_METHODS", "site_burn_in", "site_posterior"]

FloatArray = npt.NDArray[np.float64]

SITE_METHODS = ("exact", "naive", "averaged")

_DRAWS = 1000
# The start's error is multiplied by about prod(1 - r): below 3% from here on.
_MIXED = 3.5


def site_burn_in(release: SiteRelease, burn_in: str | float | int) -> int:
    """Return the first step used, below T.

    **Privacy.** Post-processing of a SiteRelease.

    Parameters
    ----------
    release : SiteRelease
    burn_in : "auto", float in [0, 1), or int
        "auto": after the annealing, and once the rates add up to 3.5, but half of the steps at most.
    """
    steps = release.n_steps
    annealing = release.settings.get("annealing")
    first = 0 if annealing is None else min(steps - 1, math.ceil(annealing[1] * steps))
    if isinstance(burn_in, str):
        check_choice("burn_in", burn_in, ("auto",))
        mixed = int(np.searchsorted(np.cumsum(release.damping[first:]), _MIXED)) + 1
        return min(first + mixed, max(first, steps // 2))
    if isinstance(burn_in, (float, np.floating)):
        return int(check_interval("burn_in", burn_in, 0.0, 1.0, low_open=False) * steps)
    return check_integer("burn_in", burn_in, 0, steps - 1)


def site_posterior(
    release: SiteRelease,
    *,
    method: str = "exact",
    burn_in: str | float | int = "auto",
    n_samples: int | None = None,
    seed: int = 0,
    model: Model | None = None,
) -> Posterior:
    """Return a posterior of the model's parameters from the trace of DP-SEP.

    **Privacy.** Post-processing of a SiteRelease: it costs nothing.

    Parameters
    ----------
    release : SiteRelease
        Of T steps.
    method : {"exact", "naive", "averaged"}
        "exact" infers the noiseless fixed point from every sum after the burn-in and mixes q over it, by independent
        draws; "naive" is q at the last iterate, "averaged" q at the average mean and average raw precision.  These
        two ignore the noise.
    burn_in : "auto", float in [0, 1), or int
        First step used; see :func:`site_burn_in`.  "averaged" uses the last half at most.
    n_samples : int, optional
        Draws of the fixed point for "exact" (1000).
    seed : int
    model : Model, optional
        Overrides the one that ``release.model_spec`` describes.

    Returns
    -------
    Posterior

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    docs/derivations/dp-sep.md.  With g_t the released gradient of the mean and L_t the released precision,
    g_t ~ N(A (m* - m_t), R) and L_t ~ N(A, tau**2 / w**2): the drift's slope at the fixed point is its precision A.
    R adds to the known noise the variance of the sample, which is (1 / kappa - 1) (A - prior) by the information
    equality.  A is drawn from its own sums, m* given A from the gradients, with the model's prior on m*.
    """
    if not isinstance(release, SiteRelease):
        raise TypeError(f"release must be a SiteRelease, got {type(release).__name__}")
    check_choice("method", method, SITE_METHODS)
    seed = check_integer("seed", seed, 0)
    if n_samples is not None and method != "exact":
        raise ValueError(f"n_samples must not be given with method={method!r}: it does not sample")
    draws = _DRAWS if n_samples is None else check_integer("n_samples", n_samples, 1)
    if model is None and release.model_spec:
        model = model_from_dict(release.model_spec)
    if model is not None and not isinstance(model, Model):
        raise TypeError(f"model must be a Model, got {type(model).__name__}")
    if model is not None and model.n_params != release.n_params:
        raise ValueError(f"model must have {release.n_params} parameters like the release, got {model.n_params}")
    common = {
        "names": release.names,
        "method": method,
        "hessian": "sites",
        "prior": "weak",
        "optimum_names": release.names,
        "model": model,
        "guarantee": release.guarantee,
    }
    if method != "exact":
        return _plug_in(release, method, burn_in, common)
    start = site_burn_in(release, burn_in)
    return _noise_aware(release, start, draws, np.random.default_rng(seed), common)


def _floor(precision: FloatArray, floor: float, *, isotropic: bool) -> FloatArray:
    """Return (..., d, d) with eigenvalues of at least `floor`, as multiples of the identity if `isotropic`."""
    d = precision.shape[-1]
    if isotropic:
        value = np.maximum(np.trace(precision, axis1=-2, axis2=-1) / d, floor)
        return np.asarray(value[..., None, None] * np.eye(d))
    values, vectors = np.linalg.eigh(precision)
    return np.asarray((vectors * np.maximum(values, floor)[..., None, :]) @ np.swapaxes(vectors, -1, -2))


def _block_diagonal(blocks: FloatArray) -> FloatArray:
    """Return (S, J, d, d) as (S, J d, J d)."""
    size, count, d, _ = blocks.shape
    result = np.zeros((size, count * d, count * d))
    for j in range(count):
        result[:, j * d : (j + 1) * d, j * d : (j + 1) * d] = blocks[:, j]
    return result


def _plug_in(release: SiteRelease, method: str, burn_in: str | float | int, common: dict[str, Any]) -> Posterior:
    d, steps = release.block_size, release.n_steps
    first = steps
    loc, raw, floor = release.loc[-1], release.precision[-1], float(release.floor[-1])
    if method == "averaged":
        first = site_burn_in(release, burn_in)
        first = max(first, steps // 2) if isinstance(burn_in, str) else first
        loc, raw = release.loc[first + 1 :].mean(axis=0), release.precision[first + 1 :].mean(axis=0)
        floor = 1.0 / release.prior_scale**2
    precision = _floor(smat(raw, d), floor, isotropic=release.isotropic)
    factor = _block_diagonal(np.asarray(np.linalg.cholesky(precision)[None], dtype=np.float64))
    variance = np.diagonal(np.linalg.inv(precision), axis1=1, axis2=2).ravel()
    zero = np.zeros(release.n_params)
    return Posterior(
        **common,
        burn_in=first,
        optimum_mean=loc.ravel().copy(),
        optimum_stddev=zero.copy(),
        hessian_mean=np.diagonal(precision, axis1=1, axis2=2).ravel().copy(),
        hessian_stddev=zero.copy(),
        distribution=DrawnTheta(loc.reshape(1, -1), None, factor, VarianceParts(variance, zero, zero.copy())),
        diagnostics=PosteriorDiagnostics(n_steps_used=steps - first),
    )


def _noise_aware(
    release: SiteRelease, start: int, size: int, rng: np.random.Generator, common: dict[str, Any]
) -> Posterior:
    blocks, d, rate = release.n_blocks, release.block_size, release.sample_rate
    eye = np.eye(d)
    prior = 1.0 / release.prior_scale**2
    used = release.n_steps - start
    tau = release.noise_stddev / rate
    sums = release.linear_sums()[start:].mean(axis=0) / rate
    mean_sum = prior * eye + smat(release.precision_sums()[start:].mean(axis=0) / rate, d)
    spread = tau / (release.block_weight * math.sqrt(used))
    z = rng.standard_normal((size, blocks, d * (d + 1) // 2))
    precision = _floor(mean_sum + spread * smat(z, d), prior, isotropic=release.isotropic)
    # c = A m* is what the gradients tell: their mean plus A times the mean position, or for natural sites the mean sum.
    if release.sites == "centred":
        centre = release.loc[start:-1].mean(axis=0)
        target = sums + prior * (release.prior_loc - centre) + (precision @ centre[..., None])[..., 0]
    else:
        target = np.broadcast_to(sums + prior * release.prior_loc, (size, blocks, d))
    # Whole epochs of a permutation leave nothing to chance; the other samplings do.
    sampled = 0.0 if release.sampling == "permutation" else 1.0 / rate - 1.0
    noise = (tau**2 * eye + sampled * (precision - prior * eye)) / used
    weighted = np.linalg.solve(noise, precision)
    information = np.swapaxes(precision, -1, -2) @ weighted
    total = 0.5 * (information + np.swapaxes(information, -1, -2)) + prior * eye
    linear = np.swapaxes(weighted, -1, -2) @ target[..., None] + prior * release.prior_loc[..., None]
    cov = np.linalg.inv(total)
    means = (cov @ linear)[..., 0]
    factor = np.linalg.cholesky(total)
    jitter = np.linalg.solve(np.swapaxes(factor, -1, -2), rng.standard_normal((size, blocks, d, 1)))[..., 0]
    location = (means + jitter).reshape(size, -1)
    own = np.diagonal(np.linalg.inv(precision), axis1=-2, axis2=-1).reshape(size, -1)
    within = np.diagonal(cov, axis1=-2, axis2=-1).reshape(size, -1).mean(axis=0)
    between = location.var(axis=0)
    privacy = np.minimum(within, between)
    diagonal = np.diagonal(precision, axis1=-2, axis2=-1).reshape(size, -1)
    return Posterior(
        **common,
        burn_in=start,
        optimum_mean=means.reshape(size, -1).mean(axis=0),
        optimum_stddev=np.sqrt(within + means.reshape(size, -1).var(axis=0)),
        hessian_mean=diagonal.mean(axis=0),
        hessian_stddev=diagonal.std(axis=0),
        distribution=DrawnTheta(
            location,
            None,
            _block_diagonal(np.asarray(np.linalg.cholesky(precision), dtype=np.float64)),
            VarianceParts(own.mean(axis=0), privacy, between - privacy),
        ),
        diagnostics=PosteriorDiagnostics(
            n_steps_used=used, noise_ratio=np.sqrt(1.0 + sampled * diagonal.mean(axis=0) / tau**2)
        ),
    )
