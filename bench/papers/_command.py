"""The command ``python -m bench papers``: run tables and figures of the papers, keep them, write their page."""

import argparse
import ast
import datetime
import importlib
import json
import math
import time
import traceback
from pathlib import Path

from bench.papers._frame import Work
from bench.papers._page import page

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


def scripts():
    """Return the title of each table or figure, by the name of its script."""
    paths = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))
    trees = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    return {name: (ast.get_docstring(tree) or "").partition("\n")[0].rstrip(".") for name, tree in trees.items()}


def run(name, title, work, code):
    """Run a script; return its table with where it comes from."""
    script = importlib.import_module(f"bench.papers.{name}")
    start = time.perf_counter()
    measured = script.measure(work).to_dict()
    return {
        "paper": script.PAPER, "title": title, **measured, "quick": work.quick, "code": code,
        "seconds": round(time.perf_counter() - start, 1), "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def merged(before, name, result):
    """Return the results with a new one; a quick one never takes the place of a whole one."""
    kept = before.get(name)
    if kept is not None and result["quick"] and not kept["quick"]:
        return before
    if kept is not None and result["quick"] == kept["quick"]:
        # What was kept on disk cost no time now.
        result = {**result, "seconds": max(result["seconds"], kept["seconds"])}
    return dict(sorted({**before, name: result}.items()))


def main(given, code):
    """Parse the arguments behind "papers" and run."""
    known = scripts()
    parser = argparse.ArgumentParser(prog="python -m bench papers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--quick", action="store_true", help="few runs of each: ten minutes for all")
    parser.add_argument("--runs", type=int, help="most runs for each cell")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for each script: then tabulate what there is")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "papers", help="where runs are kept")
    parser.add_argument("--json", type=Path, default=ROOT / "bench" / "results.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "papers.md")
    parser.add_argument("--only-page", action="store_true", help="run nothing, write the page")
    arguments = parser.parse_args(given)
    unknown = sorted(set(arguments.names) - set(known))
    if unknown:
        parser.error(f"there is no table or figure {', '.join(unknown)}")
    failed = []
    for name in [] if arguments.only_page else arguments.names or known:
        print(f"== {name}: {known[name]}", flush=True)
        folder = arguments.out / ("quick" if arguments.quick else "whole") / name
        work = Work(folder, arguments.quick, arguments.runs, arguments.minutes, arguments.threads)
        try:
            result = run(name, known[name], work, code)
        except Exception:
            # The others still run; this one is told at the end.
            traceback.print_exc()
            failed.append(name)
            continue
        # Read anew: another run may have added its own since.
        store = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json.exists() else {"results": []}
        store["papers"] = merged(store.get("papers", {}), name, result)
        arguments.json.write_text(json.dumps(store, indent=1) + "\n", encoding="utf-8")
        for label, *cells in result["rows"]:
            print("   ", label, "|", " | ".join(cells))
    store = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json.exists() else {}
    arguments.page.write_text(page(store.get("papers", {}), FOLDER / "notes"), encoding="utf-8")
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return int(bool(failed))
