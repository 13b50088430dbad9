"""One meta-gradient step of the paper's configuration, alternately with its peers."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.floor import MATRIX, alternate_with_floor, layer_flops, machine, meta_step_flops, peak_memory
from benchmarks.growth import measure_growth
from benchmarks.peers import META_STEP, Absent, TaskLoss, load_peers, plain_loss, torch_layers
from benchmarks.timing import OURS, compared, ratio
from benchmarks.words import comparison_words, spread_cell
from mt3.config.config import Config, make_config
from mt3.data import Dataset
from mt3.models.classifier import MT3Model
from mt3.training.loop import gradient_of_step
from mt3.training.state import State, make_state
from mt3.training.tasks import draw_step_task

CLASSES = 10
INPUT = "input"
CLOSE = 1e-9  # relative difference of the gradients up to which a peer computes the same, in float64
CLIP = 1e6  # a norm that nothing reaches: ours does the work of clipping, and peers without it compute the same
SCALING: dict[str, tuple[int, ...]] = {
    "tasks": (1, 2, 4, 8),
    "task_size": (4, 8, 16),
    "inner_steps": (1, 2, 3),
    "width": (8, 16, 32),
}


@dataclass(frozen=True)
class Setting:
    """What is computed; the defaults are the paper's."""

    width: int = 32
    depth: int = 26
    tasks: int = 4  # T
    task_size: int = 8  # K
    inner_steps: int = 1  # M
    precision: str = "float32"


class Work(NamedTuple):
    config: Config
    state: State
    images: Tensor
    labels: Tensor


def prepare(setting: Setting, dtype: torch.dtype = torch.float32) -> Work:
    """A fresh model and random images, as many as a step takes."""
    config = make_config("mt3", "cifar10", "paper", 0, asdict(setting) | {"clip": CLIP, "inner_clip": CLIP})
    count = setting.tasks * setting.task_size
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, count)
    dataset = Dataset("random", images, labels, images, labels, tuple(map(str, range(CLASSES))))
    state = make_state(config, dataset, torch.device("cpu"))
    state.model.to(dtype)
    return Work(config, state, torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels))


def our_step(setting: Setting, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    """A call that computes the meta-gradient with this package."""
    config, state, images, labels = prepare(setting, dtype)

    def call() -> Tensor:
        gradient_of_step(state, images, labels, config, 0, log=False)
        return _gradient(state.model)

    return call


def our_input(setting: Setting) -> Callable[[], None]:
    """A call that picks and augments the images of a step's tasks, and no more."""
    config, _, images, labels = prepare(setting)

    def call() -> None:
        for number in range(config.tasks):
            draw_step_task(images, labels, config, 0, number)

    return call


def peer_step(setting: Setting, loss: TaskLoss, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    """A call that computes the same with a peer: task after task, on PyTorch's layers."""
    config, state, images, labels = prepare(setting, dtype)
    model = torch_layers(state.model)

    def call() -> Tensor:
        model.zero_grad()
        for number in range(config.tasks):
            task = draw_step_task(images, labels, config, 0, number)
            (loss(model, task, config) / config.tasks).backward()  # type: ignore[no-untyped-call]
        return _gradient(model)

    return call


def _gradient(model: MT3Model) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def gradient_error(setting: Setting, loss: TaskLoss) -> float:
    """Relative difference of the peer's meta-gradient from ours, in float64, for at most two tasks.

    In float32 a deep network has inputs of ReLUs so near to 0 that they fall to the other side in another order of
    summation; there the gradient jumps, so that any two ways to compute it may differ by a percent.
    """
    few = replace(setting, tasks=min(setting.tasks, 2))
    ours, theirs = our_step(few, torch.float64)(), peer_step(few, loss, torch.float64)()
    return float((theirs - ours).norm() / ours.norm())


def bench(setting: Setting, rounds: int = 5, scaling: bool = False) -> dict[str, Any]:
    """Seconds, ratios to the peers, share of the floor and peak memory; with `scaling` how they grow."""
    about = machine()
    losses, absent = load_peers(META_STEP)
    checks = {name: {"gradient_error": gradient_error(setting, loss)} for name, loss in losses.items()}
    calls = {OURS: our_step(setting)}
    for name, loss in losses.items():
        error = checks[name]["gradient_error"]
        if error <= CLOSE:
            calls[name] = peer_step(setting, loss)
        else:
            absent.append(Absent(name, f"its gradient differs by {error:.2g} of ours", install=""))
    rounded = f"{OURS} bfloat16"
    calls[rounded] = our_step(replace(setting, precision="bfloat16"))
    checks[rounded] = {"gradient_cosine": float(torch.cosine_similarity(calls[rounded](), calls[OURS](), dim=0))}

    seconds, best = alternate_with_floor({**calls, INPUT: our_input(setting)}, rounds)
    input_share = ratio(seconds.pop(INPUT), seconds[OURS])
    flops = _flops(setting)
    return {
        "benchmark": "meta-step",
        "setting": asdict(setting),
        "rounds": rounds,
        "clock": "time on the clock",
        "flops": flops,
        "forward_passes": flops / sum(layer_flops(prepare(setting).state.model).values()),
        "floor": {"matrix": MATRIX, "gflops": best / 1e9},
        "candidates": [entry | checks.get(entry["name"], {}) for entry in compared(seconds, flops, best)],
        "input_share": input_share,
        "peak_mb": {
            OURS: peak_memory(our_step, setting),
            "plain": peak_memory(peer_step, setting, plain_loss),
        },
        "scaling": measure_growth(setting, SCALING, our_step, _flops, rounds) if scaling else [],
        "absent": [peer._asdict() for peer in absent],
        "machine": about,
    }


def _flops(setting: Setting) -> int:
    model = prepare(setting).state.model
    return meta_step_flops(model, setting.tasks, setting.task_size, setting.inner_steps)


def summary(result: dict[str, Any]) -> str:
    """The tables of `bench`."""
    s = result["setting"]
    title = (
        f"One meta-step, width {s['width']}, depth {s['depth']}, T={s['tasks']}, K={s['task_size']}, "
        f"M={s['inner_steps']}, {result['machine']['threads']} threads: median (min..max) of {result['rounds']} rounds"
    )
    share = spread_cell({name: 100 * value for name, value in result["input_share"].items()}, 1).text
    drawn = f"picking and augmenting its images: {share} % of ours"
    return "\n".join([title, "", *comparison_words(result, "a meta-step"), drawn])
