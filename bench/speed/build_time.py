"""What a user waits for until dpinfer is installed: seconds of each command, by the clock and of the processor.

    python bench/speed/build_time.py

Copies what git tracks to an empty folder, and runs the README's two commands there in a new virtual environment.  Then
it builds an sdist and a wheel, and installs the wheel, and both, in others.  Nothing of the build is from ccache.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from start_up import processor_seconds

ROOT = Path(__file__).parents[2]


def timed(what, command, folder):
    """Run a command and print its seconds."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SKBUILD_BUILD_DIR")}
    start, before = time.perf_counter(), processor_seconds()
    done = subprocess.run(
        command, cwd=folder, env=environment | {"CCACHE_DISABLE": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    clock, used = time.perf_counter() - start, processor_seconds() - before
    print(f"{what:<40s} {clock:6.1f} s, {used:6.1f} s of the processor", flush=True)


def environment(folder):
    """Return the Python of a new virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


def main():
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        clone, dist = place / "dpinfer", place / "dist"
        clone.mkdir()
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-C", ROOT, "--null", "-T", "-", "-cf", place / "all.tar"], input=tracked, check=True)
        subprocess.run(["tar", "-C", clone, "-xf", place / "all.tar"], check=True)
        python = environment(place / "first")
        timed("pip install .", [python, "-m", "pip", "install", "."], clone)
        for what in ('pip install ".[test]"', "the same again: no packages to install"):
            timed(what, [python, "-m", "pip", "install", ".[test]"], clone)
        subprocess.run([python, "-m", "pip", "install", "-q", "build"], check=True)
        timed("sdist, and a wheel from it", [python, "-m", "build", "-o", dist, "."], clone)
        wheel = next(dist.glob("*.whl"))
        for what, wanted in (("the wheel", [wheel]), ("both", [f"--find-links={dist}", "dpinfer"])):
            timed(f"pip install, {what}", [environment(place / what), "-m", "pip", "install", *wanted], place)


if __name__ == "__main__":
    main()
