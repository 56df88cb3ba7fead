"""The plain PyTorch loop with images and kernels channels last in memory, for the convolutions of workloads C, F, H and I."""

from __future__ import annotations

from functools import partial

import torch

from child import serve
from torch_loop import TorchLoop

if __name__ == "__main__":
    serve(partial(TorchLoop, memory_format=torch.channels_last))
