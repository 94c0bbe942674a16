"""From a release to a posterior: the one entry point of the post-processing."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._progress import resolve_progress
from dpinfer._validate import check_choice, check_integer
from dpinfer.inference.burn_in import BurnIn, choose_burn_in
from dpinfer.inference.collapsed import CollapsedProblems, Nodes, SideRegression, collapsed_nodes
from dpinfer.inference.full_fit import (
    COUPLING_LEVEL,
    GRAM_BURN_IN,
    MODEL_BURN_IN,
    coupling_findings,
    features_coupled,
    flat_full_posterior,
    gram_full_posterior,
    model_full_posterior,
    suits_model_hessian,
)
from dpinfer.inference.laplace import laplace_posterior
from dpinfer.inference.mixture import NormalMixtures
from dpinfer.inference.posterior import Posterior
from dpinfer.inference.priors import PRIORS, TracePrior, coordinate_priors, optimum_under_model
from dpinfer.inference.sites import site_posterior
from dpinfer.inference.theta import IndependentTheta
from dpinfer.inference.tied import FisherRun, TiedTrace, fisher_tied_nodes, pooled_slope_score, raw_scale_sums
from dpinfer.inference.trace_checks import check_statistics
from dpinfer.models import LinearRegression, Model, model_from_dict
from dpinfer.release import Release, SiteRelease

__all__ = ["noise_aware_posterior"]

FloatArray = npt.NDArray[np.float64]

METHODS = ("exact", "laplace", "emcee", "nuts", "naive", "averaged")
HESSIANS = ("auto", "diagonal", "full", "tied")

_FISHER_BURN_IN, _FISHER_VARIANCE_BURN_IN = 0.35, 0.5


def noise_aware_posterior(
    release: Release | SiteRelease,
    *,
    method: str = "exact",
    hessian: str = "auto",
    burn_in: str | float | int = "auto",
    prior: str | TracePrior = "auto",
    extra_noise: bool = True,
    model: Model | None = None,
    n_samples: int | None = None,
    n_warmup: int | None = None,
    seed: int = 0,
    progress: bool = False,
    check_convergence: bool = True,
    n_threads: int | None = None,
) -> Posterior:
    """Infer the posterior of a model's parameters from a release, counting the privacy noise.

    **Privacy.** Post-processing of a Release: it costs nothing, however often it is called.

    Parameters
    ----------
    release : Release or SiteRelease
        With T steps and k gradient coordinates; or the trace of DP-SEP, which takes `method` "exact", "naive" or
        "averaged", `burn_in`, `model`, `n_samples` and `seed`, and every other argument at its default (see
        :func:`dpinfer.inference.sites.site_posterior`).
    method : {"exact", "laplace", "emcee", "nuts", "naive", "averaged"}
        "exact" integrates the trace model by quadrature, to about nine digits; "laplace", "emcee" and "nuts" (extra
        ``dpinfer[nuts]``) approximate the same posterior and are there to compare with.  "naive" is q at the last
        iterate and "averaged" q at the mean of the iterates after the burn-in: both ignore the noise.
    hessian : {"auto", "diagonal", "full", "tied"}
        "auto" (default), for the "exact" posterior: "tied" for a Fisher-scaled run (recipe "tied"), "full" for a
        logistic, probit or Poisson regression of at most 200 weights whose release names its model, else "diagonal".
        For a Fisher-scaled linear regression "full" takes the place of "tied" where the features are declared
        correlated, or the trace shows that they are (false-positive rate 0.01): see Notes.
        "full": all correlations between the parameters count; what the trace leaves open about the Hessian is
        integrated over, by Hamiltonian Monte Carlo under the model's prior, by exact draws under flat priors.  "tied":
        the variational precision equals the Hessian's diagonal (true at a mean-field optimum), one unknown per
        parameter.  Both with ``method="exact"`` only.
    burn_in : "auto", float in [0, 1), or int
        First step used: found by a trend test (false-positive rate 0.01), a share of the steps, or a number of steps.
        For the tied posterior of a Fisher-scaled run "auto" is :func:`fisher_burn_in`, for a full Hessian under its
        model 0.15 (linear regression 0.1, and half of the steps for its noise variance).
        For "averaged", "auto" uses the last half at most.
    prior : {"auto", "weak", "model", "empirical"} or TracePrior
        See :func:`dpinfer.inference.priors.coordinate_priors`.  With ``hessian="full"``: "model" is the model's prior
        of the weights and a Wishart prior of the information around what public knowledge expects
        (:attr:`GeneralizedLinearModel.feature_moments`), "weak" has flat priors on the rows of the Hessian and needs
        about as many effective observations as coordinates.  "auto" (default) is "model" for the full Hessian of a
        regression that has it, else "weak".
    extra_noise : bool
        Whether the gradients may be noisier than the privacy noise (subsampling, Monte Carlo): omega / tau has a
        half-Cauchy prior with scale 1, relative to tau_t when that changes with t.
    model : Model, optional
        Overrides the one that ``release.model_spec`` describes.
    n_samples, n_warmup : int, optional
        Kept and dropped steps of "emcee" (1500, 300), "nuts" (4000, 1000) and ``hessian="full"`` under the model's
        prior (200, 100, more if they do not converge); `n_samples` is also the number of draws of ``hessian="full"``
        under flat priors (1000).
    seed : int
        Of "emcee", "nuts" and ``hessian="full"``.
    progress : bool
        Show the sampler's progress bar.
    check_convergence : bool
        Raise when a sampler did not converge; False opts out.
    n_threads : int, optional
        All by default.  Results do not depend on it.

    Returns
    -------
    Posterior

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong or does not fit the others.
    BackendUnavailableError
        If NumPyro is needed and not installed.
    NumericalError
        If a coordinate does not move, a sampler did not converge, or no Hessian draw is positive definite.

    Notes
    -----
    NA-DPVI (Alrawajfeh, Jalko and Honkela 2025), eqs. 20-23, with variance sigma**2 C**2 / beta**2 where eq. A60 prints
    1 / beta.  For aligned gradients the positions are the sampled theta_t and the posterior is
    ``theta ~ N(theta*, Hessian^-1)`` with (Hessian, theta*) unknown.

    The intervals of "tied" are wrong for a linear regression with correlated features.  At a small epsilon the trace
    does not always show a correlation: where it is to be expected, ask for "full" (and run the mechanism with
    ``recipe="steady"``, whose larger steps tell correlations at large epsilon): docs/coverage.md.

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
    if isinstance(release, SiteRelease):
        given = {"hessian": hessian != "auto", "prior": prior != "auto", "n_warmup": n_warmup is not None}
        for name, changed in given.items():
            if changed:
                raise ValueError(f"{name} must be left at its default for the trace of DP-SEP")
        return site_posterior(release, method=method, burn_in=burn_in, n_samples=n_samples, seed=seed, model=model)
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release or a SiteRelease, got {type(release).__name__}")
    check_choice("method", method, METHODS)
    check_choice("hessian", hessian, HESSIANS)
    model = _model_of(release, model)
    suited = suits_model_hessian(release, model)
    if hessian == "auto":
        tied = method == "exact" and _is_fisher_scaled(release)
        full = method == "exact" and suited and isinstance(prior, str) and prior in ("auto", "model")
        if isinstance(model, LinearRegression) and full:
            full = tied and features_coupled(release, model) < COUPLING_LEVEL
            tied = tied and not full
        hessian = "tied" if tied else "full" if full else "diagonal"
    if isinstance(prior, str) and prior == "auto":
        prior = "model" if hessian == "full" and suited else "weak"
    for name, flag in (("extra_noise", extra_noise), ("progress", progress), ("check_convergence", check_convergence)):
        if not isinstance(flag, (bool, np.bool_)):
            raise TypeError(f"{name} must be a bool, got {type(flag).__name__}")
    seed = check_integer("seed", seed, 0)
    threads = 0 if n_threads is None else check_integer("n_threads", n_threads, 1)
    _check_combination(release, method, hessian, prior, suited)
    sampling = _sampling_options(method, hessian, prior, n_samples, n_warmup)
    common = {
        "names": release.names,
        "method": method,
        "hessian": hessian,
        "prior": prior if isinstance(prior, str) else "own",
        "model": model,
        "guarantee": release.guarantee,
    }
    if method in ("naive", "averaged"):
        return _plug_in(release, method, burn_in, threads, common)
    under_model = hessian == "full" and prior == "model"
    if isinstance(burn_in, str) and burn_in == "auto":
        if hessian == "tied" and _is_fisher_scaled(release):
            burn_in = fisher_burn_in(model)
        elif under_model:
            burn_in = GRAM_BURN_IN if isinstance(model, LinearRegression) else MODEL_BURN_IN
    # The tied model is nonlinear in u exactly, so only the location coordinates say where linearity begins.
    start = choose_burn_in(
        burn_in,
        release.positions,
        release.noisy_gradients,
        release.noise_stddev,
        watched=release.n_params if hessian == "tied" else None,
        n_threads=threads,
    )
    if under_model:
        under_model_posterior = gram_full_posterior if isinstance(model, LinearRegression) else model_full_posterior
        return under_model_posterior(
            release,
            start,
            seed=seed,
            check_convergence=bool(check_convergence),
            report=resolve_progress(bool(progress), "draws of the information"),
            common=common,
            **sampling,
        )
    if hessian == "full":
        return flat_full_posterior(
            release, start, extra_noise=bool(extra_noise), seed=seed, n_threads=threads, common=common, **sampling
        )
    return _by_coordinate(
        release,
        start,
        method=method,
        tied=hessian == "tied",
        prior=prior,
        extra_noise=bool(extra_noise),
        sampler={
            **sampling,
            "seed": seed,
            "progress": bool(progress),
            "check_convergence": bool(check_convergence),
        },
        n_threads=threads,
        common=common,
    )


