"""Models written in NumPyro: ``from_numpyro``."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer
from dpinfer.models.adapters.frameworks import framework
from dpinfer.models.adapters.gradients import check_callables, finished
from dpinfer.models.adapters.jax_models import double_precision, jax_code
from dpinfer.models.adapters.own_model import OwnModel, named_failure
from dpinfer.models.adapters.parameters import INVERSES, ParameterSet

_ROWS = 3  # records in a trial trace; a fourth shows which sites depend on their number; time
_PRIOR_DRAWS = 20_000  # moments of a prior to 1 / sqrt(20 000), 0.7%


def from_numpyro(
    model: Callable[..., Any],
    *,
    n_features: int,
    features: Callable[[int, np.random.Generator], Any] | npt.NDArray[Any] | None = None,
    public_data: Any = None,
    vectorize: bool = True,
    **declared: str,
) -> OwnModel:
    """Make a model from a NumPyro model ``model(X, y=None)``: its sites are the parameters, its draws the sampler.

    Priors become independent normal ones before a map ("exp" for positive supports, "sigmoid" for the unit interval,
    the identity for the real line): exactly for ``Normal`` and ``LogNormal`` sites, with the mean and the standard
    deviation of 20 000 prior draws for all others.

    **Privacy.** As :func:`dpinfer.models.from_gradient`.

    Raises BackendUnavailableError if NumPyro is not installed (the extra ``dpinfer[numpyro]``), or too old. Raises
    TypeError or ValueError if the model has no or several observed sites, a latent variable of single records, a
    discrete or simplex parameter, a prior that is improper or depends on other parameters; or the code fails a trial.

    Parameters
    ----------
    model : callable
        Called with X (B, n_features) and y (B,), or y=None to draw it.  One observed site, of B independent responses.
    n_features, features, public_data, **declared
        As in :func:`dpinfer.models.from_gradient`.
    vectorize : bool
        As in :func:`dpinfer.models.from_jax`.
    """
    framework("numpyro")
    check_callables({"model": model}, {})
    count = check_integer("n_features", n_features, 1)
    with double_precision():
        observed, sites = _sites(model, count)
        shapes = {name: tuple(site["value"].shape) for name, site in sites.items()}
        if not shapes:
            raise ValueError("model must have a parameter: a sample site that is not observed")
        priors = {name: _prior(name, site) for name, site in sites.items()}
    bijectors = {name: prior[0] for name, prior in priors.items()}
    means = {name: prior[1] for name, prior in priors.items()}
    scales = {name: prior[2] for name, prior in priors.items()}
    parameter_set = ParameterSet(shapes, bijectors, means, scales)
    density, sampler = _functions(model, observed)
    code = jax_code(density, sampler, parameter_set, features, flat=False, vectorize=vectorize, n_features=count)
    return finished(code, parameter_set, count, public_data, declared)


def _sites(model: Callable[..., Any], n_features: int) -> tuple[str, dict[str, Any]]:
    """Return the name of the observed site, and the others by name, from traces of made-up rows."""
    from numpyro.handlers import seed, trace

    rng = np.random.default_rng(3)

    def traced(rows: int, start: int) -> dict[str, Any]:
        X, y = rng.standard_normal((rows, n_features)), np.ones(rows)
        with named_failure("model", f"model(X, y) with X (B, {n_features}) and y (B,) or None, in JAX"):
            try:
                found: dict[str, Any] = trace(seed(model, start)).get_trace(X, y)
            except NotImplementedError as error:
                raise ValueError("its priors must be drawn from: is one improper, or a flat one?") from error
        return {name: site for name, site in found.items() if site["type"] == "sample"}

    first, second, longer = traced(_ROWS, 0), traced(_ROWS, 1), traced(_ROWS + 1, 0)
    observed = [name for name, site in first.items() if site["is_observed"]]
    if len(observed) != 1:
        raise ValueError(f"model must have one observed site, the responses, got {len(observed)}")
    if tuple(first[observed[0]]["value"].shape) != (_ROWS,):
        raise ValueError("model must observe one response for each row of X")
    sites = {name: site for name, site in first.items() if name not in observed}
    for name, site in sites.items():
        if site["value"].shape != longer[name]["value"].shape:
            raise ValueError(
                f"model must have no latent variable of single records, and {name!r} has one for each row: "
                "integrate it out inside the likelihood"
            )
        if _numbers_of(site["fn"]) != _numbers_of(second[name]["fn"]):
            raise ValueError(
                f"the prior of {name!r} must not depend on other parameters: sample a standard normal and scale it "
                "(numpyro.deterministic)"
            )
    return observed[0], sites


def _numbers_of(distribution: Any) -> bytes:
    """Return a distribution's density at three points, as bytes: equal for equal distributions."""
    import jax

    at = [distribution.sample(jax.random.PRNGKey(seed)) for seed in range(3)]
    return np.asarray([np.sum(distribution.log_prob(value)) for value in at]).tobytes() + np.asarray(at).tobytes()


def _prior(name: str, site: Any) -> tuple[str, FloatArray, FloatArray]:
    """Return the map of a site, and the mean and standard deviation of each entry before it."""
    import jax
    from numpyro.distributions import constraints

    distribution = base = site["fn"]
    while type(base).__name__ in ("Independent", "ExpandedDistribution", "MaskedDistribution"):
        base = base.base_dist
    kind = type(base).__name__
    support = distribution.support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    if support is constraints.real:
        bijector = "identity"
    elif support is constraints.unit_interval:
        bijector = "sigmoid"
    elif support is constraints.positive or (
        type(support).__name__.strip("_").startswith("GreaterThan") and np.all(np.asarray(support.lower_bound) == 0.0)
    ):
        bijector = "exp"
    else:
        raise ValueError(f"parameter {name!r} must be real, positive, or in the unit interval, got support {support}")
    shape = site["value"].shape
    if kind in ("Normal", "LogNormal"):
        return (
            bijector,
            np.broadcast_to(np.asarray(base.loc, np.float64), shape).copy(),
            np.broadcast_to(np.asarray(base.scale, np.float64), shape).copy(),
        )
    drawn = np.asarray(distribution.sample(jax.random.PRNGKey(0), (_PRIOR_DRAWS,)), dtype=np.float64)
    with np.errstate(all="ignore"):
        before = INVERSES[bijector](drawn)
    mean, scale = before.mean(axis=0), before.std(axis=0)
    if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(scale))):
        raise ValueError(f"the prior of {name!r} must have a finite mean and variance before its map {bijector!r}")
    return bijector, mean, scale


def _functions(
    model: Callable[..., Any], observed: str
) -> tuple[Callable[[Any, Any, Any], Any], Callable[[Any, Any, Any], Any]]:
    """Return the log-likelihood and the sampler of one record."""
    import jax
    from numpyro.handlers import seed, substitute, trace

    def density(params: Any, x: Any, y: Any) -> Any:
        fixed = substitute(seed(model, jax.random.PRNGKey(0)), data=params)
        site = trace(fixed).get_trace(x[None], y[None])[observed]
        return jax.numpy.sum(site["fn"].log_prob(site["value"]))

    def sampler(key: Any, params: Any, x: Any) -> Any:
        fixed = substitute(seed(model, key), data=params)
        return jax.numpy.reshape(trace(fixed).get_trace(x[None], None)[observed]["value"], ())

    return density, sampler
