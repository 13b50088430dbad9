"""Ranks: the processes that torchrun starts for one training, and the few messages between them.

Without torchrun there is one rank, and no message is sent. Gradients travel between GPUs by NCCL; all else, and
everything on CPUs, by Gloo, which notices at once that a process has ended.
"""

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

from mt3.support.errors import WORD, RankLostError, shown
from mt3.support.signals import unhandled

VALUES = 16  # numbers that may travel beside the gradients; a rank without a task of its own does not know how many do
POLL = 0.02  # seconds between two looks at torchrun's store
MEETING = timedelta(minutes=5)  # within which all ranks have to come
PATIENCE = timedelta(seconds=5)  # with torchrun's store, when a sentence waits for it


def rank() -> int:
    """The number of this process among those that train together."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this is the rank that reads and writes the run's directory, and speaks."""
    return rank() == 0


def neighbours() -> int:
    """How many ranks of the training share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if world() > 1 else 1


@contextmanager
def open_group(device: torch.device) -> Iterator[None]:
    """Join the ranks that torchrun started, for the block, unless that is done. Ranks but the first are silent.

    After an error the connections end with the process, by which the other ranks notice it.
    """
    if not dist.is_torchelastic_launched() or dist.is_initialized():
        yield
        return
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    with unhandled():  # waiting for the others does not return for a handler
        _send(_join, "cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    with ExitStack() as silence:
        if not is_main():
            nowhere = silence.enter_context(open(os.devnull, "w", encoding="utf-8"))
            silence.enter_context(redirect_stdout(nowhere))
            silence.enter_context(redirect_stderr(nowhere))
        yield
        agree(None)  # no rank ends before the first has written all
    dist.destroy_process_group()


def _join(backend: str) -> None:
    """Open the group, over a part of torchrun's store that no earlier attempt has used.

    The store outlives a restart, and what ranks that are gone have left there would lead the new ones astray: the first
    rank makes a name up, and gives it to those of the others that answer.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):  # each attempt has a store of its own
        dist.init_process_group(backend)
        return
    number, count, name = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), secrets.token_hex(8)
    store, began = _torchruns_store(), time.monotonic()
    if number:
        store.set(f"mt3/hello/{number}", name)
        name = store.get(f"mt3/welcome/{name}").decode()  # waits for it
        store.set(f"mt3/{name}/{number}", "")
    for other in range(1, count) if number == 0 else ():
        while not store.check([f"mt3/{name}/{other}"]):
            if store.check([f"mt3/hello/{other}"]):  # perhaps of a rank that is gone
                store.set(f"mt3/welcome/{store.get(f'mt3/hello/{other}').decode()}", name)
            if time.monotonic() - began > MEETING.total_seconds():
                raise RuntimeError(f"rank {other} did not come within {MEETING}")
            time.sleep(POLL)
    if number == 0:
        store.delete_key(_said())
    dist.init_process_group(backend, store=PrefixStore(name, store), rank=number, world_size=count)


def _torchruns_store(patience: timedelta = MEETING) -> TCPStore:
    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=patience)


@contextmanager
def main_first() -> Iterator[None]:
    """Let the first rank through the block, then the others: it downloads and decodes what they find there."""
    if not is_main():
        agree(None)
    yield
    if is_main():
        agree(None)


def agree(number: int | None) -> int | None:
    """The largest number that a rank brings, on all ranks, which wait for each other here; of a signal to end, say."""
    if world() == 1:
        return number
    told = torch.tensor(number or 0)
    _send(dist.all_reduce, told, dist.ReduceOp.MAX)
    return int(told) or None


def share(data: bytes) -> bytes:
    """The first rank's bytes, on all ranks."""
    if world() == 1:
        return data
    length = agree(len(data) if is_main() else None) or 0
    told = torch.frombuffer(bytearray(data if is_main() else length), dtype=torch.uint8)
    _send(dist.broadcast, told, 0)
    return told.numpy().tobytes()


def combine(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Add up the parameters' gradients over the ranks, in place, and the values, which are returned.

    It is one message. A gradient that no rank has stays None; a rank without work brings neither gradients nor values.
    """
    if world() == 1:
        return torch.stack(list(values))
    brought = [p.grad is not None for p in parameters]
    kind = torch.promote_types(parameters[0].dtype, torch.float32)  # half precision could not hold what is logged
    beside = torch.zeros(len(parameters) + VALUES, dtype=kind, device=parameters[0].device)
    beside[: len(parameters)] = torch.tensor(brought)
    for place, value in enumerate(values, len(parameters)):
        beside[place] = value
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    message = torch.cat([g.flatten() for g in (*gradients, beside)])
    _send(dist.all_reduce, message)
    *sums, beside = torch.split(message, [*(p.numel() for p in parameters), len(beside)])
    used = beside[: len(parameters)].tolist()
    for p, total, ranks in zip(parameters, sums, used, strict=True):
        p.grad = total.view_as(p).to(p.dtype) if ranks else None
    return beside[len(parameters) :]


def _send(collective: Callable[..., Any], *words: Any) -> None:
    try:
        collective(*words)
    except RuntimeError as error:
        reason = shown((str(error).splitlines() or [""])[0], WORD)
        raise RankLostError(
            f"Another rank of this training ended, or cannot be reached ({reason}), and the others cannot go on "
            "without it; --resume goes on from the last checkpoint, and so does torchrun by itself with --max-restarts."
        ) from error


def job() -> str | None:
    """What torchrun calls the job whose restarts these ranks belong to; None without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


def is_restart(begun_by: str | None) -> bool:
    """Whether a run that the job `begun_by` began is this job's own, which torchrun has started again.

    Jobs without an identity are all called "none"; there the count of restarts decides.
    """
    counted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0
    return job() is not None and job() == begun_by and (job() != "none" or counted)


def may_speak() -> bool:
    """Whether this rank is the first with something to say: torchrun's store counts them, with a group or without."""
    try:
        return _torchruns_store(PATIENCE).add(_said(), 1) == 1
    except (RuntimeError, KeyError, ValueError):
        return True  # rather twice than not at all


def _said() -> str:
    """Where the store counts who has spoken in this attempt."""
    return f"mt3/said/{os.environ['TORCHELASTIC_RESTART_COUNT']}"


def leave(code: int) -> NoReturn:
    """End this process without Python's own clearing up: a thread of Gloo's that lets go of a tensor then aborts it.

    In torch 2.13 that happened in 8 of 12 tries without `destroy_process_group`, and once with it; torchrun would
    take it for a failure, and start a finished training again.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
