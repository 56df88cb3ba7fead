"""pfl: federated averaging on its simulated backend, both players being parameters of one model. Workloads A and B."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.version import __version__ as pfl_version

from child import serve
from torch_losses import constrained, loss, mean_loss, project_, start_x, start_y, tensors, use_threads
from workloads import Workload

NEVER = 10**9


class Players(torch.nn.Module):
    """Both players as one model."""

    def __init__(self, workload: Workload):
        super().__init__()
        self.workload = workload
        self.x = torch.nn.ParameterList(start_x(workload))
        self.y = torch.nn.Parameter(start_y(workload))

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss(self.workload, list(self.x), self.y, {"inputs": inputs, "labels": labels})

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted.from_unweighted(self.loss(inputs, labels).item())}


class DescentAscent(torch.optim.SGD):
    """SGD that goes down in x and up in y, and keeps y on the simplex where it has to be."""

    def __init__(self, players: Players, lr: float):
        w = players.workload
        super().__init__(
            [{"params": list(players.x)}, {"params": [players.y], "lr": w.lr_y * lr / w.lr_x, "maximize": True}], lr=lr
        )
        self.simplex = players.y if constrained(w) else None

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        if self.simplex is not None:
            project_(self.simplex)


class PflLoop:
    """pfl's contender."""

    versions: ClassVar = {"pfl": pfl_version, "torch": torch.__version__}

    def __init__(self, workload: Workload):
        if workload.name not in "AB":
            raise ValueError("The pfl contender runs workloads A and B.")
        use_threads()
        np.random.seed(0)  # noqa: NPY002 - the generator that pfl draws from
        self.workload, self.data = workload, tensors(workload)
        users = range(workload.clients)
        datasets = [self._user(i) for i in users]
        training = FederatedDataset(datasets.__getitem__, get_user_sampler("random", list(users)))
        self.backend = SimulatedBackend(training_data=training, val_data=training)

    def start(self) -> None:
        self.players = Players(self.workload)
        self.model = PyTorchModel(
            model=self.players,
            local_optimizer_create=self._local_optimizer,
            central_optimizer=torch.optim.SGD(self.players.parameters(), lr=1.0),
        )
        self.algorithm = FederatedAveraging()
        self.now = 1  # pfl evaluates in round 0, whatever it is told
        self.algorithm._current_central_iteration = self.now

    def advance(self, rounds: int) -> None:
        w = self.workload
        self.now += rounds
        self.algorithm.run(
            NNAlgorithmParams(
                central_num_iterations=self.now,
                evaluation_frequency=NEVER,
                train_cohort_size=w.cohort,
                val_cohort_size=None,
            ),
            self.backend,
            self.model,
            NNTrainHyperParams(
                local_batch_size=w.batch, local_num_epochs=None, local_learning_rate=w.lr_x, local_num_steps=w.steps
            ),
            callbacks=[],
            send_metrics_to_platform=False,
        )

    def loss(self) -> float:
        return mean_loss(self.workload, list(self.players.x), self.players.y, self.data)

    def _user(self, i: int) -> Dataset:
        own = slice(i * self.workload.examples, (i + 1) * self.workload.examples)
        return Dataset(raw_data=[self.data["inputs"][own], self.data["labels"][own]], user_id=str(i))

    def _local_optimizer(self, _: Iterable[Any], lr: float) -> DescentAscent:
        return DescentAscent(self.players, lr)


if __name__ == "__main__":
    serve(PflLoop)
