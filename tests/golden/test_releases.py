"""What every mechanism releases with a fixed key is, bit for bit, what it released before."""

import json

import numpy as np
import pytest

from dpinfer.testing import InsecureRNG
from tests.golden import cases
from tests.reference.plain_streams import plain_streams


@pytest.fixture(scope="module", autouse=True)
def streams_of_steps():
    """Noise of the query, as in every run outside of the tests."""


CASES, NEWTON, SUMS = cases.make_cases(), cases.make_newton(), cases.make_sums()
STORED, STORED_NEWTON = (json.loads(cases.STORED[name].read_text(encoding="utf-8")) for name in ("releases", "newton"))
FUNCTIONS = cases.elementary_functions()


def test_every_case_is_stored():
    assert set(STORED["releases"]) == set(CASES)
    assert set(STORED["sums"]) == set(SUMS)
    assert set(STORED_NEWTON["releases"]) == set(NEWTON)


@pytest.mark.parametrize(("name", "n_threads"), [(name, 1 + i % 3) for i, name in enumerate(SUMS)])
def test_sum(name, n_threads):
    assert cases.digest(SUMS[name](n_threads))["hash"] == STORED["sums"][name]


@pytest.mark.parametrize(("name", "n_threads"), [(name, 1 + i % 3) for i, name in enumerate(CASES)])
def test_release(name, n_threads):
    compare(CASES[name], STORED, name, n_threads)


@pytest.mark.parametrize(("name", "n_threads"), [(name, 1 + i % 3) for i, name in enumerate(NEWTON)])
def test_private_newton(name, n_threads):
    """A query follows from the noisy sums before it, so that the smallest change of a run shows in all later ones."""
    compare(NEWTON[name], STORED_NEWTON, name, n_threads)


def compare(run, file, name, n_threads):
    """By the byte where elementary functions have the stored bits; to 1e-9 of the numbers' size everywhere.

    The latter with noise of the steps alone: a query that differs in a last digit has other noise.
    """
    stored = file["releases"][name]
    with plain_streams():
        found = cases.digest(run(n_threads))
    assert set(found["probes"]) == set(stored["probes"])
    for array, (probe, size) in stored["probes"].items():
        assert abs(found["probes"][array][0] - probe) <= 1e-9 * size, array
        assert found["probes"][array][1] == pytest.approx(size, rel=1e-9), array
    if file["elementary functions"] == FUNCTIONS:
        assert cases.digest(run(n_threads))["hash"] == stored["hash"]


def test_the_smallest_change_is_seen():
    """The power twin: another key, and one number that is off by one unit in the last place."""
    with plain_streams():
        arrays = CASES["logistic, quadrature, fisher, split"](1)
    stored = STORED["releases"]["logistic, quadrature, fisher, split"]
    changed = {name: array.copy() for name, array in arrays.items()}
    changed["params"][1, 1] = np.nextafter(changed["params"][1, 1], np.inf)
    assert cases.digest(changed)["hash"] != cases.digest(arrays)["hash"]
    changed["params"][1, 1] += 1e-6
    assert abs(cases.digest(changed)["probes"]["params"][0] - stored["probes"]["params"][0]) > 1e-9
    assert InsecureRNG(2).take_key() != InsecureRNG(3).take_key()
