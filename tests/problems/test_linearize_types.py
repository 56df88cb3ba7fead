"""A linearised network keeps the numbers' type of its weights."""

import jax
import jax.numpy as jnp
import numpy as np

import fedminimax as fm


def test_a_displacement_has_the_type_of_the_weights(x64):
    weights = {"a": jnp.ones((2, 3), jnp.float32), "b": jnp.ones(3, jnp.float32)}
    function = lambda w, inputs: inputs @ w["a"] + w["b"]
    for features in (None, 4):
        x = fm.problems.linearize(function, weights, features=features).init(jax.random.key(0), np.ones((1, 2)))["params"]
        assert {leaf.dtype for leaf in jax.tree.leaves(x)} == {jnp.dtype(jnp.float32)}
