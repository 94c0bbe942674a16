"""A regression over the nodes of a Flower federation: a site's records stay at its node.

    flwr run examples/flower-silos local --stream

Nodes say which site they are: ``flower-supernode --node-config 'site=0'`` where a federation is deployed, and
``partition-id`` in Flower's simulation.
"""

import time

import numpy as np
from flwr.serverapp import ServerApp

import dpinfer as dpi
from dpinfer.mechanism.silos import FlowerLine, Silos, Site, site_app

MODEL = dpi.models.LogisticRegression(2, fit_intercept=True)
SIZES = (700, 400, 900)


def records(place):
    """Return a site's records: a file of its own in earnest."""
    rng = np.random.default_rng(place)
    X = rng.normal(size=(SIZES[place], 2))
    return X, (rng.random(len(X)) < 1.0 / (1.0 + np.exp(-X[:, 0]))).astype(float)


def make_site(context):
    """Return this node's site; in earnest with ``ledger=`` and ``approve=``."""
    config = context.node_config
    return Site(*records(int(config["site"] if "site" in config else config["partition-id"])), n_threads=1)


client = site_app(make_site)
server = ServerApp()


@server.main()
def main(grid, context):
    """Fit, and save the release."""
    while len(list(grid.get_node_ids())) < len(SIZES):
        time.sleep(1.0)
    silos = Silos(FlowerLine(grid))
    plan = dpi.plan_newton(MODEL, target_epsilon=1.0, target_delta=1e-5, n_records=sum(SIZES))
    release = dpi.run_newton(MODEL, silos, plan=plan, n_records=sum(SIZES))
    release.save(context.run_config["release"])
    print(release.guarantee, flush=True)
