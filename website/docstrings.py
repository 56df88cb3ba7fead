"""Docstrings as the API reference shows them: their formulas and references in Markdown, and the arguments of dataclasses.

A Griffe extension: mkdocstrings hands it every object before it is rendered.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from typing import Any

import griffe

from formulas import symbols
from reference import identifiers

_MATH = re.compile(r"^( *)\.\. math::[ ]?(.*\n(?:(?:\1 +\S.*)?\n)*(?:\1 +\S.*)?)", re.MULTILINE)
_ROLE = re.compile(r":(class|func|meth|mod|attr|data|math):`~?([^`]+)`")
_SHOWN = re.compile(
    r"(?P<kept>``.+?``|`[^`]+`|\$\$.+?\$\$|\$[^$]+\$|^ *>>>.*$)|(?P<tag><(?=[A-Za-z/]))", re.DOTALL | re.MULTILINE
)


def markdown(text: str, links: dict[str, str]) -> str:
    """Return a docstring in Markdown: formulas as $...$ and $$...$$, references to what the site describes as links.

    Args:
        text: the docstring, without its common indentation.
        links: where the names that the site describes are to be found.
    """

    def formula(match: re.Match[str]) -> str:
        body = " ".join(textwrap.dedent(match[2]).split())
        return f"\n{match[1]}$$ {body} $$\n\n"

    def role(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "math":
            return f"${' '.join(name.split())}$"
        short = name.rpartition(".")[2] if match[0].startswith(f":{kind}:`~") else name
        target = links.get(name) if kind in ("class", "func") else None
        return f"[`{short}`][{target}]" if target else f"`{short}`"

    text = _MATH.sub(formula, text + "\n")
    text = _ROLE.sub(role, text)
    text = symbols(text)
    text = _SHOWN.sub(lambda m: m["kept"] or "&lt;", text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = re.sub(r"^   (?=\S)", "    ", text, flags=re.MULTILINE)  # Markdown wants four spaces in a list
    return re.sub(r"\n{3,}", "\n\n", text).strip()


class Docstrings(griffe.Extension):
    """Every docstring in Markdown; dataclasses with the arguments that Python gives them."""

    def __init__(self) -> None:
        """Ask what the site describes."""
        self.links = identifiers()
        self.described = set(self.links.values())

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Rewrite the docstring."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value, self.links)

    def on_class(self, *, cls: griffe.Class, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Give a class that has no ``__init__`` of its own in the source the signature that it has at run time."""
        if cls.path not in self.described or "__init__" in cls.members:
            return
        found = getattr(importlib.import_module(cls.module.path), cls.name)
        if not hasattr(found, "__dataclass_fields__"):
            return
        parameters = griffe.Parameters(griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword))
        for name, parameter in inspect.signature(found).parameters.items():
            if name in ("parent", "name") and hasattr(found, "apply"):  # what Flax adds to every module
                continue
            parameters.add(_parameter(name, parameter))
        made = griffe.Function("__init__", parameters=parameters, parent=cls)
        cls.set_member("__init__", made)


def _parameter(name: str, parameter: inspect.Parameter) -> griffe.Parameter:
    """Return a parameter as Griffe has it."""
    default = None if parameter.default is inspect.Parameter.empty else repr(parameter.default)
    annotation = (
        parameter.annotation if isinstance(parameter.annotation, str) else inspect.formatannotation(parameter.annotation)
    )
    kind = griffe.ParameterKind(parameter.kind.description)
    return griffe.Parameter(name, annotation=annotation, kind=kind, default="..." if default and "<" in default else default)
