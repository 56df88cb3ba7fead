"""A data set divided among a few silos, each with a test set of its own: the setting of SCAFF-PD, section 6.2."""

from __future__ import annotations

import numpy as np

from fedminimax.data import partition
from fedminimax.data.clients import ClientData
from fedminimax.data.datasets import Dataset
from fedminimax.data.federation import CLASSIFICATION, Federation
from fedminimax.errors import InputError


def silos(
    dataset: Dataset,
    clients: int = 20,
    alpha: float = 0.05,
    *,
    client_share: float = 0.3,
    example_share: float = 0.7,
    min_size: int = 20,
    seed: int = 0,
) -> Federation:
    """Divide a classification data set by Dirichlet(alpha); then some clients lose most of their training examples.

    Each client's test set follows its own training distribution: of the test examples of a class, it gets the share that it
    has of that class's training examples, before any were lost.

    Args:
        dataset: what to divide (see :func:`fedminimax.data.datasets.load`).
        clients: N.
        alpha: the concentration; 0.01 gives most clients one or two classes.
        client_share: the share of the clients that lose training examples.
        example_share: the share of its training examples that each of these loses.
        min_size: the least number of training examples a client has before that.
        seed: of the division.
    """
    labels = dataset.train["labels"]
    if clients * min_size > len(labels):
        raise InputError(f"{clients} clients with at least {min_size} examples each are too many for {len(labels)} examples.")
    owner = partition.dirichlet(labels, clients, alpha, seed=seed, min_size=min_size)
    tested = partition.own_distribution(owner, labels, dataset.test["labels"], clients, seed=seed)
    kept = partition.drop_examples(owner, client_share, example_share, seed=seed)
    return Federation(
        train=ClientData.from_owner(dataset.train, kept, clients),
        test=ClientData.from_owner(dataset.test, tested, clients),
        names=[str(i) for i in range(clients)],
        features=[str(i) for i in range(int(np.prod(dataset.train["inputs"].shape[1:])))],
        classes=[str(c) for c in range(dataset.classes)],
        task=CLASSIFICATION,
        target_scale=None,
        missing={},
        dropped={},
    )
