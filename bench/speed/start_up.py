"""How long a user waits for the first answer: ``import dpinfer``, ``dpinfer account`` and ``dpinfer demo``.

Every run is a process of its own, with the files of the packages in the system's cache (one run before the timed ones).
Answer first: the account prints an epsilon, the demonstration finds its true values.  tests/boundary says what is
loaded.  A fit of Adult, from file to report, needs DPINFER_DATA.

    python bench/speed/start_up.py [--repeats 7]
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ACCOUNT = ["account", "--noise-multiplier", "20", "--sample-rate", "0.1", "--steps", "10000", "--delta", "1e-5"]
FIT = "fit {}/adult.data.csv.gz --schema examples/adult.toml --epsilon 1 --delta 1e-5 --n-records 30162 --overwrite"


def output(arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "import dpinfer": ["-c", "import dpinfer"],
            "dpinfer account": ["-m", "dpinfer", *ACCOUNT],
            "dpinfer demo": ["-m", "dpinfer", "demo", "--out", str(Path(folder) / "demo")],
        }
        if data := os.environ.get("DPINFER_DATA"):
            runs["a fit of Adult"] = ["-m", "dpinfer", *FIT.format(data).split(), "--out", str(Path(folder) / "fit")]
        epsilon = re.match(r"epsilon <= ([0-9.]+) at delta", output(runs["dpinfer account"]).stdout)[1]
        covered, of = map(int, re.search(r"(\d+) of (\d+) true values", output(runs["dpinfer demo"]).stdout).groups())
        # Nine 90% intervals: fewer than five cover with probability below 1e-3 when they are right.
        assert covered >= 5, covered
        print(f"epsilon {epsilon}; {covered} of {of} true values in the demonstration's intervals")
        print(f"seconds of a process, median of {repeats} (fastest to slowest): by the clock; of the processor")
        for name, arguments in runs.items():
            seconds = []
            for _ in range(repeats):
                start, before = time.perf_counter(), processor_seconds()
                output(arguments)
                seconds.append((time.perf_counter() - start, processor_seconds() - before))
            texts = [f"{median(each):6.3f} ({min(each):.3f} to {max(each):.3f})" for each in zip(*seconds, strict=True)]
            print(f"  {name:<18s} {'; '.join(texts)}")


if __name__ == "__main__":
    main()
