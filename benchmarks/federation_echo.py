"""Echoes for benchmarks/federation.py, as FLARE loads them: at a site, on the server, and as a worker's process."""

import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from nvflare.apis.event_type import EventType
from nvflare.apis.impl.controller import Controller
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from fedminimax.engines.federated.resident import Resident, serve
from fedminimax.flare import labels
from fedminimax.flare.site import Site
from fedminimax.flare.transport import FlareTransport

FLOOR = "floor"


class EchoSite(Site):
    """A site whose worker sends back what it is sent; on another topic the FLARE client does so itself, which is the floor."""

    def _start(self, folder):
        self._study = "echo"
        self._worker = Resident([sys.executable, __file__, str(folder / "worker.sock")], folder / "worker.sock")
        self._wake()

    def handle_event(self, event_type, fl_ctx):
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.AFTER_CLIENT_REGISTER:
            cell = fl_ctx.get_engine().get_cell()
            cell.register_request_cb(channel=labels.CHANNEL, topic=FLOOR, cb=self._floor)

    def _floor(self, request):
        return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, request.payload)


class EchoMain(Controller):
    """Times group calls of several sizes: through the workers, and FLARE's own."""

    def __init__(self, sites, floats, repeats, out):
        super().__init__()
        self.sites, self.floats, self.repeats, self.out = sites, floats, repeats, out

    def start_controller(self, fl_ctx):
        pass

    def stop_controller(self, fl_ctx):
        pass

    def process_result_of_unknown_task(self, *given):
        pass

    def control_flow(self, abort_signal, fl_ctx):
        cell = fl_ctx.get_engine().get_cell()
        transport = FlareTransport(cell, self.sites, study="echo")
        while any(transport.present().values()):
            time.sleep(0.2)
        pool = ThreadPoolExecutor(len(self.sites))

        def floor(blob):
            send = lambda site: cell.send_request(
                channel=labels.CHANNEL, topic=FLOOR, target=site, request=new_cell_message({}, blob), timeout=60.0
            )
            # As they came, without a copy: ours returns views too.
            return {site: reply.payload for site, reply in zip(self.sites, pool.map(send, self.sites), strict=True)}

        ours = lambda blob: transport.ask(dict.fromkeys(self.sites, blob), 60.0).replies
        found = []
        for count in self.floats:
            blob, times = np.random.default_rng(0).random(count, np.float32).tobytes(), {"floor": [], "ours": []}
            for _ in range(self.repeats):  # in turns, so that both have the same machine
                for name, call in (("floor", floor), ("ours", ours)):
                    begun = time.perf_counter()
                    replies = call(blob)
                    times[name].append(time.perf_counter() - begun)
                    assert replies == dict.fromkeys(self.sites, blob)
            found.append({"floats": count} | {name: statistics.median(taken[1:]) for name, taken in times.items()})
        Path(self.out).write_text(json.dumps(found))


class Echo:
    """A worker that sends back what it is sent."""

    def handle(self, request):
        return request


if __name__ == "__main__":
    serve(sys.argv[1], Echo(), parent=os.getppid())
