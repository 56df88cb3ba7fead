"""What secure sums take from ``cryptography`` and ``pycryptodome``: agreed and derived keys, sealed messages, streams, shares.

Every key is derived for one purpose in one exchange: its label names both.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedminimax.engines.federated.messages import Malformed

KEY = 32
"""Bytes of every key, seed and share."""
_NONCE, _HALF = 12, 16


class NotTogether(Exception):
    """Shares that are no shares of the secret that was announced."""


def private_key(raw: bytes | None = None) -> X25519PrivateKey:
    """Return a private key of X25519: a fresh one, or the one of these bytes."""
    return X25519PrivateKey.generate() if raw is None else X25519PrivateKey.from_private_bytes(raw)


def derived(secret: bytes, label: str) -> bytes:
    """Return the key that HKDF-SHA256 derives from a secret for a purpose."""
    return HKDF(SHA256(), KEY, None, label.encode()).derive(secret)


def agreed(own: X25519PrivateKey, theirs: bytes, label: str) -> bytes:
    """Return the key that two parties share for a purpose, from one's private and the other's public key."""
    try:
        return derived(own.exchange(X25519PublicKey.from_public_bytes(theirs)), label)
    except ValueError:
        raise Malformed("a public key is none") from None


def seal(key: bytes, text: bytes, label: str) -> bytes:
    """Return a message that only who has the key can read, or make, for this purpose (ChaCha20-Poly1305)."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, label.encode())


def unseal(key: bytes, sealed: bytes, label: str) -> bytes:
    """Return the message that was sealed, or raise :class:`Malformed`."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], label.encode())
    except (InvalidTag, ValueError):
        raise Malformed("a sealed share was altered, or is not for this site and exchange") from None


def stream(key: bytes, words: int) -> np.ndarray:
    """Return so many integers modulo 2^64 that look random to whoever lacks the key (AES-256 in counter mode)."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * words)), "<u8")


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return Shamir's shares of 32 bytes: any ``threshold`` of them give it back, and fewer tell nothing of it."""
    halves = [Shamir.split(threshold, count, part) for part in (secret[:_HALF], secret[_HALF:])]
    return [bytes(first[1]) + bytes(second[1]) for first, second in zip(*halves, strict=True)]


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return what as many of Shamir's shares as are needed give, by their numbers from 1 on. Of wrong ones that is nonsense."""
    try:
        return b"".join(Shamir.combine([(k, share[at : at + _HALF]) for k, share in shares.items()]) for at in (0, _HALF))
    except ValueError:
        raise NotTogether from None
