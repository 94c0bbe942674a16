"""Flower as a line: its simulation engine runs the example's app, a process for each node (extra flower)."""

import importlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.reference.silo_runs import bits

import dpinfer as dpi
from dpinfer.mechanism.silos import LocalLine, Silos, Site
from dpinfer.testing import InsecureRNG

# Flower itself uses what is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "flower-silos"
# Flower's own command starts this from the example's pyproject.toml; sites have test keys here, to compare bits.
SIMULATION = """
import sys
import time
import dpinfer as dpi
import silos_app
from flwr.simulation import run_simulation
from flwr.serverapp import ServerApp
from dpinfer.mechanism.silos import FlowerLine, Silos, Site, site_app
from dpinfer.testing import InsecureRNG

def make_site(context):
    place = int(context.node_config["partition-id"])
    return Site(*silos_app.records(place), random_source=InsecureRNG(place), n_threads=1)

server = ServerApp()

@server.main()
def main(grid, context):
    plan = dpi.plan_newton(silos_app.MODEL, target_epsilon=1.0, target_delta=1e-5, n_records=sum(silos_app.SIZES))
    while len(list(grid.get_node_ids())) < 3:
        time.sleep(0.2)
    silos = Silos(FlowerLine(grid))
    dpi.run_newton(silos_app.MODEL, silos, plan=plan, n_records=sum(silos_app.SIZES)).save(sys.argv[1])

resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
run_simulation(server, site_app(make_site), num_supernodes=3, backend_config=resources)
"""


@pytest.mark.skipif(find_spec("flwr") is None or find_spec("ray") is None, reason="needs flwr[simulation]")
def test_flowers_simulation_gives_the_bits_of_sites_in_this_process(tmp_path, monkeypatch):
    """Every message is answered by a process that has the site's state from Flower's context alone."""
    (tmp_path / "simulation.py").write_text(SIMULATION, encoding="utf-8")
    paths = os.pathsep.join((str(Path(dpi.__file__).parents[1]), str(EXAMPLE)))
    environment = {**os.environ, "PYTHONPATH": paths, "FLWR_TELEMETRY_ENABLED": "0"}
    command = [sys.executable, str(tmp_path / "simulation.py"), str(tmp_path / "release")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    release = dpi.release.load_release(tmp_path / "release")
    assert release.settings["silos"]["present"] == [3] * release.n_passes
    monkeypatch.syspath_prepend(str(EXAMPLE))
    app = importlib.import_module("silos_app")
    local = [Site(*app.records(place), random_source=InsecureRNG(place)) for place in range(3)]
    plan = dpi.plan_newton(app.MODEL, target_epsilon=1.0, target_delta=1e-5, n_records=sum(app.SIZES))
    same = dpi.run_newton(app.MODEL, Silos(LocalLine(local)), plan=plan, n_records=sum(app.SIZES))
    assert bits(release) == bits(same)


class Reply:
    """What Flower's grid gives back."""

    def __init__(self, node, content, error=False):
        self.content, self._error = content, error
        self.metadata = type("Metadata", (), {"src_node_id": node})

    def has_error(self):
        return self._error


class Asked:
    """A message as it leaves: Flower's own can be made in its apps alone."""

    def __init__(self, content, *, dst_node_id, message_type):
        assert message_type == "query"
        self.content, self.metadata = content, type("Metadata", (), {"dst_node_id": dst_node_id})


@pytest.mark.skipif(find_spec("flwr") is None, reason="needs flwr")
def test_a_node_that_fails_is_lost(monkeypatch):
    import numpy as np
    from flwr.app import ConfigRecord, RecordDict

    from dpinfer.mechanism.silos import FlowerLine

    monkeypatch.setattr("flwr.app.Message", Asked)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = (X[:, 0] > 0.0).astype(float)
    sites = [Site(X[part], y[part]) for part in np.array_split(np.arange(300), 3)]

    class Grid:
        calls = 0

        def get_node_ids(self):
            return [30, 10, 20]

        def send_and_receive(self, messages, *, timeout):
            self.calls += 1
            for message in messages:
                node = message.metadata.dst_node_id
                answer = sites[node // 10 - 1].answer(message.content["dpinfer"]["message"])
                content = RecordDict({"dpinfer": ConfigRecord({"message": answer})})
                yield Reply(node, content, error=self.calls > 6 and node == 20)

    model = dpi.models.LogisticRegression(2)
    plan = dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=300)
    release = dpi.run_newton(model, Silos(FlowerLine(Grid()), may_vanish=1), plan=plan, n_records=300)
    assert release.settings["silos"]["present"] == [3, 3] + [2] * (plan.n_passes - 2)


def test_without_flower_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    from dpinfer.errors import BackendUnavailableError
    from dpinfer.mechanism import silos

    with pytest.raises(BackendUnavailableError, match=r"dpinfer\[flower\]"):
        silos.FlowerLine(None)
    monkeypatch.setitem(sys.modules, "dpinfer.mechanism.silos.masks", None)
    with pytest.raises(ImportError):
        Silos(LocalLine([]))
