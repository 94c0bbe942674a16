"""Silos: the bits of one machine over random splits, the server's view, noise, epsilon at 60 digits, a fit over TCP.

    python bench/privacy/silos.py [splits lies view noise epsilon tags tcp width flower] [--splits 1000] [--runs 200]

Every part checks its answer before it prints.  `splits`: sessions of 2 to 50 sites, up to a third lost in the middle of
passes, against one machine with the same noise shares.  `lies`: questions of coordinators that lie, to sites whose
records differ by one: how far the record moves a site's part over the bound that its noise is for.  `view`: p-values of
uniformity of all that the server can make of vectors, and of mutants.  `noise`: measured over planned, and over
central.  `epsilon`: certified against exact convolutions of rounded Gaussians.  `tags`: what those cost that sites
compare.  `tcp`: ten sites with 57 weights over TLS on loopback, each a process, and bytes of a site.  `width`: widths
and coverage beside one machine.  `flower` (not run by default; needs flwr): what its secure aggregation makes of a
vector of scores.
"""

import argparse
import contextlib
import copy
import hmac
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from tests.reference import silo_lies, silo_mutants
from tests.reference.certificates import make_circle
from tests.reference.silo_runs import LARGEST_SEED, LossyLine, bits, key_of, on_one_machine, over_sites, split
from tests.reference.silo_views import (
    certified_epsilon,
    exact_delta,
    is_uniform,
    law_of_shares,
    noise_ratio,
    opened_without_arithmetic,
)

import dpinfer as dpi
from dpinfer.mechanism.silos import LocalLine, Silos, Site, TcpLine, tls_context
from dpinfer.mechanism.silos.masks import tag
from dpinfer.testing import InsecureRNG

SITES, WEIGHTS, ROWS = 10, 57, 40_000


@contextlib.contextmanager
def patched():
    """Give what tests call monkeypatch."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        yield patch


def records(n, d, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, (rng.random(n) < 1.0 / (1.0 + np.exp(-X @ truth(d)))).astype(float)


def truth(d):
    return np.where(np.arange(d) % 2 == 0, 0.6, -0.4) / np.sqrt(d / 2)


def splits(args):
    model = dpi.models.LogisticRegression(2)
    # One pass of each phase: sessions of 50 sites take seconds, most of it agreements of keys.
    shares = {"geometry": (0.2,), "localise": (0.2,), "measure": (0.4,), "slope": (0.2,)}
    plan = dpi.mechanism.NewtonPlan.from_noise_multiplier(3.0, shares, 1e-5)
    X, y = records(300, 2, 0)
    same = lost = sites = 0
    start = time.perf_counter()
    for session in range(args.first, args.first + args.splits):
        rng = np.random.default_rng([session, 7])
        n_sites = int(rng.integers(2, 51))
        may_vanish = min(n_sites // 3, n_sites - 2)
        gone = rng.choice(n_sites, int(rng.integers(0, may_vanish + 1)), replace=False)
        losses = {
            int(place): (str(rng.choice(["pass", "opening"])), int(rng.integers(0, plan.n_passes))) for place in gone
        }
        arrays = [(X[part], y[part]) for part in split(300, n_sites, rng)]
        first = LARGEST_SEED * session
        release, line, silos = over_sites(
            model, plan, arrays, losses=losses, first_seed=first, may_vanish=may_vanish, n_records=300
        )
        with patched() as patch:
            keys = [key_of(first + place) for place in range(n_sites)]
            present = line.present(plan.n_passes)
            one = on_one_machine(patch, model, plan, arrays, keys, silos, present, n_records=300)
        same += bits(release) == bits(one)
        lost += len(losses)
        sites += n_sites
        if session % 50 == 49:
            print(f"  session {session}: {same} with equal bits", file=sys.stderr)
    assert same == args.splits
    seconds = time.perf_counter() - start
    print(f"splits: {same} of {args.splits} runs of {plan.n_passes} passes have the bits of one machine")
    print(
        f"  2 to 50 sites, {sites} in all, {lost} lost in the middle of a pass; {seconds / args.splits:.2f} s a session"
    )


def view(args):
    found = is_uniform(range(20))
    assert all(found.values())
    print(f"view: uniform in {', '.join(found)}; false-positive rate 1e-6 each")
    mutants = {
        "without pair masks": (silo_mutants.without_pair_masks, "without own masks"),
        "without own masks": (silo_mutants.without_own_masks, "sums before they are opened"),
        "with a reused mask": (silo_mutants.with_a_reused_mask, "differences of passes"),
    }
    for name, (mutant, seen) in mutants.items():
        with patched() as patch:
            mutant(patch)
            patch.setattr(Silos, "open", opened_without_arithmetic(Silos.open))
            assert not is_uniform(range(2))[seen]
        print(f"  mutant {name}: not uniform in {seen!r}")


def noise(args):
    ratio, error, over_central = noise_ratio(range(20))
    assert abs(ratio - 1.0) < 5.0 * error
    print(f"noise: measured over stated {ratio:.4f} +- {error:.4f} (standard deviations)")
    print(f"  five sites, t = 2: {over_central:.4f} of the central one; sqrt(5 / 3) = {np.sqrt(5 / 3):.4f}")
    for name, mutant in (("left out", silo_mutants.noise_share_left_out), ("twice", silo_mutants.noise_share_twice)):
        with patched() as patch:
            mutant(patch)
            wrong = noise_ratio(range(20))[0]
        assert abs(wrong - 1.0) > 5.0 * error
        print(f"  mutant, a share {name}: {wrong:.4f}")


def epsilon(args):
    print("epsilon: exact delta of summed rounded shares at the certified epsilon, over delta (60 digits)")
    for needed, unknown in ((1, 1), (3, 3), (3, 5)):
        law = law_of_shares(unknown)
        for delta in (1e-3, 1e-6, 1e-9):
            certified = certified_epsilon(needed, unknown, delta)
            ratio = exact_delta(law, certified) / delta
            assert ratio <= 1.0
            print(f"  {unknown} shares, {needed} needed, delta {delta:g}: epsilon {certified:.6f}, {ratio:.6f}")


def serve_one(place, folder, seed):
    """Serve a site's rows, as a process of its own."""
    from dpinfer.mechanism.silos import listening, serve

    part = np.load(folder / f"site-{place}.npz")
    paths = {name: folder / f"{stem}" for name, stem in SITE_FILES.items()}
    with listening("127.0.0.1", 0) as server:
        print(server.getsockname()[1], flush=True)
        site = Site(part["X"], part["y"], random_source=InsecureRNG(seed), n_threads=1)
        serve(site, server, tls_context(**paths, serves=True), sessions=1)


