"""Mutants of a source file: the same program with one thing wrong, made from its syntax tree."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import marshal
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult}
SWAPPED |= {ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
NEGATED = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
NEGATED |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
EDGE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OTHER = {"min": "max", "minimum": "maximum", "argmin": "argmax", "any": "all", "floor": "ceil", "zeros": "ones", "mean": "sum"}
OTHER |= {"zeros_like": "ones_like", "smallest": "largest"} | {b: a for a, b in OTHER.items()}
DROPPED = {"project", "project_x", "project_y", "abs", "sqrt", "square", "clip", "sort", "round", "exp", "log", "scale", "lift"}
DROPPED |= {
    "stop_gradient",
    "_shifted",
    "_unit",
    "direction",
    "maximum",
    "minimum",
    "neutral",
    "bind",
    "coupled",
    "only",
    "log1p",
}
QUIET_KEYWORDS = {"name", "metadata", "default", "default_factory", "static_argnums", "nondiff_argnums", "from_theory"}
QUIET_DEFAULTS = {"tol", "max_steps", "seed", "name"}  # a tolerance twice as large is no error
WORDS = {"__repr__", "__str__", "_described", "_unbounded"}


@dataclass(frozen=True)
class Mutant:
    """One change: where, of which kind, what stood there and what stands there now; ``make`` gives the whole file with it."""

    id: str
    file: str
    line: int
    function: str
    kind: str
    before: str
    after: str
    make: Callable[[], str]


def mutants(root: Path, file: str) -> Iterator[Mutant]:
    """Yield every mutant of a file, in the order of its lines; none that compiles to what is there already."""
    tree = ast.parse((root / file).read_text())
    taken: Counter[str] = Counter()
    for node, parent, field, index, function, statement in _places(tree):
        found = list(_replacements(node, parent))
        if not found:
            continue
        unit = node if isinstance(statement, ast.Module) or hasattr(statement, "body") else statement
        text, seen = ast.unparse(unit), {_program(unit)}
        for kind, new in found:
            with _changed(parent, field, index, new):
                program = _program(new if unit is node else unit)
            if program in seen:
                continue
            seen.add(program)
            before, after = (ast.unparse(n).partition("\n")[0] if n is not None else "" for n in (node, new))
            # The name of a mutant does not change when lines are added above it.
            key = hashlib.sha1("|".join((file, function, text, kind, before, after)).encode()).hexdigest()[:8]
            taken[key] += 1
            key = key if taken[key] == 1 else f"{key}.{taken[key]}"
            make = functools.partial(_with, tree, parent, field, index, new)
            yield Mutant(key, file, node.lineno, function, kind, before, after, make)


def watched(root: Path, file: str) -> str:
    """Return a file whose functions call ``sys.entered`` with their names when they are entered."""
    tree = ast.parse((root / file).read_text())
    for node, *_, function, _ in list(_places(tree)):
        if isinstance(node, ast.FunctionDef):
            name = f"{file}:{function}"
            node.body.insert(bool(ast.get_docstring(node)), ast.parse(f"__import__('sys').entered({name!r})").body[0])
    return ast.unparse(ast.fix_missing_locations(tree))


def _program(node: ast.AST | None) -> bytes:
    """The compiled form of a statement or an expression, without its place in the file."""
    text = "pass" if node is None else ast.unparse(node)
    return marshal.dumps(compile("def f():\n while True:\n" + textwrap.indent(text, "  "), "mutant", "exec", optimize=2))


@contextlib.contextmanager
def _changed(parent: ast.AST, field: str, index: int | None, new: ast.AST | None) -> Iterator[None]:
    old = getattr(parent, field) if index is None else getattr(parent, field)[index]
    _put(parent, field, index, new)
    yield
    _put(parent, field, index, old)


def _with(tree: ast.Module, parent: ast.AST, field: str, index: int | None, new: ast.AST | None) -> str:
    with _changed(parent, field, index, new):
        return ast.unparse(tree)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST | None) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node if node is not None else ast.Pass()


def _places(tree: ast.Module) -> Iterator[tuple]:
    """Yield the nodes that a mutant may change, each with its place, its function's name and its statement."""

    def visit(parent: ast.AST, function: str, statement: ast.AST) -> Iterator[tuple]:
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns", "decorator_list", "bases", "names", "type_params"):
                continue
            for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
                if not isinstance(node, ast.AST) or _says_nothing(node, parent):
                    continue
                inner = function
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    local = ".<locals>" if isinstance(parent, ast.FunctionDef) else ""
                    inner = f"{function}{local}.{node.name}".lstrip(".")
                simple = isinstance(node, ast.stmt) and not hasattr(node, "body")
                condition = isinstance(node, ast.expr) and isinstance(parent, ast.stmt) and hasattr(parent, "body")
                here = node if simple or condition else statement
                if isinstance(node, ast.expr | ast.stmt):
                    yield node, parent, field, index, inner, here
                yield from visit(node, inner, here)

    return visit(tree, "", tree)


