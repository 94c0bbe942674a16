"""How long the chains of private Newton posteriors go on, with chains whose errors are made up."""

from types import SimpleNamespace

import numpy as np
import pytest

from dpinfer.errors import NumericalError
from dpinfer.inference.newton.convergence import ChainLengths, draw_until_settled
from dpinfer.inference.newton.monte_carlo import MonteCarloError
from dpinfer.inference.newton.sampler import Draws
from dpinfer.inference.request import PosteriorRequest

FEW = ChainLengths.of(5)


class Chains:
    """Chains whose error is `unit` for one step of one chain, and falls with their root."""

    def __init__(self, unit):
        self.unit, self.begun, self.made = unit, [], []

    def begin(self, n_chains):
        self.begun.append(n_chains)
        self.made.append(0)
        return SimpleNamespace(warm_up=lambda n_steps: None, draw=self.draw), self.distribution

    def draw(self, n_steps, thin):
        self.made[-1] += n_steps * thin
        array = np.zeros((n_steps, self.begun[-1], 1))
        return Draws(array, array, array, array, array, np.ones(1), np.ones(1))

    def distribution(self, found):
        error = self.unit / np.sqrt(self.begun[-1] * self.made[-1])
        return sum(draws.n_steps for draws in found), MonteCarloError(np.array([error]), np.array([100.0]))

    def settle(self, lengths=FEW, **asked):
        return draw_until_settled(self.begin, PosteriorRequest(**asked), lengths)


def test_chains_stop_where_the_error_is_small():
    chains = Chains(0.03 * np.sqrt(8 * 20))
    found = chains.settle()
    assert chains.begun == [8]
    assert chains.made == [20]
    assert "more than" not in found.words


def test_more_chains_take_over_where_few_would_not_do_and_they_end_below_the_limit():
    chains = Chains(0.2 * np.sqrt(8 * 640))
    found = chains.settle()
    assert chains.begun == [8, 32]
    # Given up as soon as the error is believed; then as long as needed: 16 times 640 steps of 8 chains.
    assert chains.made[0] < 640
    assert 2560 <= chains.made[1] < 2 * 2560
    assert found.error.quantile[0] < 0.05
    assert found.distribution == found.draws.n_steps <= 640


def test_what_stays_larger_is_said_or_raised():
    for asked in ({"fallback": True}, {"check_convergence": False}):
        chains = Chains(1e3)
        assert "more than 5%, ask for more n_samples" in chains.settle(**asked).words
        assert chains.made[1] == 640 * 16
    with pytest.raises(NumericalError, match="ask for more n_samples"):
        Chains(1e3).settle(fallback=False)


@pytest.mark.parametrize(("asked", "chains", "steps", "kept"), [(100, 8, 100, 100), (40_000, 32, 39_942, 634)])
def test_a_number_of_steps_is_made_whatever_the_error(asked, chains, steps, kept):
    for unit in (1e-3, 1e3):
        found = Chains(unit)
        draws = found.settle(n_samples=asked, check_convergence=False).draws
        assert (found.begun, found.made, draws.n_steps) == ([chains], [steps], kept)