SITE_FILES = {"certificate": "site.pem", "key": "site.key", "authority": "authority.pem"}


def tcp(args):
    model = dpi.models.LogisticRegression(WEIGHTS)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=ROWS)
    X, y = records(ROWS, WEIGHTS, 3)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        circle = make_circle(folder, ["site", "coordinator"])
        parts = np.array_split(np.arange(ROWS), SITES)
        for place, part in enumerate(parts):
            np.savez(folder / f"site-{place}.npz", X=X[part], y=y[part])
        command = [sys.executable, __file__, "--serve", name]
        processes = [
            subprocess.Popen([*command, str(place)], stdout=subprocess.PIPE, text=True) for place in range(SITES)
        ]
        try:
            addresses = [("127.0.0.1", int(process.stdout.readline())) for process in processes]
            with TcpLine(addresses, tls_context(**circle["coordinator"], serves=False)) as line:
                silos = Silos(line, may_vanish=2, may_collude=2)
                start = time.perf_counter()
                release = dpi.run_newton(model, silos, plan=plan, n_records=ROWS)
                whole = time.perf_counter() - start
            for process in processes:
                process.wait(60)
        finally:
            for process in processes:
                process.kill()
                process.stdout.close()
    said = release.settings["silos"]
    assert said["present"] == [SITES] * release.n_passes
    local = [Site(X[part], y[part], random_source=InsecureRNG(place)) for place, part in enumerate(parts)]
    start = time.perf_counter()
    same = dpi.run_newton(model, Silos(LocalLine(local), may_vanish=2, may_collude=2), plan=plan, n_records=ROWS)
    run = time.perf_counter() - start
    assert bits(same) == bits(release)
    start = time.perf_counter()
    dpi.noise_aware_posterior(release)
    posterior = time.perf_counter() - start
    # What the library promises on two cores.
    assert whole + posterior < 10.0
    passes = SITES * release.n_passes
    print(f"tcp: ten sites, {WEIGHTS} weights, {ROWS} records, {release.n_passes} passes; {os.cpu_count()} cores")
    print(
        f"  over TLS {whole:.1f} s, with sites in one process {run:.1f} s; its posterior {posterior:.1f} s; "
        f"the whole fit {whole + posterior:.1f} s"
    )
    print(f"  load of the machine before: {load:.1f}")
    print(
        f"  bytes per site and pass: {said['bytes_from_sites'] / passes / 1e3:.1f} kB from a site, "
        f"{said['bytes_to_sites'] / passes / 1e3:.1f} kB to it"
    )


