"""What makes a run this run and no other: a description that is the same in every process, and what differs between two.

Numbers and texts stand for themselves, arrays for a checksum of their bytes, functions for their name, a hash of their code,
and whatever their closures hold. What cannot be described is left out, and never an error: a description can miss a difference,
but does not invent one.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import sys
import zlib
from collections.abc import Callable, Mapping
from types import CodeType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax.data.clients import ClientData
from fedminimax.data.shards import ClientShard
from fedminimax.plan import Plan

_DEEPEST = 24
"""How far down a description goes: deeper than anything that is meant, and an end to what contains itself."""


def identity(plan: Plan) -> dict[str, Any]:
    """Return what a run is, as JSON can hold it: its method, problem, data and all else that its numbers depend on."""
    start = None
    if plan.start is not None:
        own = plan.start.client_states  # a store is as its rows are, wherever they live
        start = [plan.start.state, own.record() if hasattr(own, "record") else own, plan.start.round]
    return {
        "method": _parts(plan.algorithm),
        "problem": _parts(plan.problem),
        "clients": _clients(plan.clients),
        "seed": plan.seed,
        "metrics": {name: describe(metric) for name, metric in plan.metrics.items()},
        "guard": describe(plan.conditions.guard),
        "availability": describe(plan.conditions.availability),
        "privacy": describe(plan.conditions.privacy),
        "record": plan.conditions.record,
        "trace": describe(plan.trace),
        "start": describe(start),
        "numbers": jnp.zeros(()).dtype.name,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def hyper_parameters(algorithm: Any) -> dict[str, Any]:
    """Return an algorithm's hyper-parameters by name: numbers and texts as they are, all else as text."""
    plain = lambda v: v.item() if isinstance(v, (np.generic, np.ndarray, jax.Array)) and np.ndim(v) == 0 else v
    values = {f.name: plain(getattr(algorithm, f.name)) for f in dataclasses.fields(algorithm)}
    return {n: v if v is None or isinstance(v, (bool, int, float, str)) else _shown(v) for n, v in values.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, (np.ndarray, jax.Array)):
        return np.asarray(value).tolist()
    text = repr(value)
    return text if " at 0x" not in text else f"{type(value).__name__}(...)"


def _parts(thing: Any) -> dict[str, Any]:
    kept = describe(thing)
    return kept if isinstance(kept, dict) else {"kind": kept}


def _clients(clients: Any) -> dict[str, Any]:
    """Describe data by its amounts, which people know, and its contents."""
    kind = ClientData.__name__ if isinstance(clients, ClientShard) else type(clients).__name__
    known = {"kind": kind, "count": clients.count, "smallest": clients.smallest, "largest": clients.largest}
    contents: Any = getattr(clients, "make", None)
    if isinstance(clients, ClientData):
        contents = clients.fields, clients.sizes
    elif isinstance(clients, ClientShard):  # what the examples of all processes are together, field by field
        contents = jax.tree.unflatten(jax.tree.structure(clients.fields), clients.contents or ()), clients.sizes
    return known | {"batching": clients.batching, "contents": _hash(repr(describe(contents)).encode())}


# -- descriptions --------------------------------------------------------------------------------------------------------


def describe(value: Any) -> Any:
    """Describe anything, as JSON can hold it, alike in every process."""
    return _describe(value, ())


def _describe(value: Any, above: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, complex)):
        return repr(value) if value != value or value in (float("inf"), -float("inf")) or isinstance(value, complex) else value
    if id(value) in above or len(above) > _DEEPEST:
        return "..."
    try:
        return _described(value, (*above, id(value)))
    except Exception:  # whatever users hand in, a run that could not be described is still a run
        return _name(type(value))


