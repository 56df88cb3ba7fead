"""Federated minimax optimization: train a model against an adversary while the data stays on the clients.

Modules and the public names (:mod:`fedminimax.names`) are imported when they are first used (PEP 562), so that
``fedminimax --help`` need not wait for JAX, nor anybody for Flax who trains no network.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedminimax._version import __version__ as __version__
from fedminimax.devices import offer_cores

if TYPE_CHECKING:
    from fedminimax import data as data
    from fedminimax import metrics as metrics
    from fedminimax import models as models
    from fedminimax import penalties as penalties
    from fedminimax import problems as problems
    from fedminimax import sets as sets
    from fedminimax.names import *  # noqa: F403

_MODULES = ("data", "metrics", "models", "penalties", "problems", "sets")
"""The modules that are public as a whole."""
_FUNCTIONS = ("compare", "report", "run", "sweep")
"""Functions that have the name of the module that holds them."""


if not TYPE_CHECKING:  # a checker would take it to mean that there is every name

    def __getattr__(name: str) -> Any:
        """Return a module of this package, or a public name, when it is first asked for."""
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name not in _FUNCTIONS and importlib.util.find_spec(f"{__name__}.{name}"):
            return importlib.import_module(f"{__name__}.{name}")
        names = importlib.import_module(f"{__name__}.names")
        if name == "__all__":
            return sorted([*names.__all__, *_MODULES, "__version__"])
        if name not in names.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals().update((each, getattr(names, each)) for each in names.__all__)  # and none is asked for again
        return globals()[name]

    def __dir__() -> list[str]:
        """Return all that can be asked for."""
        return sorted({*globals(), *__getattr__("__all__")})


class _Package(ModuleType):
    """This package, in which ``run``, ``sweep``, ``compare`` and ``report`` are functions, and not the modules that hold them.

    When Python has imported a module it sets the package's attribute of that name, whoever imported it.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        held = name in _FUNCTIONS and isinstance(value, ModuleType)
        super().__setattr__(name, getattr(value, name) if held else value)


sys.modules[__name__].__class__ = _Package

offer_cores()
