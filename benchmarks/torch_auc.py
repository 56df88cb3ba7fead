"""The AUC experiment of the CD-MAGE paper in PyTorch, apart from fedminimax: does it depend on the seed there too?

    FEDMINIMAX_DATA=folder python benchmarks/torch_auc.py CD-MA CD-MAGE --seeds 0 1 2

Needs PyTorch and NumPy, and MNIST's files. The loop is that of workload F, with Table 1's steps; batches are drawn with
replacement. Prints the training AUC at the end of every run.
"""

import argparse
import gzip
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from torch_loop import TorchLoop
from torch_losses import scores_of
from workloads import WORKLOADS, Layers, Workload

METHODS = {"CD-MA": {"lr_x": 1.0, "lr_y": 10**-0.5, "cohort": 10}, "CD-MAGE": {"lr_x": 10**-0.5, "lr_y": 10**-1.5, "cohort": 5}}


@cache
def mnist() -> dict[str, np.ndarray]:
    """Return the training images in [-1, 1], sorted by digit, and which of them are zeros."""
    folder = Path(os.environ["FEDMINIMAX_DATA"]) / "mnist"
    read = lambda name, skip: np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=skip)
    images = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1)
    digits = read("train-labels-idx1-ubyte.gz", 8)
    order = np.argsort(digits, kind="stable")
    return {
        "inputs": (images[order] / np.float32(127.5) - 1).astype(np.float32),
        "labels": (digits[order] == 0).astype(np.int32),
    }


@dataclass(frozen=True)
class Experiment(Workload):
    """Workload F with MNIST's digits on 500 clients, and PyTorch's own initial weights."""

    def data(self) -> dict[str, np.ndarray]:
        return mnist()

    def start_layers(self) -> Layers:
        layers: Layers = []
        for shape in self.layers:
            made = torch.nn.Conv2d(shape[2], shape[3], shape[0]) if len(shape) == 4 else torch.nn.Linear(*shape)
            weight = made.weight.detach()
            kernel = weight.permute(2, 3, 1, 0) if len(shape) == 4 else weight.T
            layers.append((kernel.contiguous().numpy(), made.bias.detach().numpy()))
        return layers


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return P(s+ > s-) + P(s+ = s-) / 2."""
    below, above = scores[positive], np.sort(scores[~positive])
    ranks = sum(np.searchsorted(above, below, side).sum(dtype=np.float64) for side in ("left", "right"))
    return float(ranks / (2 * positive.sum() * (~positive).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="+", choices=sorted(METHODS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=240)
    options = parser.parse_args()
    for name in options.methods:
        sizes = {**WORKLOADS["F"].__dict__, **METHODS[name], "clients": 500, "guided": name == "CD-MAGE"}
        fields = Experiment.__dataclass_fields__
        loop = TorchLoop(Experiment(**{k: v for k, v in sizes.items() if k in fields}))
        for seed in options.seeds:
            torch.manual_seed(seed)
            loop.start()
            loop.advance(options.rounds)
            with torch.no_grad():
                parts = [scores_of(loop.x, inputs) for inputs in loop.data["inputs"].split(1000)]
            print(f"{name} seed {seed}: {auc(torch.cat(parts).numpy(), loop.data['labels'].numpy() > 0):.4f}", flush=True)


if __name__ == "__main__":
    main()
