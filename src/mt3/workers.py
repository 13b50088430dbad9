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
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing import connection
from typing import Any, TypeVar

from mt3 import progress
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


def run_apart(
    work: Callable[[Job], object],
    jobs: Sequence[Job],
    names: Sequence[str],
    at_once: int,
    set_up: Callable[[], object] | None = None,
) -> None:
    """Call `work(job)` for all jobs, each in a process of its own, `at_once` at a time; one at a time: here.

    For long work that can be taken up again: an error in one, or Ctrl-C, interrupts the others, and all end before this
    returns. Their progress is shown in plain lines that begin with their names.
    """
    if at_once <= 1:
        for job in jobs:
            work(job)
        return
    context = multiprocessing.get_context("spawn")
    waiting = deque(zip(names, jobs, strict=True))
    running: dict[Any, tuple[Any, Any]] = {}  # by the sentinel, process and pipe
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name, job = waiting.popleft()
                mine, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_apart, args=(work, job, name, set_up, theirs))
                process.start()
                theirs.close()
                running[process.sentinel] = process, mine
            for sentinel in connection.wait(list(running)):
                process, pipe = running.pop(sentinel)
                process.join()
                if process.exitcode:
                    raise InputError(_last_words(pipe, process.exitcode))
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _last_words(pipe: Any, exitcode: int) -> str:
    try:
        if pipe.poll():
            return str(pipe.recv())
    except (EOFError, OSError):
        pass
    return f"A process ended with exit code {exitcode}; run the command again to go on where it stopped."


def _apart(work: Callable[[Any], object], job: Any, name: str, set_up: Callable[[], object] | None, pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the first process passes it on
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    progress.name_process(name)
    try:
        if set_up is not None:
            set_up()
        work(job)
    except KeyboardInterrupt:
        sys.exit(130)
    except InputError as error:
        pipe.send(f"{name}: {error}")
        sys.exit(2)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


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
