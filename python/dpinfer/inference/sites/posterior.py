"""Posteriors from the traces of DP-SEP: the last iterate, the average, the one that counts the noise; a network's."""

import math
from typing import cast

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_interval
from dpinfer.errors import NumericalError
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, IndependentTheta, VarianceParts
from dpinfer.inference.request import PLUG_INS, PlannedRelease, SiteRequest, model_of, parse_burn_in
from dpinfer.inference.sites.mixtures import mixture_posterior
from dpinfer.inference.sites.results import posterior_of_sites
from dpinfer.models import BayesianNeuralNetwork, GaussianMixture, NetworkWeights, model_from_dict
from dpinfer.release import NetworkRelease, SiteRelease
from dpinfer.release.sites.trace import smat

_DRAWS = 1000  # Monte Carlo error 2% of a standard deviation (1 / sqrt(2 * 1000))
_MIXED = 3.5  # the start's error is multiplied by about prod(1 - r): below 3% from here on


def site_burn_in(release: SiteRelease, burn_in: str | float | int) -> int:
    """Return the first step used, below T; "auto": once the rates after the annealing add up to 3.5, at most half of T.

    **Privacy.** Post-processing of a SiteRelease.
    """
    steps = release.n_steps
    parsed = parse_burn_in(burn_in, steps, least=1)
    if parsed is not None:
        return parsed
    annealing = release.settings.get("annealing")
    first = 0 if annealing is None else min(steps - 1, math.ceil(annealing[1] * steps))
    mixed = int(np.searchsorted(np.cumsum(release.damping[first:]), _MIXED)) + 1
    return min(first + mixed, max(first, steps // 2))


def check_site_request(request: SiteRequest, planned: PlannedRelease) -> None:
    """Refuse what no trace of DP-SEP answers.

    Raises TypeError or ValueError if the request or the model does not fit the kind of release.
    """
    network = issubclass(planned.kind, NetworkRelease)
    check_choice("approximation", request.approximation, ("exact", *PLUG_INS))
    if request.n_samples is not None and (network or request.approximation != "exact"):
        asked = "a network" if network else f"approximation={request.approximation!r}"
        raise ValueError(f"n_samples must not be given with {asked}: it does not sample")
    parse_burn_in(request.burn_in, planned.n_steps, least=1)
    if network and not isinstance(planned.model, BayesianNeuralNetwork):
        raise ValueError(f"release must be of a BayesianNeuralNetwork, got {type(planned.model).__name__}")


def site_posterior(
    release: SiteRelease,  # of T steps
    # whose check the release has passed.  Method "exact" infers the noiseless fixed point from every sum after the
    # burn-in and mixes q over it, by `n_samples` independent draws (1000); "naive" is q at the last iterate, "averaged"
    # q at the average mean and average raw precision, over the last half at most.  These two ignore the noise
    request: SiteRequest,
) -> Posterior:
    """Return a posterior of the model's parameters from the trace of DP-SEP.

    **Privacy.** Post-processing of a SiteRelease: it costs nothing.

    docs/derivations/dp-sep.md.  With g_t the released gradient of the mean and L_t the released precision,
    g_t ~ N(A (m* - m_t), R) and L_t ~ N(A, tau**2 / w**2): the drift's slope at the fixed point is its precision A.
    R adds to the known noise the variance of the sample, which is (1 / kappa - 1) (A - prior) by the information
    equality.  A is drawn from its own sums, m* given A from the gradients, with the model's prior on m*.
    """
    if request.approximation != "exact":
        return _plug_in(release, request)
    start, model = site_burn_in(release, request.burn_in), model_of(release, request.model)
    if isinstance(model, GaussianMixture) and release.sites == "centred":
        return mixture_posterior(release, model, request, start)
    return _noise_aware(release, request, start)


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


def _plug_in(release: SiteRelease, request: SiteRequest) -> Posterior:
    d, steps = release.block_size, release.n_steps
    first = steps
    loc, raw, floor = release.loc[-1], release.precision[-1], float(release.floor[-1])
    if request.approximation == "averaged":
        first = site_burn_in(release, request.burn_in)
        first = max(first, steps // 2) if isinstance(request.burn_in, str) else first
        loc, raw = release.loc[first + 1 :].mean(axis=0), release.precision[first + 1 :].mean(axis=0)
        floor = 1.0 / release.prior_scale**2
    precision = _floor(smat(raw, d), floor, isotropic=release.isotropic)
    factor = _block_diagonal(np.asarray(np.linalg.cholesky(precision)[None], dtype=np.float64))
    variance = np.diagonal(np.linalg.inv(precision), axis1=1, axis2=2).ravel()
    zero = np.zeros(release.n_params)
    return posterior_of_sites(
        release,
        request,
        burn_in=first,
        optimum_mean=loc.ravel().copy(),
        optimum_stddev=zero.copy(),
        hessian_mean=np.diagonal(precision, axis1=1, axis2=2).ravel().copy(),
        hessian_stddev=zero.copy(),
        distribution=DrawnTheta(loc.reshape(1, -1), None, factor, VarianceParts(variance, zero, zero.copy())),
        diagnostics=PosteriorDiagnostics(n_steps_used=steps - first),
    )


def _noise_aware(release: SiteRelease, request: SiteRequest, start: int) -> Posterior:
    size, rng = request.n_samples or _DRAWS, np.random.default_rng(request.seed)
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
    # c = A m* follows from the gradients: their mean plus A times the mean position, or for natural sites the mean sum.
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
    variances = np.diagonal(np.linalg.inv(precision), axis1=-2, axis2=-1).reshape(size, -1)
    within = np.diagonal(cov, axis1=-2, axis2=-1).reshape(size, -1).mean(axis=0)
    between = location.var(axis=0)
    privacy = np.minimum(within, between)
    diagonal = np.diagonal(precision, axis1=-2, axis2=-1).reshape(size, -1)
    return posterior_of_sites(
        release,
        request,
        burn_in=start,
        optimum_mean=means.reshape(size, -1).mean(axis=0),
        optimum_stddev=np.sqrt(within + means.reshape(size, -1).var(axis=0)),
        hessian_mean=diagonal.mean(axis=0),
        hessian_stddev=diagonal.std(axis=0),
        distribution=DrawnTheta(
            location,
            None,
            _block_diagonal(np.asarray(np.linalg.cholesky(precision), dtype=np.float64)),
            VarianceParts(variances.mean(axis=0), privacy, between - privacy),
        ),
        diagnostics=PosteriorDiagnostics(
            n_steps_used=used, noise_ratio=np.sqrt(1.0 + sampled * diagonal.mean(axis=0) / tau**2)
        ),
    )


def network_posterior(release: NetworkRelease, *, average: float = 0.0) -> NetworkWeights:
    """Return the approximate posterior of the weights that a run of DP-SEP has released.

    The variances are those of SEP's q, 1 / precision with the precision floored: they count the prior and the records.
    Replicas of the run, where the release has them, show how far the privacy noise moves the function: predictions and
    their intervals count it.

    Parameters
    ----------
    release : NetworkRelease
    average : float in [0, 1)
        0 (default): after the last step.  Otherwise means and precisions are averaged over this last share of steps.
    """
    if not isinstance(release, NetworkRelease):
        raise TypeError(f"release must be a NetworkRelease, got {type(release).__name__}")
    average = check_interval("average", average, 0.0, 1.0, low_open=False)
    model = model_from_dict(release.model_spec)
    if not isinstance(model, BayesianNeuralNetwork):
        raise ValueError(f"release must be of a BayesianNeuralNetwork, got {type(model).__name__}")
    return _weights(release, model, max(1, round(average * release.n_steps)))


def _weights(release: NetworkRelease, model: BayesianNeuralNetwork, count: int) -> NetworkWeights:
    """Return the weights' posterior, averaged over the last steps."""
    loc = release.loc[-count:].mean(axis=0)
    precision = release.used_precision[-count:].mean(axis=0)
    noise = release.late_noise if count < release.n_steps // 4 else float(release.noise_variance[-count:].mean())
    return NetworkWeights(
        model,
        loc,
        1.0 / precision,
        noise,
        replicas=release.replica_loc,
        replica_noise=release.replica_noise,
        event=release.event,
        adjacency=release.adjacency,
        delta=release.delta,
        certified_epsilon=release.certified_epsilon,
        accountant=release.accountant,
        secure=release.secure,
        other_parts=release.other_parts,
        leaks=release.leaks,
    )


def network_trace_posterior(release: NetworkRelease, request: SiteRequest) -> Posterior:
    """Return the approximate posterior of a network's weights, in the form of the other posteriors.

    "exact" is q after the last step, with the variance of each weight over replicas of the run as that of the privacy
    noise.  "naive" leaves the noise out; "averaged", too, is the mean of means and precisions over the steps after the
    burn-in (half of them by default).  ``diagnostics.noise_variance`` is that of a standardised response.  Weights can
    be exchanged between hidden units: intervals of predictions are :meth:`dpinfer.models.NetworkWeights.interval`.

    Raises NumericalError if "exact" is asked of a release without replicas.

    **Privacy.** Post-processing of a NetworkRelease.
    """
    steps = release.n_steps
    first = steps - 1
    if request.approximation == "averaged":
        start = parse_burn_in(request.burn_in, steps, least=1)
        first = steps // 2 if start is None else start
    weights = _weights(release, cast(BayesianNeuralNetwork, model_of(release, request.model)), steps - first)
    zero = np.zeros(release.n_params)
    privacy = zero
    if request.approximation == "exact":
        if not len(release.replica_loc):
            raise NumericalError("the release has no replicas of its run: ask for approximation='naive' or 'averaged'")
        privacy = release.replica_loc.var(axis=0, ddof=1)
    return posterior_of_sites(
        release,
        request,
        burn_in=first,
        optimum_mean=weights.loc.copy(),
        optimum_stddev=np.sqrt(privacy),
        hessian_mean=1.0 / weights.variance,
        hessian_stddev=zero.copy(),
        distribution=IndependentTheta(NormalMixtures.single(weights.loc, privacy), zero + 1.0, weights.variance, None),
        diagnostics=PosteriorDiagnostics(n_steps_used=steps - first, noise_variance=weights.noise_variance),
    )
