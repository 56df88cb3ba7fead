"""A network made linear in its weights, so that training it is a convex problem: scaff-pd.txt, section C.1.

Near trained weights w, a network f is well described by its first-order model, f(w, a) + J(w, a) x, with J its Jacobian
with respect to the weights and x a displacement from w. Any convex loss of it is convex in x.

:func:`linearize` is that model, to be used as a network in any problem. :func:`tangent_features` are the feature vectors
that the paper trains linear classifiers on; they are computed once.

References:
    Yu, Wei, Karimireddy, Ma and Jordan, TCT: Convexifying federated learning using bootstrapped neural tangent kernels,
    NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedminimax.checks import integer
from fedminimax.errors import InputError


@dataclass(frozen=True, eq=False)
class Linearized:
    """A first-order model of a network at given weights; :func:`linearize` makes it.

    It has the two methods of a Flax module that this library calls, and stands where one does.

    Attributes:
        function: f(weights, inputs), the network.
        weights: w, where the model is taken.
        coordinates: the weights that x displaces, as indices into the flat w; None for all.
    """

    function: Callable[[Any, Any], jax.Array]
    weights: Any
    coordinates: npt.NDArray[np.int64] | None = None

    def init(self, key: Any, inputs: Any) -> dict[str, Any]:
        """Return {"params": x} with x = 0, where the model equals the network.

        Args:
            key: not used: nothing is random.
            inputs: not used: the weights have their shapes.
        """
        if self.coordinates is None:
            return {"params": jax.tree.map(jnp.zeros_like, self.weights)}
        return {"params": jnp.zeros(len(self.coordinates), jnp.result_type(*jax.tree.leaves(self.weights)))}

    def apply(self, variables: Mapping[str, Any], inputs: Any) -> jax.Array:
        """Return f(w, inputs) + J(w, inputs) x, for variables {"params": x}."""
        x = variables["params"]
        if self.coordinates is not None:
            x = _scatter(x, self.weights, self.coordinates)
        # J x by forward differentiation: J has a row for every score and a column for every weight.
        scores, change = jax.jvp(lambda w: self.function(w, inputs), (self._at(inputs),), (x,))
        return scores + change

    def _at(self, inputs: Any) -> Any:
        """Return w. A layer whose weights are all equal, such as zeros, has exact zeros added that depend on the inputs.

        XLA on CPUs multiplies wrongly by one number that is broadcast to a matrix, a constant above all.
        """
        nothing = 0.0 * jax.tree.leaves(inputs)[0].ravel()[0]
        zeros = lambda a: (nothing * jnp.arange(a.size)).reshape(a.shape).astype(a.dtype)  # not one number: entry by entry
        constant = lambda a: a.ndim > 1 and not isinstance(a, jax.core.Tracer)
        alike = lambda a: constant(a) and bool((np.asarray(a) == np.asarray(a).flat[0]).all())
        return jax.tree.map(lambda a: a + zeros(a) if alike(a) else a, self.weights)


def linearize(model: Any, params: Any, *, features: int | None = None, seed: int = 0) -> Linearized:
    r"""The first-order model of a network at trained weights.

    .. math:: g(x, a) = f(w, a) + J(w, a) x, \qquad J(w, a) = \partial f(w, a) / \partial w

    g is exactly affine in x. The Jacobian is never formed: an evaluation costs two or three of the network's.

    Args:
        model: a Flax module, or any f(params, inputs) that returns one score a class, (batch, classes).
        params: w, the trained weights; for a Flax module the entry "params" of its variables.
        features: how many weights x displaces, chosen at random; by default all. x is then a vector of this length, and
            the other weights stay as they are.
        seed: seed of that choice.

    Returns:
        A model with ``init`` and ``apply``, for any problem that takes a Flax module. Its parameters are x, 0 at first.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fedminimax import models
        >>> network, images = models.MLP((8,)), jnp.ones((2, 5))
        >>> trained = network.init(jax.random.key(0), images)["params"]  # and so many rounds of training
        >>> model = linearize(network, trained, features=20)
        >>> model.init(jax.random.key(0), images)["params"].shape
        (20,)
    """
    function, weights = _function(model), _weights(params)
    return Linearized(function, weights, None if features is None else _coordinates(weights, features, seed))


def tangent_features(
    model: Any, params: Any, inputs: Any, *, features: int, seed: int = 0, batch_size: int = 64
) -> npt.NDArray[np.floating[Any]]:
    r"""The features of the empirical neural tangent kernel, for a linear classifier on them.

    .. math:: \phi(a) = \left[ \partial (v^\top f(w, a)) / \partial w_k \right]_{k \in S}

    S are ``features`` of the weights, chosen at random without replacement: the same ones, in the same order, as those of
    :func:`linearize` with this seed. v is one direction for all inputs, drawn uniformly among those of length 1, or 1
    where the network has a single output.

    The features of Yu et al. are those of a network whose last layer is replaced by a random one with a single output:
    give such a network for exactly these. The direction v is as much as can be done to a network that is given whole.
    To keep features as a data set, save them with ``numpy.savez`` as :func:`fedminimax.data.datasets.load` describes.

    Args:
        model: a Flax module, or any f(params, inputs) that returns (batch, outputs).
        params: w, the trained weights.
        inputs: the inputs, one a row.
        features: number of features, from 1 to the number of weights.
        seed: seed of S and of v.
        batch_size: how many gradients, of all weights, are in memory at once.

    Returns:
        The features, (number of inputs, features), of the weights' dtype.
    """
    function, weights = _function(model), _weights(params)
    coordinates = _coordinates(weights, features, seed)
    batch_size = integer("batch_size", batch_size)
    lengths = {np.shape(a)[:1] for a in jax.tree.leaves(inputs)}
    if len(lengths) != 1 or lengths <= {(), (0,)}:
        raise InputError("inputs must be arrays with one row for each example, at least one.")
    ((count,),) = lengths
    outputs = jax.eval_shape(function, weights, jax.tree.map(lambda a: jnp.asarray(a[:1]), inputs)).shape
    if len(outputs) != 2:
        raise InputError(f"The model returns shape {outputs} for one input: it must return one row for each input.")
    direction = _direction(outputs[1], seed)

    @jax.jit
    def of_batch(weights: Any, batch: Any) -> jax.Array:
        def of_one(example: Any) -> jax.Array:
            row = jax.tree.map(lambda a: a[None], example)
            gradient = jax.grad(lambda w: jnp.vdot(direction, function(w, row)[0]))(weights)
            return _gather(gradient, coordinates)

        return jax.vmap(of_one)(batch)

    parts = []
    for start in range(0, count, batch_size):
        batch = jax.tree.map(lambda a, start=start: jnp.asarray(a[start : start + batch_size]), inputs)
        parts.append(np.asarray(of_batch(weights, batch)))
    return np.concatenate(parts)


def _function(model: Any) -> Callable[[Any, Any], jax.Array]:
    """Return the model as a function of weights and inputs."""
    if callable(getattr(model, "apply", None)):
        return lambda weights, inputs: model.apply({"params": weights}, inputs)
    if not callable(model):
        raise InputError(f"model is a {type(model).__name__}: give a Flax module or a function of params and inputs.")
    return model


def _weights(params: Any) -> Any:
    """Return the weights as JAX arrays, or say what is wrong with them."""
    if isinstance(params, Mapping) and "params" in params:
        raise InputError('params has an entry "params": give that entry, the weights alone.')
    weights = jax.tree.map(jnp.asarray, params)
    dtypes = {a.dtype for a in jax.tree.leaves(weights)}
    if not dtypes or not all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
        raise InputError("params must be arrays of floats, at least one: keep everything else in the model.")
    return weights


def _coordinates(weights: Any, features: Any, seed: Any) -> npt.NDArray[np.int64]:
    """Return so many different indices into the flat weights, in increasing order."""
    total = sum(a.size for a in jax.tree.leaves(weights))
    number = integer("features", features)
    if number > total:
        raise InputError(f"features is {number} and the network has {total} weights: give a number from 1 to {total}.")
    return np.sort(np.random.default_rng(integer("seed", seed, 0)).choice(total, number, replace=False))


def _within(weights: Any, coordinates: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return, for each array of the weights, the coordinates that lie in it, as indices into that array, flat."""
    sizes = np.array([a.size for a in jax.tree.leaves(weights)])
    starts = np.cumsum(sizes) - sizes
    parts = np.split(coordinates, np.searchsorted(coordinates, starts[1:]))
    return [part - start for part, start in zip(parts, starts, strict=True)]


