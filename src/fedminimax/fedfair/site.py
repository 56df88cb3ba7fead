"""A site of a fair study: its table, and the one function that answers the server."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import numpy.typing as npt
import pandas as pd

from fedminimax import checks, wire
from fedminimax.data.clients import ClientData
from fedminimax.data.encoder import Encoder
from fedminimax.data.federation import Federation
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.messages import Malformed
from fedminimax.engines.federated.transport import ERROR, MALFORMED
from fedminimax.engines.federated.worker import Worker, logger
from fedminimax.errors import InputError
from fedminimax.fairness import baselines
from fedminimax.fairness.contests import weighed
from fedminimax.fairness.outputs import Outputs, outputs
from fedminimax.fairness.tuning import make
from fedminimax.fairness.words import method_of
from fedminimax.fedfair import asking, telling
from fedminimax.fedfair.asking import Trouble
from fedminimax.fedfair.question import Question, problem_of
from fedminimax.fedfair.sketch import sketch
from fedminimax.fedfair.summary import Held, client_data, hold, missing_of, summary
from fedminimax.folders import write_atomically
from fedminimax.players import Tree
from fedminimax.problems.base import over_all
from fedminimax.problems.robust import RobustProblem

LEAST = 5
"""A category, class or group that fewer rows of a site have does not leave it, unless the site says otherwise."""
_AGREED = "agreed.fmx"
_WORKERS = 4  # that are kept, each for one method with its settings
_MOST_DRAWS = 10_000


@dataclass(frozen=True)
class _Prepared:
    """A site that knows how its rows become inputs.

    Attributes:
        data: it alone, as a federation of one.
        problem: what is solved.
        loss: what is trained with.
        groups: the sensitive values of its test rows; None: there are none.
    """

    data: Federation
    problem: RobustProblem
    loss: str
    groups: npt.NDArray[Any] | None

    def outputs(self, x: Tree, data: ClientData) -> Outputs:
        """Return what a model predicts for some of the site's rows."""
        return outputs(self.problem, x, data, self.data, self.loss, self.data.positive)

    @functools.cached_property
    def local(self) -> baselines.Local:
        """The site's own model, which stays here."""
        return baselines.Local(self.problem, self.data, self.loss, self.data.positive)


