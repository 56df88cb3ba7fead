"""The folder of a model: written whole or not at all, and read with every part of it checked.

It has

- ``weights.safetensors``: the arrays of the network's weights, by their path;
- ``encoder.json``: how the rows of a table become inputs; ``null`` for a model whose inputs are given as arrays;
- ``model.json``: the network by name and fields, the task, the classes, the positive class and its threshold, the loss, the
  method with its settings, versions, and checksums of the two files above;
- ``metrics.json``: what was measured when it was made;
- ``card.md``: the model card, for people.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedminimax._version import __version__
from fedminimax.checks import real
from fedminimax.errors import InputError
from fedminimax.problems.robust_model import ENTROPY, SQUARED
from fedminimax.saved.plain import plain

if TYPE_CHECKING:  # pandas and Flax are imported when a model is saved or loaded
    from flax import linen as nn

    from fedminimax.data.encoder import Encoder
    from fedminimax.data.federation import Federation
    from fedminimax.players import Tree
    from fedminimax.saved.model import Model

FORMAT = 1
"""The number of this layout; folders with a greater one were written by a later version."""
WEIGHTS, ENCODER, MODEL, METRICS, CARD = "weights.safetensors", "encoder.json", "model.json", "metrics.json", "card.md"
FILES = (WEIGHTS, ENCODER, MODEL, METRICS, CARD)


def save_model(
    folder: str | os.PathLike[str],
    *,
    network: nn.Module,
    x: Tree,
    encoder: Encoder | None,
    method: str,
    settings: Mapping[str, Any],
    summary: Mapping[str, Any],
    loss: str = ENTROPY,
    threshold: float | None = None,
    positive: int | None = None,
    federation: Federation | None = None,
) -> Path:
    """Write a trained model into a folder, and return it. A model that is there already is replaced when this one is complete.

    Args:
        folder: the folder to make, such as "model".
        network: the Flax module: one of :mod:`fedminimax.models`, or one of your own that can be imported by its name.
        x: its weights, such as a result's ``x``.
        encoder: how rows become inputs, such as a federation's ``encoder``; None: the model takes arrays of inputs.
        method: the name of the method that trained it.
        settings: its hyper-parameters.
        summary: what was measured, as JSON can hold it; the card is made from it.
        loss: "entropy" or "squared", by which scores become probabilities; a quantity's is "squared".
        threshold: of two classes, the probability from which on the positive one is predicted; None: the likelier one is.
        positive: the number of the positive one of two classes; by default the federation's, and else the second.
        federation: what it was trained on, for the sites in the card; needed where there is no encoder.
    """
    from fedminimax.saved.card import model_card
    from fedminimax.saved.networks import network_spec
    from fedminimax.saved.sites import with_sites
    from fedminimax.saved.weights import to_bytes

    target = Path(folder)
    check_target(target)
    facts = _facts(encoder, federation, loss, threshold, positive)
    described, measured = network_spec(network), with_sites(plain(summary, "summary"), federation)
    weights = to_bytes(x, network, facts["inputs"])
    encoded = _json(None if encoder is None else encoder.to_dict())
    spec = {
        "format": FORMAT,
        "version": __version__,
        "network": described,
        **facts,
        "method": method,
        "settings": plain(settings, "settings"),
        "versions": versions(),
        "checksums": {WEIGHTS: checksum(weights), ENCODER: checksum(encoded)},
    }
    files = {WEIGHTS: weights, ENCODER: encoded, MODEL: _json(spec), METRICS: _json(measured)}
    files[CARD] = model_card(measured, spec, encoder).encode()
    _write(target, files)
    return target


def load_model(path: str | os.PathLike[str]) -> Model:
    """Return the model in a folder that ``fedminimax fair`` or :func:`~fedminimax.saved.save_model` wrote.

    It predicts bit for bit as it did where it was saved, given the same machine and versions. Nothing in the folder is run; a
    network of one's own is imported by its name.

    Args:
        path: the folder.
    """
    from fedminimax.data.encoder import Encoder
    from fedminimax.saved.model import Model
    from fedminimax.saved.networks import network_from
    from fedminimax.saved.weights import from_bytes

    place = Path(path)
    if not place.is_dir():
        raise InputError(f"There is no folder {place}: give the folder of a model, with {MODEL} in it.")
    spec = _spec(place)
    contents = {name: _read(place / name) for name in FILES if name != MODEL}
    for name, known in spec["checksums"].items():
        if checksum(contents[name]) != known:
            raise InputError(f"{place / name} is damaged or another model's (its checksum differs): copy the model again.")
    encoder, network = _parsed(place / ENCODER, contents[ENCODER]), network_from(spec["network"])
    return Model(
        network=network,
        x=from_bytes(contents[WEIGHTS], network, spec["inputs"], str(place / WEIGHTS)),
        encoder=None if encoder is None else Encoder.from_dict(encoder),
        spec=spec,
        metrics=_parsed(place / METRICS, contents[METRICS]),
        card=contents[CARD].decode(),
    )


def check_target(target: Path) -> None:
    """Say why a model cannot be written here: a file, or a folder with anything but a model in it, is nobody's to replace."""
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file: give a folder for the model.")
    others = sorted(path.name for path in target.iterdir() if path.name not in FILES) if target.is_dir() else []
    if others:
        raise InputError(f"{target} holds other files than a model's, such as {others[0]}: give a folder of its own.")


