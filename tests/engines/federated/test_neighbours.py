"""Sites of a network: what they send each other is read by nobody else, and what goes wrong stops a run that can go on."""

import functools

import jax
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import metrics, wire
from fedminimax.engines.execution import Halted
from fedminimax.engines.federated import Answers, Failure, Federation, InProcess, NodeModel, Worker, node_round, peers
from fedminimax.engines.federated.gossip_messages import PublicKey, Unsealed
from fedminimax.engines.federated.peers import Seals
from fedminimax.federation.availability import Availability
from fedminimax.federation.round import Conditions
from fedminimax.players import Point
from fedminimax.random import keys
from fedminimax.testing.contract import close
from fedminimax.testing.tasks import poisoned

NAMES = ("north", "south", "west", "east")
SLIDING = fm.Sliding(0.05, 0.3, inner_steps=3, batch_size=4)
"""Which exchanges twice a round."""


@functools.cache
def line():
    """Four sites in a line: north - south - west - east. (In float64: ask for it in a test.)"""
    network = fm.Network.from_edges([(0, 1), (1, 2, 0.5), (2, 3)])
    return fm.problems.personalized_quadratic(network, 0.7, 3, 2, examples=6, noise=0.3)


def site(name, folder=None, method=SLIDING, clients=None, **more):
    number = NAMES.index(name)
    own = (line().clients if clients is None else clients).only(number)
    return Worker(line().problem, method, own, None if folder is None else folder / name, **more)


def sites(folder=None, **more):
    return {name: site(name, folder, **more) for name in NAMES}


class Relay(InProcess):
    """Carries messages, keeps them, and does what ``before(call, site, message)`` and ``after(call, site, reply)`` say."""

    def __init__(self, workers):
        super().__init__(workers)
        self.calls, self.requests, self.replies, self.down = 0, [], [], set()
        self.before = lambda call, site, message: message
        self.after = lambda call, site, reply: reply

    def ask(self, requests, timeout):
        self.calls += 1
        answers = Answers({}, {})
        for name, request in requests.items():
            message = wire.decode(request)
            if name in self.down:
                answers.failures[name] = Failure("timeout", "no answer")
                continue
            message = self.before(self.calls, name, message)
            reply = super().ask({name: wire.encode(message)}, timeout).replies[name]
            self.requests.append((name, message))
            self.replies.append((name, reply))
            answers.replies[name] = self.after(self.calls, name, reply)
        return answers


def engine(relay, **settings):
    return Federation(relay, **{"pause": 0.0, "retries": 1, **settings})


def run(relay, rounds=4, federation=None, **options):
    federation = engine(relay) if federation is None else federation
    given = {"rounds": rounds, "seed": 3, "progress": False, "metrics": metrics.NodeLoss(), "eval_every": 2, **options}
    return fm.run(line().problem, federation.clients, SLIDING, engine=federation, **given)


@functools.cache
def simulated(rounds=4):
    return fm.run(
        line().problem, line().clients, SLIDING, rounds=rounds, seed=3, progress=False, engine=fm.Simulator("vmap", 1)
    )


def models(folder):
    return [NodeModel.load(folder / name) for name in NAMES]


def as_simulated(folder, rounds=4):
    close(np.stack([model.x for model in models(folder)]), simulated(rounds).x, 1e-8)
    close(np.stack([model.y for model in models(folder)]), simulated(rounds).y, 1e-8)


def spied(monkeypatch):
    """Return a list to which everything is added that is sealed."""
    seen, seal = [], Seals.seal
    keep = lambda self, receiver, turn, mix, plain: (seen.append(plain), seal(self, receiver, turn, mix, plain))[1]
    monkeypatch.setattr(Seals, "seal", keep)
    return seen


# -- who sees what --------------------------------------------------------------------------------------------------------


