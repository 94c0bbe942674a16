"""Private sums of two builds of the compiled module in one process, alternating: what a change of the kernels costs.

Answer first: both builds release the same bits.  Printed are the medians over pairs of calls, with the bootstrap's
standard error.

    OMP_NUM_THREADS=1 python bench/speed/two_builds.py OLD/_native.*.so NEW/_native.*.so [--seconds 5]
"""

import argparse
import importlib.util
import time

import numpy as np

KEY = bytes(range(32))


def load(tag, path):
    spec = importlib.util.spec_from_file_location(f"{tag}._native", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def glm(module, n, d, draws):
    generator = np.random.default_rng(0)
    session = module.StepSession(
        features=generator.normal(size=(n, d)), response=generator.integers(0, 2, n).astype(float),
        likelihood="logistic", intercept=False, aligned=False, sample_rate=0.1, max_grad_norm=11.0, key=KEY,
        n_threads=1,
    )  # fmt: skip
    if draws:
        z = generator.normal(size=(10, d))
        session.set_draws(0.1 * z, z, np.empty((0, 10)))
    else:
        nodes, weights = np.polynomial.hermite_e.hermegauss(10)
        session.set_quadrature(np.zeros(d), np.full(d, 0.01), nodes, weights / np.sqrt(2 * np.pi), np.empty(0))
    session.set_scales(np.ones(2 * d), np.zeros(2 * d))
    return lambda step: session.noisy_sum(step, 37.0)


def sites(module, n, d=5):
    generator = np.random.default_rng(0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    session = module.binary_sites(
        features=generator.normal(size=(n, d)), response=generator.integers(0, 2, n).astype(float), intercept=False,
        likelihood="probit", nodes=nodes, weights=weights, max_site_norm=1.0, key=KEY, n_threads=1,
    )  # fmt: skip
    session.set_state(
        cavity_loc=np.zeros((1, d)), cavity_cov=np.eye(d)[None].copy(), centre=np.zeros((1, d)),
        neutral=np.zeros(d + d * (d + 1) // 2), block_weight=1.0,
    )  # fmt: skip
    return lambda step: session.poisson_sum(step, 0.1, 3.0)


def second_moments(module, n, d, per_row=None, scores=False):
    """Of dense rows, or of sparse ones with so many numbers; or scores."""
    generator = np.random.default_rng(0)
    rows = {"features": generator.normal(size=(n, d))}
    if per_row is not None:
        columns = np.sort(generator.random((n, d)).argpartition(per_row, axis=1)[:, :per_row], axis=1)
        rows = {
            "features": generator.normal(size=n * per_row), "columns": columns.ravel().astype(np.int32),
            "starts": np.arange(0, n * per_row + 1, per_row, dtype=np.int64), "n_features": d,
        }  # fmt: skip
    form = module.RegressionRows(response=np.zeros(n), intercept=False, n_threads=1, **rows)
    transform = generator.normal(size=(d, d)) / np.sqrt(d)
    table = {"centre": np.empty(0), "slope": np.empty(0), "first_node": 0.0, "spacing": 1.0}
    residuals = module.Residuals(link="logistic", loc=np.full(d, 0.1), bound=np.inf, **table)

    def once(step):
        if scores:
            total = module.PartialSum(length=d, max_norm=8.0)
            form.add_scores(total, residuals, transform=transform, bound=8.0)
            return total.integers
        total = module.PartialSum(length=d * (d + 1) // 2, max_norm=64.0)
        form.add_second_moments(total, transform=transform, bound=8.0)
        return total.integers

    return once


CASES = {
    "second moments, 5000 x 105": lambda module: second_moments(module, 5000, 105),
    "second moments, 12 of 105": lambda module: second_moments(module, 5000, 105, 12),
    "scores, 5000 x 105": lambda module: second_moments(module, 5000, 105, scores=True),
    "scores, 45000 x 10": lambda module: second_moments(module, 45_000, 10, scores=True),
    "second moments, 45000 x 10": lambda module: second_moments(module, 45_000, 10),
    "gradients, 45000 x 100, nodes": lambda module: glm(module, 45_000, 100, False),
    "gradients, 45000 x 100, draws": lambda module: glm(module, 45_000, 100, True),
    "gradients, 5000 x 5, nodes": lambda module: glm(module, 5000, 5, False),
    "gradients, 500 x 3, nodes": lambda module: glm(module, 500, 3, False),
    "sites, 5000 x 5": lambda module: sites(module, 5000),
}


def compare(old, new, seconds):
    start = time.perf_counter()
    old(1)
    inner = max(1, int(2e-3 / (time.perf_counter() - start)))
    times = {old: [], new: []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[new]) < 10:
        for call in (old, new) if len(times[new]) % 2 else (new, old):
            start = time.perf_counter()
            for step in range(inner):
                call(step)
            times[call].append((time.perf_counter() - start) / inner)
    ratios = np.array(times[new]) / np.array(times[old])
    generator = np.random.default_rng(0)
    spread = np.std([np.median(generator.choice(ratios, ratios.size)) for _ in range(200)])
    return 1e6 * np.median(times[old]), 1e6 * np.median(times[new]), np.median(ratios), spread


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default="", help="cases whose name has this")
    arguments = parser.parse_args()
    modules = load("old", arguments.old), load("new", arguments.new)
    print(f"{'':32s} {'old us':>9s} {'new us':>9s}  new / old")
    for name, make in CASES.items():
        if arguments.only not in name:
            continue
        old, new = (make(module) for module in modules)
        assert (old(3) == new(3)).all(), name
        first, second, ratio, spread = compare(old, new, arguments.seconds)
        print(f"{name:32s} {first:9.1f} {second:9.1f}  {ratio:.3f} +- {spread:.3f}")


if __name__ == "__main__":
    main()
