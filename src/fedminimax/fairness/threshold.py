"""The probability from which on a row is called positive, found on training rows that stay with their sites.

A rare class is seldom more likely than not, so that the usual 0.5 calls nobody. Each site counts its training rows by class in
1,000 bins of the predicted log-odds; the server adds the counts up and takes the bin's edge with the greatest balanced
accuracy, (TPR + TNR) / 2. It is one number for the model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BINS = 1000
_LEAST = 1e-5  # probabilities below this, or as near to 1, share the outermost bins
_EDGE = float(np.log(_LEAST / (1 - _LEAST)))
HALF = 0.5


def histogram(probability: npt.ArrayLike, positive: npt.ArrayLike, bins: int = BINS) -> npt.NDArray[np.int64]:
    """Return a site's counts of negative and positive rows by the bin of their predicted log-odds, [2, bins].

    Args:
        probability: of the positive class, for each of the site's rows.
        positive: whether each row is of that class.
        bins: how many.
    """
    p = np.clip(np.asarray(probability, float), _LEAST, 1 - _LEAST)
    place = (np.log(p / (1 - p)) - _EDGE) / (-2 * _EDGE) * bins
    found = np.minimum(place.astype(np.int64), bins - 1)
    return np.bincount(found + bins * np.asarray(positive, np.int64), minlength=2 * bins).reshape(2, bins)


def best_threshold(counts: npt.NDArray[np.int64]) -> float:
    """Return the threshold with the greatest balanced accuracy, given the histogram of all sites together.

    Of several equally good edges, the middle one. Without rows of both classes it is 0.5.
    """
    negative, positive = counts
    if not negative.sum() or not positive.sum():
        return HALF
    # At edge k the bins k, k + 1, ... are called positive.
    called = positive[::-1].cumsum()[::-1] / positive.sum()
    spared = np.concatenate([[0], negative.cumsum()[:-1]]) / negative.sum()
    balanced = called + spared
    best = np.flatnonzero(balanced >= balanced.max() - 1e-12)
    odds = _EDGE + (-2 * _EDGE) * best[len(best) // 2] / counts.shape[1]
    return float(1 / (1 + np.exp(-odds)))
