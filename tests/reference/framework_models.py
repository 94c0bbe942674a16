"""Models that a user might bring from a framework: a network in PyTorch, a model of NumPyro's tutorials as it is."""

import numpy as np

from dpinfer.models import from_numpyro, from_torch

from .own_models import Example, correlated

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
    return Example(model, lambda size, rng, rho=0.0: correlated(size, rng, 2, rho), tuple(range(9)))


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


FRAMEWORK_EXAMPLES = {"two-layer network": ("torch", two_layer_network), "divorce rates": ("numpyro", divorce_rates)}
