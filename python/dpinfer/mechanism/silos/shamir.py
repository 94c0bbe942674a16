"""Shares of a secret, which a threshold of them restores and fewer do not reveal (Shamir 1979)."""

from collections.abc import Mapping, Sequence

# The largest prime below 2**256.
PRIME = 2**256 - 189


def split(secret: int, coefficients: Sequence[int], n_shares: int) -> list[int]:
    """Return the shares 1, ..., n: values of the polynomial secret + coefficients[0] x + ... modulo PRIME.

    Parameters
    ----------
    secret : int
        In [0, PRIME).
    coefficients : sequence of int
        Uniform, secret, one fewer than the threshold.
    """
    shares = []
    for place in range(1, n_shares + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * place % PRIME
        shares.append((value + secret) % PRIME)
    return shares


def weights_at_zero(places: Sequence[int]) -> list[int]:
    """Return Lagrange's weights at zero for the shares at these places.

    Parameters
    ----------
    places : sequence of int
        Distinct, positive.
    """
    weights = []
    for own in places:
        above = below = 1
        for other in places:
            if other != own:
                above, below = above * other % PRIME, below * (other - own) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def combine(shares: Mapping[int, int], weights: Sequence[int] | None = None) -> int:
    """Return the secret of as many shares as its threshold, by place.

    Parameters
    ----------
    weights : sequence of int, optional
        Those of :func:`weights_at_zero` for these places, where many secrets have the same.
    """
    found = weights_at_zero(list(shares)) if weights is None else weights
    return sum(weight * share for weight, share in zip(found, shares.values(), strict=True)) % PRIME
