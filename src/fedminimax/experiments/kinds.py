"""What a file can name: methods, problems, metrics, models, penalties and so on, each from the registry that has them.

Nothing is listed here that a registry lists already: a new method, problem or metric is usable in files when it is defined.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fedminimax.errors import InputError
from fedminimax.experiments.mistakes import nearest, plain

BESIDE = "beside_"
"""What the names of modules begin with that were read from a file beside the experiment's."""


@dataclass(frozen=True)
class Kind:
    """Things of one kind that a file can name.

    Attributes:
        what: what to call one of them.
        load: returns them by name; where that is slow to import, only when it is asked.
        base: returns the class that all of them are instances of, once made; None: there is none.
        real: whether what they take is real hyper-parameters, which may be scheduled, wherever nothing else is said.
    """

    what: str
    load: Callable[[], Mapping[str, Any]]
    base: Callable[[], Any] = lambda: None
    real: bool = False

    def names(self) -> dict[str, Any]:
        """Return them by name."""
        return dict(self.load())

    def find(self, name: str) -> Any:
        """Return the one of that name, however its words are joined; None where there is none."""
        return {plain(key): value for key, value in self.names().items()}.get(plain(name))

    def get(self, name: str, folders: Sequence[Path] = ()) -> Any:
        """Return the one of a name, or a user's own, "package.module:Name" or "file.py:Name"."""
        if ":" in name:
            return own(name, folders)
        found = self.find(name)
        if found is None:
            raise InputError(f"there is no {self.what} {name!r}: {nearest(name, self.names())}")
        return found

    def name_of(self, thing: Any) -> str | None:
        """Return the name by which a class or a function is listed; None where it is not."""
        return next((name for name, listed in self.names().items() if listed is thing), None)


def own(name: str, folders: Sequence[Path]) -> Any:
    """Return a user's own class, function or object.

    Args:
        name: "package.module:Name", or "file.py:Name" with a file in one of the folders.
        folders: where files are looked for, and modules too.
    """
    module, _, attribute = name.partition(":")
    found = _file(module, folders) if module.endswith(".py") else _module(module, folders)
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        public = [known for known in vars(found) if not known.startswith("_")]
        raise InputError(f"{module} has no {attribute!r}: {nearest(attribute, public)}") from None
    return found


def _module(name: str, folders: Sequence[Path]) -> ModuleType:
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f"there is no module {error.name!r}: run this where it can be imported.") from None


