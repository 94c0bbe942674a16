"""Peers in one run: a pass of clipped gradients with noise, and a whole private logistic regression of Adult.

    python bench/peers/peer_environments.py DIR
    python -m bench --peers DIR peers --arguments "passes [--repeats 9]"
    python -m bench --peers DIR peers --arguments "fits [--repeats 3]"

Peers: jitted JAX, torch.compile, Opacus, d3p (which needs an old JAX) and diffprivlib (an old scikit-learn), in the
environments that bench/peers/peer_environments.py builds.  What is not there is left out and said so.

Passes: one effective full pass, that is clipped gradients of as many records as there are, summed, with noise: all at
once, or in ten batches at rate 0.1, as DP-SGD takes them.  Records are Adult's, with the constant as the last column;
the library sums them in whitened coordinates, from dense columns and from those that are not zero.  Answer first: with
the same batch, everybody's sums agree.  Then processor time on one core, interleaved; ratios to the library's pass,
within a repeat, as median with quartiles.  Last, what a unit of information costs at equal epsilon.

Fits: from arrays to a result at epsilon = 1, processor time: a first fit in a fresh process and a second one; medians.
Log loss on Adult's test set (DPINFER_DATA); of intervals, how many of 57 weights without privacy they hold, and widths.
"""

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("DPINFER_DATA", ROOT.parent / "shared" / "data"))
sys.path.insert(0, str(ROOT))
EPSILON, DELTA, RATE, NORM, Z = 1.0, 1e-5, 0.1, 3.0, 1.6448536269514722
KEY, NO_TABLE = bytes(range(32)), {"centre": np.empty(0), "slope": np.empty(0), "first_node": 0.0, "spacing": 1.0}
# The root mean square norm of a record of Adult, and the largest, under the schema's constants.
ROOT_MEAN_SQUARE, LARGEST = math.sqrt(12.0), 22.66
WHOLE, CODES = "private Newton, a whole run", "by codes"
STEPS = {"Opacus": 500, "published": 10_000}


def sigmoid(eta):
    return 1.0 / (1.0 + np.exp(-eta))


# --- passes: each of these returns a function of a batch (None: all records) that gives the noisy sum, and one that
# gives the sum alone, for the answer


def whitening(d):
    """Return a full matrix, as whitening has."""
    return np.eye(d) + 0.01 * np.random.default_rng(2).standard_normal((d, d))


def newton_pass(X, y, w, sigma, codes=False):
    """Return the library's pass: weighted scores in whitened coordinates, on the lattice; of the numbers not zero."""
    from scipy import sparse

    from dpinfer.mechanism import _native

    form = {"features": X}
    if codes:
        matrix = sparse.csr_array(X)
        places = {"columns": matrix.indices.astype(np.int32), "starts": matrix.indptr.astype(np.int64)}
        form = {"features": matrix.data, "n_features": X.shape[1], **places}
    rows = _native.RegressionRows(**form, response=y, intercept=False)
    white = whitening(X.shape[1])
    residuals = _native.Residuals(link="logistic", loc=w, bound=np.inf, **NO_TABLE)

    def total():
        partial = _native.PartialSum(length=X.shape[1], max_norm=NORM)
        rows.add_scores(partial, residuals, transform=white, bound=NORM)
        return partial

    def exact(rows):
        return total().integers * total().lattice_step

    return lambda rows: total().noisy_sum(KEY, 1, sigma), exact


def session_pass(X, y, w, sigma, rate):
    """Return a step of the library's gradient trace at one point, over all records or a sample of its own."""
    from dpinfer.mechanism import _native

    session = _native.StepSession(
        features=X, response=y, likelihood="logistic", intercept=False, aligned=True, sample_rate=rate,
        max_grad_norm=NORM, key=KEY, n_threads=1,
    )  # fmt: skip
    session.set_draws(w[None], np.zeros((1, len(w))), np.empty((0, 1)))
    session.set_scales(np.ones(len(w)), np.zeros(len(w)))
    step = iter(range(1, 10**9))
    return (
        lambda rows: session.noisy_sum(next(step), sigma),
        lambda rows: -session.clipped_sum(1) * session.lattice_step,
    )


