"""The plain Gaussian against Balle and Wang's formula in 40 digits: never below, hardly above."""

import math

import mpmath
import numpy as np
import pytest
from tests.reference import accounting_oracles as oracle

from dpinfer.accounting import GaussianEvent, PoissonSampled, SelfComposed, account
from dpinfer.accounting.gaussian import gaussian_delta, gaussian_epsilon


@pytest.mark.parametrize("shift", [1e-4, 0.01, 0.3, 1.0, 5.0, 40.0])
def test_delta_is_an_upper_bound_and_tight(shift):
    for epsilon in np.concatenate([[0.0], shift * (0.5 * shift + np.array([-0.3, 0.1, 1.0, 3.0, 6.0]))]):
        if epsilon < 0.0:
            continue
        exact = oracle.gaussian_delta(shift, epsilon)
        bound = mpmath.mpf(gaussian_delta(shift, float(epsilon)))
        assert bound >= exact
        assert float(bound / exact) - 1.0 < 1e-7


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01])
@pytest.mark.parametrize(("noise", "count"), [(100.0, 1), (1.0, 1), (37.31, 100), (5.0, 10_000)])
@pytest.mark.parametrize("rate", [1.0, None])
def test_composed_epsilon_meets_delta_exactly(noise, count, delta, rate):
    event = GaussianEvent(noise) if rate is None else PoissonSampled(rate, GaussianEvent(noise))
    epsilon = account(SelfComposed(event, count), delta=delta).epsilon
    shift = mpmath.sqrt(count) / mpmath.mpf(noise)
    if epsilon == 0.0:
        assert oracle.gaussian_delta(shift, 0) <= delta
        return
    assert oracle.gaussian_delta(shift, epsilon) <= delta
    assert oracle.gaussian_delta(shift, epsilon * (1.0 - 1e-4)) > delta


def test_edges():
    assert gaussian_epsilon(1e-3, 0.5) == 0.0
    assert gaussian_delta(1.0, 1e6) == 0.0
    assert gaussian_epsilon(1e9, 1e-5) == math.inf
    assert gaussian_delta(1e200, 1.0) == 1.0
