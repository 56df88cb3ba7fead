"""Ctrl-C, held back while something must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held() -> Iterator[list[Any]]:
    """Let Ctrl-C interrupt nothing: that it was pressed is in the list. (Only the main thread is ever interrupted.)"""
    before, pressed = signal.getsignal(signal.SIGINT), list[Any]()
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield pressed
        return
    signal.signal(signal.SIGINT, lambda *event: pressed.append(event))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a block end before Ctrl-C interrupts the program."""
    pressed: list[Any] = []
    try:
        with held() as pressed:
            yield
    finally:
        if pressed:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def noticed() -> Iterator[list[Any]]:
    """Let Ctrl-C interrupt as ever, and say in the list that it was pressed.

    Python drops an interrupt that comes while it collects garbage or lets go of an object: whoever looks at the list hears it.
    """
    before, pressed = signal.getsignal(signal.SIGINT), list[Any]()
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield pressed
        return

    def note(*event: Any) -> None:
        pressed.append(event)
        before(*event)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def unheard() -> Iterator[None]:
    """Leave Ctrl-C, which all processes on a terminal get, to another process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
