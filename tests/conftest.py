"""Fixtures shared by the whole suite."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # a process for each core: more threads would wait for one another
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

from dpinfer.inference.trace.information import posteriors, under_model
from tests.reference import other_seeds
from tests.reference.plain_streams import plain_streams

# JAX keeps threads of its own from its import on: a fork of a process that has them warns, and may hang.
THREADED = ("jax",)
ALONE = "DPINFER_TESTS_ALONE"
PARTS = pytest.StashKey[list]()


def _whole(config):
    """Whether the suite, or a folder of it, was asked for, not files or tests by name."""
    return PARTS in config.stash or all(Path(argument.partition("::")[0]).is_dir() for argument in config.args)


def pytest_addoption(parser):
    """`--seed-offset` and `--own-streams`: other random numbers than those the tests were written with."""
    other_seeds.add_options(parser)


def pytest_configure(config):
    """Move every seed before the tests are imported."""
    other_seeds.move_seeds(config.option.seed_offset)
    here, worker = Path(__file__).parent, os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and [Path(argument).resolve() for argument in config.args] == [here]:
        # Every other worker collects from the end, and loads what the others have compiled.
        found = [*sorted(here.iterdir()), *sorted((here / "unit").iterdir())]
        parts = [path for path in found if path.name.startswith("test_") or (path.is_dir() and path.name[0] != "_")]
        parts.remove(here / "unit")
        config.stash[PARTS] = parts
        config.args[:] = map(str, parts[:: -1 if int(worker[2:]) % 2 else 1])


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers(config):
    """The suite runs on every core; what is asked for by name runs in the process that was started."""
    return None if _whole(config) else 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """The suite leaves slow tests to ``pytest -m slow``; what is asked for by name always runs."""
    other_seeds.leave_out_pinned(config, items)
    parts = config.stash.get(PARTS, [])
    if parts:
        places = {path: parts.index(({path, *path.parents} & {*parts}).pop()) for path in {item.path for item in items}}
        items.sort(key=lambda item: places[item.path])
    if config.option.markexpr or config.option.keyword or not _whole(config):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test marked `forks` runs in an interpreter of its own where another test has loaded JAX into this one."""
    marked = pyfuncitem.get_closest_marker("forks") is not None
    if not marked or ALONE in os.environ or not any(name in sys.modules for name in THREADED):
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    done = subprocess.run(
        command,
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, ALONE: "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"in an interpreter of its own:\n{done.stdout}{done.stderr}", pytrace=False)
    return True


@pytest.fixture(scope="session")
def data_dir():
    """The folder of the public data sets; tests that need it are skipped where it is absent."""
    path = Path(os.environ.get("DPINFER_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not path.is_dir():
        pytest.skip("the public data sets are not here (set DPINFER_DATA to their folder)")
    return path


@pytest.fixture(scope="module", autouse=True)
def streams_of_steps(request):
    """Noise of a run's key and its steps alone, whatever is asked.

    A seeded test is then the same on every machine: with noise of the query, a last digit of a library's exponential
    function decides all draws.  Modules that are about the noise itself put a fixture of this name in its place.
    """
    with contextlib.nullcontext() if request.config.option.own_streams else plain_streams():
        yield


# Where a posterior is only one of the things that a test looks at: its draws are tested in inference and statistical.
SHORT_CHAINS = ("unit/cli", "unit/estimators", "unit/fitting", "unit/formulas", "unit/tabular", "privacy", "contract")


@pytest.fixture(scope="module", autouse=True)
def short_chains(request):
    """A tenth of the draws of a full Hessian, which take a third of such tests, converged or not."""
    if not request.path.relative_to(Path(__file__).parent).as_posix().startswith(SHORT_CHAINS):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for module, name, fewer in ((posteriors, "_MODEL_DRAWS", 20), (posteriors, "_MODEL_WARMUP", 10)):
            assert getattr(module, name) > fewer
            patch.setattr(module, name, fewer)
        patch.setattr(under_model, "_LARGEST_RHAT", np.inf)
        yield


@pytest.fixture
def rng():
    """A generator with a fixed seed."""
    return np.random.default_rng(20240607)
