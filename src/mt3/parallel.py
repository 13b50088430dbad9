"""Independent pieces of work side by side in threads: the tasks of a meta-batch, the images to adapt to.

On a CPU several threads that compute a piece each, with few cores for every operation, are faster than one after the
other with all cores: small operations leave cores idle. PyTorch releases Python's lock while it computes.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)
Item = TypeVar("Item")
Result = TypeVar("Result")


def count_threads(model: nn.Module, items: int) -> int:
    """How many pieces to compute at once: one for each core of the CPU; an accelerator takes one after the other."""
    on_cpu = all(p.device.type == "cpu" for p in model.parameters())
    return max(1, min(items, torch.get_num_threads())) if on_cpu else 1


def thread_share(sharers: int) -> int:
    """The threads that each of several processes or threads has for itself."""
    return max(1, torch.get_num_threads() // sharers)


def side_by_side(
    work: Callable[[Model, Item], Result], model: Model, items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Yield `work(model, item)` in the order of the items, computed by `threads` threads; one: by the caller.

    Each thread gets a shell of the model, which shares the parameters, so that `functional_call` in one does not meet
    another. No more than `threads` results are computed ahead of the caller.
    """
    if threads <= 1:
        for item in items:
            yield work(model, item)
        return
    cores = thread_share(threads)
    local = threading.local()
    shells = [shell(model) for _ in range(threads)]  # here and now: later the caller may be using the model

    def set_up() -> None:
        torch.set_num_threads(cores)  # of this thread
        local.model = shells.pop()

    rest = iter(items)
    with ThreadPoolExecutor(threads, "mt3", set_up) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            waiting.extend(pool.submit(lambda item: work(local.model, item), item) for item in islice(rest, threads))
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(lambda item: work(local.model, item), item) for item in islice(rest, 1))
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


def shell(model: Model) -> Model:
    """Copy the modules, not the parameters and buffers."""
    shared = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, shared)
