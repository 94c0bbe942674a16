"""Chains on a density in JAX, many Hamiltonian ones at once or NUTS: judges of what is computed in another way."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray

_PHASES = 60, 60, 100, 150, 150  # of learning a metric and the length of a step
_LEAST, _WANTED = 0.2, 0.8  # acceptance: a chain below this begins elsewhere, the mean
_FEWEST_LEAPS, _MOST_LEAPS = 3, 14  # of a step: drawn anew each time, the latter left out
_NUTS_CHAINS, _NUTS_WARM_UP = 4, 1000  # chains of NumPyro's sampler, and their draws before


def hamiltonian_draws(
    density: Callable[..., Any], arguments: tuple[Any, ...], start: FloatArray, n_samples: int, *, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Draw from a density by chains that move together, with a metric and a length of steps that all learn.

    Parameters
    ----------
    density : callable
        From JAX arrays (S, n) and `arguments` to log densities (S,), up to a constant.
    start : (S, n) array
        More scattered than the density.
    n_samples : int
        Of each chain.

    Returns
    -------
    draws : (n_samples, S, n) array
    acceptance : (S,) array
        Of each chain, after learning.

    Notes
    -----
    Duane and others (1987).  A step has 3 to 13 leaps.  While learning, a chain that does not move where it began takes
    the place of another one.
    """
    import jax

    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    rng, size, run = np.random.default_rng(seed), len(start), _trajectory(density)
    shift, root, step = start.mean(axis=0), np.linalg.cholesky(np.cov(start.T)), 0.1
    x = np.linalg.solve(root, (start - shift).T).T
    with enable_x64(True):
        for phase, length in enumerate((*_PHASES, n_samples)):
            draws, moved = np.empty((length, *x.shape)), np.zeros(size)
            for index in range(length):
                leaps = int(rng.integers(_FEWEST_LEAPS, _MOST_LEAPS))
                momentum, here = rng.standard_normal(x.shape), step * rng.uniform(0.7, 1.3)
                end, change = (np.asarray(part) for part in run(x, momentum, here, leaps, shift, root, *arguments))
                change = np.nan_to_num(change, nan=-np.inf)
                accepted = np.log(rng.uniform(size=size)) < change
                x = np.where(accepted[:, None], end, x)
                moved += accepted / length
                draws[index] = shift + x @ root.T
                if phase < len(_PHASES):
                    step *= float(np.exp(0.1 * (np.mean(np.exp(np.minimum(change, 0.0))) - _WANTED)))
            if phase < len(_PHASES):
                others = rng.choice(np.flatnonzero(moved >= min(_LEAST, moved.max())), size)
                here = np.where((moved < _LEAST)[:, None], draws[-1][others], draws[-1])
                if phase < len(_PHASES) - 1:  # the metric in which all chains have moved is kept for the draws
                    known = draws[length // 2 :].reshape(-1, x.shape[1])
                    shift, root, step = known.mean(axis=0), np.linalg.cholesky(np.cov(known.T)), min(step, 0.5)
                x = np.linalg.solve(root, (here - shift).T).T
    return draws, moved


def nuts_draws(
    density: Callable[..., Any], arguments: tuple[Any, ...], start: FloatArray, n_samples: int, *, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Draw by four chains of NumPyro's NUTS, as :func:`hamiltonian_draws`, after 1000 draws of warm-up each."""
    import jax

    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable_x64(True):
        chains = _nuts(density, start.shape[1], n_samples)
        extra = ("accept_prob",)
        chains.run(jax.random.PRNGKey(seed), *arguments, init_params={"x": start[:_NUTS_CHAINS]}, extra_fields=extra)
        draws = np.asarray(chains.get_samples(group_by_chain=True)["x"]).swapaxes(0, 1)
        moved = np.asarray(chains.get_extra_fields(group_by_chain=True)["accept_prob"]).mean(axis=1)
    return draws, moved


@lru_cache
def _nuts(density: Callable[..., Any], size: int, n_samples: int) -> Any:
    import numpyro
    from numpyro import distributions

    def model(*arguments: Any) -> None:
        flat = distributions.ImproperUniform(distributions.constraints.real, (), (size,))
        numpyro.factor("density", density(numpyro.sample("x", flat)[None], *arguments)[0])

    kernel = numpyro.infer.NUTS(model, dense_mass=True)
    return numpyro.infer.MCMC(
        kernel, num_warmup=_NUTS_WARM_UP, num_samples=n_samples, num_chains=_NUTS_CHAINS, chain_method="sequential",
        progress_bar=False, jit_model_args=True,
    )  # fmt: skip


@lru_cache
def _trajectory(density: Callable[..., Any]) -> Any:
    """Return the compiled function that moves chains along, and says by how much the energy falls."""
    import jax
    import jax.numpy as jnp

    def own(x: Any, shift: Any, root: Any, *arguments: Any) -> tuple[Any, Any]:
        value = density(shift + x @ root.T, *arguments)
        return jnp.sum(value), value

    def run(x: Any, momentum: Any, step: Any, leaps: Any, *given: Any) -> tuple[Any, Any]:
        slope = jax.value_and_grad(own, has_aux=True)
        (_, before), gradient = slope(x, *given)

        def once(_: Any, state: Any) -> Any:
            x, p, gradient, _ = state
            p = p + 0.5 * step * gradient
            x = x + step * p
            (_, value), gradient = slope(x, *given)
            return x, p + 0.5 * step * gradient, gradient, value

        end, p, _, after = jax.lax.fori_loop(0, leaps, once, (x, momentum, gradient, before))
        return end, after - before - 0.5 * jnp.sum(p**2 - momentum**2, axis=1)

    return jax.jit(run)
