"""Table of intervals, which the paper does not have: networks whose posterior counts the privacy noise.

A network is retrained with noise of its own, on the first published split.  The first releases have replicas, and
intervals from one release each: of responses, beside the test responses; and of the function, beside its mean over all
retrained networks.  "Without replicas" is q of the released weights, as in the paper.
"""

import importlib
import sys
from functools import partial
from pathlib import Path

import numpy as np
from bench.papers._frame import Table, with_error

import dpinfer as dpi
from dpinfer.inference import network_posterior
from dpinfer.mechanism import network_plan_arguments, run_network_dp_sep
from dpinfer.testing import InsecureRNG

PAPER = "DP-SEP"
SETS = ("wine", "power", "kin8nm", "protein", "naval")
POINTS = 400  # of the test records: the errors of means of coverage are those of releases


def measure(work):
    """Retrain on each set at each epsilon."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "coverage"))
    load = importlib.import_module("sep_network").load
    retrained, releases = work.size(50, 4), work.size(8, 1)
    rows = []
    for epsilon in (1.0, 3.0):
        for name in SETS:
            split = load(name)[0](0)
            work.say(f"{name}, epsilon = {epsilon:g}")
            found = work.runs(f"{name}-{epsilon:g}", retrained, partial(_run, name, split, epsilon, releases))
            rows.append((f"{name}, ε = {epsilon:g}, {len(found)} runs", _cells(split, found)))
    columns = [
        "responses, 90%", "without replicas", "mean of the retrained, 90%", "without replicas",
        "half width over 1.64 sd of the retrained", "test RMSE",
    ]  # fmt: skip
    return Table(
        columns,
        rows,
        [
            "Features and responses are standardised by the training records, which ε does not count, as in the "
            "published benchmark.",
            "Replicas have standard normal features: of nearly collinear ones (Naval) they are too far apart.",
        ],
    )


def _run(name, split, epsilon, releases, k):
    """Return the k-th network's function at the test records, and for the first ones intervals."""
    n_records = split.y.size
    model = dpi.models.BayesianNeuralNetwork(split.X.shape[1], 100 if name == "protein" else 50, prior_precision=2.0)
    steps = network_plan_arguments(n_records=n_records)
    plan = dpi.plan_privacy(target_epsilon=epsilon, target_delta=1e-5, **steps)
    options = {} if k < releases else {"n_replicas": 0}
    release = run_network_dp_sep(
        model, split.X, split.y, plan=plan, n_records=n_records, n_threads=1, random_source=InsecureRNG(k), **options
    )
    weights, points = network_posterior(release), split.test_features[:POINTS]
    result = {"mean": weights.predict(points)[0].tolist()}
    if k < releases:
        bare = network_posterior(release.replace(replica_loc=np.zeros((0, 0)), replica_noise=np.zeros(0)))
        result["response"] = [end.tolist() for end in weights.interval(points)]
        result["bare_response"] = [end.tolist() for end in bare.interval(points)]
        result["retrained"] = [end.tolist() for end in weights.interval(points, kind="retrained")]
        result["bare_mean"] = [end.tolist() for end in bare.interval(points, kind="mean")]
    return result


def _cells(split, found):
    """Return the cells of a row."""
    responses = (split.test_response[:POINTS] - split.loc) / split.scale
    means = np.array([one["mean"] for one in found])
    spread = means.std(axis=0, ddof=1)

    def covered(kind, truth):
        ends = (np.array(one[kind]) for one in found if kind in one)
        return [float(np.mean((low < truth) & (truth < high))) for low, high in ends]

    widths = [
        float(np.median((np.subtract(*one["retrained"][::-1])) / (2.0 * 1.645 * spread)))
        for one in found
        if "retrained" in one
    ]
    return [
        with_error(covered("response", responses)),
        with_error(covered("bare_response", responses)),
        with_error(covered("retrained", means.mean(axis=0))),
        with_error(covered("bare_mean", means.mean(axis=0))),
        with_error(widths, 2),
        with_error([split.scale * float(np.sqrt(np.mean((responses - one["mean"]) ** 2))) for one in found], 4),
    ]
