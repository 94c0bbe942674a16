"""List the benchmarks, run some of them, tabulate how they went, and write what they printed to one page.

    python -m bench                                  # the list
    python -m bench streams regression_rows          # run these, one after the other
    python -m bench streams --arguments "--gigabytes 0.1" --json results.json
    python -m bench --json bench/results.json --page docs/results.md     # the page of what the file holds
    python -m bench --peers DIR peers --arguments passes  # where bench/peers/peer_environments.py put its peers
    python -m bench papers [--quick] [NAME ...]     # tables and figures of the two papers, and docs/papers.md

Every benchmark checks its answer before it times anything; one whose answer is wrong fails, and so does this command.
A file of `--json` keeps the results that it holds of other benchmarks, and of other arguments.
"""

import argparse
import ast
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import textwrap
import time
from pathlib import Path

FOLDER = Path(__file__).parent
# Of a line on the page.
MOST_CHARACTERS = 150
ABOUT = """
Output of benchmarks when they were last run, by `python -m bench NAME --json bench/results.json`; this page is made
from that file (`python -m bench --json bench/results.json --page docs/results.md`). A benchmark checks its answers
before it times anything. Ratios and processor time are more reliable than the clock. Code: the commit that ran, or with
which the result was stored. The numbers are those of that commit, not of later code.
"""


def files():
    """Return each script by its name, whatever folder it is in."""
    found = (path for path in FOLDER.glob("*/*.py") if path.parent.name != "papers")
    return {path.stem: path for path in sorted(found, key=lambda path: path.stem)}


def benchmarks():
    """Return the first line of each benchmark's description, by name; a file that cannot be run is none."""
    found = {}
    for name, path in files().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body):
            found[name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def processor():
    """Return the processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def code():
    """Return the commit of the code that runs, with a plus for changes since."""
    command = ["git", "-C", str(FOLDER), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "?"


def interpreter(name, peers):
    """Return the Python that runs a benchmark, and the peers that it finds there: below `peers`, or this one and none.

    A folder of environments without the one that is wanted leaves the benchmark to what can be imported here.
    """
    if not peers:
        return sys.executable, []
    from bench.peers import peer_environments

    environment, python = peer_environments.of_benchmark(peers, name)
    if python is None:
        return sys.executable, []
    return str(python), list(peer_environments.ENVIRONMENTS[environment].packages)


def run(name, arguments, peers=None):
    """Run a benchmark in a process of its own; return what it printed, how it ended, what it cost, and where."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    if peers:
        environment["DPINFER_PEERS"] = str(Path(peers).absolute())
    python, found = interpreter(name, peers)
    start = time.perf_counter()
    process = subprocess.Popen(
        [python, str(files()[name]), *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line.rstrip("\n"))
    status = process.wait()
    return {
        "name": name, "arguments": arguments, "status": status, "seconds": round(time.perf_counter() - start, 1),
        "date": datetime.date.today().isoformat(), "code": code(), "processor": processor(), "cores": os.cpu_count(),
        "system": platform.system(), "python": platform.python_version(), "output": lines,
        **({"peers": found} if found else {}),
    }  # fmt: skip


def table(results):
    """Return how benchmarks went, as Markdown."""
    rows = ["| benchmark | answer | seconds | date | code |", "|---|---|---|---|---|"]
    for result in results:
        answer = "right" if result["status"] == 0 else "FAILED"
        called = " ".join((result["name"], *result["arguments"]))
        rows.append(f"| {called} | {answer} | {result['seconds']:.1f} | {result['date']} | {result['code']} |")
    return "\n".join(rows)


def page(results, descriptions):
    """Return what benchmarks printed, as a page of the documents."""
    parts = [
        "# Results",
        "\n".join(textwrap.wrap(" ".join(ABOUT.split()), MOST_CHARACTERS, break_on_hyphens=False)),
        table(results),
    ]
    for result in results:
        place = files()[result["name"]].relative_to(FOLDER.parent).as_posix()
        command = shlex.join(("python", place, *result["arguments"]))
        machine = f"{result['processor']}, {result['cores']} cores, {result['system']}, Python {result['python']}"
        if result.get("peers"):
            machine += f"; {', '.join(result['peers'])}"
        lines = [
            wrapped
            for line in result["output"]
            for wrapped in textwrap.wrap(
                line, MOST_CHARACTERS, subsequent_indent="      ", drop_whitespace=False, replace_whitespace=False
            )
            or [""]
        ]
        parts += [
            f"## {result['name']}",
            "\n".join(textwrap.wrap(descriptions.get(result["name"], ""), MOST_CHARACTERS)),
            "\n".join(textwrap.wrap(f"`{command}` ({machine}):", MOST_CHARACTERS, break_on_hyphens=False)),
            "\n".join(("```text", *(line.rstrip() for line in lines), "```")),
        ]
    return "\n\n".join(parts) + "\n"


def merged(before, new):
    """Return results in the order of their names; a new one takes the place of the one that had its arguments."""
    found = {(result["name"], *result["arguments"]): result for result in (*before, *new)}
    return [found[key] for key in sorted(found)]


def main():
    if sys.argv[1:2] == ["papers"]:
        from bench.papers import _command

        return _command.main(sys.argv[2:], code())
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; without any, they are listed")
    parser.add_argument("--arguments", default="", help="for each of them, in one string")
    parser.add_argument("--json", help="a file for what they printed")
    parser.add_argument("--page", help="a Markdown file for all that the file of --json holds")
    parser.add_argument(
        "--peers", metavar="DIR", default=os.environ.get("DPINFER_PEERS"),
        help="environments of peers, built by bench/peers/peer_environments.py",
    )  # fmt: skip
    arguments = parser.parse_args()
    known = benchmarks()
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}")
    if arguments.page and not arguments.json:
        parser.error("--page needs --json, the file that it is made from")
    if not arguments.names and not arguments.page:
        width = max(map(len, known))
        print("\n".join(f"{name:{width}s}  {line}" for name, line in known.items()))
        return 0
    results = []
    for name in arguments.names:
        print(f"== {name}", flush=True)
        results.append(run(name, shlex.split(arguments.arguments), arguments.peers))
    if results:
        print(f"\n{table(results)}")
    if arguments.json:
        kept = Path(arguments.json)
        before = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {"results": []}
        everything = merged(before["results"], results)
        kept.write_text(json.dumps({**before, "results": everything}, indent=1) + "\n", encoding="utf-8")
        if arguments.page:
            Path(arguments.page).write_text(page(everything, known), encoding="utf-8")
    return int(any(result["status"] for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