def versions() -> dict[str, str]:
    """Return the versions of what a prediction's bits depend on."""
    found = {"python": platform.python_version(), "fedminimax": __version__}
    for package in ("jax", "jaxlib", "flax", "numpy", "pandas"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def checksum(contents: bytes) -> str:
    """Return the SHA-256 of a file's contents."""
    return hashlib.sha256(contents).hexdigest()


def _facts(
    encoder: Encoder | None, federation: Federation | None, loss: str, threshold: float | None, positive: int | None
) -> dict[str, Any]:
    """Return what the outputs mean, checked."""
    known = encoder or federation
    if known is None:
        raise InputError("Without an encoder a model needs its federation: give encoder= or federation=.")
    if encoder is not None:
        shape = [len(encoder.features)]
    else:
        assert federation is not None
        shape = [int(size) for size in federation.train.fields["inputs"].shape[1:]]
    if loss not in (ENTROPY, SQUARED):
        raise InputError(f"loss is {loss!r}: give 'entropy' or 'squared'.")
    classes = known.classes
    two = classes is not None and len(classes) == 2
    if positive is None and federation is not None:
        positive = federation.positive
    positive = 1 if positive is None and two else positive
    if positive is not None and not (two and positive in (0, 1)):
        raise InputError(f"positive is {positive!r}: it is 0 or 1, for a model of two classes.")
    if threshold is not None and not (two and 0 < real(threshold) < 1):
        raise InputError(f"threshold is {threshold!r}: give a number between 0 and 1, for a model of two classes.")
    return {
        "task": known.task,
        "classes": classes,
        "positive": positive,
        "threshold": None if threshold is None else float(threshold),
        "loss": SQUARED if classes is None else loss,
        "target_scale": None if known.target_scale is None else list(known.target_scale),
        "inputs": shape,
    }


_KINDS: dict[str, type | tuple[type, ...]] = {
    "network": dict, "task": str, "classes": (list, type(None)), "positive": (int, type(None)),
    "threshold": (float, int, type(None)), "loss": str, "target_scale": (list, type(None)), "inputs": list, "method": str,
    "settings": dict, "versions": dict, "checksums": dict,
}  # fmt: skip
"""What model.json must have."""


def _spec(place: Path) -> dict[str, Any]:
    """Return model.json, checked."""
    path = place / MODEL
    spec = _parsed(path, _read(path))
    if not isinstance(spec, dict) or not isinstance(spec.get("format"), int):
        raise InputError(f"{path} was not written by fedminimax.")
    if spec["format"] != FORMAT:
        when = "later" if spec["format"] > FORMAT else "earlier"
        raise InputError(
            f"{path} has the format {spec['format']} of fedminimax {spec.get('version')}, {when} than this {__version__}, "
            f"which reads format {FORMAT}: load it with that version."
        )
    for key, kind in _KINDS.items():
        if key not in spec or not isinstance(spec[key], kind):
            raise InputError(f"{path} is damaged: its {key!r} is missing or of another kind.")
    if not {"name", "fields"} <= set(spec["network"]) or set(spec["checksums"]) != {WEIGHTS, ENCODER}:
        raise InputError(f"{path} is damaged: its network or its checksums are incomplete.")
    return spec


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"There is no {path.name} in {path.parent}: it is no model's folder, or not a whole one.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None


def _parsed(path: Path, contents: bytes) -> Any:
    try:
        return json.loads(contents)
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): copy the model again.") from None


def _json(contents: object) -> bytes:
    return (json.dumps(contents, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _write(target: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder of their own, and put it in its place when they are all on the disk."""
    target = Path(os.path.abspath(target))
    unfinished, before = (target.with_name(f".{target.name}.{os.getpid()}.{what}") for what in ("part", "old"))
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
        unfinished.mkdir(parents=True)
        for name, contents in files.items():
            with (unfinished / name).open("wb") as file:
                file.write(contents)
                file.flush()
                os.fsync(file.fileno())
        if target.exists():
            os.rename(target, before)
        os.rename(unfinished, target)
    except OSError as error:
        raise InputError(f"The model cannot be written to {target} ({error.strerror}): give another folder.") from None
    finally:
        if before.exists() and not target.exists():  # stopped between the two: the old one goes back
            os.rename(before, target)
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)
