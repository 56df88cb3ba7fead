"""Every example runs to its end at a small size, in this process, and finds digits where it asks for MNIST."""

import re
import runpy
import sys
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

from fedminimax.data import datasets

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {
    "absent_silos": ("--small", "--rounds", "10", "--seeds", "1"),
    "extract_features": ("--data", "digits", "--backbone", "random", "--size", "16", "--pca", "8", "--limit", "200"),
    "fair_images": ("--data", "mnist", "--rounds", "1", "--clients", "2", "--methods", "FESS-GDA", "--batch-size", "10"),
    "federated_gan": ("--rounds", "1", "--clients", "20", "--features", "2", "--local-steps", "2", "--samples", "50"),
    "own_problem": ("--rounds", "100"),
    "personalized_ring": ("--nodes", "4", "--rounds", "20", "--couplings", "0.1"),
    "robust_training": ("--rounds", "2", "--clients", "40"),
}  # fmt: skip
SAYS = {
    "absent_silos": r"50% answer, each request +ScaffPDStale +None",
    "extract_features": r"is right for [3-9]\d\.\d% of the test images",
    "fair_images": r"FESS-GDA: average \d+\.\d%, worst class",
    "federated_gan": r"Inception score \d",
    "own_problem": r"100 0\.5",
    "personalized_ring": r"Best for the nodes: coupling 0\.1",
    "robust_training": r"test accuracy under the perturbation: \d",
}
"""What each prints when it has come to its end."""


def small_digits(folder=None):
    """Return three hundred digits of 28 x 28 pixels, as MNIST has them."""
    data = datasets.digits(Path())
    grow = lambda flat: np.pad(np.kron(flat.reshape(-1, 8, 8), np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2)))[..., None]
    part = lambda arrays, n: {"inputs": grow(arrays["inputs"][:n]).astype(np.float32), "labels": arrays["labels"][:n]}
    return datasets.Dataset("mnist", part(data.train, 200), part(data.test, 100), 10)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """An empty folder to work in, with small data, and settings that are put back afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDMINIMAX_DATA", str(tmp_path))
    monkeypatch.setitem(datasets.DATASETS, "mnist", small_digits)
    with jax.enable_x64(False):
        before = jax.config.jax_enable_x64
        yield tmp_path
        jax.config.update("jax_enable_x64", before)
    plt.close("all")


@pytest.mark.parametrize("name", sorted(SMALL))
def test_an_example_runs_to_its_end(name, desk, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *SMALL[name]])
    there = {path.name for path in desk.iterdir()}
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert re.search(SAYS[name], said), said
    if "Figure: " in said:
        (figure,) = [path for path in desk.glob("*.png") if path.name not in there]
        assert figure.read_bytes().startswith(b"\x89PNG")


def test_no_example_is_left_out():
    assert set(SMALL) == {path.stem for path in EXAMPLES.glob("*.py")}