def _described(value: Any, above: tuple[int, ...]) -> Any:
    inside = lambda v: _describe(v, above)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
        if array.ndim == 0:
            return array.item() if array.dtype.kind in "biuf" else repr(array.item())
        # Not against forgers, but against mistakes, and data may be large: a checksum is five times as fast as a hash.
        check = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return f"{array.dtype.name}{list(array.shape)} {check:08x}"
    if isinstance(value, bytes):
        return f"bytes {_hash(value)}"
    if isinstance(value, Mapping):
        return {str(k): inside(v) for k, v in sorted(value.items(), key=lambda item: str(item[0]))}
    if hasattr(value, "_fields"):
        return {"kind": _name(type(value)), **{k: inside(v) for k, v in value._asdict().items()}}
    if isinstance(value, (list, tuple)):
        return [inside(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((inside(v) for v in value), key=repr)
    if isinstance(value, (type, ModuleType)):
        return _name(value)
    if isinstance(value, functools.partial):
        return {"kind": "partial", "function": inside(value.func), "with": [inside(value.args), inside(value.keywords)]}
    if inspect.ismethod(value):
        return {"kind": "method", "function": _function(value.__func__, inside), "of": inside(value.__self__)}
    if hasattr(value, "__code__") or hasattr(value, "__wrapped__"):
        return _function(value, inside)
    if dataclasses.is_dataclass(value):
        return {"kind": _name(type(value)), **{f.name: inside(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    if callable(value) and not hasattr(value, "__dict__"):
        return _name(value)
    held = {k: inside(v) for k, v in sorted(getattr(value, "__dict__", {}).items()) if not k.startswith("__")}
    return {"kind": _name(type(value)), **held} if held else _name(type(value))


def _function(function: Any, inside: Callable[[Any], Any]) -> Any:
    """Describe a function by its name, its code unless it is a library's, and what its closure and defaults hold."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return inside(function) if hasattr(function, "__dict__") else _name(function)
    held = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        held[name] = inside(cell.cell_contents)
    kept: dict[str, Any] = {"kind": _name(function)}
    if not _of_a_library(function):
        kept["code"] = _hash(repr(_code(code)).encode())
        seen = {name: function.__globals__[name] for name in _names(code) if name in function.__globals__}
        held |= {name: inside(v) for name, v in seen.items() if not isinstance(v, (ModuleType, type))}
    if function.__defaults__ or function.__kwdefaults__:
        held["defaults"] = [inside(function.__defaults__), inside(function.__kwdefaults__)]
    return kept | ({"with": held} if held else {})


def _of_a_library(function: Any) -> bool:
    """Tell whether a function's code comes with an installed version of something, and its name says enough."""
    root = str(getattr(function, "__module__", "")).partition(".")[0]
    where = function.__code__.co_filename
    return root in {"fedminimax", *sys.stdlib_module_names} or "site-packages" in where or "dist-packages" in where


def _code(code: CodeType) -> Any:
    """Return what a function does: its instructions, names and constants, and not where it stands."""
    constants = [_code(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts]
    return code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants


def _constant(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _names(code: CodeType) -> list[str]:
    """Return the global names that a function may look up."""
    inner = [name for c in code.co_consts if isinstance(c, CodeType) for name in _names(c)]
    return sorted({*code.co_names, *inner})


def _name(thing: Any) -> str:
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", getattr(thing, "__name__", None))
    return ".".join(part for part in (module, name) if isinstance(part, str)) or type(thing).__name__


def _hash(contents: Any) -> str:
    return hashlib.sha256(contents).hexdigest()[:16]


# -- differences ---------------------------------------------------------------------------------------------------------


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Say in words how the run of a folder differs from one that is at hand; nothing: they are one run."""
    if there.get("python") != here.get("python"):  # the code of a function is not the same in two versions of Python
        there, here = _without_code(there), _without_code(here)
    said: list[str] = []
    for part, compare in _COMPARED.items():
        if there.get(part) != here.get(part):
            said += compare(there.get(part), here.get(part))
    return said


def _without_code(kept: Any) -> Any:
    if isinstance(kept, Mapping):
        return {k: _without_code(v) for k, v in kept.items() if k not in ("code", "contents")}
    return [_without_code(v) for v in kept] if isinstance(kept, list) else kept


def _short(kind: Any) -> str:
    return str(kind).rpartition(".")[2]


def _method(there: Any, here: Any) -> list[str]:
    if there.get("kind") != here.get("kind"):
        return [f"the method is {_short(there.get('kind'))} in the folder and {_short(here.get('kind'))} here"]
    names = dict.fromkeys([*there, *here])
    return [_number(name, there.get(name), here.get(name)) for name in names if there.get(name) != here.get(name)]


def _number(name: str, there: Any, here: Any) -> str:
    plain = lambda v: v is None or isinstance(v, (bool, int, float, str, list))
    if plain(there) and plain(here) and len(f"{there}{here}") < 120:
        return f"{name} is {there} in the folder and {here} here"
    return f"{name} differs{_where(there, here)}"


def _where(there: Any, here: Any) -> str:
    """Say where two descriptions part: the first place that is not the same."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in dict.fromkeys([*there, *here]):
            a, b = there.get(name), here.get(name)
            if a != b:
                if name == "kind":
                    return f" ({_short(a)} in the folder, {_short(b)} here)"
                if name == "code":
                    return f" (the code of {_short(there.get('kind'))} has changed)"
                return (f" in {name}" if name != "with" else "") + _where(a, b)
    short = lambda v: v is None or (isinstance(v, (int, float, str)) and len(str(v)) < 60)
    return f" ({there} in the folder, {here} here)" if short(there) and short(here) else ""


def _problem(there: Any, here: Any) -> list[str]:
    if there.get("kind") != here.get("kind"):
        return [f"the problem is a {_short(there.get('kind'))} in the folder and a {_short(here.get('kind'))} here"]
    if there.get("name") != here.get("name"):
        return [f"the problem is {there.get('name')} in the folder and {here.get('name')} here"]
    names = [name for name in dict.fromkeys([*there, *here]) if there.get(name) != here.get(name)]
    return [f"the problem's {name} differs{_where(there.get(name), here.get(name))}" for name in names]


def _data(there: Any, here: Any) -> list[str]:
    def amount(kept: Any) -> str:
        sizes = f"{kept['smallest']}" if kept["smallest"] == kept["largest"] else f"{kept['smallest']} to {kept['largest']}"
        return f"{kept['count']} clients of {sizes} examples"

    if amount(there) != amount(here):
        return [f"the clients' data differ: {amount(there)} in the folder, {amount(here)} here"]
    if there["batching"] != here["batching"]:
        return [f"batches are drawn by {there['batching']} in the folder and by {here['batching']} here"]
    return [f"the clients' data have other contents, though both are {amount(there)}"]


def _metrics(there: Any, here: Any) -> list[str]:
    if sorted(there) != sorted(here):
        listed = lambda names: ", ".join(names) or "none"
        return [f"the metrics are {listed(there)} in the folder and {listed(here)} here"]
    return [f"the metric {name} differs{_where(there[name], here[name])}" for name in there if there[name] != here[name]]


_COMPARED: dict[str, Callable[[Any, Any], list[str]]] = {
    "numbers": lambda there, here: [f"numbers are {there} in the folder and {here} here (jax_enable_x64)"],
    "method": _method,
    "problem": _problem,
    "clients": _data,
    "seed": lambda there, here: [f"the seed is {there} in the folder and {here} here"],
    "metrics": _metrics,
    "guard": lambda there, here: [f"the guard differs{_where(there, here)}"],
    "availability": lambda there, here: [f"the availability differs{_where(there, here)}"],
    "privacy": lambda there, here: [f"the privacy differs{_where(there, here)}"],
    "record": lambda there, here: [f"record is {there} in the folder and {here} here"],
    "trace": lambda there, here: ["the trace to replay is another one"],
    "start": lambda there, here: ["it starts from another state"],
}
