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
    """Return where the min player starts: weight and bias of each layer, in PyTorch's order; for F then a and b.

    Of I's convolutions it is the weight, and the scale and bias of the normalisation that follows.
    """
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
        channels = len(bias) if kernel.ndim == 4 and workload.name != "I" else 0
        scale = [torch.ones(len(bias))] if kernel.ndim == 4 and workload.name == "I" else []
        x += [weight, *scale, torch.from_numpy(bias)]
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
        "H": torch.full((CLASSES,), 1.0 / CLASSES),
        "I": torch.full((CLASSES,), 1.0 / CLASSES),
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
    scores = _residual_scores(x, inputs) if workload.name == "I" else _scores(x, inputs, unpooled=workload.unpooled)
    entropy = F.cross_entropy(scores, labels, reduction="none")
    return (CLASSES * y[labels] * entropy).mean()


def constrained(workload: Workload) -> bool:
    """Tell whether y is on the simplex."""
    return workload.name in "ACHI"


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


def _scores(x: Tensors, h: torch.Tensor, padding: int = 1, unpooled: tuple[int, ...] = ()) -> torch.Tensor:
    last = len(x) - 2
    for k in range(0, len(x), 2):
        weight, bias = x[k], x[k + 1]
        if weight.ndim == 4:
            h = F.relu(F.conv2d(h, weight, bias, padding=padding))
            h = h if k // 2 in unpooled else F.max_pool2d(h, 2)
        else:
            h = F.linear(h.flatten(1), weight, bias)
            h = F.relu(h) if k < last else h
    return h


def _residual_scores(x: Tensors, h: torch.Tensor) -> torch.Tensor:
    """Return the logits of a ResNet-18 with group normalisation."""
    *parts, weight, bias = x
    layers = iter(zip(parts[::3], parts[1::3], parts[2::3], strict=True))

    def norm_conv(h: torch.Tensor, stride: int = 1) -> torch.Tensor:
        kernel, scale, shift = next(layers)
        h = F.conv2d(h, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        return F.group_norm(h, 8, scale, shift)

    h = F.relu(norm_conv(h))
    for block in range(8):
        stride = 2 if block in (2, 4, 6) else 1
        inside = norm_conv(F.relu(norm_conv(h, stride)))
        h = F.relu(inside + (norm_conv(h, stride) if stride > 1 else h))
    return F.linear(h.mean((2, 3)), weight, bias)
