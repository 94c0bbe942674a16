"""The replay audit's own judgements, on tapes that are made up."""

from fractions import Fraction

from dpinfer.lab.replays import NoisedSum
from dpinfer.lab.replays.audit import _law
from dpinfer.lab.replays.tape import Tape
from dpinfer.mechanism.discrete_laplace import discrete_laplace


def laplace_tape(noise, sensitivity, epsilon=1.0):
    """A tape of one Laplace sum with this noise, in lattice steps."""
    noise = tuple(int(value) for value in noise)
    own = NoisedSum("sum", (b"", 0), ("laplace", epsilon), (0,) * len(noise), noise, Fraction(sensitivity), 1, noise)
    return Tape(sums=[own])


def test_noise_of_counts_is_judged_on_their_lattice():
    """Laplace noise of scale 1 is 0 nearly every second time: a few zeros are no finding, as they are on a fine one."""
    assert _law(laplace_tape([0, 0, 0], 1)) == []
    assert _law(laplace_tape([0, 0, 0], 2**30)) != []
    assert _law(laplace_tape([60, -60, 60], 1)) != []
    assert _law(laplace_tape([0] * 400, 8)) != []
    draws = discrete_laplace(bytes(32), Fraction(1), 300)
    assert _law(laplace_tape(draws, 1)) == []
    assert _law(laplace_tape(draws, 8)) != []
