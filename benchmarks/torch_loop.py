"""A plain PyTorch loop, as a researcher writes it: over rounds, over clients, over steps."""

from __future__ import annotations

from typing import ClassVar

import torch

from child import serve
from torch_losses import Tensors, constrained, loss, mean_loss, project_, start_x, start_y, tensors, use_threads
from workloads import RHO, SIGMA, Workload


class TorchLoop:
    """The plain loop's contender."""

    versions: ClassVar = {"torch": torch.__version__}

    def __init__(self, workload: Workload, memory_format: torch.memory_format = torch.contiguous_format):
        use_threads()
        torch.manual_seed(0)
        self.workload, self.memory_format = workload, memory_format
        self.data = tensors(workload, memory_format)
        self.project = project_ if constrained(workload) else lambda y: None

    def start(self) -> None:
        self.x, self.y = start_x(self.workload, self.memory_format), start_y(self.workload)
        self.z = [p.clone() for p in self.x]
        self.__dict__.pop("losses", None)

    def advance(self, rounds: int) -> None:
        for _ in range(rounds):
            self._round()

    def loss(self) -> float:
        return mean_loss(self.workload, self.x, self.y, self.data)

    def _round(self) -> None:
        w = self.workload
        if w.name == "E":
            self._scaff_pd()
            return
        if w.guided:
            self._cd_mage()
            return
        mean = [torch.zeros_like(p) for p in [*self.x, self.y]]
        for client in torch.randperm(w.clients)[: w.cohort].tolist():
            for total, end in zip(mean, self._local(client), strict=True):
                total.add_(end, alpha=1 / w.cohort)
        if w.smoothing is None:
            *self.x, self.y = mean
            return
        # FESS-GDA with server step sizes of one: x is held near z, which follows it
        p, beta = w.smoothing
        for x, x_mean, z in zip(self.x, mean, self.z, strict=False):
            x.copy_(x_mean + w.lr_x * w.steps * p * (z - x))
            z.lerp_(x, beta)
        self.y = mean[-1]
        self.project(self.y)

    def _local(self, client: int) -> Tensors:
        """Return (x, y) after a client's local steps."""
        w = self.workload
        x = [p.clone().requires_grad_() for p in self.x]
        y = self.y.clone().requires_grad_()
        for _ in range(w.steps):
            rows = client * w.examples + torch.randint(w.examples, (w.batch,))
            batch = {name: array[rows] for name, array in self.data.items()}
            *gx, gy = torch.autograd.grad(loss(w, x, y, batch), [*x, y])
            with torch.no_grad():
                for p, g in zip(x, gx, strict=True):
                    p.sub_(g, alpha=w.lr_x)
                y.add_(gy, alpha=w.lr_y)
                self.project(y)
        return [p.detach() for p in [*x, y]]

    def _scaff_pd(self) -> None:
        """SCAFF-PD, Algorithms 1 and 2: losses and control variates, the weights, corrected local steps."""
        w = self.workload
        reports = [self._gradient(self.x, client) for client in range(w.clients)]
        losses = torch.tensor([value for value, _ in reports])
        before = getattr(self, "losses", losses)
        slope = losses + (losses - before)
        self.y = (self.y + SIGMA * slope + SIGMA * RHO) / (1 + SIGMA * RHO * w.clients)
        project_(self.y)
        self.losses = losses
        mean = [sum(self.y[i] * g[k] for i, (_, g) in enumerate(reports)) for k in range(len(self.x))]
        moved = [torch.zeros_like(p) for p in self.x]
        for client, (_, own) in enumerate(reports):
            correction = [c - c_own for c, c_own in zip(mean, own, strict=True)]
            u = [p.clone() for p in self.x]
            for _ in range(w.steps):
                _, gradient = self._gradient(u, client)
                for p, g, c in zip(u, gradient, correction, strict=True):
                    p.sub_(g + c, alpha=w.lr_x)
            for total, end, p in zip(moved, u, self.x, strict=True):
                total.add_(end - p, alpha=float(self.y[client]))
        self.x = [p + change for p, change in zip(self.x, moved, strict=True)]

    def _cd_mage(self) -> None:
        """CD-MAGE, Algorithms 2 and 3: a cohort's full gradients, then another cohort's local steps that follow their mean."""
        w = self.workload
        z = [p.clone().requires_grad_() for p in [*self.x, self.y]]
        estimate = [torch.zeros_like(p) for p in z]
        for client in torch.randperm(w.clients)[: w.cohort].tolist():
            own = slice(client * w.examples, (client + 1) * w.examples)
            batch = {name: array[own] for name, array in self.data.items()}
            for total, g in zip(estimate, torch.autograd.grad(loss(w, z[:-1], z[-1], batch), z), strict=True):
                total.add_(g, alpha=1 / w.cohort)
        mean = [torch.zeros_like(p) for p in z]
        for client in torch.randperm(w.clients)[: w.cohort].tolist():
            for total, end in zip(mean, self._guided(client, z, estimate), strict=True):
                total.add_(end, alpha=1 / w.cohort)
        *self.x, self.y = mean

    def _guided(self, client: int, start: Tensors, estimate: Tensors) -> Tensors:
        """Return (x, y) after a client's local steps along grad(z) - grad(start) + estimate, one batch for both."""
        w = self.workload
        z = [p.detach().clone().requires_grad_() for p in start]
        rates = [w.lr_x] * len(self.x) + [-w.lr_y]  # down in x, up in y
        for _ in range(w.steps):
            rows = client * w.examples + torch.randint(w.examples, (w.batch,))
            batch = {name: array[rows] for name, array in self.data.items()}
            here = torch.autograd.grad(loss(w, z[:-1], z[-1], batch), z)
            there = torch.autograd.grad(loss(w, start[:-1], start[-1], batch), start)
            with torch.no_grad():
                for p, g, g_start, u, rate in zip(z, here, there, estimate, rates, strict=True):
                    p.sub_(g - g_start + u, alpha=rate)
        return [p.detach() for p in z]

    def _gradient(self, x: Tensors, client: int) -> tuple[torch.Tensor, Tensors]:
        """Return the loss and the gradient of a client on a fresh minibatch."""
        w = self.workload
        rows = client * w.examples + torch.randint(w.examples, (w.batch,))
        leaves = [p.detach().requires_grad_() for p in x]
        value = loss(w, leaves, self.y, {name: array[rows] for name, array in self.data.items()})
        return value.detach(), list(torch.autograd.grad(value, leaves))


if __name__ == "__main__":
    serve(TorchLoop)
