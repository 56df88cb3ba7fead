"""Models to keep: a folder with weights, encoder, metrics and a card, and predictions for new rows from it."""

import importlib
from typing import TYPE_CHECKING, Any

from fedminimax.saved.folder import load_model, save_model

if TYPE_CHECKING:
    from fedminimax.saved.model import Model

__all__ = ["Model", "load_model", "save_model"]


if not TYPE_CHECKING:  # a checker would take it to mean that there is every name

    def __getattr__(name: str) -> Any:
        """Return the class of models when it is first asked for: only that needs pandas and Flax."""
        if name == "Model":
            return importlib.import_module(f"{__name__}.model").Model
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
