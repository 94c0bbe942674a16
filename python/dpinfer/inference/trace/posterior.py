"""The posterior of a gradient trace: checks of the request, choice of Hessian and prior, and fallbacks."""

import math
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import cast

import numpy as np

from dpinfer._validate import check_integer
from dpinfer.errors import FallbackWarning, NumericalError
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.request import MIN_STEPS, PLUG_INS, ReleaseFacts, TraceRequest, parse_burn_in
from dpinfer.inference.simulated.posterior import simulated_posterior
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.analysis import Analysis
from dpinfer.inference.trace.burn_in import choose_burn_in
from dpinfer.inference.trace.by_coordinate import Coordinates, coordinate_posterior, plug_in_posterior
from dpinfer.inference.trace.information.posteriors import (
    features_coupled,
    flat_full_posterior,
    gram_full_posterior,
    model_full_posterior,
)
from dpinfer.inference.trace.priors import TracePrior
from dpinfer.inference.trace.scales.tied import fisher_burn_in, fisher_tied_posterior, tied_coordinates
from dpinfer.models import LinearRegression, OwnModel
from dpinfer.release import GradientTrace

_FAILURES = (ArithmeticError, np.linalg.LinAlgError)


def trace_posterior(release: GradientTrace, request: TraceRequest) -> Posterior:
    """Return the posterior of a gradient trace, or the next simpler one that can be computed.

    **Privacy.** Post-processing of a GradientTrace: it costs nothing.
    """
    analysis = Analysis(release, ReleaseFacts.of(release, request.model), request)
    if request.approximation in PLUG_INS:
        posterior = plug_in_posterior(replace(analysis, request=request.resolve(analysis.facts)))
    elif request.fallback:
        posterior = _first_that_works(analysis)
    else:
        posterior = _attempt(_resolved(analysis))
    return _named_for_what_it_is(release, posterior)


def _named_for_what_it_is(release: GradientTrace, posterior: Posterior) -> Posterior:
    """Mark the posterior of a bare trace: of the optimum alone, or with a curvature and without clipping's bias."""
    if release.family != "point" or release.settings.get("source") != "external":
        return posterior
    counted = "curvature" in release.settings and posterior.hessian == "diagonal" and posterior.computed != "plug-in"
    known = posterior.diagnostics
    marked = replace(known, clipping_uncounted=True) if counted else replace(known, optimum_only=True)
    return replace(posterior, diagnostics=marked)


def _first_that_works(analysis: Analysis) -> Posterior:
    """Compute the requested posterior, or else the next simpler one that works, with a warning."""
    first = replace(analysis, request=analysis.request.resolve(analysis.facts))
    try:
        first = _resolved(analysis)
        return _attempt(first)
    except _FAILURES as error:
        failure = error
    *between, last = _simpler(first)
    for simpler in between:
        with suppress(*_FAILURES):
            return _told(_attempt(simpler), first.request, failure)
    return _told(_attempt(last, rescue=True), first.request, failure)


def _simpler(analysis: Analysis) -> Iterator[Analysis]:
    """Return the posteriors to fall back to, the best first; none of them draws samples."""
    asked = replace(analysis.request, approximation="exact", n_samples=None, n_warmup=None)
    if analysis.request.approximation != "exact":
        yield replace(analysis, request=asked)
    if asked.hessian == "full" and analysis.facts.fisher_scaled and analysis.model is not None:
        yield replace(analysis, request=replace(asked, hessian="tied", prior="weak"))
    yield replace(analysis, request=replace(asked, hessian="diagonal", prior="weak"))


def _told(posterior: Posterior, asked: TraceRequest, failure: Exception) -> Posterior:
    """Return the posterior with the reason of the fallback, and warn."""

    def named(approximation: str, hessian: str, prior: str) -> str:
        return f"approximation={approximation!r}, hessian={hessian!r}, prior={prior!r}"

    text = (
        f"the posterior with {named(asked.approximation, asked.hessian, asked.prior_name)} failed ({failure}); "
        f"computed instead: {named(posterior.approximation, posterior.hessian, posterior.prior)}"
    )
    lost = posterior.diagnostics.prior_only
    if lost is not None:
        text += f", and {np.count_nonzero(lost)} of {lost.size} parameters keep their prior"
    warnings.warn(text, FallbackWarning, stacklevel=4)
    return replace(posterior, diagnostics=replace(posterior.diagnostics, fallback=text))


def _resolved(analysis: Analysis) -> Analysis:
    """Replace "auto" for Hessian and prior; the trace may also show correlated features."""
    facts = analysis.facts
    request = analysis.request.resolve(facts)
    if (
        analysis.request.left_to_trace(facts)
        and features_coupled(analysis.release, cast(LinearRegression, analysis.model)) < tuning.TUNING.level
    ):
        request = replace(request, hessian="full", prior="model")
    return replace(analysis, request=request)


