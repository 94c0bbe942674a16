"""Runs of every private mechanism with a fixed, insecure key: what they release is compared with files.

Private Newton runs have a file of their own, newton.json.  Records are exact binary fractions made from integers, so
that they are the same on every machine.

    python -m tests.golden.cases releases newton     # writes these files anew: only where a release is meant to change
"""

import hashlib
import itertools
import json
import math
import pathlib
import sys
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
from scipy import special

import dpinfer as dpi
from dpinfer.lab.baselines import (
    NetworkVISettings,
    release_regression_statistics,
    release_statistics,
    run_dp_em,
    run_network_vi,
)
from dpinfer.mechanism import _native, run_network_dp_sep
from dpinfer.tabular import Schema, Table, release_shares
from dpinfer.testing import InsecureRNG
from tests.reference.plain_streams import plain_streams

N = 1100  # two blocks of rows: two threads share them
KEY = bytes(range(32))
STORED = {name: pathlib.Path(__file__).with_name(f"{name}.json") for name in ("releases", "newton")}

Arrays = dict[str, np.ndarray]
GLMS = {
    "logistic": dpi.models.LogisticRegression,
    "probit": dpi.models.ProbitRegression,
    "poisson": dpi.models.PoissonRegression,
    "linear": dpi.models.LinearRegression,
}
KINDS = {
    "quadrature": {"expectation": "quadrature"},
    "monte_carlo": {"expectation": "monte_carlo", "n_draws": 5},
    "aligned": {"gradient": "aligned"},
}
SCALINGS = {
    "fisher, split": {},
    "fisher, per example": {"loss": "per_example"},
    "plain": {"recipe": "plain", "learning_rate": 1e-4, "grad_scale": (1.0, 0.5)},
    "plain, per example": {"recipe": "plain", "learning_rate": 1e-4, "grad_scale": (1.0, 0.5), "loss": "per_example"},
}
CONJUGATES = {
    "beta_bernoulli": dpi.models.BetaBernoulli(2.0, 2.0),
    "beta_binomial": dpi.models.BetaBinomial(7),
    "gamma_exponential": dpi.models.GammaExponential(),
    "dirichlet, sticks": dpi.models.DirichletCategorical((1.0, 2.0, 3.0)),
}


def plan(sample_rate=0.3, n_steps=3):
    """Return a plan whose numbers do not depend on an accountant."""
    return dpi.PrivacyPlan(
        noise_multiplier=2.0, epsilon=5.0, delta=1e-5, sample_rate=sample_rate, n_steps=n_steps,
        adjacency="add_remove", accountant="pld",
    )  # fmt: skip


def single_row_plan(sampling):
    """Return a plan of steps that take one row each."""
    return dpi.PrivacyPlan.from_noise_multiplier(2.0, None, 3, 1e-5, sampling=sampling, n_records=N)


def bell(generator, *shape):
    """Return sums of four uniform integers, over 2**10: nearly normal, exact, mean 0, variance 4/3."""
    return generator.integers(-1023, 1024, (*shape, 4)).sum(axis=-1) / 1024.0


def regression_records(link, n_features, dtype=np.float64):
    """Return features (N, n_features) that float32 holds exactly, and responses."""
    generator = np.random.default_rng(17)
    X = bell(generator, N, n_features)
    if link == "linear":
        y = X[:, 0] + bell(generator, N)
    elif link == "poisson":
        y = generator.integers(0, 5, N).astype(np.float64)
    else:
        y = (X[:, 0] + bell(generator, N) > 0.0).astype(np.float64)
    return X.astype(dtype), y


def trace(release) -> Arrays:
    names = ("params", "positions", "noisy_gradients", "noise_stddev", "final_params")
    return {name: np.asarray(getattr(release, name)) for name in names}


def site_trace(release) -> Arrays:
    return {name: np.asarray(getattr(release, name)) for name in ("noisy_sums", "loc", "precision")}


def _glm(link, n_features, dtype, options):
    def run(n_threads):
        X, y = regression_records(link, n_features, dtype)
        release = dpi.run_dpvi(
            GLMS[link](n_features), X, y, plan=plan(), n_records=N, max_grad_norm=1.7, n_threads=n_threads,
            random_source=InsecureRNG(2), **options,
        )  # fmt: skip
        return trace(release)

    return run


