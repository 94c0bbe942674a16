"""A coordinator that dies and is started again: the same release, one charge at every site, wherever it died."""

import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.reference.certificates import make_circle
from tests.reference.silo_runs import LossyLine, bits, sites_of

import dpinfer as dpi
from dpinfer.errors import CheckpointError, SiloError
from dpinfer.mechanism import RunCheckpoint
from dpinfer.mechanism.silos import LocalLine, Silos, Site, listening, serve, tls_context
from dpinfer.testing import InsecureRNG

N, SITES = 300, 4
LOGISTIC = dpi.models.LogisticRegression(2)
PLAN = dpi.plan_newton(LOGISTIC, target_epsilon=2.0, target_delta=1e-5, n_records=N)
# Keys, shares, then two messages for each pass, and the end.
EXCHANGES = 3 + 2 * PLAN.n_passes


def records():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    return X, (X[:, 0] + rng.normal(size=N) > 0.0).astype(float)


def parts():
    return np.array_split(np.arange(N), SITES)


class DiesError(Exception):
    """The coordinator is gone."""


class DyingLine(LocalLine):
    """DiesError at an exchange, after only some of the sites, or all of them, have answered."""

    def __init__(self, sites, at, answered):
        super().__init__(sites)
        self._at, self._answered, self.calls = at, answered, 0

    def exchange(self, messages):
        self.calls += 1
        if self.calls == self._at:
            super().exchange({place: message for place, message in messages.items() if place < self._answered})
            raise DiesError
        return super().exchange(messages)


def run(line, path=None, *, may_vanish=1):
    return dpi.run_newton(LOGISTIC, Silos(line, may_vanish=may_vanish), plan=PLAN, n_records=N, checkpoint=path)


def without(release, *names):
    return {key: value for key, value in release.settings["silos"].items() if key not in names}


def test_a_coordinator_that_dies_anywhere_goes_on_with_the_same_release(tmp_path):
    """Before its message has left, when two of four sites have got it, and when all have answered: in turn.

    A pass has two messages, so that each of them meets all three.
    """
    whole = run(LocalLine(sites_of(parts(), *records())))
    # From the first pass on, sites are charged: the file is there, and the same sites go on.
    for at in range(3, EXCHANGES + 1):
        answered = (0, 2, SITES)[at % 3]
        sites, path = sites_of(parts(), *records()), tmp_path / f"{at}"
        with pytest.raises(DiesError):
            run(DyingLine(sites, at, answered), path)
        assert path.exists()
        resumed = DyingLine(sites, 0, 0)
        release = run(resumed, path)
        assert not path.exists()
        # It did not begin anew: keys and finished passes are not asked again.
        assert resumed.calls == EXCHANGES + 1 - at
        assert bits(release) == bits(whole), at
        assert release.settings["silos"] == whole.settings["silos"]
        assert release.settings["silos"]["transcripts"] == [site.transcript.digest for site in sites]


def test_before_the_first_pass_a_run_is_begun_anew(tmp_path):
    for at in (1, 2):
        sites, path = sites_of(parts(), *records()), tmp_path / f"{at}"
        with pytest.raises(DiesError):
            run(DyingLine(sites, at, 2), path)
        # Nothing was charged, and no file is left.
        assert not path.exists()
        assert run(LocalLine(sites), path).n_passes == PLAN.n_passes


@pytest.mark.parametrize("at", [3, 4, 9, EXCHANGES - 1, EXCHANGES])
def test_every_site_is_charged_once(at, tmp_path):
    accounts = [
        dpi.PrivacyLedger.create(tmp_path / f"ledger-{place}").add_dataset("ours", budget=(2.5, 1e-5))
        for place in range(SITES)
    ]
    X, y = records()
    sites = [Site(X[part], y[part], ledger=own) for part, own in zip(parts(), accounts, strict=True)]
    with pytest.raises(DiesError):
        run(DyingLine(sites, at, 3), tmp_path / "run")
    release = run(LocalLine(sites), tmp_path / "run")
    assert release.secure
    assert [[item.status for item in own.runs()] for own in accounts] == [["finished"]] * SITES
    # Power: without the file the run is begun anew, which the budgets do not hold.
    with pytest.raises(SiloError, match="its budget"):
        run(LocalLine(sites))


