"""Random numbers of a study: a separate stream for each purpose and run, for any chunks, threads or machines."""

import numpy as np

__all__ = ["REFERENCES", "RELEASES", "SAMPLERS", "run_generator", "run_seed"]

# First element of a spawn key; a study's own recipes may use any smaller number for theirs.
REFERENCES = 2**16
RELEASES = REFERENCES + 1  # numbers of streams
SAMPLERS = REFERENCES + 2  # numbers of streams


def run_generator(seed: int, stream: int, run: int) -> np.random.Generator:
    """Return the generator of one run for one purpose.

    **Privacy.** For simulated data only.

    Parameters
    ----------
    seed : int
        Of the study.
    stream : int
        The purpose.
    run : int
        Index of the run.

    Returns
    -------
    numpy.random.Generator

    Examples
    --------
    >>> a, b = run_generator(1, 0, 7), run_generator(1, 0, 7)
    >>> bool(a.random() == b.random() != run_generator(1, 1, 7).random())
    True
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, run)))


def run_seed(seed: int, stream: int, run: int) -> int:
    """Return a 128-bit seed of one run for one purpose.

    **Privacy.** For simulated data only.

    Parameters
    ----------
    seed, stream, run : int
        As for :func:`run_generator`.

    Returns
    -------
    int
    """
    words = np.random.SeedSequence(seed, spawn_key=(stream, run)).generate_state(4, np.uint32)
    return int.from_bytes(words.tobytes(), "little")
