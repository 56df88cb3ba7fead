"""Problems made from problems: the regularised and the translated one of Shen et al., AISTATS 2024."""

from __future__ import annotations

from typing import Any

from fedminimax import players
from fedminimax.errors import InputError
from fedminimax.players import Point
from fedminimax.problems.base import MinimaxProblem


def regularized(problem: MinimaxProblem, epsilon: float, diameter: float | None = None, y0: Any = None) -> MinimaxProblem:
    r"""Return the strongly concave problem :math:`f(x, y) - \frac{\epsilon}{4 D(Y)} \|y - y_0\|^2` (Theorem 3.3).

    An epsilon-stationary point of f concave in y comes from a stationary point of this one, whose modulus in y is
    epsilon / (2 D(Y)).

    Args:
        problem: f, concave in y.
        epsilon: the accuracy wanted.
        diameter: D(Y); by default that of ``problem.y_set``.
        y0: the centre, a point of Y; by default the problem's own start.
    """
    center = problem.start.y if y0 is None else y0
    width = problem.y_set.diameter(problem.y0) if diameter is None else diameter  # type: ignore[union-attr]
    if not epsilon > 0 or not 0 < width < float("inf"):
        raise InputError(
            f"regularized needs epsilon > 0 and a bounded Y, but epsilon is {epsilon} and the diameter {width}: give y_set or "
            "diameter."
        )

    def loss(x: Any, y: Any, batch: Any) -> Any:
        return problem.loss(x, y, batch) - epsilon / (4.0 * width) * players.sqnorm(players.sub(y, center))

    return problem.replace(loss=loss, best_response=None, name=f"{problem.name}, regularised in y")


def translated(problem: MinimaxProblem, near: Point, smoothness: float) -> MinimaxProblem:
    r"""Return :math:`\min_x \max_y f(x, y) + l \|x - \tilde x\|^2`, to be solved from :math:`(\tilde x, \tilde y)`.

    From an (eps, eps / sqrt(kappa))-stationary point of f, solving this with FESS-GDA gives an O(eps)-stationary point of
    Phi (Proposition 3.1).

    Args:
        problem: f, l-smooth and PL in y.
        near: the stationary point (x-tilde, y-tilde); a state will do.
        smoothness: l.
    """
    if not smoothness > 0:
        raise InputError(f"smoothness must be positive, not {smoothness}.")

    def loss(x: Any, y: Any, batch: Any) -> Any:
        return problem.loss(x, y, batch) + smoothness * players.sqnorm(players.sub(x, near.x))

    return problem.replace(loss=loss, x0=near.x, y0=near.y, name=f"{problem.name}, translated")
