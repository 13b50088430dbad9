"""The three losses over a task: cross-entropy, joint, meta."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mt3.adaptation.recompute import recomputed
from mt3.adaptation.step import Inner, inner_loop
from mt3.config.config import Config
from mt3.models.call import Params, call, parameters_of, stack_params
from mt3.models.classifier import MT3Model
from mt3.objectives.objective import Objective, Outputs
from mt3.training.state import State
from mt3.training.tasks import Task


class Loss(NamedTuple):
    """What one task adds to the outer loss, and what is worth logging of it."""

    total: Tensor
    metrics: dict[str, Tensor]


def ce_loss(state: State, task: Task, config: Config, log: bool) -> Loss:
    """Cross-entropy alone."""
    logits = call(state.model, parameters_of(state.model), task.images, heads=False).logits
    loss = _cross_entropy(logits, task.labels, config)
    return Loss(loss, {"ce": loss, "accuracy_before": _accuracy(logits, task.labels)})


def joint_loss(state: State, task: Task, config: Config, log: bool) -> Loss:
    """Cross-entropy plus gamma times the self-supervised loss; targets come from the moving average."""
    assert task.views is not None
    target, objective = None, _objective(state.model)
    if state.ema is not None:
        with torch.no_grad():
            target = objective.target(call(state.model, state.ema, task.views.images))
    logits, outputs = _pass(state.model, parameters_of(state.model), task)
    metrics = {"ce": _cross_entropy(logits, task.labels, config)}
    metrics["selfsup"] = objective.loss(outputs, task.views, target).mean()
    total = metrics["ce"] + config.gamma * metrics["selfsup"]
    return Loss(total, metrics | {"accuracy_before": _accuracy(logits, task.labels)})


def meta_loss(state: State, task: Task, config: Config, log: bool) -> Loss:
    """The joint loss after the inner loop, differentiable through it; of a stack of tasks, their mean."""
    assert task.views is not None
    model, inner = state.model, _adapt(state, task, config)
    if config.gamma:
        logits, outputs = _pass(model, inner.params, task)
        # the authors' code takes the targets of this term from the adapted model
        target = _objective(model).target(outputs if config.variant == "official" else inner.outputs)
        metrics = {"ce": _cross_entropy(logits, task.labels, config)}
        metrics["selfsup"] = _objective(model).loss(outputs, task.views, target).mean()
        total = metrics["ce"] + config.gamma * metrics["selfsup"]
    else:  # no second pass over the views
        logits = call(model, inner.params, task.images, heads=False).logits
        total = _cross_entropy(logits, task.labels, config)
        metrics = {"ce": total}
    metrics |= {"inner_loss": inner.loss.mean(), "inner_grad_norm": inner.grad_norm.mean()}
    metrics["accuracy_after"] = _accuracy(logits, task.labels)
    if log or config.anchor:
        with torch.set_grad_enabled(bool(config.anchor)):
            images = task.images.flatten(0, -4)
            before = call(model, parameters_of(model), images, heads=False).logits.view_as(logits)
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


def _adapt(state: State, task: Task, config: Config) -> Inner:
    """The inner loop on a task's views, or on those of a stack of tasks."""
    views, theta, source = task.views, parameters_of(state.model), state.ema
    assert views is not None
    if task.labels.dim() == 2:
        theta = stack_params(theta, len(task.labels))
        source = None if source is None else stack_params(source, len(task.labels))
    # the authors' targets inside are those of the step before, unless the moving average is asked for
    second, previous = config.order == "second", config.variant == "official" and source is None

    def loop(params: Params, second_order: bool) -> Inner:
        return inner_loop(state.model, params, lambda step: views, config.inner, second_order, source, previous)

    return recomputed(loop, theta) if second and state.recompute else loop(theta, second)


def _pass(model: MT3Model, params: Params, task: Task) -> tuple[Tensor, Outputs]:
    """The logits of x and all outputs for its views, from one pass over both."""
    assert task.views is not None
    if _objective(model).shows_images:
        outputs = call(model, params, task.views.images)
        return outputs.logits[..., : task.labels.shape[-1], :], outputs
    k = task.labels.shape[-1]
    logits, heads = call(model, params, torch.cat([task.images, task.views.images], dim=-4))
    return logits[..., :k, :], Outputs(logits[..., k:, :], {name: t[..., k:, :] for name, t in heads.items()})


def _objective(model: MT3Model) -> Objective:
    assert model.objective is not None
    return model.objective


def _cross_entropy(logits: Tensor, labels: Tensor, config: Config) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=config.smoothing)


def _accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.detach().argmax(-1) == labels).float().mean()
