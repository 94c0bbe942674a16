"""From a release to a posterior: the one entry point of the post-processing."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Unpack

import numpy as np

from dpinfer._surroundings import one_blas_thread
from dpinfer._validate import settings_of
from dpinfer.errors import NumericalError
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.request import (
    KindRequest,
    NewtonRequest,
    OwnNewtonRequest,
    OwnPopulationRequest,
    PopulationRequest,
    PosteriorOptions,
    PosteriorRequest,
    Room,
    SiteRequest,
    StatisticRequest,
    TraceRequest,
    model_of,
    room_of,
)
from dpinfer.release import (
    ClusteredPopulationRelease,
    GlmNewtonRelease,
    GradientTrace,
    NetworkRelease,
    NewtonRelease,
    OwnNewtonRelease,
    OwnPopulationRelease,
    PopulationRelease,
    Release,
    SiteRelease,
    StatisticRelease,
)
from dpinfer.release.newton.regression import ScoreSums


def noise_aware_posterior(
    release: Release,
    request: KindRequest | None = None,
    **options: Unpack[PosteriorOptions],
) -> Posterior:
    """Infer the posterior of a model's parameters from a release, counting the privacy noise.

    **Privacy.** Post-processing of a Release: it costs nothing, however often it is called.

    Raises NumericalError if a coordinate does not move, a sampler did not converge, or no Hessian draw is positive
    definite: with ``fallback=False``, or where the release does not name its model.

    Parameters
    ----------
    release : any release
        A gradient trace has T steps and k coordinates.  The trace of DP-SEP takes `approximation` "exact", "naive" or
        "averaged", `burn_in`, `model`, `n_samples` and `seed` (see
        :func:`dpinfer.inference.sites.posterior.site_posterior`).  A private Newton run takes `prior` "weak" or "model"
        (of the noise variance), `model`, `n_samples`, `n_warmup`, `seed`, `check_convergence` and `fallback` (see
        :func:`dpinfer.inference.newton.posterior.newton_posterior`).  Noisy sufficient statistics of
        :func:`dpinfer.run_statistic` have an exact posterior.
    request : PosteriorRequest, or that of the release's kind, optional
        All settings in one object, which can be checked before the mechanism runs; the arguments below change it.
    approximation : {"exact", "laplace", "simulated", "naive", "averaged"}
        "exact" integrates the trace model by quadrature, to about nine digits; "laplace" approximates the same
        posterior by a Gaussian at its mode, with a diagonal Hessian, or a full one under flat priors
        (:func:`dpinfer.lab.comparison.sampled_posterior` samples it, for comparison).  "naive" is q at the last
        iterate, "averaged" q at the mean of the iterates after the burn-in: both ignore the noise.  "simulated" gives a
        posterior of any shape: it compares the mean score with simulations at each truth, for a `model` of
        your own with a sampler, from aligned gradients or a private Newton run.
    hessian : {"auto", "diagonal", "full", "tied"}
        "auto" (default), for the "exact" posterior: "tied" for a Fisher-scaled run (recipe "tied"), "full" for a
        logistic, probit or Poisson regression of at most 200 weights whose release names its model, else "diagonal".
        For a Fisher-scaled linear regression "full" replaces "tied" if the features are declared correlated, or the
        trace shows a correlation (false-positive rate 0.01): see Notes. "full" counts all correlations between the
        parameters, and integrates over the Hessian: by Hamiltonian Monte Carlo under the model's prior, by exact
        draws under flat priors.  "tied" sets the variational precision to the Hessian's diagonal (true at a
        mean-field optimum), with one unknown per parameter; it needs ``approximation="exact"``.
    burn_in : "auto", float in [0, 1), or int
        First step used: found by a trend test (false-positive rate 0.01), a share of the steps, or a number of steps.
        For the tied posterior of a Fisher-scaled run "auto" is
        :func:`dpinfer.inference.trace.scales.tied.fisher_burn_in`, for a full Hessian under its model 0.15
        (linear regression 0.1, and half of the steps for its noise variance).
        For "averaged", "auto" uses the last half at most.
    prior : {"auto", "weak", "model", "empirical"} or TracePrior
        See :func:`dpinfer.inference.trace.priors.coordinate_priors`.  With ``hessian="full"``: "model" is the model's
        prior of the weights and a Wishart prior of the information around its public expectation
        (:attr:`GeneralizedLinearModel.feature_moments`), "weak" has flat priors on the rows of the Hessian and needs
        about as many effective observations as coordinates.  "auto" (default) is "model" for the full Hessian of a
        regression that has it, else "weak".
    extra_noise : bool
        Whether subsampling or Monte Carlo may add noise to the gradients beyond the privacy noise: omega / tau has a
        half-Cauchy prior with scale 1, relative to tau_t if that changes with t.
    model : Model, optional
        A model in place of that of ``release.model_spec``, with another prior, say.
    prior_scale : float, optional
        Standard deviation of another prior of the weights, in the scaled units of the run's own, for a private Newton
        run of a linear, logistic, probit or Poisson regression.  Other releases take `model`.
    n_samples, n_warmup : int, optional
        Kept and dropped steps of ``hessian="full"`` under the model's prior (200, 100, more if they do not converge);
        `n_samples` is also the number of draws of ``hessian="full"`` under flat priors (1000).  A private Newton run
        has as many draws as its quantiles need.
    seed : int
        Of ``hessian="full"``.
    progress : bool, optional
        Show the sampler's progress bar, on a terminal and in a notebook; by default from two seconds on.
    check_convergence : bool
        Whether a sampler that did not converge counts as failed; False keeps its draws.
    fallback : bool
        Whether a posterior that fails for numerical reasons is replaced by the next simpler one that works, with a
        :class:`dpinfer.errors.FallbackWarning` that names both; False raises.
    n_threads : int, optional
        All by default.  Results do not depend on it.
    sampler : object with `init` and `step`, optional
        It draws the errors of the weights from their log density (docs/architecture.md), in place of the library's
        proposals, after `n_warmup` steps; for a private Newton run of a linear, logistic, probit or Poisson regression.
    level : float in (0, 1)
        Of the intervals that are shown; see :class:`PosteriorRequest`.

    Returns
    -------
    Posterior
        Its `method` names the method of the run, `approximation`, `hessian` and `prior` repeat the request, and
        `computed` describes the computation.

    Notes
    -----
    NA-DPVI (Alrawajfeh, Jalko and Honkela 2025), eqs. 20-23, with variance sigma**2 C**2 / beta**2 where eq. A60 prints
    1 / beta.  For aligned gradients the positions are the sampled theta_t and the posterior is
    ``theta ~ N(theta*, Hessian^-1)`` with (Hessian, theta*) unknown.

    Fallbacks: "laplace" falls back to "exact", "full" to "tied" for a Fisher-scaled run, and both to "diagonal" with
    the "weak" prior.  If even that tells less about a parameter than its prior under the model (it did not move, or
    the run overflowed), the parameter keeps the prior; in a Fisher-scaled run all then do.
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
    kind = type(request) if isinstance(request, KindRequest) else PosteriorRequest
    request = settings_of("noise_aware_posterior", kind, request, options, argument="request")
    request.check(release)
    room = room_of(type(release))
    with one_blas_thread():
        try:
            return _answered(release, room, _with_prior(release, request.of_kind(room)))
        except np.linalg.LinAlgError as error:
            if isinstance(release, GradientTrace):
                raise
            raise NumericalError(
                "the posterior cannot be computed in double precision, as features or priors are too far apart in "
                "size: declare features of about one size"
            ) from error


