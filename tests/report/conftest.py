"""Runs that nobody ran: histories made up so that the right answer is known."""

import json

import numpy as np
import pytest

from fedminimax import folders
from fedminimax.folders import Record


def made_up(label="A", seed=0, end=1.0, rounds=20, every=2, status=folders.FINISHED, wanted=None, clients=0, **more):
    """A run whose metric "score" (higher is better) rises to ``end`` and whose "loss" falls, with costs."""
    t = np.arange(0, rounds + 1, every)
    shown = t / max(1, rounds)
    history = {"round": t, "score": end * shown, "loss": 2.0 * np.exp(-3 * shown) + 0.1 * abs(end)}
    if clients:
        spread = np.linspace(-0.2, 0.2, clients)
        w = np.exp(-np.outer(shown, spread) * 5)
        history |= {"score/each": history["score"][:, None] + spread, "w/each": w / w.sum(axis=1, keepdims=True)}
    history |= {"floats_up": 10 * t, "grad_evals": 7 * t, "waited": 0.0 * t, **more.pop("history", {})}
    known = {
        "method": label,
        "settings": f"{label}(lr_x=0.1)",
        "rounds": rounds,
        "wanted": rounds if wanted is None else wanted,
        "costs": ("floats_up", "grad_evals", "waited"),
        "better": {"score": "higher", "loss": "lower", "score/each": "higher"},
        "seconds": 1.0,
    }
    return Record(label=label, seed=seed, status=status, history=history, **{**known, **more})


@pytest.fixture
def run():
    return made_up


@pytest.fixture
def runs():
    """Make the seeds of one label from the values at their end."""
    return lambda label, ends, **more: [made_up(label, seed, end, **more) for seed, end in enumerate(ends)]


@pytest.fixture(scope="session")
def experiment(tmp_path_factory):
    """The folder of an experiment with everything: three methods, three seeds, clients, weights, a picture, a spec."""
    root = tmp_path_factory.mktemp("runs") / "silos"
    for k, label in enumerate(("B & <b>co</b>", "A")):  # in an order of its own, and a name that HTML would read
        for seed in range(3):
            one = made_up(label, seed, 0.7 + 0.1 * k + 0.01 * seed * (1 + k) + 0.003 * (seed == 1), clients=6, data="six")
            one.write(root / "runs" / str(k) / f"seed-{seed}")
    from fedminimax import plots

    (root / "runs" / "0" / "seed-0" / "figures").mkdir()
    plots.sample_grid(np.zeros((4, 5, 5)), path=root / "runs" / "0" / "seed-0" / "figures" / "samples.png")
    (root / "spec.toml").write_text('name = "silos"  # <script>alert(1)</script>\n')
    folders.write_environment(root)
    kept = {"name": "Silos", "labels": ["A", "B & <b>co</b>"], "seeds": [0, 1, 2], "status": "finished"}
    chosen = {"selected_by": {"A": {"metric": "loss", "on": "validation"}}, "command": "fedminimax run silos.toml --seeds 3"}
    folders.write_json(root / "experiment.json", {"format": 1, "version": "0", **kept, **chosen})
    return root


@pytest.fixture
def data_of():
    """Read what the script of a page draws."""

    def read(page):
        text = page.read_text(encoding="utf-8")
        return json.loads(text[text.rindex("FM.start(") + len("FM.start(") : text.rindex(");</script>")])

    return read
