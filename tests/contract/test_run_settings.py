"""Settings objects of the functions that run a mechanism mean the same as keyword arguments."""

import inspect
from dataclasses import MISSING, InitVar, asdict, fields, is_dataclass, replace
from typing import get_type_hints

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.inference import PosteriorRequest, request
from dpinfer.lab import baselines
from dpinfer.lab.baselines import dp_em, dpvim, network_vi, sep
from dpinfer.lab.studies import baseline_runs
from dpinfer.mechanism.sites import network_dpsep
from dpinfer.mechanism.sites import settings as site_settings
from dpinfer.planning import PlanSettings
from dpinfer.planning.trace import settings
from dpinfer.recipes import gradients
from dpinfer.testing import InsecureRNG

# Settings objects and the keyword arguments that change their fields.
PAIRS = {
    gradients.GradientArguments: gradients.GradientOptions,
    site_settings.SiteArguments: site_settings.SiteOptions,
    sep.SEPArguments: sep.SEPOptions,
    mechanism.NetworkSettings: network_dpsep.NetworkOptions,
    baselines.NetworkVISettings: network_vi.NetworkVIOptions,
    baselines.EMArguments: dp_em.EMOptions,
    baselines.DPVIMArguments: dpvim.DPVIMOptions,
    PosteriorRequest: request.PosteriorOptions,
    PlanSettings: settings.PlanOptions,
    baseline_runs.GibbsSettings: baseline_runs.GibbsOptions,
}


@pytest.mark.parametrize("kind", PAIRS, ids=lambda kind: kind.__name__)
def test_keyword_arguments_are_the_fields(kind):
    assert is_dataclass(kind)
    own = {name: hint.type if isinstance(hint, InitVar) else hint for name, hint in get_type_hints(kind).items()}
    assert get_type_hints(PAIRS[kind]) == own
    documented = inspect.getdoc(kind).partition("Parameters\n")[2]
    assert all(item.name in documented for item in fields(kind))


RNG = np.random.default_rng(5)
N = 80
X = RNG.normal(size=(N, 2))
LABELS = (X[:, 0] > 0).astype(float)
RESPONSES = X[:, 0] - 0.5 * X[:, 1]
PLAN = dpi.plan_privacy(target_epsilon=2.0, target_delta=1e-3, sample_rate=0.25, n_steps=12)
NETWORK = dpi.models.BayesianNeuralNetwork(2, 3)
MIXTURE = dpi.models.GaussianMixture(2, 2)


def private(**options):
    return {"plan": PLAN, "n_records": N, "random_source": InsecureRNG(3), "n_threads": 1, **options}


def same(first, second):
    """Whether two results have the same arrays; the first of a pair is the release."""
    first, second = (value[0] if isinstance(value, tuple) else value for value in (first, second))
    arrays = {item.name for item in fields(first) if isinstance(getattr(first, item.name), np.ndarray)}
    assert arrays
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in arrays)


# Function, its records, what surrounds the run, settings, and one field to be changed.
ADAM = {"learning_rate": 1e-2, "noise_precision": 10.0, "prior_precision": 1.0, "kl_weight": 0.1}
RUNS = {
    "run_dpvi": (
        dpi.run_dpvi,
        (dpi.models.LogisticRegression(2), X, LABELS),
        private,
        mechanism.GradientArguments(max_grad_norm=2.0, loss="per_example"),
        {"max_grad_norm": 1.5},
    ),
    "run_dp_sep": (
        dpi.run_dp_sep,
        (dpi.models.ProbitRegression(2), X, LABELS),
        private,
        mechanism.SiteArguments(damping=0.2, floor=0.5),
        {"damping": 0.1},
    ),
    "run_sep": (
        dpi.run_sep,
        (dpi.models.ProbitRegression(2), X, LABELS),
        dict,
        baselines.SEPArguments(n_passes=3, damping=0.7),
        {"damping": 0.3},
    ),
    "run_network_dp_sep": (
        mechanism.run_network_dp_sep,
        (NETWORK, X, RESPONSES),
        private,
        mechanism.NetworkSettings(max_site_norm=0.3),
        {"start_seed": 2},
    ),
    "run_network_vi": (
        baselines.run_network_vi,
        (NETWORK, X, RESPONSES),
        private,
        baselines.NetworkVISettings(**ADAM, max_grad_norm=1.0),
        {"seed": 2},
    ),
    "run_dp_em": (
        baselines.run_dp_em,
        (MIXTURE, X),
        private,
        baselines.EMArguments(max_site_norm=1.0, statistics="centred"),
        {"damping": 0.5},
    ),
    "run_dpvim": (
        baselines.run_dpvim,
        (dpi.models.LogisticRegression(2), X, LABELS),
        private,
        baselines.DPVIMArguments(max_grad_norm=2.0, burn_in=0.5),
        {"max_grad_norm": 1.5},
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_settings_and_keyword_arguments_give_the_same_bits(name):
    run, records, around, settings, change = RUNS[name]
    keywords = {item.name: getattr(settings, item.name) for item in fields(settings)}
    by_settings = run(*records, **around(), settings=settings)
    assert same(by_settings, run(*records, **around(), **keywords))
    changed = run(*records, **around(), settings=settings, **change)
    assert same(changed, run(*records, **around(), settings=replace(settings, **change)))
    assert not same(changed, by_settings)


class Unread:
    """Records that cannot be looked at."""

    def __array__(self, *arguments, **options):
        raise AssertionError("the records were looked at")


@pytest.mark.parametrize("name", RUNS)
def test_wrong_settings_are_refused_by_name_before_records_are_looked_at(name):
    run, records, around, settings, _ = RUNS[name]
    unread = (records[0], *(Unread() for _ in records[1:]))
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'epochs'"):
        run(*unread, **around(), settings=settings, epochs=3)
    with pytest.raises(TypeError, match=f"settings must be a {type(settings).__name__}, got dict"):
        run(*unread, **around(), settings=asdict(settings))


@pytest.mark.parametrize("name", ["run_network_vi", "run_dp_em", "run_dpvim"])
def test_settings_without_a_default_are_asked_for_by_name(name):
    run, records, around, settings, _ = RUNS[name]
    needed = [item.name for item in fields(settings) if item.default is MISSING]
    assert needed
    with pytest.raises(TypeError, match=rf"{name}\(\) needs {', '.join(needed)}: "):
        run(*records, **around())
