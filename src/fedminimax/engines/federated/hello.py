"""What sites say of themselves before a run, and whether they fit together."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedminimax import wire
from fedminimax.data.clients import EPOCHS, REPLACEMENT
from fedminimax.data.remote import RemoteClients
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.messages import Refused
from fedminimax.engines.federated.transport import MALFORMED, REFUSED, Failure, Transport
from fedminimax.errors import InputError
from fedminimax.folders import write_atomically
from fedminimax.metrics import parts
from fedminimax.metrics.base import Metric
from fedminimax.metrics.parts import PARTS

_MOST = 2**20
"""The most bytes that a site may say of itself."""


@wire.message
class Share(NamedTuple):
    """Some data of a site, as the server knows it: how many examples, their shapes, and how batches are drawn."""

    size: int
    example: Any
    batching: str

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must be the same at all sites."""
        leaves, structure = jax.tree.flatten(self.example)
        return structure, tuple((leaf.shape[1:], leaf.dtype.name) for leaf in leaves), self.batching


@wire.message
class Hello(NamedTuple):
    """What a site says of itself.

    Attributes:
        data: its examples.
        held_out: its shares of held-out data, by name.
        agrees: what it must have in common with the server (see :func:`worker.agreement`).
        versions: of what else the numbers depend on.
        measures: the names of the metrics of which it tells its part; None: of any.
    """

    data: Share
    held_out: dict[str, Share]
    agrees: dict[str, str]
    versions: dict[str, str]
    measures: list[str] | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must stay as it is while a run goes on."""
        shares = {name: (share.size, *share.kind) for name, share in self.held_out.items()}
        return self.data.size, self.data.kind, shares, self.agrees, self.measures


def ask(transport: Transport, sites: Collection[str], timeout: float) -> tuple[dict[str, Hello], dict[str, Failure]]:
    """Ask sites who they are; return what they say, and why others did not."""
    ids = {site: f"hello/{secrets.token_hex(4)}" for site in sites}
    answers = transport.ask({site: wire.encode({"id": id, "hello": True}) for site, id in ids.items()}, timeout)
    found, failures = {}, dict(answers.failures)
    for site, reply in answers.replies.items():
        try:
            found[site] = _read(messages.read(reply, ids[site], "hello", _MOST)["hello"])
        except Refused as refused:
            failures[site] = refused.failure
    return found, failures


def _read(said: Any) -> Hello:
    try:
        agrees, versions = ({str(k): str(v) for k, v in said[name].items()} for name in ("agrees", "versions"))
        held_out = {messages.name(name): _share(share) for name, share in said["held_out"].items()}
        measures = said.get("measures")
        told = None if measures is None else [messages.name(one) for one in measures]
        return Hello(_share(said), held_out, agrees, versions, told)
    except (LookupError, TypeError, AttributeError, messages.Malformed):
        raise Refused(Failure(MALFORMED, "what it says of itself cannot be read")) from None


def _share(said: Any) -> Share:
    size, example, batching = said["size"], said["example"], said["batching"]
    leaves = jax.tree.leaves(example)
    right = leaves and all(isinstance(leaf, np.ndarray) and leaf.ndim and leaf.shape[0] == 0 for leaf in leaves)
    known = isinstance(batching, str) and batching in (REPLACEMENT, EPOCHS)
    if type(size) is not int or not 0 < size < 2**31 or not right or not known:
        raise messages.Malformed("data")
    return Share(size, example, batching)


def load(path: Path | None) -> dict[str, Hello]:
    """Return what sites said of themselves in an earlier run; nothing where that is not known."""
    if path is None or not path.exists():
        return {}
    kept: Any = wire.decode(path.read_bytes())
    if not isinstance(kept, dict) or not all(isinstance(said, Hello) for said in kept.values()):
        raise InputError(f"{path} does not hold what sites said of themselves: name another file.")
    return kept


def save(path: Path | None, found: Mapping[str, Hello]) -> None:
    """Keep what sites say of themselves."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, wire.encode(dict(found)))


def check(sites: Collection[str], found: Mapping[str, Hello], failures: Mapping[str, Failure]) -> None:
    """Raise an :class:`InputError` that names a site which is not there, or does not fit the others."""
    missing = [f"{site} ({failure.text or failure.kind})" for site, failure in failures.items() if site not in found]
    if missing:
        raise InputError(f"A run begins when all sites are there, but {', '.join(missing)} did not answer: start them first.")
    first = next(iter(sites))
    for site in sites:
        if found[site].data.kind != found[first].data.kind:
            raise InputError(
                f"The data of {site} is {_shown(found[site].data)}, but that of {first} is {_shown(found[first].data)}: all "
                "sites need the same fields, shapes and types, and the same batching."
            )
        kinds = {name: share.kind for name, share in found[site].held_out.items()}
        if kinds != {name: share.kind for name, share in found[first].held_out.items()}:
            raise InputError(f"The held-out data of {site} has other names or shapes than that of {first}: give all the same.")


def compare(site: str, hello: Hello, wanted: Mapping[str, str]) -> None:
    """Raise an :class:`InputError` unless a site has what it must have in common with the server."""
    for what, here in wanted.items():
        there = hello.agrees.get(what, "unknown")
        if there != here:
            raise InputError(f"At {site} {what} is {there[:200]}, but here {here[:200]}: give both the same.")


def check_told(metrics: Mapping[str, Metric], count: int, told: Mapping[str, Collection[str] | None]) -> None:
    """Raise an :class:`InputError` if a site does not tell its part of a metric.

    Args:
        metrics: by name.
        count: how many sites there are.
        told: by site, the names of the metrics that it tells; None: any.
    """
    for name, metric in metrics.items():
        kinds = parts.kinds(parts.describe(metric, lambda data: 0)) if parts.needs(metric, count) == PARTS else []
        for site, allowed in told.items():
            if allowed is not None and (missing := [kind for kind in kinds if kind not in allowed]):
                raise InputError(
                    f"{site} does not tell its part of {missing[0]}, which no noise protects: leave out the metric {name}, or "
                    f"have its administrator allow it, such as measures={{{missing[0]!r}: 100}} for a hundred times."
                )


def changed(was: Hello, now: Hello) -> Failure | None:
    """Say what is wrong with a site that is there again; None: it is as it was."""
    return None if was.kind == now.kind else Failure(REFUSED, "its data or its method is not what it was when the run began")


def roll(found: Mapping[str, Hello], held: str | None = None) -> RemoteClients:
    """Return what is known of all sites' data, or of their shares of held-out data, in their order."""
    shares = [hello.data if held is None else hello.held_out[held] for hello in found.values()]
    return RemoteClients.of(shares[0].example, [share.size for share in shares], shares[0].batching, tuple(found))


def _shown(share: Share) -> str:
    fields = {
        jax.tree_util.keystr(path) or "(the array)": f"{leaf.dtype.name}{list(leaf.shape[1:])}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(share.example)
    }
    return f"{fields}, drawn by {share.batching}"