def test_the_coordinator_carries_no_row_that_it_could_read(x64, tmp_path, monkeypatch):
    seen, relay = spied(monkeypatch), Relay(sites(tmp_path))
    run(relay)
    as_simulated(tmp_path)
    rows = [np.asarray(leaf) for plain in seen for leaf in jax.tree.leaves(wire.decode(plain))]
    rows += [np.asarray(part) for model in models(tmp_path) for part in (model.x, model.y)]
    numbers = {number.tobytes() for row in rows for number in row.ravel() if number != 0}
    assert len(numbers) > 4 * 2 * 4 * 5 / 2  # rounds, exchanges, sites, entries; the first rows are alike
    carried = b"".join([wire.encode(message) for _, message in relay.requests] + [reply for _, reply in relay.replies])
    assert len(carried) > 10_000
    assert not [number for number in numbers if number in carried]


def test_a_message_goes_to_neighbours_only(x64):
    relay, lines = Relay(sites()), {"north": {"1"}, "south": {"0", "2"}, "west": {"1", "3"}, "east": {"2"}}
    run(relay, rounds=2)
    heard = [(name, set(message["gossip"]["heard"])) for name, message in relay.requests if "gossip" in message]
    told = [(name, set(message["gossip"]["keys"])) for name, message in relay.requests if "gossip" in message]
    sent = [(name, set(wire.decode(reply).get("gossip", {}).get("sealed", lines[name]))) for name, reply in relay.replies]
    assert {name: set().union(*(s for n, s in heard if n == name)) for name in NAMES} == lines
    assert all(numbers == lines[name] for name, numbers in (*told, *sent))


def meeting(identity=lambda number: None):
    """Three sites of a run that have each other's keys."""
    seals = [Seals("ab" * 8, number, identity=identity(number)) for number in range(3)]
    for own in seals:
        own.meet({k: other.public() for k, other in enumerate(seals) if other is not own}, {})
    return seals


def test_a_message_opens_at_its_place_and_nowhere_else():
    first, second, third = meeting()
    sealed = first.seal(1, "5e/4", 1, b"a row")
    assert second.open(0, "5e/4", 1, sealed) == b"a row"
    assert b"a row" not in sealed.tobytes()
    assert sealed.tobytes() != first.seal(1, "5e/4", 1, b"a row").tobytes()
    altered = sealed.copy()
    altered[-20] ^= 1
    another = Seals("cd" * 8, 1, second.private)
    another.meet({0: first.public()}, {})
    attempts = [
        lambda: second.open(0, "5e/4", 1, altered),
        lambda: second.open(0, "5e/4", 1, sealed[:10]),
        lambda: second.open(0, "5e/5", 1, sealed),
        lambda: second.open(0, "5e/4", 0, sealed),
        lambda: second.open(2, "5e/4", 1, sealed),
        lambda: third.open(0, "5e/4", 1, sealed),
        lambda: first.open(1, "5e/4", 1, sealed),  # to whom it came from
        lambda: another.open(0, "5e/4", 1, sealed),
        lambda: Seals("ab" * 8, 1).open(0, "5e/4", 1, sealed),
    ]
    for attempt in attempts:
        with pytest.raises(Unsealed):
            attempt()


class Signs:
    """Signs by a secret that everybody has, under a name of its own: enough to see what is signed and checked."""

    def __init__(self, number):
        self.number = number

    def sign(self, statement):
        return f"site {self.number}".encode(), b"signed " + statement

    def holds(self, number, statement, certificate, signature):
        return certificate == f"site {number}".encode() and signature == b"signed " + statement


def test_keys_are_signed_and_stay_as_they_were():
    meeting(Signs)
    own, other, between = Seals("ab" * 8, 0, identity=Signs(0)), Seals("ab" * 8, 1, identity=Signs(1)), Seals("ab" * 8, 1)
    forged = other.public()._replace(key=between.public().key)
    late = Seals("cd" * 8, 1, other.private, Signs(1)).public()
    for key in (forged, between.public(), late, other.public()._replace(number=2)):
        with pytest.raises(Unsealed):
            own.meet({1: key}, {})
    with pytest.raises(Unsealed):
        own.meet({1: other.public()}, {1: bytes(between.public().key)})
    own.meet({1: other.public()}, {1: bytes(other.public().key)})


