"""What all parties of a study agree on before it begins, and the problem that each of them makes of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import flax.linen as nn
import numpy as np

from fedminimax import models
from fedminimax.checks import real
from fedminimax.data.clients import ClientData
from fedminimax.data.federation import CLASSIFICATION, REGRESSION
from fedminimax.errors import InputError, nearest
from fedminimax.fairness.contests import checked
from fedminimax.fairness.words import EQUAL, SIZE, check_choice, penalty_of, settings_of
from fedminimax.problems.robust import RobustProblem
from fedminimax.problems.robust_model import ENTROPY, SQUARED, robust_model


@dataclass(frozen=True)
class Question:
    """What is to be predicted, from what, and how models are trained: the same at the server and at every site.

    Attributes:
        label: the column to predict.
        task: "classification" or "regression"; None: by what the sites tell of the label.
        positive: which of two classes is the positive one; None: the rarer.
        include: columns to use although they are dates or identifiers.
        exclude: columns not to use.
        group: a sensitive column, by whose values rates are shown.
        methods: the first is the one that the others are compared with.
        penalty: psi, such as "chi2:0.1".
        weights: "equal" or "size".
        settings: step sizes that are not searched, such as "ScaffPD.tau=0.3,sigma=0.1".
        rounds: how many rounds each method trains.
        search_rounds: how many rounds a trial of the search has; None: a tenth of ``rounds``, and at least 10.
        local_steps: K.
        batch_size: examples a local step; None: all.
        loss: "entropy" or "squared"; None: cross-entropy for classes, squares for a quantity.
        ridge: the l2 regularisation.
        hidden: widths of hidden layers; none: a linear model.
        test_share: the share of each site's rows that is kept for testing.
        min_rows: sites with fewer rows are left out.
        seeds: how many runs of each method.
        seed: of the division into training and test rows.
    """

    label: str
    task: str | None = None
    positive: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    group: str | None = None
    methods: tuple[str, ...] = ("ScaffPD", "FedAvg", "FedAvg:size", "DRFA")
    penalty: str = "chi2:0.1"
    weights: str = EQUAL
    settings: tuple[str, ...] = ()
    rounds: int = 200
    search_rounds: int | None = None
    local_steps: int = 20
    batch_size: int | None = 32
    loss: str | None = None
    ridge: float = 1e-3
    hidden: tuple[int, ...] = ()
    test_share: float = 0.25
    min_rows: int = 20
    seeds: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.label:
            raise InputError("Say which column is to be predicted: --label.")
        checked(self.methods, self.rounds, self.seeds, self.weights)
        settings_of(self.settings, self.methods)
        penalty_of(self.penalty)
        if self.task is not None:
            check_choice("task", self.task, (CLASSIFICATION, REGRESSION))
        if self.loss is not None:
            check_choice("loss", self.loss, (ENTROPY, SQUARED))
        if not 0 < real(self.test_share) < 1:
            raise InputError(f"test_share is {self.test_share!r}: give a number above 0 and below 1.")
        if self.label in (*self.include, *self.exclude, self.group):
            raise InputError(f"The column {self.label!r} is the label: it is neither a feature nor a group.")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the question that a table of settings describes, such as ``[study.settings]`` of a ``federation.toml``."""
        fields = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in fields:
                raise InputError(f"A fair study has no setting {name!r}{nearest(name, fields)}: it has {', '.join(fields)}.")
        if "label" not in settings:
            raise InputError("A fair study needs a label: say which column is to be predicted.")
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
        # TOML has no null: 0 stands for all of a site's rows.
        return cls(**plain | ({"batch_size": plain["batch_size"] or None} if "batch_size" in plain else {}))

    def to_settings(self) -> dict[str, Any]:
        """Return what :meth:`of` reads, without what is as by default."""
        found = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                found[field.name] = list(value) if isinstance(value, tuple) else 0 if value is None else value
        return found

    @property
    def trial_rounds(self) -> int:
        """How many rounds a trial of the search has."""
        return self.search_rounds or min(self.rounds, max(10, self.rounds // 10))

    def network(self, classes: Sequence[str] | None) -> nn.Module:
        """Return the model that is trained."""
        outputs = 1 if classes is None else len(classes)
        return models.MLP(self.hidden, outputs) if self.hidden else models.Linear(outputs)

    def loss_of(self, classes: Sequence[str] | None) -> str:
        """Return the loss that is trained with."""
        return self.loss or (SQUARED if classes is None else ENTROPY)


@functools.lru_cache(maxsize=8)  # one object, so that programs compiled for it are found again
def problem_of(question: Question, width: int, classes: int | None) -> RobustProblem:
    """Return the problem, made of what is agreed on alone: inputs of so many numbers, and so many classes.

    Args:
        question: what is agreed on.
        width: how many inputs there are.
        classes: how many classes; None: a quantity is predicted.
    """
    names = None if classes is None else [""] * classes
    row = {"inputs": np.zeros((1, width), np.float32), "labels": np.zeros(1, np.float32 if classes is None else np.int32)}
    return robust_model(
        question.network(names),
        ClientData.from_list([row]),
        classes,
        penalty=penalty_of(question.penalty),
        loss=question.loss_of(names),
        ridge=question.ridge,
        weights=SIZE if question.weights == SIZE else None,
    )
