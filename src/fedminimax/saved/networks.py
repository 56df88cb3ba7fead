"""Networks by name and fields, so that a file can say which one its weights are for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedminimax.errors import InputError

if TYPE_CHECKING:
    from flax import linen as nn

_OWN = ("name", "parent")  # fields that Flax gives to every module


def network_spec(network: object) -> dict[str, Any]:
    """Return {"name": ..., "fields": ...} of a Flax module; the name is one of ``models.MODELS``, or "package.module:Name"."""
    from flax import linen as nn

    from fedminimax.models import MODELS

    kind = type(network)
    if not isinstance(network, nn.Module):
        raise InputError(
            f"A network of the kind {kind.__name__} cannot be saved: give a Flax module, such as models.Linear(2)."
        )
    named = [name for name, known in MODELS.items() if known is kind]
    if not named and (kind.__module__ == "__main__" or "<locals>" in kind.__qualname__):
        raise InputError(
            f"The network {kind.__name__} is defined where no other program can import it: put its class in a module."
        )
    fields = {f.name: getattr(network, f.name) for f in dataclasses.fields(network) if f.name not in _OWN}
    for name, value in fields.items():
        if not _plain(value):
            raise InputError(
                f"The network {kind.__name__} cannot be saved: its field {name!r} is a {type(value).__name__}, which JSON "
                "cannot hold. Let fields be numbers, texts, and tuples of these."
            )
    return {"name": named[0] if named else f"{kind.__module__}:{kind.__qualname__}", "fields": fields}


def network_from(spec: Mapping[str, Any]) -> nn.Module:
    """Return the network that :func:`network_spec` described."""
    from fedminimax.models import MODELS

    name, fields = spec["name"], spec["fields"]
    kind = MODELS[name] if name in MODELS else _imported(name)
    try:
        return kind(**{key: _tuples(value) for key, value in fields.items()})
    except TypeError as error:
        raise InputError(
            f"The network {name} cannot be made with the fields of the model ({error}): it was saved with another version."
        ) from None


def _imported(name: str) -> Any:
    """Return a class that is named as package.module:Name. Nothing but a Flax module is taken."""
    from flax import linen as nn

    from fedminimax.models import MODELS

    module, _, path = name.partition(":")
    if not path:
        raise InputError(f"There is no network {name!r}: known are {', '.join(MODELS)}, and package.module:Name.")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"The model's network {name} cannot be imported ({error}): install its package, or run this where its module is."
        ) from None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise InputError(f"The model's network {name} is no Flax module: the file is damaged or not what it seems.")
    return found


def _plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def _tuples(value: Any) -> Any:
    """Return JSON's lists as tuples, which can be hashed: JAX asks that of a module's fields."""
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