def fisher_burn_in(model: Model | None) -> float:
    """Return the share of the steps that the tied posterior of a Fisher-scaled run leaves out by default.

    Longer with a noise variance, at first inflated by the weights' distance: docs/coverage.md.
    """
    return _FISHER_VARIANCE_BURN_IN if isinstance(model, LinearRegression) else _FISHER_BURN_IN


def _is_fisher_scaled(release: Release) -> bool:
    return release.settings.get("scaling") == "fisher"


def _model_of(release: Release, model: Model | None) -> Model | None:
    """Return the model that was given, or else the release's own, checked."""
    if model is None and release.model_spec:
        model = model_from_dict(release.model_spec)
    if model is not None and not isinstance(model, Model):
        raise TypeError(f"model must be a Model, got {type(model).__name__}")
    if model is not None and model.n_params != release.n_params:
        raise ValueError(f"model must have {release.n_params} parameters like the release, got {model.n_params}")
    return model


def _check_combination(release: Release, method: str, hessian: str, prior: str | TracePrior, suited: bool) -> None:
    if isinstance(prior, str):
        check_choice("prior", prior, ("auto", *PRIORS))
    elif not isinstance(prior, TracePrior):
        raise TypeError(f"prior must be a string or a TracePrior, got {type(prior).__name__}")
    if hessian != "diagonal" and method != "exact":
        raise ValueError(f"method must be 'exact' with hessian={hessian!r}, got {method!r}")
    if hessian == "full" and prior == "model" and not suited:
        raise ValueError(
            "prior must be 'weak' with hessian='full' unless the release names a generalised linear model and "
            "n_records, and has reparameterised gradients with constant noise (linear regression: the same for all "
            "weights up to a factor of the step)"
        )
    if hessian == "full" and prior not in ("weak", "model"):
        raise ValueError("prior must be 'model' or 'weak' with hessian='full'")
    fits = release.gradient == "reparameterised" or _is_fisher_scaled(release)
    if hessian == "tied" and (release.family != "mean_field" or not fits):
        raise ValueError(
            "hessian='tied' needs a release with family 'mean_field' and, without Fisher scaling, gradient "
            f"'reparameterised', got {release.family!r} and {release.gradient!r}"
        )


