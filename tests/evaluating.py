"""Small evaluations for tests."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import mt3
import mt3.evaluation.evaluate as module
from mt3.config.adaptation import Adaptation
from mt3.data import load_digits
from mt3.evaluation import pieces
from mt3.evaluation.evaluate import evaluate, evaluate_shard
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.evaluation.settle import settle
from mt3.evaluation.shards import Shard, merge, remove_pieces
from mt3.results.facts import Evaluation
from mt3.support.errors import InputError


def make_model(objective: str | None = "byol", hidden: int = 16) -> mt3.MT3Model:
    adaptation = Adaptation(objective, lr=0.5, views=3)
    model = mt3.MT3Model("resnet8x4g2", 10, objective, hidden, 8, adaptation=adaptation)
    model.reset_parameters(torch.Generator().manual_seed(0))
    return model.eval()


def shard_protocol(**more: Any) -> Protocol:
    """Of two pieces of clean images and two under contrast."""
    return Protocol(("contrast",), limit=60, controls=True, adaptation=make_model().adaptation, **more)


def apart(pipe: Any, work: Callable[..., Any], *given: Any) -> None:
    """In a process of its own: send what the work gives, or says."""
    torch.set_num_threads(1)
    try:
        pipe.send(work(*given))
    except InputError as error:
        pipe.send(str(error))


processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["mt3.evaluation.evaluate"])  # so that torch is imported once


def start(work: Callable[..., Any], *given: Any) -> tuple[Any, Any]:
    """A process that does the work with one thread, and the pipe by which it answers."""
    mine, theirs = processes.Pipe()
    process = processes.Process(target=apart, args=(theirs, work, *given))
    process.start()
    theirs.close()
    return process, mine


def answer(started: tuple[Any, Any]) -> Any:
    process, pipe = started
    said = pipe.recv()
    process.join()
    return said


TENT = {"lr": 0.2, "batch": 2, "momentum": 0.9}
CORRUPTED = ("contrast", "fog")


def stream_protocol(stream: str = "continual", method: str = "tent", limit: int = 10, **fields: Any) -> Protocol:
    adaptation = settle(make_model(), method, stream, (TENT if method == "tent" else {}) | fields)
    return Protocol(CORRUPTED, limit=limit, adaptation=adaptation, method=method, stream=stream)


def follow_slowly(out: Path, pause: float) -> bool:
    """Evaluate a stream in pieces of four images, with a pause after each."""
    pieces.PIECE, original = 4, module.write_piece

    def write(*given: Any) -> None:
        original(*given)
        time.sleep(pause)

    module.write_piece = write  # in this process alone
    evaluate(make_model(), TestImages(load_digits()), stream_protocol("mixed"), out)
    return True


def do_shard(out: Path, shard: Shard) -> bool:
    return evaluate_shard(make_model(), TestImages(load_digits()), shard_protocol(), out, shard)


def race_to_merge(out: Path, ready: Any) -> bool:
    ready.wait()
    wrote = merge(out)
    remove_pieces(out)
    return wrote


def ask(out: Path, images: TestImages, model: mt3.MT3Model | None = None, /, **asked: Any) -> Evaluation:
    """Evaluate under contrast at severity 5, adapted as the model does by itself but for `views`, or as asked."""
    model = make_model() if model is None else model
    own = model.adaptation if model.objective is not None else None
    views = asked.pop("views", None)
    if own is not None and views is not None:
        own = replace(own, views=views)
    return evaluate(model, images, Protocol(**({"corruptions": ("contrast",), "adaptation": own} | asked)), out)
