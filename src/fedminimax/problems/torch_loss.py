"""A PyTorch module as a player: its loss and gradients, for every method and engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import checks
from fedminimax.errors import InputError
from fedminimax.players import Tree

if TYPE_CHECKING:
    import torch

_MISSING = "TorchLoss needs PyTorch, which is not installed: pip install 'fedminimax[torch]'."


class TorchLoss:
    """The loss of a ``torch.nn.Module`` as a JAX function of its parameters, with their gradients.

    The players are dicts of arrays by the names of the parameters. ::

        loss = fm.TorchLoss(module, lambda model, batch: F.cross_entropy(model(batch["inputs"]), batch["labels"]))
        problem = fm.RobustProblem(loss, loss.x0, fm.ChiSquare(0.1), predict=loss.predict)
        model = loss.load(fm.run(problem, clients, method, rounds=100).x)

    For a :class:`~fedminimax.MinimaxProblem` the function also takes y, between model and batch: tensors as in the problem's
    ``y0``, or with an ``opponent`` the other module, whose parameters y are. Whole numbers come as int64, as PyTorch wants
    labels. Gradients are those of the players alone: none goes to the batch.

    Args:
        module: its parameters that require gradients are the min player's; the others, and buffers, stay as they are. It is
            copied.
        loss: ``loss(model, batch)`` or ``loss(model, y, batch)``: a tensor with one number, the mean over the batch. ``model``
            is called like the module.
        opponent: the max player's module.
        threads: how many threads PyTorch may use; clients run one after another.
    """

    on_host = True

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Callable[..., torch.Tensor],
        *,
        opponent: torch.nn.Module | None = None,
        threads: int = 1,
    ):
        self._torch, self._loss, self._threads = _pytorch(), loss, checks.integer("threads", threads)
        self._modules = [_checked(self._torch, one) for one in (module, opponent) if one is not None]
        self._opposed = opponent is not None
        self._tried: set[Any] = set()

    @property
    def x0(self) -> dict[str, np.ndarray]:
        """The module's parameters, where the min player starts."""
        return _parameters(self._modules[0])

    @property
    def y0(self) -> dict[str, np.ndarray]:
        """The opponent's parameters, where the max player starts."""
        if not self._opposed:
            raise InputError("This TorchLoss has no opponent: give TorchLoss(..., opponent=module), or a y0 of your own.")
        return _parameters(self._modules[1])

    def __call__(self, *players_and_batch: Tree) -> jax.Array:
        """Return the loss at (x, batch) or (x, y, batch)."""
        *players, batch = players_and_batch
        self._try(tuple(players), batch)
        return _on_host(self._value, self._gradients, tuple(players), batch)

    def predict(self, x: Tree, inputs: Tree) -> jax.Array:
        """Return the module's outputs, for the accuracy metrics."""
        example = self._outputs(_zeros(x), _zeros(inputs))
        shape = jax.ShapeDtypeStruct(example.shape, example.dtype)
        return _called(self._outputs, shape, x, inputs)

    def load(self, x: Tree, y: Tree | None = None) -> Any:
        """Return the module with these parameters, such as ``result.x``; with y, a pair of the module and its opponent."""
        found = []
        for module, values in zip(self._modules, (x, y), strict=False):
            if values is None:
                continue
            loaded = copy.deepcopy(module)
            with self._torch.no_grad():
                for name, parameter in _trained(loaded):
                    parameter.copy_(self._tensor(values[name]))
            found.append(loaded)
        return found[0] if y is None else tuple(found)

    # -- what runs on the host: PyTorch and NumPy alone, as a call of JAX would wait for the program that is waiting for us ----

    def _value(self, players: Tree, batch: Tree) -> np.ndarray:
        with self._torch.no_grad():
            return self._evaluated(self._tensors(players), self._tensors(batch)).numpy()

    def _gradients(self, players: Tree, batch: Tree) -> tuple[np.ndarray, Tree]:
        """Return the loss, and its gradients in the players."""
        at = self._tensors(players)
        leaves, structure = jax.tree.flatten(at)
        for leaf in leaves:
            leaf.requires_grad_(True)
        value = self._evaluated(at, self._tensors(batch))
        if not value.requires_grad:  # it does not depend on any of them
            return value.numpy(), jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.detach().numpy().dtype), at)
        found = self._torch.autograd.grad(value, leaves, allow_unused=True)
        grads = [self._torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
        return value.detach().numpy(), jax.tree.unflatten(structure, [g.numpy() for g in grads])

    def _outputs(self, x: Tree, inputs: Tree) -> np.ndarray:
        with self._torch.no_grad():
            return self._model(0, self._tensors(x))(self._tensors(inputs)).numpy()

    def _evaluated(self, players: tuple[Any, ...], batch: Any) -> Any:
        if self._torch.get_num_threads() != self._threads:
            self._torch.set_num_threads(self._threads)
        x, *y = players
        others = [self._model(1, one) if self._opposed else one for one in y]
        return self._loss(self._model(0, x), *others, batch)

    def _model(self, which: int, values: dict[str, Any]) -> Callable[..., Any]:
        module, call = self._modules[which], self._torch.func.functional_call
        return lambda *given, **named: call(module, values, given, named)

    def _tensors(self, tree: Tree) -> Any:
        return jax.tree.map(self._tensor, tree)

    def _tensor(self, value: Any) -> Any:
        array = np.array(value)  # a copy: what JAX gives may not be written to
        whole = array.dtype.kind in "iu"
        return self._torch.from_numpy(array.astype(np.int64) if whole else array)

    # -- before anything runs ------------------------------------------------------------------------------------------------

    def _try(self, players: tuple[Tree, ...], batch: Tree) -> None:
        """Evaluate the loss once on zeros of these shapes, to say in a sentence what is wrong with it."""
        kind = (
            jax.tree.structure((players, batch)),
            tuple((jnp.shape(a), jnp.result_type(a)) for a in jax.tree.leaves((players, batch))),
        )
        if kind in self._tried:
            return
        kept = [buffer.clone() for module in self._modules for buffer in module.buffers()]
        out = self._evaluated(self._tensors(_zeros(players)), self._tensors(_zeros(batch)))
        if not isinstance(out, self._torch.Tensor) or out.numel() != 1 or out.ndim or not out.is_floating_point():
            shown = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, self._torch.Tensor) else f"{out!r}"
            raise InputError(
                f"The function of TorchLoss returns {shown}, but must return one real number: the mean over the batch."
            )
        now = [buffer for module in self._modules for buffer in module.buffers()]
        if any(not self._torch.equal(a, b) for a, b in zip(kept, now, strict=True)):
            raise InputError(
                "The module changes its buffers when it is called, which clients cannot share: leave that layer out."
            )
        self._tried.add(kind)


