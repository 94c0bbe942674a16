"""Kill processes with SIGKILL at random moments: nothing lost, nothing half-written, nothing charged or drawn twice.

Five kinds of victim, each killed again and again until it gets through:
  fit    a private run with a ledger and a checkpoint, which then saves its release.  After every kill all three are
         whole, or absent.  In the end there is one release, with the bits of an undisturbed run (a fixed key takes the
         place of the system's), one charge, and no checkpoint.
  sep    the same for DP-SEP of a network.
  sum    the same for a single release, by a contribution of one's own.
  study  a coverage study with a checkpoint folder; in the end the undisturbed result, bit for bit.
  save   a process that saves releases of different lengths over one file; after every kill the file is one of them.
The delay before a kill is uniform over what the victim takes when it is left alone.

    python bench/privacy/kill_points.py [--kills 210] [--seed 0]
"""

import argparse
import os
import random
import signal
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

import dpinfer as dpi
from dpinfer.mechanism import OSRandomSource, RunCheckpoint, run_network_dp_sep

LENGTHS = (7, 900, 40_000)


class FixedKey(OSRandomSource):
    """For this benchmark only: lets the result be compared with that of an undisturbed run."""

    def take_key(self):
        return bytes(range(32))


def dpvi_run(X, y, **options):
    return dpi.run_dpvi(dpi.models.LogisticRegression(3), X, y, max_grad_norm=2.0, **options)


def dp_sep_run(X, y, **options):
    return run_network_dp_sep(dpi.models.BayesianNeuralNetwork(3, 5), X, y, **options)


def fit(folder, size, ready, mechanism=dpvi_run):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(400, 3))
    y = (rng.random(400) < 0.5).astype(float)
    plan = dpi.PrivacyPlan.from_noise_multiplier(20.0, 0.2, size, 1e-5)
    path = folder / "spent.ledger"
    ready()
    ledger = dpi.PrivacyLedger(path) if path.exists() else dpi.PrivacyLedger.create(path)
    if not ledger.datasets:
        ledger.add_dataset("people", budget=(plan.epsilon, 1e-5))
    checkpoint = RunCheckpoint(folder / "run.checkpoint", interval=0.02)
    if not (folder / "fit.release").exists():
        release = mechanism(
            X,
            y,
            plan=plan,
            n_records=400,
            n_threads=1,
            random_source=FixedKey(),
            checkpoint=checkpoint,
            ledger=ledger.dataset("people"),
        )
        release.save(folder / "fit.release")
    checkpoint.discard()


def below(rows):
    return rows <= 30.0


def single(folder, size, ready):
    values = np.random.default_rng(5).integers(0, 100, (size, 1)).astype(float)
    ready()
    path = folder / "spent.ledger"
    ledger = dpi.PrivacyLedger(path) if path.exists() else dpi.PrivacyLedger.create(path)
    if not ledger.datasets:
        ledger.add_dataset("people", budget=(1.0, 1e-5))
    checkpoint = RunCheckpoint(folder / "run.checkpoint")
    if not (folder / "fit.release").exists():
        release = dpi.private_sum(
            values,
            below,
            names=["below"],
            max_norm=1.0,
            epsilon=1.0,
            random_source=FixedKey(),
            checkpoint=checkpoint,
            ledger=ledger.dataset("people"),
        )
        release.save(folder / "fit.release")
    checkpoint.discard()


def study(folder, size, ready):
    ready()
    settings = {"n_draws": 50, "n_repeats": 1, "seed": 3, "n_threads": 1, "chunk_size": 2}
    result = dpi.coverage_study("beta-bernoulli", n_runs=size, checkpoint=folder / "store", **settings)
    result.save(folder / "result.npz")


def save(folder, size, ready):
    trace = np.arange(2.0 * max(LENGTHS)).reshape(-1, 2)
    releases = [
        dpi.release_from_arrays(trace[:length], trace[:length], noise_stddev=1.0, sample_rate=0.5) for length in LENGTHS
    ]
    ready()
    for number in range(size):
        releases[number % 3].save(folder / "fit.release")