# -- what the relay does --------------------------------------------------------------------------------------------------


def changed(change, from_call, calls=10**6):
    """Return what changes what is delivered to west from a call on."""
    kept = []

    def before(call, name, message):
        if name == "west" and "gossip" in message and message["gossip"]["heard"]:
            kept.append(message["gossip"]["heard"])
            if from_call <= call < from_call + calls:
                return {**message, "gossip": {**message["gossip"], **change(message["gossip"], kept)}}
        return message

    return before


def flipped(gossip, kept):
    box = gossip["heard"]["1"].copy()
    box[30] ^= 1
    return {"heard": {**gossip["heard"], "1": box}}


WRONG = {
    "altered": flipped,
    "old": lambda gossip, kept: {"heard": kept[0]},
    "another's": lambda gossip, kept: {"heard": {"1": gossip["heard"]["3"], "3": gossip["heard"]["1"]}},
    "missing": lambda gossip, kept: {"heard": {"1": gossip["heard"]["1"]}},
    "key": lambda gossip, kept: {"keys": {**gossip["keys"], "1": Seals("ab" * 8, 1).public()}},
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_a_neighbour_did_not_send_is_refused_and_the_run_goes_on_without_it(kind, x64, tmp_path):
    relay = Relay(sites(tmp_path))
    relay.before = changed(WRONG[kind], from_call=9)  # in the second round
    with pytest.warns(UserWarning, match="A round between neighbours needs all 4 sites, and 3 took part"):
        stopped = run(relay)
    assert stopped.rounds == 1
    reason = "it could not read the request" if kind == "missing" else "a neighbour's message or key came to it altered, old"
    assert f"west: {reason}" in stopped.stopped
    relay.before = changed(WRONG[kind], from_call=relay.calls + 4, calls=1)  # which is asked again
    finished = run(relay, rounds=3, start=stopped)
    assert (finished.rounds, finished.stopped) == (4, None)
    as_simulated(tmp_path)


def test_a_site_that_is_gone_stops_the_run_until_it_is_back(x64, tmp_path):
    relay = Relay(sites(tmp_path))
    federation = engine(relay)
    go = lambda: run(relay, federation=federation, folder=tmp_path / "run")

    def after(call, name, reply):
        relay.down = {"west"} if call == 10 else relay.down
        return reply

    relay.after = after
    with pytest.warns(UserWarning, match=r"needs all 4 sites, and 3 took part \(west: no answer\): see to these sites"):
        stopped = go()
    assert 0 < stopped.rounds < 4
    relay.down = set()
    finished = go()
    assert (finished.rounds, finished.stopped) == (4, None)
    assert np.isfinite(finished.history["node_loss/mean"][-1])
    as_simulated(tmp_path)


@pytest.mark.parametrize("call", range(4, 13))
def test_a_worker_that_is_killed_and_a_reply_that_is_lost_change_nothing(call, x64, tmp_path, monkeypatch):
    """At any call of three rounds: in the middle of one, at its end, and between them."""
    relay = Relay(sites(tmp_path))

    def after(nth, name, reply):
        if nth != call or name != "south":
            return reply
        relay._workers["south"] = site("south", tmp_path)
        return b"lost"

    relay.after = after
    assert run(relay).stopped is None
    as_simulated(tmp_path)


def test_a_coordinator_and_all_sites_that_are_killed_go_on_from_the_last_finished_round(x64, tmp_path):
    class Killed(Exception):
        pass

    relay = Relay(sites(tmp_path))

    def after(call, name, reply):
        if call == 13 and name == "west":
            raise Killed
        return reply

    relay.after = after
    with pytest.raises(Killed):
        run(relay, folder=tmp_path / "run", checkpoint_every=1)
    again = Relay(sites(tmp_path))
    finished = run(again, folder=tmp_path / "run", checkpoint_every=1)
    assert finished.rounds == 4
    assert {message["gossip"]["round"] for _, message in again.requests if "gossip" in message} == {2, 3}
    as_simulated(tmp_path)


def test_a_site_that_lost_its_row_is_named(x64):
    relay = Relay(sites())

    def after(call, name, reply):
        if call == 8:
            relay._workers["east"] = site("east")
        return reply

    relay.after = after
    with pytest.warns(UserWarning, match="east: it has lost its state of this run"):
        run(relay)


# -- what a neighbour does ------------------------------------------------------------------------------------------------


def test_a_row_that_is_not_finite_is_ignored_and_counted_as_in_the_simulator(x64, tmp_path):
    broken = poisoned(line().clients)
    relay = Relay(sites(tmp_path, clients=broken))
    with pytest.warns(UserWarning, match="The guard refused"):
        there = run(relay, rounds=3)
    with pytest.warns(UserWarning, match="The guard refused"):
        here = fm.run(line().problem, broken, SLIDING, rounds=3, seed=3, progress=False)
    assert here.costs["dropped"].tolist() == there.costs["dropped"].tolist()
    assert there.costs["dropped"].sum() > 0
    close(np.stack([model.x for model in models(tmp_path)]), here.x, 1e-8)
    assert np.isnan(here.x).any()
    assert np.isfinite(here.x[1:]).all()


def test_a_row_of_another_shape_is_ignored_and_counted(x64, tmp_path, monkeypatch):
    relay, seal = Relay(sites(tmp_path)), Seals.seal

    def wrong(self, receiver, turn, mix, plain):
        plain = wire.encode(jax.tree.map(lambda a: np.stack([a, a]), wire.decode(plain))) if self._number == 3 else plain
        return seal(self, receiver, turn, mix, plain)

    monkeypatch.setattr(Seals, "seal", wrong)
    with pytest.warns(UserWarning, match="The guard refused"):
        there = run(relay, rounds=2)
    assert there.costs["dropped"].tolist() == [2, 2]
    three = fm.problems.personalized_quadratic(fm.Network.from_edges([(0, 1), (1, 2, 0.5)]), 0.7, 3, 2, examples=6, noise=0.3)
    without = line().problem.replace(network=three.problem.network)
    clients = fm.ClientData.from_list([line().clients[k] for k in range(3)])
    alone = fm.run(without, clients, SLIDING, rounds=2, seed=3, progress=False)
    close(np.stack([model.x for model in models(tmp_path)[:3]]), alone.x, 1e-8)


# -- what a site answers --------------------------------------------------------------------------------------------------


@pytest.fixture
def conversation(x64, tmp_path):
    """Two rounds, with the workers that have been asked."""
    relay = Relay(sites(tmp_path))
    run(relay, rounds=2)
    return relay


def last(relay, name, field):
    return [message for asked, message in relay.requests if asked == name and field in message][-1]


def test_what_is_asked_again_is_answered_from_what_was_computed(conversation, monkeypatch):
    message = last(conversation, "south", "gossip")
    replies = [r for name, r in conversation.replies if name == "south" and wire.decode(r)["id"] == message["id"]]
    monkeypatch.setattr(node_round, "carry_out", None)
    assert conversation._workers["south"].handle(wire.encode(message)) == replies[0]


def described(name, **settings):
    return {"it": {"metric": metrics.parts.Described(name, settings), "weight": 0.25}}


CHANGES = {
    "a program": lambda m: {**{k: v for k, v in m.items() if k != "gossip"}, "letters": []},
    "parts at a point": lambda m: {**{k: v for k, v in m.items() if k != "gossip"}, "parts": described("NodeLoss", each=True)},
    "a gradient": lambda m: {**{k: v for k, v in m.items() if k != "gossip"}, "measures": described("Residual")},
    "no metric": lambda m: {**{k: v for k, v in m.items() if k != "gossip"}, "measures": {"it": {"metric": 3}}},
    "whose": lambda m: {**m, "whose": m["whose"]._replace(number=0)},
    "run": lambda m: {**m, "run": "../.."},
    "no state": lambda m: {**m, "state": None},
    "no field": lambda m: {**m, "gossip": {k: v for k, v in m["gossip"].items() if k != "drop"}},
    "round": lambda m: {**m, "gossip": {**m["gossip"], "round": -1}},
    "exchange": lambda m: {**m, "gossip": {**m["gossip"], "mix": True}},
    "key": lambda m: {**m, "gossip": {**m["gossip"], "key": np.zeros(3, np.uint32)}},
    "keep": lambda m: {**m, "gossip": {**m["gossip"], "keep": ["a b"]}},
    "keys": lambda m: {**m, "gossip": {**m["gossip"], "keys": {}}},
    "keys that are none": lambda m: {**m, "gossip": {**m["gossip"], "keys": dict.fromkeys(m["gossip"]["keys"], 1)}},
    "a key that is short": lambda m: {
        **m,
        "gossip": {**m["gossip"], "keys": {k: v._replace(key=3) for k, v in m["gossip"]["keys"].items()}},
    },
    "heard": lambda m: {**m, "gossip": {**m["gossip"], "heard": dict.fromkeys(m["gossip"]["heard"], "text")}},
    "settle": lambda m: {**{k: v for k, v in m.items() if k != "gossip"}, "settle": -1},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_node_is_not_to_be_asked_is_a_category(conversation, change):
    message = CHANGES[change]({**last(conversation, "south", "gossip"), "id": "new/1/0"})
    failed = wire.decode(conversation._workers["south"].handle(wire.encode(message)))["failed"]
    assert failed["kind"] == "malformed"


def test_messages_that_a_round_does_not_wait_for_are_refused(conversation):
    message = last(conversation, "south", "gossip")
    for mix, kind in ((3, "malformed"), (5, "lost")):
        ask = {**message, "id": f"new/1/{mix}", "gossip": {**message["gossip"], "mix": mix}}
        assert wire.decode(conversation._workers["south"].handle(wire.encode(ask)))["failed"]["kind"] == kind


ANSWERS = {
    "to others": lambda said: {"sealed": {**said["sealed"], "3": np.zeros(9, np.uint8)}},
    "numbers": lambda said: {"sealed": {k: np.zeros(9) for k in said["sealed"]}},
    "both": lambda said: {**said, "done": None},
    "over": lambda said: {"done": {"traffic": {}, "draws": {}}},
    "text": lambda said: "Traceback",
    "long": lambda said: {"sealed": {k: np.zeros(10**7, np.uint8) for k in said["sealed"]}},
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_a_site_may_not_answer_is_asked_for_again(kind, x64, tmp_path):
    relay, done = Relay(sites(tmp_path)), []

    def after(call, name, reply):
        message = wire.decode(reply)
        if name == "north" and "sealed" in message.get("gossip", {}) and not done:
            done.append(kind)
            return wire.encode({**message, "gossip": ANSWERS[kind](message["gossip"])})
        return reply

    relay.after = after
    federation = engine(relay)
    assert run(relay, rounds=4, federation=federation).stopped is None
    assert [event.what for event in federation.events if event.site == "north" and event.what != "answered"] == ["malformed"]
    as_simulated(tmp_path)


# -- what a run is and is not ---------------------------------------------------------------------------------------------


def test_what_cannot_be_is_said(x64, tmp_path):
    relay = Relay(sites())
    federation = engine(relay)
    result = run(relay, rounds=1, federation=federation, record=True)
    for part in ("x", "y"):
        with pytest.raises(fm.InputError, match="Every site's players are at the site"):
            getattr(result, part)
    go = lambda **options: run(relay, federation=federation, **options)
    with pytest.raises(fm.InputError, match=r"'residual', 'distance' cannot be measured between neighbours.*NodeAccuracy"):
        go(metrics=[metrics.Residual(), metrics.NodeLoss(), metrics.Distance(line().solution)])
    with pytest.raises(fm.InputError, match="replay a trace on the simulator"):
        go(rounds=1, trace=result.trace)
    with pytest.raises(fm.InputError, match="Nodes of a network are always there"):
        go(availability=Availability(0.5))
    with pytest.raises(fm.InputError, match="goes on from its own results only"):
        go(start=simulated())
    with pytest.raises(fm.InputError, match="are with the sites"):
        fm.run(line().problem, line().clients, SLIDING, rounds=1, start=result)
    other = {**sites(), "west": Worker(line().problem.replace(coupling=0.8), SLIDING, line().clients.only(2))}
    with pytest.raises(fm.InputError, match=r"At west the coupling is 0\.8, but here 0\.7"):
        run(Relay(other))
    ring = line().problem.replace(network=fm.Network.ring(4))
    with pytest.raises(fm.InputError, match=r"At north the network is .*, but here"):
        run(Relay({**sites(), "north": Worker(ring, SLIDING, line().clients.only(0))}))
    with pytest.raises(fm.InputError, match=r"There is no .*model\.fmx: a site writes its model"):
        NodeModel.load(tmp_path)
    result.save(tmp_path / "model.fmx")
    with pytest.raises(fm.InputError, match="is no model of a site"):
        NodeModel.load(tmp_path)


def test_a_result_is_saved_and_gone_on_with(x64, tmp_path):
    relay = Relay(sites(tmp_path))
    half = run(relay, rounds=2)
    path = half.save(tmp_path / "half.fmx")
    run(Relay(sites(tmp_path)), rounds=2, start=fm.Result.load(path))
    as_simulated(tmp_path)


def test_held_out_data_is_measured_at_the_sites(x64):
    held = line().clients
    workers = {name: site(name, held_out={"test": held.only(3 - k)}) for k, name in enumerate(NAMES)}
    federation = engine(Relay(workers))
    there = run(
        None, rounds=1, federation=federation, metrics=metrics.On(metrics.NodeLoss(each=True), federation.held_out("test"))
    )
    swapped = fm.ClientData.from_list([held[3 - k] for k in range(4)])
    here = fm.run(
        line().problem,
        held,
        SLIDING,
        rounds=1,
        seed=3,
        metrics=metrics.On(metrics.NodeLoss(each=True), swapped),
        progress=False,
    )
    np.testing.assert_allclose(there.history["node_loss/each"], here.history["node_loss/each"], rtol=1e-10)


def test_keys_are_the_sites_own_business(x64, tmp_path):
    relay = Relay(sites(tmp_path))
    run(relay, rounds=1)
    [folder] = [path for path in (tmp_path / "north").iterdir() if path.is_dir()]
    assert folder.stat().st_mode & 0o077 == 0
    assert isinstance(wire.decode(next(r for _, r in relay.replies if b'"keys"' in r))["keys"], PublicKey)
    private = relay._workers["north"]._node._seals.private
    assert not any(private in reply for _, reply in relay.replies)
    assert peers.Seals("ab" * 8, 0).private != peers.Seals("ab" * 8, 0).private


def test_a_node_whose_own_row_is_not_finite_hears_its_neighbours_to_no_avail(x64):
    task = line()
    rows = Point(np.arange(12.0).reshape(4, 3), np.ones((4, 2)))
    rows.x[1, 0] = np.nan
    here = node_round.Here(task.problem, SLIDING, task.clients.only(1), 1)
    heard = lambda number: wire.encode(jax.tree.map(lambda a: a[number], rows))
    round_ = node_round.NodeRound(here, 0, keys.root(0), [], lambda: heard, drop=True)
    mixed, ignored = round_.mix(task.problem.network, jax.tree.map(lambda a: a[1:2], rows))
    wanted = task.problem.network.product(rows, np.array([True, False, True, True]))
    close(mixed, jax.tree.map(lambda a: a[1:2], wanted), 0)
    assert int(ignored) == 0


def test_rounds_that_fail_leave_a_run_as_it_was(x64):
    relay = Relay(sites())
    federation = engine(relay)
    execution = federation.open(line().problem, federation.clients, SLIDING, Conditions(), seed=3)
    before = execution.state
    relay.before = changed(WRONG["altered"], from_call=relay.calls + 5)  # in the second round
    with pytest.raises(Halted):
        execution.advance(2)
    assert (execution.round, execution.state) == (0, before)
    relay.before = lambda call, name, message: message
    execution.advance(2)
    assert execution.round == 2