def _pytorch() -> Any:
    try:
        import torch
    except ImportError:
        raise InputError(_MISSING) from None
    return torch


def _trained(module: Any) -> Iterator[tuple[str, Any]]:
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)


def _parameters(module: Any) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy().copy() for name, parameter in _trained(module)}


def _checked(torch: Any, module: Any) -> Any:
    """Return a copy of a module, or say why clients cannot train it."""
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"TorchLoss takes a torch.nn.Module, not a {type(module).__name__}.")
    for name, part in module.named_modules():
        if getattr(part, "running_mean", None) is not None:
            raise InputError(
                f"{name or 'The module'} ({type(part).__name__}) keeps running means of its batches, which clients cannot "
                "share: use GroupNorm, or track_running_stats=False."
            )
        if isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.training and part.p > 0:
            raise InputError(
                f"{name or 'The module'} ({type(part).__name__}) draws numbers of its own: call module.eval() first."
            )
    own = copy.deepcopy(module).cpu()
    for name, parameter in own.named_parameters():
        if not parameter.is_floating_point():
            raise InputError(
                f"The parameter {name} has type {parameter.dtype}, but players are real numbers: make it a buffer."
            )
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise InputError(f"The parameter {name} has type {parameter.dtype}: call module.float() first.")
        if parameter.dtype == torch.float64 and not jax.config.read("jax_enable_x64"):
            raise InputError(
                f"The parameter {name} is a float64, and JAX computes in float32: call module.float(), or set jax_enable_x64."
            )
    if not any(True for _ in _trained(own)):
        raise InputError("The module has no parameters that require gradients: there is nothing to train.")
    return own


