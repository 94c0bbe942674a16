"""Feed every loader and every compiled function a million broken inputs: no crash, no hang, no undocumented error.

Inputs are made by mutation, from a seed and a number, so that each can be made again.  Each target runs in a process
of its own; a finding is an input after which that process is gone, has computed for a minute or been silent for ten,
or has raised an error that the target does not document (for sums, also: a sum that exceeds what its records may
contribute; for private runs with hostile settings: any error once the run has its key, so that it is paid for).
Memory is limited to 4 GiB, so that a size read from a file and believed shows as a MemoryError.

    python bench/privacy/fuzz.py [--inputs 1000000] [--seed 0] [--target LedgerFile] [--jobs 2]
"""

import argparse
import concurrent.futures
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

# How the inputs are shared out: by what a target may meet, and by what an input costs.
SHARES = {
    "ReleaseFile": 4, "StudyFile": 1, "StudyRuns": 1, "StudyManifest": 5, "SchemaFile": 8, "SchemaDocument": 10,
    "TableFile": 6, "GzipTableFile": 3, "TableLines": 6, "LedgerFile": 5, "LedgerRows": 10, "RunCheckpointFile": 12,
    "PlainDocuments": 14,
    "StepSession": 5, "AffineSession": 4, "RandomNumbers": 4, "Inference": 4, "Study": 1,
    "SiteSession": 4, "NetworkSession": 3, "NetworkPasses": 3, "PartialSum": 2, "FitPlanFile": 3,
    "NewtonSettings": 0.25, "SiloSettings": 0.1, "TableSettings": 0.1,
}  # fmt: skip
BUSY_SECONDS, SILENCE_SECONDS = 60.0, 600.0
MEMORY_BYTES = 4 * 2**30


def targets():
    from tests.reference.fuzzed_bindings import BINDINGS
    from tests.reference.fuzzed_loaders import LOADERS
    from tests.reference.fuzzed_runs import RUNS
    from tests.reference.fuzzed_sessions import SESSIONS
    from tests.reference.fuzzed_tables import TABLES

    return {kind.__name__: kind for kind in (*LOADERS, *BINDINGS, *SESSIONS, *RUNS, *TABLES)}


def work(name, first, count, seed):
    """Run one target in this process, and tell standard output how it goes."""
    import faulthandler
    import resource
    import signal

    from tests.reference.fuzzing import UndocumentedError

    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)
    accepted = slowest = 0
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        target = targets()[name](Path(folder))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        start = told = time.perf_counter()
        for number in range(first, first + count):
            before = time.perf_counter()
            # The watchdogs: an input that takes longer, by the processor's clock (a machine may be busy with other
            # things) or by the wall's, ends the process with the place where it hangs.
            if number % 64 == 0 or before - told > 1.0:
                signal.setitimer(signal.ITIMER_PROF, BUSY_SECONDS)
                faulthandler.dump_traceback_later(SILENCE_SECONDS, exit=True)
                print("at", number, flush=True)
                told = before
            try:
                accepted += target.one(random.Random(f"{name} {seed} {number}"))
            except UndocumentedError as error:
                print("finding", number, " ".join(str(error).split())[:300], flush=True)
            slowest = max(slowest, time.perf_counter() - before)
        print("done", accepted, slowest, time.perf_counter() - start, flush=True)


def drive(name, count, seed):
    """Run one target in processes of its own, starting again behind an input that kills one."""
    findings, accepted, slowest, seconds, first = [], 0, 0.0, 0.0, 0
    while first < count:
        command = [sys.executable, __file__, "--work", name, str(first), str(count - first), str(seed)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        at = first
        for line in process.stdout.splitlines():
            kind, rest = line.split(" ", 1)
            if kind == "at":
                at = int(rest)
            elif kind == "finding":
                findings.append(rest)
            else:
                values = rest.split()
                accepted += int(values[0])
                slowest, seconds = max(slowest, float(values[1])), seconds + float(values[2])
                first = count
        if first < count:
            where = [line.strip() for line in process.stderr.splitlines() if line.strip()][:3]
            findings.append(f"within 64 inputs from {at}: exit status {process.returncode}: {' | '.join(where)}")
            first = at + 64
    return name, count, accepted, slowest, seconds, findings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=SHARES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        name, *rest = arguments.work
        return work(name, *map(int, rest))
    if set(SHARES) != set(targets()):
        raise SystemExit("a target has no share")
    chosen = {arguments.target: 1} if arguments.target else SHARES
    total = sum(chosen.values())
    counts = {name: math.ceil(arguments.inputs * share / total) for name, share in chosen.items()}
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        futures = [pool.submit(drive, name, count, arguments.seed) for name, count in counts.items()]
        print(f"{'target':<18} {'inputs':>9} {'accepted':>9} {'us/input':>9} {'slowest':>9}  findings")
        found = []
        for future in concurrent.futures.as_completed(futures):
            name, count, accepted, slowest, seconds, findings = future.result()
            each = f"{1e6 * seconds / count:9.0f} {slowest:7.2f} s"
            print(f"{name:<18} {count:>9} {accepted:>9} {each}  {len(findings)}", flush=True)
            found += [f"{name}: {line}" for line in findings]
    for line in found[:50]:
        print(line)
    seconds = time.perf_counter() - start
    print(f"{sum(counts.values())} inputs, {len(found)} findings, seed {arguments.seed}, {seconds:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