def _conjugate(name, options):
    def run(n_threads):
        generator = np.random.default_rng(5)
        values = {
            "beta_bernoulli": lambda: generator.integers(0, 2, N),
            "beta_binomial": lambda: generator.integers(0, 8, N),
            "gamma_exponential": lambda: generator.integers(1, 4096, N) / 2048.0,
            "dirichlet, sticks": lambda: generator.integers(0, 3, N),
        }[name]()
        release = dpi.run_dpvi(
            CONJUGATES[name], np.asarray(values, dtype=np.float64), plan=plan(), n_records=N, max_grad_norm=1.7,
            n_threads=n_threads, random_source=InsecureRNG(3), **options,
        )  # fmt: skip
        return trace(release)

    return run


def _sites(name, options):
    def run(n_threads):
        records = regression_records("logistic", 3)
        model = {
            "probit": dpi.models.ProbitRegression(3),
            "logistic": dpi.models.LogisticRegression(3),
            "mixture": dpi.models.GaussianMixture(2, 3),
        }[name]
        settings = {"plan": plan(), **options}
        release = dpi.run_dp_sep(
            model, *(records[:1] if name == "mixture" else records), n_records=N, n_threads=n_threads,
            random_source=InsecureRNG(4), **settings,
        )  # fmt: skip
        return site_trace(release)

    return run


def _newton(name, target):
    def run(n_threads):
        X, y = regression_records(name, 3)
        model = GLMS[name](3)
        scale = {"response_scale": 2.0} if name == "linear" else {}
        # The noise multiplier follows from the accountant, whose last digits are not those of the mechanism.
        planned = dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=N, target=target)
        release = dpi.run_newton(
            model, X, y, plan=replace(planned, noise_multiplier=round(planned.noise_multiplier, 1)), n_records=N,
            n_threads=n_threads, random_source=InsecureRNG(12), **scale,
        )  # fmt: skip
        own = {field.name: getattr(release, field.name) for field in fields(release)}
        return {name: value for name, value in own.items() if isinstance(value, np.ndarray)}

    return run


def _network_sep(n_threads):
    X, y = regression_records("linear", 4)
    release = run_network_dp_sep(
        dpi.models.BayesianNeuralNetwork(4, 9), X, y, plan=plan(), n_records=N, n_threads=n_threads,
        random_source=InsecureRNG(5),
    )  # fmt: skip
    return site_trace(release)


def _network_vi(n_threads):
    X, y = regression_records("linear", 4)
    weights = run_network_vi(
        dpi.models.BayesianNeuralNetwork(4, 9), X, y, settings=NetworkVISettings(1e-2, 10.0, 1.0, 0.1), n_records=N,
        plan=plan(), max_grad_norm=1.3, n_threads=n_threads, random_source=InsecureRNG(6),
    )  # fmt: skip
    return {"loc": np.asarray(weights.loc), "variance": np.asarray(weights.variance)}


def _em(statistics):
    def run(n_threads):
        X, _ = regression_records("logistic", 2)
        release = run_dp_em(
            dpi.models.GaussianMixture(3, 2), X, plan=plan(1.0), n_records=N, max_site_norm=2.0, statistics=statistics,
            n_threads=n_threads, random_source=InsecureRNG(7),
        )  # fmt: skip
        return {"loc": np.asarray(release.loc), "counts": np.asarray(release.counts)}

    return run


def _statistics(n_threads):
    values = np.random.default_rng(5).integers(0, 2, N).astype(np.float64)
    release = release_statistics(
        CONJUGATES["beta_bernoulli"], values, epsilon=0.5, n_records=N, random_source=InsecureRNG(8)
    )
    X, y = regression_records("linear", 3)
    moments = release_regression_statistics(
        X, y, epsilon=0.5, n_records=N, feature_bound=4.0, response_bound=8.0, random_source=InsecureRNG(9)
    )
    return {"counts": np.asarray(release.noisy_statistics), "moments": np.asarray(moments.noisy_statistics)}


def _shares(n_threads):
    generator = np.random.default_rng(11)
    columns = {
        "job": {"kind": "categorical", "categories": ["a", "b", "c"]},
        "sex": {"kind": "binary", "positive": "f", "negative": "m"},
        "rich": {"kind": "target", "positive": "y", "negative": "n"},
    }
    job, sex = generator.integers(3, size=N), generator.integers(2, size=N)
    table = Table(
        np.column_stack([np.eye(3)[job], sex]).astype(np.float64), None, Schema.from_dict({"columns": columns})
    )
    release = release_shares(table, noise_multiplier=2.0, delta=1e-5, random_source=InsecureRNG(10))
    return {name: np.asarray(counts) for name, counts in release.noisy_counts.items()}


