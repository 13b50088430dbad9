"""The inner step: a gradient step on an objective that needs no labels, shared by meta-training and testing."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mt3.config.adaptation import Adaptation
from mt3.models.call import Params, call
from mt3.models.classifier import MT3Model
from mt3.objectives.objective import Outputs, Views


def clip_gradients(
    gradients: Sequence[Tensor], norm: float | None, each: bool = False, stacked: bool = False
) -> tuple[list[Tensor], Tensor]:
    """Scale gradients down to the norm: one norm for all of them, or `each` its own.

    Differentiable through the scale factor. Returns the gradients and their global norm before clipping; for stacked
    gradients (S, ...) the S members are clipped one by one, and the norms are (S,).
    """
    lead = 1 if stacked else 0
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(lead), dim=-1) for g in gradients])
    total = torch.linalg.vector_norm(norms, dim=0)
    if norm is None:
        return list(gradients), total
    scales = norm / (norms if each else total.expand_as(norms)).clamp(min=norm)
    # a scale, or one for each member of a stack, in a shape that multiplies the gradient
    shaped = [s.view(*s.shape, *[1] * (g.dim() - s.dim())) for g, s in zip(gradients, scales, strict=True)]
    return [g * s for g, s in zip(gradients, shaped, strict=True)], total


def inner_step(
    loss: Tensor, params: Params, names: Sequence[str], adaptation: Adaptation, second_order: bool = False
) -> tuple[Params, Tensor]:
    """One gradient step on the self-supervised loss: phi <- phi - alpha * clip(grad).

    Returns the new parameters, of which only those in `names` differ, and the gradient's norm. With `second_order` the
    step stays differentiable, so that the meta-gradient is exact. Losses (S,) of stacked parameters give each member
    its own step.
    """
    adapted = [params[name] for name in names]
    # weights that a network of any kind does not use have a gradient of 0
    gradients = torch.autograd.grad(loss.sum(), adapted, create_graph=second_order, materialize_grads=True)
    clipped, norm = clip_gradients(gradients, adaptation.clip, adaptation.clip_each, stacked=loss.dim() == 1)
    lr = adaptation.lr
    return params | {name: params[name] - lr * g for name, g in zip(names, clipped, strict=True)}, norm


class Inner(NamedTuple):
    """What the inner loop gives."""

    params: Params  # phi
    loss: Tensor  # self-supervised, before the first step
    grad_norm: Tensor  # of the first step, before clipping
    outputs: Outputs  # of the meta-model for the first views


def inner_loop(
    model: MT3Model,
    theta: Params,
    draw: Callable[[int], Views],
    adaptation: Adaptation,
    second_order: bool = False,
    source: Params | None = None,
    previous: bool = False,
) -> Inner:
    """Adapt theta in the adaptation's steps; with stacked parameters and views, every member has its own steps.

    `draw(step)` gives the views of a step; the same ones again are recognised. Targets come from the meta-model, from
    the parameters of `source` or, with `previous`, from those that a step starts from; they never carry a gradient.
    """
    objective = model.objective
    assert objective is not None
    names = model.adapted_names(adaptation.layers)
    phi, target = theta, None
    views: Views | None = None
    first: tuple[Tensor, Tensor, Outputs] | None = None
    for step in range(max(adaptation.steps, 1)):
        before, views = views, draw(step)
        outputs = call(model, phi, views.images)
        if previous or (step == 0 and source is None):  # phi gives the targets as well: one pass serves both
            target = objective.target(outputs)
        elif objective.has_target and views is not before:
            with torch.no_grad():
                target = objective.target(call(model, theta if source is None else source, views.images))
        loss = objective.loss(outputs, views, target)
        stepped, norm = inner_step(loss, phi, names, adaptation, second_order)
        if first is None:
            first = (loss.detach(), norm.detach(), outputs)
        if adaptation.steps:
            phi = stepped
    assert first is not None
    return Inner(phi, *first)
