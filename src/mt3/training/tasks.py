"""Tasks: images of the training set, cropped, under the shift B, with their views."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mt3.config.config import Config
from mt3.data.dataset import Images
from mt3.objectives.augment import apply_shift, as_float, crop_and_flip, draw_shift, seeded_generator
from mt3.objectives.objective import Views, stack_views
from mt3.objectives.registry import get_objective

HELD = 2**28  # bytes of images that are kept on the device; of more, each task's are moved there


class Task(NamedTuple):
    """A batch of images that share one draw of B, with their views for the objective; or a stack of such."""

    images: Tensor  # x, (K, 3, H, H), or (S, K, 3, H, H)
    labels: Tensor  # y, (K,)
    views: Views | None


class _Shift:
    """B for the images of a task and their views: one draw for all or, with `shift_group`, for so many images."""

    def __init__(self, config: Config, images: int, generator: torch.Generator) -> None:
        self.config, self.images, self.generator = config, images, generator

    def __call__(self, batch: Tensor) -> Tensor:
        """Rows are the images, then views of each of them, in the same order."""
        if not self.config.batch_aug:
            return batch
        size = self.config.shift_group or self.images
        image = torch.arange(len(batch), device=batch.device) % self.images  # that a row shows
        shifted = torch.empty_like(batch)
        for group in range(self.images // size):
            rows = (image // size == group).nonzero()[:, 0]
            shift = draw_shift(self.generator, vertical_flip=self.config.variant == "official")
            shifted[rows] = apply_shift(batch[rows], shift, self.generator)
        return shifted


def draw_task(images: Tensor, labels: Tensor, config: Config, generator: torch.Generator) -> Task:
    """Augment the raw images (K, 3, H, H) of one task: x is cropped, its views are the objective's, B is on all."""
    raw = as_float(images)
    x = crop_and_flip(raw, generator, config.pad, config.flip)
    shift = _Shift(config, len(raw), generator)
    if config.objective is None or config.training == "ce":
        return Task(shift(x), labels, None)
    x, views = get_objective(config.objective, config.variant).train_views(raw, x, shift, generator)
    return Task(x, labels, views)


def images_per_task(config: Config) -> int:
    """How many different images a task is made of."""
    return config.task_images or config.task_size


def hold_images(images: Images, device: torch.device) -> Tensor | Images:
    """A training set for `draw_step_task`: (N, 3, H, H) on the device or, if it is large, as it is."""
    if images.nbytes > HELD:
        return images
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).to(device)


def _take(images: Tensor | Images, rows: Tensor) -> Tensor:
    """Some of the images; of a mapped file only these are read."""
    if isinstance(images, Tensor):
        return images[rows.to(images.device)]
    return torch.from_numpy(images[rows.numpy()]).permute(0, 3, 1, 2).contiguous()  # to (K, 3, H, H)


def draw_step_task(images: Tensor | Images, labels: Tensor, config: Config, step: int, number: int) -> Task:
    """Task `number` of a step, where the labels are; the images are as `hold_images` gives them.

    It depends on (seed, step, number) alone, so any thread or process can draw it.
    """
    size = images_per_task(config)
    epoch, position = divmod(step, len(images) // (config.tasks * size))
    order = _epoch_order(len(images), config.seed, epoch)
    start = (position * config.tasks + number) * size
    rows = order[start : start + size].repeat(config.task_size // size)
    raw, named = _take(images, rows).to(labels.device), labels[rows.to(labels.device)]
    return draw_task(raw, named, config, seeded_generator("task", config.seed, step, number))


@lru_cache(maxsize=1)  # only the current epoch's is needed
def _epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=seeded_generator("order", seed, epoch))


def part_of(task: Task, rank: int, world: int) -> Task:
    """One rank's images of a batch, every `world`-th, with their views, which come in the images' order."""
    count = len(task.labels)

    def mine(rows: Tensor) -> Tensor:
        return rows[torch.arange(len(rows), device=rows.device) % count % world == rank]

    if world == 1:
        return task
    views = None if task.views is None else Views(*(None if rows is None else mine(rows) for rows in task.views))  # type: ignore[arg-type]
    return Task(mine(task.images), mine(task.labels), views)


def stack_tasks(tasks: Sequence[Task]) -> Task:
    """Tasks of equal size as one stack; a single one stays as it is."""
    if len(tasks) == 1:
        return tasks[0]
    views = stack_views([task.views for task in tasks if task.views is not None])
    return Task(torch.stack([task.images for task in tasks]), torch.stack([task.labels for task in tasks]), views)
