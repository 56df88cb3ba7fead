"""Tables from what sites tell of models: every number with an interval, and no row's score.

Of each of a site's numbers (the share of each class that is called so, the log loss, ...) the server knows quantiles and,
between models, correlations. It draws from these a thousand times, with normal numbers of these correlations put through the
quantiles, each site on its own; whatever is made of sites' numbers, such as their mean, is made of each draw. Draws of a class
at a site are independent of another class's, as the rows' own draws are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from fedminimax.engines.federated.messages import Refused
from fedminimax.engines.federated.transport import MALFORMED, Failure
from fedminimax.fairness.groups import Rates, rates_of
from fedminimax.fairness.scores import Floats, Judged, mean_of, ratio
from fedminimax.fedfair.asking import array, counts, table, text
from fedminimax.fedfair.telling import BINS, LEVELS, names_of

_MOST_GROUPS = 100
_ERRORS, _LARGEST = ("mse", "mae", "log_loss"), 1e38  # what a float32 holds, as the draws of all sites are kept
"""What has no greatest value, as a share has, or a Brier score; and a number beyond all that are no mistake."""


@dataclass(frozen=True)
class Told:
    """What a site told of M models.

    Attributes:
        points: each number on its test rows, [M].
        quantiles: over draws of these rows, [M, levels].
        roots: a square root of the models' correlations, [M, M].
        training: each number on its training rows, [M].
        histograms: counts of negative and positive test rows by log-odds, [M, 2, BINS]; None: there is no positive class.
        groups: by group, how many rows are [positive, negative] and how many of these are called, [M, 2, 2].
    """

    points: dict[str, Floats]
    quantiles: dict[str, Floats]
    roots: dict[str, Floats]
    training: dict[str, Floats]
    histograms: npt.NDArray[np.int64] | None
    groups: dict[str, npt.NDArray[np.int64]]


def read_told(said: Any, models: int, rows: npt.NDArray[np.int64], positive: int | None) -> Told:
    """Return what a site told of models, checked.

    Args:
        said: what it told.
        models: of how many models.
        rows: how many test rows of each class it has, [C]; of a quantity how many it has, [1].
        positive: the number of the positive class; None: there is none.
    """
    said = table(said)
    names = names_of(len(rows) if len(rows) > 1 else 0, positive)
    try:
        points, training, spreads = (table(said[key]) for key in ("points", "training", "spreads"))
        spread = {name: table(spreads[name]) for name in names}
        told = Told(
            {name: _scores(name, points[name], (models,)) for name in names},
            {name: _scores(name, spread[name]["quantiles"], (models, len(LEVELS))) for name in names},
            {name: _root(array(spread[name]["correlations"], (models, models))) for name in names},
            {name: _scores(name, training[name], (models,)) for name in names},
            None if positive is None else read_histograms(said["histograms"], models, rows, positive),
            {text(name): _called(one, models) for name, one in table(said.get("groups", {})).items()},
        )
    except LookupError:
        raise Refused(Failure(MALFORMED, "what it says of models cannot be read")) from None
    if len(told.groups) > _MOST_GROUPS or sum(one[0, :, 0].sum() for one in told.groups.values()) > rows.sum():
        raise Refused(Failure(MALFORMED, "more groups than can be"))
    return told


def read_histograms(said: Any, models: int, rows: npt.NDArray[np.int64], positive: int) -> npt.NDArray[np.int64]:
    """Return a site's counts of its negative and positive rows by score, [M, 2, BINS], if it has so many rows."""
    found = counts(said, (models, 2, BINS))
    if (found.sum(axis=2) != rows[[1 - positive, positive]]).any():
        raise Refused(Failure(MALFORMED, "counts of other rows than it has"))
    return found


def _scores(name: str, said: Any, shape: tuple[int, ...]) -> Floats:
    """Return numbers about models that can be; NaN where there is none."""
    found = array(said, shape).astype(np.float64)
    found[~np.isfinite(found)] = np.nan
    if np.nanmin(found, initial=0.0) < 0 or np.nanmax(found, initial=0.0) > (_LARGEST if name in _ERRORS else 2.0):
        raise Refused(Failure(MALFORMED, "numbers about models that cannot be"))
    return np.asarray(found)


def _called(said: Any, models: int) -> npt.NDArray[np.int64]:
    found = counts(said, (models, 2, 2))
    if (found[..., 1] > found[..., 0]).any():
        raise Refused(Failure(MALFORMED, "more rows of a group are called than there are"))
    return found


