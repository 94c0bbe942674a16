"""Models of one's own whose code asks another question where no made-up record is, and cannot be read, or can."""

import os
import types

import numpy as np

import dpinfer as dpi
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.testing import InsecureRNG

N = 200
rng = np.random.default_rng(1)
X = rng.normal(size=(N, 2))
X[::50, 0] = 60.0
y = (rng.random(N) < 0.5).astype(np.float64)
PASSES = {"localise": (0.1,) * 3, "slope": (0.2,), "measure": (0.2,) * 2}


class StopError(Exception):
    """An interrupt between two steps."""


def stop_at_two(done, total):
    if done == 2:
        raise StopError


def made(factor):
    """A logistic regression whose score has a factor, given by a function, at records that are far out."""

    def gradient(theta, X, y):
        residual = y - 1.0 / (1.0 + np.exp(-np.sum(X * theta, axis=1)))
        return X * np.where(np.abs(X[:, 0]) > 50.0, factor() * residual, residual)[:, None]

    def draw(theta, X, u):
        return (u[:, 0] < 1.0 / (1.0 + np.exp(-np.sum(X * theta, axis=1)))).astype(float)

    return dpi.models.from_gradient(gradient, 2, n_features=2, response="binary", sampler=draw, name="own")


def written(number):
    return made(lambda: number)


def environment(folder):
    os.environ["DPINFER_T"] = "1.0"
    model = made(lambda: float(os.environ["DPINFER_T"]))
    return model, model, lambda which: os.environ.__setitem__("DPINFER_T", ["1.0", "-1.0"][which])


def a_file(folder):
    path = folder / "factor"
    path.write_text("1.0")
    model = made(lambda: float(path.read_text()))
    return model, model, lambda which: path.write_text(["1.0", "-1.0"][which])


def names_of_globals(folder):
    names = {"__name__": "nowhere", "T": 1.0}
    exec("def factor():\n    return globals()['T']", names)
    model = made(names["factor"])
    return model, model, lambda which: names.__setitem__("T", [1.0, -1.0][which])


def a_ufunc(folder):
    def model(number):
        function = np.frompyfunc(lambda one: number * one, 1, 1)
        return made(lambda: float(function(1.0)))

    return model(1.0), model(-1.0), lambda which: None


def a_view(folder):
    def model(number):
        view = memoryview(np.array([number]))
        return made(lambda: view[0])

    return model(1.0), model(-1.0), lambda which: None


def a_module(folder):
    modules = [types.ModuleType("users_settings")]
    modules[0].T = 1.0
    model = made(lambda: modules[0].T)
    return model, model, lambda which: setattr(modules[0], "T", [1.0, -1.0][which])


KINDS = {
    "environment": environment, "file": a_file, "globals()": names_of_globals, "frompyfunc": a_ufunc,
    "what cannot be pickled": a_view, "module in a list": a_module,
}  # fmt: skip


def newton(model, place, *, stop=False):
    return dpi.run_newton(
        model, X, y, plan=NewtonPlan.from_noise_multiplier(2.0, PASSES, 1e-5), n_records=N, checkpoint=place,
        random_source=InsecureRNG(1), progress=stop_at_two if stop else False,
    )  # fmt: skip


def trace(model, place, *, stop=False):
    return dpi.run_dpvi(
        model, X, y, plan=dpi.PrivacyPlan.from_noise_multiplier(2.0, 0.5, 5, 1e-5), n_records=N, checkpoint=place,
        max_grad_norm=1.0, gradient="aligned", random_source=InsecureRNG(1), progress=stop_at_two if stop else False,
    )  # fmt: skip


RUNS = {"run_newton": newton, "run_dpvi": trace}


def sums_of(release):
    names = [name for name in ("noisy_gradients", "score", "scores", "information") if hasattr(release, name)]
    assert names
    return [np.asarray(getattr(release, name)).tobytes() for name in names]
