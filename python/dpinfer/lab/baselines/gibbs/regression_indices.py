"""Products of features and response in a release of regression statistics, and their order."""

from functools import cache
from itertools import combinations_with_replacement

__all__ = ["moment_indices", "statistic_indices"]


@cache
def statistic_indices(n_features: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs (i, j) of factors of each unique released entry of S.

    Factor `n_features` is the constant 1 of the bias and factor ``n_features + 1`` is y.  First the upper triangle of
    X'X without the known entry N, then X'y, then y'y.

    **Privacy.** Reads no records.
    """
    pairs = list(combinations_with_replacement(range(n_features + 1), 2))[:-1]
    response = n_features + 1
    return (*pairs, *((index, response) for index in range(n_features + 2)))


@cache
def moment_indices(n_features: int) -> tuple[tuple[int, int, int, int], ...]:
    """Return the four factors of each unique third and fourth moment of the features.

    Index `n_features` is the constant 1, at most once: lower moments are in S already.

    **Privacy.** Reads no records.
    """
    fourth = combinations_with_replacement(range(n_features + 1), 4)
    return tuple(index for index in fourth if index[2] < n_features)
