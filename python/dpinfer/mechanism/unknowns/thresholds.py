"""Counts of unknown labels: those above a threshold, with their names.

**Privacy.** Releases a name if enough records have it; proofs in docs/derivations/unknowns.md.
"""

import hmac
import math
from collections.abc import Mapping
from fractions import Fraction

from dpinfer.mechanism.discrete_laplace import discrete_laplace


def least_threshold(epsilon: float, delta: float, *, replace: bool) -> int:
    """Return the least threshold for which :func:`thresholded_counts` keeps its promise.

    **Privacy.** Reads no records.

    Parameters
    ----------
    epsilon : float
        Positive.
    delta : float
        In (0, 1).
    replace : bool
        Whether neighbours differ in one record's label rather than in one record's presence.

    Notes
    -----
    A label that one record alone has passes t with probability a**(t - 1) / (1 + a), a = exp(-1 / scale).

    Examples
    --------
    >>> least_threshold(1.0, 1e-6, replace=False)
    15
    """
    moves = 2 if replace else 1
    rate = epsilon / moves
    exponent = (math.log(moves / delta) - math.log1p(math.exp(-rate))) / rate
    # More than the rounding of these few operations.
    return max(2, 1 + math.ceil(exponent * (1.0 + 1e-12) + 1e-9))


def thresholded_counts(
    counts: Mapping[str, int], *, epsilon: float, threshold: int, replace: bool, key: bytes, column: str
) -> dict[str, int]:
    """Return the labels whose count passes a threshold after discrete Laplace noise, with their noisy counts.

    **Privacy.** (epsilon, delta)-differentially private for every delta with ``threshold >=
    least_threshold(epsilon, delta, replace=replace)``, when each record has at most one label.  The noise has scale
    1 / epsilon, or 2 / epsilon where a record may be replaced.  A label that no record has is not looked at.

    Parameters
    ----------
    counts : mapping from label to int
        Of the labels that occur, each at least 1.
    epsilon : float
        Positive.
    threshold : int
        At least 2.
    replace : bool
        As of :func:`least_threshold`.
    key : bytes
        32 bytes, from ``RandomSource.take_key()``.
    column : str
        Name of the column, one for each call with this key.

    Returns
    -------
    dict from label to int
        In descending order of noisy counts, then by name.

    Notes
    -----
    The noise of a label is drawn from a key of its own, HMAC-SHA-256 of column and label: whichever other labels there
    are, it is the same.
    """
    scale = Fraction(2 if replace else 1) / Fraction(epsilon)
    noisy = {label: count + discrete_laplace(_key(key, column, label), scale, 1)[0] for label, count in counts.items()}
    passed = [(label, count) for label, count in noisy.items() if count >= threshold]
    return dict(sorted(passed, key=lambda item: (-item[1], item[0])))


def _key(key: bytes, column: str, label: str) -> bytes:
    name, text = (part.encode("utf-8", "surrogatepass") for part in (column, label))
    return hmac.digest(key, b"dpinfer label %d " % len(name) + name + text, "sha256")
