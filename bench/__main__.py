"""List the benchmarks, run some of them, and tabulate how they went.

    python -m bench                                  # the list
    python -m bench streams regression_rows          # run these, one after the other
    python -m bench streams --arguments "--gigabytes 0.1" --json results.json

Every benchmark checks its answer before it times anything; one whose answer is wrong fails, and so does this command.
"""

import argparse
import ast
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent


def benchmarks():
    """Return the first line of each benchmark's description, by name; a file that cannot be run is none."""
    found = {}
    for path in sorted(set(FOLDER.glob("*.py")) - {Path(__file__)}):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def run(name, arguments):
    """Run a benchmark in a process of its own; return what it printed, how it ended, and what it cost."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(FOLDER / f"{name}.py"), *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line.rstrip("\n"))
    status = process.wait()
    return {
        "name": name, "arguments": arguments, "status": status, "seconds": time.perf_counter() - start, "output": lines,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; without any, they are listed")
    parser.add_argument("--arguments", default="", help="for each of them, in one string")
    parser.add_argument("--json", help="a file for what they printed")
    arguments = parser.parse_args()
    known = benchmarks()
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}")
    if not arguments.names:
        width = max(map(len, known))
        print("\n".join(f"{name:{width}s}  {line}" for name, line in known.items()))
        return 0
    results = []
    for name in arguments.names:
        print(f"== {name}", flush=True)
        results.append(run(name, shlex.split(arguments.arguments)))
    print("\n| benchmark | answer | seconds |\n|---|---|---|")
    for result in results:
        print(f"| {result['name']} | {'right' if result['status'] == 0 else 'FAILED'} | {result['seconds']:.1f} |")
    if arguments.json:
        machine = {"machine": platform.machine(), "system": platform.platform(), "cores": os.cpu_count()}
        content = {**machine, "python": platform.python_version(), "results": results}
        Path(arguments.json).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return int(any(result["status"] for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
