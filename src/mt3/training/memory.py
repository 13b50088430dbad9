"""The memory of a training step, estimated before the first one; a system would end the process instead."""

import torch

from mt3.adaptation.memory import stack_size
from mt3.config.config import Config
from mt3.models.classifier import MT3Model
from mt3.support import ranks
from mt3.support.errors import InputError
from mt3.support.machine import free_memory
from mt3.support.threads import count_threads

# bytes for each that `Backbone.kept` counts, fitted to measured peaks (docs/performance.md): K 8 and 16, M 1 to 3
FIRST = 1.5  # of an image in a pass that is differentiated once
SECOND = 3.0  # of a view in an inner step that stays differentiable
RECOMPUTED = 0.9  # of all of it, where the inner steps are computed again


def step_memory(model: MT3Model, config: Config, size: int, task_size: int, order: str, recompute: bool) -> float:
    """Bytes that a step surely takes, for images of `size` pixels: that of a stack of tasks for each thread."""
    tasks = -(-config.tasks // ranks.world())  # that a rank has
    if config.training != "meta":
        task_size = -(-task_size // ranks.world())
    views = task_size * _views_per_image(model)
    shown = model.objective is not None and model.objective.shows_images
    both = views if shown else task_size + views
    if config.training != "meta":
        images = FIRST * (task_size if config.training == "ce" else both)
    else:
        outer = (both if config.gamma else task_size) + (task_size if config.anchor else 0)
        if order == "first":
            images = FIRST * max(views, outer)
        else:
            images = (SECOND * views * config.inner_steps + FIRST * outer) * (RECOMPUTED if recompute else 1)
    stack = stack_size(model, tasks, 3 * task_size, size)
    threads = count_threads(model, -(-tasks // stack))
    value = 2 if model.precision == "bfloat16" else model.dtype.itemsize
    return threads * stack * images * model.backbone.kept(size) * value


def check_step_memory(model: MT3Model, config: Config, size: int, recompute: bool) -> None:
    """Refuse a step that does not fit into the memory of the model's device, and say what would."""
    there = device_memory(model.device)

    def needs(task_size: int = config.task_size, order: str = config.order, again: bool = recompute) -> float:
        return step_memory(model, config, size, task_size, order, again)

    if needs() <= there:
        return
    fewer = next((k for k in range(config.task_size - 1, 0, -1) if needs(k) <= there), None)
    ways = [] if fewer is None else [f"--task-size {fewer}"]
    if config.training == "meta" and config.order == "second":
        ways += ["--order first"] if needs(order="first") <= there else []
        ways += ["--recompute"] if needs(again=True) <= there else []
    advice = f"give {' or '.join(ways)}" if ways else "take a smaller network or smaller images"
    raise InputError(
        f"A step of this training takes about {needs() / 2**30:.1f} GB of memory, and "
        f"{there / 2**30:.1f} GB are free; {advice}."
    )


def device_memory(device: torch.device) -> float:
    """Bytes of memory that are free for each rank on this machine, as far as the device says so."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return free_memory() / ranks.neighbours() if device.type == "cpu" else float("inf")


def _views_per_image(model: MT3Model) -> int:
    """How many views of an image a task has; one image is asked for."""
    if model.objective is None:
        return 0
    image = torch.zeros(1, 3, 16, 16)
    _, views = model.objective.train_views(image, image, lambda batch: batch, torch.Generator().manual_seed(0))
    return len(views.images)