def _step_sum(link, n_features, dtype, draws, offset):
    def run(n_threads):
        X, y = regression_records(link, n_features, dtype)
        session = _native.StepSession(
            features=X, response=y, likelihood="gaussian" if link == "linear" else link, intercept=True, aligned=False,
            sample_rate=0.3, max_grad_norm=1.7, key=KEY, n_threads=n_threads,
        )  # fmt: skip
        n, spread = n_features + 1, np.arange(1, n_features + 2) / 64.0
        dispersion = 1 if link == "linear" else 0
        session.set_scales(np.full(2 * (n + dispersion), 1.25), np.full(2 * (n + dispersion), offset))
        if draws:
            theta = np.outer([0.5, -1.0, 0.25], spread)
            session.set_draws(theta, theta[::-1].copy(), np.full(9 * dispersion, 1.5))
        else:
            nodes, weights = np.array([-1.5, 0.0, 1.5]), np.array([0.25, 0.5, 0.25])
            moments = np.array([2.0, -1.0, 0.5, 0.25, 0.125])[: 5 * dispersion]
            session.set_quadrature(spread, spread**2, nodes, weights, moments)
        return {"sum": session.clipped_sum(7), "noisy": session.noisy_sum(7, 2.5)}

    return run


def _affine_sum(n_threads):
    statistics = np.random.default_rng(5).integers(-9, 9, (N, 3)) / 8.0
    session = _native.AffineSession(
        statistics=statistics, length=5, sample_rate=0.3, max_grad_norm=1.7, key=KEY, n_threads=n_threads
    )
    session.set_map(np.arange(15.0).reshape(5, 3) / 16.0, np.arange(5.0) / 32.0)
    return {"sum": session.clipped_sum(7), "noisy": session.noisy_sum(7, 2.5)}


def _network_sum(n_threads):
    X, y = regression_records("linear", 4)
    session = _native.NetworkSession(
        features=X, response=y, n_hidden=9, hidden_scale=0.5, output_scale=0.25, sample_rate=0.3, max_norm=0.75,
        key=KEY, n_threads=n_threads,
    )  # fmt: skip
    n = 6 * 9 + 1
    mean = (np.arange(n) % 7 - 3) / 8.0
    session.set_sites(mean, np.full(n, 0.125), 0.5, 1.0, 0.5, 0.25, 0.625, 0.375)
    sites = {"sites": session.clipped_sum(7), "noisy": session.noisy_sum(7, 2.5)}
    session.set_gradients(mean, np.full(n, 0.125), 0.5, np.full(n, 0.5), np.full(n, 0.25), 0.125)
    return sites | {"gradients": session.clipped_sum(7), "noisy gradients": session.noisy_sum(7, 2.5)}


def _people_scores(family, slope):
    def run(n_threads):
        rng = np.random.default_rng(6)
        rows = rng.integers(-9, 10, (67, 5, 2)) / 8.0
        features = np.column_stack((np.arange(67) % 7, rows.reshape(67, 10)))
        model = _native.PersonModel(
            family=family,
            max_rows=5,
            n_columns=2,
            slope=slope,
            nodes=[-1.75, 0.0, 1.75],
            weights=[0.1875, 0.625, 0.1875],
        )
        point = np.array([0.5, -0.25, 0.125, 0.75, 0.5, 0.125, 0.25])
        n = 5 - (family != "gaussian") + 2 * (slope >= 0)
        scores = model.scores(
            point=point, truth=point * 1.25, transform=np.eye(n) + 0.25, features=features,
            responses=rng.integers(0, 2, (67, 5)).astype(float), seeds=rng.integers(0, 2**63, (67, 2), dtype=np.uint64),
            stream=3, n_draws=4, n_threads=n_threads,
        )  # fmt: skip
        return {"scores": scores}

    return run


def make_sums() -> dict[str, Callable[[int], Arrays]]:
    """Return sums of the kernels that call no library: their bits are the same on every machine."""
    sums: dict[str, Callable[[int], Arrays]] = {"affine": _affine_sum, "network": _network_sum}
    for family in ("gaussian", "binomial", "probit", "poisson"):
        for slope in (-1, 1):
            sums[f"people, {family}, {slope}"] = _people_scores(family, slope)
    for link in GLMS:
        for n_features in (4, 29):
            for dtype in (np.float32, np.float64):
                for draws in (False, True):
                    for offset in (0.0, 0.0625):
                        name = (
                            f"{link}, {n_features}, {np.dtype(dtype).name}, {'draws' if draws else 'nodes'}, {offset}"
                        )
                        sums[name] = _step_sum(link, n_features, dtype, draws, offset)
    return sums


