"""``fedminimax watch``: an experiment while it runs, as a page on this machine only, or in the terminal."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import webbrowser
from functools import cache
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedminimax.errors import InputError
from fedminimax.report.curves import AXES
from fedminimax.report.page import CLOSED, asset, curve_switches, document, picker, plotly
from fedminimax.report.standing import Standing, look

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

HOST = "127.0.0.1"
POLICY = CLOSED.replace("script-src", "script-src 'self'") + "; connect-src 'self'"
_LINGER = 3
"""For so many looks the page is still served when all has ended, so that it sees the end."""


def watch(
    folder: str | os.PathLike[str],
    *,
    port: int = 0,
    terminal: bool | None = None,
    browser: bool = True,
    every: float = 2.0,
    once: bool = False,
    console: Console | None = None,
) -> None:
    """Show a running experiment until it ends, or until Ctrl-C.

    Args:
        folder: the folder of the experiment, or of a run.
        port: of the page on 127.0.0.1; 0: a free one.
        terminal: show it in the terminal; by default where no browser can be seen.
        browser: open the page.
        every: look again after so many seconds.
        once: show how it stands in the terminal, and leave.
        console: where to write.
    """
    from rich.console import Console

    place, console = Path(folder), console or Console()
    if not place.is_dir():
        raise InputError(f"There is no folder {place}: give the folder of a run or of an experiment.")
    if once:
        console.print(shown(look(place)))
        return
    if terminal if terminal is not None else not (port or can_show()):
        _in_terminal(place, every, console)
    else:
        _as_page(place, port, browser, every, console)


def can_show() -> bool:
    """Return whether somebody would see a browser that is opened here."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    if os.environ.get("SSH_CONNECTION"):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def shown(standing: Standing) -> RenderableType:
    """Return how an experiment stands, for the terminal."""
    from rich.console import Group
    from rich.markup import escape as plain
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    metric = next((name for run in standing.runs for name in run.newest), None)
    table = Table(title=plain(standing.name), title_justify="left", expand=False)
    for name in ("method", "seed", "rounds", "", metric or "metric", "status"):
        table.add_column(name, overflow="fold")
    for run in standing.runs:
        value = run.newest.get(metric or "")
        rounds, bar = f"{run.rounds} / {run.wanted or '?'}", ProgressBar(run.wanted or 1, run.rounds, width=16)
        newest = "" if value is None else f"{value:.4g}"
        table.add_row(plain(run.label), "all" if run.seed is None else str(run.seed), rounds, bar, newest, plain(run.words))
    return Group(table, plain(standing.words)) if standing.runs else plain(standing.words)


def _in_terminal(place: Path, every: float, console: Console) -> None:
    from rich.live import Live

    with Live(shown(look(place)), console=console, auto_refresh=False) as live:
        try:
            while True:
                standing = look(place)
                live.update(shown(standing), refresh=True)
                if standing.ended:
                    return
                time.sleep(every)
        except KeyboardInterrupt:
            return


def _as_page(place: Path, port: int, browser: bool, every: float, console: Console) -> None:
    with serve(place, port, every) as server:
        console.print(f"Watching {place} at {server.address}  (Ctrl-C ends it; the runs go on)", highlight=False, markup=False)
        if browser:
            webbrowser.open(server.address)
        try:
            while not look(place).ended:
                time.sleep(every)
            console.print(f"{look(place).words} The report: fedminimax report {place}", highlight=False, markup=False)
            time.sleep(_LINGER * every)
        except KeyboardInterrupt:
            pass


class Served:
    """A live page on this machine, while the ``with`` lasts."""

    def __init__(self, place: Path, port: int, every: float):
        handler = type("Handler", (_Handler,), {"place": place, "every": every})
        try:
            self.server = ThreadingHTTPServer((HOST, port), handler)
        except (OSError, OverflowError) as error:
            raise InputError(f"The port {port} cannot be had ({error}): give another one, or 0 for any that is free.") from None
        self.server.daemon_threads = True
        self.address = f"http://{HOST}:{self.server.server_address[1]}/"

    def __enter__(self) -> Served:
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def serve(place: Path, port: int = 0, every: float = 2.0) -> Served:
    """Return the live page of a folder; it is served while a ``with`` lasts."""
    return Served(place, port, every)


class _Handler(BaseHTTPRequestHandler):
    place: Path
    every: float

    def do_GET(self) -> None:
        """Answer with the page, plotly, or how the experiment stands."""
        # A page elsewhere could point a name of its own at this machine and read along, but browsers tell what was asked for.
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            self._send(403, "text/plain", b"Ask for 127.0.0.1.")
        elif self.path == "/":
            self._send(200, "text/html; charset=utf-8", _page(self.place.resolve().name, self.every).encode())
        elif self.path == "/plotly.js":
            self._send(200, "text/javascript; charset=utf-8", _plotly())
        elif self.path == "/state":
            self._send(200, "application/json", json.dumps(look(self.place).payload()).encode())
        elif self.path == "/favicon.ico":
            self._send(204, "image/x-icon", b"")
        else:
            self._send(404, "text/plain", b"There is nothing here.")

    def _send(self, code: int, kind: str, contents: bytes) -> None:
        try:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(contents)))
            self.send_header("Cache-Control", "max-age=3600" if self.path == "/plotly.js" else "no-store")
            self.end_headers()
            self.wfile.write(contents)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the page was closed meanwhile

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: requests come every other second."""


@cache
def _plotly() -> bytes:
    return plotly().encode()


def _page(name: str, every: float) -> str:
    body = f"""<header class="top"><h1 id="name">{escape(name)}</h1>
<p class="answer" id="words" role="status">Looking…</p>
<progress id="share" max="1" value="0" aria-label="How much of the rounds has been run"></progress></header>
<main>
<section aria-labelledby="curves"><h2 id="curves">Curves</h2>
<div class="bar">{picker("metric", "Metric", {})}</div>
{curve_switches(AXES)}
<div id="curves-chart" class="chart" role="img" aria-label="The selected metric of every method."></div>
<p class="caption" id="curves-caption"></p></section>
<section aria-labelledby="runs"><h2 id="runs">Runs</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Runs"><table><thead><tr>
<th scope="col">Method</th><th scope="col">Seed</th><th scope="col">Rounds</th><th scope="col">Progress</th>
<th scope="col" id="newest">Newest</th><th scope="col">Status</th></tr></thead><tbody id="rows"></tbody></table></div></section>
</main>
<footer>This page is served by <code>fedminimax watch</code> on this machine only.</footer>"""
    page = document(f"{name}: running", body, [asset("page.js"), f"const EVERY = {1000 * every};", asset("watch.js")], POLICY)
    return page.replace("</style>", '</style>\n<script src="/plotly.js"></script>', 1)
