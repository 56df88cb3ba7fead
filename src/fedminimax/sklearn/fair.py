"""A classifier and a regressor that are good for the worst-off client."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from fedminimax.algorithms import AFL, Algorithm, FedAvg, Scaffold, ScaffPD
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.fairness import smoothness
from fedminimax.penalties import Agnostic, ChiSquare, CVaR, Penalty, QFair
from fedminimax.problems.robust import RobustProblem
from fedminimax.problems.robust_model import ENTROPY, SQUARED, robust_model
from fedminimax.sets import CappedSimplex, Simplex
from fedminimax.sklearn.base import FederatedEstimator, network, validate_data
from fedminimax.sklearn.constants import coupling, curvature
from fedminimax.sklearn.layers import Array, Layers, Scaling
from fedminimax.sklearn.training import GAP, OBJECTIVE, Methods, arrays, frame

_MEAN = "mean_loss"
_EAGER = 3.0
"""The most of sigma, in units of 1 / (N f): a client whose loss is the mean f above the others' gains a weight of 3 / N."""
_PENALTIES = {"chi2": (ChiSquare, 0.1), "cvar": (CVaR, 0.3), "qfair": (QFair, 1.0)}
_METHODS = ("ScaffPD", "AFL", "FedAvg")


class Outline(NamedTuple):
    """All that a problem is built from but the data: estimators with the same share what was compiled."""

    features: int
    widths: tuple[int, ...]
    classes: int | None
    penalty: Penalty
    ridge: float
    seed: int


class _Fair(FederatedEstimator):
    """min_x max_{w in W} sum_i w_i f_i(x) - psi(w), f_i the mean loss over the rows of client i."""

    client_weights_: pd.Series[float]

    def __init__(
        self,
        penalty: Any = "chi2",
        strength: float | None = None,
        *,
        method: Any = "ScaffPD",
        hidden: Any = (),
        ridge: float = 1e-3,
        rounds: int = 200,
        local_steps: int = 10,
        batch_size: int | None = None,
        standardize: bool = True,
        tol: float = 1e-4,
        random_state: Any = None,
        verbose: Any = False,
    ):
        self.penalty = penalty
        self.strength = strength
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

    def _train(self, X: Array, labels: npt.NDArray[Any], classes: int | None, clients: Any) -> Layers:
        """Train on rows whose labels are class numbers or standardised; return the layers for rows as they are."""
        sites = self._sites(clients, len(X))
        data, scaling = self._data(X, labels, sites)
        training, seed = self._training()
        psi = self._penalty()
        problem = _problem(Outline(X.shape[1], self._widths(), classes, psi, self._ridge(), seed))
        method = self.method if isinstance(self.method, Algorithm) else self._steps(problem, data, classes, psi)
        averages = self.method == "FedAvg" or isinstance(self.method, (FedAvg, Scaffold))
        result, self.method_ = training(problem, data, method, _measured, _MEAN if averages else OBJECTIVE)
        self.n_iter_, self.history_ = result.rounds, frame(result)
        equal = np.full(data.count, 1 / data.count)
        weights = equal if result.y is None else np.asarray(result.y, float)
        self.client_weights_ = pd.Series(weights, index=pd.Index(sites.names, name="client"), name="weight")
        layers = Layers.of(arrays(result.x))
        return layers.on_raw_inputs(scaling)

    def _penalty(self) -> Penalty:
        if isinstance(self.penalty, Penalty):
            if self.strength is not None:
                raise InputError(f"penalty is {self.penalty!r}, which has its strength: leave strength out.")
            return self.penalty
        if self.penalty == "agnostic":
            return Agnostic()
        if self.penalty not in _PENALTIES:
            known = ", ".join(repr(name) for name in [*_PENALTIES, "agnostic"])
            raise InputError(f"There is no penalty {self.penalty!r}: choose {known}, or give one such as ChiSquare(0.1).")
        kind, usual = _PENALTIES[self.penalty]
        return kind(usual if self.strength is None else self.strength)

    def _steps(self, problem: RobustProblem, data: ClientData, classes: int | None, psi: Penalty) -> Methods:
        """Return the method with steps in the units of the problem, as a function of a factor on them."""
        if not isinstance(self.method, str) or self.method not in _METHODS:
            raise InputError(
                f"method is {self.method!r}: choose {', '.join(map(repr, _METHODS))}, or give one with its step sizes, such as "
                "ScaffPD(tau=0.1, sigma=0.1)."
            )
        naive = 0.5 if classes is None else np.log(classes)  # the loss of a model that knows nothing
        rows = np.concatenate([data.fields["inputs"], np.ones((data.total, 1), np.float32)], axis=1)
        labels = data.fields["labels"]
        found = curvature(rows, data, np.full(data.count, 1 / data.count))
        # The softmax bends by at most a half, the half square by one; and a model that is zero pulls at its outputs so:
        bend = (1.0 if classes is None else 0.5) * found.cautious + self._ridge()
        pulls = -labels[:, None] if classes is None else 1 / classes - np.eye(classes)[labels]
        pull = coupling(rows, pulls, data, centred=isinstance(psi.set(data.count), (Simplex, CappedSimplex)))
        if self._widths():  # as much more as it bends more
            linear, bend = bend, smoothness(problem, data) * found.cautious / max(found.average, 1e-12)
            pull *= bend / max(linear, 1e-12)
        answer = np.asarray(psi.maximize(jnp.full(data.count, naive, jnp.float32)), float)
        lr = 1 / (max(bend, 1e-12) * max(1.0, answer.sum()))
        weigh = min(_EAGER * answer.mean() / naive, 1 / max(lr * self.local_steps * pull, 1e-12))
        shape: dict[str, Any] = {"local_steps": self.local_steps, "batch_size": self.batch_size}
        if self.method == "ScaffPD":
            return lambda factor: ScaffPD(tau=factor * lr * self.local_steps, sigma=factor * weigh, **shape)
        if self.method == "AFL":
            return lambda factor: AFL(lr_x=factor * lr, lr_w=factor * weigh, **shape)
        return lambda factor: FedAvg(lr_x=factor * lr, **shape)


