"""Every compiled module on more than one thread, small enough for valgrind or a sanitizer, in parts:

- ``kernels``: the mechanism's, beside which only NumPy is imported, so that valgrind gets through in a minute or two;
- ``runs``: whole private runs;
- ``posteriors``: post-processing, with widths and counts around those at which its kernels change;
- ``studies``: coverage studies of every model.

    python tests/memory_smoke.py [PART ...]        # kernels, where no part is named
"""

import argparse
import importlib.util
from pathlib import Path

import numpy as np

KEY = bytes(range(32))
THREADS = 3


def load_native():
    package = importlib.util.find_spec("dpinfer").submodule_search_locations[0]
    path = next(Path(package, "mechanism").glob("_native*.so"))
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
    # Three blocks of rows: work for as many threads.
    n = 2100
    X, counts = rng.normal(size=(n, 9)), rng.poisson(2.0, n).astype(float)
    binary = (counts > 2).astype(float)
    cases = [
        (dpi.models.LogisticRegression(9), X, binary, {}),
        (dpi.models.LogisticRegression(9), X.astype(np.float32), binary, {"recipe": "paper"}),
        (dpi.models.ProbitRegression(9), X, binary, {"gradient": "aligned"}),
        (dpi.models.LinearRegression(9), X, X[:, 0], {}),
        (dpi.models.PoissonRegression(9), X, counts, {}),
        (dpi.models.GammaExponential(), rng.exponential(0.4, n), None, {}),
        (dpi.models.DirichletCategorical((1.0, 1.0, 1.0)), rng.integers(0, 3, n), None, {}),
    ]
    for model, features, response, options in cases:
        release = dpi.run_dpvi(
            model, features, response, plan=plan, n_records=n, max_grad_norm=2.0, n_threads=THREADS, **options
        )
        print(type(model).__name__, release.noisy_gradients.shape)
    print("posterior", dpi.noise_aware_posterior(release, n_threads=THREADS).mean)
    for model, records in (
        (dpi.models.ProbitRegression(9), (X, binary)),
        (dpi.models.GaussianMixture(3, 2), (X[:, :2],)),
    ):
        sites = dpi.run_dp_sep(model, *records, plan=plan, n_records=n, n_threads=THREADS)
        print("sites", type(model).__name__, sites.noisy_sums.shape)
    network = dpi.models.BayesianNeuralNetwork(9, 5)
    sites = dpi.mechanism.run_network_dp_sep(network, X, binary, plan=plan, n_records=n, n_threads=THREADS)
    print("sites of a network", sites.noisy_sums.shape)


def posteriors():
    import dpinfer as dpi

    rng = np.random.default_rng(2)
    # From two thirds of so many steps on, statistics of a trace are shared among threads.
    for width, methods in ((2, ("exact", "laplace")), (10, ("exact", "averaged")), (70, ("exact",))):
        steps = 3100
        positions = np.cumsum(0.01 * rng.normal(size=(steps, width)), axis=0)
        gradients = positions + 0.1 * rng.normal(size=(steps, width))
        release = dpi.release_from_arrays(positions, gradients, noise_stddev=np.full(width, 0.1), sample_rate=0.1)
        for method in methods:
            for hessian in ("diagonal", "full") if method == "exact" and width < 70 else ("diagonal",):
                found = dpi.noise_aware_posterior(release, approximation=method, hessian=hessian, n_threads=THREADS)
                assert np.all(np.isfinite(found.optimum_mean))
    for width, n_records in ((1, 50), (3, 200), (26, 300)):
        X = rng.normal(size=(n_records, width))
        for kind, y in (("Linear", X[:, 0]), ("Logistic", 1.0 * (X[:, 0] > 0.0))):
            model = getattr(dpi.models, f"{kind}Regression")(width)
            plan = dpi.plan_newton(model, target_epsilon=8.0, target_delta=1e-5, n_records=n_records)
            scale = 1.0 if kind == "Linear" else None
            newton = dpi.run_newton(model, X, y, plan=plan, n_records=n_records, response_scale=scale)
            assert np.all(np.isfinite(dpi.noise_aware_posterior(newton, n_samples=20, n_warmup=5).mean))
    for n_draws, n_sims, width in ((1, 2, 1), (7, 65, 3), (101, 230, 4)):
        samples, thetas = rng.normal(size=(n_draws, n_sims, width)), rng.normal(size=(n_sims, width))
        for draws in (samples, samples.astype(np.float32)):
            result = dpi.lab.coverage.run_tarp(draws, thetas, n_repeats=3, seed=1, n_threads=THREADS)
            assert 0.0 <= result.rmse <= 1.0
    for width in (1, 2, 7, 8, 9, 16, 31, 32, 33, 64, 65):
        count = 1 + max(THREADS, 70_000 // width**2 if width < 9 else 5000 // width**2)
        root = rng.normal(size=(count, width, width + 2))
        symmetric = root @ root.transpose(0, 2, 1) / width + np.eye(width)
        skewed = symmetric + 0.05 * rng.normal(size=symmetric.shape)
        rate = np.geomspace(0.001, 0.002, width)
        for time in ("discrete", "continuous"):
            cases = [
                (symmetric, "auto"),
                (skewed, "general"),
                (1.0 + rng.random((70_000 // width + 1, width)), "diagonal"),
            ]
            for matrices, form in cases:
                covariance = dpi.lab.stationary.covariance
                result = covariance(matrices, rate, 0.5, 3.0, time=time, form=form, n_threads=THREADS)
                assert np.all(np.isfinite(result))
    print("posteriors done")


def studies():
    import dpinfer as dpi
    from dpinfer.lab.studies.study import STUDY_NAMES

    for name, recipe in [*((name, None) for name in STUDY_NAMES), ("beta-binomial", "paper")]:
        result = dpi.coverage_study(
            name, n_runs=7, epsilon=20.0, recipe=recipe, n_draws=20, n_repeats=2, n_threads=THREADS, chunk_size=4,
            n_steps=120, n_records=400,
        )  # fmt: skip
        print(name, recipe, result.n_failed)


def main():
    parts = {"kernels": kernels, "runs": runs, "posteriors": posteriors, "studies": studies}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    for name in parser.parse_args().parts or ["kernels"]:
        if name not in parts:
            parser.error(f"PART must be one of {', '.join(parts)}, got {name!r}")
        parts[name]()


if __name__ == "__main__":
    main()
