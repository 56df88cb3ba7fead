"""What a model is judged by, and which of these numbers comes first: that follows the label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedminimax.data.federation import CLASSIFICATION, Federation

RARE = 0.2
"""Of two classes, the share of rows below which the rarer is called rare; of C classes 2 RARE / C."""


@dataclass(frozen=True)
class Measure:
    """A number that says how good predictions are.

    Attributes:
        name: in files.
        title: in tables and sentences.
        higher_is_better: whether larger values are better.
        percent: whether it is a share, shown in per cent.
        bounds: what it cannot go below or above.
    """

    name: str
    title: str
    higher_is_better: bool
    percent: bool = True
    bounds: tuple[float, float] = (0.0, 1.0)

    def show(self, value: float) -> str:
        """Return a value as a reader wants it."""
        if not np.isfinite(value):
            return "–"
        return f"{100 * value:.1f}%" if self.percent else f"{value:.4g}" if abs(value) >= 1 else f"{value:.3f}"

    def gap(self, value: float) -> str:
        """Return a difference of two values, without its sign."""
        return f"{100 * abs(value):.1f}" if self.percent else f"{abs(value):.3g}"

    @property
    def unit(self) -> str:
        """What a difference is counted in."""
        return " points" if self.percent else ""


_LOSS = (0.0, np.inf)
MEASURES = {
    m.name: m
    for m in (
        Measure("auc", "AUC", True),
        Measure("balanced_accuracy", "balanced accuracy", True),
        Measure("accuracy", "accuracy", True),
        Measure("recall", "recall", True),
        Measure("precision", "precision", True),
        Measure("log_loss", "log loss", False, percent=False, bounds=_LOSS),
        Measure("brier", "Brier score", False, percent=False, bounds=_LOSS),
        Measure("rmse", "RMSE", False, percent=False, bounds=_LOSS),
        Measure("mae", "MAE", False, percent=False, bounds=_LOSS),
    )
}
"""All measures by name."""

PARTS = {"average": "average of sites", "worst20": "worst 20% of sites", "worst": "worst site", "all": "all rows"}
"""How the sites' numbers are summed up; the last is over all test rows as if they were one site's."""


@dataclass(frozen=True)
class Choice:
    """Which measure is shown first, and why.

    Attributes:
        measure: the first.
        rare: whether a class is rare.
        sentence: the reason.
    """

    measure: Measure
    rare: bool
    sentence: str


def measures_of(federation: Federation) -> list[Measure]:
    """Return what predictions for these labels are judged by; the area under the curve is of two classes only."""
    if federation.task != CLASSIFICATION:
        names = ["rmse", "mae"]
    elif len(federation.classes or []) == 2:
        names = ["auc", "balanced_accuracy", "recall", "precision", "accuracy", "log_loss", "brier"]
    else:
        names = ["balanced_accuracy", "accuracy", "log_loss", "brier"]
    return [MEASURES[name] for name in names]


def shares(federation: Federation) -> np.ndarray:
    """Return the share of each class among all training rows, [C]."""
    labels, classes = np.asarray(federation.train.fields["labels"]), len(federation.classes or [])
    return np.bincount(labels, minlength=classes) / len(labels)


def positive_class(federation: Federation) -> int | None:
    """Return the number of the class that recall and precision are about: the rarer of two, unless it was named."""
    if federation.task != CLASSIFICATION or len(federation.classes or []) != 2:
        return None
    if federation.positive is not None:
        return federation.positive
    share = shares(federation)
    return 0 if share[0] < share[1] else 1  # of equal ones the second, as scikit-learn has it


def first_measure(federation: Federation) -> Choice:
    """Return the measure that comes first, chosen by the training labels alone.

    Where a class is rare it is one that predicting nobody cannot reach: the AUC of two classes, which is then 50%, or the
    balanced accuracy of more, which is then 1/C.
    """
    if federation.task != CLASSIFICATION:
        return Choice(
            MEASURES["rmse"], False, "The label is a quantity: the error (RMSE) comes first, in the label's own units."
        )
    share, names = shares(federation), list(federation.classes or [])
    least, most = int(np.argmin(share)), int(np.argmax(share))
    if share[least] < 2 * RARE / len(names):
        held = f"Only {_percent(share[least])} of the training rows are {names[least]!r}, and predicting {names[most]!r} for "
        held += f"everybody is {_percent(share[most])} accurate"
        if len(names) == 2:
            return Choice(MEASURES["auc"], True, f"{held}: the AUC comes first, which that leaves at 50%.")
        sentence = f"{held}: balanced accuracy comes first, which that leaves at {_percent(1 / len(names))}."
        return Choice(MEASURES["balanced_accuracy"], True, sentence)
    return Choice(
        MEASURES["accuracy"],
        False,
        f"No class is rare ({names[least]!r}: {_percent(share[least])} of the training rows): accuracy comes first, to be read "
        f"beside the majority's, {_percent(share[most])} of the training rows.",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