class FairClassifier(ClassifierMixin, _Fair):
    r"""A linear classifier or a small network that is good for every client, not only on average.

    .. math:: \min_x \max_{w \in W} \sum_i w_i f_i(x) - \psi(w)

    with f_i the mean cross-entropy over the rows of client i plus ridge/2 ||x||^2, and psi the price of weights w that are not
    equal. With one client it is plain training.

    Step sizes come from the data. A local step of x is 1 / L, L the largest curvature of a client's loss by power iteration (at
    most ten times that of the average). The step of w is the largest with which a primal-dual method is stable, 1 / (K/L J^2)
    with J the norm of the clients' gradients at the start less their mean, and at most 3 / (N f), f the loss there. If the
    objective gets non-finite, loses a tenth of what it had gained, or settles where w is far from the best answer to x (the
    players chase each other), all steps are halved and the training starts again, up to five times; then a ConvergenceWarning
    says so.

    Args:
        penalty: "chi2" (:class:`ChiSquare`), "cvar", "qfair", "agnostic", or a penalty of :mod:`fedminimax.penalties`.
        strength: rho of "chi2" (by default 0.1), alpha of "cvar" (0.3), q of "qfair" (1).
        method: "ScaffPD", "AFL" or "FedAvg" (which minimises the average), or a method with its own step sizes, local steps
            and batch size.
        hidden: the widths of hidden layers with ReLU, such as (64,); none: the model is linear.
        ridge: the l2 regularisation, of the standardised columns' coefficients.
        rounds: the most communication rounds.
        local_steps: K, steps of a client in a round.
        batch_size: rows a local step; None: all, and then ``random_state`` matters for hidden layers alone.
        standardize: whether columns are centred and scaled inside, by sums that sites could report. Coefficients are given in
            the columns' own units either way. Without it, columns of unequal scales take many more rounds.
        tol: training ends when the objective changes by less than this share of itself in a twentieth of the rounds; 0: never.
        random_state: a seed, a RandomState, or None.
        verbose: whether to show a progress bar.

    Attributes:
        classes_: the classes, sorted.
        coef_: of a linear model, [1, features] for two classes, else [classes, features].
        intercept_: of a linear model, [1] or [classes].
        coefs_: the kernels of all layers. A layer has one output a class, also for two.
        intercepts_: the biases of all layers.
        clients_: the clients' names.
        client_weights_: the final w, by client. Large: the model is bad there, for its best.
        history_: a table over rounds, on the training rows: the objective (at the best answer w), how much less it is at the
            method's w ("gap", 0 at the solution), the mean loss and the worst client's.
        method_: the method with the step sizes that were used.
        n_iter_: how many rounds were run.
        n_features_in_: how many columns there were.
        feature_names_in_: their names, where X was a table with names.
    """

    classes_: npt.NDArray[Any]

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Train on rows X with labels y.

        Args:
            X: a table or matrix of numbers without missing values.
            y: the class of every row.
            clients: the client of every row, of any type; None: all rows are one client's, which is plain training.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has the one class {self.classes_[0]!r}: a classifier needs rows of two classes or more.")
        self._keep(self._train(X, labels.astype(np.int32), len(self.classes_), clients))
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the log-odds of the second class, [rows], or with more than two classes a score of each, [rows, classes]."""
        scores = self._outputs(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, [rows, classes]: the softmax of the outputs."""
        return softmax(self._outputs(X), axis=1)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the likeliest class of each row."""
        place = self._outputs(X).argmax(axis=1)  # which also says whether there are classes yet
        return self.classes_[place]

    @property
    def coef_(self) -> Array:
        """The coefficients of a linear model; for two classes those of the second class's log-odds."""
        kernel = self._linear("coef_")[0]
        return kernel[:, 1:].T - kernel[:, :1].T if kernel.shape[1] == 2 else kernel.T

    @property
    def intercept_(self) -> Array:
        """The intercepts of a linear model."""
        bias = self._linear("intercept_")[1]
        return bias[1:] - bias[:1] if len(bias) == 2 else bias


