"""From a release to a posterior: the one entry point of the post-processing."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Unpack, cast

import numpy as np

from dpinfer._blas import one_blas_thread
from dpinfer._validate import settings_of
from dpinfer.errors import FallbackWarning, NumericalError
from dpinfer.inference.newton.own_model import own_newton_posterior
from dpinfer.inference.newton.population import population_posterior
from dpinfer.inference.newton.posterior import glm_newton_posterior, newton_posterior
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.request import PLUG_INS, PosteriorOptions, PosteriorRequest, ReleaseFacts, model_of
from dpinfer.inference.simulated.posterior import simulated_newton_posterior, simulated_posterior
from dpinfer.inference.sites.network import network_trace_posterior
from dpinfer.inference.sites.posterior import site_posterior
from dpinfer.inference.statistic.conjugate import one_shot_posterior
from dpinfer.inference.trace.analysis import Analysis
from dpinfer.inference.trace.burn_in import MIN_STEPS, choose_burn_in
from dpinfer.inference.trace.by_coordinate import Coordinates, coordinate_posterior, plug_in_posterior
from dpinfer.inference.trace.information.posteriors import (
    COUPLING_LEVEL,
    GRAM_BURN_IN,
    MODEL_BURN_IN,
    features_coupled,
    flat_full_posterior,
    gram_full_posterior,
    model_full_posterior,
)
from dpinfer.inference.trace.scales.posteriors import fisher_burn_in, fisher_tied_posterior, tied_coordinates
from dpinfer.models import LinearRegression
from dpinfer.release import (
    GlmNewtonRelease,
    GradientTrace,
    NetworkRelease,
    NewtonRelease,
    OwnNewtonRelease,
    PopulationRelease,
    Release,
    SiteRelease,
    StatisticRelease,
)

__all__ = ["noise_aware_posterior"]

_FAILURES = (ArithmeticError, np.linalg.LinAlgError)


def noise_aware_posterior(
    release: Release,
    request: PosteriorRequest | None = None,
    **options: Unpack[PosteriorOptions],
) -> Posterior:
    """Infer the posterior of a model's parameters from a release, counting the privacy noise.

    **Privacy.** Post-processing of a Release: it costs nothing, however often it is called.

    Parameters
    ----------
    release : any release
        A gradient trace of T steps and k coordinates; or the trace of DP-SEP, which takes `method` "exact", "naive" or
        "averaged" (a network's not "exact"), `burn_in`, `model`, `n_samples` and `seed`, and every other argument at
        its default (see :func:`dpinfer.inference.sites.posterior.site_posterior`); or that of a private Newton run,
        which takes `prior` "weak" or "model" (of the noise variance), `model`, `n_samples`, `n_warmup`, `seed`,
        `check_convergence` and `fallback` (see :func:`dpinfer.inference.newton.posterior.newton_posterior`); or the
        noisy sufficient statistics of :func:`dpinfer.run_statistic`, whose posterior is exact.
    request : PosteriorRequest, optional
        All settings in one object, whose check can be made before the mechanism runs; the arguments below change it.
    method : {"exact", "laplace", "simulated", "naive", "averaged"}
        "exact" integrates the trace model by quadrature, to about nine digits; "laplace" approximates the same
        posterior (samplers of it, to compare with: :func:`dpinfer.lab.comparison.sampled_posterior`).  "naive" is q at
        the last iterate and "averaged" q at the mean of the iterates after the burn-in: both ignore the noise.
        "simulated", for a model of your own with a sampler, which `model` must be, and aligned gradients or a private
        Newton run: a posterior of any shape, from a comparison of the mean score with simulations at each truth.
    hessian : {"auto", "diagonal", "full", "tied"}
        "auto" (default), for the "exact" posterior: "tied" for a Fisher-scaled run (recipe "tied"), "full" for a
        logistic, probit or Poisson regression of at most 200 weights whose release names its model, else "diagonal".
        For a Fisher-scaled linear regression "full" takes the place of "tied" where the features are declared
        correlated, or the trace shows that they are (false-positive rate 0.01): see Notes.
        "full": all correlations between the parameters count; the uncertainty of the Hessian is
        integrated over, by Hamiltonian Monte Carlo under the model's prior, by exact draws under flat priors.  "tied":
        the variational precision equals the Hessian's diagonal (true at a mean-field optimum), one unknown per
        parameter.  Both with ``method="exact"`` only.
    burn_in : "auto", float in [0, 1), or int
        First step used: found by a trend test (false-positive rate 0.01), a share of the steps, or a number of steps.
        For the tied posterior of a Fisher-scaled run "auto" is
        :func:`dpinfer.inference.trace.scales.posteriors.fisher_burn_in`, for a full Hessian under its model 0.15
        (linear regression 0.1, and half of the steps for its noise variance).
        For "averaged", "auto" uses the last half at most.
    prior : {"auto", "weak", "model", "empirical"} or TracePrior
        See :func:`dpinfer.inference.trace.priors.coordinate_priors`.  With ``hessian="full"``: "model" is the model's
        prior of the weights and a Wishart prior of the information around its public expectation
        (:attr:`GeneralizedLinearModel.feature_moments`), "weak" has flat priors on the rows of the Hessian and needs
        about as many effective observations as coordinates.  "auto" (default) is "model" for the full Hessian of a
        regression that has it, else "weak".
    extra_noise : bool
        Whether the gradients may be noisier than the privacy noise (subsampling, Monte Carlo): omega / tau has a
        half-Cauchy prior with scale 1, relative to tau_t when that changes with t.
    model : Model, optional
        Overrides the one of ``release.model_spec``: with another prior, say.
    prior_scale : float, optional
        Another prior of the weights than the run was planned with, in the same (scaled) units: for a private Newton run
        of a linear, logistic, probit or Poisson regression.  Other releases take `model`.
    n_samples, n_warmup : int, optional
        Kept and dropped steps of ``hessian="full"`` under the model's prior (200, 100, more if they do not converge);
        `n_samples` is also the number of draws of ``hessian="full"`` under flat priors (1000).  A private Newton run of
        a regression has as many draws as its quantiles need.
    seed : int
        Of ``hessian="full"``.
    progress : bool, optional
        Show the sampler's progress bar, on a terminal and in a notebook; by default from two seconds on.
    check_convergence : bool
        Whether a sampler that did not converge has failed; False takes its draws.
    fallback : bool
        If a posterior fails for numerical reasons: compute the next simpler one that works, with a
        :class:`dpinfer.errors.FallbackWarning` that names both (default), or raise.
    n_threads : int, optional
        All by default.  Results do not depend on it.

    level : float in (0, 1)
        Of the intervals that are shown; see :class:`PosteriorRequest`.

    Returns
    -------
    Posterior
        Its `method`, `hessian` and `prior` describe the computation.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong or does not fit the others.
    NumericalError
        If a coordinate does not move, a sampler did not converge, or no Hessian draw is positive definite: with
        ``fallback=False``, or where the release does not name its model.

    Notes
    -----
    NA-DPVI (Alrawajfeh, Jalko and Honkela 2025), eqs. 20-23, with variance sigma**2 C**2 / beta**2 where eq. A60 prints
    1 / beta.  For aligned gradients the positions are the sampled theta_t and the posterior is
    ``theta ~ N(theta*, Hessian^-1)`` with (Hessian, theta*) unknown.

    Fallbacks: "laplace" falls back to "exact", "full" to "tied" for a Fisher-scaled run, and both to
    "diagonal" with the "weak" prior.  A parameter for which even that is less informative than its prior under the
    model (it did not move, or the run overflowed) keeps that prior, and for a Fisher-scaled run all do;
    ``diagnostics.prior_only`` lists them.

    The intervals of "tied" are wrong for a linear regression with correlated features.  At a small epsilon the trace
    does not always show a correlation: if it is expected, use "full" (and run the mechanism with ``recipe="steady"``,
    whose larger steps show correlations at large epsilon): docs/coverage.md.

    Examples
    --------
    >>> import numpy as np
    >>> from dpinfer.release import release_from_arrays
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(2.0, 1.0, (500, 1))
    >>> g = 0.1 * 50.0 * (x - 2.0) + rng.normal(0.0, 3.0, (500, 1))
    >>> release = release_from_arrays(x, g, noise_stddev=3.0, sample_rate=0.1, family="point")
    >>> posterior = noise_aware_posterior(release, burn_in=0)
    >>> bool(abs(posterior.optimum_mean[0] - 2.0) < 5 * posterior.optimum_stddev[0])
    True
    """
    request = settings_of("noise_aware_posterior", PosteriorRequest, request, options, argument="request")
    request.check(release)
    with one_blas_thread():
        request = _with_prior(release, request)
        if not isinstance(release, GradientTrace):
            try:
                return _OTHER_RELEASES[type(release)](release, request)
            except np.linalg.LinAlgError:
                raise NumericalError(
                    "the posterior cannot be computed in double precision, as features or priors are too far apart in "
                    "size: declare features of about one size"
                ) from None
        analysis = Analysis(release, ReleaseFacts.of(release, request.model), request)
        return _named_for_what_it_is(release, _of_trace(analysis))


def _with_prior(release: Release, request: PosteriorRequest) -> PosteriorRequest:
    """Return the request with the prior that it asks for in the release's model."""
    if request.prior_scale is None:
        return request
    model: Any = model_of(release, request.model)
    return replace(request, model=replace(model, prior_scale=request.prior_scale), prior_scale=None)


def _of_trace(analysis: Analysis) -> Posterior:
    request = analysis.request
    if request.method in PLUG_INS:
        return plug_in_posterior(replace(analysis, request=request.resolve(analysis.facts)))
    if not request.fallback:
        return _attempt(_resolved(analysis))
    return _first_that_works(analysis)


def _named_for_what_it_is(release: GradientTrace, posterior: Posterior) -> Posterior:
    """Mark the posterior of a bare trace: of the optimum alone, or with a curvature and without clipping's bias."""
    bare = release.family == "point" and release.settings.get("source") == "external"
    counted = "curvature" in release.settings and posterior.hessian == "diagonal" and posterior.method not in PLUG_INS
    if not bare:
        return posterior
    known = posterior.diagnostics
    marked = replace(known, clipping_uncounted=True) if counted else replace(known, optimum_only=True)
    return replace(posterior, diagnostics=marked)


# Posteriors of releases other than gradient traces.
_OTHER_RELEASES: dict[type, Callable[[Any, PosteriorRequest], Posterior]] = {
    SiteRelease: site_posterior,
    NetworkRelease: network_trace_posterior,
    StatisticRelease: one_shot_posterior,
    NewtonRelease: newton_posterior,
    GlmNewtonRelease: glm_newton_posterior,
    PopulationRelease: population_posterior,
    OwnNewtonRelease: lambda release, request: _OWN_NEWTON[request.method](release, request),
}


_OWN_NEWTON: dict[str, Callable[[OwnNewtonRelease, PosteriorRequest], Posterior]] = {
    "exact": own_newton_posterior,
    "simulated": simulated_newton_posterior,
}


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
    asked = replace(analysis.request, method="exact", n_samples=None, n_warmup=None)
    if analysis.request.method != "exact":
        yield replace(analysis, request=asked)
    if asked.hessian == "full" and analysis.facts.fisher_scaled and analysis.model is not None:
        yield replace(analysis, request=replace(asked, hessian="tied", prior="weak"))
    yield replace(analysis, request=replace(asked, hessian="diagonal", prior="weak"))


def _told(posterior: Posterior, asked: PosteriorRequest, failure: Exception) -> Posterior:
    """Return the posterior with the reason of the fallback, and warn."""

    def named(method: str, hessian: str, prior: str) -> str:
        return f"method={method!r}, hessian={hessian!r}, prior={prior!r}"

    text = (
        f"the posterior with {named(asked.method, asked.hessian, asked.prior_name)} failed ({failure}); computed "
        f"instead: {named(posterior.method, posterior.hessian, posterior.prior)}"
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
        and features_coupled(analysis.release, cast(LinearRegression, analysis.model)) < COUPLING_LEVEL
    ):
        request = replace(request, hessian="full", prior="model")
    return replace(analysis, request=request)


@np.errstate(divide="ignore", over="ignore", invalid="ignore")  # values that are not finite are found at the end
def _attempt(analysis: Analysis, *, rescue: bool = False) -> Posterior:
    """Compute one posterior.

    Raises
    ------
    NumericalError
        If it cannot be computed, or is not proper.
    """
    facts, request = analysis.facts, analysis.request
    if request.method == "simulated":
        return simulated_posterior(analysis)
    under_model = request.hessian == "full" and request.prior == "model"
    linear = isinstance(facts.model, LinearRegression)
    burn_in = request.burn_in
    share: float | None = None
    if isinstance(burn_in, str):
        if request.hessian == "tied" and facts.fisher_scaled:
            share = fisher_burn_in(facts.model)
        elif under_model:
            share = GRAM_BURN_IN if linear else MODEL_BURN_IN
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