@np.errstate(divide="ignore", over="ignore", invalid="ignore")  # values that are not finite are found at the end
def _attempt(analysis: Analysis, *, rescue: bool = False) -> Posterior:
    """Compute one posterior.

    Raises NumericalError if it cannot be computed, or is not proper.
    """
    facts, request = analysis.facts, analysis.request
    if request.approximation == "simulated":
        return simulated_posterior(analysis)
    under_model = request.hessian == "full" and request.prior == "model"
    linear = isinstance(facts.model, LinearRegression)
    burn_in = request.burn_in
    share: float | None = None
    if isinstance(burn_in, str):
        if request.hessian == "tied" and facts.fisher_scaled:
            share = fisher_burn_in(facts.model)
        elif under_model:
            share = tuning.TUNING.gram_burn_in if linear else tuning.TUNING.model_burn_in
    if share is not None:
        burn_in = min(math.floor(share * facts.n_steps), facts.n_steps - MIN_STEPS)
    # The tied model is nonlinear in u exactly, so only the location coordinates show the start of linearity.
    start = choose_burn_in(
        burn_in,
        *analysis.steps(0),
        watched=facts.n_params if request.hessian == "tied" else None,
        n_threads=request.threads,
    )
    if under_model:
        posterior = (gram_full_posterior if linear else model_full_posterior)(analysis, start)
    elif request.hessian == "full":
        posterior = flat_full_posterior(analysis, start)
    elif request.hessian == "tied" and facts.fisher_scaled:
        posterior = fisher_tied_posterior(analysis, start)
    else:
        tied = request.hessian == "tied"
        coordinates = tied_coordinates(analysis, start) if tied else Coordinates.of(analysis.release, start)
        posterior = coordinate_posterior(analysis, start, coordinates, rescue=rescue)
    marginals = posterior.distribution.marginals
    if not np.all(np.isfinite(marginals.mean) & np.isfinite(marginals.variance) & (marginals.variance > 0.0)):
        raise NumericalError("the trace leads to no proper posterior of some parameter")
    return posterior


def check_trace_request(request: TraceRequest, facts: ReleaseFacts) -> None:
    """Refuse what the trace does not answer.

    Raises TypeError or ValueError if the settings do not fit each other or the trace; the message names the argument.
    """
    if not isinstance(facts, ReleaseFacts):
        raise TypeError("release must be a GradientTrace or its ReleaseFacts: what it answers depends on its noise")
    asked = request.resolve(facts)
    if request.approximation == "simulated":
        _check_simulated(asked, facts)
    else:
        _check_combination(asked, facts)
        if not request.left_to_trace(facts):
            _check_sampling(asked)
    if request.approximation != "naive":
        parse_burn_in(request.burn_in, facts.n_steps)
    if request.approximation in PLUG_INS:
        return
    if isinstance(request.prior, TracePrior):
        request.prior.broadcast(facts.width(asked.hessian))
    if asked.hessian == "diagonal" and asked.prior == "model" and (facts.model is None or facts.n_records is None):
        raise ValueError("prior 'model' needs a release with a model and a public n_records")


def _check_combination(request: TraceRequest, facts: ReleaseFacts) -> None:
    hessian, prior = request.hessian, request.prior
    by_laplace = request.approximation == "laplace" and hessian == "full" and prior == "weak"
    if hessian != "diagonal" and request.approximation != "exact" and not by_laplace:
        also = ", or 'laplace' with prior='weak'" if hessian == "full" else ""
        raise ValueError(f"approximation must be 'exact' with hessian={hessian!r}{also}, got {request.approximation!r}")
    if hessian == "full" and prior == "model" and not facts.has_model_hessian:
        raise ValueError(
            "prior must be 'weak' with hessian='full' unless the release names a generalised linear model and "
            "n_records, and has reparameterised gradients with constant noise (linear regression: the same for all "
            "weights up to a factor of the step)"
        )
    if hessian == "full" and prior not in ("weak", "model"):
        raise ValueError("prior must be 'model' or 'weak' with hessian='full'")
    if hessian != "tied":
        return
    if facts.family != "mean_field" or not (facts.gradient == "reparameterised" or facts.fisher_scaled):
        raise ValueError(
            "hessian='tied' needs a release with family 'mean_field' and, without Fisher scaling, gradient "
            f"'reparameterised', got {facts.family!r} and {facts.gradient!r}"
        )
    if facts.fisher_scaled and prior not in ("weak", "model"):
        raise ValueError("prior must be 'weak' or 'model' for the tied posterior of a Fisher-scaled run")


def _check_simulated(request: TraceRequest, facts: ReleaseFacts) -> None:
    if not isinstance(facts.model, OwnModel) or facts.gradient != "aligned" or facts.noise != "constant":
        raise ValueError(
            "approximation='simulated' needs aligned gradients with a constant preconditioner, and a model of your own"
        )
    if not facts.model.has_sampler:
        raise ValueError("approximation='simulated' needs model=, the model of the run with its sampler")
    if request.hessian != "diagonal" or request.prior not in ("auto", "weak"):
        raise ValueError("hessian and prior must be left at their defaults with approximation='simulated'")
    if request.n_samples is not None:
        check_integer("n_samples", request.n_samples, 100)


def _check_sampling(request: TraceRequest) -> None:
    if request.n_samples is not None and request.hessian != "full":
        raise ValueError(
            f"n_samples must not be given with approximation={request.approximation!r} and "
            f"hessian={request.hessian!r}: it does not sample"
        )
    if request.n_warmup is not None and not (request.hessian == "full" and request.prior == "model"):
        raise ValueError(f"n_warmup must not be given with approximation={request.approximation!r}: it has no warm-up")
