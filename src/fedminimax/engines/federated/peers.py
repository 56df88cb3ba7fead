"""What neighbours send each other, sealed: whoever carries it can neither read it nor change it.

A site makes a pair of keys for a run (X25519). Its own and a neighbour's give both the same secret, of which HKDF (SHA-256)
makes a key for every message, and ChaCha20-Poly1305 seals the message with it. Run, round, exchange, sender and receiver go
into both: a message opens at one place and in one exchange. An :class:`Identity` signs the keys where there is one: without it
whoever carries them could put its own in their place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedminimax.engines.federated.gossip_messages import KEY, PublicKey, Unsealed
from fedminimax.engines.federated.messages import Malformed

_NONCE, _MOST = 12, 2**14


class Identity(Protocol):
    """Signs a site's keys, and knows whose signature another's must be."""

    def sign(self, statement: bytes) -> tuple[bytes, bytes]:
        """Return the site's certificate, and its signature of a statement."""

    def holds(self, number: int, statement: bytes, certificate: bytes, signature: bytes) -> bool:
        """Tell whether the site of that number has signed a statement."""


class Seals:
    """A site's keys of a run: its own, and those of its neighbours.

    Args:
        run: the name of the run.
        number: the site's.
        private: its private key; None: a new one.
        identity: signs; None: keys are taken as they come.
    """

    def __init__(self, run: str, number: int, private: bytes | None = None, identity: Identity | None = None):
        self._run, self._number, self._identity = run, number, identity
        self._key = X25519PrivateKey.generate() if private is None else X25519PrivateKey.from_private_bytes(private)
        self._own = self._key.public_key().public_bytes_raw()
        self._peers: dict[int, bytes] = {}

    @property
    def private(self) -> bytes:
        """The private key, which stays at the site."""
        return self._key.private_bytes_raw()

    @property
    def peers(self) -> dict[int, bytes]:
        """The neighbours' public keys, by number."""
        return dict(self._peers)

    def public(self) -> PublicKey:
        """Return what the neighbours are told."""
        signed = (b"", b"") if self._identity is None else self._identity.sign(self._statement(self._number, self._own))
        return PublicKey(self._number, *(np.frombuffer(part, np.uint8) for part in (self._own, *signed)))

    def meet(self, told: Mapping[int, PublicKey], known: Mapping[int, bytes]) -> None:
        """Take the neighbours' keys, or raise :class:`Unsealed`: a key that was another before is not taken.

        Args:
            told: the keys, by number.
            known: those that were taken before in this run.
        """
        for number, said in told.items():
            key, certificate, signature = (_bytes(part) for part in (said.key, said.certificate, said.signature))
            if said.number != number or len(key) != KEY or known.get(number, key) != key:
                raise Unsealed
            signed = (number, self._statement(number, key), certificate, signature)
            if self._identity is not None and not self._identity.holds(*signed):
                raise Unsealed
            self._peers[number] = key

    def seal(self, receiver: int, turn: str, mix: int, plain: bytes) -> np.ndarray:
        """Return a message for a neighbour, sealed.

        Args:
            receiver: the neighbour's number.
            turn: the round.
            mix: which exchange of the round.
            plain: the message.
        """
        place, nonce = self._place(turn, mix, self._number, receiver), os.urandom(_NONCE)
        sealed = ChaCha20Poly1305(self._secret(receiver, place)).encrypt(nonce, plain, place)
        return np.frombuffer(nonce + sealed, np.uint8)

    def open(self, sender: int, turn: str, mix: int, sealed: np.ndarray) -> bytes:
        """Return a neighbour's message, or raise :class:`Unsealed` if it is not that which it sealed for this place."""
        place, box = self._place(turn, mix, sender, self._number), sealed.tobytes()
        try:
            return ChaCha20Poly1305(self._secret(sender, place)).decrypt(box[:_NONCE], box[_NONCE:], place)
        except (InvalidTag, ValueError):
            raise Unsealed from None

    def _secret(self, peer: int, place: bytes) -> bytes:
        if peer not in self._peers:
            raise Unsealed
        shared = self._key.exchange(X25519PublicKey.from_public_bytes(self._peers[peer]))
        return HKDF(SHA256(), KEY, salt=b"".join(sorted((self._own, self._peers[peer]))), info=place).derive(shared)

    def _place(self, turn: str, mix: int, sender: int, receiver: int) -> bytes:
        return json.dumps(["fedminimax between neighbours", self._run, turn, mix, sender, receiver]).encode()

    def _statement(self, number: int, key: bytes) -> bytes:
        return json.dumps(["fedminimax key of a run", self._run, number, key.hex()]).encode()


def _bytes(part: Any) -> bytes:
    if not isinstance(part, np.ndarray) or part.dtype != np.uint8 or part.ndim != 1 or part.size > _MOST:
        raise Malformed("a key is none")
    return part.tobytes()
