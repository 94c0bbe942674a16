"""Every test with other random numbers: `pytest --seed-offset 1001 tests/unit/inference tests/statistical`.

A test that fails with other seeds has a tolerance that its Monte Carlo error does not support, or hides a fault.
"""

import functools

import numpy as np

from dpinfer.mechanism.noise_keys import InsecureRNG

__all__ = ["add_options", "leave_out_pinned", "move_seeds"]


def add_options(parser):
    """Declare what the command line may ask for."""
    parser.addoption("--seed-offset", type=int, default=0, help="added to every seed, of tests and library alike")
    parser.addoption("--own-streams", action="store_true", help="noise of each query, not of key and step alone")


def move_seeds(offset):
    """Add `offset` to the seeds of NumPy's generators and of insecure noise, for the rest of the process."""
    if not offset:
        return
    generator, take_key = np.random.default_rng, InsecureRNG.take_key

    def moved_generator(seed=None):
        if isinstance(seed, (int, np.integer)):
            return generator(int(seed) + offset)
        if isinstance(seed, (list, tuple)) and seed:
            return generator([int(seed[0]) + offset, *seed[1:]])
        return generator(seed)

    @functools.wraps(take_key)
    def moved_key(self):
        moved = InsecureRNG(self._seed + offset)
        moved._taken, self._taken = self._taken, self._taken + 1
        return take_key(moved)

    np.random.default_rng = moved_generator
    InsecureRNG.take_key = moved_key


def leave_out_pinned(config, items):
    """With other seeds, leave out tests marked `pinned`, which compare bits or texts that were written down."""
    if config.option.seed_offset or config.option.own_streams:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("pinned")])
        items[:] = [item for item in items if not item.get_closest_marker("pinned")]