def make_cases() -> dict[str, Callable[[int], Arrays]]:
    """Return what is run, by name: functions of the number of threads."""
    cases: dict[str, Callable[[int], Arrays]] = {}
    for link in GLMS:
        for kind, options in KINDS.items():
            for scaling, more in SCALINGS.items():
                if kind == "aligned" and scaling == "plain":
                    more = more | {"grad_scale": 0.75}
                cases[f"{link}, {kind}, {scaling}"] = _glm(link, 4, np.float64, options | more)
            cases[f"{link}, {kind}, 29 features, float32"] = _glm(link, 29, np.float32, options)
        cases[f"{link}, quadrature, 4 features, float32"] = _glm(link, 4, np.float32, KINDS["quadrature"])
    for name in CONJUGATES:
        for kind in KINDS:
            cases[f"{name}, {kind}"] = _conjugate(name, KINDS[kind])
        cases[f"{name}, plain"] = _conjugate(name, SCALINGS["plain"])
    for name in ("probit", "logistic", "mixture"):
        for kind in ("centred", "natural"):
            norm = {} if kind == "centred" else {"max_site_norm": 1.5}
            cases[f"sites, {name}, {kind}"] = _sites(name, {"sites": kind, **norm})
    for sampling in ("uniform", "permutation"):
        cases[f"sites, probit, {sampling}"] = _sites("probit", {"plan": single_row_plan(sampling)})
    cases |= {"network, sites": _network_sep, "network, gradients": _network_vi}
    cases |= {f"expectation maximisation, {kind}": _em(kind) for kind in ("published", "centred")}
    cases |= {"statistics": _statistics, "shares": _shares}
    return cases


def make_newton() -> dict[str, Callable[[int], Arrays]]:
    """Return private Newton runs, as `make_cases`."""
    pairs = itertools.product(("linear", "logistic"), ("model", "population"))
    return {f"{name}, {target}": _newton(name, target) for name, target in pairs}


def elementary_functions() -> str:
    """Return a hash of what this machine's libraries make of a few numbers: equal bits of a release rest on these.

    The kernels bring their own elementary functions; the public arithmetic around them, and the sites' evidence, call
    NumPy, SciPy and the C library, whose last digit may differ from one processor or version to the next.
    """
    x = np.linspace(-9.0, 9.0, 997)
    square = np.cos(np.arange(49.0)).reshape(7, 7)
    square = square @ square.T + np.eye(7)
    parts = [np.exp(x), np.log1p(np.exp(x)), np.log(x + 9.5), np.sqrt(x + 9.0), np.tanh(x), special.ndtr(x)]
    parts += [special.expit(x), special.log_ndtr(x), special.gammaln(x + 9.5), np.linalg.inv(square), square @ square]
    parts += [np.linalg.cholesky(square), np.linalg.eigh(square)[0], np.polynomial.hermite_e.hermegauss(20)[0]]
    parts += [np.array([f(v) for v in x]) for f in (math.exp, math.erfc, math.expm1, math.tanh)]
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()[:16]


def digest(arrays: Arrays) -> dict[str, object]:
    """Return a hash of all bytes, and two numbers per array with which approximate equality can be seen."""
    parts = [np.ascontiguousarray(array).astype(np.float64) for array in arrays.values()]
    names = [f"{name} {array.shape} {array.dtype}" for name, array in arrays.items()]
    whole = hashlib.sha256("|".join(names).encode() + b"".join(part.tobytes() for part in parts)).hexdigest()[:16]
    probes = {}
    for name, part in zip(arrays, parts, strict=True):
        weights = (np.arange(part.size) * 37 % 101 - 50) / 50.0
        probes[name] = [float(weights @ part.ravel()), float(np.abs(part).sum())]
    return {"hash": whole, "probes": probes}


def stored_digest(run: Callable[[int], Arrays]) -> dict[str, object]:
    """Return the hash of a release, and the probes of the same run with noise that the last digits do not decide."""
    with plain_streams():
        near = digest(run(1))
    return digest(run(1)) | {"probes": near["probes"]}


if __name__ == "__main__":
    for file in sys.argv[1:]:
        runs, sums = (make_cases(), make_sums()) if file == "releases" else (make_newton(), {})
        stored = {
            "elementary functions": elementary_functions(),
            "sums": {name: digest(run(1))["hash"] for name, run in sums.items()},
            "releases": {name: stored_digest(run) for name, run in runs.items()},
        }
        STORED[file].write_text(json.dumps(stored, indent=0) + "\n", encoding="utf-8")
