"""From a network's release to weights that predict."""

from typing import cast

import numpy as np

from dpinfer._validate import check_interval
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import IndependentTheta
from dpinfer.inference.request import SiteRequest, model_of, parse_burn_in
from dpinfer.inference.sites.posterior import posterior_of_sites
from dpinfer.models import BayesianNeuralNetwork, NetworkWeights, model_from_dict
from dpinfer.release import NetworkRelease


def network_posterior(release: NetworkRelease, *, average: float = 0.0) -> NetworkWeights:
    """Return the approximate posterior of the weights that a run of DP-SEP has released.

    Parameters
    ----------
    release : NetworkRelease
    average : float in [0, 1)
        0 (default): after the last step.  Otherwise the mean of the means and precisions over this last share of the
        steps.

    Returns
    -------
    NetworkWeights

    Notes
    -----
    The variances are those of SEP's q, 1 / precision with the precision floored: they count the prior and the records,
    not the privacy noise in the mean.
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
    noise = float(release.noise_variance[-count:].mean())
    return NetworkWeights(
        model,
        loc,
        1.0 / precision,
        noise,
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

    **Privacy.** Post-processing of a NetworkRelease.

    Parameters
    ----------
    request : SiteRequest
        Whose check the release has passed: "naive" is q after the last step, "averaged" the mean of means and
        precisions over the steps after the burn-in (half of them by default).

    Returns
    -------
    Posterior
        The privacy noise in the means is not counted; ``diagnostics.noise_variance`` is that of a standardised
        response.
    """
    steps = release.n_steps
    first = steps - 1
    if request.approximation == "averaged":
        start = parse_burn_in(request.burn_in, steps, least=1)
        first = steps // 2 if start is None else start
    weights = _weights(release, cast(BayesianNeuralNetwork, model_of(release, request.model)), steps - first)
    zero = np.zeros(release.n_params)
    return posterior_of_sites(
        release,
        request,
        burn_in=first,
        optimum_mean=weights.loc.copy(),
        optimum_stddev=zero,
        hessian_mean=1.0 / weights.variance,
        hessian_stddev=zero.copy(),
        distribution=IndependentTheta(NormalMixtures.single(weights.loc, zero), zero + 1.0, weights.variance, None),
        diagnostics=PosteriorDiagnostics(n_steps_used=steps - first, noise_variance=weights.noise_variance),
    )
