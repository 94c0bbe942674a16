"""The trace model sampled jointly with NumPyro's NUTS, as the paper does."""

from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.errors import BackendUnavailableError, NumericalError
from dpinfer.inference.trace.collapsed import CollapsedProblems, Nodes
from dpinfer.lab.comparison.ensemble import nodes_from_draws

__all__ = ["nuts_nodes"]

DEFAULT_WARMUP = 1000  # usual in NumPyro's examples
DEFAULT_SAMPLES = 4000  # Monte Carlo error of a mean: 1.6% of a standard deviation, if independent

_LARGEST_SPLIT_RHAT = 1.05  # a usual limit (Gelman et al. 2013, section 11.4, have 1.1)


def nuts_nodes(
    problems: CollapsedProblems,
    positions: FloatArray,
    gradients: FloatArray,
    noise_stddev: FloatArray,
    names: tuple[str, ...],
    *,
    sample_rate: float,
    n_samples: int = DEFAULT_SAMPLES,
    n_warmup: int = DEFAULT_WARMUP,
    seed: int = 0,
    progress: bool = False,
    check_convergence: bool = True,
) -> tuple[Nodes, FloatArray]:
    """Sample (optimum, Hessian[, extra noise]) of all coordinates jointly from the raw trace.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    problems : CollapsedProblems
        For the priors and the units.
    positions, gradients : (T, k) float64
        The steps used.
    noise_stddev : (k,) or (T, k) float64
    names : tuple of k str
        For error messages.
    sample_rate : float
    n_samples, n_warmup : int
        Kept and warm-up iterations of one chain.
    seed : int
    progress : bool
    check_convergence : bool
        Raise unless split R-hat is below 1.05 everywhere.

    Returns
    -------
    nodes : Nodes
        Equally weighted draws of (Hessian, noise); the optimum keeps its exact conditional given each.
    rhat : (k,) array
        Largest split R-hat of each coordinate.

    Raises
    ------
    BackendUnavailableError
        If NumPyro is not installed.
    NumericalError
        If the chain did not converge.

    Notes
    -----
    NA-DPVI (2025), eq. 20 with A = diag(softplus(v)) and H.3; Hoffman and Gelman (2014).  The optimum and, under a
    normal prior, v are standardised by an affine map; else kappa a = se softplus(y).  The density is the same.
    """
    try:
        import jax
        import jax.numpy as jnp
        import numpyro
        from numpyro import distributions as dist
        from numpyro.infer import MCMC, NUTS
    except ImportError as error:
        raise BackendUnavailableError(
            "sampler 'nuts' needs NumPyro: install the extra with pip install 'dpinfer[nuts]'"
        ) from error
    k = problems.spread.shape[0]
    columns = problems.columns
    score, offset, scale = columns.slope_score, columns.optimum_offset, columns.optimum_scale
    unit = problems.hessian_unit

    raw_normal = bool(np.all(problems.raw_normal))
    raw_loc, raw_scale = columns.raw_loc, columns.raw_scale
    wide_scale, power = np.where(columns.wide_scale > 0.0, columns.wide_scale, 1.0), columns.wide_power

    def model(x: Any, g: Any, tau: Any) -> None:
        delta = numpyro.sample("delta", dist.Normal(-offset, scale))
        if raw_normal:
            # The paper's own variable, standardised.
            y = numpyro.sample("y", dist.Normal(np.zeros(k), 1.0))
            beta = jax.nn.softplus(raw_loc + raw_scale * y) / unit
        else:
            y = numpyro.sample("y", dist.ImproperUniform(dist.constraints.real, (), (k,)))
            beta = jax.nn.softplus(y)
            prior = (power - 1.0) * jnp.log(beta) - 0.5 * (beta / wide_scale) ** 2
            numpyro.factor("slope_prior", jnp.sum(prior + jax.nn.log_sigmoid(y)))
        stddev = tau
        if problems.extra_noise:
            omega = numpyro.sample("omega", dist.HalfCauchy(np.ones(k)))
            stddev = tau * jnp.sqrt(1.0 + omega**2)
        optimum = problems.position_mean + problems.spread * delta
        numpyro.sample("g", dist.Normal(sample_rate * unit * beta * (x - optimum), stddev), obs=g)

    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    likely = np.where(score > 0.0, 0.5 * (score + np.hypot(score, 2.0)), 2.0 / (np.hypot(score, 2.0) - score))
    initial = {"delta": -columns.mean_score * likely / (likely**2 + scale**-2.0), "y": problems.start(likely)[0]}
    if problems.extra_noise:
        initial["omega"] = np.sqrt(np.maximum(columns.residual / columns.n_steps - 1.0, 0.0)) + columns.n_steps**-0.25
    with enable_x64(True):
        kernel = NUTS(model, init_strategy=numpyro.infer.init_to_value(values=initial))
        sampler = MCMC(kernel, num_warmup=n_warmup, num_samples=n_samples, progress_bar=progress)
        sampler.run(jax.random.PRNGKey(seed), positions, gradients, noise_stddev)
        draws = {name: np.asarray(value) for name, value in sampler.get_samples().items()}
        rhat = np.max(
            [np.asarray(numpyro.diagnostics.split_gelman_rubin(value[None])) for value in draws.values()], axis=0
        )
    good = rhat <= _LARGEST_SPLIT_RHAT
    if check_convergence and not np.all(good):
        name = names[int(np.argmin(good))]
        raise NumericalError(
            f"NUTS did not converge for {name!r} (split R-hat {rhat.max():.3f}); raise n_warmup and n_samples"
        )
    nu = 1.0 + draws["omega"] ** 2 if problems.extra_noise else np.ones_like(draws["y"])
    return nodes_from_draws(problems, problems.slope(draws["y"]), nu), rhat