def _root(correlations: Floats) -> Floats:
    if not (np.abs(correlations) <= 1 + 1e-6).all():
        raise Refused(Failure(MALFORMED, "correlations that are none"))
    values, vectors = np.linalg.eigh((correlations + correlations.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


class Numbers:
    """The numbers of M models at N sites, on their test rows and in draws.

    Args:
        told: what the sites told, in their order.
        sizes: how many test rows of each class each site has, [N, C]; of a quantity how many it has, [N, 1].
        positive: the number of the positive class; None: there is none.
        classes: how many classes; 0: a quantity.
    """

    def __init__(self, told: Sequence[Told], sizes: npt.NDArray[np.int64], positive: int | None, classes: int):
        self.told, self.sizes, self.positive, self.classes = told, sizes, positive, classes

    def once(self, model: int, training: bool = False) -> Judged:
        """Return a model's numbers on the sites' test rows, or training rows."""
        source = [one.training if training else one.points for one in self.told]
        values = {name: np.array([[own[name][model] for own in source]]) for name in source[0]}
        auc = None if self.positive is None or training else self._auc(model, 1, None)
        return self._judged(values, auc)

    def draws(self, models: Sequence[int], draws: int, seed: int = 0) -> list[Judged]:
        """Return some models' numbers in as many draws, the same draws for all of them."""
        generator = np.random.default_rng(seed)
        values: dict[str, Floats] = {}
        for name in self.told[0].points:
            sites = []
            for one in self.told:
                normal = generator.standard_normal((draws, len(one.roots[name]))) @ one.roots[name].T
                level = ndtr(normal)
                sites.append(np.stack([_through(level[:, m], one.quantiles[name][m]) for m in models]))
            values[name] = np.stack(sites, axis=2)  # [models, D, N]
        found = []
        for k, model in enumerate(models):
            auc = None if self.positive is None else self._auc(model, draws, generator)
            found.append(self._judged({name: one[k] for name, one in values.items()}, auc))
        return found

    def _judged(self, told: Mapping[str, Floats], auc: Floats | None) -> Judged:
        """Return all measures of sites and of all rows, given what was told, [D, N] each."""
        rows = self.sizes.sum(axis=1).astype(float)
        over_all = lambda values: np.nansum(values * rows, axis=1) / rows.sum()
        if not self.classes:
            sites = {"rmse": np.sqrt(told["mse"]), "mae": told["mae"]}
            return Judged(sites, {"rmse": np.sqrt(over_all(told["mse"])), "mae": over_all(told["mae"])})
        shares = np.stack([told[f"class {c}"] for c in range(self.classes)], axis=2)  # [D, N, C]
        right = np.where(self.sizes > 0, np.nan_to_num(shares) * self.sizes, 0.0)
        sites = {"accuracy": right.sum(axis=2) / rows, "log_loss": told["log_loss"], "brier": told["brier"]}
        whole = {name: over_all(values) for name, values in sites.items()}
        balanced = mean_of(np.where(self.sizes > 0, shares, np.nan))
        sites["balanced_accuracy"] = np.where((self.sizes > 0).sum(axis=1) > 1, balanced, np.nan)
        everywhere = np.broadcast_to(self.sizes.sum(axis=0).astype(np.float64), right[:, 0].shape)
        whole["balanced_accuracy"] = mean_of(ratio(right.sum(axis=1), everywhere))
        if self.positive is not None:
            p, q = self.positive, 1 - self.positive
            found, wrongly = right[..., p], self.sizes[:, q] - right[..., q]
            are = np.broadcast_to(self.sizes[:, p].astype(float), found.shape)
            parts: dict[str, Floats] = {"recall": are, "precision": found + wrongly}
            for name, below in parts.items():
                sites[name] = ratio(found, below)
                whole[name] = ratio(found.sum(axis=1), below.sum(axis=1))
            sites["auc"] = told["auc"]
            whole["auc"] = np.full(len(found), np.nan) if auc is None else auc
        return Judged(sites, whole)

    def _auc(self, model: int, draws: int, generator: np.random.Generator | None) -> Floats:
        """Return the AUC over all sites' rows, of their histograms or of draws from them, [D].

        Of the m rows of a class at a site a draw has m - 1, each counting m / (m - 1) times, as the rows' own draws have.
        """
        both = np.zeros((2, draws, BINS))
        for one in self.told:
            assert one.histograms is not None
            for label, bins in enumerate(one.histograms[model]):
                total = int(bins.sum())
                if generator is None or total < 2:
                    both[label] += bins
                else:
                    both[label] += generator.multinomial(total - 1, bins / total, draws) * (total / (total - 1))
        down, up = both
        before = down.cumsum(axis=1) - down
        return ratio((up * (before + down / 2)).sum(axis=1), up.sum(axis=1) * down.sum(axis=1))

    def rates(self, model: int, draws: int, seed: int = 0) -> Rates | None:
        """Return a model's rates by group, over all sites' test rows; None: there are no groups."""
        names = sorted({name for one in self.told for name in one.groups})
        if not names:
            return None
        none = np.zeros((2, 2), np.int64)
        counted = np.array([sum((one.groups[n][model] if n in one.groups else none for one in self.told), none) for n in names])
        rows, called = counted[..., 0].T.reshape(-1), counted[..., 1].T.reshape(-1)  # positive of each group, then negative
        once = ratio(called.astype(float), rows.astype(float))
        generator = np.random.default_rng(seed)
        drawn = generator.binomial(rows, np.nan_to_num(once), (draws, len(rows)))
        return rates_of(names, counted[..., 0].astype(np.intp), once, ratio(drawn.astype(float), rows.astype(float)))


def _through(level: Floats, quantiles: Floats) -> Floats:
    """Return numbers that lie among the quantiles as the levels do; NaN where there are none."""
    if not np.isfinite(quantiles).all():
        return np.full(len(level), np.nan)
    return np.interp(level, LEVELS, quantiles)