def test_a_site_that_was_lost_stays_lost_and_a_run_of_too_few_waits_for_them(tmp_path):
    """The noise of each pass is that of who was there then, before and after."""
    sites = sites_of(parts(), *records())
    losses = {1: ("pass", 2), 2: ("pass", 5)}
    with pytest.raises(SiloError, match="3 sites must be there in every pass, and 2 gave a sum"):
        run(LossyLine(sites, losses), tmp_path / "run")
    release = run(LossyLine(sites), tmp_path / "run")
    assert release.settings["silos"]["present"] == [4, 4] + [3] * (PLAN.n_passes - 2)
    same = run(LossyLine(sites_of(parts(), *records()), {1: ("pass", 2)}))
    assert bits(release) == bits(same)


def test_other_terms_do_not_go_on(tmp_path):
    sites, path = sites_of(parts(), *records()), tmp_path / "run"
    with pytest.raises(DiesError):
        run(DyingLine(sites, 7, 2), path)
    with pytest.raises(CheckpointError, match="it differs in silos"):
        run(LocalLine(sites), path, may_vanish=0)
    assert run(LocalLine(sites), RunCheckpoint(path)).n_passes == PLAN.n_passes
    # A file that stays gives the same release again, and asks nobody.
    assert path.exists()


def test_the_file_has_no_secret_of_a_site(tmp_path):
    """What opens a sum is not kept, and nothing of the records is in the file."""
    sites, path = sites_of(parts(), *records()), tmp_path / "run"
    with pytest.raises(DiesError):
        run(DyingLine(sites, 8, SITES), path)
    words = RunCheckpoint(path).load().arrays["session"].astype("<u4").tobytes()
    for site in sites:
        keys = dpi.mechanism.silos.masks.SiteKeys(site._state.key)
        for secret in (site._state.key, keys.box_private, keys.own_seed(0), keys.mask_private(0)):
            # Power: the key is found where it is.
            assert secret is not site._state.key or secret in site.save()
            assert secret not in words


KILLED = """
import os, sys
import dpinfer as dpi
from dpinfer.mechanism.silos import Silos, TcpLine, tls_context
from tests.unit.silos.test_checkpoint import LOGISTIC, N, PLAN
class Killed(TcpLine):
    calls = 0
    def exchange(self, messages):
        self.calls += 1
        replies = super().exchange(messages)
        if self.calls == int(sys.argv[2]):
            os._exit(9)
        return replies
addresses = [("127.0.0.1", int(port)) for port in sys.argv[6:]]
context = tls_context(*sys.argv[3:6], serves=False)
with Killed(addresses, context, timeout=60.0) as line:
    release = dpi.run_newton(LOGISTIC, Silos(line), plan=PLAN, n_records=N, checkpoint=sys.argv[1] + ".run")
release.save(sys.argv[1])
"""


def test_a_process_that_is_killed_goes_on_over_tcp(tmp_path):
    circle = make_circle(tmp_path, ["site", "coordinator"])
    sites, root = sites_of(parts(), *records()), Path(__file__).parents[3]
    with ExitStack() as stack:
        servers = [stack.enter_context(listening("127.0.0.1", 0)) for _ in sites]
        for site, server in zip(sites, servers, strict=True):
            context = tls_context(**circle["site"], serves=True)
            # Each line of the coordinator is one.
            thread = threading.Thread(target=serve, args=(site, server, context), kwargs={"sessions": 2})
            thread.start()
            stack.callback(thread.join, 20)
        paths = [str(circle["coordinator"][name]) for name in ("certificate", "key", "authority")]
        ports = [str(server.getsockname()[1]) for server in servers]
        for dies_at, expected in ((8, 9), (0, 0)):
            arguments = [str(tmp_path / "release"), str(dies_at), *paths, *ports]
            done = subprocess.run(
                [sys.executable, "-c", KILLED, *arguments], cwd=root, capture_output=True, text=True, check=False
            )
            assert done.returncode == expected, done.stderr
    whole = run(LocalLine(sites_of(parts(), *records())), may_vanish=0)
    assert bits(dpi.release.load_release(tmp_path / "release")) == bits(whole)


def test_words_of_a_file_are_exact():
    from dpinfer.mechanism.silos.rows import _bytes_of, _words_of

    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 3, 4, 5, 1001):
        content = rng.bytes(size)
        assert _bytes_of(_words_of(content)) == content
    assert InsecureRNG(0).take_key() == _bytes_of(_words_of(InsecureRNG(0).take_key()))
