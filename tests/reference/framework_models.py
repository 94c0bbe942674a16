"""Models that a user might bring from a framework.

A network in PyTorch, a model of NumPyro's tutorials as it is, and the censored Weibull regression in JAX.
"""

import numpy as np

from dpinfer.models import from_jax, from_numpyro, from_torch

from .own_models import Example, correlated, network, weibull_features

HIDDEN = 3


def two_layer_network():
    """Binary responses; tanh units.  The prior's mean tells the units apart: their order would not be identified."""
    import torch

    torch.set_num_threads(1)
    module = torch.nn.Sequential(torch.nn.Linear(2, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)).double()
    angles = 2.0 * np.pi * np.arange(HIDDEN) / HIDDEN

    def density(output, y):
        return -torch.nn.functional.softplus((1.0 - 2.0 * y) * output[0])

    def sampler(output, u):
        return (u < torch.sigmoid(output)).double()

    model = from_torch(
        density,
        n_features=2,
        module=module,
        sampler=sampler,
        prior_mean={
            "0.weight": 1.5 * np.column_stack((np.cos(angles), np.sin(angles))),
            "0.bias": np.zeros(HIDDEN),
            "2.weight": np.array([[2.0, -2.0, 2.0]]),
            "2.bias": np.zeros(1),
        },
        prior_scale={"0.weight": 0.3, "0.bias": 0.3, "2.weight": 0.5, "2.bias": 0.5},
        response="binary",
        name="two-layer network",
    )
    twin = network()
    return Example(model, twin.features, twin.awkward, twin.model)


def divorce_rates():
    """The regression of NumPyro's tutorial "Bayesian Regression Using NumPyro" (Apache 2.0), as it stands there."""
    import numpyro
    import numpyro.distributions as dist

    def model(marriage=None, age=None, divorce=None):
        a = numpyro.sample("a", dist.Normal(0.0, 0.2))
        M, A = 0.0, 0.0
        if marriage is not None:
            bM = numpyro.sample("bM", dist.Normal(0.0, 0.5))
            M = bM * marriage
        if age is not None:
            bA = numpyro.sample("bA", dist.Normal(0.0, 0.5))
            A = bA * age
        sigma = numpyro.sample("sigma", dist.Exponential(1.0))
        mu = a + M + A
        numpyro.sample("obs", dist.Normal(mu, sigma), obs=divorce)

    own = from_numpyro(lambda X, y=None: model(X[:, 0], X[:, 1], y), n_features=2, name="divorce rates")
    return Example(own, lambda size, rng, rho=0.5: correlated(size, rng, 2, rho), (own.names.index("sigma"),))


def weibull_in_jax():
    """Log time = intercept + x coef + log(exponential) / shape, censored at the time in the last column."""
    import jax
    from jax import numpy as jnp

    def centre(params, x):
        return params["intercept"] + jnp.sum(x[:-1] * params["coef"])

    def density(params, x, y):
        shape = params["shape"]
        z = shape * (jnp.log(y) - centre(params, x))
        return (y < x[-1]) * (jnp.log(shape) - jnp.log(y) + z) - jnp.exp(z)

    def sampler(key, params, x):
        log_time = centre(params, x) + jnp.log(jax.random.exponential(key)) / params["shape"]
        return jnp.minimum(jnp.exp(jnp.clip(log_time, -60.0, 60.0)), x[-1])

    model = from_jax(
        density,
        {"intercept": (), "coef": (4,), "shape": ()},
        n_features=5,
        sampler=sampler,
        features=weibull_features,
        bijectors={"shape": "exp"},
        prior_scale={"intercept": 0.7, "coef": 0.6, "shape": 0.5},
        response="positive",
        name="censored Weibull in JAX",
    )
    return Example(model, lambda size, rng, rho=0.5: weibull_features(size, rng, rho), (5,))


FRAMEWORK_EXAMPLES = {
    "two-layer network": ("torch", two_layer_network),
    "divorce rates": ("numpyro", divorce_rates),
    "Weibull in JAX": ("jax", weibull_in_jax),
}


def apart(release, other):
    """Return how far two releases are apart: the largest difference in an array over that array's largest number."""
    found = [0.0]
    for name, values in vars(release).items():
        if isinstance(values, np.ndarray) and values.size:
            found.append(np.max(np.abs(values - getattr(other, name))) / max(np.max(np.abs(values)), 1e-300))
    return max(map(float, found))