def _answered(release: Release, room: Room, request: KindRequest) -> Posterior:
    """Return the posterior of a room; of a private Newton run with the noisy number of records that it used."""
    if not isinstance(release, ScoreSums):
        return room.posterior(release, request)
    from dpinfer.inference.newton.counted import with_used_records

    return with_used_records(release, lambda counted: room.posterior(counted, request))


def _with_prior(release: Release, request: KindRequest) -> KindRequest:
    """Return the request with the prior that it asks for in the release's model."""
    if not isinstance(request, PopulationRequest) or request.prior_scale is None:
        return request
    model: Any = model_of(release, request.model)
    return replace(request, model=replace(model, prior_scale=request.prior_scale), prior_scale=None)


def _own_posterior(release: OwnNewtonRelease, request: OwnNewtonRequest) -> Posterior:
    """Return what was asked for: a mixture of normal laws, or draws by the model's own simulator."""
    if request.approximation == "simulated":
        from dpinfer.inference.simulated.posterior import simulated_newton_posterior as infer
    else:
        from dpinfer.inference.newton.own_model import own_newton_posterior as infer
    return infer(release, request)


def _room(told: str, request: type[KindRequest], check: str, posterior: str) -> Room:
    """Return a room whose functions are imported now: a posterior needs the modules of one room alone."""
    places = [name.rpartition(".") for name in (check, posterior)]
    found = [getattr(import_module(f"dpinfer.inference.{module}"), name) for module, _, name in places]
    return Room(told, request, *found)


_OF_NEWTON = partial(_room, "the release of a private Newton run", check="newton.checks.check_newton_request")
_OF_SITES = partial(_room, "the trace of DP-SEP", SiteRequest, "sites.posterior.check_site_request")
_OF_POPULATION = partial(_OF_NEWTON, posterior="newton.population.population_posterior")
# How each kind of release is asked, and answers.
ROOMS: dict[type[Release], Callable[[], Room]] = {
    GradientTrace: partial(
        _room,
        "a gradient trace",
        TraceRequest,
        "trace.posterior.check_trace_request",
        "trace.posterior.trace_posterior",
    ),
    SiteRelease: partial(_OF_SITES, "sites.posterior.site_posterior"),
    NetworkRelease: partial(_OF_SITES, "sites.posterior.network_trace_posterior"),
    StatisticRelease: partial(
        _room,
        "a one-shot release",
        StatisticRequest,
        "statistic.conjugate.check_statistic_request",
        "statistic.conjugate.one_shot_posterior",
    ),
    NewtonRelease: partial(_OF_NEWTON, NewtonRequest, posterior="newton.posterior.newton_posterior"),
    GlmNewtonRelease: partial(_OF_NEWTON, NewtonRequest, posterior="newton.posterior.glm_newton_posterior"),
    PopulationRelease: partial(_OF_POPULATION, PopulationRequest),
    ClusteredPopulationRelease: partial(_OF_POPULATION, PopulationRequest),
    OwnNewtonRelease: partial(_OF_NEWTON, OwnNewtonRequest, posterior="fit._own_posterior"),
    OwnPopulationRelease: partial(_OF_POPULATION, OwnPopulationRequest),
}
