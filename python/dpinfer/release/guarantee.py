"""What a release says about its own privacy, the same for every kind of release."""

import math

from dpinfer.accounting import Adjacency
from dpinfer.errors import InsecureReleaseError

__all__ = ["guarantee_in_words", "stated_epsilon"]


def stated_epsilon(certified_epsilon: float, *, secure: bool) -> float:
    """Return the certified epsilon, or refuse when the noise came from a seeded generator.

    Raises
    ------
    InsecureReleaseError
        If `secure` is False.
    """
    if not secure:
        raise InsecureReleaseError(
            "this release is NOT PRIVATE: its noise came from a seeded generator, so it has no epsilon"
        )
    return certified_epsilon


def guarantee_in_words(certified_epsilon: float, delta: float, adjacency: Adjacency, *, secure: bool) -> str:
    """Return the guarantee as a sentence."""
    if not secure:
        return "NOT PRIVATE: the noise came from a seeded generator (for studies only)."
    if math.isinf(certified_epsilon):
        return "No privacy guarantee is claimed for this release."
    relation = {
        Adjacency.ADD_REMOVE: "adding or removing one record",
        Adjacency.ZERO_OUT: "blanking one record",
        Adjacency.REPLACE_ONE: "replacing one record",
    }[adjacency]
    return (
        f"({certified_epsilon:.4g}, {delta:.3g})-differentially private with respect to {relation}; "
        "this holds for the whole trace and for everything computed from it."
    )
