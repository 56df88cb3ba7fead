"""The workloads as fedminimax problems. The floor takes its losses and starting points from here too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import fedminimax as fm
from fedminimax.algorithms.base import Algorithm
from fedminimax.models import CNN, MLP, VGG11, LeNet5, Logistic, ResNet18
from fedminimax.problems import wgan
from workloads import CLASSES, GAN_PENALTY, RHO, ROBUST_PENALTY, Workload


def build(workload: Workload) -> tuple[Any, fm.ClientData, Algorithm]:
    """Return a workload's problem, clients and algorithm."""
    clients = fm.ClientData.equal(workload.data(), workload.clients)
    common = {
        "lr_x": workload.lr_x,
        "lr_y": workload.lr_y,
        "local_steps": workload.steps,
        "batch_size": workload.batch,
        "cohort_size": workload.cohort,
    }
    if workload.name == "E":  # c_i and f_i on a minibatch, as every gradient of Algorithm 1 is
        tau = workload.steps * workload.lr_x
        sizes = {"local_steps": workload.steps, "batch_size": workload.batch, "report_size": workload.batch}
        problem = _against_client_weights(Logistic(CLASSES), workload).bind(clients)[0]
        return problem, clients, fm.ScaffPD(tau, workload.lr_y, **sizes)
    problem = _problem(workload, clients)
    if workload.guided:
        return problem, clients, fm.CDMAGE(**common)
    if workload.smoothing is None:
        return problem, clients, fm.LocalSGDA(**common)
    p, beta = workload.smoothing
    return problem, clients, fm.FessGDA(**common, p=p, beta=beta)


def mean_loss(problem: Any, clients: fm.ClientData, x: Any, y: Any, chunk: int = 500) -> float:
    """Return the loss at (x, y), averaged over everybody's examples, in chunks; with weights on clients, that at x."""
    parts = -(-clients.total // chunk)
    loss = jax.jit(problem.loss if isinstance(problem, fm.MinimaxProblem) else lambda x, y, batch: problem.loss(x, batch))
    slices = (slice(k * chunk, (k + 1) * chunk) for k in range(parts))
    return sum(float(loss(x, y, jax.tree.map(lambda a, s=s: a[s], clients.fields))) for s in slices) / parts


def _problem(workload: Workload, clients: fm.ClientData) -> fm.MinimaxProblem:
    if workload.name == "A":
        return _against_class_weights(Logistic(CLASSES), workload)
    if workload.name in "BG":
        return _against_perturbation(MLP((200, 200), CLASSES), workload, clients)
    if workload.name in "CHI":
        return _against_class_weights({"C": CNN, "H": VGG11, "I": ResNet18}[workload.name](CLASSES), workload)
    if workload.name == "F":
        return _against_auc_dual(LeNet5(CLASSES, last_relu=True, initializer="pytorch"), workload, clients)
    return wgan(GAN_PENALTY, clients=workload.clients).problem


def _against_class_weights(model: Any, workload: Workload) -> fm.MinimaxProblem:
    entropy, x0 = _classifier(model, workload)

    def loss(x: Any, y: Any, batch: Any) -> jax.Array:
        return jnp.mean(CLASSES * y[batch["labels"]] * entropy(x, batch["inputs"], batch["labels"]))

    return fm.MinimaxProblem(loss, x0, jnp.full(CLASSES, 1.0 / CLASSES), y_set=fm.sets.Simplex(CLASSES))


def _against_perturbation(model: Any, workload: Workload, clients: fm.ClientData) -> fm.MinimaxProblem:
    problem = fm.problems.robust_training(model, clients, CLASSES, penalty=ROBUST_PENALTY)
    return problem.replace(x0=_start_weights(model, workload))


def _against_auc_dual(model: Any, workload: Workload, clients: fm.ClientData) -> fm.MinimaxProblem:
    problem = fm.problems.auc(model, clients, score="softmax")
    return problem.replace(x0={**problem.x0, "theta": _start_weights(model, workload)})


def _against_client_weights(model: Any, workload: Workload) -> fm.RobustProblem:
    x0 = _start_weights(model, workload)

    def loss(x: Any, batch: Any) -> jax.Array:
        wrong = model.apply({"params": x}, batch["inputs"]) - jax.nn.one_hot(batch["labels"], CLASSES)
        return 0.5 * jnp.mean(jnp.sum(wrong**2, axis=-1))

    return fm.RobustProblem(loss, x0, fm.ChiSquare(RHO))


def _classifier(model: Any, workload: Workload) -> tuple[Callable[..., jax.Array], Any]:
    """Return the cross-entropy of a model and its weights at the start."""

    def entropy(x: Any, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model.apply({"params": x}, inputs), labels)

    return entropy, _start_weights(model, workload)


def _start_weights(model: Any, workload: Workload) -> Any:
    """Return a model's weights at the start, the layers being those of the workload, in order."""
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, *workload.shape))))["params"]
    if workload.modules:
        return _start_modules(shapes, workload)
    # Flax sorts by name: within a layer the bias comes before the kernel.
    leaves = [jnp.asarray(leaf) for kernel, bias in workload.start_layers() for leaf in (bias, kernel)]
    if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in jax.tree.leaves(shapes)]:
        raise ValueError(f"The layers of workload {workload.name} are not those of {model}.")
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _start_modules(shapes: Any, workload: Workload) -> Any:
    """Return weights at the start by the modules' names. What is of no such module is a normalisation's: scales 1, biases 0."""
    starts = dict(zip(workload.modules, workload.start_layers(), strict=True))

    def start(path: Any, leaf: Any) -> jax.Array:
        *module, name = (key.key for key in path)
        kernel, bias = starts.get("/".join(module), (None, None))
        if kernel is None:
            return jnp.full(leaf.shape, float(name == "scale"))
        value = jnp.asarray(kernel if name == "kernel" else bias)
        if value.shape != leaf.shape:
            raise ValueError(f"Workload {workload.name} has {value.shape} for {module} {name}, the model {leaf.shape}.")
        return value

    return jax.tree_util.tree_map_with_path(start, shapes)
