"""Lines to sites: TCP with TLS on loopback, the commands of both ends, and tables of which a formula makes rows."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.reference.certificates import make_circle
from tests.reference.silo_runs import bits, over_sites

import dpinfer as dpi
from dpinfer.cli.main import main
from dpinfer.errors import SchemaError, SiloError
from dpinfer.formulas import SiloTable
from dpinfer.mechanism.silos import LocalLine, Silos, Site, TcpLine, listening, serve, tls_context
from dpinfer.testing import InsecureRNG

N = 300
LOGISTIC = dpi.models.LogisticRegression(2)
PLAN = dpi.plan_newton(LOGISTIC, target_epsilon=2.0, target_delta=1e-5, n_records=N)
SCHEMA = """
[columns.age]
kind = "continuous"
bounds = [20, 80]

[columns.job]
kind = "categorical"
categories = ["clerk", "nurse", "smith"]

[columns.well]
kind = "target"
negative = "no"
positive = "yes"
"""


def arrays(n_sites=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    y = (X[:, 0] + rng.normal(size=N) > 0.0).astype(float)
    return [(X[part], y[part]) for part in np.array_split(np.arange(N), n_sites)]


@contextlib.contextmanager
def served(sites, circle, **options):
    """Serve each site on a thread, one line each; give the addresses."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(listening("127.0.0.1", 0)) for _ in sites]
        threads = [
            threading.Thread(
                target=serve,
                args=(site, server, tls_context(**circle["site"], serves=True)),
                kwargs={"sessions": 1, **options},
            )
            for site, server in zip(sites, servers, strict=True)
        ]
        for thread in threads:
            thread.start()
        yield [server.getsockname() for server in servers]
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def circle(tmp_path_factory):
    return make_circle(tmp_path_factory.mktemp("circle"), ["site", "coordinator"])


def test_tcp_gives_the_bits_of_sites_in_this_process(circle):
    local, _, _ = over_sites(LOGISTIC, PLAN, arrays(), n_records=N)
    sites = [Site(X, y, random_source=InsecureRNG(place)) for place, (X, y) in enumerate(arrays())]
    with served(sites, circle) as addresses:
        context = tls_context(**circle["coordinator"], serves=False)
        with TcpLine(addresses, context, timeout=60.0) as line:
            release = dpi.run_newton(LOGISTIC, Silos(line), plan=PLAN, n_records=N)
    assert bits(release) == bits(local)
    assert release.settings["silos"]["transcripts"] == [site.transcript.digest for site in sites]


class Dying(Site):
    """Goes away at its ninth message, without a word."""

    calls = 0

    def answer(self, message):
        self.calls += 1
        if self.calls == 9:
            raise ConnectionResetError
        return super().answer(message)


def test_a_site_that_goes_away_over_tcp_is_lost_and_the_others_go_on(circle):
    kinds = [Dying, Site, Site, Site]
    sites = [kind(X, y) for kind, (X, y) in zip(kinds, arrays(4), strict=True)]
    with served(sites, circle) as addresses:
        context = tls_context(**circle["coordinator"], serves=False)
        with TcpLine(addresses, context, timeout=60.0) as line:
            release = dpi.run_newton(LOGISTIC, Silos(line, may_vanish=1), plan=PLAN, n_records=N)
    # Messages: open, peers, then two for each pass.  The ninth is the vector of the fourth pass.
    assert release.settings["silos"]["present"] == [4] * 3 + [3] * (PLAN.n_passes - 3)


def test_a_stranger_gets_no_answer(circle, tmp_path):
    strangers = make_circle(tmp_path, ["coordinator"])
    strange = {**strangers["coordinator"], "authority": circle["site"]["authority"]}
    sites = [Site(X, y) for X, y in arrays(2)]
    context = tls_context(**strange, serves=False)
    with served(sites, circle) as addresses:
        with (
            TcpLine(addresses, context, timeout=10.0) as line,
            pytest.raises(SiloError, match="sites 1, 2 have not joined"),
        ):
            dpi.run_newton(LOGISTIC, Silos(line), plan=PLAN, n_records=N)
        assert all(site.transcript.n_bytes["coordinator"] == 0 for site in sites)
        # The stranger was no line of a coordinator: each site still answers its one.
        with TcpLine(addresses, tls_context(**circle["coordinator"], serves=False), timeout=60.0) as line:
            dpi.run_newton(LOGISTIC, Silos(line), plan=PLAN, n_records=N)


