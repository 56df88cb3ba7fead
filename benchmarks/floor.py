"""The floor: the same gradient steps and the same averaging in bare JAX, and nothing else.

A step is a gradient, a step along it and, where y is on the simplex, the projection (optax's). The batches are fixed
arrays, gathered beforehand. There is no sampling, no randomness, no server step but the average, no check of any reply
and no count of anything: what a round costs if all that were free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from optax.projections import projection_simplex

from child import serve
from problems import build, mean_loss
from workloads import CLASSES, Workload

Tree = Any


class Floor:
    """The floor's contender."""

    versions: ClassVar = {"jax": jax.__version__}

    def __init__(self, workload: Workload):
        self.workload = workload
        self.problem, self.clients, _ = build(workload)
        pick = np.random.default_rng(2).integers
        w = workload
        rows = pick(w.clients, size=(w.cohort, 1, 1)) * w.examples + pick(w.examples, size=(w.cohort, w.steps, w.batch))
        self.batches = self._gather(rows)
        if w.side_by_side:
            self.batches = jax.tree.map(lambda a: a.swapaxes(0, 1), self.batches)
        if w.guided:  # and all examples of the cohort that reports gradients
            everything = pick(w.clients, size=(w.cohort, 1)) * w.examples + np.arange(w.examples)
            self.batches = (self._gather(everything), self.batches)
        self.project = projection_simplex if self.problem.y0.shape == (CLASSES,) else lambda y: y
        self.program = jax.jit(self._rounds)

    def start(self) -> None:
        self.z = (self.problem.x0, self.problem.y0)

    def advance(self, rounds: int) -> None:
        self.z = jax.block_until_ready(self.program(self.z, self.batches, rounds))

    def loss(self) -> float:
        return mean_loss(self.problem, self.clients, *self.z)

    def _gather(self, rows: np.ndarray) -> Tree:
        return jax.tree.map(lambda a: jnp.asarray(np.asarray(a)[rows]), self.clients.fields)

    def round(self, z: Tree, batches: Tree) -> Tree:
        """Return the players after a round of the cohort whose batches these are."""
        round_ = self._side_by_side if self.workload.side_by_side else self._one_after_another
        if self.workload.name == "E":
            round_ = self._scaff_pd
        elif self.workload.guided:
            round_ = self._cd_mage
        return round_(z, batches)

    def _rounds(self, z: Tree, batches: Tree, rounds: Any) -> Tree:
        return jax.lax.fori_loop(0, rounds, lambda _, z: self.round(z, batches), z)

    def _step(self, z: Tree, batch: Tree) -> Tree:
        return self._move(z, self._gradient(z, batch))

    def _gradient(self, z: Tree, batch: Tree) -> Tree:
        return jax.grad(self.problem.loss, argnums=(0, 1))(*z, batch)

    def _move(self, z: Tree, direction: Tree) -> Tree:
        gx, gy = direction
        x = jax.tree.map(lambda p, g: p - self.workload.lr_x * g, z[0], gx)
        return x, self.project(z[1] + self.workload.lr_y * gy)

    def _scaff_pd(self, z: Tree, batches: Tree) -> Tree:
        """Take the gradients that SCAFF-PD takes: one a client at x, then K corrected local steps; average with the weights."""
        (x, w), lr = z, self.workload.lr_x
        slope = jax.grad(self.problem.loss)
        at_x = jax.vmap(slope, (None, 0))(x, jax.tree.map(lambda a: a[0], batches))
        mean = jax.tree.map(lambda c: jnp.tensordot(w, c, 1), at_x)
        correction = jax.tree.map(lambda m, c: m - c, mean, at_x)

        def step(u: Tree, batch: Tree) -> tuple[Tree, None]:
            g = jax.vmap(slope)(u, batch)
            return jax.tree.map(lambda p, g, c: p - lr * (g + c), u, g, correction), None

        each = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.workload.cohort, *a.shape)), x)
        each, _ = jax.lax.scan(step, each, batches, unroll=2)
        return jax.tree.map(lambda a: jnp.tensordot(w, a, 1), each), w

    def _cd_mage(self, z: Tree, batches: Tree) -> Tree:
        """Take the gradients that CD-MAGE takes: a cohort's full ones at z, then two a step, at the client's point and at z."""
        full, batches = batches
        report = lambda total, batch: (jax.tree.map(jnp.add, total, self._gradient(z, batch)), None)
        total, _ = jax.lax.scan(report, jax.tree.map(jnp.zeros_like, z), full)
        estimate = jax.tree.map(lambda a: a / self.workload.cohort, total)

        def step(now: Tree, batch: Tree) -> Tree:
            here, there = self._gradient(now, batch), self._gradient(z, batch)
            return self._move(now, jax.tree.map(lambda g, g_z, u: g - g_z + u, here, there, estimate))

        return self._in_turn(step, z, batches)

    def _side_by_side(self, z: Tree, batches: Tree) -> Tree:
        """Take each step on all clients at once; batches are [step, client, ...]."""
        each = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.workload.cohort, *a.shape)), z)
        each, _ = jax.lax.scan(lambda z, batch: (jax.vmap(self._step)(z, batch), None), each, batches, unroll=2)
        return jax.tree.map(lambda a: jnp.mean(a, axis=0), each)

    def _one_after_another(self, z: Tree, batches: Tree) -> Tree:
        return self._in_turn(self._step, z, batches)

    def _in_turn(self, step: Callable[[Tree, Tree], Tree], z: Tree, batches: Tree) -> Tree:
        """Take all steps of a client, then of the next, and average; batches are [client, step, ...]."""

        def client(total: Tree, batches: Tree) -> tuple[Tree, None]:
            end, _ = jax.lax.scan(lambda z, batch: (step(z, batch), None), z, batches, unroll=2)
            return jax.tree.map(jnp.add, total, end), None

        total, _ = jax.lax.scan(client, jax.tree.map(jnp.zeros_like, z), batches)
        return jax.tree.map(lambda a: a / self.workload.cohort, total)


if __name__ == "__main__":
    serve(Floor)
