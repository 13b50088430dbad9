"""Worker processes: pieces of work out, answers back in order, no process left behind. Needs no torch."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from multiprocessing import connection, resource_tracker
from typing import Any, NamedTuple, TypeVar

from mt3.support import progress
from mt3.support.errors import InputError
from mt3.support.signals import SIGNALS, stop_on_signals

AHEAD = 4  # pieces out at a time for each worker: it never waits for the next, and memory stays bounded

Job = TypeVar("Job")
Piece = TypeVar("Piece")
Answer = TypeVar("Answer")


def count_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(
    work: Callable[[Job, Piece], Answer],
    job: Job,
    pieces: Iterable[Piece],
    workers: int,
    set_up: Callable[[], None] | None = None,
) -> Generator[Answer, None, None]:
    """Yield `work(job, piece)` in the order of `pieces`, computed here (one worker) or in worker processes.

    `work` and `set_up`, which each process calls first, are functions of a module. The processes end with the iterator:
    close it (`contextlib.closing`) if it may be left early. They end with this process, too, however it ends.
    """
    if workers <= 1:
        for piece in pieces:
            yield work(job, piece)
        return
    with _interrupts_held():
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start, (work, job, set_up))
    rest = iter(pieces)
    waiting: deque[Future[Answer]] = deque()
    try:
        _submit(pool, waiting, islice(rest, AHEAD * workers))
        while waiting:
            answer = waiting.popleft().result()
            _submit(pool, waiting, islice(rest, 1))
            yield answer
    except BrokenProcessPool:
        raise InputError(
            "A worker process was ended from outside, perhaps for want of memory; run the command again to go on "
            "where it stopped, with fewer --workers."
        ) from None
    finally:
        # pieces under way are finished: a process ended while it answers may leave the pool waiting for ever
        pool.shutdown(wait=True, cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, waiting: "deque[Future[Answer]]", pieces: Iterable[Any]) -> None:
    with _interrupts_held():  # a submission may start a worker
        waiting.extend(pool.submit(_work, piece) for piece in pieces)


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
    running: dict[Any, _Running] = {}  # by the sentinel
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name, job = waiting.popleft()
                mine, theirs = context.Pipe()
                with _interrupts_held():  # else a process might be started that nobody knows
                    process = context.Process(target=_apart, args=(name, set_up, theirs))
                    process.start()
                    running[process.sentinel] = _Running(name, process, mine)
                theirs.close()
                with suppress(OSError):  # a process that ended at once, which is noticed below
                    mine.send((work, job))
            for sentinel in connection.wait(list(running)):
                ended = running.pop(sentinel)
                ended.process.join()
                if ended.process.exitcode:
                    raise InputError(f"{ended.name}: {_last_words(ended)}")
    finally:
        for left in running.values():
            left.process.terminate()
        for left in running.values():
            left.process.join()


class _Running(NamedTuple):
    name: str
    process: Any
    pipe: Any


def _last_words(ended: _Running) -> str:
    with suppress(EOFError, OSError):
        if ended.pipe.poll():
            return str(ended.pipe.recv())
    if ended.process.exitcode < 0:
        return (
            f"the process was ended from outside (signal {-ended.process.exitcode}), perhaps for want of memory; run "
            "the command again to go on where it stopped, with fewer jobs at a time."
        )
    return (
        f"the process ended with exit code {ended.process.exitcode}; run the command again to go on where it stopped."
    )


def _apart(name: str, set_up: Callable[[], object] | None, pipe: Any) -> None:
    for number in SIGNALS:  # a terminal sends them to all; the first process passes them on as SIGTERM
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    progress.name_process(name)
    try:
        with stop_on_signals():
            _release_sigterm()
            work, job = pipe.recv()
            if set_up is not None:
                set_up()
            work(job)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)
    except (InputError, OSError) as error:
        pipe.send(str(error))
        sys.exit(2)


def _release_sigterm() -> None:
    """In a process that was started while signals were held back."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


_call: Callable[[Any], Any] | None = None  # in a worker: `work` with its job


def _start(work: Callable[[Any, Any], Any], job: Any, set_up: Callable[[], None] | None) -> None:
    global _call
    _release_sigterm()
    if set_up is not None:
        set_up()
    _call = partial(work, job)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _work(piece: Any) -> Any:
    assert _call is not None
    return _call(piece)