class Victim:
    """A kind of process, what it may leave behind when it dies, and what it must have made when it is through."""

    def __init__(self, name, work, size):
        self.name, self.work, self.size = name, work, size
        self.kills = self.rounds = 0
        self.expected = None
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            self.begin()
            self.seconds = self.run(None)
            self.expected = self.result()

    def run(self, delay):
        """Start a process, kill it `delay` seconds after it is ready; return how long it worked, or None if killed."""
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            status = 1
            try:
                self.work(self.folder, self.size, lambda: os.write(writing, b"."))
                status = 0
            finally:
                # No clean-up of the parent's.
                os._exit(status)
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        start = time.perf_counter()
        if delay is not None:
            while time.perf_counter() - start < delay:
                time.sleep(0.0005)
            os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status == -signal.SIGKILL:
            return None
        if status != 0:
            raise SystemExit(f"{self.name}: the process failed with status {status}")
        return time.perf_counter() - start

    def disturb(self, generator, wanted):
        """Kill until there have been `wanted` kills, beginning anew whenever the process gets through."""
        while self.kills < wanted:
            with tempfile.TemporaryDirectory() as folder:
                self.folder = Path(folder)
                self.begin()
                while self.kills < wanted and self.run(generator.uniform(0.0, 1.05 * self.seconds)) is None:
                    self.kills += 1
                    self.check()
                self.run(None)
                self.check()
                if self.result() != self.expected:
                    raise SystemExit(f"{self.name}: the result differs from an undisturbed one")
                self.rounds += 1

    def begin(self):
        """Prepare a new folder."""

    def check(self):
        """Raise if a kill left something that is not whole."""

    def result(self):
        """Return what must be the same, however often the process was killed."""

    def leftovers(self, *known):
        """Raise if there is a file that nobody will look for."""
        found = {path.name for path in self.folder.iterdir()} - set(known)
        if found:
            raise SystemExit(f"{self.name}: left behind: {sorted(found)}")


class Fit(Victim):
    arrays = ("noisy_gradients", "final_params")

    def begin(self):
        self.keys = set()

    def check(self):
        path = self.folder / "spent.ledger"
        if path.exists():
            ledger = dpi.PrivacyLedger(path)
            runs = ledger.dataset("people").runs() if ledger.datasets else ()
            if len(runs) > 1 or any(item.status == "cancelled" for item in runs):
                raise SystemExit("fit: more than one charge")
        checkpoint = RunCheckpoint(self.folder / "run.checkpoint")
        if checkpoint.exists():
            # Empty before the run is bound to its records.
            self.keys |= {checkpoint.load().tag_key} - {b""}
            if len(self.keys) > 1:
                raise SystemExit("fit: two keys for one run")
        if (self.folder / "fit.release").exists():
            dpi.load_release(self.folder / "fit.release")

    def result(self):
        # A save of the release or of a new ledger that was killed leaves a hidden file, which holds nothing secret.
        hidden = [path.name for path in self.folder.glob(".*.part*")]
        if any("checkpoint" in name for name in hidden):
            raise SystemExit("fit: a part of a checkpoint was left behind")
        self.leftovers("spent.ledger", "fit.release", *hidden)
        release = dpi.load_release(self.folder / "fit.release")
        (charge,) = dpi.PrivacyLedger(self.folder / "spent.ledger").dataset("people").runs()
        if charge.run != release.settings["ledger"]["run"]:
            raise SystemExit("fit: the release is not the charged run's")
        return *(getattr(release, name).tobytes() for name in self.arrays), charge.event


class Sep(Fit):
    arrays = ("noisy_sums", "loc", "precision")


class Total(Fit):
    arrays = ("noisy_sums",)


class Study(Victim):
    def result(self):
        result = dpi.lab.studies.CoverageResult.load(self.folder / "result.npz")
        return {name: array.tobytes() for name, array in result.runs.arrays.items()}


class Save(Victim):
    def check(self):
        if not (self.folder / "fit.release").exists():
            return
        release = dpi.load_release(self.folder / "fit.release")
        steps = release.n_steps
        whole = np.arange(2.0 * steps).reshape(-1, 2)
        if steps not in LENGTHS or not np.array_equal(release.params, whole):
            raise SystemExit("save: a release that nobody saved")

    def result(self):
        return dpi.load_release(self.folder / "fit.release").n_steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=210)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    shares = {
        "fit": (Fit, fit, 4000, 0.25),
        "sep": (Sep, partial(fit, mechanism=dp_sep_run), 1500, 0.15),
        "sum": (Total, single, 300_000, 0.2),
        "study": (Study, study, 16, 0.2),
        "save": (Save, save, 60, 0.2),
    }
    total = 0
    for name, (kind, work, size, share) in shares.items():
        victim = kind(name, work, size)
        victim.disturb(generator, -(-round(arguments.kills * share * 100) // 100))
        total += victim.kills
        print(
            f"{name:<6} {victim.kills:4d} kills over {victim.seconds:.2f} s of work, {victim.rounds} results equal to "
            "the undisturbed one",
            flush=True,
        )
    print(f"{total} kills: nothing lost, nothing half-written, nothing charged twice")


if __name__ == "__main__":
    main()
