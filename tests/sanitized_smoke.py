"""Build every compiled module under a sanitizer, and run tests/memory_smoke.py on them in a copy of the package.

Two things make silence mean something: the modules are searched for the sanitizer's calls, and faults planted in a
library built the same way (cpp/tests/planted_faults.cpp) must be reported, while correct code that only looks like a
race must not.

    python tests/sanitized_smoke.py {asan-ubsan,tsan} [PART ...] [--cmake OPTION ...]

PART as for memory_smoke.py; all of them by default.  `tsan` needs clang with its OpenMP and Archer, and GCC's libtsan,
which unlike clang's can be loaded into a Python that was not built with it (Debian: clang libomp-dev g++).
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIDES = ("mechanism", "inference", "lab")
PARTS = ("kernels", "runs", "posteriors", "studies")
CALLS = {"asan-ubsan": (b"__asan_report", b"__ubsan_handle"), "tsan": (b"__tsan_read", b"__tsan_write")}
# Function, argument, and what is reported of it: nothing where it is correct.
PLANTED = {
    "asan-ubsan": (("overrun", 8, "heap-buffer-overflow"), ("overflow", 1, "signed integer overflow")),
    "tsan": (("order", 3, None), ("race", 3, "data race")),
}


def told(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment(preset, package):
    """Return the environment in which a Python that knows nothing of sanitizers can load what they instrumented."""
    if preset == "tsan":
        archer = Path(told("clang++", "-print-resource-dir")).parents[1] / "libarcher.so"
        if not archer.exists():
            sys.exit(f"{archer} is not there: without it OpenMP's barriers look like races")
        own = {
            "LD_PRELOAD": told("g++", "-print-file-name=libtsan.so"),
            # Interceptors called by what is not instrumented, Python and NumPy, say nothing; our own code is.
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
            "OMP_TOOL_LIBRARIES": str(archer),
        }
    else:
        own = {
            "LD_PRELOAD": " ".join(told("g++", f"-print-file-name={name}.so") for name in ("libasan", "libstdc++")),
            # The interpreter frees little at its end.
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
        }
    return os.environ | {"PYTHONPATH": str(package), "OPENBLAS_NUM_THREADS": "1"} | own


def build(preset, options):
    """Build the modules and the planted faults; return the copy of the package and the library of faults."""
    folder = ROOT / "build" / preset
    subprocess.run(
        ["cmake", "--preset", preset, "-DDPINFER_PYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}", *options],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    targets = [*(f"{side}_native" for side in SIDES), "planted_faults"]
    subprocess.run(["cmake", "--build", str(folder), "--target", *targets], check=True)
    package = folder / "package"
    shutil.rmtree(package, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "python" / "dpinfer", package / "dpinfer", ignore=ignored)
    for side in SIDES:
        module = next((folder / "cpp" / "bindings" / side).glob("_native*.so"))
        content = module.read_bytes()
        for call in CALLS[preset]:
            if call not in content:
                sys.exit(f"{module} is not instrumented: it does not call {call.decode()}")
        shutil.copy(module, package / "dpinfer" / side)
    return package, next((folder / "cpp" / "tests").glob("*planted_faults*"))


def check_planted(preset, library, env):
    """Stop where a planted fault is not reported, correct code is, or there was one thread only."""
    for name, argument, report in PLANTED[preset]:
        code = f"import ctypes; print('returned', ctypes.CDLL({str(library)!r}).planted_{name}({argument}))"
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        found = report in run.stderr and run.returncode != 0 if report else run.returncode == 0 and not run.stderr
        if preset == "tsan":
            found = found and f"returned {argument}" in run.stdout
        if not found:
            sys.exit(f"planted {name}: expected {report or 'no report'}, got {run.returncode}\n{run.stderr}")
        print(f"planted {name}: {'reported' if report else 'not reported'}, as it must be", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", choices=tuple(CALLS))
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--cmake", action="append", default=[], metavar="OPTION", help="passed on, as -DNAME=VALUE")
    args = parser.parse_args()
    package, library = build(args.preset, args.cmake)
    env = environment(args.preset, package)
    check_planted(args.preset, library, env)
    failed = []
    for part in args.parts or PARTS:
        print(f"== {part}", flush=True)
        run = subprocess.run([sys.executable, str(ROOT / "tests" / "memory_smoke.py"), part], env=env, check=False)
        if run.returncode:
            failed.append(part)
    print(f"FAILED: {', '.join(failed)}" if failed else f"no report under {args.preset}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
