"""The posterior of a gradient trace with independent coordinates, by a sampler in place of quadrature."""

from dataclasses import replace
from typing import Any, Unpack

from dpinfer._surroundings import one_blas_thread
from dpinfer._validate import check_choice, check_integer, settings_of
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.request import PosteriorOptions, PosteriorRequest, ReleaseFacts
from dpinfer.inference.trace.analysis import Analysis
from dpinfer.inference.trace.burn_in import choose_burn_in
from dpinfer.inference.trace.by_coordinate import Coordinates, Solved, coordinate_posterior
from dpinfer.inference.trace.collapsed import CollapsedProblems
from dpinfer.lab.comparison.ensemble import DEFAULT_SAMPLES, DEFAULT_WALKERS, emcee_nodes
from dpinfer.lab.comparison.nuts import nuts_nodes
from dpinfer.release import GradientTrace

__all__ = ["sampled_posterior"]

SAMPLERS = ("emcee", "nuts")


def sampled_posterior(
    release: GradientTrace, sampler: str = "emcee", /, **options: Unpack[PosteriorOptions]
) -> Posterior:
    """Return the posterior with a diagonal Hessian of a gradient trace, drawn by a sampler.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    release : GradientTrace
    sampler : {"emcee", "nuts"}
        Ensembles of emcee for each coordinate, or NUTS of NumPyro (extra ``dpinfer[nuts]``) for all of them.
    burn_in, prior, extra_noise, model, seed, progress, check_convergence, n_threads
        As in :func:`dpinfer.noise_aware_posterior`.
    n_samples, n_warmup : int, optional
        Kept and dropped steps: 1500 and 300 of emcee, 4000 and 1000 of NUTS.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    BackendUnavailableError
        If NumPyro is needed and not installed.
    NumericalError
        If a coordinate does not move, or the sampler did not converge.

    Examples
    --------
    >>> import numpy as np
    >>> from dpinfer.release import release_from_arrays
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(2.0, 1.0, (500, 1))
    >>> g = 0.1 * 50.0 * (x - 2.0) + rng.normal(0.0, 3.0, (500, 1))
    >>> release = release_from_arrays(x, g, noise_stddev=3.0, sample_rate=0.1, family="point")
    >>> posterior = sampled_posterior(release, burn_in=0, n_samples=50, check_convergence=False)
    >>> bool(abs(posterior.optimum_mean[0] - 2.0) < 5 * posterior.optimum_stddev[0])
    True
    """
    if not isinstance(release, GradientTrace):
        raise TypeError(f"release must be a GradientTrace, got {type(release).__name__}")
    check_choice("sampler", sampler, SAMPLERS)
    chain: dict[str, Any] = {"n_samples": options.pop("n_samples", None), "n_warmup": options.pop("n_warmup", None)}
    chain = {name: check_integer(name, value, 1) for name, value in chain.items() if value is not None}
    asked: PosteriorOptions = {"hessian": "diagonal", **options}
    request = settings_of("sampled_posterior", PosteriorRequest, None, asked, argument="request")
    request.check(release)
    if request.approximation != "exact" or request.hessian != "diagonal":
        raise ValueError("approximation and hessian must not be given: the samplers are for the diagonal Hessian")
    chain |= {
        "seed": request.seed,
        "progress": bool(request.progress),
        "check_convergence": bool(request.check_convergence),
    }

    facts = ReleaseFacts.of(release, request.model)
    analysis = Analysis(release, facts, request.resolve(facts))
    with one_blas_thread():
        start = choose_burn_in(request.burn_in, *analysis.steps(0), n_threads=request.threads)

    def solve(analysis: Analysis, problems: CollapsedProblems, coordinates: Coordinates) -> Solved:
        names = coordinates.names
        if sampler == "emcee":
            nodes, times = emcee_nodes(problems, names, **chain)
            effective = chain.get("n_samples", DEFAULT_SAMPLES) * DEFAULT_WALKERS / times
            return Solved(nodes, diagnostics=PosteriorDiagnostics(autocorrelation=times, effective_draws=effective))
        nodes, rhat = nuts_nodes(
            problems, *analysis.steps(start.start), names, sample_rate=release.sample_rate, **chain
        )
        return Solved(nodes, diagnostics=PosteriorDiagnostics(rhat=rhat))

    with one_blas_thread():
        posterior = coordinate_posterior(analysis, start, Coordinates.of(release, start), solve=solve)
    return replace(posterior, approximation=sampler)
