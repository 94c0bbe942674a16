"""A private run of every kind and its posterior, small enough to run under valgrind or a sanitizer.

python tests/memory_smoke.py
"""

import numpy as np

import dpinfer as dpi
from dpinfer.mechanism import _native


def main():
    rng = np.random.default_rng(1)
    plan = dpi.PrivacyPlan(
        noise_multiplier=2.0, epsilon=5.0, delta=1e-5, sample_rate=0.3, n_steps=60, adjacency="add_remove",
        accountant="pld",
    )  # fmt: skip
    X, counts = rng.normal(size=(1500, 9)), rng.poisson(2.0, 1500).astype(float)
    binary = (counts > 2).astype(float)
    runs = [
        (dpi.models.LogisticRegression(9), X, binary, {}),
        (dpi.models.LogisticRegression(9), X.astype(np.float32), binary, {"recipe": "paper"}),
        (dpi.models.ProbitRegression(9), X, binary, {"gradient": "aligned"}),
        (dpi.models.LinearRegression(9), X, X[:, 0], {}),
        (dpi.models.PoissonRegression(9), X, counts, {}),
        (dpi.models.LogisticRegression(41), rng.normal(size=(1500, 41)), binary, {}),
        (dpi.models.GammaExponential(), rng.exponential(0.4, 1500), None, {}),
        (dpi.models.DirichletCategorical((1.0, 1.0, 1.0)), rng.integers(0, 3, 1500), None, {}),
    ]
    for model, features, response, options in runs:
        release = dpi.run_dpvi(
            model, features, response, plan=plan, n_records=1500, max_grad_norm=2.0, n_threads=2, **options
        )
        print(type(model).__name__, release.noisy_gradients.shape)
    posterior = dpi.noise_aware_posterior(release)
    print(posterior.mean, dpi.diagnostics.run_tarp(rng.normal(size=(50, 40, 2)), rng.normal(size=(40, 2))).rmse)
    # Every size of the tail of a vector, and noise that needs exact arithmetic.
    key = bytes(range(32))
    for n in range(70):
        assert _native.rounded_gaussian(key, n, 1e15, n)[0].shape == (n,)
        assert _native.poisson_sample(key, n, 0.3, 17 * n).size <= 17 * n


if __name__ == "__main__":
    main()
