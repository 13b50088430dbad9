"""What torchrun starts for the tests of ranks: commands of mt3, one after the other, with something put wrong.

rank_script.py '{"float64": [["train", ...], ...], "float32": [...], "fail": "gradient", "how": "kill", "rank": 1}'
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from mt3.cli import commands
from mt3.cli.main import main
from mt3.support import ranks
from mt3.support.errors import InputError
from mt3.training import loop, state

STEP = 7  # that fails, of those with a number


def fail(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "raise":
        raise InputError("This rank has had enough.")


def failing(work: Callable[..., Any], asked: dict[str, Any], number: int) -> Callable[..., Any]:
    """The function, but on the chosen rank of the first attempt something happens instead of its call `number`."""
    calls = [0]

    def call(*words: Any, **named: Any) -> Any:
        calls[0] += 1
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and calls[0] == number and int(os.environ["RANK"]) == asked["rank"]:
            fail(asked["how"])
        return work(*words, **named)

    return call


PLACES: dict[str, tuple[Any, str, int]] = {  # where, and at which call
    "group": (ranks.dist, "init_process_group", 1),
    "data": (commands, "load_data", 1),
    "gradient": (loop, "gradient_of_step", STEP),
    "message": (ranks.dist, "all_reduce", 3 * STEP),
    "update": (loop, "apply_gradient", STEP),
    "checkpoint": (loop, "save_checkpoint", 2),
    "rename": (os, "replace", 6),
    "model": (loop, "save_model", 1),
}


def run(asked: dict[str, Any]) -> int:
    if "fail" in asked:
        module, name, number = PLACES[asked["fail"]]
        setattr(module, name, failing(getattr(module, name), asked, number))
    commands = [(kind, words) for kind in ("float64", "float32") for words in asked.get(kind, [])]
    together = ranks.open_group(torch.device("cpu")) if len(commands) > 1 else nullcontext()
    with together:
        return max(train(kind, words) for kind, words in commands)


def train(kind: str, words: list[str]) -> int:
    build = state.build_model
    if kind == "float64":
        state.build_model = lambda *given: build(*given).double()
    try:
        return main(words)
    finally:
        state.build_model = build


if __name__ == "__main__":
    ranks.leave(run(json.loads(sys.argv[1])))
