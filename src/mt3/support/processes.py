"""Long work in processes of their own, none of which is left behind. Needs no torch."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from mt3.support.errors import InputError
from mt3.support.signals import SIGNALS, stop_on_signals

Job = TypeVar("Job")


def count_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_apart(
    work: Callable[[Job], object],
    jobs: Sequence[Job],
    names: Sequence[str],
    at_once: int,
    set_up: Callable[[], object] | None = None,
) -> None:
    """Call `work(job)` for all jobs, each in a process of its own, `at_once` at a time; one at a time: here.

    For long work that can be taken up again: an error in one, or a signal to end, interrupts the others, and all end
    before this returns. Their progress is shown in plain lines that begin with their names.
    """
    if at_once <= 1:
        for job in jobs:
            work(job)
        return
    context = multiprocessing.get_context("spawn")
    waiting = deque(zip(names, jobs, strict=True))
    running: dict[Any, tuple[BaseProcess, Any]] = {}  # by the sentinel: the process and the pipe to it
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name, job = waiting.popleft()
                mine, theirs = context.Pipe()
                with _interrupts_held():  # else a process might be started that nobody knows
                    process = context.Process(target=_apart, name=name, args=(set_up, theirs))
                    process.start()
                    running[process.sentinel] = process, mine
                theirs.close()
                with suppress(OSError):  # a process that ended at once, which is noticed below
                    mine.send((work, job))
            for sentinel in connection.wait(list(running)):
                ended, pipe = running.pop(sentinel)
                ended.join()
                if ended.exitcode:
                    raise InputError(f"{ended.name}: {_last_words(ended.exitcode, pipe)}")
    finally:
        for left, _ in running.values():
            left.terminate()
        for left, _ in running.values():
            left.join()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold signals to end back; a process started meanwhile gets none but SIGTERM, by which this one may end it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        resource_tracker.ensure_running()  # a process of multiprocessing's own; starting it lets some signals through
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _last_words(code: int, pipe: Any) -> str:
    with suppress(EOFError, OSError):
        if pipe.poll():
            return str(pipe.recv())
    return (
        f"the process ended with exit code {code}, perhaps for want of memory; run the command again "
        "to go on where it stopped, with fewer jobs at a time."
    )


def _apart(set_up: Callable[[], object] | None, pipe: Any) -> None:
    for number in SIGNALS:  # a terminal sends them to all; the first process passes them on as SIGTERM
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with stop_on_signals():
            if hasattr(signal, "pthread_sigmask"):  # it was started while signals were held back
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            work, job = pipe.recv()
            if set_up is not None:
                set_up()
            work(job)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)
    except (InputError, OSError) as error:
        pipe.send(str(error))
        sys.exit(2)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
