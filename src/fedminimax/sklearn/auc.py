"""A classifier that ranks positive rows above negative ones: the area under the ROC curve, in its minimax form."""

from __future__ import annotations

import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.special import expit
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from fedminimax import metrics, players
from fedminimax.algorithms import CODASCA, Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.fairness import smoothness
from fedminimax.penalties import Agnostic
from fedminimax.players import Point
from fedminimax.problems.auc import SIGMOID, auc
from fedminimax.problems.base import MinimaxProblem
from fedminimax.problems.robust import RobustProblem
from fedminimax.sklearn.base import FederatedEstimator, network, validate_data
from fedminimax.sklearn.constants import curvature
from fedminimax.sklearn.layers import Array, Layers
from fedminimax.sklearn.training import OBJECTIVE, Methods, arrays, frame

_PACE = 0.3
"""How far y goes in a round towards its best answer."""
_NEWTON_STEPS = 50
_LEAST_SLOPE = 1e-3
"""Calibration keeps the order of scores, whatever the training rows say."""


class AUCClassifier(ClassifierMixin, FederatedEstimator):
    r"""A binary classifier whose scores have a large area under the ROC curve, for classes of unequal size.

    The square surrogate of the AUC, E (1 - h(x+) + h(x-))^2 over pairs of a positive and a negative row of whatever client,
    does not split into clients' losses, but its minimax form does (:func:`fedminimax.problems.auc`): each client needs its own
    rows, two numbers a and b, and the dual variable y. h is the logistic function of the network's output: one far outlier
    then counts for no more than a mistake. Added is ridge/2 ||theta||^2.

    A local step of x is 1 / L with L an estimate of the curvature by power iteration, and y goes three tenths of the way to its
    best answer in a round. As in :class:`FairClassifier`, steps are halved if the training loses what it had gained.

    Scores for the AUC have an order and no scale. After training the network's output z is calibrated on the training rows by a
    logistic curve of two parameters, s = slope z + offset with slope > 0 (Platt scaling, with his smoothed targets; its sums
    could come from sites). ``decision_function`` is s, ``predict_proba`` its logistic function, and ``predict`` cuts at s = 0,
    probability one half. Where a class is rare that may be too late: choose a threshold with
    ``sklearn.model_selection.TunedThresholdClassifierCV``. ``score`` is the accuracy, as that of every classifier; for the area
    give ``scoring="roc_auc"``.

    Args:
        weights: "size": all rows count alike, so that it is the area of all rows together; "equal": all clients do.
        method: "CODASCA", or a method for a :class:`MinimaxProblem` with its step sizes.
        hidden: the widths of hidden layers with ReLU, such as (64,); none: the score is linear.
        ridge: the l2 regularisation, of the standardised columns' coefficients.
        rounds: the most communication rounds.
        local_steps: K, steps of a client in a round.
        batch_size: rows a local step; None: all.
        standardize: whether columns are centred and scaled inside, by sums that sites could report.
        tol: training ends when the objective changes by less than this share of itself in a twentieth of the rounds; 0: never.
        random_state: a seed, a RandomState, or None.
        verbose: whether to show a progress bar.

    Attributes:
        classes_: the two classes, sorted; the second is the positive one.
        coef_: of a linear model, [1, features].
        intercept_: of a linear model, [1].
        coefs_: the kernels of all layers.
        intercepts_: the biases of all layers.
        clients_: the clients' names.
        history_: the objective over rounds, at the best y.
        method_: the method with the step sizes that were used.
        n_iter_: how many rounds were run.
        n_features_in_: how many columns there were.
        feature_names_in_: their names, where X was a table with names.
    """

    classes_: npt.NDArray[Any]

    def __init__(
        self,
        weights: str = "size",
        *,
        method: Any = "CODASCA",
        hidden: Any = (),
        ridge: float = 1e-4,
        rounds: int = 200,
        local_steps: int = 10,
        batch_size: int | None = None,
        standardize: bool = True,
        tol: float = 1e-4,
        random_state: Any = None,
        verbose: Any = False,
    ):
        self.weights = weights
        self.method = method
        self.hidden = hidden
        self.ridge = ridge
        self.rounds = rounds
        self.local_steps = local_steps
        self.batch_size = batch_size
        self.standardize = standardize
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Train on rows X with labels y of two classes.

        Args:
            X: a table or matrix of numbers without missing values.
            y: the class of every row.
            clients: the client of every row, of any type; None: all rows are one client's.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise InputError(f"Only binary classification is supported. The type of the target is {kind}: choose two classes.")
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has the one class {self.classes_[0]!r}: a classifier needs rows of two classes.")
        if self.weights not in ("size", "equal"):
            raise InputError(f"weights is {self.weights!r}: choose 'size' (rows count alike) or 'equal' (clients do).")
        sites = self._sites(clients, len(X))
        data, scaling = self._data(X, labels.astype(np.int32), sites)
        training, seed = self._training()
        p = np.asarray(data.sizes) / data.total if self.weights == "size" else np.full(data.count, 1 / data.count)
        share = _share(data, p)
        problem = _problem(X.shape[1], self._widths(), share, self._ridge(), self.weights, seed)
        method = self.method if isinstance(self.method, Algorithm) else self._steps(problem, data, share, p)
        result, self.method_ = training(problem, data, method, _measured, OBJECTIVE)
        self.n_iter_, self.history_ = result.rounds, frame(result)
        layers = Layers.of(arrays(result.x["theta"])).on_raw_inputs(scaling)
        self._keep(layers.with_outputs(*calibrated(layers(X)[:, 0], labels)))
        return self

    def _steps(self, problem: MinimaxProblem, data: ClientData, share: float, p: Array) -> Methods:
        """Return the method with steps in the units of the problem, as a function of a factor on them."""
        if self.method != "CODASCA":
            raise InputError(
                f"method is {self.method!r}: choose 'CODASCA', or give one with its step sizes, such as "
                "CODASCA(lr_x=0.1, lr_y=0.1)."
            )
        inputs, positive = data.fields["inputs"], data.fields["labels"] > 0
        concavity = 2 * share * (1 - share)
        rows = np.concatenate([inputs, np.ones((data.total, 1), np.float32)], axis=1)
        found = curvature(rows * np.sqrt(2 * np.where(positive, 1 - share, share))[:, None], data, p)
        if self._widths():
            bend = smoothness(_at_zero(problem), data) * found.cautious / max(found.average, 1e-12)
        else:  # a logistic function rises by at most a quarter; y, at its best answer, adds what the classes are apart
            apart = inputs[positive].mean(axis=0) - inputs[~positive].mean(axis=0)
            bend = (found.cautious + concavity * float(apart @ apart)) / 16 + self._ridge()
        bend = max(bend, 2 * max(share, 1 - share))  # that of a and b
        lr_y = _PACE / (concavity * self.local_steps)
        shape: dict[str, Any] = {"local_steps": self.local_steps, "batch_size": self.batch_size}
        return lambda factor: CODASCA(lr_x=factor / bend, lr_y=factor * lr_y, **shape)

    def decision_function(self, X: Any) -> Array:
        """Return the calibrated log-odds of the positive class, [rows]."""
        return self._outputs(X)[:, 0]

    def predict_proba(self, X: Any) -> Array:
        """Return the calibrated probabilities of both classes, [rows, 2]."""
        scores = self.decision_function(X)
        return np.stack([expit(-scores), expit(scores)], axis=1)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the class of each row: the positive one where its probability is above one half."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]

    @property
    def coef_(self) -> Array:
        """The coefficients of a linear model's log-odds."""
        return self._linear("coef_")[0].T

    @property
    def intercept_(self) -> Array:
        """The intercept of a linear model's log-odds."""
        return self._linear("intercept_")[1]