def _file(name: str, folders: Sequence[Path]) -> ModuleType:
    path = find_file(name, folders)
    if path is None:
        raise InputError(f"there is no file {name} beside the experiment, in {folders[0] if folders else Path.cwd()}.")
    # Its own name for the module: states that are saved or sent carry it, and must be found again from a copy of the file.
    module_name = BESIDE + path.stem
    known = sys.modules.get(module_name)
    contents = path.read_bytes()
    if known is not None and getattr(known, "contents", None) == contents:
        return known
    found = importlib.util.spec_from_file_location(module_name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    vars(module)["contents"] = contents
    sys.modules[module_name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise InputError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the path of a file that a spec names, from the first folder that has it; None where none has."""
    places = [Path(name).expanduser()] if Path(name).expanduser().is_absolute() else [folder / name for folder in folders]
    return next((place.resolve() for place in places if place.is_file()), None)


def own_name(thing: Any) -> str | None:
    """Return the name under which :func:`own` finds a class or a function again; None where it does not."""
    module, attribute = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "<")
    if module in (None, "__main__") or "<" in attribute:
        return None
    return f"{module.removeprefix(BESIDE)}.py:{attribute}" if module.startswith(BESIDE) else f"{module}:{attribute}"


# -- the kinds ---------------------------------------------------------------------------------------------------------


def _of(module: str, attribute: str) -> Callable[[], Any]:
    """Return something that imports a module of this package when it is called."""
    return lambda: getattr(importlib.import_module(f"fedminimax.{module}"), attribute)


def _models() -> dict[str, Any]:
    """Return the listed classifiers, and the other networks by their class names."""
    models = importlib.import_module("fedminimax.models")
    listed = dict(models.MODELS)
    others = {name: getattr(models, name) for name in models.__all__ if isinstance(getattr(models, name), type)}
    return listed | {name: made for name, made in others.items() if made not in listed.values()}


def _data() -> dict[str, Any]:
    """Return the data sets and the published tables; what reads them is :func:`fedminimax.experiments.material.source`."""
    source, datasets, tables = _of("experiments.material", "source")(), _of("data.datasets", "DATASETS")(), _of("data.published", "TABLES")()  # fmt: skip  # noqa: E501
    return {name: source(name) for name in (*datasets, *tables)}


def _networks() -> dict[str, Any]:
    from fedminimax.network import Network

    return {name: getattr(Network, name) for name in ("ring", "star", "grid", "complete", "random")}


def _classes(module: str, *names: str) -> Callable[[], dict[str, Any]]:
    return lambda: {name: getattr(importlib.import_module(f"fedminimax.{module}"), name) for name in names}


def _engines() -> dict[str, Any]:
    modules = {"simulator": "engines.simulator", "isolated": "engines.isolated", "mesh": "engines.mesh"}
    return {name: _of(module, name.capitalize())() for name, module in modules.items()}


def _ranges() -> dict[str, Any]:
    from fedminimax.sweeps.space import LogUniform, Uniform

    return {"uniform": Uniform, "log_uniform": LogUniform}


def _schedules() -> dict[str, Any]:
    from fedminimax.schedules import Piecewise, PowerDecay

    return {"piecewise": Piecewise, "power_decay": PowerDecay}


METHOD = Kind("method", _of("algorithms", "ALGORITHMS"), _of("algorithms", "Algorithm"), real=True)
PROBLEM = Kind("problem", _of("problems", "PROBLEMS"))
METRIC = Kind("metric", _of("metrics", "METRICS"))
PARTITION = Kind("partition", _of("data.partition", "PARTITIONS"))
DATA = Kind("data set", _data)
MODEL = Kind("model", _models)
PENALTY = Kind("penalty", _of("penalties", "PENALTIES"), _of("penalties", "Penalty"))
SET = Kind("set", _of("sets", "SETS"), _of("sets", "Set"))
NETWORK = Kind("network", _networks, _of("network", "Network"))
SOLVER = Kind(
    "local solver",
    _classes("algorithms", "Plain", "Momentum", "Proximal", "Weighted"),
    _of("algorithms", "Solver"),
    real=True,
)
STEPS = Kind("number of steps", _classes("steps", "UniformSteps", "ClientSteps"))
SCHEDULE = Kind("schedule", _schedules, real=True)
CLASSIFIER = Kind(
    "classifier",
    lambda: {"train_classifier": _of("metrics", "train_classifier")()},
    _of("metrics", "Classifier"),
)
RANGE = Kind("range", _ranges)
HALVING = Kind("halving", _classes("sweeps.halving", "Halving"), _of("sweeps.halving", "Halving"))
ENGINE = Kind("engine", _engines)
GUARD = Kind("guard", _classes("federation.guard", "Guard"), _of("federation.guard", "Guard"))
PRIVACY = Kind("privacy", _classes("federation.privacy", "Privacy"), _of("federation.privacy", "Privacy"))
AVAILABILITY = Kind(
    "availability", _classes("federation.availability", "Availability"), _of("federation.availability", "Availability")
)
WAVE = Kind("wave", _classes("federation.availability", "Wave"), _of("federation.availability", "Wave"))
DELAY = Kind("delay", _classes("federation.availability", "Delay"), _of("federation.availability", "Delay"))

BY_PARAMETER = {"model": MODEL, "generator": MODEL, "discriminator": MODEL, "classifier": CLASSIFIER}
"""Parameters that say nothing of their type, by their names."""


def kinds_of(hint: Any) -> list[Kind]:
    """Return the kinds of things that a parameter of this type takes."""
    if not isinstance(hint, type):
        return []
    based = (PENALTY, SET, NETWORK, SOLVER, GUARD, AVAILABILITY, WAVE, DELAY)
    found = [kind for kind in based if isinstance(kind.base(), type) and issubclass(hint, kind.base())]
    return found or [kind for kind in (STEPS, SCHEDULE) if hint in kind.names().values()]