def _gather(weights: Any, coordinates: npt.NDArray[np.int64]) -> jax.Array:
    """Return the entries of the flat weights at the coordinates."""
    # array by array: to make the flat vector first would take most of the time
    parts = zip(jax.tree.leaves(weights), _within(weights, coordinates), strict=True)
    return jnp.concatenate([a.ravel()[inside] for a, inside in parts])


def _scatter(x: jax.Array, weights: Any, coordinates: npt.NDArray[np.int64]) -> Any:
    """Return a tree like the weights with x at the coordinates and 0 elsewhere."""
    leaves, structure = jax.tree.flatten(weights)
    inside = _within(weights, coordinates)
    parts = jnp.split(x, np.cumsum([len(part) for part in inside])[:-1])
    filled = [
        jnp.zeros(a.size, a.dtype).at[i].set(part.astype(a.dtype)).reshape(a.shape)
        for a, i, part in zip(leaves, inside, parts, strict=True)
    ]
    return jax.tree.unflatten(structure, filled)


def _direction(outputs: int, seed: int) -> npt.NDArray[np.float64]:
    """Return v, a random direction among the outputs."""
    if outputs == 1:
        return np.ones(1)
    # a stream apart from that of the coordinates
    drawn = np.random.default_rng([seed, 1]).normal(size=outputs)
    return drawn / np.linalg.norm(drawn)
