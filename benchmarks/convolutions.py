"""The 3x3 convolutions of VGG11 and ResNet-18 (H and I), each alone: ours, PyTorch's, and XLA's product of the same size.

A convolution and its two gradients are three products. What they take alone, without a copy, is the least that a convolution
by these products can take; where PyTorch takes less, only one with fewer multiplications (Winograd's) could reach it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import torch

from fedminimax.models import conv
from processes import machine, save

RESULTS = Path(__file__).parent / "results" / "convolutions.json"
BATCH = 32
LAYERS = ((32, 64, 64), (16, 64, 128), (16, 128, 128), (8, 256, 256), (4, 512, 512), (2, 512, 512))
"""Height and width, channels, features."""


def main() -> None:
    """Measure every layer on one core, in processor time, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--core", type=int, default=0)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    rows = [_layer(*layer, options.repetitions) for layer in LAYERS]
    save(RESULTS, {"machine": machine(), "torch": torch.__version__, "batch": BATCH, "layers": rows})
    print("| size, channels, features | ours, ms | PyTorch, channels last, ms | the products alone, ms | GFLOP/s of these |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        speed = row["flops"] / row["products"] / 1e6
        print(f"| {row['layer']} | {row['ours']:.1f} | {row['torch']:.1f} | {row['products']:.1f} | {speed:.0f} |")


def _layer(size: int, channels: int, features: int, repetitions: int) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0), 4)
    images = jax.random.normal(keys[0], (BATCH, size, size, channels))
    kernel = jax.random.normal(keys[1], (3, 3, channels, features)) / (9 * channels) ** 0.5
    above = jax.random.normal(keys[2], (BATCH, size, size, features))
    patches = jax.random.normal(keys[3], (BATCH * size * size, 9 * channels))

    @jax.jit
    def ours(images: jax.Array, kernel: jax.Array, above: jax.Array) -> Any:
        out, back = jax.vjp(lambda a, w: conv(a, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")), images, kernel)
        return out, back(above)

    @jax.jit
    def products(patches: jax.Array, matrix: jax.Array, above: jax.Array) -> Any:
        return patches @ matrix, patches.T @ above, above @ matrix.T

    last = torch.channels_last
    a, g = (torch.tensor(jax.device_get(v)).permute(0, 3, 1, 2).contiguous(memory_format=last) for v in (images, above))
    w = torch.tensor(jax.device_get(kernel)).permute(3, 2, 0, 1).contiguous(memory_format=last).requires_grad_()
    a.requires_grad_()
    flat = (patches, kernel.reshape(-1, features), above.reshape(-1, features))
    contenders = {
        "ours": lambda: jax.block_until_ready(ours(images, kernel, above)),
        "products": lambda: jax.block_until_ready(products(*flat)),
        "torch": lambda: torch.autograd.grad(torch.nn.functional.conv2d(a, w, padding=1), [a, w], g),
    }
    times = _interleaved(contenders, repetitions)
    return {"layer": f"{size}, {channels}, {features}", "flops": 6 * BATCH * size**2 * 9 * channels * features, **times}


def _interleaved(contenders: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """Return the least milliseconds of processor time of each, asked in turn."""
    least = dict.fromkeys(contenders, float("inf"))
    for run in contenders.values():
        run()
    for _ in range(repetitions):
        for name, run in contenders.items():
            began = time.process_time()
            run()
            least[name] = min(least[name], 1000 * (time.process_time() - began))
    return least


if __name__ == "__main__":
    main()
