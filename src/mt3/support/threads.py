"""Independent pieces of work side by side in threads: the tasks of a meta-batch, the images to adapt to.

On a CPU several threads that compute a piece each, with few cores for every operation, are faster than one after the
other with all cores: small operations leave cores idle. PyTorch releases Python's lock while it computes.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import chain, islice
from typing import TypeVar

import torch
from torch import nn

Item = TypeVar("Item")
Result = TypeVar("Result")

# held while threads with few cores start: PyTorch gives the number that was set last to every thread that is new to it
_STARTING = threading.Lock()
_POOLS: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _forget_threads() -> None:
    """A forked process has neither its parent's threads nor what they hold."""
    global _STARTING
    _STARTING = threading.Lock()
    _POOLS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def own_threads() -> int:
    """The threads that PyTorch uses for an operation of this thread."""
    with _STARTING:
        return torch.get_num_threads()


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Compute as if nothing surrounded the caller: without autocast, and with as many cores as any new thread has."""
    own_threads()  # from the first time it is asked, a thread keeps the number
    with torch.autocast("cpu", enabled=False), torch.autocast(device.type, enabled=False):
        yield


def count_threads(model: nn.Module, items: int) -> int:
    """How many pieces to compute at once: one for each core of the CPU; an accelerator takes one after the other."""
    on_cpu = all(p.device.type == "cpu" for p in model.parameters())
    return max(1, min(items, own_threads())) if on_cpu else 1


def thread_share(sharers: int) -> int:
    """The threads that each of several processes or threads has for itself."""
    return max(1, own_threads() // sharers)


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield `work(item)` in the order of the items, computed by `threads` threads; one: by the caller.

    No more than `threads` results are computed ahead of the caller.
    """
    rest = iter(items)
    first = list(islice(rest, max(1, threads)))
    if len(first) <= 1:
        yield from map(work, chain(first, rest))
        return
    pool = _threads(len(first), thread_share(len(first)))
    waiting = deque(pool.submit(work, item) for item in first)
    try:
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(work, item) for item in islice(rest, 1))
            yield result
    finally:
        wait([future for future in waiting if not future.cancel()])


def _threads(count: int, cores: int) -> ThreadPoolExecutor:
    """So many threads with so many cores each. They stay, since starting them disturbs other new threads."""
    with _STARTING:
        if (count, cores) not in _POOLS:
            before, ready = torch.get_num_threads(), threading.Barrier(count + 1)
            pool = ThreadPoolExecutor(count, "mt3", _limit_cores, (cores, ready))
            try:
                for _ in range(count):
                    pool.submit(int)  # starts a thread, as none is idle until all are ready
                ready.wait()
            except BaseException:
                ready.abort()
                raise
            finally:
                torch.set_num_threads(before)  # of the caller, and of his threads that are new to PyTorch
            _POOLS[count, cores] = pool
        return _POOLS[count, cores]


def _limit_cores(cores: int, ready: threading.Barrier) -> None:
    torch.get_num_threads()  # asked for the first time only after the next line, it would be the number set last by any
    torch.set_num_threads(cores)
    ready.wait()
