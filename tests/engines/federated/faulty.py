"""A transport that fails as it is told, and sites to try it on."""

import functools

import numpy as np

import fedminimax as fm
from fedminimax import problems, wire
from fedminimax.engines.federated import Answers, Failure, Federation, InProcess, Worker

NAMES = ("north", "south", "west")
LOST_REQUEST, LOST_REPLY, HANGS, GONE = "request", "reply", "timeout", "gone"


@functools.cache
def regression():
    """Three sites of a problem with weights on clients. (In float64: ask for it in a test.)"""
    return problems.robust_regression(3, 4, 6, rho=0.1, sigma=0.5)


@functools.cache
def quadratic():
    return problems.quadratic(3, examples=6, noise=0.3, weights=[1, 2, 3])


SCAFFOLD = fm.Scaffold(0.02, local_steps=2)
"""Whose clients remember something."""
SCAFF_PD = fm.ScaffPD(0.02, 0.02, mu_x=0.2, local_steps=2)
"""Which asks a cohort twice, and whose clients keep notes."""


def sites(task, method, folder=None, **more):
    at = lambda name: None if folder is None else folder / name
    return {name: Worker(task.problem, method, task.clients.only(k), at(name), **more) for k, name in enumerate(NAMES)}


class Faulty(InProcess):
    """Sites in this process, and a carrier that ``fate(nth call, site, reply)`` tells what to do.

    It returns None (all goes well), one of the words above, or other bytes in place of the reply. Hellos are not counted, and
    go well unless the site is ``down``. Time is told, and not taken: ``waited`` adds up what a real carrier would have.
    """

    def __init__(self, workers, fate=lambda nth, site, reply: None):
        super().__init__(workers)
        self.fate, self.calls, self.waited, self.asked, self.down = fate, 0, [], [], set()

    def ask(self, requests, timeout):
        answers, hello = Answers({}, {}), all("hello" in wire.decode(request) for request in requests.values())
        self.calls += not hello
        self.asked.append(("hello" if hello else "round", tuple(requests)))
        for site, request in requests.items():
            fate = HANGS if site in self.down else None
            if fate is None and not hello:
                fate = self.fate(self.calls, site, None)
            reply = None if fate in (LOST_REQUEST, HANGS, GONE) else super().ask({site: request}, timeout).replies[site]
            if fate is None and not hello:
                fate = self.fate(self.calls, site, reply)
            if fate is None or isinstance(fate, bytes):
                answers.replies[site] = reply if fate is None else fate
            else:
                answers.failures[site] = Failure({HANGS: "timeout", GONE: "gone"}.get(fate, "error"), "")
        hung = any(failure.kind == "timeout" for failure in answers.failures.values())
        self.waited.append(timeout if hung else 0.0)
        return answers


def engine(transport, **settings):
    return Federation(transport, **{"pause": 0.0, **settings})


def run(task, transport, method, rounds=5, federation=None, **options):
    federation = engine(transport) if federation is None else federation
    defaults = {"rounds": rounds, "seed": 3, "record": True, "progress": False}
    return fm.run(task.problem, federation.clients, method, engine=federation, **{**defaults, **options})


def replayed(task, method, result, **options):
    """The simulator's run of who answered in a federation."""
    return fm.run(
        task.problem, task.clients, method, rounds=result.rounds, seed=3, trace=result.trace, progress=False, **options
    )


def states(workers, result):
    """What the sites' clients remember at the end of a run, [N, ...]."""
    return np.stack([w._memory.state(name) for w, name in zip(workers.values(), result.client_states.names, strict=True)])
