"""Processes, threads and readers on one ledger: no charge lost, no budget exceeded, nobody told that it is locked.

Each round makes a ledger whose budget admits a known number of equal runs.  In every process some threads charge one
run each, all released at once, while others read; afterwards the admitted runs must be exactly those that the budget
holds, each of them in the file.  Any other error of any thread fails the round.

--reopen shows that the check finds the fault it is for: readers open and close the file by themselves, which makes
POSIX drop the locks of their process.

    python bench/ledger_stress.py [--rounds 1000] [--processes 4] [--threads 3] [--readers 1] [--reopen]
"""

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from pathlib import Path

import dpinfer as dpi
from dpinfer.accounting import GaussianEvent, SelfComposed, charge_run

EVENT, DELTA, ADMITTED = GaussianEvent(8.0), 1e-5, 5
# The twelve threads of the defaults ask for more than this, so that every round has refusals too.


def charge(account, outcomes):
    try:
        with charge_run(
            account, EVENT, adjacency="add_remove", mechanism="stress", secure=True, delta=DELTA
        ) as charged:
            charged.begin()
        outcomes.append(charged.run)
    except dpi.errors.BudgetExceededError:
        outcomes.append("refused")
    except Exception as error:
        outcomes.append(f"error: {type(error).__name__}: {error}")


def read(account, stop, reopen, outcomes):
    try:
        while True:
            if reopen:
                account.path.open("rb").close()
            bound = account.spent()
            if bound.epsilon > account.budget[0]:
                outcomes.append("error: a reader sees more spent than the budget")
            dpi.PrivacyLedger(account.path).entries()
            if stop.is_set():
                return
    except Exception as error:
        outcomes.append(f"error: {type(error).__name__}: {error}")


def worker(folder, options, barrier, results):
    for number in range(options.rounds):
        barrier.wait()
        account = dpi.PrivacyLedger(folder / f"{number}.ledger").dataset("census")
        outcomes, stop = [], threading.Event()
        readers = [
            threading.Thread(target=read, args=(account, stop, options.reopen, outcomes))
            for _ in range(options.readers)
        ]
        writers = [threading.Thread(target=charge, args=(account, outcomes)) for _ in range(options.threads)]
        for thread in readers + writers:
            thread.start()
        for thread in writers:
            thread.join()
        stop.set()
        for thread in readers:
            thread.join()
        results.put(outcomes)


def check(ledger, outcomes):
    """Return what is wrong with a round, or None."""
    errors = [text for text in outcomes if text.startswith("error")]
    admitted = sorted(text for text in outcomes if text != "refused" and not text.startswith("error"))
    held = sorted(run.run for run in ledger.dataset("census").runs())
    if errors:
        return errors[0]
    if admitted != held:
        return f"{len(admitted)} runs were admitted, and the ledger holds {len(held)}"
    if len(held) != min(ADMITTED, len(outcomes)):
        return f"{len(held)} runs were admitted, and the budget holds {ADMITTED}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--reopen", action="store_true")
    options = parser.parse_args()
    budget = dpi.account(SelfComposed(EVENT, ADMITTED), delta=DELTA).epsilon * (1.0 + 1e-9)
    context = multiprocessing.get_context("spawn")
    memory = Path("/dev/shm")
    failed, longest, begun = 0, 0.0, time.monotonic()
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        folder = Path(name)
        barrier, results = context.Barrier(options.processes + 1), context.Queue()
        processes = [
            context.Process(target=worker, args=(folder, options, barrier, results)) for _ in range(options.processes)
        ]
        for process in processes:
            process.start()
        for number in range(options.rounds):
            ledger = dpi.PrivacyLedger.create(folder / f"{number}.ledger")
            ledger.add_dataset("census", budget=(budget, DELTA))
            barrier.wait()
            start = time.monotonic()
            outcomes = [text for _ in processes for text in results.get()]
            longest = max(longest, time.monotonic() - start)
            wrong = check(ledger, outcomes)
            failed += wrong is not None
            if wrong is not None:
                print(f"round {number}: {wrong}")
            ledger.path.unlink()
        for process in processes:
            process.join()
    print(
        f"{options.rounds} rounds of {options.processes} processes x ({options.threads} charging + {options.readers} "
        f"reading threads): {failed} failed; longest round {longest:.2f} s, {time.monotonic() - begun:.0f} s in all"
    )
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())
