"""One private step (N = 45000, n = 100, kappa = 0.1) against jitted JAX and torch.compile(vmap(grad)), in one run.

Answer first: with the same rows and draws, the clipped sums agree to the rounding of the peers' float32.  Needs ``jax``
and ``torch``; a peer that is not installed is left out and said so.

    python bench/dpvi_step.py [--repeats 100]
"""

import argparse
import statistics
import time

import numpy as np

from dpinfer.mechanism import _native

N, FEATURES, RATE, DRAWS, NORM, RAW_SCALE = 45_000, 100, 0.1, 10, 11.0, 550.0
KEY = bytes(range(32))


def softplus(x):
    return np.logaddexp(0.0, x)


class Ours:
    """The library's step, through the compiled session that ``run_dpvi`` uses."""

    def __init__(self, X, y, loc, raw, expectation, n_threads=0):
        self.loc, self.raw, self.expectation = loc, raw, expectation
        self.session = _native.StepSession(
            features=X, response=y, likelihood="logistic", intercept=False, aligned=False, sample_rate=RATE,
            max_grad_norm=NORM, key=KEY, n_threads=n_threads,
        )  # fmt: skip
        nodes, weights = np.polynomial.hermite_e.hermegauss(10)
        self.nodes, self.weights = nodes, weights / np.sqrt(2 * np.pi)
        self.beta = np.concatenate((np.ones(FEATURES), np.full(FEATURES, RAW_SCALE)))

    def prepare(self, step):
        s, slope = softplus(self.raw), 1 / (1 + np.exp(-self.raw))
        multiplier = self.beta.copy()
        if self.expectation == "quadrature":
            self.session.set_quadrature(self.loc, s**2, self.nodes, self.weights, np.empty(0))
            multiplier[FEATURES:] *= s * slope
            z = None
        else:
            z = _native.monte_carlo_normals(KEY, step, DRAWS * FEATURES).reshape(DRAWS, FEATURES)
            self.session.set_draws(self.loc + s * z, z, np.empty((0, DRAWS)))
            multiplier[FEATURES:] *= slope / DRAWS
        self.session.set_scales(multiplier, np.zeros(2 * FEATURES))
        return z

    def step(self, step):
        self.prepare(step)
        return self.session.noisy_sum(step, 37.0)


def jax_step(X, y):
    """Clipped, noised sum over a gathered batch: per-example gradients of the 10-draw ELBO loss by vmap(grad)."""
    import jax
    import jax.numpy as jnp

    beta = jnp.concatenate((jnp.ones(FEATURES), jnp.full(FEATURES, RAW_SCALE)))
    X, y = jnp.asarray(X, dtype=jnp.float32), jnp.asarray(y, dtype=jnp.float32)

    def loss(phi, z, x, response):
        theta = phi[:FEATURES] + jax.nn.softplus(phi[FEATURES:]) * z
        eta = theta @ x
        return jnp.mean(jax.nn.softplus(eta) - response * eta)

    def clipped(phi, z, x, response):
        gradient = beta * jax.grad(loss)(phi, z, x, response)
        return gradient * jnp.minimum(1.0, NORM / jnp.linalg.norm(gradient))

    @jax.jit
    def step(phi, z, rows, key):
        total = jnp.sum(jax.vmap(clipped, (None, None, 0, 0))(phi, z, X[rows], y[rows]), axis=0)
        return total, total + 37.0 * NORM * jax.random.normal(key, (2 * FEATURES,))

    key = jax.random.PRNGKey(0)

    def call(phi, z, rows):
        total, noisy = step(jnp.asarray(phi, jnp.float32), jnp.asarray(z, jnp.float32), jnp.asarray(rows), key)
        noisy.block_until_ready()
        return np.asarray(total)

    return call


def torch_step(X, y):
    """Compute the same with torch.func and torch.compile."""
    import torch
    from torch.func import grad, vmap

    beta = torch.cat((torch.ones(FEATURES), torch.full((FEATURES,), RAW_SCALE)))
    X, y = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y, dtype=torch.float32)

    def loss(phi, z, x, response):
        theta = phi[:FEATURES] + torch.nn.functional.softplus(phi[FEATURES:]) * z
        eta = theta @ x
        return torch.mean(torch.nn.functional.softplus(eta) - response * eta)

    def clipped(phi, z, x, response):
        gradient = beta * grad(loss)(phi, z, x, response)
        return gradient * torch.clamp(NORM / torch.linalg.vector_norm(gradient), max=1.0)

    @torch.compile
    def step(phi, z, features, response):
        total = vmap(clipped, (None, None, 0, 0))(phi, z, features, response).sum(0)
        return total, total + 37.0 * NORM * torch.randn(2 * FEATURES)

    def call(phi, z, rows):
        index = torch.as_tensor(rows)
        arguments = (torch.as_tensor(phi, dtype=torch.float32), torch.as_tensor(z, dtype=torch.float32))
        return step(*arguments, X[index], y[index])[0].numpy()

    return call


