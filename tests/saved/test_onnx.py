"""ONNX files, where jax2onnx is installed: it brings much along, and is no part of what tests need."""

import sys
import types

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.models import Linear
from fedminimax.saved import onnx_file


def test_without_jax2onnx_it_says_how_to_get_it(save, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", types.ModuleType("onnxruntime"))
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    with pytest.raises(fm.InputError, match=r"To write ONNX takes jax2onnx: pip install 'fedminimax\[onnx\]'"):
        fm.load_model(save()).to_onnx(tmp_path / "model.onnx")


def test_onnxruntime_agrees_for_any_number_of_rows(save_mlp, save, frame, tmp_path):
    pytest.importorskip("jax2onnx")
    runtime = pytest.importorskip("onnxruntime")
    for model in (fm.load_model(save_mlp()), fm.load_model(save(tmp_path / "linear", network=Linear(2)))):
        path = model.to_onnx(tmp_path / "model.onnx")
        session = runtime.InferenceSession(str(path))
        inputs, _ = model.inputs(frame)
        name = session.get_inputs()[0].name
        for count in (1, 17, len(inputs)):
            found = session.run(None, {name: inputs[:count]})[0]
            np.testing.assert_allclose(found, model.apply(inputs[:count]), rtol=1e-5, atol=1e-5)
    assert {file.name for file in tmp_path.iterdir()} == {"model", "linear", "model.onnx"}


def test_a_file_that_says_otherwise_is_not_kept(save, tmp_path):
    pytest.importorskip("jax2onnx")
    model = fm.load_model(save())
    wrong = lambda inputs: model.apply(inputs) + 0.01
    with pytest.raises(fm.InputError, match="outputs differ from the network's by"):
        onnx_file.write_onnx(model.network, model.x, tuple(model.spec["inputs"]), wrong, tmp_path / "model.onnx")
    with pytest.raises(fm.InputError, match="cannot be written: give a file in a folder that there is"):
        model.to_onnx(tmp_path / "nowhere" / "model.onnx")
    assert {file.name for file in tmp_path.iterdir()} == {"model"}
