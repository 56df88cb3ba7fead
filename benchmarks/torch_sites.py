"""What a round costs whose loss is PyTorch's, against JAX and a plain PyTorch loop: ``python benchmarks/torch_sites.py``.

FedAvg, 10 clients, 10 local steps of batches of 32, on a network of 784-200-200-10 with random images: one thread, seconds a
round (median of the rounds after the first). Also between ten sites in one process, whose programs are compiled and call
PyTorch, or are carried out operation by operation, so that PyTorch is called directly.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("FEDMINIMAX_DEVICES", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np
import torch

import fedminimax as fm
from fedminimax.engines.federated import Federation, InProcess, Worker
from processes import machine, save

CLIENTS, STEPS, BATCH, EXAMPLES, RATE, ROUNDS = 10, 10, 32, 320, 0.1, 8


def data() -> fm.ClientData:
    rng = np.random.default_rng(0)
    rows = lambda: {"inputs": rng.normal(size=(EXAMPLES, 784)).astype("float32"), "labels": rng.integers(0, 10, EXAMPLES)}
    return fm.ClientData.from_list([rows() for _ in range(CLIENTS)])


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = (784, 200, 200, 10)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers[:-1])


def entropy(model: Any, batch: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"])


def jax_entropy(x: Any, batch: Any) -> jax.Array:
    out = batch["inputs"]
    for k in (0, 2, 4):
        out = out @ x[f"{k}.weight"].T + x[f"{k}.bias"]
        out = out if k == 4 else jax.nn.relu(out)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(out), batch["labels"][:, None], 1))


class Stopwatch:
    """Takes the time after every evaluation."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_evaluation(self, run: Any) -> None:
        self.times.append(time.perf_counter())


def rounds(loss: Callable[..., Any], x0: Any) -> list[float]:
    problem, watch = fm.RobustProblem(loss, x0, fm.ChiSquare(0.1)), Stopwatch()
    method = fm.FedAvg(RATE, local_steps=STEPS, batch_size=BATCH)
    fm.run(problem, data(), method, rounds=ROUNDS + 1, eval_every=1, observers=watch, progress=False)
    return np.diff(watch.times)[1:].tolist()


class OpByOp(Worker):
    """A site that compiles nothing."""

    def handle(self, request: bytes) -> bytes:
        with jax.disable_jit():
            return super().handle(request)


def at_sites(loss: fm.TorchLoss, site: type[Worker]) -> list[float]:
    problem, watch, clients = fm.RobustProblem(loss, loss.x0, fm.ChiSquare(0.1)), Stopwatch(), data()
    method = fm.FedAvg(RATE, local_steps=STEPS, batch_size=BATCH)
    engine = Federation(InProcess({f"site-{k}": site(problem, method, clients.only(k)) for k in range(CLIENTS)}))
    settings = {"eval_every": 1, "observers": watch, "progress": False}
    fm.run(problem, engine.clients, method, rounds=ROUNDS + 1, engine=engine, **settings)
    return np.diff(watch.times)[1:].tolist()


def plain_loop() -> list[float]:
    """The same rounds in PyTorch alone: every client trains a copy, and the copies are averaged."""
    clients, model, taken = data(), network(), []
    fields = {name: torch.from_numpy(np.array(values)) for name, values in clients.fields.items()}
    for _ in range(ROUNDS + 1):
        begun, start, total = time.perf_counter(), [p.detach().clone() for p in model.parameters()], None
        for client in range(CLIENTS):
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), start, strict=True):
                    parameter.copy_(value)
            optimizer = torch.optim.SGD(model.parameters(), RATE)
            for _ in range(STEPS):
                index = torch.randint(client * EXAMPLES, (client + 1) * EXAMPLES, (BATCH,))
                optimizer.zero_grad()
                entropy(model, {name: values[index] for name, values in fields.items()}).backward()
                optimizer.step()
            own = [p.detach().clone() for p in model.parameters()]
            total = own if total is None else [a + b for a, b in zip(total, own, strict=True)]
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), total, strict=True):
                parameter.copy_(value / CLIENTS)
        taken.append(time.perf_counter() - begun)
    return taken[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "torch_sites.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loss = fm.TorchLoss(network(), entropy)
    found = {"TorchLoss": rounds(loss, loss.x0), "JAX": rounds(jax_entropy, loss.x0), "PyTorch loop": plain_loop()}
    found |= {"at sites": at_sites(loss, Worker), "at sites, op by op": at_sites(loss, OpByOp)}
    medians = {name: statistics.median(taken) for name, taken in found.items()}
    for name, seconds in medians.items():
        print(f"{name:19s} {1e3 * seconds:7.1f} ms a round, {medians['TorchLoss'] / seconds:.2f} of it is TorchLoss's")
    save(
        options.out,
        {"machine": machine(), "versions": {"torch": torch.__version__, "jax": jax.__version__}, "seconds a round": found},
    )


if __name__ == "__main__":
    main()
