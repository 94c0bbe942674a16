"""Keys, masks and sealed boxes, all by the `cryptography` package (no cipher is implemented here); shares of keys."""

import hmac
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dpinfer.errors import BackendUnavailableError, SiloError

PRIME = 2**256 - 189  # the largest prime below 2**256: format
try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as missing:
    raise BackendUnavailableError("silos need cryptography: pip install 'dpinfer[silos]'") from missing

KEY_BYTES = 32  # 256 bits
_NONCE = bytes(12)  # a key serves one message or one mask: format
Words = npt.NDArray[np.uint64]


def derived(key: bytes, *labels: str | int | bytes) -> bytes:
    """Return a key for one purpose, named by labels, from another."""
    parts = [label if isinstance(label, bytes) else str(label).encode() for label in labels]
    info = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=b"dpinfer silos", info=info).derive(key)


def public_key(private: bytes) -> bytes:
    """Return the X25519 public key of a private one."""
    return loaded(private).public_key().public_bytes_raw()


def loaded(private: bytes) -> X25519PrivateKey:
    """Return an X25519 key, made ready once for many agreements."""
    return X25519PrivateKey.from_private_bytes(private)


def agreed(private: X25519PrivateKey, public: bytes, *labels: str | int | bytes) -> bytes:
    """Return the key that only the owners of two X25519 keys know, for one purpose.

    Raises SiloError if the public key is none.
    """
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SiloError("a public key is not one of X25519") from None
    return derived(shared, *labels)


def mask(key: bytes, length: int) -> Words:
    """Return words that are uniform for everybody without the key: ChaCha20's keystream."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * length))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def sealed(key: bytes, content: bytes, context: bytes) -> bytes:
    """Return encrypted, authenticated content of a key that seals nothing else."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, content, context)


def opened(key: bytes, box: bytes, context: bytes) -> bytes:
    """Return the content of a box.

    Raises SiloError if it was not sealed with this key in this context.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, context)
    except InvalidTag:
        raise SiloError("a sealed box was changed, or sealed by a site with another list of sites") from None


def tag(key: bytes, sender: int, about: bytes) -> bytes:
    """Return a proof for the owner of the other key that `sender` got this question: HMAC-SHA256."""
    return hmac.digest(key, sender.to_bytes(4, "little") + about, "sha256")


def own_mask(seed: bytes, about: bytes, length: int) -> Words:
    """Return a site's own mask, of the seed of a pass; another question, `about`, has another mask."""
    return mask(derived(seed, "own", about), length)


def pair_mask(private: X25519PrivateKey, public: bytes, *, own: int, other: int, about: bytes, length: int) -> Words:
    """Return the mask that site `own` adds to its vector for site `other`, which adds its negative.

    The keys are those of this pass, one of either site.  `about` is the site's question: masks of sites with different
    questions do not cancel.
    """
    words = mask(agreed(private, public, "pair", about, min(own, other), max(own, other)), length)
    return words if own < other else np.uint64(0) - words


class SiteKeys:
    """The secrets of a site in one session, all derived from a fresh key of this session alone."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.box_private = derived(key, "box")

    def mask_private(self, index: int) -> bytes:
        """Return the X25519 private key of a pass, whose shares the other sites hold."""
        return self._secret("mask", index)

    def own_seed(self, index: int) -> bytes:
        """Return the key of the mask that is the site's own, whose shares the other sites hold."""
        return self._secret("own", index)

    def noise_key(self, index: int, query: bytes) -> bytes:
        """Return the key of the noise of a pass; another question has another."""
        return derived(self._key, "noise", index, query)

    def coefficients(self, what: str, index: int, size: int) -> list[int]:
        """Return the coefficients that a secret of a pass is shared with."""
        words = mask(derived(self._key, "share", what, index), 8 * size).tobytes()
        return [int.from_bytes(words[first : first + 64], "little") % PRIME for first in range(0, 64 * size, 64)]

    def _secret(self, what: str, index: int) -> bytes:
        return to_key(to_secret(derived(self._key, what, index)) % PRIME)


def to_secret(data: bytes) -> int:
    """Return the number that is shared in place of a key."""
    return int.from_bytes(data, "little")


def to_key(secret: int) -> bytes:
    """Return the key of a number that was shared."""
    return secret.to_bytes(KEY_BYTES, "little")


def joined(numbers: Sequence[int]) -> bytes:
    """Return numbers below PRIME as bytes."""
    return b"".join(map(to_key, numbers))


def parted(data: bytes) -> list[int]:
    """Return the numbers of :func:`joined`."""
    return [to_secret(data[at : at + KEY_BYTES]) for at in range(0, len(data), KEY_BYTES)]


def split(secret: int, coefficients: Sequence[int], n_shares: int) -> list[int]:
    """Return the shares 1, ..., n: values of the polynomial secret + coefficients[0] x + ... modulo PRIME.

    The secret is in [0, PRIME); the coefficients are uniform, secret, and one fewer than the threshold.
    """
    shares = []
    for place in range(1, n_shares + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * place % PRIME
        shares.append((value + secret) % PRIME)
    return shares


def weights_at_zero(places: Sequence[int]) -> list[int]:
    """Return Lagrange's weights at zero for the shares at these places, which are distinct and positive."""
    weights = []
    for own in places:
        above = below = 1
        for other in places:
            if other != own:
                above, below = above * other % PRIME, below * (other - own) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def combine(shares: Mapping[int, int], weights: Sequence[int] | None = None) -> int:
    """Return the secret of as many shares as its threshold, by place; many secrets may share their weights at zero."""
    found = weights_at_zero(list(shares)) if weights is None else weights
    return sum(weight * share for weight, share in zip(found, shares.values(), strict=True)) % PRIME