def jax_pass(X, y, w, sigma):
    import jax
    from jax import numpy as jnp

    A, b, point = jnp.asarray(X, "f4"), jnp.asarray(y, "f4"), jnp.asarray(w, "f4")

    def clipped(x, response):
        gradient = jax.grad(lambda v: response * (x @ v) - jax.nn.softplus(x @ v))(point)
        return gradient * jnp.minimum(1.0, NORM / jnp.linalg.norm(gradient))

    @jax.jit
    def step(features, response, key):
        total = jnp.sum(jax.vmap(clipped)(features, response), axis=0)
        return total, total + sigma * NORM * jax.random.normal(key, total.shape)

    key, taken = jax.random.PRNGKey(0), jax.jit(lambda rows: (A[rows], b[rows]))

    def both(rows):
        return step(*((A, b) if rows is None else taken(rows)), key)

    return lambda rows: np.asarray(both(rows)[1]), lambda rows: np.asarray(both(rows)[0])


def torch_pass(X, y, w, sigma):
    import torch
    from torch.func import grad, vmap

    torch.set_num_threads(1)
    A, b, point = (torch.as_tensor(array, dtype=torch.float32) for array in (X, y, w))

    def loss(v, x, response):
        eta = (x * v).sum()
        return response * eta - torch.nn.functional.softplus(eta)

    def clipped(x, response):
        gradient = grad(loss)(point, x, response)
        return gradient * torch.clamp(NORM / torch.linalg.vector_norm(gradient), max=1.0)

    @torch.compile
    def step(features, response):
        total = vmap(clipped)(features, response).sum(0)
        return total, total + sigma * NORM * torch.randn(total.shape)

    def both(rows):
        return step(*((A, b) if rows is None else (A[torch.as_tensor(rows)], b[torch.as_tensor(rows)])))

    return lambda rows: both(rows)[1].numpy(), lambda rows: both(rows)[0].numpy()


def opacus_pass(X, y, w, sigma):
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.set_num_threads(1)
    A, b = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y, dtype=torch.float32)

    def stepper(noise):
        module = GradSampleModule(torch.nn.Linear(X.shape[1], 1, bias=False), loss_reduction="sum")
        with torch.no_grad():
            module._module.weight.copy_(torch.as_tensor(w, dtype=torch.float32))
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.0), noise_multiplier=noise, max_grad_norm=NORM,
            expected_batch_size=None, loss_reduction="sum",
        )  # fmt: skip

        def step(rows):
            features, response = (A, b) if rows is None else (A[torch.as_tensor(rows)], b[torch.as_tensor(rows)])
            optimizer.zero_grad()
            eta = module(features)[:, 0]
            torch.nn.functional.binary_cross_entropy_with_logits(eta, response, reduction="sum").backward()
            optimizer.step()
            return -module._module.weight.grad[0].numpy()

        return step

    return stepper(sigma), stepper(0.0)


PEERS = {
    "jitted JAX": (jax_pass, "jax"),
    "torch.compile(vmap(grad))": (torch_pass, "torch"),
    "Opacus": (opacus_pass, "opacus"),
}


def clipped_sum(X, y, w, weighted):
    """Return the sum in NumPy: of weighted scores, or of clipped gradients of the log likelihood."""
    residuals = (y - sigmoid(X @ w))[:, None]
    if weighted:
        Z = X @ whitening(X.shape[1]).T
        return np.sum(Z * residuals * np.minimum(1.0, NORM**2 / np.sum(Z**2, axis=1))[:, None], axis=0)
    scores = X * residuals
    return np.sum(scores * np.minimum(1.0, NORM / np.linalg.norm(scores, axis=1))[:, None], axis=0)


def assert_near(sums, wanted, relative):
    difference = np.abs(sums - wanted).max() / np.abs(wanted).max()
    assert difference < relative, difference


