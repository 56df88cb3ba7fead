"""The study of ``python benchmarks/federation.py round``: CD-MAGE, two phases a round, on LeNet-5 against a perturbation."""

import time
from pathlib import Path

import fedminimax as fm
from fedminimax.flare.study import Study
from fedminimax.models import LeNet5

CLASSES = 10


class Pace:
    """Writes down when each round was over."""

    def __init__(self, path):
        self.path = Path(path)

    def wants(self, run):
        return run.round + 1

    def on_rounds(self, run):
        with self.path.open("a") as times:
            times.write(f"{time.monotonic()}\n")


def study(clients, times, steps=5, batch=10):
    problem = fm.problems.robust_training(LeNet5(CLASSES), clients, CLASSES, radius=1.0)
    method = fm.CDMAGE(lr_x=0.01, lr_y=0.01, local_steps=steps, batch_size=batch)
    return Study(problem, method, observers=[Pace(times)])
