"""ChaCha20 in plain Python (RFC 8439) and Box-Muller in mpmath on the bits that the mechanism reads."""

import struct

from mpmath import mp, mpf

_MASK = 0xFFFFFFFF
NOISE, NOISE_TIES = 1, 5


def chacha20_block(key, counter, nonce):
    """RFC 8439, section 2.3: one block of 64 bytes from a 32-byte key, a counter and a 12-byte nonce."""

    def rotate(x, n):
        return ((x << n) | (x >> (32 - n))) & _MASK

    def quarter(s, a, b, c, d):
        s[a] = (s[a] + s[b]) & _MASK
        s[d] = rotate(s[d] ^ s[a], 16)
        s[c] = (s[c] + s[d]) & _MASK
        s[b] = rotate(s[b] ^ s[c], 12)
        s[a] = (s[a] + s[b]) & _MASK
        s[d] = rotate(s[d] ^ s[a], 8)
        s[c] = (s[c] + s[d]) & _MASK
        s[b] = rotate(s[b] ^ s[c], 7)

    start = list(struct.unpack("<4I", b"expand 32-byte k") + struct.unpack("<8I", key))
    start += [counter & _MASK, *struct.unpack("<3I", nonce)]
    state = start.copy()
    for _ in range(10):
        for i in range(4):
            quarter(state, i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(state, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((a + b) & _MASK for a, b in zip(state, start, strict=True)))


def stream_block(key, domain, step, counter):
    """The block that the mechanism addresses by (domain, step, counter)."""
    return chacha20_block(key, counter, struct.pack("<IQ", domain, step))


def exact_pair(k, j):
    """sqrt(-2 log U) (cos, sin)(2 pi T) for rational U and T, at the working precision of mpmath."""
    radius = mp.sqrt(-2 * mp.log(k))
    return radius * mp.cos(2 * mp.pi * j), radius * mp.sin(2 * mp.pi * j)


def noise_pair(key, step, pair):
    """Pair `pair` of the noise of a step, from all 181 bits of either uniform."""
    words = struct.unpack("<8Q", stream_block(key, NOISE, step, pair // 4))
    extra = struct.unpack("<8Q", stream_block(key, NOISE_TIES, step, pair))
    k, j = (word >> 11 for word in words[2 * (pair % 4) : 2 * (pair % 4) + 2])
    unit = mpf(2) ** -181
    u = ((k << 128) + (extra[1] << 64) + extra[0] + 1) * unit
    t = ((j << 128) + (extra[3] << 64) + extra[2]) * unit
    return exact_pair(u, t)