class FairSite:
    """One site: ``handle`` takes the bytes of a request and returns the bytes of a reply. It never raises.

    Args:
        name: the site's.
        frame: its rows.
        question: what is agreed on.
        least: a category, class or group that fewer rows have does not leave the site.
        folder: where the states of its clients are kept; None: in memory.
    """

    def __init__(
        self, name: str, frame: pd.DataFrame, question: Question, *, least: int = LEAST, folder: str | Path | None = None
    ):
        self.name, self.question, self.least = name, question, checks.integer("least", least)
        self._frame = frame.rename(columns=str)
        self._folder = None if folder is None else Path(folder)
        self._held: Held | None = None
        self._agreed: dict[str, Any] = {}
        self._prepared: _Prepared | None = None
        self._workers: dict[tuple[Any, ...], Worker] = {}
        self._problems: dict[str | None, RobustProblem] = {}
        self._last: tuple[bytes, bytes] | None = None

    def handle(self, request: wire.Bytes) -> bytes:
        """Do what a request asks, and return the reply."""
        id = None
        try:
            ask: Any = wire.decode(request)
            if not isinstance(ask, dict):
                raise Malformed("it is no message")
            id, kind = messages.name(ask.get("id")), ask.get("fair")
            if kind == asking.WORK:
                return self._work(ask)
            answer = self._answers.get(kind) if isinstance(kind, str) else None
            if answer is None:
                raise Malformed("nothing of the kind is asked")
            digest = hashlib.sha256(request).digest()
            if self._last is None or self._last[0] != digest:  # what took too long for the server is not computed again
                self._last = digest, wire.encode({"id": id, "told": answer(self, ask)})
            return self._last[1]
        except Trouble as trouble:
            return wire.encode({"id": id, "told": {"trouble": trouble.code, "column": trouble.column}})
        except (Malformed, InputError) as error:
            logger.exception("a request was refused")
            return messages.failed(id, MALFORMED, type(error).__name__)
        except Exception as error:  # whatever it is, the server learns its type, and the site stays
            logger.exception("a request failed")
            return messages.failed(id, ERROR, type(error).__name__)

    # -- before training -------------------------------------------------------------------------------------------------

    def _sketch(self, ask: dict[str, Any]) -> dict[str, Any]:
        return sketch(self._frame, self.question, self.least)

    def _summary(self, ask: dict[str, Any]) -> dict[str, Any]:
        self._agreed = _checked(ask.get("agreed"))
        self._held = hold(self._frame, self.question, self._agreed, self.name)
        return summary(self._held, self._agreed["task"], self.least)

    def _prepare(self, ask: dict[str, Any]) -> dict[str, Any]:
        if self._held is None:
            raise Trouble("unprepared")
        self._take({"agreed": self._agreed, "encoder": ask.get("encoder"), "positive": ask.get("positive")})
        if self._folder is not None:  # so that a worker which is started anew goes on
            self._folder.mkdir(parents=True, exist_ok=True)
            kept = {"agreed": self._agreed, "encoder": ask["encoder"], "positive": ask["positive"]}
            write_atomically(self._folder / _AGREED, wire.encode(kept))
        ready = self._ready()
        train, test = ready.data.train, ready.data.test
        counted = lambda data: np.bincount(data.fields["labels"], minlength=len(ready.data.classes or ())).astype(np.int64)
        losses = ready.problem.losses(ready.problem.x0, train)
        return {
            "rows": [train.total, test.total],
            "classes": None if ready.data.classes is None else np.stack([counted(train), counted(test)]),
            "loss": float(losses[0]),
            "missing": missing_of(self._held),
        }

    def _take(self, kept: dict[str, Any]) -> None:
        """Make inputs of the rows, by what all have agreed on."""
        held, encoder = self._held, Encoder.from_dict(kept["encoder"])
        assert held is not None
        classes = None if encoder.classes is None else len(encoder.classes)
        positive = kept["positive"]
        if positive is not None and not (classes == 2 and positive in (0, 1)):
            raise Malformed("there is no such class")
        train, test = client_data(held, encoder)
        data = Federation(
            train, test, [self.name], encoder.features, encoder.classes, encoder.task, encoder.target_scale, {}, {},
            encoder=encoder, positive=positive,
        )  # fmt: skip
        problem = problem_of(self.question, len(encoder.features), classes)
        groups = None if held.groups is None else held.groups[held.tested]
        self._prepared = _Prepared(data, problem, self.question.loss_of(encoder.classes), groups)
        self._workers, self._problems = {}, {}

    def _ready(self) -> _Prepared:
        """Return the site with its inputs: as it was asked to, or as it was before it was started anew."""
        if self._prepared is None:
            path = None if self._folder is None else self._folder / _AGREED
            if path is None or not path.exists():
                raise Trouble("unprepared")
            kept: Any = wire.decode(path.read_bytes())
            self._agreed = _checked(kept["agreed"])
            self._held = hold(self._frame, self.question, self._agreed, self.name)
            self._take(kept)
        assert self._prepared is not None
        return self._prepared

    # -- training --------------------------------------------------------------------------------------------------------

    def _work(self, ask: dict[str, Any]) -> bytes:
        """Pass an engine's request on to the worker for the method that it is for."""
        ready, name, settings, request = self._ready(), ask.get("method"), ask.get("settings"), ask.get("request")
        if not isinstance(name, str) or not isinstance(settings, dict) or not isinstance(request, np.ndarray):
            raise Malformed("it names no method")
        if not all(isinstance(key, str) and isinstance(value, (int, float, type(None))) for key, value in settings.items()):
            raise Malformed("its hyper-parameters are none")
        key = name, *sorted(settings.items())
        if key not in self._workers:
            weights = method_of(name)[1]
            if weights not in self._problems:
                self._problems[weights] = weighed(ready.problem, name)
            folder = None if self._folder is None else self._folder / name.replace(":", "_")
            method, data = make(name, settings), ready.data
            worker = Worker(self._problems[weights], method, data.train, folder, {"test": data.test})
            self._workers = {**dict(list(self._workers.items())[1 - _WORKERS :]), key: worker}
        return self._workers[key].handle(request.tobytes())

    def _product(self, ask: dict[str, Any]) -> Tree:
        """Return the product of the loss's Hessian at the start with a vector."""
        ready = self._ready()
        v = _like(ask.get("v"), ready.problem.x0)
        return jax.tree.map(np.asarray, _hessian_product(ready.problem)(ready.problem.x0, v, ready.data.train))

    # -- judging ---------------------------------------------------------------------------------------------------------

    def _models(self, ask: dict[str, Any]) -> list[Tree]:
        models = ask.get("models")
        if not isinstance(models, list):
            raise Malformed("there are no models")
        return [_like(x, self._ready().problem.x0) for x in models]

    def _histograms(self, ask: dict[str, Any]) -> npt.NDArray[np.int64]:
        ready = self._ready()
        if ready.data.positive is None:
            raise Malformed("there is no positive class")
        data = ready.data.train
        found = [*(ready.outputs(x, data) for x in self._models(ask)), ready.local.outputs(data)]
        return telling.histograms(data, ready.data, found)

    def _judge(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Tell how good models are: those that are sent, the majority's, and the site's own, in this order."""
        ready, models = self._ready(), self._models(ask)
        thresholds, draws = ask.get("thresholds"), ask.get("draws")
        if not isinstance(thresholds, list) or len(thresholds) != len(models) + 2:
            raise Malformed("there is not one threshold for each model")
        if type(draws) is not int or not 1 <= draws <= _MOST_DRAWS:
            raise Malformed("there are no such draws")
        edges = [None if edge is None else float(edge) for edge in thresholds]
        majority = lambda data: _majority(ready.data, data, ask.get("shares"))
        found = lambda data: [*(ready.outputs(x, data) for x in models), majority(data), ready.local.outputs(data)]
        train, test = ready.data.train, ready.data.test
        on_test = found(test)
        tested = telling.judges_of(test, ready.data, on_test, edges)
        told: dict[str, Any] = {
            "points": telling.points(tested),
            "spreads": telling.spreads(tested, draws, telling.own_seed(test)),
            "training": telling.points(telling.judges_of(train, ready.data, found(train), edges)),
        }
        if ready.data.positive is not None:
            told["histograms"] = telling.histograms(test, ready.data, on_test)
            if ready.groups is not None:
                told["groups"] = telling.by_group(tested, ready.groups, self.least)
        return told

    _answers: ClassVar[dict[str, Callable[[FairSite, dict[str, Any]], Any]]] = {
        asking.SKETCH: _sketch,
        asking.SUMMARY: _summary,
        asking.PREPARE: _prepare,
        asking.PRODUCT: _product,
        asking.HISTOGRAMS: _histograms,
        asking.JUDGE: _judge,
    }


@functools.lru_cache(maxsize=8)
def _hessian_product(problem: RobustProblem) -> Any:
    # The point is an argument: XLA on CPUs multiplies by constants wrongly.
    slope = lambda x, data: over_all(problem.loss, (x,), data, np.ones(1), jax.grad)
    return jax.jit(lambda x, v, data: jax.jvp(lambda x: slope(x, data), (x,), (v,))[1])


def _majority(site: Federation, data: ClientData, shares: Any) -> Outputs:
    """Return the same prediction for each row: the class shares of all sites' training rows, or the mean."""
    if site.classes is None:
        return baselines.majority(site, data)
    if not isinstance(shares, np.ndarray) or shares.shape != (len(site.classes),):
        raise Malformed("there are no shares of classes")
    return Outputs(np.tile(shares, (data.total, 1)))


def _like(value: Any, like: Tree) -> Tree:
    """Return a tree that the server sent, if it has the structure and shapes of the model's weights."""
    structure: Any = jax.tree.structure(like)
    if structure != jax.tree.structure(value):
        raise Malformed("it is no model")
    for leaf, wanted in zip(jax.tree.leaves(value), jax.tree.leaves(like), strict=True):
        if not isinstance(leaf, np.ndarray) or leaf.shape != wanted.shape or leaf.dtype != wanted.dtype:
            raise Malformed("it is no model")
    return value


def _checked(agreed: Any) -> dict[str, Any]:
    """Return what is agreed on of the columns, if it is of the right kinds."""
    texts = lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value)
    if not isinstance(agreed, dict) or not all(texts(agreed.get(key)) for key in ("numeric", "categorical", "classes")):
        raise Malformed("the columns are none")
    dates = agreed.get("dates")
    if not isinstance(agreed.get("task"), str) or not isinstance(dates, dict) or not texts([*dates, *dates.values()]):
        raise Malformed("the task or the dates are none")
    return agreed
