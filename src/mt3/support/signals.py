"""Requests from outside to end: Ctrl-C, SIGTERM and SIGHUP mean the same. Needs no torch."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
GRACE = 1.0  # seconds in which further signals belong to the first: `timeout` and service managers send several


class Stopped(KeyboardInterrupt):
    """This process was asked to end, by the signal `number`; the text says how far it is, where that is known."""

    def __init__(self, number: int, words: str = "") -> None:
        super().__init__(words)
        self.number = number


class Stop:
    """A handler of signals: it raises `Stopped` at once, or leaves that to those who look at `number`."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once
        self.number: int | None = None  # of the first signal
        self.asked = 0.0  # when it came
        self.again: dict[int, Any] = {}  # what handles the second

    def __call__(self, number: int, _: object) -> None:
        if self.number is None:
            self.number, self.asked = number, time.monotonic()
            if self.at_once:
                raise Stopped(number)
        elif time.monotonic() - self.asked > GRACE:  # whoever asks again does not want to wait
            signal.signal(number, self.again[number])
            signal.raise_signal(number)


@contextmanager
def stop_on_signals(at_once: bool = True) -> Iterator[Stop]:
    """Handle the signals that ask to end within the block; a second one is not handled, and ends the process.

    Those that are ignored, as under `nohup`, stay so. Only the main thread can handle any. Where a program of another
    kind, such as a notebook, waits for a training, a second Ctrl-C is handled as that program does.
    """
    stop = Stop(at_once)
    on_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS if on_main_thread}
    handled = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number, old in handled.items():
        stop.again[number] = signal.SIG_DFL if at_once or isinstance(old, Stop) else old
        signal.signal(number, stop)
    try:
        yield stop
    finally:
        for number, old in handled.items():
            signal.signal(number, old)
            if isinstance(old, Stop) and stop.number is not None:  # a further signal is the second there, too
                old.number, old.asked = stop.number, time.monotonic()


@contextmanager
def unhandled() -> Iterator[None]:
    """End at once on a signal to end, as the system does by itself, within the block."""
    ours = [number for number in SIGNALS if isinstance(signal.getsignal(number), Stop)]
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ours}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
