"""One logistic regression as NumPy, JAX, PyTorch and NumPyro code, and built in: equal releases, time, memory.

    python bench/adapters.py [--rounds 9] [--records 1000000] [--no-memory]

Adult's columns where the public data are there (DPINFER_DATA), else made-up ones of that size.  First the answer: with
the same insecure key the releases agree within 1e-6 of their largest number.  Then seconds of processor time of a pass
over all records (a gradient at one point for each, clipped, rounded, summed), on one core, interleaved.  Peers are one
jitted JAX function without privacy: vmap, clip and sum, in both precisions; and the same work, with a preconditioner
and the exact integers.  Then the largest memory of a pass
beyond what was there before it (data, libraries, compiled code), each in a process of its own.  Needs ``jax``,
``numpyro`` and ``torch``; what is not installed is left out and said so.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

import dpinfer as dpi
from dpinfer.mechanism import _native
from dpinfer.mechanism.newton.own_rows import CentredScores, OwnRecords
from dpinfer.testing import InsecureRNG

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("DPINFER_DATA", ROOT.parent / "shared" / "data"))
NORM, FEATURES_OF_MANY = 3.0, 20
LATTICE_STEP = 2.0**-29  # of that norm: docs/derivations/private-sum.md
ADAPTERS = {"from_gradient": None, "from_jax": "jax", "from_torch": "torch", "from_numpyro": "numpyro"}

FloatArray = npt.NDArray[np.float64]


def adult() -> tuple[FloatArray, FloatArray]:
    """Return Adult's records, or made-up ones of that size."""
    if (DATA / "adult.data.csv.gz").exists():
        table = dpi.tabular.read_table(
            DATA / "adult.data.csv.gz", dpi.tabular.Schema.load(ROOT / "examples" / "adult.toml")
        )
        return table.X, table.y
    return made_up(30_162, 56)


def made_up(size: int, n_features: int) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((size, n_features))
    return X, (rng.random(size) < special.expit(0.5 * X[:, 0])) * 1.0