def drip(address, stop):
    """Send the head of a handshake byte by byte, until the site ends the line; return whether it did."""
    with socket.create_connection(address) as line:
        for byte in itertools.chain(b"\x16\x03\x01\x20\x00", itertools.repeat(1)):
            try:
                line.sendall(bytes([byte]))
            except OSError:
                return True
            if stop.wait(0.05):
                return False
    return False


def test_strangers_who_say_nothing_or_little_keep_nobody_waiting(circle):
    """More of them than a site lets in at a time, in a session and before it."""
    sites, told = [Site(X, y) for X, y in arrays(2)], []
    stop, ended = threading.Event(), []
    with contextlib.ExitStack() as stack, served(sites, circle, patience=1.0, tell=told.append) as addresses:
        silent = [stack.enter_context(socket.create_connection(address)) for address in addresses for _ in range(20)]
        slow = [threading.Thread(target=lambda to=to: ended.append(drip(to, stop))) for to in addresses]
        stack.callback(stop.set)
        for thread in slow:
            thread.start()
        begun = time.monotonic()
        with TcpLine(addresses, tls_context(**circle["coordinator"], serves=False), timeout=60.0) as line:
            dpi.run_newton(LOGISTIC, Silos(line), plan=PLAN, n_records=N)
            taken = time.monotonic() - begun
            for thread in slow:
                thread.join(30)
        assert ended == [True, True]
        # A stranger has a second, however it spends it; one after the other they had stopped a site for 21.
        assert taken < 15.0
        assert all(line.recv(1) == b"" for line in silent[:3])
    assert sum("ended" in text for text in told) >= 4


def test_a_site_stops_where_its_socket_does(circle):
    with listening("127.0.0.1", 0) as server:
        context = tls_context(**circle["site"], serves=True)
        failed = []

        def run():
            try:
                serve(Site(*arrays(2)[0]), server, context)
            except OSError as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.3)
        server.close()
        thread.join(20)
        assert failed


