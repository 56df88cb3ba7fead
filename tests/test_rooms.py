"""One package a job, and none that imports in a circle."""

import ast
from pathlib import Path

import networkx as nx

import fedminimax

SOURCE = Path(fedminimax.__file__).parent


def modules():
    """Every module by its name, with its parsed source."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text()), path


def imported(tree):
    """What a module imports from this package: also inside of functions, but not for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph():
    known = {name for name, _, _ in modules()}
    room = lambda name: name.split(".")[1] if "." in name else ""
    rooms = nx.DiGraph()
    for name, tree, _ in modules():
        for found in imported(tree):
            while found and found not in known:  # a name in a module is the module's
                found = found.rpartition(".")[0]
            if "." in found and "." in name and room(found) != room(name):
                rooms.add_edge(room(name), room(found), **{"by": f"{name} imports {found}"})
    return rooms


def test_no_package_imports_in_a_circle():
    rooms = graph()
    assert {"engines", "federation", "algorithms", "problems", "random"} <= set(rooms)
    circles = [c for c in nx.strongly_connected_components(rooms) if len(c) > 1]
    shown = [rooms.edges[edge]["by"] for circle in circles for edge in rooms.subgraph(circle).edges]
    assert not circles, shown


def test_no_module_takes_what_is_private_elsewhere():
    private = []
    for name, tree, _ in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedminimax"):
                private += [
                    f"{name} takes {a.name} of {node.module}"
                    for a in node.names
                    if a.name.startswith("_") and a.name != "__version__"
                ]
    assert not private


def test_files_that_a_reader_does_not_have_are_not_cited():
    cited = [
        f"{path.name}: {line.strip()}" for _, _, path in modules() for line in path.read_text().splitlines() if ".txt" in line
    ]
    own = ("log.txt", "wnids.txt", "val_annotations.txt")  # of a run's folder, and in an archive that is read
    assert not [c for c in cited if not any(name in c for name in own)], cited
