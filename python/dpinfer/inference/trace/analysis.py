"""One release, its public facts and the request: the input of every kind of posterior."""

from dataclasses import dataclass
from typing import Any

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, resolve_progress
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.request import ReleaseFacts, TraceRequest
from dpinfer.models import Model
from dpinfer.release import GradientTrace


@dataclass(frozen=True)
class Analysis:
    """A gradient trace and the settings of its posterior, "auto" resolved."""

    release: GradientTrace
    facts: ReleaseFacts  # of that release
    request: TraceRequest

    @property
    def model(self) -> Model | None:
        """The model, if it is known."""
        return self.facts.model

    @property
    def report(self) -> ProgressCallback:
        """Callback for the number of finished draws of the information."""
        return resolve_progress(self.request.progress, "draws of the information")

    def steps(self, first: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return positions, gradients and noise from a step on."""
        release = self.release
        noise = release.noise_stddev if release.noise_stddev.ndim == 1 else release.noise_stddev[first:]
        return release.positions[first:], release.noisy_gradients[first:], noise

    def posterior(self, **results: Any) -> Posterior:
        """Return the posterior with these results; everything else follows from the release and the request."""
        release, request = self.release, self.request
        return Posterior(
            names=release.names,
            method="dpvi",
            approximation=request.approximation,
            hessian=request.hessian,
            prior=request.prior_name,
            model=self.model,
            guarantee=release.guarantee,
            **results,
        )
