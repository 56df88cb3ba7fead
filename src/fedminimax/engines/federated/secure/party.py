"""A site's part of one secure sum: its keys, its shares, its masks, and which of two secrets it tells of each other site."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from fedminimax.engines.federated.messages import ACCUSES, REFUSES, Malformed, Withheld
from fedminimax.engines.federated.secure import primitives
from fedminimax.engines.federated.secure.fixed_point import WORD
from fedminimax.engines.federated.secure.primitives import KEY
from fedminimax.engines.federated.secure.settings import Secure

SEALED = 12 + 2 * KEY + 16
"""Bytes of two shares, sealed: nonce, text, tag."""


class Announced(NamedTuple):
    """What a site announces for one sum.

    Attributes:
        cipher: the public key by which it is sent shares.
        mask: the public key that pairs of masks come from.
        seed: what its seed can be checked against.
    """

    cipher: bytes
    mask: bytes
    seed: bytes


class Told(NamedTuple):
    """The shares that a site tells when the masks are taken off: of each other site one of two, never both.

    Attributes:
        seeds: of those whose vectors are in the sum, the share of the seed.
        keys: of those whose vectors are not, the share of the mask's private key.
    """

    seeds: dict[int, bytes]
    keys: dict[int, bytes]


class Party:
    """A site in one secure sum, from its keys to the shares that it tells.

    The sum is that of one attempt at an exchange; its name is in every derived key and in every sealed share, so that nothing
    of another can take its place. The secrets are in memory only: a site that is started again has none to tell.

    Args:
        exchange: the name of the attempt.
        number: which of the clients the site is.
        secure: what was agreed on.
    """

    def __init__(self, exchange: str, number: int, secure: Secure):
        self.exchange, self.number, self._secure = exchange, number, secure
        self._cipher, self._mask = primitives.private_key(), primitives.private_key()
        self._seed = secrets.token_bytes(KEY)
        self._known: dict[int, Announced] = {}
        self._pairs: dict[int, bytes] = {}  # by site: the key of the mask that it has in common with this one
        self._shares: dict[int, bytes] = {}  # by site: the shares of its key and of its seed that this one has
        self._masked = False

    def announce(self) -> Announced:
        """Return the public keys (step 1)."""
        cipher, mask = (key.public_key().public_bytes_raw() for key in (self._cipher, self._mask))
        return Announced(cipher, mask, primitives.derived(self._seed, seed_label(self.exchange, self.number)))

    def share(self, known: Mapping[int, Announced]) -> dict[int, bytes]:
        """Return for every other site, sealed for it, its shares of this one's two secrets (step 2).

        Args:
            known: what everybody announced who takes part.
        """
        self._check(not self._known and known.get(self.number) == self.announce())
        self._check(len(known) >= self._secure.fewest(len(known)) and self._secure.has_room(len(known)))
        order, others, threshold = sorted(known), known.keys() - {self.number}, self._secure.needed(len(known))
        keys = primitives.split(self._mask.private_bytes_raw(), threshold, len(order))
        seeds = primitives.split(self._seed, threshold, len(order))
        own = {site: key + seed for site, key, seed in zip(order, keys, seeds, strict=True)}
        label = lambda site: pair_label(self.exchange, self.number, site)
        pairs = _of_each(others, lambda site: primitives.agreed(self._mask, known[site].mask, label(site)))
        sealed = _of_each(others, lambda site: self._sealed(site, known[site].cipher, own[site]))
        self._known, self._pairs, self._shares = dict(known), pairs, {self.number: own[self.number]}
        return sealed

    def _sealed(self, site: int, cipher: bytes, text: bytes) -> bytes:
        label = share_label(self.exchange, self.number, site)
        return primitives.seal(primitives.agreed(self._cipher, cipher, label), text, label)

    def _unsealed(self, site: int, sealed: bytes) -> bytes:
        label = share_label(self.exchange, site, self.number)
        return primitives.unseal(primitives.agreed(self._cipher, self._known[site].cipher, label), sealed, label)

    def receive(self, sealed: Mapping[int, bytes]) -> None:
        """Take the shares that others have for this site: with them the sum is agreed on (step 3, before the work)."""
        others = set(sealed)
        self._check(bool(self._known) and others <= set(self._known) - {self.number} and len(self._shares) == 1)
        self._check(len(others) + 1 >= self._secure.fewest(len(self._known)))
        self._shares |= _of_each(others, lambda site: self._unsealed(site, sealed[site]))

    def mask(self, vector: np.ndarray) -> np.ndarray:
        """Return the site's vector of integers modulo 2^64 with its masks on (step 3)."""
        self._check(len(self._shares) > 1 and not self._masked)
        self._masked = True
        masked = vector.astype(WORD) + seed_mask(self._seed, self.exchange, self.number, vector.size)
        for other in self._shares.keys() - {self.number}:
            add_pair_mask(masked, self._pairs[other], self.number, other)
        return masked

    def tell(self, survivors: Collection[int]) -> Told:
        """Return a share of everybody's seed, or key, by which the masks come off the sum over some (step 4). Then forget all.

        Args:
            survivors: whose masked vectors are in the sum.
        """
        among = set(survivors)
        self._check(self._masked and self.number in among and among <= set(self._shares))
        self._check(len(among) >= self._secure.fewest(len(self._known)))
        told = Told(
            {site: share[KEY:] for site, share in self._shares.items() if site in among},
            {site: share[:KEY] for site, share in self._shares.items() if site not in among},
        )
        self._shares, self._known, self._pairs, self._masked = {}, {}, {}, False
        return told

    @staticmethod
    def _check(right: bool) -> None:
        if not right:
            raise Withheld(REFUSES)


def _of_each(sites: Iterable[int], make: Callable[[int], bytes]) -> dict[int, bytes]:
    """Return what is made of the message of each site, or raise :class:`Withheld` that accuses those whose message is none."""
    made, accused = {}, []
    for site in sites:
        try:
            made[site] = make(site)
        except Malformed:
            accused.append(site)
    if accused:
        raise Withheld(ACCUSES, sorted(accused))
    return made


def seed_label(exchange: str, number: int) -> str:
    """Return the purpose of what a seed is checked against."""
    return f"fedminimax secure sum {exchange} announced seed of {number}"


def share_label(exchange: str, sender: int, receiver: int) -> str:
    """Return the purpose of the key by which shares are sealed."""
    return f"fedminimax secure sum {exchange} shares of {sender} for {receiver}"


def pair_label(exchange: str, one: int, other: int) -> str:
    """Return the purpose of the key of a pair's mask: the same for both."""
    return f"fedminimax secure sum {exchange} mask of {min(one, other)} and {max(one, other)}"


def seed_mask(seed: bytes, exchange: str, number: int, words: int) -> np.ndarray:
    """Return a site's own mask."""
    return primitives.stream(primitives.derived(seed, f"fedminimax secure sum {exchange} own mask of {number}"), words)


def add_pair_mask(masked: np.ndarray, key: bytes, own: int, other: int) -> None:
    """Add a pair's mask to the vector of one of the two, in place; the other's gets its negative."""
    mask = primitives.stream(key, masked.size)
    if own < other:
        np.add(masked, mask, out=masked)
    else:
        np.subtract(masked, mask, out=masked)
