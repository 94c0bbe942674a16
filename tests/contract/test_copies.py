"""What public functions return can be copied and pickled: the same values, and what was fixed stays fixed."""

import copy
import pickle
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.inference import PosteriorRequest, ReleaseFacts
from dpinfer.planning import PlanSettings
from dpinfer.testing import InsecureRNG

N = 80
WAYS = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda value: pickle.loads(pickle.dumps(value))}


def plans():
    target = {"target_epsilon": 2.0, "target_delta": 1e-3}
    widths = dpi.plan_inference(
        dpi.models.BetaBernoulli(), n_records=N, n_steps=30, sample_rate=0.2, n_simulations=1, **target
    )
    return {
        "privacy": dpi.plan_privacy(sample_rate=0.25, n_steps=12, **target),
        "linear": dpi.plan_newton(dpi.models.LinearRegression(2), n_records=N, **target),
        "logistic": dpi.plan_newton(dpi.models.LogisticRegression(2), n_records=N, **target),
        "inference": widths,
    }


def releases(plans):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(N, 2))
    binary, response = (X[:, 0] > 0).astype(float), X[:, 0] - 0.5 * X[:, 1] + rng.normal(size=N)
    common = {"n_records": N, "random_source": InsecureRNG(3)}
    sampled = common | {"plan": plans["privacy"], "n_threads": 1}
    models = dpi.models
    return {
        "trace": dpi.run_dpvi(models.LogisticRegression(2), X, binary, max_grad_norm=2.0, **sampled),
        "sites": dpi.run_dp_sep(models.ProbitRegression(2), X, binary, **sampled),
        "network": mechanism.run_network_dp_sep(models.BayesianNeuralNetwork(2, 3), X, response, **sampled),
        "linear": dpi.run_newton(
            models.LinearRegression(2), X, response, plan=plans["linear"], response_scale=1.0, **common
        ),
        "logistic": dpi.run_newton(models.LogisticRegression(2), X, binary, plan=plans["logistic"], **common),
        "statistic": dpi.run_statistic(models.BetaBernoulli(), binary, epsilon=1.0, **common),
        "no release": dpi.run_sep(models.ProbitRegression(2), X, binary, n_passes=3),
    }


def results():
    planned = plans()
    released = releases(planned)
    posteriors = {
        "trace": dpi.noise_aware_posterior(released["trace"], hessian="diagonal"),
        "sites": dpi.noise_aware_posterior(released["sites"], n_samples=20),
        "statistic": dpi.noise_aware_posterior(released["statistic"]),
    }
    trace = posteriors["trace"]
    return {
        **{f"plan, {name}": value for name, value in planned.items()},
        **{f"release, {name}": value for name, value in released.items()},
        **{f"posterior, {name}": value for name, value in posteriors.items()},
        "weights": dpi.inference.network_posterior(released["network"]),
        "guarantee": released["trace"].replace(leaks=("bounds were read",)).guarantee,
        "curve": dpi.accounting.privacy_curve(planned["privacy"].event),
        "diagnostics": trace.diagnostics,
        "summary": trace.summary(),
        "decomposition": trace.decompose(),
        "Monte Carlo error": posteriors["sites"].monte_carlo_error(),
        "request": PosteriorRequest(approximation="laplace", model=dpi.models.LogisticRegression(2)),
        "facts": ReleaseFacts.of(released["trace"]),
        "settings": PlanSettings(n_steps=5, pilot=np.ones(2)),
        "fit": dpi.fit(
            dpi.models.BetaBernoulli(), np.ones(N), epsilon=1.0, delta=1e-3, n_records=N, random_source=InsecureRNG(3)
        ),
        "run settings": mechanism.GradientArguments(max_grad_norm=2.0),
    }


@pytest.fixture(scope="module")
def originals():
    return results()


def differing(first, second, path="it"):
    """Return where two values differ, in a value, a type or in whether an array may be written to."""
    if type(first) is not type(second):
        return [f"{path}: {type(first).__name__} and {type(second).__name__}"]
    if isinstance(first, np.ndarray):
        same = first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
        fixed = first.flags.writeable or not second.flags.writeable
        return ([] if same else [path]) + ([] if fixed else [f"{path}: can be written to"])
    if is_dataclass(first):
        pairs = {item.name: (getattr(first, item.name), getattr(second, item.name)) for item in fields(first)}
        return [found for name, pair in pairs.items() for found in differing(*pair, f"{path}.{name}")]
    if isinstance(first, Mapping):
        return differing(list(first.items()), list(second.items()), path)
    if isinstance(first, (list, tuple)) and type(first) in (list, tuple):
        pairs = zip(first, second, strict=False)
        return ([] if len(first) == len(second) else [path]) + [
            found for index, pair in enumerate(pairs) for found in differing(*pair, f"{path}[{index}]")
        ]
    if isinstance(first, float) and first != first:
        return [] if second != second else [path]
    equal = first == second if type(first).__eq__ is not object.__eq__ else repr(first) == repr(second)
    return [] if equal else [path]


@pytest.mark.parametrize("way", WAYS)
def test_copies_are_the_same(originals, way):
    found = {name: differing(value, WAYS[way](value)) for name, value in originals.items()}
    assert not {name: places for name, places in found.items() if places}
    assert all(repr(WAYS[way](value)) == repr(value) for value in originals.values())


def test_the_test_above_can_fail(originals):
    posterior, release = originals["posterior, trace"], originals["release, trace"]
    other = replace(posterior.diagnostics, noise_ratio=posterior.diagnostics.noise_ratio + 1e-9)
    assert differing(posterior, replace(posterior, diagnostics=other)) == ["it.diagnostics.noise_ratio"]
    assert differing(release, release.replace(leaks=("bounds were read",))) != []
    fixed, free = np.ones(2), np.ones(2)
    fixed.flags.writeable = False
    assert differing(fixed, free) == ["it: can be written to"]
