"""Flower as a line: its simulation and deployment engines run apps, a process for each node (extra flower)."""

import contextlib
import hashlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from tests.reference.silo_runs import bits, key_of

import dpinfer as dpi
from dpinfer.mechanism.discrete_laplace import laplace_share
from dpinfer.mechanism.silos import LocalLine, Silos, Site
from dpinfer.mechanism.silos.masks import SiteKeys
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


# Its federation: a SuperLink, a SuperNode for each site, and a process for each message.
COUNT_APP = """
import time
import numpy as np
from flwr.serverapp import ServerApp
import dpinfer as dpi
from dpinfer.mechanism.silos import FlowerLine, Silos, Site, site_app
from dpinfer.testing import InsecureRNG

MODEL, SIZES, EPSILON = dpi.models.BetaBernoulli(1, 1), (300, 500), 0.01

def records(place):
    return (np.random.default_rng(place).random(SIZES[place]) < 0.3).astype(float)

def make_site(context):
    place = int(context.node_config["site"])
    return Site(records(place), random_source=InsecureRNG(place), n_threads=1)

client = site_app(make_site)
server = ServerApp()

@server.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < len(SIZES):
        time.sleep(0.5)
    release = dpi.run_statistic(MODEL, Silos(FlowerLine(grid)), epsilon=EPSILON, n_records=sum(SIZES))
    release.save(context.run_config["release"])
"""
COUNT_PROJECT = """
[project]
name = "count"
version = "1.0.0"
license = "Apache-2.0"
description = "A count over two sites."

[tool.flwr.app]
publisher = "dpinfer"

[tool.flwr.app.components]
serverapp = "count_app:server"
clientapp = "count_app:client"

[tool.flwr.app.config]
release = ""
"""
CONNECTION = """
[superlink]
default = "here"

[superlink.here]
address = "{address}"
insecure = true
"""


def free_ports(count):
    """Return ports on loopback that nobody listens at."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


@contextlib.contextmanager
def federation(folder, n_nodes, environment):
    """Start Flower's deployment engine on loopback, all in one group of processes, which is killed in the end."""
    port, *node_ports = free_ports(1 + n_nodes)
    link = f"127.0.0.1:{port}"
    commands = [
        f"flower-superlink --insecure --port {port} --isolation process",
        f"flower-superexec --insecure --runtime-api-address {link}",
    ]
    for place, own in enumerate(node_ports):
        commands.append(f"flower-supernode --insecure --superlink {link} --port {own} --node-config site={place}")
    (folder / "config.toml").write_text(CONNECTION.format(address=link), encoding="utf-8")
    processes = []
    try:
        with (folder / "federation.log").open("wb") as log:
            for command in commands:
                group = processes[0].pid if processes else 0
                processes.append(
                    subprocess.Popen(
                        command.split(), env=environment, stdout=log, stderr=subprocess.STDOUT, process_group=group
                    )
                )
        for _ in range(120):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            time.sleep(0.5)
        yield
    finally:
        if processes:
            os.killpg(processes[0].pid, signal.SIGKILL)
        for process in processes:
            process.wait(20)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("flwr") is None or os.name != "posix", reason="needs flwr, and groups of processes")
def test_flowers_deployment_gives_the_bits_of_one_machine_with_the_same_noise_shares(tmp_path, monkeypatch):
    """Every message is answered by a process of its own, which Flower starts, and goes over loopback alone."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "count_app.py").write_text(COUNT_APP, encoding="utf-8")
    (tmp_path / "app" / "pyproject.toml").write_text(COUNT_PROJECT, encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(Path(dpi.__file__).parents[1]),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "NO_PROXY": "127.0.0.1",
    }
    with federation(tmp_path, 2, environment):
        command = ["flwr", "run", str(tmp_path / "app"), "here", "--stream"]
        command += ["--run-config", f'release="{tmp_path / "release"}"']
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=225)
    said = done.stdout + done.stderr + (tmp_path / "federation.log").read_text(encoding="utf-8")
    assert (tmp_path / "release").exists(), said[-5000:]
    release = dpi.release.load_release(tmp_path / "release")
    assert release.settings["silos"]["present"] == [2]
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    app = importlib.import_module("count_app")
    total = int(np.concatenate([app.records(place) for place in range(2)]).sum())

    def on_one_machine(seeds):
        # may_collude is 1: the share of one site suffices.
        keys = [SiteKeys(key_of(seed)).noise_key(0, hashlib.sha256(b"").digest()) for seed in seeds]
        scale = 1 / Fraction(app.EPSILON)
        return [float(total + sum(laplace_share(key, scale, 1, shares=1)[0] for key in keys))]

    assert release.noisy_statistics.tolist() == on_one_machine((0, 1))
    # Power: the shares of other keys are others.
    assert release.noisy_statistics.tolist() != on_one_machine((0, 2))


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
