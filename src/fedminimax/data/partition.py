"""Who holds what: ways to divide the examples of a data set among clients.

Each function returns the *owner index*, an int32 array with owner[j] the client that holds example j, or -1 where example
j was removed. Clients are numbered from 0. The same arguments, seed included, give the same division.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedminimax.checks import integer, real
from fedminimax.errors import InputError

Owner = npt.NDArray[np.int32]
"""The client of each example, or -1 for an example that was removed."""

# After this many draws that leave some client short, examples are moved to it instead: with small alpha and many clients
# a draw that gives every client enough may be too rare to wait for.
_DRAWS = 10


def iid(n_or_labels: Any, clients: int, seed: int = 0) -> Owner:
    """Random equal parts: every client's data look alike.

    Args:
        n_or_labels: the number of examples, or their labels, of which only the number is used.
        clients: number of clients.
        seed: seed of the shuffle.

    Returns:
        The owner index; sizes differ by at most 1.
    """
    count = integer("n_or_labels", n_or_labels, 1) if np.ndim(n_or_labels) == 0 else len(_labels(n_or_labels))
    clients = _clients(clients, count)
    return _deal(_generator(seed).permutation(count), clients)


def dirichlet(labels: npt.ArrayLike, clients: int, alpha: float, seed: int = 0, min_size: int = 1) -> Owner:
    """Each class is shared among the clients in Dirichlet(alpha) proportions: the smaller alpha, the less alike.

    For each class c, q_c ~ Dirichlet(alpha, ..., alpha) over the clients, and client m gets the share q_cm of the examples
    of c. A division that leaves a client with fewer than ``min_size`` examples is drawn again a few times; after that, the
    largest clients give some of their examples, chosen at random, to the clients that are short.

    Args:
        labels: the class of each example.
        clients: number of clients.
        alpha: concentration, > 0; 0.1 is very uneven, 100 is close to IID.
        seed: seed of the proportions and of the shuffle.
        min_size: the least number of examples that any client gets.

    Returns:
        The owner index.

    References:
        Hsu, Qi and Brown, Measuring the effects of non-identical data distribution for federated visual classification,
        2019.
    """
    labels = _labels(labels)
    clients = _clients(clients, len(labels))
    min_size = integer("min_size", min_size, 0)
    if not 0 < real(alpha) < np.inf:
        raise InputError(f"alpha is {alpha!r}: give a positive number, such as 0.5.")
    if clients * min_size > len(labels):
        raise InputError(
            f"{clients} clients with at least {min_size} examples each need {clients * min_size} examples and there are "
            f"{len(labels)}: lower clients or min_size."
        )
    generator = _generator(seed)
    # Shuffled, then sorted by class: each class is a run, which its proportions cut into one piece a client.
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.unique(labels, return_counts=True)[1]
    owner = np.empty(len(labels), np.int32)
    for _ in range(_DRAWS):
        shares = generator.dirichlet(np.full(clients, real(alpha)), size=len(sizes))
        cuts = np.rint(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
        cuts[:, -1] = sizes  # the cumulative sum may end at 1 minus rounding
        pieces = np.diff(cuts, axis=1, prepend=0)
        owner[order] = np.repeat(np.tile(np.arange(clients), len(sizes)), pieces.ravel())
        if np.bincount(owner, minlength=clients).min() >= min_size:
            return owner
    return _fill(owner, clients, min_size, generator)


def by_class(labels: npt.ArrayLike, clients: int, seed: int = 0) -> Owner:
    """Sorted by class and cut into equal parts: each client holds one class, or few.

    With 10 equally large classes and 500 clients every client has exactly one class, and every class 50 clients.

    Args:
        labels: the class of each example.
        clients: number of clients.
        seed: seed of the shuffle within each class.

    Returns:
        The owner index; sizes differ by at most 1.
    """
    labels = _labels(labels)
    clients = _clients(clients, len(labels))
    order = _generator(seed).permutation(len(labels))
    return _deal(order[np.argsort(labels[order], kind="stable")], clients)


def one_vs_rest(labels: npt.ArrayLike, positive: int) -> npt.NDArray[np.int32]:
    """Return 1 for the examples of one class and 0 for all others: the labels of a detector, or for :func:`problems.auc`.

    Args:
        labels: the class of each example.
        positive: the class that counts as positive.
    """
    labels = _labels(labels)
    chosen = labels == positive
    if not chosen.any() or chosen.all():
        raise InputError(f"{'All' if chosen.any() else 'No'} labels are {positive!r}: choose a class that some examples have.")
    return chosen.astype(np.int32)


def major_class(labels: npt.ArrayLike, clients: int, share: float = 0.25, seed: int = 0) -> Owner:
    """A share of each client's data is from one class, its major class, and the rest at random from the other classes.

    Of C classes, client m has major class number m mod C. It gets ``share`` of its examples from that class and the rest at
    random from the others: with share 1/C everybody's data look alike. Where a class has too few examples for all the clients
    that have it as major class, they get equal parts of it; where it has more than the other clients have room for (one
    client, or one very large class), those that have it as major class take what is over.

    Args:
        labels: the class of each example.
        clients: number of clients.
        share: the share of the major class, in [0, 1].
        seed: seed of the shuffle.

    Returns:
        The owner index; sizes differ by at most 1.

    References:
        Beznosikov, Sadiev, Sushko and Gasnikov, Decentralized personalized federated min-max problems, 2022, section 4.
    """
    labels = _labels(labels)
    clients = _clients(clients, len(labels))
    share = _share("share", share)
    generator = _generator(seed)
    sizes = _equal_sizes(len(labels), clients)
    quota = np.rint(share * sizes).astype(np.int64)
    owner = np.full(len(labels), -1, np.int32)
    classes = np.unique(labels)
    for number, label in enumerate(classes[:clients]):
        members = np.arange(number, clients, len(classes))
        examples = generator.permutation(np.flatnonzero(labels == label))
        quota[members] = np.minimum(quota[members], _equal_sizes(len(examples), len(members)))
        owner[examples[: quota[members].sum()]] = np.repeat(members, quota[members])
    rest = generator.permutation(np.flatnonzero(owner < 0))
    owner[rest] = np.repeat(np.arange(clients), sizes - quota)
    # What of the rest fell to a client whose major class it is changes hands with an example of another class, held by a
    # client of another major class, chosen at random: both are then where they may be, and every client keeps its size.
    for number, label in enumerate(classes[:clients]):
        inside, same = owner[rest] % len(classes) == number, labels[rest] == label
        wrong, others = rest[inside & same], generator.permutation(rest[~inside & ~same])
        pairs = min(len(wrong), len(others))
        owner[wrong[:pairs]], owner[others[:pairs]] = owner[others[:pairs]], owner[wrong[:pairs]]
    return owner


def drop_examples(owner: npt.ArrayLike, client_share: float, example_share: float, seed: int = 0) -> Owner:
    """Remove a share of the examples of some clients, so that clients differ in size.

    A client that has examples keeps at least one.

    Args:
        owner: the owner index of a division.
        client_share: the share of the clients that lose examples, in [0, 1]; they are chosen at random.
        example_share: the share of its examples that each of these loses, in [0, 1]; they are chosen at random.
        seed: seed of both choices.

    Returns:
        A new owner index, -1 where an example was removed.
    """
    owner = np.array(_labels(owner, "owner"), np.int32)
    client_share, example_share = _share("client_share", client_share), _share("example_share", example_share)
    if owner.min() < -1:
        raise InputError(f"owner has the entry {owner.min()}: give each example's client, or -1 for a removed one.")
    generator = _generator(seed)
    held = np.flatnonzero(owner >= 0)
    sizes = np.bincount(owner[held])
    chosen = generator.choice(len(sizes), round(client_share * len(sizes)), replace=False)
    lost = np.zeros_like(sizes)
    lost[chosen] = np.minimum(np.rint(example_share * sizes[chosen]), np.maximum(sizes[chosen] - 1, 0))
    owner[held[_rank(owner[held], generator) < lost[owner[held]]]] = -1
    return owner


def own_distribution(
    train_owner: npt.ArrayLike, train_labels: npt.ArrayLike, test_labels: npt.ArrayLike, clients: int, seed: int = 0
) -> Owner:
    """Each client's test examples are distributed as its training examples are.

    Of the test examples of class c, client m gets the share that it holds of the training examples of c, rounded to whole
    examples by largest remainders; every test example goes to exactly one client. A client whose most frequent class is
    rounded to nothing takes one test example of it from the client that has most of that class.

    Args:
        train_owner: the owner index of the training examples. Entries of -1 are ignored; where some were removed with
            :func:`drop_examples` to make clients differ in size, give the index from before, so that the tests stay as
            they were.
        train_labels: the class of each training example.
        test_labels: the class of each test example.
        clients: number of clients.
        seed: seed of which test examples go where, and of who is rounded up where remainders are equal.

    Returns:
        The owner index of the test examples.
    """
    owner, train_labels = _labels(train_owner, "train_owner"), _labels(train_labels, "train_labels")
    test_labels = _labels(test_labels, "test_labels")
    clients = _clients(clients, len(test_labels))
    if len(owner) != len(train_labels):
        raise InputError(
            f"train_owner has {len(owner)} entries and train_labels {len(train_labels)}: give one for each example."
        )
    if owner.min() < -1 or owner.max() >= clients:
        wrong = owner.min() if owner.min() < -1 else owner.max()
        raise InputError(f"train_owner has the entry {wrong}: give each example's client, 0 to {clients - 1}, or -1 for none.")
    held = owner >= 0
    classes, numbers = np.unique(train_labels[held], return_inverse=True)
    unknown = np.setdiff1d(test_labels, classes)
    if len(unknown):
        raise InputError(f"test_labels has class {unknown[0]} and no client holds a training example of it: leave it out.")
    table = np.zeros((clients, len(classes)), np.int64)  # the training examples of each class that each client holds
    np.add.at(table, (owner[held], numbers), 1)
    if not table.any(axis=1).all():
        raise InputError(
            f"Client {np.argmin(table.any(axis=1))} holds no training example: lower clients, or divide otherwise."
        )
    favourite = table.argmax(axis=1)
    generator = _generator(seed)
    result = np.empty(len(test_labels), np.int32)
    for number, label in enumerate(classes):
        examples = generator.permutation(np.flatnonzero(test_labels == label))
        pieces = _apportion(table[:, number], len(examples), generator)
        entitled = favourite == number
        if entitled.sum() > len(examples):
            raise InputError(
                f"Class {label} is the most frequent one of {entitled.sum()} clients and has {len(examples)} test examples, "
                "which is less than one each: lower clients, or give more test examples."
            )
        for client in np.flatnonzero(entitled & (pieces == 0)):
            # not from a client that would be left without its own most frequent class
            giver = np.argmax(np.where(entitled & (pieces == 1), 0, pieces))
            pieces[[giver, client]] += [-1, 1]
        result[examples] = np.repeat(np.arange(clients), pieces)
    return result


def _apportion(weights: npt.NDArray[np.int64], count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return whole numbers that add up to ``count``, in proportion to whole weights, by largest remainders."""
    pieces, remainders = np.divmod(count * weights, weights.sum())  # in integers: equal remainders are equal
    order = generator.permutation(len(weights))  # or the clients with low numbers would win every draw
    order = order[np.argsort(-remainders[order], kind="stable")]
    pieces[order[: count - pieces.sum()]] += 1
    return pieces