def _zeros(tree: Tree) -> Tree:
    return jax.tree.map(lambda a: np.zeros(jnp.shape(a), jnp.result_type(a)), tree)


# -- from JAX to the host ------------------------------------------------------------------------------------------------------


def _on_host(value: Callable[..., Any], gradients: Callable[..., Any], players: tuple[Tree, ...], batch: Tree) -> jax.Array:
    """Return the value, with the gradients that the host computes."""
    leaves = jax.tree.leaves(players)
    number = jax.ShapeDtypeStruct((), jnp.result_type(*leaves))
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), players)

    @jax.custom_vjp
    def loss(players: tuple[Tree, ...], batch: Tree) -> jax.Array:
        return _called(value, number, players, batch)

    def forward(players: tuple[Tree, ...], batch: Tree) -> tuple[jax.Array, Tree]:
        return _called(gradients, (number, like), players, batch)

    def backward(grads: Tree, seen: jax.Array) -> tuple[Tree, None]:
        return jax.tree.map(lambda g: (seen * g).astype(g.dtype), grads), None

    loss.defvjp(forward, backward)
    return loss(players, batch)


def _called(fn: Callable[..., Tree], shapes: Tree, *given: Tree) -> Tree:
    """Return a function's results, computed on the host; under vmap for one after another, in one call."""
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, given))
    ranks, kinds = [leaf.ndim for leaf in leaves], [leaf.dtype for leaf in leaves]
    wanted, shape_of = jax.tree.leaves(shapes), jax.tree.structure(shapes)

    def call(*flat: Any) -> Tree:
        arrays = [_numbers(np.asarray(a), kind) for a, kind in zip(flat, kinds, strict=True)]
        fronts = [a.shape[: a.ndim - rank] for a, rank in zip(arrays, ranks, strict=True)]
        front = np.broadcast_shapes(*fronts)
        results = [np.empty((*front, *want.shape), want.dtype) for want in wanted]
        for place in np.ndindex(front):
            rows = [_row(a, own, place) for a, own in zip(arrays, fronts, strict=True)]
            for all_, one in zip(results, jax.tree.leaves(fn(*jax.tree.unflatten(structure, rows))), strict=True):
                all_[place] = one
        return tuple(_words(result) for result in results)

    # To and fro as words: in the thread that calls the host JAX may think that numbers have 32 bits, and would round others.
    sent = [jax.lax.bitcast_convert_type(leaf, jnp.uint32) if leaf.dtype.itemsize == 8 else leaf for leaf in leaves]
    words = [jax.ShapeDtypeStruct(_words(np.zeros(want.shape, want.dtype)).shape, np.uint32) for want in wanted]
    found = jax.pure_callback(call, tuple(words), *sent, vmap_method="expand_dims")
    numbers = [jax.lax.bitcast_convert_type(one, want.dtype) for one, want in zip(found, wanted, strict=True)]
    return jax.tree.unflatten(shape_of, numbers)


def _numbers(array: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Return the numbers that were sent as words."""
    return np.ascontiguousarray(array).view(kind)[..., 0] if kind.itemsize == 8 else array


def _words(array: np.ndarray) -> np.ndarray:
    """Return numbers as 32-bit words: of those with 64 bits as a last axis of two."""
    return array.view(np.uint32) if array.itemsize == 4 else array[..., None].view(np.uint32)


def _row(array: np.ndarray, front: Sequence[int], place: tuple[int, ...]) -> np.ndarray:
    """Return the row of an array at a place; along axes of length one all have the same."""
    return array[tuple(0 if size == 1 else k for size, k in zip(front, place, strict=False))] if front else array