def width(args):
    model = dpi.models.LogisticRegression(4)
    n, at = 4000, truth(4)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=n)
    found = {"one machine": [], "sites": []}
    for seed in range(args.runs):
        X, y = records(n, 4, 10_000 + seed)
        parts = np.array_split(np.arange(n), 10)
        sites = [
            Site(X[part], y[part], random_source=InsecureRNG(LARGEST_SEED * seed + place))
            for place, part in enumerate(parts)
        ]
        silos = Silos(LocalLine(sites), may_vanish=2, may_collude=2)
        releases = {
            "one machine": dpi.run_newton(
                model, X, y, plan=plan, n_records=n, random_source=InsecureRNG(seed), n_threads=1
            ),
            "sites": dpi.run_newton(model, silos, plan=plan, n_records=n),
        }
        for name, release in releases.items():
            low, high = dpi.noise_aware_posterior(release).interval(0.9)[:, :4]
            found[name].append(np.stack(((low <= at) & (at <= high), high - low)))
    print(f"width: {args.runs} runs, {n} records, 4 weights, epsilon 1; ten sites of which t = 4")
    for name, each in found.items():
        covered, wide = np.mean(each, axis=(0, 2))
        # Weights of a run are not independent: the error is over runs.
        error = np.std(np.mean(each, axis=2)[:, 0], ddof=1) / np.sqrt(len(each))
        print(f"  {name}: 90% intervals cover {100 * covered:.1f}% +- {100 * error:.1f}, width {wide:.4f}")
    ratio = np.mean(found["sites"], axis=(0, 2))[1] / np.mean(found["one machine"], axis=(0, 2))[1]
    print(f"  width over that of one machine: {ratio:.3f}; noise alone would be {np.sqrt(10 / 6):.3f}")


def by_secagg_plus(vectors):
    """Return a sum of vectors by Flower's own workflow and mod of SecAgg+; the nodes are in this process."""
    from flwr.app import ConfigRecord, Context, RecordDict
    from flwr.client import NumPyClient
    from flwr.client.mod import secaggplus_mod
    from flwr.clientapp import ClientApp
    from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.compat.common import recorddict_compat
    from flwr.server import LegacyContext
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def context(node):
        return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={}, series_id=1)

    class Client(NumPyClient):
        def __init__(self, vector):
            self.vector = vector

        def fit(self, parameters, config):
            # The largest weight: one that is less is multiplied into the numbers before they are rounded.
            return [self.vector], 1000, {}

    nodes = {place + 10: context(place + 10) for place in range(len(vectors))}
    app = ClientApp(lambda context: Client(vectors[context.node_id - 10]).to_client(), mods=[secaggplus_mod])

    class Grid:
        def send_and_receive(self, messages, *, timeout):
            return [app(copy.deepcopy(message), nodes[message.metadata.dst_node_id]) for message in messages]

    class Strategy(FedAvg):
        def configure_fit(self, server_round, parameters, client_manager):
            return [(SimpleNamespace(node_id=node), FitIns(parameters, {})) for node in nodes]

    server = LegacyContext(
        context(1), strategy=Strategy(), client_manager=SimpleNamespace(num_available=lambda: len(nodes))
    )
    start = recorddict_compat.parameters_to_arrayrecord(ndarrays_to_parameters([np.zeros_like(vectors[0])]), True)
    server.state["parameters"], server.state["config"] = start, ConfigRecord({"current_round": 1})
    SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.6)(Grid(), server)
    found = recorddict_compat.arrayrecord_to_parameters(server.state["parameters"], True)
    return parameters_to_ndarrays(found)[0] * len(vectors)


