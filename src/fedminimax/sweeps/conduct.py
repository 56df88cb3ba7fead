"""Carrying a sweep out: which runs go side by side, how far, and what became of them."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from fedminimax.algorithms.base import Algorithm
from fedminimax.identity import describe
from fedminimax.sweeps.block import Block
from fedminimax.sweeps.halving import Halving
from fedminimax.sweeps.ledger import Ledger
from fedminimax.sweeps.numbers import Numbers
from fedminimax.sweeps.side_by_side import Common, Compiled, Kind, kind_of
from fedminimax.sweeps.standing import Part, Shape, Standing, joined

_CALL_SECONDS = 0.5
"""How long a call should take: what Ctrl-C waits for."""
_SAVE_SECONDS = 20.0
"""How often runs under way are written into the folder: what a crash loses."""


class Share(NamedTuple):
    """Runs that go side by side: which settings of the batch with which seeds, and their program."""

    name: str
    kind: Kind
    shape: Shape
    settings: list[int]
    seeds: slice


class Conductor:
    """Runs settings, a batch after the other, and keeps what comes of them.

    Args:
        common: what all runs share.
        ledger: where parts are kept, and which processes share them.
        seeds: the seeds.
        rounds: how many rounds.
        side_by_side: at most so many runs at once; None: as many as fit into memory.
        watch: told of every stretch how many rounds of all runs were run in it.
    """

    def __init__(
        self,
        common: Common,
        ledger: Ledger,
        seeds: list[int],
        rounds: int,
        side_by_side: int | None,
        watch: Callable[[int], None],
    ):
        self._common, self._ledger, self._seeds, self._rounds = common, ledger, seeds, rounds
        self._side_by_side, self._watch = side_by_side, watch
        self._kinds: dict[Hashable, Kind] = {}
        self._pace: dict[Compiled, float] = {}
        self._batches = 0
        self._early, self._done, self._timed, self._began = 0, 0, 0, float("nan")
        self._crew = ledger.crew
        self.numbers = Numbers(len(seeds), rounds, common.every)

    def run(
        self, methods: Sequence[Algorithm], halving: Halving | None = None, sign: float = 1.0, everywhere: bool = False
    ) -> None:
        """Run settings: all of them to the end, or by halving.

        Args:
            methods: the settings.
            halving: which of them go on, and how far.
            sign: 1 for a metric that is better when lower, or else -1.
            everywhere: whether every process that shares the sweep is to have all numbers, and not only process 0.
        """
        batch, first = self._batches, self.numbers.grow(len(methods))
        self._batches += 1
        stops = [] if halving is None else halving.stops(self._rounds, self._common.every, len(methods))
        alive, stands = list(range(len(methods))), dict[tuple[int, int], Standing]()
        for stage, until in enumerate([*stops, self._rounds]):
            shares = self._shares(methods, alive, f"{batch}-{stage}", known=batch == stage == 0)
            wanted = self._crew.leads or everywhere or until < self._rounds
            for share, whose in self._in_turn(shares, wanted):
                before = [stands.pop((k, share.seeds.start)) for k in share.settings] if stage else []
                carry_out = self._part if whose is None else functools.partial(self._their_part, whose)
                part = carry_out(share, [methods[k] for k in share.settings], first, before, until)
                if until < self._rounds:  # each goes on with others
                    stands |= {(k, share.seeds.start): part.standing.only([n]) for n, k in enumerate(share.settings)}
            if halving is not None and until < self._rounds:
                scores = sign * self.numbers.scores(halving.metric, [first + k for k in alive], until)
                left = [alive[k] for k in halving.survivors(scores)]
                self._early, alive = self._early + len(alive) - len(left), left

    def _in_turn(self, shares: Iterator[Share], wanted: bool) -> Iterator[tuple[Share, int | None]]:
        """Give a process its own shares, and where they are wanted those of the others after them, with whose they are."""
        if self._crew.leads and self._crew.others:  # who has to know of all of them before anything is run
            shares = iter(list(shares))
        theirs: list[tuple[Share, int]] = []
        for k, share in enumerate(shares):
            if self._crew.mine(k):
                yield share, None
            else:
                theirs.append((share, self._crew.owner(k)))
        yield from theirs if wanted else []

    def _shares(self, methods: Sequence[Algorithm], alive: list[int], name: str, known: bool) -> Iterator[Share]:
        """Group settings by their program, and divide each group into what runs at once, all in one shape."""
        groups: dict[Hashable, list[int]] = {}
        for k in alive:
            groups.setdefault(kind_of(methods[k]), []).append(k)
        for key, members in groups.items():
            if key not in self._kinds:
                self._kinds[key] = Kind(self._common, methods[members[0]])
            kind, number = self._kinds[key], list(self._kinds).index(key)
            # Sizes that are not known beforehand become powers of two: few programs then serve all of them.
            places = len(members) if known else 1 << (len(members) - 1).bit_length()
            count = len(self._seeds)
            capacity = functools.partial(self._fitting, kind, Shape(places, count), len(groups))
            most = self._side_by_side or self._ledger.at_once(number, capacity)
            shape = Shape.within(most, places, count)
            for s in range(0, len(members), shape.settings):
                for k in range(0, count, shape.seeds):
                    part = members[s : s + shape.settings]
                    yield Share(f"{name}-{number}-{s}-{k}", kind, shape, part, slice(k, min(k + shape.seeds, count)))

    def _fitting(self, kind: Kind, whole: Shape, kinds: int) -> int:
        """Return how many runs of a program go side by side: as many as fit, but such that every process has as much to do."""
        processes = self._crew.place.processes
        cuts = processes // math.gcd(kinds, processes)
        shape = Shape.within(-(-whole.runs // cuts), *whole)
        fit = kind.capacity(*shape, self._crew.beside)
        return fit if cuts == 1 else min(fit, shape.runs)

    def _their_part(
        self, process: int, share: Share, methods: Sequence[Algorithm], first: int, before: Sequence[Standing], until: int
    ) -> Part:
        """Wait for what another process runs side by side up to a round."""
        seeds = self._seeds[share.seeds]
        whose = _whose(methods, seeds)
        part = self._ledger.collect(share.name, whose, share.kind.carry, until, process)
        self._tell(len(methods) * len(seeds) * (until - (before[0].round if before else 0)), now=False)
        self.numbers.put([first + k for k in share.settings], share.seeds, until, part.rows)
        return part

    def _part(self, share: Share, methods: Sequence[Algorithm], first: int, before: Sequence[Standing], until: int) -> Part:
        """Run what goes side by side up to a round, from where it stands, unless that was done before."""
        seeds, here = self._seeds[share.seeds], [first + k for k in share.settings]
        whose = _whose(methods, seeds)
        part = self._ledger.read(share.name, whose, share.kind.carry)
        runs, since = len(methods) * len(seeds), before[0].round if before else 0
        if part is None:
            part = Part(joined(before) if before else share.kind.start(methods, len(seeds)), {})
        self._tell(runs * (part.standing.round - since), now=False)
        if part.standing.round < until:
            block = Block(share.kind.compiled(share.shape), methods, seeds, part)
            try:
                self._go(block, until, runs, lambda: self._ledger.write(share.name, whose, block.part))
            except KeyboardInterrupt:
                self._ledger.write(share.name, whose, block.part)
                self.numbers.put(here, share.seeds, block.round, block.part.rows)
                raise
            part = block.part
            self._ledger.write(share.name, whose, part if until < self._rounds else part.ended)
        self.numbers.put(here, share.seeds, until, part.rows)
        return part

    def _tell(self, rounds: int, now: bool = True) -> None:
        """Say that so many rounds more have been run: by this process now, or by one before it."""
        self._done += rounds
        if now and self._began == self._began:
            self._timed += rounds
        elif now:  # the first stretch also compiles
            self._began = time.monotonic()
        finished = int((self.numbers.rounds_run >= self._rounds).all(axis=1).sum())
        seconds = time.monotonic() - self._began if self._timed else 0.0
        self._ledger.progress(finished=finished, early=self._early, rounds=self._done, timed=self._timed, seconds=seconds)
        self._watch(rounds)

    def _go(self, block: Block, until: int, runs: int, save: Callable[[], None]) -> None:
        """Run to a round in stretches, so that there is something to watch, and that little is ever lost."""
        saved = time.monotonic()
        while block.round < until:
            pace, began = self._pace.get(block.program, 1.0), time.monotonic()
            done = block.advance(int(pace), until)
            now = time.monotonic()
            self._pace[block.program] = max(1.0, min(done * _CALL_SECONDS / max(now - began, 1e-6), 8 * pace))
            self._tell(runs * done)
            if now - saved > _SAVE_SECONDS and block.round < until:
                save()
                saved = time.monotonic()


def _whose(methods: Sequence[Algorithm], seeds: Sequence[int]) -> str:
    """Return which settings and seeds a part is of."""
    return json.dumps([describe(list(methods)), seeds])
