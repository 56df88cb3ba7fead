"""The first round of every item at the scale of its paper: models, clients and methods as printed, on made-up data.

Only the amount of work is cut: few examples, the first value of what is searched, a few steps where a network is large.
Programs take a while to compile: without FEDMINIMAX_ALL=1 the first method of every experiment is run, with the first of the
metrics that are shown, and large networks in a few items.
"""

import os

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.data import datasets
from fedminimax.folders import FINISHED
from fedminimax.reproductions import items
from fedminimax.reproductions.item import merged

SHAPES = {
    "mnist": ((28, 28, 1), 10),
    "fashion_mnist": ((28, 28, 1), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
    "tiny_imagenet": ((64, 64, 3), 200),
    "cifar10_features": ((256,), 10),
}
FILES = {"cifar10-resnet18-features.npz": 10, "cifar100-features.npz": 100, "tiny-imagenet-features.npz": 200}
LARGE = ("vgg11", "resnet18", "cnn", "PooledGenerator")
ONCE = {"cd-mage/figure-3", "fed-norm-sgda/figure-5", "fess-gda/figure-2"}
"""The items with large networks that are tried without FEDMINIMAX_ALL."""
BY_CLASS = {"mnist", "fashion_mnist", "cifar10"}
"""What cd-mage divides among 500 clients of one class each."""
EXAMPLES = {"by_class": 1000, "dirichlet": 400, "iid": 60, "major_class": 40}
"""So many are enough for the clients of a division."""

MEASURED = {"examples": 50, "steps": 2}
"""So many examples of what is robust, and so many steps."""
FEW = 90
"""So many of them for a large network: it takes a step for every four."""


def large(tables):
    used = str([tables["problem"], (tables.get("data") or {}).get("model")])
    return next((name for name in LARGE if f"'{name}'" in used), None)


def kinds(name):
    """The experiments of an item that differ in the model or the data: its panels mostly differ in other things."""
    found = {}
    for experiments in items()[name].experiments("paper").values():
        tables = experiments[0].tables
        found.setdefault((str(tables["problem"].get("model")), str((tables.get("data") or {}).get("name"))), tables)
    return list(found.values())


def cases():
    for name in sorted(items()):
        heavy = any(large(tables) for tables in kinds(name))
        if not heavy or name in ONCE or os.environ.get("FEDMINIMAX_ALL"):
            yield from ((name, k) for k in range(1 if heavy and not os.environ.get("FEDMINIMAX_ALL") else len(kinds(name))))


def made_up(count, shape, classes):
    drawn = np.random.default_rng(0)
    labels = (np.arange(count) % classes).astype(np.int32)
    part = lambda: {"inputs": drawn.random((count, *shape), np.float32), "labels": labels}
    return part(), part()


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMINIMAX_DATA", str(tmp_path))
    for name, (shape, classes) in SHAPES.items():
        count = EXAMPLES["by_class" if name in BY_CLASS else "dirichlet"]
        known = lambda folder, name=name, count=count, shape=shape, classes=classes: datasets.Dataset(
            name, *made_up(count, shape, classes), classes
        )
        monkeypatch.setitem(datasets.DATASETS, name, known)
    for name, classes in FILES.items():
        train, test = made_up(400, (64,), classes)
        np.savez(
            tmp_path / name,
            x_train=train["inputs"], y_train=train["labels"], x_test=test["inputs"], y_test=test["labels"],
        )  # fmt: skip


def cut(tables, shown):
    """The same experiment with little work: a round, one value of each setting, few examples, few steps of a large network."""
    heavy = large(tables)

    def method(given):
        given = {key: value[0] if isinstance(value, list) else value for key, value in given.items()}
        if heavy:
            steps = given.get("local_steps")
            epochs = isinstance(steps, dict)
            given |= {key: few for key, few in (("batch_size", 4), ("local_steps", 1)) if key in given}
            if epochs:
                given |= {"local_steps": 1 if steps["name"] == "UniformSteps" else [1 + k % 2 for k in range(15)]}
        return given

    methods = {label: method(given) for label, given in tables["methods"].items()}
    if not os.environ.get("FEDMINIMAX_ALL"):
        methods = dict([next(iter(methods.items()))])
    metrics = dict(tables["metrics"])
    if not os.environ.get("FEDMINIMAX_ALL"):
        first = shown[0].partition("/")[0]
        metrics = {first: metrics[first]}
    changes = {"rounds": 1, "eval_every": 1, "seeds": 1, "metrics": {label: {} for label in metrics}}
    for label, metric in metrics.items():
        changes["metrics"][label] = {key: few for key, few in MEASURED.items() if isinstance(metric.get(key), int)}
        if "classifier" in metric:
            changes["metrics"][label] = {"samples": 20, "classifier": {"epochs": 1}}
    kept = {key: value for key, value in tables.items() if key not in ("search", "stop")}
    out = kept | {"methods": methods, "metrics": metrics}
    if tables.get("data"):
        division = tables["partition"]["name"]
        few = {"train": EXAMPLES[division], "test": 100}
        if heavy:
            few = {"train": FEW, "test": 20} if division == "dirichlet" else few | {"test": 50}
        if "validation" in tables["data"]:
            few["validation"] = 100
        if "features" in tables["data"]:  # of a network that is trained first
            few |= {"rounds": 1, "local_steps": 1, "batch_size": 2, "features": 64, "train": 200}
        if tables["data"]["name"] in (*FILES, "digits"):
            few = {}  # they are few
        changes["data"] = few
        if "min_size" in tables["partition"]:
            changes["partition"] = {"min_size": 1}
        if "features" in tables["data"]:  # of a network that is trained first
            changes["partition"]["drop"] = False  # of a hundred classes each has but a few images
    return merged(out, changes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "k"), list(cases()))
def test_the_first_round_at_the_scale_of_the_paper(name, k, data, tmp_path):
    tables = cut(kinds(name)[k], items()[name].shows)
    made = fm.Experiment(**tables).run(tmp_path / "out", progress=False, report=False)
    assert made.status == FINISHED
    assert {record.label for record in made.records} == set(tables["methods"])
    for record in made.records:
        assert (record.status, record.rounds) == (FINISHED, 1), record
        shown = [metric for metric in items()[name].shows if metric in record.history]
        assert shown
        for metric in shown:
            assert np.isfinite(record.history[metric]).all(), (record.label, metric)
        assert record.history["grad_evals"][-1] > 0