def flower(args):
    import flwr
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    logging.getLogger("flwr").setLevel(logging.ERROR)
    X, y = records(ROWS, WEIGHTS, 3)
    parts = np.array_split(np.arange(ROWS), SITES)
    scores = [X[part].T @ (y[part] - 0.5) for part in parts]
    exact = np.sum(scores, axis=0)
    clip, largest = 8.0, max(np.abs(score).max() for score in scores)
    clipped = np.sum([np.clip(score, -clip, clip) for score in scores], axis=0)
    print(f"flower: sums of scores of up to {np.abs(exact).max():.4g} by SecAgg+ of flwr {flwr.__version__}")
    found = by_secagg_plus(scores)
    # It does what it says: it adds up what it has clipped.
    assert np.abs(found - clipped).max() < 1e-3
    print(f"  as they are, clipped at {clip:g}: off by at most {np.abs(found - exact).max():.4g}")
    factor = clip / largest
    off = [np.abs(by_secagg_plus([score * factor for score in scores]) / factor - exact).max() for _ in range(10)]
    print(f"  scaled to fit, which takes the largest for public: off by {min(off):.2g} to {max(off):.2g} in 10 runs")
    lattice = 2.0 ** (np.floor(np.log2(np.sqrt(WEIGHTS))) - 30)
    # Two seeds of 32 bytes whose eight words have the same exclusive or.
    one, other = (pseudo_rand_gen(seed, 2**32, [(100,)])[0] for seed in (bytes(32), (b"mask" + bytes(12)) * 2))
    assert np.array_equal(one, other)
    print("  its masks depend on 32 bits of their seed: seeds whose words have the same exclusive or give one mask")
    print(f"  on the lattice one record's number is rounded by at most {lattice / 2:.1g}, and sums are exact")


def tags(args):
    """Print what the tags cost that sites compare before they open a sum."""
    key, about = b"k" * 32, b"a" * 32
    for n_sites in (10, 50):
        arrays = np.array_split(np.zeros(10 * n_sites), n_sites)
        line = LossyLine([Site(each, random_source=InsecureRNG(place)) for place, each in enumerate(arrays)])
        dpi.run_statistic(dpi.models.BetaBernoulli(1, 1), Silos(line), epsilon=1.0, n_records=10 * n_sites)
        sizes = {
            kind: [len(message.fields["tags"]) for _, *both in line.seen for message in both if message.kind == kind]
            for kind in ("vector", "opening")
        }
        assert sizes == dict.fromkeys(("vector", "opening"), [32 * n_sites] * n_sites)
        rounds = 1000
        start = time.process_time()
        for _ in range(rounds):
            made = b"".join(tag(key, place, about) for place in range(n_sites))
            assert hmac.compare_digest(made, b"".join(tag(key, place, about) for place in range(n_sites)))
        each = (time.process_time() - start) / rounds
        print(
            f"tags: {n_sites} sites: {sizes['vector'][0]} bytes from a site and {sizes['opening'][0]} to it in a pass; "
            f"{1e3 * each:.2f} ms to make and check them"
        )


def lies(args):
    each = -(-args.questions // len(silo_lies.CASES))
    found = [silo_lies.ask(case, each, args.first + place) for place, case in enumerate(silo_lies.CASES)]
    answered = sum((item.answered for item in found), start=Counter())
    largest = max(item.largest for item in found)
    if largest > 1.0:
        raise SystemExit(f"a record moved a part by {largest} of the bound of its noise")
    print(
        f"lies: {each * len(found)} questions, {sum(answered.values())} answered, "
        f"{sum(item.refused for item in found)} refused alike; a record moved a part by at most {largest:.7f} of the "
        f"bound of its noise"
    )
    print("  answered:", ", ".join(f"{name} {count}" for name, count in sorted(answered.items())))


PARTS = {
    "splits": splits,
    "lies": lies,
    "view": view,
    "noise": noise,
    "epsilon": epsilon,
    "tags": tags,
    "tcp": tcp,
    "width": width,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "flower", []], help="all but flower by default")
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first of these sessions")
    parser.add_argument("--questions", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve_one(int(args.serve[1]), Path(args.serve[0]), int(args.serve[1]))
        return
    for name in args.parts or PARTS:
        (PARTS | {"flower": flower})[name](args)


if __name__ == "__main__":
    main()
