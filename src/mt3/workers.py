"""Worker processes: pieces of work out, answers back in order, no process left behind. Needs no torch."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing import connection
from typing import Any, TypeVar

from mt3.errors import InputError

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
    """Hold Ctrl-C back; a process started meanwhile never gets it, and is ended by this one, which gets it after."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_call: Callable[[Any], Any] | None = None  # in a worker: `work` with its job


def _start(work: Callable[[Any, Any], Any], job: Any, set_up: Callable[[], None] | None) -> None:
    global _call
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