def passes(chosen):
    """Compare one effective full pass."""
    from scipy.sparse import csr_array

    import dpinfer as dpi

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    X, y, model = adult_records()
    n, d = X.shape
    w, rng = np.full(d, 0.1), np.random.default_rng(1)
    # Time does not depend on the multiplier.
    once = dpi.plan_privacy(target_epsilon=EPSILON, target_delta=DELTA, sample_rate=1.0, n_steps=1).noise_multiplier
    batches = [rng.choice(n, size=round(RATE * n), replace=False) for _ in range(round(1.0 / RATE))]
    makers = {name: maker for name, (maker, needed) in PEERS.items() if find_spec(needed)}
    for name in PEERS.keys() - makers.keys():
        print(f"{name}: not installed, left out")

    def ten(step):
        return lambda: [step(rows) for rows in batches]

    timed = {}
    for name, codes in (("private Newton", False), (f"private Newton, {CODES}", True)):
        run, exact = newton_pass(X, y, w, once, codes)
        assert_near(exact(None), clipped_sum(X, y, w, True), 1e-6)
        timed[name] = lambda run=run: run(None)
    step, exact = session_pass(X, y, w, once, 1.0)
    assert_near(exact(None), clipped_sum(X, y, w, False), 1e-6)
    timed["gradient trace"] = lambda: step(None)
    timed["gradient trace, ten batches"] = ten(session_pass(X, y, w, once, RATE)[0])
    for name, maker in makers.items():
        run, exact = maker(X, y, w, once)
        for rows in (None, batches[0]):
            want = clipped_sum(X[rows], y[rows], w, False) if rows is not None else clipped_sum(X, y, w, False)
            assert_near(exact(rows), want, 1e-4)
        timed[name] = lambda run=run: run(None)
        timed[f"{name}, ten batches"] = ten(maker(X, y, w, once)[0])
    print(f"{n} records, {d} columns, {np.count_nonzero(X) / n:.1f} of them not zero: sums agree")
    plan = dpi.plan_newton(model, target_epsilon=EPSILON, target_delta=DELTA, n_records=n)
    features = np.ascontiguousarray(X[:, :-1])
    for name, rows in ((WHOLE, features), (f"{WHOLE}, {CODES}", csr_array(features))):
        timed[name] = lambda rows=rows: dpi.run_newton(model, rows, y, plan=plan, n_records=n, n_threads=1)
    times = interleaved(timed, chosen.repeats)
    for name, seconds in times.items():
        low, middle, high = np.quantile(np.array(seconds) / times["private Newton"], [0.25, 0.5, 0.75])
        print(f"  {name:40s} {1e3 * statistics.median(seconds):8.2f} ms, {middle:6.2f} times ({low:.2f} to {high:.2f})")
    information(times, makers, plan, once)


def information(times, makers, plan, once):
    """Print what a unit of information costs: as much as one pass holds that has the whole budget."""
    import dpinfer as dpi

    share = sum(part for part, phase in zip(plan.shares, plan.phases, strict=True) if phase == "measure")
    dense, own = (np.array(times[name]) / share for name in (WHOLE, f"{WHOLE}, {CODES}"))
    print(
        f"a unit of information, at epsilon {EPSILON:g}: a pass of scores with a multiplier of {once:.2f}\n"
        f"  library: {len(plan.phases)} passes, whose last scores hold {share:.2f}: {1e3 * np.median(dense):.0f} ms, "
        f"{CODES} {1e3 * np.median(own):.0f} ms"
    )
    for steps in (10, 100, 1000, 10_000):
        tenth = dpi.plan_privacy(target_epsilon=EPSILON, target_delta=DELTA, sample_rate=RATE, n_steps=steps)
        variance = (tenth.noise_multiplier / once / RATE) ** 2 / steps
        told = []
        for name in makers:
            ratios = RATE * steps * variance * np.array(times[f"{name}, ten batches"]) / own
            low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
            told.append(f"{name} {middle:.1f} ({low:.1f} to {high:.1f})")
        print(f"  {steps} steps at rate {RATE:g}, {variance:.2f} times the variance: {', '.join(told)} times the last")


def adult_records():
    """Return Adult's records with the constant as the last column, labels, and the model of its schema."""
    import dpinfer as dpi

    schema = dpi.tabular.Schema.load(ROOT / "examples" / "adult.toml")
    table = dpi.tabular.read_table(DATA / "adult.data.csv.gz", schema)
    return np.column_stack([table.X, np.ones(len(table.X))]), np.asarray(table.y, dtype=np.float64), adult_model()


def interleaved(functions, repeats):
    """Return processor seconds of each function, called in turn, after two calls that are not counted."""
    times = {name: [] for name in functions}
    for repeat in range(repeats + 2):
        for name, function in functions.items():
            start = time.process_time()
            function()
            if repeat >= 2:
                times[name].append(time.process_time() - start)
    return times


# --- whole fits: each returns a point, and where the method has them the ends of 90% intervals


def adult_model():
    import dpinfer as dpi

    schema = dpi.tabular.Schema.load(ROOT / "examples" / "adult.toml")
    moments = schema.feature_moments  # with the constant
    return dpi.models.LogisticRegression(len(moments) - 1, fit_intercept=True, feature_moments=moments)


def ends(posterior):
    return posterior.mean, *posterior.quantile([0.05, 0.95])


def fit_newton(X, y, seed):
    import dpinfer as dpi

    return ends(dpi.fit(adult_model(), X, y, epsilon=EPSILON, delta=DELTA, n_records=len(y)).posterior)