def _says_nothing(node: ast.AST, parent: ast.AST) -> bool:
    """Whether a node is a message, a name for readers, or something else without an effect on results."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.FunctionDef):
        return node.name in WORDS
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Assign) and any(getattr(t, "id", "").startswith("__") for t in node.targets):
        return True
    if isinstance(node, ast.AnnAssign | ast.Assign):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
        return isinstance(node.value, ast.Constant | ast.Call) and any(getattr(t, "id", "") in QUIET_DEFAULTS for t in targets)
    if isinstance(node, ast.Call) and _name(node) in ("warn", "cast", "TypeVar"):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in QUIET_KEYWORDS - {"default"}
    if isinstance(parent, ast.arguments) and node in (parent.defaults + parent.kw_defaults):
        named = [*zip(reversed(parent.posonlyargs + parent.args), reversed(parent.defaults), strict=False)]
        named += [*zip(parent.kwonlyargs, parent.kw_defaults, strict=True)]
        return any(default is node and arg.arg in QUIET_DEFAULTS for arg, default in named)
    return False


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _copy(node: ast.AST, **changes: object) -> ast.AST:
    return type(node)(**{**dict(ast.iter_fields(node)), **changes})


def _replacements(node: ast.AST, parent: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield what a node may be replaced by, with the kind of the change."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in SWAPPED:
        if isinstance(node, ast.AugAssign) or not (_is_text(node.left) or _is_text(node.right)):
            yield "operator", _copy(node, op=SWAPPED[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield "operator", _copy(node, op=SWAPPED[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        yield "sign", node.operand
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        if not isinstance(parent, ast.If):
            yield "comparison", _copy(node, ops=[NEGATED[type(node.ops[0])]()])
        if type(node.ops[0]) in EDGE:
            yield "boundary", _copy(node, ops=[EDGE[type(node.ops[0])]()])
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if type(op) in EDGE:
                yield "boundary", _copy(node, ops=[*node.ops[:i], EDGE[type(op)](), *node.ops[i + 1 :]])
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "constant", ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            integer = isinstance(node.value, int)
            yield "constant", ast.Constant(node.value + 1 if integer or node.value == 0 else 2 * node.value)
    elif isinstance(node, ast.IfExp):
        yield "branch", node.body
        yield "branch", node.orelse
    elif isinstance(node, ast.Call):
        yield from _calls(node, parent)
    if isinstance(node, ast.If):
        guard = len(node.body) == 1 and isinstance(node.body[0], ast.Raise) and not node.orelse
        if guard:
            yield "no check", _copy(node, test=ast.Constant(False))
        else:
            yield "condition", _copy(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value) != "__setattr__":
        yield "statement", None


def _calls(node: ast.Call, parent: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    name = _name(node)
    if name in OTHER and not (name in ("sum", "mean") and isinstance(node.func, ast.Name)):
        func = _copy(node.func, attr=OTHER[name]) if isinstance(node.func, ast.Attribute) else ast.Name(OTHER[name], ast.Load())
        yield "function", _copy(node, func=func)
    if name in DROPPED and node.args and not isinstance(node.args[0], ast.Starred):
        yield "call dropped", node.args[0]
    if name in ("where", "select") and len(node.args) == 3:
        yield "branch", node.args[1]
        yield "branch", node.args[2]
    for i, keyword in enumerate(node.keywords):
        if keyword.arg and keyword.arg not in QUIET_KEYWORDS:
            yield "argument dropped", _copy(node, keywords=node.keywords[:i] + node.keywords[i + 1 :])
    if len(node.args) > 1 and (last := ast.unparse(node.args[-1]).rpartition(".")[2]) and (last == "p" or "weights" in last):
        yield "argument dropped", _copy(node, args=node.args[:-1])


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)
