"""Tasks and the three losses over them: cross-entropy, joint, meta."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from mt3.adaptation.adapter import Params, forward, inner_loop, stack_params
from mt3.config.config import Config
from mt3.models.classifier import MT3Model, as_float
from mt3.objectives.augment import apply_shift, crop_and_flip, draw_shift, make_views, rotate, seeded_generator
from mt3.objectives.selfsup import Views, selfsup_loss, stack_views
from mt3.training.runs import images_per_task
from mt3.training.state import State


class Task(NamedTuple):
    """A batch of images that share one draw of B, with their views for the self-supervised loss; or a stack of such."""

    images: Tensor  # x, (K, 3, 32, 32), or (S, K, 3, 32, 32)
    labels: Tensor  # y, (K,)
    views: Views | None


class Loss(NamedTuple):
    """What one task adds to the outer loss, and what is worth logging of it."""

    total: Tensor
    metrics: dict[str, Tensor]


def draw_task(images: Tensor, labels: Tensor, config: Config, generator: torch.Generator) -> Task:
    """Augment the raw images (K, 3, 32, 32) of one task: x is cropped, its views come from A, B is on all of them.

    With `view_images`, only the first so many have views.
    """
    raw = as_float(images)
    x = crop_and_flip(raw, generator, config.pad, config.flip)
    views = [make_views(raw[: config.view_images], generator, config.crop_max)] if config.selfsup == "byol" else []
    batch = torch.cat([x, *views])
    if config.batch_aug:
        batch = _shift_groups(batch, len(raw), config, generator)
    x, rest = batch[: len(raw)], batch[len(raw) :]
    if config.selfsup == "byol":
        return Task(x, labels, Views(rest))
    if config.selfsup == "rotation":  # every image by all four angles, upright first
        quarters = torch.arange(4, device=x.device).repeat_interleave(len(x))
        return Task(x, labels, Views(rotate(x.repeat(4, 1, 1, 1), quarters), quarters))
    return Task(x, labels, None)


def _shift_groups(batch: Tensor, images: int, config: Config, generator: torch.Generator) -> Tensor:
    """Apply B to a task's images and their views, one draw for all or, with `shift_group`, for so many images."""
    size = config.shift_group or images
    views = (len(batch) - images) // 2  # of each kind, of the first so many images
    image = torch.cat([torch.arange(images), *[torch.arange(views)] * 2]).to(batch.device)  # that a row shows
    shifted = torch.empty_like(batch)
    for start in range(0, images, size):
        rows = (image // size == start // size).nonzero()[:, 0]
        shift = draw_shift(generator, config.vertical_flip, config.negative, config.cast)
        shifted[rows] = apply_shift(batch[rows], shift, generator)
    return shifted


def draw_step_task(
    images: Tensor, labels: Tensor, config: Config, step: int, steps_per_epoch: int, number: int
) -> Task:
    """Task `number` of a step; it depends on (seed, step, number) alone, so any thread or process can draw it."""
    epoch, position = divmod(step, steps_per_epoch)
    order = _epoch_order(len(images), config.seed, epoch)
    size = images_per_task(config)
    start = (position * config.tasks + number) * size
    rows = order[start : start + size].repeat(config.task_size // size).to(images.device)
    return draw_task(images[rows], labels[rows], config, seeded_generator("task", config.seed, step, number))


@lru_cache(maxsize=1)  # only the current epoch's is needed
def _epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=seeded_generator("order", seed, epoch))


def stack_tasks(tasks: Sequence[Task]) -> Task:
    """Tasks of equal size as one stack; a single one stays as it is."""
    if len(tasks) == 1:
        return tasks[0]
    views = stack_views([task.views for task in tasks if task.views is not None])
    return Task(torch.stack([task.images for task in tasks]), torch.stack([task.labels for task in tasks]), views)


def _cross_entropy(logits: Tensor, labels: Tensor, config: Config) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=config.smoothing)


