"""Five sites with secure sums, and a carrier that loses what it is told to and keeps all that the server is given."""

import functools
import sys
from pathlib import Path

import numpy as np

import fedminimax as fm
from fedminimax import problems, wire
from fedminimax.engines.federated import Answers, Failure, Federation, InProcess, Secure, Worker

sys.path.insert(0, str(Path(__file__).parent))

STEPS = ("keys", "shares", "input", "unmask")
LOST_REQUEST, LOST_REPLY = "request", "reply"
NAMES = tuple(f"site-{k}" for k in range(5))
SECURE = Secure()
SGDA = fm.LocalSGDA(0.02, 0.02, local_steps=2)
SCAFFOLD = fm.Scaffold(0.02, local_steps=2)
SCAFF_PD = fm.ScaffPD(0.02, 0.02, mu_x=0.2, local_steps=2)


@functools.cache
def quadratic():
    return problems.quadratic(5, examples=6, noise=0.3, weights=[1, 2, 3, 4, 5])


@functools.cache
def regression():
    return problems.robust_regression(5, 4, 6, rho=0.1, sigma=0.5)


def sites(task, method, secure=SECURE, folder=None, **more):
    at = lambda name: None if folder is None else folder / name
    own = lambda k: task.clients.only(k)
    return {name: Worker(task.problem, method, own(k), at(name), secure=secure, **more) for k, name in enumerate(NAMES)}


class Carrier(InProcess):
    """``fate(step, nth, site, request)`` returns None (all goes well), a word above, or a function of the reply.

    ``nth`` counts the calls of a step. Steps other than those of a sum are "hello", "letters" and "parts".
    """

    def __init__(self, workers, fate=lambda step, nth, site, request: None):
        super().__init__(workers)
        self.fate, self.received, self.sent, self.counts = fate, [], [], {}

    def ask(self, requests, timeout):
        answers, step = Answers({}, {}), step_of(next(iter(requests.values())))
        nth = self.counts[step] = self.counts.get(step, -1) + 1
        for site, request in requests.items():
            self.sent.append((step, site, request))
            fate = self.fate(step, nth, site, request)
            reply = None if fate == LOST_REQUEST else super().ask({site: request}, timeout).replies[site]
            if fate in (LOST_REQUEST, LOST_REPLY):
                answers.failures[site] = Failure("error", "it was lost")
                continue
            answers.replies[site] = fate(reply) if callable(fate) else reply
            self.received.append((step, site, answers.replies[site]))
        return answers

    def given(self, step):
        """What the server was given in a step, decoded: (site, message)."""
        return [(site, wire.decode(reply)) for kind, site, reply in self.received if kind == step]


def round_of(request):
    return int(wire.decode(request)["id"].split("/")[1])


def step_of(request):
    message = wire.decode(request)
    if "secure" in message:
        return message["id"].rpartition("/")[2]
    return next(kind for kind in ("hello", "letters", "parts") if kind in message)


def run(task, method, carrier, rounds=2, secure=SECURE, engine=None, **options):
    federation = engine or Federation(carrier, secure=secure, pause=0.0)
    defaults = {"seed": 3, "record": True, "progress": False}
    return fm.run(task.problem, federation.clients, method, rounds=rounds, engine=federation, **{**defaults, **options})


def replayed(task, method, result, **options):
    return fm.run(
        task.problem, task.clients, method, rounds=result.rounds, seed=3, trace=result.trace, progress=False, **options
    )


def states(workers, result):
    return np.stack([w._memory.state(name) for w, name in zip(workers.values(), result.client_states.names, strict=True)])
