"""`fedminimax fair --federation trial`: real processes over FLARE with mutual TLS, from three tables to a model."""

import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare")

from rich.console import Console

import fedminimax as fm
from fedminimax.commands.fair import Request
from fedminimax.commands.fair_sites import fair_among_sites


def test_three_tables_become_a_page_and_a_model_and_no_process_stays(tmp_path):
    rng = np.random.default_rng(0)
    sites = []
    for k, name in enumerate(("north", "south", "west")):
        age = rng.normal(60, 10, 40)
        frame = pd.DataFrame({"age": age, "ill": np.where(age + 3 * k > 60, "yes", "no")})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        sites.append(f"{name}={tmp_path / name}.csv")
    steps = {"methods": ["FedAvg"], "settings": ["FedAvg.lr_x=0.1"], "rounds": 2, "local_steps": 2}
    request = Request(label="ill", federation="trial", sites=sites, **steps)
    fair_among_sites(request, tmp_path / "out", Console(record=True, width=120))
    kept = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [row["site"] for row in kept["sites"]] == ["north", "south", "west"]
    assert [row["train"] + row["test"] for row in kept["sites"]] == [40, 40, 40]
    assert "rows stayed there" in (tmp_path / "out" / "report.html").read_text()
    worst = {name: one["accuracy"]["worst"]["value"] for name, one in kept["scores"].items()}
    assert worst["FedAvg"] == pytest.approx(0.8)  # of ten test rows: as with the sites in one process
    assert worst["majority"] == pytest.approx(0.5)
    model = fm.load_model(tmp_path / "out" / "model")
    assert "rows stayed there" in model.card
    assert list(model.predict(pd.DataFrame({"age": [20.0, 100.0]}))) == ["no", "yes"]
    trained = next((tmp_path / "out").rglob("FedAvg-0.fmx"))
    before = trained.stat().st_mtime_ns
    console = Console(record=True, width=120)
    fair_among_sites(request, tmp_path / "out", console)  # the same again, as after something went wrong in judging
    assert "goes on: what was trained is not trained again" in " ".join(console.export_text().split())
    assert trained.stat().st_mtime_ns == before
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["scores"] == kept["scores"]
