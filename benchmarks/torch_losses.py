"""The workloads' losses and starting points in PyTorch, for the two contenders that use it."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F

from workloads import CLASSES, GAN_PENALTY, ROBUST_PENALTY, Workload

Tensors = list[torch.Tensor]
Batch = dict[str, torch.Tensor]


def use_threads() -> None:
    """Use as many threads as the parent says; PyTorch's own choice is ten times slower on a busy machine."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))


def tensors(workload: Workload, memory_format: torch.memory_format = torch.contiguous_format) -> Batch:
    """Return all clients' examples; images in PyTorch's order, channels first, in the given memory format."""
    data = {name: torch.from_numpy(array) for name, array in workload.data().items()}
    if len(workload.shape) == 3:
        data["inputs"] = data["inputs"].permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    if "labels" in data:
        data["labels"] = data["labels"].long()
    return data


def start_x(workload: Workload, memory_format: torch.memory_format = torch.contiguous_format) -> Tensors:
    """Return where the min player starts: weight and bias of each layer, in PyTorch's order; for F then a and b."""
    if workload.name == "D":
        return [torch.ones(2)]
    x: Tensors = []
    channels = 0  # of the images that the layer takes
    for kernel, bias in workload.start_layers():
        weight = torch.from_numpy(kernel)
        if weight.ndim == 4:
            weight = weight.permute(3, 2, 0, 1).contiguous(memory_format=memory_format)
        elif channels:  # the first layer after the images, which are flattened with the channels first here
            side = int((len(weight) // channels) ** 0.5)
            weight = weight.view(side, side, channels, -1).permute(3, 2, 0, 1).flatten(1).contiguous()
        else:
            weight = weight.T.contiguous()
        channels = len(bias) if kernel.ndim == 4 else 0
        x += [weight, torch.from_numpy(bias)]
    return [*x, torch.zeros(()), torch.zeros(())] if workload.name == "F" else x


def start_y(workload: Workload) -> torch.Tensor:
    """Return where the max player starts."""
    return {
        "A": torch.full((CLASSES,), 1.0 / CLASSES),
        "B": torch.zeros(workload.shape),
        "C": torch.full((CLASSES,), 1.0 / CLASSES),
        "D": torch.zeros(2),
        "E": torch.full((workload.clients,), 1.0 / workload.clients),
        "F": torch.zeros(()),
        "G": torch.zeros(workload.shape),
    }[workload.name]


def loss(workload: Workload, x: Tensors, y: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the mean loss over a batch."""
    if workload.name == "D":
        (x,), z = x, batch["z"]
        real, fake = 0.1 * z, x[0] + x[1] * z
        return (y[0] * (real - fake) + y[1] * (real**2 - fake**2)).mean() - GAN_PENALTY * (y**2).sum()
    inputs, labels = batch["inputs"], batch["labels"]
    if workload.name == "E":  # y, the weights on clients, is the server's own
        return 0.5 * ((_scores(x, inputs) - F.one_hot(labels, CLASSES)) ** 2).sum(dim=1).mean()
    if workload.name == "F":
        return _auc(workload.positive, x, y, inputs, labels > 0)
    if workload.name in "BG":
        return F.cross_entropy(_scores(x, inputs + y), labels) - ROBUST_PENALTY / 2 * (y**2).sum()
    entropy = F.cross_entropy(_scores(x, inputs), labels, reduction="none")
    return (CLASSES * y[labels] * entropy).mean()


def constrained(workload: Workload) -> bool:
    """Tell whether y is on the simplex."""
    return workload.name in "AC"


@torch.no_grad()
def project_(y: torch.Tensor) -> None:
    """Project on the simplex, in place."""
    excess = (torch.sort(y, descending=True).values.cumsum(0) - 1) / torch.arange(1, len(y) + 1)
    y.sub_(excess.max()).clamp_(min=0)


@torch.no_grad()
def mean_loss(workload: Workload, x: Tensors, y: torch.Tensor, data: Batch, chunk: int = 500) -> float:
    """Return the loss averaged over everybody's examples, in chunks."""
    parts = -(-workload.total // chunk)
    slices = (slice(k * chunk, (k + 1) * chunk) for k in range(parts))
    return sum(float(loss(workload, x, y, {n: a[s] for n, a in data.items()})) for s in slices) / parts


def _auc(tau: float, x: Tensors, y: torch.Tensor, inputs: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
    """Return the AUC's minimax loss, the score being the first component of the softmax; tau is the share of positives."""
    *_, a, b = x
    h = scores_of(x, inputs)
    squares = torch.where(positive, (1 - tau) * (h - a) ** 2, tau * (h - b) ** 2)
    linear = torch.where(positive, -(1 - tau) * h, tau * h)
    return (squares + 2 * (1 + y) * linear).mean() - tau * (1 - tau) * y**2


def scores_of(x: Tensors, inputs: torch.Tensor) -> torch.Tensor:
    """Return the scores whose AUC is F's: the first component of the softmax."""
    *layers, _, _ = x
    return F.softmax(F.relu(_scores(layers, inputs, padding=0)), dim=1)[:, 0]


def _scores(x: Tensors, h: torch.Tensor, padding: int = 1) -> torch.Tensor:
    last = len(x) - 2
    for k in range(0, len(x), 2):
        weight, bias = x[k], x[k + 1]
        if weight.ndim == 4:
            h = F.max_pool2d(F.relu(F.conv2d(h, weight, bias, padding=padding)), 2)
        else:
            h = F.linear(h.flatten(1), weight, bias)
            h = F.relu(h) if k < last else h
    return h
