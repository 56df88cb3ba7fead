"""A model's folder: what is in it, another process that reads it, and folders that are broken or foreign."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from flax import linen as nn
from patients import weights
from safetensors.numpy import load_file

import fedminimax as fm
from fedminimax.models import MLP, Linear
from fedminimax.problems import linearize

FILES = {"weights.safetensors", "encoder.json", "model.json", "metrics.json", "card.md"}


class Own(nn.Module):
    """A network of a user's own, in a module that can be imported."""

    classes: int = 2
    sizes: tuple[int, ...] = (4,)
    act: object = None

    @nn.compact
    def __call__(self, inputs):
        for size in self.sizes:
            inputs = nn.tanh(nn.Dense(size)(inputs))
        return nn.Dense(self.classes)(inputs)


def test_the_folder_says_what_it_holds(save_mlp, tmp_path):
    summary = {"winner": "ScaffPD", "auc": np.float32(0.5), "none": np.nan, "values": np.arange(2), "where": tmp_path}
    path = save_mlp(summary=summary, settings={"tau": np.float64(0.1), "steps": 5}, threshold=0.3)
    assert path == tmp_path / "model"
    assert {file.name for file in path.iterdir()} == FILES
    assert [file.name for file in tmp_path.iterdir()] == ["model"], "nothing is left beside it"
    spec = json.loads((path / "model.json").read_text())
    assert spec["network"] == {"name": "mlp", "fields": {"hidden": [16, 8], "classes": 2, "initializer": "lecun"}}
    assert spec["settings"] == {"tau": 0.1, "steps": 5}
    assert (spec["format"], spec["method"], spec["threshold"], spec["positive"]) == (1, "ScaffPD", 0.3, 1)
    assert {"python", "fedminimax", "jax", "numpy"} <= set(spec["versions"])
    metrics = json.loads((path / "metrics.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert metrics == {"winner": "ScaffPD", "auc": 0.5, "none": None, "values": [0, 1], "where": str(tmp_path)}
    arrays = load_file(path / "weights.safetensors")
    assert {name: a.shape for name, a in arrays.items() if "Dense_1" in name} == {
        "Dense_1/kernel": (16, 8),
        "Dense_1/bias": (8,),
    }
    model = fm.load_model(str(path))
    assert model.network == MLP((16, 8), 2)
    assert model.metrics == metrics
    assert model.card == (path / "card.md").read_text()


def test_another_process_predicts_the_same_bits(save_mlp, frame, tmp_path):
    path = save_mlp(threshold=0.4)
    frame.to_pickle(tmp_path / "rows.pkl")
    script = """
import sys, pandas as pd, fedminimax as fm
rows = pd.read_pickle("rows.pkl").iloc[40:]
model = fm.load_model("model")
model.predict_proba(rows).join(model.predict(rows)).to_pickle("found.pkl")
"""
    env = {**os.environ, "FEDMINIMAX_DEVICES": "1"}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    model = fm.load_model(path)
    wanted = model.predict_proba(frame).join(model.predict(frame)).iloc[40:]
    pd.testing.assert_frame_equal(pd.read_pickle(tmp_path / "found.pkl"), wanted, check_exact=True)
    assert wanted["back"].nunique() == 2


def test_a_model_is_replaced_when_the_new_one_is_complete(save, tmp_path, monkeypatch):
    path = save(method="FedAvg")
    with pytest.raises(fm.InputError, match=r"summary\['odd'\] is a function, which JSON cannot hold"):
        save(summary={"odd": lambda: 0})
    assert fm.load_model(path).spec["method"] == "FedAvg"

    real, moves = os.rename, []

    def stops(a, b):
        moves.append(b)
        if len(moves) == 2:
            raise KeyboardInterrupt
        real(a, b)

    monkeypatch.setattr(os, "rename", stops)
    with pytest.raises(KeyboardInterrupt):  # between the old one's going and the new one's coming
        save(method="DRFA")
    monkeypatch.undo()
    assert fm.load_model(path).spec["method"] == "FedAvg"
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    save(method="AFL")
    assert fm.load_model(path).spec["method"] == "AFL"
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_what_is_not_a_model_is_not_replaced(save, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    with pytest.raises(fm.InputError, match=r"notes holds other files than a model's, such as mine\.txt"):
        save(tmp_path / "notes")
    with pytest.raises(fm.InputError, match="is a file: give a folder"):
        save(tmp_path / "notes" / "mine.txt")
    with pytest.raises(fm.InputError, match=r"cannot be written to .*Not a directory"):
        save(tmp_path / "notes" / "mine.txt" / "model")
    (tmp_path / "empty").mkdir()
    assert fm.load_model(save(tmp_path / "empty")).classes == ["no", "yes"]
    assert fm.load_model(save(tmp_path / "deep" / "down")).classes == ["no", "yes"]


def change(path, **changes):
    spec = json.loads((path / "model.json").read_text())
    (path / "model.json").write_text(json.dumps({**spec, **changes}))


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        *((lambda path, name=name: (path / name).unlink(), rf"no {name} in .*model: it is no model's folder, or not a whole")
          for name in sorted(FILES)),
        (lambda path: flip(path / "weights.safetensors"), r"weights.safetensors is damaged or another model's \(its checksum"),
        (lambda path: flip(path / "encoder.json"), r"encoder.json is damaged or another model's"),
        (lambda path: change(path, format=2), r"has the format 2 of fedminimax .*, later than this .*, which reads format 1"),
        (lambda path: change(path, format=0), "earlier than this"),
        (lambda path: change(path, format=None), "was not written by fedminimax"),
        (lambda path: (path / "model.json").write_text("{"), "model.json is damaged"),
        (lambda path: (path / "metrics.json").write_text("{"), "metrics.json is damaged"),
        (lambda path: change(path, task=3), "model.json is damaged: its 'task' is missing or of another kind"),
        (lambda path: change(path, checksums={}), "its network or its checksums are incomplete"),
        (lambda path: change(path, network={"name": "lineer", "fields": {}}), "no network 'lineer': known are logistic"),
        (lambda path: change(path, network={"name": "nowhere.at:All", "fields": {}}), "cannot be imported .*No module named"),
        (lambda path: change(path, network={"name": "os:system", "fields": {}}), "os:system is no Flax module"),
        (lambda path: change(path, network={"name": "builtins:dict", "fields": {}}), "builtins:dict is no Flax module"),
        (lambda path: change(path, network={"name": "os:None_", "fields": {}}), "cannot be imported"),
        (lambda path: change(path, network={"name": "linear", "fields": {"width": 1}}), "saved with another version"),
        (lambda path: change(path, network={"name": "linear", "fields": {"classes": 3}}), r"bias has the shape \(2,\), and"),
        (lambda path: change(path, network={"name": "mlp", "fields": {}}), "not fit the network MLP: Dense_1/bias is in one"),
    ],
)  # fmt: skip
def test_broken_and_foreign_folders_are_sentences(save, harm, message):
    path = save()
    harm(path)
    with pytest.raises(fm.InputError, match=message):
        fm.load_model(path)


def test_a_damaged_safetensors_is_a_sentence_even_where_the_checksum_is_its_own(save):
    from fedminimax.saved.folder import checksum

    path = save()
    spec = json.loads((path / "model.json").read_text())
    (path / "weights.safetensors").write_bytes(b"nothing")
    spec["checksums"]["weights.safetensors"] = checksum(b"nothing")
    (path / "model.json").write_text(json.dumps(spec))
    with pytest.raises(fm.InputError, match=r"weights.safetensors is damaged \(.*copy the model again"):
        fm.load_model(path)


def test_no_folder_is_a_sentence(tmp_path):
    with pytest.raises(fm.InputError, match=r"There is no folder .*modle: give the folder of a model"):
        fm.load_model(tmp_path / "modle")


def test_a_network_of_ones_own_is_saved_by_name(save, frame, federation):
    d = len(federation.features)
    x = weights([(d, 4), (4, 2)])
    model = fm.load_model(save(network=Own(), x=x))
    assert model.spec["network"] == {"name": "test_saved_folder:Own", "fields": {"classes": 2, "sizes": [4], "act": None}}
    assert model.network == Own()
    np.testing.assert_allclose(model.scores(frame), Own().apply({"params": x}, federation.encoder.inputs(frame)), atol=1e-5)


def test_networks_that_cannot_be_saved_say_why(save, federation):
    class Local(nn.Module):
        pass

    network = Linear(2)
    x = weights([(len(federation.features), 2)])
    with pytest.raises(fm.InputError, match="The network Local is defined where no other program can import it"):
        save(network=Local())
    with pytest.raises(fm.InputError, match="its field 'act' is a function, which JSON cannot hold"):
        save(network=Own(act=weights))
    with pytest.raises(fm.InputError, match="of the kind Linearized cannot be saved: give a Flax module"):
        save(network=linearize(network, x))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threshold": 1.5}, "threshold is 1.5: give a number between 0 and 1"),
        ({"threshold": "half"}, "threshold is 'half'"),
        ({"positive": 2}, "positive is 2: it is 0 or 1"),
        ({"loss": "hinge"}, "loss is 'hinge': give 'entropy' or 'squared'"),
        ({"encoder": None}, "Without an encoder a model needs its federation"),
        ({"x": {"a": {"b/c": np.ones(1)}, "a/b": {"c": np.ones(1)}}}, "Two arrays of the weights have one path"),
        ({"x": {"Dense_0": {"kernel": np.full((7, 2), np.nan), "bias": np.ones(2)}}}, "weights Dense_0/kernel are not finite"),
        ({"settings": {"f": object()}}, r"settings\['f'\] is a object"),
    ],
)
def test_what_cannot_be_saved_is_said_before_anything_is_written(save, tmp_path, given, message):
    with pytest.raises(fm.InputError, match=message):
        save(**given)
    assert not list(tmp_path.iterdir())


def test_weights_that_do_not_fit_are_not_saved(save):
    with pytest.raises(fm.InputError, match=r"do not fit the network Linear: Dense_0/kernel has the shape \(3, 2\), and not"):
        save(x=weights([(3, 2)]))
