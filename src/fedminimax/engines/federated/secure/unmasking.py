"""The masks taken off a sum: what the server computes from the shares that it is told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping

import numpy as np

from fedminimax.engines.federated.secure import primitives
from fedminimax.engines.federated.secure.fixed_point import WORD
from fedminimax.engines.federated.secure.party import Announced, Told, add_pair_mask, pair_label, seed_label, seed_mask
from fedminimax.engines.federated.secure.primitives import NotTogether

_MOST_TRIES = 1000
"""So many choices among the shares of a secret are tried, where some are wrong."""


def unmasked(
    exchange: str,
    threshold: int,
    announced: Mapping[int, Announced],
    masked: Mapping[int, np.ndarray],
    lost: Collection[int],
    told: Mapping[int, Told],
) -> np.ndarray:
    """Return the sum of the vectors behind masked ones, or raise :class:`NotTogether`.

    With y_i = v_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij), over the j that shared their secrets, the sum of
    the v_i is that of the y_i without every PRG(b_i), and without what the y_i have of PRG(s_ij) for a j that is lost.

    Args:
        exchange: the name of the attempt.
        threshold: how many shares give a secret.
        announced: what everybody announced that shared secrets.
        masked: the y_i.
        lost: who shared secrets, and whose y_i did not come.
        told: what those who still answered told, by their numbers.
    """
    place = {site: k + 1 for k, site in enumerate(sorted(announced))}
    total = np.zeros(next(iter(masked.values())).size, WORD)
    for site, vector in masked.items():
        np.add(total, vector, out=total)
        known = lambda seed, site=site: primitives.derived(seed, seed_label(exchange, site)) == announced[site].seed
        shares = {place[teller]: said.seeds[site] for teller, said in told.items()}
        np.subtract(total, seed_mask(joined(shares, threshold, known), exchange, site, total.size), out=total)
    for site in lost:
        known = lambda raw, site=site: primitives.private_key(raw).public_key().public_bytes_raw() == announced[site].mask
        shares = {place[teller]: said.keys[site] for teller, said in told.items()}
        key = primitives.private_key(joined(shares, threshold, known))
        for other in masked:
            pair = primitives.agreed(key, announced[other].mask, pair_label(exchange, site, other))
            add_pair_mask(total, pair, site, other)  # which is what the other has of it, with the sign turned
    return total


def joined(shares: Mapping[int, bytes], threshold: int, known: Callable[[bytes], bool]) -> bytes:
    """Return the secret that shares give, by their numbers from 1 on; wrong ones among them are found out, and left out.

    Args:
        shares: at least ``threshold`` of them.
        threshold: how many give the secret.
        known: tells whether a secret is the one that was announced.
    """
    for chosen in itertools.islice(itertools.combinations(shares.items(), threshold), _MOST_TRIES):
        try:
            secret = primitives.join(dict(chosen))
        except NotTogether:
            continue
        if known(secret):
            return secret
    raise NotTogether
