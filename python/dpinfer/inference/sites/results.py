"""What every posterior from a trace of DP-SEP states of itself."""

from typing import Any

from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.request import SiteRequest, model_of
from dpinfer.release import NetworkRelease, SiteRelease


def posterior_of_sites(release: SiteRelease | NetworkRelease, request: SiteRequest, **results: Any) -> Posterior:
    """Return the posterior with these results; everything else follows from the release and the request."""
    return Posterior(
        names=release.names,
        method="sep",
        approximation=request.approximation,
        hessian="sites",
        prior="weak",
        optimum_names=release.names,
        model=model_of(release, request.model),
        guarantee=release.guarantee,
        **results,
    )