def fit_trace(X, y, seed):
    """Return what the published setting gives, by the library's own mechanism."""
    import dpinfer as dpi

    plan = dpi.plan_privacy(target_epsilon=EPSILON, target_delta=DELTA, sample_rate=RATE, n_steps=STEPS["published"])
    release = dpi.run_dpvi(
        adult_model(), X, y, plan=plan, n_records=len(y), max_grad_norm=11.0, recipe="paper", n_threads=1
    )
    return ends(dpi.noise_aware_posterior(release, prior="empirical", burn_in=0.2, extra_noise=False))


def fit_opacus(X, y, seed):
    """Run DP-SGD on the mean loss, recorded as docs/any-model.md says; then the library's posterior."""
    from tests.reference.other_traces import by_opacus

    import dpinfer as dpi

    steps = STEPS["Opacus"]
    plan = dpi.plan_privacy(target_epsilon=EPSILON, target_delta=DELTA, sample_rate=RATE, n_steps=steps)
    trace = by_opacus(
        np.column_stack([X, np.ones(len(X))]), y, noise_multiplier=plan.noise_multiplier, norm=ROOT_MEAN_SQUARE,
        rate=RATE, steps=steps, learning_rate=0.5, seed=seed,
    )  # fmt: skip
    arrays = np.array(trace["params"]), np.array(trace["gradients"])
    given = {"noise_stddev": trace["stddev"], "sample_rate": RATE, "family": "point"}
    bare = dpi.noise_aware_posterior(dpi.release_from_arrays(*arrays, **given))
    # The curvature of made-up records of the declared moments, at the optimum that the trace tells.
    moments = adult_model().feature_moments
    made_up = np.random.default_rng(3).multivariate_normal(np.zeros(len(moments)), moments, 20_000)
    p = sigmoid(made_up @ bare.mean)
    curvature = len(y) * np.mean(made_up**2 * (p * (1.0 - p))[:, None], axis=0) + 1.0
    return ends(dpi.noise_aware_posterior(dpi.release_from_arrays(*arrays, curvature=curvature, **given)))


def fit_diffprivlib(X, y, seed, norm=LARGEST):
    """Return a point under pure epsilon; the ridge is the prior's."""
    from diffprivlib.models import LogisticRegression

    model = LogisticRegression(epsilon=EPSILON, data_norm=norm, C=1.0, max_iter=1000).fit(X, y)
    return (np.append(model.coef_[0], model.intercept_[0]),)


def fit_d3p(X, y, seed):
    """Run the regression of d3p's README with a standard normal prior, at the published rate and number of steps."""
    import d3p.random
    import jax
    import numpyro
    from d3p.dputil import approximate_sigma_remove_relation
    from d3p.minibatch import subsample_batchify_data
    from d3p.svi import DPSVI
    from jax import numpy as jnp
    from numpyro import distributions as dist
    from numpyro.infer import Trace_ELBO
    from numpyro.infer.autoguide import AutoDiagonalNormal
    from numpyro.optim import Adam

    A, b = jnp.asarray(np.column_stack([X, np.ones(len(X))]), "f4"), jnp.asarray(y, "f4")

    def model(xs, ys, N):
        weights = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([A.shape[1]]).to_event(1))
        with numpyro.plate("batch", N, len(xs)):
            numpyro.sample("ys", dist.Bernoulli(logits=xs @ weights), obs=ys)

    sigma, *_ = approximate_sigma_remove_relation(EPSILON, DELTA, RATE, STEPS["published"])
    key = d3p.random.PRNGKey(seed)
    start, batch = subsample_batchify_data((A, b), round(RATE * len(y)))
    _, batches = start(key)
    inference = DPSVI(model, AutoDiagonalNormal(model), Adam(1e-3), Trace_ELBO(), 10.0, sigma, N=len(y))
    state = inference.init(key, *batch(0, batches))

    def step(index, state):
        return inference.update(state, *batch(index, batches))[0]

    found = inference.get_params(jax.jit(lambda s: jax.lax.fori_loop(0, STEPS["published"], step, s))(state))
    mean, stddev = np.asarray(found["auto_loc"], "f8"), np.asarray(found["auto_scale"], "f8")
    return mean, mean - Z * stddev, mean + Z * stddev