class FairRegressor(RegressorMixin, _Fair):
    r"""A linear regression or a small network that is good for every client, not only on average.

    :math:`\min_x \max_{w \in W} \sum_i w_i f_i(x) - \psi(w)` as in :class:`FairClassifier`, with f_i half the mean squared
    error on client i's rows plus ridge/2 ||x||^2. Targets are standardised inside, and predictions are in their units.

    Args:
        penalty: as in :class:`FairClassifier`.
        strength: of the penalty.
        method: "ScaffPD", "AFL" or "FedAvg", or a method with its step sizes.
        hidden: the widths of hidden layers; none: the model is linear.
        ridge: the l2 regularisation, in standardised units.
        rounds: the most communication rounds.
        local_steps: K.
        batch_size: rows a local step; None: all.
        standardize: whether columns are centred and scaled inside.
        tol: when training ends.
        random_state: a seed, a RandomState, or None.
        verbose: whether to show a progress bar.

    Attributes:
        coef_: of a linear model, [features].
        intercept_: of a linear model, a number.
        coefs_: the kernels of all layers.
        intercepts_: the biases of all layers.
        clients_: the clients' names.
        client_weights_: the final w, by client.
        history_: as :class:`FairClassifier` has it, for targets of variance one.
        method_: the method with the step sizes that were used.
        n_iter_: how many rounds were run.
        n_features_in_: how many columns there were.
        feature_names_in_: their names, where X was a table with names.
    """

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Train on rows X with targets y.

        Args:
            X: a table or matrix of numbers without missing values.
            y: the number to predict, for every row.
            clients: the client of every row, of any type; None: all rows are one client's, which is plain training.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        targets = Scaling.of(np.asarray(y, float)[:, None])
        layers = self._train(X, targets(y[:, None])[:, 0].astype(np.float32), None, clients)
        self._keep(layers.with_outputs(targets.deviation[0], targets.mean[0]))
        return self

    def predict(self, X: Any) -> Array:
        """Return the prediction for each row, in the units of y."""
        return self._outputs(X)[:, 0]

    @property
    def coef_(self) -> Array:
        """The coefficients of a linear model."""
        return self._linear("coef_")[0][:, 0]

    @property
    def intercept_(self) -> float:
        """The intercept of a linear model."""
        return float(self._linear("intercept_")[1][0])


@functools.lru_cache(maxsize=16)  # one object each, so that programs compiled for it are found again
def _problem(outline: Outline) -> RobustProblem:
    classes = outline.classes
    model, row = network(outline.features, outline.widths, classes or 1)
    loss = SQUARED if classes is None else ENTROPY
    return robust_model(model, row, classes, penalty=outline.penalty, loss=loss, ridge=outline.ridge, seed=outline.seed)


def _measured(problem: RobustProblem, clients: ClientData, state: Any) -> dict[str, jax.Array]:
    """Return max_w sum_i w_i f_i - psi(w), what it is more than at the state's w, and the mean and the largest f_i."""
    losses, psi = problem.losses(state.x, clients), problem.penalty
    value = lambda w: losses @ w - psi.value(w)
    best = value(psi.maximize(losses))
    gap = jnp.zeros(()) if state.y is None else best - value(state.y)
    return {OBJECTIVE: best, GAP: gap, _MEAN: jnp.mean(losses), "worst_loss": jnp.max(losses)}
