"""Post-processing: from a release to a posterior that counts the privacy noise.  Nothing here reads a record.

**Privacy.** Everything in this package is post-processing of a Release and costs nothing.
"""

from typing import TYPE_CHECKING

from dpinfer._lazy import lazy_names
from dpinfer.inference.fit import noise_aware_posterior
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.synthetic import CombinedEstimates, SyntheticSets
from dpinfer.inference.request import PlannedRelease, PosteriorRequest, ReleaseFacts
from dpinfer.inference.trace.priors import TracePrior

if TYPE_CHECKING:
    from dpinfer.inference.posterior.archive import load_posterior
    from dpinfer.inference.sites.posterior import network_posterior

__all__ = [
    "CombinedEstimates",
    "PlannedRelease",
    "Posterior",
    "PosteriorDiagnostics",
    "PosteriorRequest",
    "ReleaseFacts",
    "SyntheticSets",
    "TracePrior",
    "load_posterior",
    "network_posterior",
    "noise_aware_posterior",
]

__getattr__, __dir__ = lazy_names(
    __name__, {".posterior.archive": "load_posterior", ".sites.posterior": "network_posterior"}
)
