"""How a cohort is laid out over the places where its clients run: side by side, one after another, on several devices."""

from __future__ import annotations

from dataclasses import dataclass

from fedminimax.errors import InputError

Strategy = str | int
AUTO, VMAP, MAP = "auto", "vmap", "map"
AXIS = "clients"
"""What the devices are called that a cohort is split over."""

_SMALL_MODEL = 50_000
"""Parameters below which clients are faster side by side than one after another (measured: benchmarks/README.md)."""
_SIDE_BY_SIDE = 2**24
"""How many parameters of all clients side by side are allowed at once."""


@dataclass(frozen=True)
class Layout:
    """How clients are laid out: ``width`` side by side on each of the ``devices``; their own states there or on the host."""

    strategy: Strategy = AUTO
    devices: int = 1
    host_state: bool = False

    def __post_init__(self) -> None:
        known = (isinstance(self.strategy, int) and self.strategy >= 1) or self.strategy in (AUTO, VMAP, MAP)
        if isinstance(self.strategy, bool) or not known:
            raise InputError(
                f"strategy must be 'auto', 'vmap', 'map' or how many clients to run side by side, not {self.strategy!r}."
            )

    def width(self, clients: int, parameters: int, apart: bool = False) -> int:
        """Return how many clients to run side by side.

        Args:
            clients: how many there are on a device.
            parameters: of the model.
            apart: whether they had better run one after another: some have so much more data than others that all would
                wait for them, or the model convolves.
        """
        if self.strategy == VMAP:
            return clients
        if self.strategy == MAP:
            return 1
        if isinstance(self.strategy, int):
            return min(self.strategy, clients)
        small = parameters <= _SMALL_MODEL and not apart
        return min(clients, max(1, _SIDE_BY_SIDE // parameters)) if small else 1
