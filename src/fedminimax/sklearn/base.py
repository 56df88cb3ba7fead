"""What the estimators share: their checks of the table, its clients, and the trained network."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from flax import linen as nn
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedminimax import checks
from fedminimax.algorithms import Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.models import MLP, Linear
from fedminimax.sklearn.layers import Array, Layers, Scaling
from fedminimax.sklearn.sites import Sites
from fedminimax.sklearn.training import Training

try:
    from sklearn.utils.validation import validate_data
except ImportError:
    raise ImportError("fedminimax.sklearn needs scikit-learn 1.6 or newer: pip install -U scikit-learn.") from None


class FederatedEstimator(BaseEstimator):
    """A network of dense layers, trained over clients and kept as arrays in the units of the table."""

    # Where metadata routing is on, meta-estimators hand ``clients`` to ``fit`` without being told to.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"clients": True}

    hidden: Any
    ridge: float
    rounds: int
    local_steps: int
    batch_size: int | None
    standardize: bool
    tol: float
    random_state: Any
    verbose: Any

    coefs_: list[Array]
    intercepts_: list[Array]
    clients_: npt.NDArray[Any]
    history_: pd.DataFrame
    method_: Algorithm
    n_iter_: int

    def _sites(self, clients: Any, rows: int) -> Sites:
        """Return whose row is whose, and keep the names."""
        sites = Sites.of(clients, rows)
        self.clients_ = sites.names
        return sites

    def _data(self, X: Array, labels: npt.NDArray[Any], sites: Sites) -> tuple[ClientData, Scaling]:
        """Return the clients' data, standardised if that is wanted, and how to undo it."""
        scaling = Scaling.of(X, self.standardize)
        fields = {"inputs": scaling(X).astype(np.float32), "labels": labels}
        return ClientData.from_owner(fields, sites.owner, len(sites.names)), scaling

    def _training(self) -> tuple[Training, int]:
        """Return how to train, and a seed for the network: 0 for a linear model, which starts at zero whatever the seed."""
        rounds, tol = checks.integer("rounds", self.rounds), checks.real(self.tol)
        if not 0 <= tol < np.inf:
            raise InputError(f"tol is {self.tol!r}: give a number of at least 0; 0 trains for all rounds.")
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        return Training(rounds, tol, seed, bool(self.verbose)), seed if self._widths() else 0

    def _widths(self) -> tuple[int, ...]:
        """Return the widths of the hidden layers; none: the model is linear."""
        hidden = () if self.hidden is None else self.hidden
        hidden = (hidden,) if isinstance(hidden, (int, np.integer)) else hidden
        if isinstance(hidden, str) or not np.iterable(hidden):
            raise InputError(f"hidden is {self.hidden!r}: give the widths of the hidden layers, such as (64,), or () for none.")
        return tuple(checks.integer("A width in hidden", width) for width in hidden)

    def _ridge(self) -> float:
        ridge = checks.real(self.ridge)
        if not 0 <= ridge < np.inf:
            raise InputError(f"ridge is {self.ridge!r}: give a number of at least 0.")
        return ridge

    def _keep(self, layers: Layers) -> None:
        self.coefs_, self.intercepts_ = layers.kernels, layers.biases

    def _outputs(self, X: Any) -> Array:
        """Return the network's outputs for rows of a user's table, [rows, outputs]."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        return Layers(self.coefs_, self.intercepts_)(rows)

    def _linear(self, name: str) -> tuple[Array, Array]:
        """Return the one layer of a linear model, or say that there is no such attribute."""
        if len(vars(self).get("coefs_", ())) != 1:
            raise AttributeError(
                f"{type(self).__name__} has {name} when it is fitted with hidden=(): see coefs_ and intercepts_."
            )
        return self.coefs_[0], self.intercepts_[0]


def network(features: int, widths: tuple[int, ...], outputs: int) -> tuple[nn.Module, ClientData]:
    """Return a network, and one row of zeros that tells its shapes: a problem that is built on it serves all data alike."""
    example = {"inputs": np.zeros((1, features), np.float32), "labels": np.zeros(1, np.int32)}
    return (MLP(widths, outputs) if widths else Linear(outputs)), ClientData.from_list([example])
