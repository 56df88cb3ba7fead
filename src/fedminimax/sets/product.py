"""A set for each part of a tree."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax

from fedminimax.errors import InputError
from fedminimax.players import Tree
from fedminimax.sets.base import Set, as_set


@dataclasses.dataclass(frozen=True, init=False)
class Product(Set):
    """One set for each top-level entry of a tree: C = C_1 x C_2 x ...

    Args:
        sets: the sets in the order of a tuple or NamedTuple, ``Product(Simplex(), None)``; or one mapping from the keys
            of a dict or the fields of a NamedTuple, ``Product({"w": Simplex(), "b": None})``. None is no constraint.
    """

    sets: tuple[Set, ...]
    names: tuple[Hashable, ...] | None

    def __init__(self, *sets: Set | Mapping[Any, Set | None] | None) -> None:
        names: tuple[Hashable, ...] | None = None
        values: tuple[Any, ...] = sets
        if len(sets) == 1 and isinstance(sets[0], Mapping):
            mapping = sets[0]
            names = tuple(sorted(mapping, key=repr))  # the order in which a dict was written must not matter
            values = tuple(mapping[name] for name in names)
        if not values:
            raise InputError("a Product needs at least one set; use Everything() for no constraint")
        object.__setattr__(self, "sets", tuple(as_set(value) for value in values))
        object.__setattr__(self, "names", names)

    def project(self, tree: Tree) -> Tree:
        """Return (P_1(v_1), P_2(v_2), ...)."""
        self._require(tree)
        return self._map(lambda part, entry: part.project(entry), tree)

    def diameter(self, like: Tree | None = None) -> float:
        """Return sqrt(d_1^2 + d_2^2 + ...)."""
        if like is None:
            return math.hypot(*(part.diameter() for part in self.sets))
        self._require(like)
        return math.hypot(*(part.diameter(entry) for part, _, entry in self._match(like)[0]))

    def linear_max(self, gradient: Tree) -> Tree:
        """Return the maximiser of each set for its own part of g."""
        self._require(gradient)
        return self._map(lambda part, entry: part.linear_max(entry), gradient)

    def _map(self, function: Callable[[Set, Tree], Tree], tree: Tree) -> Tree:
        matches, structure = self._match(tree)
        return jax.tree.unflatten(structure, [function(part, entry) for part, _, entry in matches])

    def _match(
        self, tree: Tree, the_set: str = "the set", the_tree: str = "the tree"
    ) -> tuple[list[tuple[Set, str, Tree]], Any]:
        """Each set with the entry that it constrains and that entry's path, and the structure around the entries."""
        # Stopping below the root makes this right for any container that JAX knows, not only dicts and tuples.
        children, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
        if children and not children[0][0]:
            raise InputError(
                f"{the_set} is {self._described} but {the_tree} is a single array; "
                "use one of these sets alone, or make the player a tuple or dict"
            )
        keys = [_key_of(path[0]) for path, _ in children]
        if self.names is None:
            if any(isinstance(path[0], jax.tree_util.DictKey) for path, _ in children):
                raise InputError(
                    f"{the_set} is a Product by position but {the_tree} is a dict; "
                    "name its entries, as in Product({'w': Simplex()})"
                )
            if len(children) != len(self.sets):
                raise InputError(
                    f"{the_set} is {self._described} but {the_tree} has {len(children)} entries; "
                    "give each entry a set, or None for no constraint"
                )
            parts = list(self.sets)
        else:
            by_name = dict(zip(self.names, self.sets, strict=True))
            if odd := sorted(set(by_name).symmetric_difference(keys), key=repr):
                have, lack = (the_set, the_tree) if odd[0] in by_name else (the_tree, the_set)
                raise InputError(
                    f"{have} has an entry {odd[0]!r} but {lack} has none; "
                    "name the same entries in both, with None for no constraint"
                )
            parts = [by_name[key] for key in keys]
        paths = [jax.tree_util.keystr(path) for path, _ in children]
        return [(p, path, entry) for p, path, (_, entry) in zip(parts, paths, children, strict=True)], structure

    def _require(self, tree: Tree, the_set: str = "the set", the_tree: str = "the tree") -> None:
        for part, path, entry in self._match(tree, the_set, the_tree)[0]:
            part._require(entry, the_set + path, the_tree + path)

    @property
    def _described(self) -> str:
        return f"a Product of {len(self.sets)} set{'s' if len(self.sets) > 1 else ''}"


def _key_of(key: Any) -> Hashable:
    """The name that a step of a path goes by: a dict's key, a NamedTuple's field or a position."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return key
