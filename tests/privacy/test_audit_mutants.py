"""Each classic bug, compiled into a test-only module, turns the audit red; the library's own module holds no switch.

The module is built by ``cmake -DDPINFER_MUTANTS=ON`` (CONTRIBUTING.md); its tests are skipped where it has not been.
"""

import importlib.util
import os
from pathlib import Path

import pytest

import dpinfer as dpi
from dpinfer.auditing import audit, audit_one_run
from dpinfer.mechanism import _native
from dpinfer.mechanism.sums import gradients, sites
from dpinfer.testing import InsecureRNG

ROOT = Path(__file__).parents[2]
MUTANTS = (
    "noise_halved",
    "noise_short_by_a_tenth",
    "variance_as_stddev",
    "noise_not_scaled_by_norm",
    "noise_added_per_thread",
    "noise_reused",
    "mask_reused",
    "shuffled_batches",
    "clip_after_sum",
    "scale_after_clip",
    "unclipped_prior_share",
    "divided_by_batch_size",
    "norm_from_data",
)

# Bugs that a named kind of check has to see, whatever else does.
SEEN_BY = {"norm_from_data": "noise", "divided_by_batch_size": "neighbours", "shuffled_batches": "sampling"}


def find_module():
    given = os.environ.get("DPINFER_MUTANTS_MODULE")
    if given:
        return Path(given)
    found = sorted(ROOT.glob("build/*/mutants/_native*"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


@pytest.fixture(scope="module")
def mutants():
    path = find_module()
    if path is None:
        pytest.skip("the module of mutants has not been built")
    spec = importlib.util.spec_from_file_location("_native", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    module.activate_mutant("none")


@pytest.fixture
def with_mutants(mutants, monkeypatch):
    """The library's sessions around the kernels of the module of mutants."""
    for module in (gradients, sites):
        monkeypatch.setattr(module, "_native", mutants)
    return mutants


def test_the_library_holds_no_switch():
    """Neither a function to throw one, nor the names or code of the mutants, is in the compiled module."""
    assert not [name for name in dir(_native) if "mutant" in name.lower()]
    content = Path(_native.__file__).read_bytes()
    for name in ("activate_mutant", "mutants", *MUTANTS):
        assert name.encode() not in content, name


def test_the_search_above_can_find(mutants):
    """The power twin: the same search finds every switch in the module that has them."""
    content = Path(mutants.__file__).read_bytes()
    assert all(name.encode() in content for name in MUTANTS)
    assert mutants.mutants == MUTANTS


def test_the_module_of_mutants_is_right_when_no_switch_is_on(with_mutants):
    with_mutants.activate_mutant("none")
    assert audit(1000, random_source=InsecureRNG(1)).passed


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_found(with_mutants, name):
    """At 2 10**4 trials and a false-positive rate of 1e-3 for the whole audit."""
    with_mutants.activate_mutant(name)
    result = audit(20_000, fail_fast=True, random_source=InsecureRNG(1))
    assert not result.passed, repr(result)


@pytest.mark.parametrize("name", SEEN_BY)
def test_the_named_check_finds_it(with_mutants, name):
    """At a false-positive rate of 1e-3 for the whole audit."""
    with_mutants.activate_mutant(name)
    found = {check.kind for check in audit(1000, random_source=InsecureRNG(1)).failures}
    assert SEEN_BY[name] in found


@pytest.mark.parametrize("mechanism", ["dpvi", "dp_sep", "dp_sep_network"])
def test_one_run_finds_gross_mutants(with_mutants, mechanism):
    """End to end, with noise that forgets the norm, 16, or takes its root.  Finer bugs are for the audit in parts."""
    plan = dpi.plan_privacy(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.5, n_steps=20)
    for name in ("none", "noise_not_scaled_by_norm", "variance_as_stddev"):
        with_mutants.activate_mutant(name)
        found = audit_one_run(plan, mechanism=mechanism, n_canaries=600, random_source=InsecureRNG(1))
        assert found.passed == (name == "none"), repr(found)


def test_unknown_switches_are_refused(mutants):
    with pytest.raises(ValueError, match="no mutant"):
        mutants.activate_mutant("all")
