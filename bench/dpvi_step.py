"""One private step (N = 45000, n = 100, kappa = 0.1) against jitted JAX and torch.compile(vmap(grad)), in one run.

Answer first: with the same rows and draws, the clipped sums agree to the rounding of the peers' float32.  Needs ``jax``
and ``torch``; a peer that is not installed is left out and said so.

    python bench/dpvi_step.py [--repeats 200]
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


def median_ms(function, repeats):
    for warm in range(5):
        function(warm)
    times = []
    for repeat in range(repeats):
        start = time.perf_counter()
        function(repeat)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
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
    peers = {}
    for name, build in (("jitted JAX", jax_step), ("torch.compile(vmap(grad))", torch_step)):
        try:
            call = build(X, y)
            got = call(phi, z, rows)
        except ImportError as error:
            print(f"{name}: not measured ({error})")
            continue
        difference = np.abs(got - want).max() / np.abs(want).max()
        assert difference < 2e-5, (name, difference)
        print(f"{name}: clipped sums agree, largest difference {difference:.1e} relative (its float32)")
        peers[name] = median_ms(lambda repeat, call=call: call(phi, z, batches[repeat % 8]), max(20, repeats // 4))
        print(f"{name}: {peers[name]:.2f} ms a step")

    print()
    for label, features in (("float64", X), ("float32", X.astype(np.float32))):
        for expectation in ("quadrature", "monte_carlo"):
            for n_threads in (1, 0):
                ours = Ours(features, y, loc, raw, expectation, n_threads)
                ms = median_ms(ours.step, repeats)
                moved = RATE * N * (FEATURES * features.itemsize + 8)
                ratios = ", ".join(f"{peer / ms:.0f}x {name}" for name, peer in peers.items())
                threads = "1 thread " if n_threads else "all cores"
                print(f"ours {label} {expectation:11s} {threads}: {ms:.3f} ms, {moved / ms / 1e6:.1f} GB/s; {ratios}")
    stream = np.empty(64_000_000 // 8)
    start = time.perf_counter()
    for _ in range(10):
        stream.sum()
    print(f"roofline: NumPy reads {10 * stream.nbytes / (time.perf_counter() - start) / 1e9:.1f} GB/s on one core")


if __name__ == "__main__":
    main()