def own_model(name: str, d: int) -> dpi.models.OwnModel:
    """Return the regression as that adapter makes it."""
    given: dict[str, Any] = {"n_features": d, "response": "binary"}
    if name == "from_gradient":
        return dpi.models.from_gradient(
            lambda w, X, y: X * (y - special.expit(np.sum(X * w, axis=1)))[:, None],
            d,
            sampler=lambda w, X, u: (u[:, 0] < special.expit(np.sum(X * w, axis=1))) * 1.0,
            **given,
        )
    if name == "from_jax":
        import jax

        return dpi.models.from_jax(
            lambda w, x, y: y * (x @ w) - jax.nn.softplus(x @ w),
            d,
            sampler=lambda key, w, x: (jax.random.uniform(key) < jax.nn.sigmoid(x @ w)) * 1.0,
            **given,
        )
    if name == "from_torch":
        import torch

        torch.set_num_threads(1)
        return dpi.models.from_torch(
            lambda w, x, y: y * (x * w).sum() - torch.nn.functional.softplus((x * w).sum()),
            d,
            sampler=lambda w, x, u: (u < torch.sigmoid((x * w).sum())).double(),
            **given,
        )
    import numpyro
    from numpyro import distributions as dist

    def regression(X: Any, y: Any = None) -> None:
        w = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([d]).to_event(1))
        with numpyro.plate("people", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    return dpi.models.from_numpyro(regression, **given)


def released(model: Any, X: FloatArray, y: FloatArray, steps: int, rate: float = 1.0) -> dpi.Release:
    plan = dpi.PrivacyPlan.from_noise_multiplier(2.0, rate, steps, 1e-9)
    return dpi.run_dpvi(
        model,
        X,
        y,
        plan=plan,
        n_records=len(y),
        gradient="aligned",
        recipe="plain",
        max_grad_norm=NORM,
        n_threads=1,
        random_source=InsecureRNG(3),
    )


def peer(X: FloatArray, y: FloatArray, *, double: bool, same_work: bool = False) -> Callable[[], Any]:
    """Return a plain jitted vmap, clip and sum over all records; of preconditioned integers for the same work."""
    import jax
    from jax import numpy as jnp

    kind = np.float64 if double else np.float32

    def clipped(w: Any, x: Any, response: Any, beta: Any) -> Any:
        gradient = jax.grad(lambda v: jax.nn.softplus(x @ v) - response * (x @ v))(w)
        if not same_work:
            return gradient * jnp.minimum(1.0, NORM / jnp.linalg.norm(gradient))
        scaled = beta * gradient
        norm = jnp.linalg.norm(scaled)
        rounded = jnp.rint(scaled * (jnp.minimum(1.0, NORM / norm) / LATTICE_STEP))
        return jnp.where(jnp.isfinite(norm), rounded, 0.0).astype(np.int64)

    with jax.enable_x64(double):
        mapped = jax.vmap(clipped, (None, 0, 0, None))
        total = jax.jit(lambda *given: jnp.sum(mapped(*given), axis=0) * (LATTICE_STEP if same_work else 1.0))
        w, beta = jnp.full(X.shape[1], 0.1, kind), jnp.ones(X.shape[1], kind)
        A, b = jnp.asarray(X, kind), jnp.asarray(y, kind)

    def run() -> Any:
        with jax.enable_x64(double):
            return np.asarray(total(w, A, b, beta))

    expected = X * (special.expit(X @ np.full(X.shape[1], 0.1)) - y)[:, None]
    expected *= np.minimum(1.0, NORM / np.linalg.norm(expected, axis=1))[:, None]
    np.testing.assert_allclose(run(), expected.sum(axis=0), rtol=1e-3, atol=0.1)
    return run


def installed() -> list[str]:
    found = [name for name, needed in ADAPTERS.items() if needed is None or find_spec(needed)]
    for name in ADAPTERS:
        if name not in found:
            print(f"{name}: {ADAPTERS[name]} is not installed, left out")
    return found


def compare(rounds: int) -> None:
    """Print how far the releases are apart, and the processor time of a pass."""
    X, y = adult()
    models = {"built in": dpi.models.LogisticRegression(X.shape[1])}
    models |= {name: own_model(name, X.shape[1]) for name in installed()}
    print(f"logistic regression, {len(y)} records, {X.shape[1]} weights")
    trusted = released(models["built in"], X, y, 20, rate=0.1)
    for name, model in models.items():
        release = released(model, X, y, 20, rate=0.1)
        scale = np.max(np.abs(trusted.noisy_gradients))
        apart = np.max(np.abs(release.noisy_gradients - trusted.noisy_gradients)) / scale
        assert apart < 1e-6, (name, apart)
        print(f"  {name:14s} releases apart by {apart:.1e} of the largest number")

    def timed(model: Any) -> Callable[[], float]:
        def seconds(steps: int) -> float:
            begun = time.process_time()
            released(model, X, y, steps)
            return time.process_time() - begun

        return lambda: (seconds(6) - seconds(1)) / 5.0

    def of_call(run: Callable[[], Any]) -> Callable[[], float]:
        def seconds() -> float:
            begun = time.process_time()
            run()
            return time.process_time() - begun

        return seconds

    timers = {name: timed(model) for name, model in models.items()}
    if find_spec("jax"):
        timers["jitted vmap, clip, sum, float64"] = of_call(peer(X, y, double=True))
        timers["jitted vmap, clip, sum, float32"] = of_call(peer(X, y, double=False))
        timers["the same work, jitted, float64"] = of_call(peer(X, y, double=True, same_work=True))
    times: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            times[name].append(timer())
    base = times["built in"]
    for name, found in times.items():
        ratios = [own / other for own, other in zip(found, base, strict=True)]
        error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
        print(
            f"  {name:32s} {1e3 * statistics.median(found):7.1f} ms a pass, {statistics.median(ratios):5.2f} +- "
            f"{error:.2f} of the built-in kernel"
        )


def status(field: str) -> float:
    """Return a number of this process's memory, in MB."""
    with Path("/proc/self/status").open() as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith(field)) / 1024.0


def memory(name: str, size: int) -> None:
    """Print the largest memory of a pass of each kind, beyond what was there before it."""
    d = FEATURES_OF_MANY
    model = own_model(name, d)
    small = made_up(3000, d)
    X, y = made_up(size, d)
    query = CentredScores(model, np.zeros(d), np.eye(d), 2.0, 0.5, 8.0, 0)

    def newton_pass(features: FloatArray, response: FloatArray) -> None:
        total = _native.PartialSum(length=query.length, max_norm=query.max_norm)
        OwnRecords(features, response).add(total, query)

    passes = {"gradients": lambda *records: released(model, *records, 1), "centred scores": newton_pass}
    for kind, run in passes.items():
        run(*small)
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        run(X, y)
        beyond = status("VmHWM") - before
        data = (X.nbytes + y.nbytes) / 2**20
        print(f"  {name:14s} {kind:14s} {size} records ({data:.0f} MB): {beyond:5.0f} MB beyond the data", flush=True)


def main() -> None:
    """Compare the adapters."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--memory-of", choices=list(ADAPTERS))
    chosen = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if chosen.memory_of:
        memory(chosen.memory_of, chosen.records)
        return
    compare(chosen.rounds)
    if not chosen.no_memory:
        for name in installed():
            command = [sys.executable, __file__, "--memory-of", name, "--records", str(chosen.records)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
