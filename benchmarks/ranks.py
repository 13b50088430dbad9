"""Steps under torchrun: what one rank costs beside none, and what two spend on messages and on waiting.

Each candidate is a process, or several, that stay; a line on their standard input has them take one whole step.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.floor import machine
from benchmarks.meta_step import Setting, prepare
from benchmarks.timing import Spread, alternate, ratio, spread
from benchmarks.words import range_words, spread_cell
from mt3.models.store import save_checkpoint
from mt3.results.tables import Line, Table, markdown
from mt3.support import ranks
from mt3.training.loop import apply_gradient, gradient_of_step
from mt3.training.state import state_tensors

PLAIN, ONE, TWO = "plain", "torchrun, 1 rank", "torchrun, 2 ranks"
STEPS = 1000  # of a training that never ends


class Steps:
    """A candidate's processes."""

    def __init__(self, setting: Setting, count: int, held: ExitStack) -> None:
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(count)] if count else []
        words = [sys.executable, *launch, "-m", "benchmarks.ranks", json.dumps(asdict(setting))]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        held.callback(self.end)
        self.told: list[dict[str, float]] = []

    def __call__(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        self.told.append(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(setting: Setting) -> None:
    """Take a step for every line, and say how long messages took, and waiting for the other ranks before them."""
    torch.set_num_threads(1)
    spent = {"waiting": 0.0, "messages": 0.0}
    with ranks.open_group(torch.device("cpu")):
        config, state, images, labels = prepare(setting)
        ranks._send = _timed(ranks._send, spent)
        step = 0
        while ranks.agree(1 if ranks.is_main() and sys.stdin.readline() else None):
            spent |= dict.fromkeys(spent, 0.0)
            began, busy = time.perf_counter(), time.process_time()
            ranks.agree(None)  # as the loop does before each step
            gradient_of_step(state, images, labels, config, 0, log=False)
            apply_gradient(state, config, step % STEPS, STEPS, STEPS)
            step += 1
            if ranks.is_main():
                took = {"step": time.perf_counter() - began, "processor": time.process_time() - busy}
                print(json.dumps(took | spent), flush=True)


def _timed(send: Callable[..., None], spent: dict[str, float]) -> Callable[..., None]:
    """Wait for all ranks before a message, so that it does not count what the slowest took."""

    def call(*words: Any) -> None:
        began = time.perf_counter()
        dist.barrier()
        met = time.perf_counter()
        send(*words)
        spent["waiting"] += met - began
        spent["messages"] += time.perf_counter() - met

    return call


def bench_ranks(setting: Setting, rounds: int = 20) -> dict[str, Any]:
    """Seconds of a step, times as long as without torchrun, and shares of the time of two ranks."""
    about = machine()
    with ExitStack() as held:
        state = prepare(setting).state
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="mt3-")))
        calls = {name: Steps(setting, count, held) for count, name in enumerate((PLAIN, ONE, TWO))}
        saving = {"checkpoint": lambda: save_checkpoint(folder, 1, state_tensors(state), 0.0)}
        seconds = alternate({**calls, **saving}, rounds)
        told = {name: call.told[1:] for name, call in calls.items()}  # the first round warms up
    busy = {name: [t["processor"] for t in told[name]] for name in (PLAIN, ONE)}
    count = sum(p.numel() for p in state.model.parameters())
    return {
        "benchmark": "ranks",
        "setting": asdict(setting),
        "rounds": rounds,
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "overhead": {"on the clock": _overhead(seconds), "of the processor": _overhead(busy)},
        "speed": ratio(seconds[PLAIN], seconds[TWO]),
        "shares": {name: spread([t[name] / t["step"] for t in told[TWO]]) for name in ("waiting", "messages")},
        "parameters": count,
        "message_bytes": 4 * count,
        "machine": about,
    }


def _overhead(seconds: dict[str, list[float]]) -> Spread:
    """How many times as long one rank takes, round by round, with an interval for the median."""
    times = [a / b for a, b in zip(seconds[ONE], seconds[PLAIN], strict=True)]
    return spread(times) | dict(zip(("low", "high"), median_interval(times), strict=True))


def median_interval(values: Sequence[float], chance: float = 0.05) -> tuple[float, float]:
    """Between two of the values, in order, so that the true median lies outside with at most this chance."""
    n, ordered = len(values), sorted(values)
    below, left = 0, 0.5**n
    while below < n // 2 and 2 * left <= chance:
        below += 1
        left += math.comb(n, below) * 0.5**n
    place = max(0, below - 1)
    return ordered[place], ordered[n - 1 - place]


def ranks_summary(result: dict[str, Any]) -> str:
    """The table of `bench_ranks`, and what follows from it."""
    s, shares = result["setting"], result["shares"]
    lines = tuple(Line(name, (spread_cell(values),)) for name, values in result["seconds"].items())
    title = (
        f"A meta-step and its update, width {s['width']}, depth {s['depth']}, T={s['tasks']}, K={s['task_size']}, one "
        f"thread for each rank: median (min..max) of {result['rounds']} rounds"
    )
    percent: dict[str, Spread] = {name: {k: 100 * v for k, v in share.items()} for name, share in shares.items()}
    words = [
        title,
        "",
        markdown(Table("ranks", "", "", ("seconds",), lines)),
        "",
        *(
            f"one rank takes {over['median']:.4f} times the seconds {clock} of none (95 % interval of the median "
            f"{over['low']:.4f}..{over['high']:.4f})"
            for clock, over in result["overhead"].items()
        ),
        f"two ranks are {result['speed']['median']:.2f} ({range_words(result['speed'], 2)}) times as fast; "
        f"{percent['messages']['median']:.1f} % ({range_words(percent['messages'], 1)}) of their time goes to messages "
        f"of {result['message_bytes'] / 1e6:.2f} MB, {percent['waiting']['median']:.1f} % "
        f"({range_words(percent['waiting'], 1)}) to waiting for each other",
    ]
    if result["machine"]["load"] is not None:
        words.append(f"load of the machine before: {result['machine']['load']:.1f} processes; others spoil the numbers")
    return "\n".join(words)


if __name__ == "__main__":
    serve(Setting(**json.loads(sys.argv[1])))
    ranks.leave(0)