METHODS = {
    "dpinfer, dpi.fit": (fit_newton, "dpinfer", "interval, noise counted"),
    "dpinfer, published trace": (fit_trace, "dpinfer", "interval, noise counted"),
    "Opacus and our posterior": (fit_opacus, "opacus", "interval, noise counted"),
    "d3p": (fit_d3p, "d3p", "interval, noise not counted"),
    "diffprivlib": (fit_diffprivlib, "diffprivlib", "point, delta = 0"),
    "diffprivlib, rows clipped": (
        functools.partial(fit_diffprivlib, norm=ROOT_MEAN_SQUARE),
        "diffprivlib",
        "point, delta = 0",
    ),
}


def work(name, source, target, seed, count):
    """Fit in this process; write seconds and results of each fit."""
    warnings.filterwarnings("ignore")
    records = np.load(source)
    found = []
    for index in range(count):
        start = time.process_time()
        result = METHODS[name][0](records["X"], records["y"], seed + index)
        found.append((time.process_time() - start, [np.asarray(part).tolist() for part in result]))
    Path(target).write_text(json.dumps(found), encoding="utf-8")


def fits(chosen):
    """Compare whole fits of Adult."""
    from peer_environments import interpreter

    import dpinfer as dpi

    schema = dpi.tabular.Schema.load(ROOT / "examples" / "adult.toml")
    train, test = (dpi.tabular.read_table(DATA / f"adult.{name}.csv.gz", schema) for name in ("data", "test"))
    whole, scale = without_privacy(train.X, train.y)
    print(f"without privacy: log loss {log_loss(whole, test):.4f}")
    pythons = {name: interpreter(os.environ.get("DPINFER_PEERS"), name) for name in ("d3p", "diffprivlib")}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "adult.npz"
        np.savez(source, X=train.X, y=train.y)
        found = {name: [] for name, (_, needed, _) in METHODS.items() if pythons.get(needed) or find_spec(needed)}
        for name in METHODS.keys() - found.keys():
            print(f"{name}: no environment, left out")
        for repeat in range(chosen.repeats):
            for name, results in found.items():
                target = Path(folder) / "found.json"
                python = pythons.get(METHODS[name][1]) or sys.executable
                command = [str(python), __file__, "work", name, str(source), str(target), str(100 * repeat)]
                subprocess.run(command, check=True, timeout=3600)
                results.append(json.loads(target.read_text(encoding="utf-8")))
                print(f"  repeat {repeat + 1}: {name}, {results[-1][-1][0]:.1f} s", file=sys.stderr, flush=True)
    for name, results in found.items():
        first, later = (statistics.median(run[place][0] for run in results) for place in (0, 1))
        losses = [log_loss(np.array(result[0]), test) for run in results for _, result in run]
        told = ""
        if len(results[0][0][1]) == 3:
            low, high = np.array([result[1:] for run in results for _, result in run]).transpose(1, 0, 2)
            held = np.mean((low < whole) & (whole < high), axis=1)
            error = held.std(ddof=1) / math.sqrt(len(held))
            told = f"; holds {held.mean():.3f} +- {error:.3f}, width {np.median((high - low) / (2.0 * Z * scale)):.2f}"
        print(
            f"  {name:26s} {first:7.2f} s the first, {later:7.2f} s then; log loss {np.mean(losses):.4f}; "
            f"{METHODS[name][2]}{told}",
            flush=True,
        )


def log_loss(weights, table):
    eta = table.X @ weights[:-1] + weights[-1]
    return float(np.mean(np.logaddexp(0.0, eta) - table.y * eta))


def without_privacy(X, y):
    """Return the weights of largest posterior density under a standard normal prior, and their standard deviations."""
    X, weights = np.column_stack([X, np.ones(len(X))]), np.zeros(X.shape[1] + 1)
    for _ in range(30):
        p = sigmoid(X @ weights)
        precision = (X * (p * (1.0 - p))[:, None]).T @ X + np.eye(len(weights))
        weights = weights + np.linalg.solve(precision, X.T @ (y - p) - weights)
    return weights, np.sqrt(np.diag(np.linalg.inv(precision)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("passes")
    one.add_argument("--repeats", type=int, default=9)
    whole = kinds.add_parser("fits")
    whole.add_argument("--repeats", type=int, default=3, help="processes for each method, each with two fits")
    if sys.argv[1:2] == ["work"]:
        name, source, target, seed = sys.argv[2:]
        work(name, source, target, int(seed), 2)
        return
    chosen = parser.parse_args()
    {"passes": passes, "fits": fits}[chosen.kind](chosen)


if __name__ == "__main__":
    main()