def _fill(owner: Owner, clients: int, min_size: int, generator: np.random.Generator) -> Owner:
    """Move examples from the largest clients to those with fewer than ``min_size``."""
    sizes = np.bincount(owner, minlength=clients)
    short = np.maximum(min_size - sizes, 0)
    # The highest level such that what lies above it is enough; the surplus over enough stays with the last givers.
    low, high = min_size, int(sizes.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.maximum(sizes - middle, 0).sum() >= short.sum() else (low, middle - 1)
    given = np.maximum(sizes - low, 0)
    given = np.diff(np.minimum(np.cumsum(given), short.sum()), prepend=0)
    moved = generator.permutation(np.flatnonzero(_rank(owner, generator) < given[owner]))
    owner[moved] = np.repeat(np.arange(clients), short)
    return owner


def _rank(owner: Owner, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Number each client's examples 0, 1, ... in random order."""
    order = generator.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    starts = np.cumsum(np.bincount(owner)) - np.bincount(owner)
    rank = np.empty(len(owner), np.int64)
    rank[order] = np.arange(len(owner)) - starts[owner[order]]
    return rank


def _deal(order: npt.NDArray[np.int64], clients: int) -> Owner:
    """Give the examples, in this order, to clients 0, 1, ... in equal parts."""
    owner = np.empty(len(order), np.int32)
    owner[order] = np.repeat(np.arange(clients), _equal_sizes(len(order), clients))
    return owner


def _equal_sizes(count: int, parts: int) -> npt.NDArray[np.int64]:
    """Return ``parts`` sizes that add up to ``count`` and differ by at most 1, the larger ones first."""
    return count // parts + (np.arange(parts) < count % parts)


def _labels(labels: npt.ArrayLike, name: str = "labels") -> npt.NDArray[Any]:
    """Return the labels as an array, or say what is wrong with them."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) == 0:
        raise InputError(
            f"{name} has shape {array.shape} and dtype {array.dtype}: give a non-empty 1-D array of integers, one for "
            "each example."
        )
    return array


def _clients(clients: Any, examples: int) -> int:
    """Return the number of clients, or say what is wrong with it."""
    number = integer("clients", clients, 1)
    if number > examples:
        raise InputError(f"{number} clients cannot share {examples} examples: lower clients to {examples} or fewer.")
    return number


def _share(name: str, value: Any) -> float:
    """Return the share as a float in [0, 1], or say what is wrong with it."""
    if not 0 <= real(value) <= 1:
        raise InputError(f"{name} is {value!r}: give a number between 0 and 1.")
    return real(value)


def _generator(seed: Any) -> np.random.Generator:
    """Return the random numbers of a seed."""
    return np.random.default_rng(integer("seed", seed, 0))


PARTITIONS: dict[str, Callable[..., Owner]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "by_class": by_class,
    "major_class": major_class,
}
"""The divisions by name."""
