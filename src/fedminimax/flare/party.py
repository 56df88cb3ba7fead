"""A FLARE process of a trial that ends with whoever started it: ``python -m fedminimax.flare.party PARENT MODULE [...]``.

A trial that is killed can end nobody. So each of its processes looks every second whether its parent is still the one that
started it, and if not, ends what it has started itself, and then itself.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

_SECONDS = 1.0


def end_with(parent: int) -> None:
    """End this process, and all that it has started, soon after its parent has ended."""
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """Run a module as a program, until it ends or the parent does."""
    parent, module, *rest = arguments
    threading.Thread(target=end_with, args=(int(parent),), daemon=True).start()
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