def alternating_medians_ms(functions, rounds):
    """Median milliseconds of each function, called in turn so that a busy machine is busy for all of them alike."""
    times = {name: [] for name in functions}
    for repeat in range(rounds + 3):
        for name, function in functions.items():
            function(repeat)  # what the others left in the caches is not this function's doing
            start = time.perf_counter()
            function(repeat)
            if repeat >= 3:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def narrow_steps(rng, repeats):
    """Linear and logistic regression with 10 features and an intercept, 500 of 5000 rows a step, on one thread."""
    n_rows, n_features = 5000, 10
    X = rng.normal(size=(n_rows, n_features))
    functions = {}
    for likelihood in ("gaussian", "logistic"):
        y = rng.normal(size=n_rows) if likelihood == "gaussian" else (rng.random(n_rows) < 0.5).astype(float)
        session = _native.StepSession(
            features=X, response=y, likelihood=likelihood, intercept=True, aligned=False, sample_rate=RATE,
            max_grad_norm=NORM, key=KEY, n_threads=1,
        )  # fmt: skip
        nodes, weights = np.polynomial.hermite_e.hermegauss(10)
        moments = np.array([2.0, -1.0, 0.5, 0.3, 0.2]) if likelihood == "gaussian" else np.empty(0)
        session.set_scales(np.ones(session.released_length), np.zeros(session.released_length))
        session.set_quadrature(
            np.zeros(n_features + 1), np.full(n_features + 1, 0.01), nodes, weights / np.sqrt(2 * np.pi), moments
        )
        functions[likelihood] = session.clipped_sum
    for likelihood, ms in alternating_medians_ms(functions, 10 * repeats).items():
        print(f"10 features, {likelihood:8s}, 500 rows: {1e3 * ms:.1f} us, {1e6 * ms / (RATE * n_rows):.0f} ns a row")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, FEATURES))
    y = (rng.random(N) < 0.5).astype(float)
    loc, raw = 0.05 * rng.normal(size=FEATURES), np.full(FEATURES, -3.0)
    phi = np.concatenate((loc, raw))
    print(f"instruction set: {_native.simd_variant()}; N = {N}, n = {FEATURES}, kappa = {RATE}, {DRAWS} draws")

    draws = Ours(X, y, loc, raw, "monte_carlo")
    z = draws.prepare(3)
    want = draws.session.clipped_sum(3) * draws.session.lattice_step
    rows = _native.poisson_sample(KEY, 3, RATE, N)
    # Compiled peers need a fixed batch size: the expected one, for the timing.
    batches = [rng.choice(N, size=int(RATE * N), replace=False) for _ in range(8)]
    functions = {}
    peers = []
    for name, build in (("jitted JAX", jax_step), ("torch.compile(vmap(grad))", torch_step)):
        try:
            call = build(X, y)
            got = call(phi, z, rows)
        except ImportError as error:
            print(f"{name}: not measured ({error})")
            continue
        difference = np.abs(got - want).max() / np.abs(want).max()
        if not difference < 2e-5:
            raise RuntimeError(f"{name} computes something else: largest relative difference {difference:.1e}")
        print(f"{name}: clipped sums agree, largest difference {difference:.1e} relative (its float32)")
        functions[name] = lambda repeat, call=call: call(phi, z, batches[repeat % 8])
        peers.append(name)

    rows_read = RATE * N
    moved = {}
    for label, features in (("float64", X), ("float32", X.astype(np.float32))):
        for expectation in ("quadrature", "monte_carlo"):
            for n_threads in (1, 0):
                name = f"ours {label} {expectation:11s} {'1 thread' if n_threads else 'all cores'}"
                functions[name] = Ours(features, y, loc, raw, expectation, n_threads).step
                moved[name] = rows_read * (FEATURES * features.itemsize + 8)
    medians = alternating_medians_ms(functions, repeats)
    print()
    for name, ms in medians.items():
        ratios = ", ".join(f"{medians[peer] / ms:.0f}x {peer}" for peer in peers)
        speed = f", {moved[name] / ms / 1e6:.1f} GB/s; {ratios}" if name in moved else ""
        print(f"{name:38s}: {ms:.3f} ms{speed}")
    print()
    narrow_steps(rng, repeats)
    stream = np.empty(64_000_000 // 8)
    start = time.perf_counter()
    for _ in range(10):
        stream.sum()
    print(f"roofline: NumPy reads {10 * stream.nbytes / (time.perf_counter() - start) / 1e9:.1f} GB/s on one core")


if __name__ == "__main__":
    main()
