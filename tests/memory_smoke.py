"""The compiled mechanism or, with ``--runs``, whole private runs: small enough for valgrind or a sanitizer.

Without arguments only NumPy is imported beside the compiled module, which valgrind gets through in a minute or two.

    python tests/memory_smoke.py [--runs]
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np

KEY = bytes(range(32))


def load_native():
    folder = Path(__file__).parents[1] / "python" / "dpinfer" / "mechanism"
    path = next(folder.glob("_native*.so"))
    spec = importlib.util.spec_from_file_location("_native", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernels():
    """Every shape of a row's tail, storage, likelihood and expectation, on rows that end where memory ends."""
    native, rng = load_native(), np.random.default_rng(1)
    for n in (0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129):
        assert native.rounded_gaussian(KEY, n, 1e15, n)[0].shape == (n,)
        assert native.rounded_gaussian(KEY, n, 5e10, n)[0].shape == (n,)
        assert native.monte_carlo_normals(KEY, n, n).shape == (n,)
        assert native.poisson_sample(KEY, n, 0.3, 17 * n).size <= 17 * n
        assert len(native.keystream(KEY, 1, 0, 0, n)) == 64 * n
    total = 0
    for likelihood in ("logistic", "probit", "gaussian", "poisson"):
        for width in (1, 3, 8, 9, 23, 24, 25, 33):
            for dtype in (np.float64, np.float32):
                for draws in (False, True):
                    total += glm_sum(native, rng, likelihood, width, dtype, draws=draws)
    for length in (1, 2, 7, 64):
        session = native.AffineSession(
            statistics=rng.normal(size=(1100, 3)), length=length, sample_rate=0.3, max_grad_norm=1.7, key=KEY,
            n_threads=2,
        )  # fmt: skip
        session.set_map(rng.normal(size=(length, 3)), rng.normal(size=length))
        total += float(session.noisy_sum(0, 2.0).sum())
    print("sums", np.isfinite(total))


def glm_sum(native, rng, likelihood, width, dtype, *, draws):
    gaussian = likelihood == "gaussian"
    n = width + gaussian
    session = native.StepSession(
        features=rng.normal(size=(40, width)).astype(dtype), response=np.ones(40), likelihood=likelihood,
        intercept=False, aligned=False, sample_rate=0.7, max_grad_norm=1.7, key=KEY, n_threads=2,
    )  # fmt: skip
    if draws:
        theta = 0.1 * rng.normal(size=(3, width))
        session.set_draws(theta, 2.0 * theta, np.ones((3, 3)) if gaussian else np.empty((0, 3)))
    else:
        moments = np.ones(5) if gaussian else np.empty(0)
        session.set_quadrature(np.zeros(width), np.full(width, 0.1), np.array([-1.0, 1.0]), np.full(2, 0.5), moments)
    session.set_scales(np.full(2 * n, 2.0), np.full(2 * n, 0.01))
    return float(session.noisy_sum(0, 2.0).sum())


def runs():
    import dpinfer as dpi

    rng = np.random.default_rng(1)
    plan = dpi.PrivacyPlan(
        noise_multiplier=2.0, epsilon=5.0, delta=1e-5, sample_rate=0.3, n_steps=60, adjacency="add_remove",
        accountant="pld",
    )  # fmt: skip
    X, counts = rng.normal(size=(1500, 9)), rng.poisson(2.0, 1500).astype(float)
    binary = (counts > 2).astype(float)
    cases = [
        (dpi.models.LogisticRegression(9), X, binary, {}),
        (dpi.models.LogisticRegression(9), X.astype(np.float32), binary, {"recipe": "paper"}),
        (dpi.models.ProbitRegression(9), X, binary, {"gradient": "aligned"}),
        (dpi.models.LinearRegression(9), X, X[:, 0], {}),
        (dpi.models.PoissonRegression(9), X, counts, {}),
        (dpi.models.GammaExponential(), rng.exponential(0.4, 1500), None, {}),
        (dpi.models.DirichletCategorical((1.0, 1.0, 1.0)), rng.integers(0, 3, 1500), None, {}),
    ]
    for model, features, response, options in cases:
        release = dpi.run_dpvi(
            model, features, response, plan=plan, n_records=1500, max_grad_norm=2.0, n_threads=2, **options
        )
        print(type(model).__name__, release.noisy_gradients.shape)
    print("posterior", dpi.noise_aware_posterior(release).mean)
    for model, records in (
        (dpi.models.ProbitRegression(9), (X, binary)),
        (dpi.models.GaussianMixture(3, 2), (X[:, :2],)),
        (dpi.models.BayesianNeuralNetwork(9, 5), (X, binary)),
    ):
        sites = dpi.run_dp_sep(model, *records, plan=plan, n_records=1500, n_threads=2)
        print("sites", type(model).__name__, sites.noisy_sums.shape)


if __name__ == "__main__":
    if "--runs" in sys.argv[1:]:
        runs()
    else:
        kernels()
