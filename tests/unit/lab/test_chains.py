"""Many chains at once, on a density whose quantiles are known."""

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("jax")

from dpinfer.lab.comparison.chains import hamiltonian_draws


def _density(x, scale):
    """Of two normal variables, of spreads 1 and `scale`."""
    return -0.5 * x[:, 0] ** 2 - 0.5 * (x[:, 1] / scale) ** 2


def test_quantiles_of_normal_laws_from_scattered_starts() -> None:
    rng = np.random.default_rng(3)
    draws, moved = hamiltonian_draws(_density, (20.0,), rng.normal(5.0, 30.0, size=(64, 2)), 300)
    assert draws.shape == (300, 64, 2)
    assert moved.min() > 0.5
    for column, scale in ((0, 1.0), (1, 20.0)):
        ends = np.quantile(draws[..., column], [0.05, 0.5, 0.95])
        # 64 chains of 300 draws: a standard error of at most 0.04 with one in five of them independent.
        np.testing.assert_allclose(ends / scale, stats.norm.ppf([0.05, 0.5, 0.95]), atol=0.15)