def _joint_pass(
    model: MT3Model, params: Params, task: Task, target: Tensor | None, config: Config, own_target: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of x, and the cross-entropy and self-supervised loss, from one pass over x and its views."""
    assert task.views is not None
    k = task.labels.shape[-1]
    rotation = task.views.quarters is not None
    batch = task.views.images if rotation else torch.cat([task.images, task.views.images], dim=-4)
    outputs = forward(model, params, batch)
    logits = outputs.logits[..., :k, :]
    if not rotation:  # the rows of the views
        assert outputs.prediction is not None
        assert outputs.projection is not None
        own = outputs.projection[..., k:, :]
        outputs = outputs._replace(prediction=outputs.prediction[..., k:, :], projection=own)
        target = own.detach() if own_target else target
    ce = _cross_entropy(logits, task.labels, config)
    selfsup = selfsup_loss(outputs, task.views, target).mean()
    return logits, {"ce": ce, "selfsup": selfsup}


def ce_loss(state: State, task: Task, config: Config, log: bool) -> Loss:
    """Cross-entropy alone."""
    logits = state.model(task.images)
    loss = _cross_entropy(logits, task.labels, config)
    return Loss(loss, {"ce": loss, "accuracy_before": _accuracy(logits, task.labels)})


def joint_loss(state: State, task: Task, config: Config, log: bool) -> Loss:
    """Cross-entropy plus gamma times the self-supervised loss; byol's targets come from the moving average."""
    assert task.views is not None
    target = None
    if state.ema is not None:
        with torch.no_grad():
            target = forward(state.model, state.ema, task.views.images).projection
    logits, metrics = _joint_pass(state.model, _theta(state.model), task, target, config)
    total = metrics["ce"] + config.gamma * metrics["selfsup"]
    return Loss(total, metrics | {"accuracy_before": _accuracy(logits, task.labels)})


def meta_loss(state: State, task: Task, config: Config, log: bool) -> Loss:
    """The joint loss after the inner loop, differentiable through it; of a stack of tasks, their mean."""
    assert task.views is not None
    views = task.views
    model, theta, ema = state.model, _theta(state.model), state.ema
    if task.labels.dim() == 2:
        theta = stack_params(theta, len(task.labels))
        ema = None if ema is None else stack_params(ema, len(task.labels))
    inner = inner_loop(
        model,
        theta,
        lambda step: views,
        model.adapted_names(),
        config.inner_steps,
        config.inner_lr,
        config.inner_clip,
        config.clip_mode,
        config.inner_target,
        second_order=config.order == "second",
        ema=ema,
    )
    if config.gamma:
        target = inner.outputs.projection.detach() if inner.outputs.projection is not None else None
        logits, metrics = _joint_pass(model, inner.params, task, target, config, config.outer_target == "adapted")
        total = metrics["ce"] + config.gamma * metrics["selfsup"]
    else:  # no second pass over the views
        logits = functional_call(model, inner.params, (task.images,))
        total = _cross_entropy(logits, task.labels, config)
        metrics = {"ce": total}
    metrics |= {"inner_loss": inner.loss.mean(), "inner_grad_norm": inner.grad_norm.mean()}
    metrics["accuracy_after"] = _accuracy(logits, task.labels)
    if log or config.anchor:
        with torch.set_grad_enabled(bool(config.anchor)):
            before = model(task.images.flatten(0, -4)).view_as(logits)
        metrics["accuracy_before"] = _accuracy(before, task.labels)
    if config.anchor:
        metrics["ce_before"] = _cross_entropy(before, task.labels, config)
        total = total + config.anchor * metrics["ce_before"]
    return Loss(total, metrics)


LOSSES: dict[str, Callable[[State, Task, Config, bool], Loss]] = {
    "ce": ce_loss,
    "joint": joint_loss,
    "meta": meta_loss,
}


def _theta(model: MT3Model) -> Params:
    return dict(model.named_parameters())


def _accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.detach().argmax(-1) == labels).float().mean()
