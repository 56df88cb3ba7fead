"""What a server and its sites agree on for secure sums."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from fedminimax import checks
from fedminimax.errors import InputError

_MODULUS = 64
"""Sums are taken modulo 2 to this power."""


@dataclass(frozen=True)
class Secure:
    """Secure sums, for ``Federation(..., secure=Secure())`` and ``Worker(..., secure=Secure())`` alike.

    A number v is sent as the integer round(2^bits v) modulo 2^64 with masks that cancel in the sum. The sum over n sites is
    then off by n 2^-(bits + 1) at most.

    Args:
        least: a sum is over at least so many sites, or the sites do not take part. With 2 each of them knows what the other
            sent once the sum is known.
        threshold: how many sites must help to take the masks off; None: more than half of those that share keys, which is the
            least that is allowed.
        bits: binary digits behind the point.
        limit: a site withholds a reply with a number beyond this (once it is weighted), as the sum could not hold it.
        open_numbers: how many numbers a site may tell in the open, for each reply that is wanted apart (as the losses that
            ScaffPD, AFL and DRFA need) and each metric; 0: none.
    """

    least: int = 3
    threshold: int | None = None
    bits: int = 32
    limit: float = 2.0**20
    open_numbers: int = 1

    def __post_init__(self) -> None:
        checks.integer("least", self.least, least=2)
        checks.integer("bits", self.bits, least=1)
        checks.integer("open_numbers", self.open_numbers, least=0)
        if self.threshold is not None:
            checks.integer("threshold", self.threshold, least=2)
        if not self.limit > 0:
            raise InputError(f"limit must be positive, not {self.limit}.")
        self.check_room(self.least)

    def needed(self, sites: int) -> int:
        """Return how many sites must help to take the masks off, of so many that share keys.

        More than half: two groups of so many have a site in common, which tells only one of a site's two secrets.
        """
        return max(sites // 2 + 1, self.threshold or 0)

    def fewest(self, sites: int) -> int:
        """Return how many sites a sum must be over, of so many that share keys."""
        return max(self.needed(sites), self.least)

    def has_room(self, sites: int) -> bool:
        """Tell whether the sum over so many sites cannot wrap around."""
        return sites * self.limit * 2.0**self.bits < 2.0 ** (_MODULUS - 1)

    def check_room(self, sites: int) -> None:
        """Raise an :class:`InputError` where the sum over so many sites could wrap around."""
        if not self.has_room(sites):
            raise InputError(
                f"Sums over {sites} sites of numbers up to {self.limit:g} with {self.bits} binary digits behind the point do "
                f"not fit into {_MODULUS} bits: give Secure fewer bits or a lower limit."
            )


def check_installed() -> None:
    """Raise an :class:`InputError` where the packages for secure sums are missing."""
    missing = [name for name, module in (("cryptography", "cryptography"), ("pycryptodome", "Crypto")) if not find_spec(module)]
    if missing:
        raise InputError(f"Secure sums need {' and '.join(missing)}: pip install 'fedminimax[federation]'.")