def _sampling_options(
    method: str, hessian: str, prior: str | TracePrior, n_samples: int | None, n_warmup: int | None
) -> dict[str, int]:
    """Return the options that were given, checked against the method."""
    samples = method in ("emcee", "nuts") or (hessian == "full" and prior == "model")
    if n_samples is not None and not samples and hessian != "full":
        raise ValueError(
            f"n_samples must not be given with method={method!r} and hessian={hessian!r}: it does not sample"
        )
    if n_warmup is not None and not samples:
        raise ValueError(f"n_warmup must not be given with method={method!r}: it has no warm-up")
    options = {}
    if n_samples is not None:
        options["n_samples"] = check_integer("n_samples", n_samples, 1)
    if n_warmup is not None:
        options["n_warmup"] = check_integer("n_warmup", n_warmup, 0)
    return options


def _plug_in(
    release: Release, method: str, burn_in: str | float | int, n_threads: int, common: dict[str, Any]
) -> Posterior:
    """Return q at the last iterate or at the mean of the iterates."""
    n = release.n_params
    first = release.n_steps
    params = release.final_params
    if method == "averaged":
        chosen = choose_burn_in(
            burn_in, release.positions, release.noisy_gradients, release.noise_stddev, n_threads=n_threads
        )
        first = max(chosen.start, release.n_steps // 2) if isinstance(burn_in, str) else chosen.start
        params = release.params[first:].mean(axis=0)
    zero = np.zeros(n)
    scale = NormalMixtures.single(params[n:], zero) if release.family == "mean_field" else None
    theta = IndependentTheta(NormalMixtures.single(params[:n].copy(), zero), np.ones(n), zero, scale)
    names = release.names
    if release.family == "mean_field":
        names = tuple(f"loc[{name}]" for name in names) + tuple(f"raw_scale[{name}]" for name in names)
    unknown = np.full(params.shape[0], np.nan)
    return Posterior(
        **common,
        burn_in=first,
        optimum_names=names,
        optimum_mean=params.copy(),
        optimum_stddev=np.zeros_like(params),
        hessian_mean=unknown,
        hessian_stddev=unknown.copy(),
        distribution=theta,
        diagnostics={"n_steps_used": release.n_steps - first},
    )


def _tail(release: Release, start: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return positions, gradients and noise of the steps used."""
    noise = release.noise_stddev if release.noise_stddev.ndim == 1 else release.noise_stddev[start:]
    return release.positions[start:], release.noisy_gradients[start:], noise


def _by_coordinate(
    release: Release,
    start: BurnIn,
    *,
    method: str,
    tied: bool,
    prior: str | TracePrior,
    extra_noise: bool,
    sampler: dict[str, Any],
    n_threads: int,
    common: dict[str, Any],
) -> Posterior:
    """Return the posterior with independent coordinates: diagonal and tied Hessians."""
    n, rate = release.n_params, release.sample_rate
    if tied and _is_fisher_scaled(release):
        return _fisher_tied(release, start, prior=prior, extra_noise=extra_noise, n_threads=n_threads, common=common)
    names = release.gradient_names[:n] if tied else release.gradient_names
    statistics = start.statistics
    score = statistics.slope_score
    side: SideRegression | None = None
    largest: FloatArray | None = None
    if tied:
        statistics = statistics.take(slice(0, n))
        positions, gradients, noise = _tail(release, start.start)
        side = raw_scale_sums(positions[:, n:], gradients[:, n:], noise[..., n:], rate).regression()
        score = pooled_slope_score(side, statistics, rate)
        largest = np.abs(side.slope) + 1.0 / np.sqrt(side.precision)
    statistics.check_moving(names)
    coupled = tied or release.gradient == "aligned"
    model: Model | None = common["model"]
    optimum = None
    if prior == "model" and model is not None and release.n_records is not None:
        with_scales = not coupled and release.family == "mean_field"
        optimum = optimum_under_model(model, release.n_records, with_scales=with_scales)
    priors = coordinate_priors(prior, statistics, rate, precision=coupled, largest=largest, optimum=optimum)
    problems = CollapsedProblems.build(statistics, priors, rate, extra_noise=extra_noise, side=side)
    added: dict[str, Any] = {}
    nodes = _solve(method, release, start.start, problems, names, coupled, sampler, n_threads, added)
    optimum_mean, optimum_variance = nodes.moments(nodes.mean, nodes.variance)
    if "hessian" in added:
        hessian_mean, hessian_stddev = added.pop("hessian")
    else:
        hessian_mean, hessian_variance = nodes.moments(nodes.hessian)
        hessian_stddev = np.sqrt(hessian_variance)
    theta = IndependentTheta.from_nodes(nodes, family=release.family, width=n, hessian_is_precision=coupled)
    return Posterior(
        **common,
        burn_in=start.start,
        optimum_names=names,
        optimum_mean=optimum_mean,
        optimum_stddev=np.sqrt(optimum_variance),
        hessian_mean=hessian_mean,
        hessian_stddev=hessian_stddev,
        distribution=theta,
        diagnostics={
            "noise_ratio": statistics.noise_ratio,
            "slope_score": score,
            "linearity_pvalue": start.linearity_pvalue,
            "n_steps_used": statistics.count,
            "effective_weight": statistics.weight,
            "burn_in_holds": start.holds,
            "verdict": check_statistics(statistics, start.linearity_pvalue, names, slope_score=score).verdict,
            **added,
        },
    )


def _fisher_tied(
    release: Release,
    start: BurnIn,
    *,
    prior: str | TracePrior,
    extra_noise: bool,
    n_threads: int,
    common: dict[str, Any],
) -> Posterior:
    """Return the tied posterior of a Fisher-scaled run."""
    model: Model | None = common["model"]
    if model is None:
        raise ValueError("release must hold its model, n_records, grad_scale and max_grad_norm: it is Fisher-scaled")
    if prior not in ("weak", "model"):
        raise ValueError("prior must be 'weak' or 'model' for the tied posterior of a Fisher-scaled run")
    run = FisherRun.from_release(release, model)
    names = release.gradient_names[: release.n_params]
    trace = TiedTrace.from_release(release, model, start.start, n_threads=n_threads)
    trace.statistics.check_moving(names)
    optimum = None
    if prior == "model":
        optimum = optimum_under_model(model, run.n_records, with_scales=False)
    nodes = fisher_tied_nodes(trace, run, names, extra_noise=extra_noise, optimum=optimum, n_threads=n_threads)
    mean, variance = nodes.moments(nodes.mean, nodes.variance)
    hessian_mean, hessian_variance = nodes.moments(nodes.hessian)
    share = np.asarray(run.expected(mean[None, :]).clipped_share)[0]
    score = trace.slope_score(release.sample_rate)
    verdict = check_statistics(trace.statistics, start.linearity_pvalue, names, slope_score=score).verdict
    coupling, finding = coupling_findings(release, model)
    return Posterior(
        **common,
        burn_in=start.start,
        optimum_names=names,
        optimum_mean=mean,
        optimum_stddev=np.sqrt(variance),
        hessian_mean=hessian_mean,
        hessian_stddev=np.sqrt(hessian_variance),
        distribution=IndependentTheta.from_nodes(
            nodes, family=release.family, width=release.n_params, hessian_is_precision=True
        ),
        diagnostics={
            "noise_ratio": trace.statistics.noise_ratio,
            "slope_score": score,
            "linearity_pvalue": start.linearity_pvalue,
            "n_steps_used": trace.statistics.count,
            "effective_weight": trace.statistics.weight,
            "burn_in_holds": start.holds,
            "verdict": verdict + finding,
            "expected_clipped_share": float(share),
            **coupling,
        },
    )


def _solve(
    method: str,
    release: Release,
    first: int,
    problems: CollapsedProblems,
    names: tuple[str, ...],
    coupled: bool,
    sampler: dict[str, Any],
    n_threads: int,
    added: dict[str, Any],
) -> Nodes:
    """Run one method; what it has to say besides the nodes goes into `added`."""
    if method == "emcee":
        from dpinfer.inference.mcmc import emcee_nodes

        nodes, added["autocorrelation"] = emcee_nodes(problems, names, **sampler)
        return nodes
    if method == "nuts":
        from dpinfer.inference.nuts import nuts_nodes

        positions, gradients, noise = _tail(release, first)
        nodes, added["rhat"] = nuts_nodes(
            problems, positions, gradients, noise, names, sample_rate=release.sample_rate, **sampler
        )
        return nodes
    nodes = collapsed_nodes(problems, names, n_threads=n_threads)
    if method == "laplace":
        approximation = laplace_posterior(problems, nodes, names)
        added["hessian"] = approximation.hessian_moments()
        return approximation.nodes(coupled=coupled)
    return nodes
