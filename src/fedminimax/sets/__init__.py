"""Constraint sets for the players: X for the min player x, Y for the max player y.

A set knows four things: its Euclidean projection, its diameter, the point of it that maximises a linear function, and
which trees can live in it. Sets are plain values, hashable and comparable, so that a problem that holds them can be a
static part of a compiled program. Their parameters are therefore numbers known before tracing.

>>> import jax.numpy as jnp
>>> from fedminimax.sets import L2Ball, Product, Simplex
>>> Simplex().project(jnp.array([0.5, 2.0, 1.5]))
Array([0.  , 0.75, 0.25], dtype=float32)
>>> Product({"noise": L2Ball(radius=1.5), "shift": L2Ball(radius=2.0)}).diameter()
5.0
"""

from fedminimax.sets.ball import L2Ball
from fedminimax.sets.base import Everything, Set, as_set
from fedminimax.sets.bounds import Box, NonNegative
from fedminimax.sets.product import Product
from fedminimax.sets.simplex import CappedSimplex, Simplex

SETS: dict[str, type[Set]] = {
    "everything": Everything,
    "simplex": Simplex,
    "capped_simplex": CappedSimplex,
    "l2_ball": L2Ball,
    "box": Box,
    "non_negative": NonNegative,
    "product": Product,
}
"""The sets by the names that experiment files use."""

__all__ = ["SETS", "Box", "CappedSimplex", "Everything", "L2Ball", "NonNegative", "Product", "Set", "Simplex", "as_set"]
