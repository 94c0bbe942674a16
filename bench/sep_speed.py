"""One pass of SEP over Protein-sized data (41157 x 9, 100 hidden units) against NumPy and PyTorch, in one run.

Two forms of the same update: all records at once (the sum of every record's centred sites at the current q, what a
minibatch step of SEP and DP-SEP does), and one after the other (the standard update, q moving after each record).  The
answer is checked first: sums and states agree.  Medians of alternating runs.

    python bench/sep_speed.py [--repeats 5] [--records 41157] [--loop-records 400]
"""

import argparse
import math
import statistics
import time

import numpy as np
from scipy import special

from dpinfer.mechanism import _native

FEATURES, HIDDEN = 9, 100
N_PARAMS = (FEATURES + 2) * HIDDEN + 1
FIRST, SECOND = 1 / math.sqrt(FEATURES + 1), 1 / math.sqrt(HIDDEN + 1)
LAYER = (FEATURES + 1) * HIDDEN
CHUNK = 256
NOISE = 0.5


def numpy_sites(mean, variance, noise, x, y, ndtr=special.ndtr):
    """Sites of each weight for each record of a chunk: (rows, d + 1, H) twice, (rows, H + 1) twice, and the moments."""
    z = np.hstack((x, np.ones((x.shape[0], 1))))
    W, V = mean[:LAYER].reshape(-1, HIDDEN), variance[:LAYER].reshape(-1, HIDDEN)
    w, v = mean[LAYER:-1], variance[LAYER:-1]
    m, s2 = FIRST * (z @ W), FIRST**2 * ((z * z) @ V)
    sd = np.sqrt(s2)
    alpha = m / sd
    above = ndtr(alpha)
    density = np.exp(-0.5 * alpha * alpha) / math.sqrt(2 * math.pi)
    a = m * above + sd * density
    va = np.maximum((m * m + s2) * above + m * sd * density - a * a, 0.0)
    f = SECOND * (a @ w + mean[-1])
    s = SECOND**2 * ((va + a * a) @ v + va @ (w * w) + variance[-1])
    total = s + noise
    df = (y - f) / total
    ds = 0.5 * (df * df - 1 / total)
    c1, c2 = (SECOND * df)[:, None], (SECOND**2 * ds)[:, None]
    out_mean = np.hstack((c1 * a + 2 * c2 * w * va, c1))
    out_variance = np.hstack((c2 * (va + a * a), c2))
    to_a, to_va = c1 * w + 2 * c2 * v * a, c2 * (v + w * w)
    to_m = to_a * above + 2 * to_va * a * (1 - above)
    to_s2 = to_a * density / (2 * sd) + to_va * (above - a * density / sd)
    curvature = to_m * to_m - 2 * to_s2
    scaled = FIRST * z
    first = scaled[:, :, None] * to_m[:, None, :]
    second = (scaled * scaled)[:, :, None] * curvature[:, None, :]
    factor = 1 / (1 - V * second)
    b = out_mean * out_mean - 2 * out_variance
    out_factor = 1 / (1 - np.append(v, variance[-1]) * b)
    return first * factor, second * factor, out_mean * out_factor, b * out_factor, f, s


def numpy_pass(mean, variance, X, y):
    """Sum over all records, in chunks that stay in the cache."""
    total = np.zeros(2 * N_PARAMS)
    for start in range(0, X.shape[0], CHUNK):
        rows = slice(start, start + CHUNK)
        first, second, out_first, out_second, _, _ = numpy_sites(mean, variance, NOISE, X[rows], y[rows])
        parts = (first.sum(0).ravel(), out_first.sum(0), second.sum(0).ravel(), out_second.sum(0))
        total += np.concatenate(parts)
    return total