def calibrated(scores: Array, positive: npt.NDArray[Any]) -> tuple[float, float]:
    """Return slope and offset of the logistic curve that fits labels to scores, by Newton's steps (Platt, 1999).

    The targets are (n+ + 1)/(n+ + 2) and 1/(n- + 2) in place of 1 and 0, without which classes that scores tell apart
    perfectly would have a slope without end.
    """
    count = np.bincount(positive.astype(int), minlength=2)
    target = np.where(positive, (count[1] + 1) / (count[1] + 2), 1 / (count[0] + 2))
    middle, spread = scores.mean(), max(float(scores.std()), np.finfo(float).tiny)
    rows = np.stack([(scores - middle) / spread, np.ones_like(scores)], axis=1)
    line = np.zeros(2)
    fit = lambda line: float(np.sum(np.logaddexp(0, rows @ line) - target * (rows @ line)))
    for _ in range(_NEWTON_STEPS):
        chance = expit(rows @ line)
        slope = rows.T @ (chance - target)
        bend = rows.T @ (rows * (chance * (1 - chance))[:, None]) + 1e-9 * np.eye(2)
        step, size = np.linalg.solve(bend, slope), 1.0
        while fit(line - size * step) > fit(line) and size > 1e-6:
            size /= 2
        line = line - size * step
        if np.abs(step).max() < 1e-10:
            break
    factor = max(line[0] / spread, _LEAST_SLOPE)
    return float(factor), float(line[1] - factor * middle)


def _share(data: ClientData, p: Array) -> float:
    """Return the share of positive rows, with the clients' weights p."""
    return float(p @ (np.add.reduceat(data.fields["labels"], data.starts) / data.sizes))


@functools.lru_cache(maxsize=16)  # one object each, so that programs compiled for it are found again
def _problem(features: int, widths: tuple[int, ...], share: float, ridge: float, weights: str, seed: int) -> MinimaxProblem:
    model, row = network(features, widths, 1)
    plain = auc(model, row, score=SIGMOID, tau=share, weights="size" if weights == "size" else None, seed=seed)
    if ridge == 0:
        return plain
    return plain.replace(loss=lambda x, y, batch: plain.loss(x, y, batch) + ridge / 2 * players.sqnorm(x["theta"]))


def _at_zero(problem: MinimaxProblem) -> RobustProblem:
    """Return the losses of x alone, at y = 0, whose curvature can be asked for."""
    return RobustProblem(
        lambda x, batch: problem.loss(x, jnp.zeros(()), batch), problem.x0, Agnostic(), weights=problem.weights
    )


def _measured(problem: MinimaxProblem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
    """Return max_y F(x, y)."""
    assert problem.best_response is not None
    y = problem.best_response(state.x, clients, problem.client_weights(clients))
    return {OBJECTIVE: metrics.objective(problem, clients, Point(state.x, y))}
