"""The exponential mechanism with integer costs: one of a public list of options, drawn exactly.

**Privacy.** Chooses an option privately; proofs in docs/derivations/unknowns.md.  No floating-point number
takes part in the draw, so its law is that of the proof (Ilvento 2020 shows faults of floating-point draws).
"""

from collections.abc import Sequence
from fractions import Fraction

from dpinfer.mechanism.discrete_laplace import KeystreamIntegers


def select_least(costs: Sequence[int], *, sensitivity: int, epsilon: float, key: bytes, stream: int) -> int:
    """Return the place of an option, drawn with probability proportional to exp(-epsilon cost / (2 sensitivity)).

    **Privacy.** epsilon-differentially private, with delta = 0, when no cost of neighbouring data sets differs by more
    than `sensitivity` (McSherry and Talwar 2007).

    Parameters
    ----------
    costs : sequence of int
        Of each option, at least one; the options themselves are public.
    sensitivity : int
        Positive.
    epsilon : float
        Positive; taken as the rational number that it is.
    key : bytes
        32 bytes, from ``RandomSource.take_key()``.
    stream : int
        Which ChaCha20 stream of the key's noise domain to read; no other draw of this key may have it.

    Notes
    -----
    Rejection: an option drawn uniformly is kept with probability exp(-epsilon (cost - least) / (2 sensitivity)), a
    Bernoulli draw by rational arithmetic (Canonne, Kamath and Steinke 2020).  How long it takes depends on the costs.

    Examples
    --------
    >>> select_least([900, 0, 700], sensitivity=1, epsilon=1.0, key=bytes(32), stream=1)
    1
    """
    source = KeystreamIntegers(key, stream)
    rate = Fraction(epsilon) / (2 * sensitivity)
    least = min(costs)
    while True:
        place = source.below(len(costs))
        if source.bernoulli_exp_any((int(costs[place]) - int(least)) * rate.numerator, rate.denominator):
            return place