def torch_pass(torch, compiled):
    """Compute the same in PyTorch, float64, closed-form derivatives (autograd per record would be slower)."""
    root = math.sqrt(2 * math.pi)

    def sites(mean, variance, x, y):
        z = torch.cat((x, torch.ones_like(x[:, :1])), 1)
        W, V = mean[:LAYER].reshape(-1, HIDDEN), variance[:LAYER].reshape(-1, HIDDEN)
        w, v = mean[LAYER:-1], variance[LAYER:-1]
        m, s2 = FIRST * (z @ W), FIRST**2 * ((z * z) @ V)
        sd = torch.sqrt(s2)
        alpha = m / sd
        above = 0.5 * torch.special.erfc(-alpha / math.sqrt(2))
        density = torch.exp(-0.5 * alpha * alpha) / root
        a = m * above + sd * density
        va = torch.clamp((m * m + s2) * above + m * sd * density - a * a, min=0.0)
        f = SECOND * (a @ w + mean[-1])
        s = SECOND**2 * ((va + a * a) @ v + va @ (w * w) + variance[-1])
        total = s + NOISE
        df = (y - f) / total
        ds = 0.5 * (df * df - 1 / total)
        c1, c2 = (SECOND * df)[:, None], (SECOND**2 * ds)[:, None]
        out_mean = torch.cat((c1 * a + 2 * c2 * w * va, c1), 1)
        out_variance = torch.cat((c2 * (va + a * a), c2), 1)
        to_a, to_va = c1 * w + 2 * c2 * v * a, c2 * (v + w * w)
        to_m = to_a * above + 2 * to_va * a * (1 - above)
        to_s2 = to_a * density / (2 * sd) + to_va * (above - a * density / sd)
        curvature = to_m * to_m - 2 * to_s2
        scaled = FIRST * z
        first = scaled[:, :, None] * to_m[:, None, :]
        second = (scaled * scaled)[:, :, None] * curvature[:, None, :]
        factor = 1 / (1 - V * second)
        b = out_mean * out_mean - 2 * out_variance
        out_factor = 1 / (1 - torch.cat((v, variance[-1:])) * b)
        parts = (
            (first * factor).sum(0).ravel(), (out_mean * out_factor).sum(0), (second * factor).sum(0).ravel(),
            (b * out_factor).sum(0),
        )  # fmt: skip
        return torch.cat(parts)

    step = torch.compile(sites) if compiled else sites

    def call(mean, variance, X, y):
        arrays = [torch.from_numpy(value) for value in (mean, variance, X, y)]
        whole = X.shape[0] // CHUNK * CHUNK
        total = torch.zeros(2 * N_PARAMS, dtype=torch.float64)
        for start in range(0, whole, CHUNK):
            total += step(arrays[0], arrays[1], arrays[2][start : start + CHUNK], arrays[3][start : start + CHUNK])
        if whole < X.shape[0]:
            total += sites(arrays[0], arrays[1], arrays[2][whole:], arrays[3][whole:])
        return total.numpy()

    return call


def tilted_gamma(shape, rate, residual, spread):
    """Return the gamma with the first two moments of gamma(shape, rate) times the residual's density."""

    def log_z(a):
        variance = spread + rate / (a - 1)
        return -0.5 * math.log(variance) - 0.5 * residual**2 / variance

    z0, z1, z2 = log_z(shape), log_z(shape + 1), log_z(shape + 2)
    new_shape = 1 / (math.exp(z2 - 2 * z1 + z0) * (shape + 1) / shape - 1)
    new_rate = 1 / (math.exp(z2 - z1) * (shape + 1) / rate - math.exp(z1 - z0) * shape / rate)
    return np.array([new_shape, new_rate])


def numpy_loop(eta, precision, prior, gamma, X, y):
    """Run standard SEP, record by record."""
    eta, precision, n = eta.copy(), precision.copy(), X.shape[0]
    prior_gamma, gamma = gamma, gamma.copy()
    for i in range(n):
        cavity = gamma - (gamma - prior_gamma) / n
        noise = cavity[1] / (cavity[0] - 1)
        site_eta, site_precision = eta / n, (precision - prior) / n
        variance = 1 / (precision - site_precision)
        mean = (eta - site_eta) * variance
        first, second, out_first, out_second, f, s = numpy_sites(mean, variance, noise, X[i : i + 1], y[i : i + 1])
        gamma += tilted_gamma(*cavity, y[i] - f[0], s[0]) - cavity - (gamma - prior_gamma) / n
        a = np.concatenate((first.ravel(), out_first.ravel()))
        b = np.concatenate((second.ravel(), out_second.ravel()))
        eta += a + mean * b - site_eta
        precision += b - site_precision
    return eta, precision