def test_a_missing_or_strange_certificate_is_named(circle, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.pem"):
        tls_context(**{**circle["site"], "key": tmp_path / "gone.pem"}, serves=True)
    (tmp_path / "text.pem").write_text("no certificate")
    with pytest.raises(OSError, match="not PEM"):
        tls_context(**{**circle["site"], "authority": tmp_path / "text.pem"}, serves=True)


def write_tables(folder, n_sites=3):
    rng = np.random.default_rng(4)
    paths = []
    (folder / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    for place in range(n_sites):
        rows = [
            f"{rng.uniform(20, 80):.1f},{rng.choice(['clerk', 'nurse', 'smith'])},{rng.choice(['yes', 'no'])}"
            for _ in range(200)
        ]
        paths.append(folder / f"site-{place}.csv")
        paths[-1].write_text("age,job,well\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return paths


def test_a_regression_over_tables_at_sites(tmp_path):
    """The coefficients are those of the sites' tables put together, as far as the noise goes."""
    paths = write_tables(tmp_path)
    schema = dpi.tabular.Schema.load(tmp_path / "schema.toml")
    sites = [Site(SiloTable(path, schema), random_source=InsecureRNG(place)) for place, path in enumerate(paths)]
    common = {"family": "binomial", "schema": schema, "epsilon": 1000.0, "delta": 1e-5, "n_records": 600}
    fit = dpi.regression("well ~ age + C(job)", Silos(LocalLine(sites)), **common)
    whole = tmp_path / "all.csv"
    lines = [path.read_text(encoding="utf-8").splitlines() for path in paths]
    whole.write_text("\n".join([lines[0][0], *(row for each in lines for row in each[1:])]) + "\n", encoding="utf-8")
    one = dpi.regression("well ~ age + C(job)", whole, **common, random_source=InsecureRNG(0))
    found, wanted = fit.coefficients(), one.coefficients()
    assert found.to_dict()["name"] == wanted.to_dict()["name"]
    np.testing.assert_allclose(found.to_dict()["mean"], wanted.to_dict()["mean"], atol=0.1)
    # Another schema is refused before a record is read, and what is unknown is not released over sites.
    other = dpi.tabular.Schema.from_toml(SCHEMA.replace("80", "90"))
    refusing = [Site(SiloTable(path, other)) for path in paths]
    with pytest.raises(SiloError, match="nothing was charged"):
        dpi.regression("well ~ age", Silos(LocalLine(refusing)), **common)
    assert isinstance(refusing[0].failure, SchemaError)
    draft = dpi.tabular.SchemaDraft.from_toml(SCHEMA.replace("bounds = [20, 80]", ""))
    asked = common | {"schema": draft}
    with pytest.raises(TypeError, match="unknown must be None with Silos: give n_records, bounds"):
        dpi.regression("well ~ age", Silos(LocalLine(sites)), unknown=["bounds"], **asked)


def interrupted(monkeypatch, at):
    """Interrupt the coordinator's command after an exchange, once."""
    exchange, calls = TcpLine.exchange, []

    def counted(line, messages):
        calls.append(line)
        replies = exchange(line, messages)
        if len(calls) == at:
            raise KeyboardInterrupt
        return replies

    monkeypatch.setattr(TcpLine, "exchange", counted)


def test_the_commands_of_both_ends(tmp_path, circle, capsys, monkeypatch):
    """Three sites serve; a command asks them, is interrupted, and goes on: each ledger has one entry."""
    paths = write_tables(tmp_path)

    def line_of(name):
        return [word for key, path in circle[name].items() for word in (f"--{key}", str(path))]

    environment = {**os.environ, "PYTHONPATH": str(Path(dpi.__file__).parents[1])}
    with contextlib.ExitStack() as stack:
        addresses = []
        for place, path in enumerate(paths):
            ledger = str(tmp_path / f"ledger-{place}")
            assert main(["ledger", ledger, "--add", "ours", "--epsilon", "1.2"]) == 0
            command = ["site", "serve", str(path), "--schema", str(tmp_path / "schema.toml"), "--ledger", ledger]
            command += ["--dataset", "ours", "--listen", "127.0.0.1:0", "--yes", "--sessions", "3", *line_of("site")]
            process = subprocess.Popen(
                [sys.executable, "-m", "dpinfer", *command], stdout=subprocess.PIPE, text=True, env=environment
            )
            stack.callback(process.stdout.close)
            stack.callback(process.wait, 60)
            stack.callback(process.kill)
            addresses += ["--site", process.stdout.readline().split()[-1]]
        asked = ["silos", "--formula", "well ~ age", "--family", "binomial", "--schema", str(tmp_path / "schema.toml")]
        asked += [*addresses, "--epsilon", "1", "--delta", "1e-5", "--n-records", "600", *line_of("coordinator")]
        capsys.readouterr()
        kept = [*asked, "--checkpoint", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
        # After keys, shares, and five messages about passes.
        interrupted(monkeypatch, 7)
        assert main(kept) == 130
        assert "the same command resumes from its checkpoint" in " ".join(capsys.readouterr().err.split())
        assert (tmp_path / "run").exists()
        assert main(kept) == 0
        assert not (tmp_path / "run").exists()
        assert "of 3 sites: epsilon" in " ".join(capsys.readouterr().out.split())
        assert (tmp_path / "out" / "coefficients.csv").exists()
        for place in range(3):
            account = dpi.PrivacyLedger(tmp_path / f"ledger-{place}").dataset("ours")
            assert [run.status for run in account.runs()] == ["finished"]
        # A command that begins anew is charged anew, which the budgets do not hold.
        assert main([*asked, "--out", str(tmp_path / "again")]) == 1
        assert "have not joined (its budget)" in capsys.readouterr().err


def test_a_curator_who_does_not_answer_says_no(monkeypatch, tmp_path, capsys):
    import io

    from dpinfer.cli.site import _agreed

    account = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("ours")
    for answer, expected in (("y\n", True), ("yes\n", True), ("\n", False), ("", False), ("no\n", False)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert _agreed(account) is expected
    assert "take part, and charge 'ours'?" in capsys.readouterr().out
