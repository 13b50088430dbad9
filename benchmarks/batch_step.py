"""One step of supervised training and one of joint training on the same batch, in float32 and bfloat16."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.floor import MATRIX, STEM, alternate_with_floor, layer_flops, machine
from benchmarks.timing import ratio, spread
from benchmarks.words import spread_cell
from mt3.config.config import make_config
from mt3.data import Dataset
from mt3.models.classifier import MT3Model
from mt3.results.tables import Cell, Line, Table, markdown
from mt3.training.loop import apply_gradient, gradient_of_step
from mt3.training.state import make_state

METHODS = ("supervised", "jt")
PRECISIONS = ("float32", "bfloat16")
REFERENCE = "supervised float32"


@dataclass(frozen=True)
class Setting:
    """What is computed; the defaults are those of the preset `workstation`."""

    width: int = 16
    depth: int = 26
    images: int = 64


def batch_step(setting: Setting, method: str, precision: str) -> tuple[Callable[[], None], MT3Model]:
    """A call that takes one step on random images, and its model."""
    network = {"width": setting.width, "depth": setting.depth, "task_size": setting.images, "precision": precision}
    config = make_config(method, "cifar10", "workstation", 0, network)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (setting.images, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, setting.images)
    state = make_state(
        config, Dataset("random", images, labels, images, labels, tuple("0123456789")), torch.device("cpu")
    )
    pixels, answers = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)

    def call() -> None:
        gradient_of_step(state, pixels, answers, config, 0, log=False)
        apply_gradient(state, config, 0, 1000, 1)

    return call, state.model


def batch_flops(model: MT3Model, joint: bool) -> int:
    """Operations that an image of a batch needs: forward and backward, three passes, two where no input has a gradient.

    Joint training adds two views of it, forward and backward, and the same two forward for the targets.
    """
    total = 0
    for name, flops in layer_flops(model).items():
        passes = 2 if name == STEM else 3
        if name.startswith("heads."):
            total += flops * (2 * passes + 2)
        elif name == "classify" or not joint:
            total += flops * passes
        else:
            total += flops * (3 * passes + 2)
    return total


def bench(setting: Setting, rounds: int = 5) -> dict[str, Any]:
    """Seconds, images a second, share of the floor, and times as long as a supervised step in float32."""
    about, calls, flops = machine(), {}, {}
    for method in METHODS:
        for precision in PRECISIONS:
            name = f"{method} {precision}"
            calls[name], model = batch_step(setting, method, precision)
            flops[name] = setting.images * batch_flops(model, joint=method == "jt")
    seconds, best = alternate_with_floor(calls, rounds)
    entries = [
        {
            "name": name,
            "seconds": spread(times),
            "images_per_second": setting.images / spread(times)["median"],
            "share_of_floor": flops[name] / spread(times)["median"] / best,
            "ratio": ratio(times, seconds[REFERENCE]),
        }
        for name, times in seconds.items()
    ]
    floor = {"matrix": MATRIX, "gflops": best / 1e9}
    told = {"benchmark": "batch-step", "setting": asdict(setting), "rounds": rounds}
    return told | {"floor": floor, "candidates": entries, "machine": about}


def summary(result: dict[str, Any]) -> str:
    """The table of `bench`."""
    s = result["setting"]
    lines = tuple(
        Line(
            entry["name"],
            (
                spread_cell(entry["seconds"]),
                Cell(entry["images_per_second"], digits=0),
                Cell(100 * entry["share_of_floor"]),
                spread_cell(entry["ratio"], 2),
            ),
        )
        for entry in result["candidates"]
    )
    columns = ("seconds", "images/s", "% of the float32 floor", "times supervised float32")
    title = f"One step on {s['images']} images, width {s['width']}, depth {s['depth']}, "
    title += f"{result['machine']['threads']} threads: median (min..max) of {result['rounds']} rounds"
    floor = (
        f"the best product of {MATRIX}-square float32 matrices in this run did {result['floor']['gflops']:.0f} GFLOP/s"
    )
    return "\n".join([title, "", markdown(Table("steps", "", "step", columns, lines)), "", floor])