def medians(functions, repeats):
    times = {name: [] for name in functions}
    for repeat in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if repeat:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def check(name, got, want):
    difference = np.abs(got - want).max() / np.abs(want).max()
    if not difference < 1e-8:
        raise RuntimeError(f"{name} computes something else: largest relative difference {difference:.1e}")
    print(f"{name}: agrees, largest difference {difference:.1e} relative")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--records", type=int, default=41_157)
    parser.add_argument("--loop-records", type=int, default=400)
    arguments = parser.parse_args()
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(arguments.records, FEATURES)), rng.normal(size=arguments.records)
    mean, variance = rng.normal(size=N_PARAMS), rng.uniform(0.001, 0.02, size=N_PARAMS)
    print(f"instruction set {_native.simd_variant()}; {arguments.records} records, {N_PARAMS} weights")

    def ours(n_threads):
        session = _native.NetworkSession(
            features=X, response=y, n_hidden=HIDDEN, hidden_scale=FIRST, output_scale=SECOND, sample_rate=1.0,
            max_norm=1e6, key=bytes(32), n_threads=n_threads,
        )  # fmt: skip
        session.set_sites(mean, variance, NOISE, 1.0, 1.0, 0.0, np.inf, np.inf)
        rows = np.arange(arguments.records)
        return lambda: session.plain_sum(rows, np.inf)[:-1]

    want = ours(0)()
    functions = {"ours, one thread": ours(1), "ours, all cores": ours(0)}
    peers = {"NumPy": lambda: numpy_pass(mean, variance, X, y)}
    try:
        import torch

        for name, compiled in (("PyTorch", False), ("torch.compile", True)):
            call = torch_pass(torch, compiled)
            peers[name] = lambda call=call: call(mean, variance, X, y)
    except ImportError as error:
        print(f"PyTorch: not measured ({error})")
    for name in list(peers):
        try:
            check(name, peers[name](), want)
        except ImportError as error:
            print(f"{name}: not measured ({error})")
            del peers[name]
    print("\nall records at once")
    report(medians(functions | peers, arguments.repeats), functions, peers, arguments.records)

    n = arguments.loop_records
    prior = np.full(N_PARAMS, 0.5)
    precision, eta = 1 / variance, mean / variance
    gamma = np.array([60.0, NOISE * 59.0])

    def passes(records):
        native = _native.NetworkPasses(
            features=X[:records], response=y[:records], n_hidden=HIDDEN, own_sites=False, clip_norm=np.inf,
            site_weight=1.0, eta=eta, precision=precision, prior_precision=prior, gamma=gamma, prior_gamma=gamma,
        )  # fmt: skip
        native.run(np.arange(records), 1.0 / records, 1.0)
        return native.state()

    got, loop = passes(n), numpy_loop(eta, precision, prior, gamma, X[:n], y[:n])
    check("NumPy record by record, eta", loop[0], got[0])
    check("NumPy record by record, precision", loop[1], got[1])
    print(f"\none record after the other ({n} records each; a pass takes {arguments.records / n:.0f} times as long)")
    functions, peers = (
        {"ours": lambda: passes(n)},
        {"NumPy": lambda: numpy_loop(eta, precision, prior, gamma, X[:n], y[:n])},
    )
    report(medians(functions | peers, arguments.repeats), functions, peers, n)


def report(seconds, functions, peers, n):
    for name in functions:
        ratios = ", ".join(f"{seconds[peer] / seconds[name]:.1f}x {peer}" for peer in peers)
        print(f"{name:18s} {1e3 * seconds[name]:9.1f} ms, {1e6 * seconds[name] / n:6.2f} us a record; {ratios}")
    for name in peers:
        print(f"{name:18s} {1e3 * seconds[name]:9.1f} ms, {1e6 * seconds[name] / n:6.2f} us a record")


if __name__ == "__main__":
    main()
