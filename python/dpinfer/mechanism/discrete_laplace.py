"""Laplace noise on an integer lattice: exact sampling, and the mechanism that adds it to integer sums.

**Privacy.** The noise of a pure epsilon release.  No floating-point number takes part in drawing it, so its law is the
one of the proof and no low bits leak (Mironov 2012); see docs/derivations/baselines.md.
"""

from collections.abc import Sequence
from fractions import Fraction

from dpinfer.accounting.decimals import decimal_of
from dpinfer.mechanism import _native

_NOISE_DOMAIN = 1  # number of the generator's domain for noise
_BLOCKS_PER_CALL = 256  # speed only


class KeystreamIntegers:
    """Uniform integers of any size from one ChaCha20 stream of the noise domain, and draws based on them."""

    def __init__(self, key: bytes, stream: int) -> None:
        # A stream is read from its start: it serves one object.
        self._key, self._stream = key, stream
        self._counter = 0
        self._buffer = b""
        self._used = 0

    def _take(self, count: int) -> bytes:
        while len(self._buffer) - self._used < count:
            fresh = _native.keystream(self._key, _NOISE_DOMAIN, self._stream, self._counter, _BLOCKS_PER_CALL)
            self._counter += _BLOCKS_PER_CALL
            self._buffer = self._buffer[self._used :] + fresh
            self._used = 0
        start = self._used
        self._used += count
        return self._buffer[start : self._used]

    def below(self, bound: int) -> int:
        """Return an integer uniform on {0, ..., bound - 1}, by rejection."""
        bits = (bound - 1).bit_length()
        size, excess = (bits + 7) // 8, -bits % 8
        while True:
            value = int.from_bytes(self._take(size), "little") >> excess
            if value < bound:
                return value

    def bernoulli_exp(self, numerator: int, denominator: int) -> bool:
        """Return True with probability exp(-numerator / denominator), for a ratio in [0, 1]."""
        trial = 1
        while self.below(denominator * trial) < numerator:
            trial += 1
        return trial % 2 == 1

    def geometric(self, top: int, bottom: int) -> int:
        """Return k with probability proportional to exp(-k bottom / top), k at least 0."""
        while True:
            remainder = self.below(top)
            if self.bernoulli_exp(remainder, top):
                break
        whole = 0
        while self.bernoulli_exp(1, 1):
            whole += 1
        return (remainder + top * whole) // bottom

    def bernoulli_exp_any(self, numerator: int, denominator: int) -> bool:
        """Return True with probability exp(-numerator / denominator), for any ratio that is not negative."""
        whole, rest = divmod(numerator, denominator)
        return all(self.bernoulli_exp(1, 1) for _ in range(whole)) and self.bernoulli_exp(rest, denominator)


def discrete_laplace(key: bytes, scale: Fraction, size: int, *, stream: int = 0) -> list[int]:
    """Draw `size` times from the law P(k) proportional to exp(-|k| / scale) on the integers, exactly.

    **Privacy.** Reads no records.  The draws are private noise as long as nobody knows the key, 32 bytes of a
    ``RandomSource``, and a key serves each `stream` (of ChaCha20, in the noise domain) once.

    Notes
    -----
    Canonne, Kamath and Steinke (2020), Algorithms 1 and 2: rational arithmetic on Python integers only.  The number of
    bytes used, hence the running time, depends on the noise.
    """
    source = KeystreamIntegers(key, stream)
    top, bottom = scale.numerator, scale.denominator
    draws: list[int] = []
    while len(draws) < size:
        magnitude = source.geometric(top, bottom)
        negative = source.below(2) == 1
        if negative and magnitude == 0:
            continue
        draws.append(-magnitude if negative else magnitude)
    return draws


def laplace_share(key: bytes, scale: Fraction, size: int, *, shares: int) -> list[int]:
    """Draw shares of discrete Laplace noise: `shares` independent ones sum to that law, and more to that and more.

    **Privacy.** Reads no records.  As :func:`discrete_laplace`; the scale is that of the sum.

    Notes
    -----
    A share is the difference of two negative binomials of shape r = 1 / shares: the law is infinitely divisible.  Each
    is drawn by rejection from a geometric k, kept with probability (i - 1 + r) / i for each i = 1, ..., k: rational.
    Proof: docs/derivations/silos.md.
    """
    source = KeystreamIntegers(key, 0)

    def kept(value: int) -> bool:
        steps = range(1, value + 1)
        return shares == 1 or all(source.below(shares * step) <= shares * (step - 1) for step in steps)

    def negative_binomial() -> int:
        while True:
            value = source.geometric(scale.numerator, scale.denominator)
            if kept(value):
                return value

    return [negative_binomial() - negative_binomial() for _ in range(size)]


def laplace_mechanism(
    totals: Sequence[int], *, l1_sensitivity: int, epsilon: float, key: bytes, stream: int = 0
) -> list[int]:
    """Add to each total, in lattice steps, discrete Laplace noise of scale ``l1_sensitivity / epsilon``.

    **Privacy.** epsilon-differentially private, with delta = 0, when neighbouring data sets' totals differ by at most
    `l1_sensitivity` in the L1 norm: the ratio of the two densities at any point is at most
    ``exp(epsilon * distance / l1_sensitivity)`` (Ghosh, Roughgarden and Sundararajan 2012), and the scale is the exact
    rational number of epsilon's decimal.  `key` and `stream` are those of :func:`discrete_laplace`.
    """
    noise = discrete_laplace(key, l1_sensitivity / decimal_of(epsilon), len(totals), stream=stream)
    return [int(total) + extra for total, extra in zip(totals, noise, strict=True)]
