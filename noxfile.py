"""Everything that continuous integration checks, a session each; sanitizers, mutants, tidy and cuda run once a week."""

import os

import nox

nox.options.default_venv_backend = "venv"
# Named, so that slow tests among them run too.
ARVIZ = (
    "tests/unit/inference/test_posterior.py",
    "tests/unit/inference/test_monte_carlo.py",
    "tests/unit/formulas/test_regression.py",
    "tests/unit/cli/test_hostile_names.py",
)
OWN_MODELS = (
    "tests/unit/models/test_own_model.py",
    "tests/unit/mechanism/test_own_newton.py",
    "tests/documents/test_worked_models.py",
)
nox.options.sessions = ["tests", "lint", "types", "layers", "docs", "doctests", "cpp"]


@nox.session
def tests(session: nox.Session) -> None:
    """Run the Python test suite against an installed package, slow studies included."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)
    if not session.posargs:
        session.run("pytest", "-m", "slow", "tests")


@nox.session
@nox.parametrize("release", ["0.22", "1"])
def arviz(session: nox.Session, release: str) -> None:
    """Run the tests of draws for ArviZ with the oldest supported release, and with 1.x (Python 3.12 or newer)."""
    session.install(".[test]", f"arviz=={release}.*")
    session.run("pytest", "-n", "0", "-k", "arviz", *ARVIZ)


@nox.session
@nox.parametrize("age", ["oldest", "newest"])
def frameworks(session: nox.Session, age: str) -> None:
    """Run the tests of models of one's own with the oldest or the newest supported JAX, NumPyro and PyTorch."""
    oldest = ("jax==0.4.30", "jaxlib==0.4.30", "numpyro==0.15.0", "torch==2.2.0", "numpy<2", "scipy<1.12")
    session.install(".[test]", *(oldest if age == "oldest" else ("jax", "numpyro", "torch")))
    session.run("pytest", "-n", "0", *OWN_MODELS)


@nox.session
def limit(session: nox.Session) -> None:
    """Compare regressions of thousands of random tables, at a budget without noise, with ordinary fits."""
    session.install(".[test]")
    session.env["DPINFER_LIMIT_TABLES"] = "2000"
    session.run("pytest", "-n", "2", "tests/limit", *session.posargs)


@nox.session
def nuts(session: nox.Session) -> None:
    """Compare the posteriors of traces with NumPyro's NUTS."""
    session.install(".[test]", "numpyro")
    tests = ("tests/unit/inference/test_methods.py", "tests/unit/inference/test_prior_below_zero.py")
    session.run("pytest", "-n", "0", "-k", "nuts", *tests)


@nox.session
@nox.parametrize("offset", [1001, 2002, 3003, 4004, 5005])
def seeds(session: nox.Session, offset: int) -> None:
    """Run the tests with simulations in them with other seeds."""
    session.install(".[test]")
    session.run("pytest", "--seed-offset", str(offset), "tests/unit/inference", "tests/statistical")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting of Python and C++."""
    session.install("ruff", "clang-format")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = [f"cpp/*.{ending}" for ending in ("cpp", "hpp", "cu", "cuh")]
    files = session.run("git", "ls-files", *sources, external=True, silent=True)
    session.run("clang-format", "--dry-run", "--Werror", *str(files).split())


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy --strict."""
    session.install(".", "mypy")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site; a warning is an error."""
    session.install(".[docs]")
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-j", "auto", "docs", "build/site")


@nox.session
def layers(session: nox.Session) -> None:
    """Check that imports respect the privacy boundary."""
    session.install(".", "import-linter")
    session.run("lint-imports")


@nox.session
def doctests(session: nox.Session) -> None:
    """Run the examples of the docstrings."""
    session.install(".[test]")
    session.run("python", "-m", "pytest", "--pyargs", "dpinfer", "--doctest-modules", "-p", "no:cacheprovider")


@nox.session
def cpp(session: nox.Session) -> None:
    """Build and run the C++ tests."""
    _cmake(session, "default")


@nox.session
@nox.parametrize("preset", ["asan-ubsan", "tsan"])
def sanitizers(session: nox.Session, preset: str) -> None:
    """Build and run the C++ tests under a sanitizer."""
    _cmake(session, preset)


@nox.session
@nox.parametrize("preset", ["asan-ubsan", "tsan"])
def smoke(session: nox.Session, preset: str) -> None:
    """Run whole fits, posteriors and studies from Python, every compiled module under a sanitizer."""
    session.install(".", "pybind11", "cmake", "ninja")
    session.run("python", "tests/sanitized_smoke.py", preset, *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Build the mechanism with deliberate bugs, and print which check of the privacy audit finds which."""
    session.install(".[test]", "pybind11", "cmake", "ninja")
    session.run("cmake", "--preset", "mutants")
    session.run("cmake", "--build", "--preset", "mutants")
    session.run("pytest", "tests/privacy/test_audit_mutants.py")
    session.run("python", "bench/privacy/audit.py", *session.posargs)


@nox.session
def tidy(session: nox.Session) -> None:
    """Compile everything under clang-tidy."""
    session.install("cmake", "ninja", "clang-tidy")
    session.run("cmake", "--preset", "tidy")
    session.run("cmake", "--build", "--preset", "tidy")


@nox.session
def cuda(session: nox.Session) -> None:
    """Compile the passes on a GPU, which needs nvcc."""
    options = ("-std=c++20", "--fmad=false", "--expt-relaxed-constexpr", "-arch=sm_80", "-Icpp")
    for source in ("mechanism/cuda/device_rows", "lab/study/cuda/device_runs"):
        session.run("nvcc", *options, "-c", f"cpp/{source}.cu", "-o", f"{session.create_tmp()}/device.o", external=True)


def _cmake(session: nox.Session, preset: str) -> None:
    session.install("cmake", "ninja")
    session.run("cmake", "--preset", preset)
    session.run("cmake", "--build", "--preset", preset)
    session.run("ctest", "--preset", preset, "-j", str(os.cpu_count() or 1))
