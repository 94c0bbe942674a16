"""Build the peers' environments: one for each group of packages that can live together, with versions pinned.

    python bench/peers/peer_environments.py DIR [NAME ...]
    python -m bench --peers DIR league other_traces         # benchmarks find them there, or in DPINFER_PEERS

Every environment has the Python that builds it, and sees the packages of that one, this library among them, after its
own: so a benchmark runs there beside its peers, in one process.  Answer first: an environment counts as built when all
its packages can be imported and this library makes a private sum there.  What cannot be built is said, with pip's last
words, and the others are built all the same.  What an environment has already is not installed again.
"""

import argparse
import dataclasses
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

MOST_SECONDS = 1800
TRY = "import dpinfer.mechanism as m; m._native.PartialSum(length=1, max_norm=1.0)"


@dataclasses.dataclass(frozen=True)
class Environment:
    """Packages to be installed together, the modules to be imported from them, and the benchmarks that run there."""

    packages: tuple[str, ...]
    modules: tuple[str, ...]
    benchmarks: tuple[str, ...] = ()


ENVIRONMENTS = {
    "frameworks": Environment(
        ("jax==0.10.2", "numpyro==0.22.0", "jax-privacy==2.0.0", "torch==2.13.0", "opacus==1.6.0"),
        ("jax", "numpyro", "jax_privacy", "torch", "opacus"),
        ("any_model", "other_traces", "peers"),
    ),
    # peers.py calls d3p and diffprivlib in processes of their own.  d3p uses what later releases of JAX have removed,
    "d3p": Environment(("d3p==0.2.0", "jax[cpu]==0.4.30", "numpyro==0.15.3"), ("d3p", "d3p.svi", "numpyro")),
    # and diffprivlib what later releases of scikit-learn have.
    "diffprivlib": Environment(("diffprivlib==0.6.6", "scikit-learn==1.6.1"), ("diffprivlib.models",)),
    "accounting": Environment(
        ("prv-accountant==0.2.0", "autodp==0.2.3.1", "dp-accounting==0.6.0", "scipy==1.17.1"),
        ("prv_accountant", "autodp", "dp_accounting", "scipy"),
        ("accounting",),
    ),
    "clusters": Environment(
        ("distributed==2026.8.0", "pyspark==4.3.0", "pyarrow==26.0.1", "duckdb==2.0.0"),
        ("distributed", "pyspark", "pyarrow", "duckdb"),
        ("shards", "streams"),
    ),
}


def interpreter(folder, name):
    """Return the Python of an environment below a folder, or None where it has not been built."""
    if not folder:
        return None
    windows = sys.platform == "win32"
    path = Path(folder).absolute() / name / ("Scripts/python.exe" if windows else "bin/python")
    return path if path.exists() and (Path(folder) / name / "built").exists() else None


def of_benchmark(folder, benchmark):
    """Return the environment that a benchmark runs in, and its Python, where it has been built; else None for both."""
    for name, environment in ENVIRONMENTS.items():
        if benchmark in environment.benchmarks and (python := interpreter(folder, name)) is not None:
            return name, python
    return None, None


def called(command):
    """Run a command; return None when it succeeded, else the last line that says why it did not."""
    try:
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"took more than {MOST_SECONDS} seconds"
    if done.returncode == 0:
        return None
    said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in said if line.lower().startswith("error")]
    return (errors or said or [f"ended with status {done.returncode}"])[-1]


def build(folder, name):
    """Build an environment, or try the one that is there; return None, or why it cannot be used."""
    environment, place = ENVIRONMENTS[name], Path(folder).absolute() / name
    (place / "built").unlink(missing_ok=True)
    python = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists() and (why := called([sys.executable, "-m", "venv", place])):
        return why
    if why := called([python, "-m", "pip", "install", "--quiet", *environment.packages]):
        return why
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    # After the environment's own packages: where this process finds the library, and its requirements.
    import dpinfer

    seen = dict.fromkeys((str(Path(dpinfer.__file__).parents[1]), *map(sysconfig.get_path, ("purelib", "platlib"))))
    (Path(packages) / "dpinfer-bench.pth").write_text("".join(f"{path}\n" for path in seen), encoding="utf-8")
    for code in (*(f"import {module}" for module in environment.modules), TRY):
        if why := called([python, "-c", code]):
            return f"{code}: {why}"
    (place / "built").write_text("\n".join(environment.packages) + "\n", encoding="utf-8")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", help="where the environments are, or shall be")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(ENVIRONMENTS)}; all of them")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in ENVIRONMENTS]:
        parser.error(f"there is no environment {', '.join(unknown)}")
    left = 0
    for name in arguments.names or ENVIRONMENTS:
        start = time.perf_counter()
        why = build(arguments.folder, name)
        left += why is not None
        state = f"NOT BUILT: {why}" if why else "built"
        print(
            f"{name:12s} {', '.join(ENVIRONMENTS[name].packages)}: {state} ({time.perf_counter() - start:.0f} s)",
            flush=True,
        )
    return int(left > 0)


if __name__ == "__main__":
    raise SystemExit(main())
