"""Noise of the run's key and the number of the step alone: not that of the query, whose last digit decides all of it.

For comparisons with other code, and with other machines, whose elementary functions round otherwise.
"""

import contextlib

from dpinfer.lab.replays import replace_everywhere
from dpinfer.mechanism.noise_keys import noise_key, noise_step

__all__ = ["plain_streams"]


@contextlib.contextmanager
def plain_streams():
    """Draw without regard to what is asked while the block runs."""
    with (
        replace_everywhere(noise_key, lambda key, *query: key),
        replace_everywhere(noise_step, lambda key, step, n_steps, *query: step),
    ):
        yield
