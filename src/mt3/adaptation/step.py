"""The inner step: a gradient step on an objective that needs no labels, shared by meta-training and testing."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mt3.config.adaptation import Adaptation
from mt3.models.call import Network, Params, call, call_together
from mt3.objectives.objective import Outputs, Views
from mt3.objectives.registry import get_objective

TINY = 1e-12  # keeps a gradient of 0 from being divided by 0
VELOCITY = "velocity/"  # before the name of a parameter: the momentum that goes along with it


def clip_gradients(
    gradients: Sequence[Tensor], norm: float | None, each: bool = False, stacked: bool = False
) -> tuple[list[Tensor], Tensor]:
    """Scale gradients down to the norm: one norm for all of them, or `each` its own.

    Differentiable through the scale factor. Returns the gradients and their global norm before clipping; for stacked
    gradients (S, ...) the S members are clipped one by one, and the norms are (S,).
    """
    lead = 1 if stacked else 0
    norms = torch.stack([torch.linalg.vector_norm(g.reshape(*g.shape[:lead], -1), dim=-1) for g in gradients])
    total = torch.linalg.vector_norm(norms, dim=0)
    if norm is None:
        return list(gradients), total
    scales = norm / (norms if each else total.expand_as(norms)).clamp(min=norm)
    return _scaled(gradients, scales), total


def _scaled(gradients: Sequence[Tensor], scales: Sequence[Tensor] | Tensor) -> list[Tensor]:
    """Each gradient times its scale or, in a stack, times one for each member."""
    shaped = [s.view(*s.shape, *[1] * (g.dim() - s.dim())) for g, s in zip(gradients, scales, strict=True)]
    return [g * s for g, s in zip(gradients, shaped, strict=True)]


def inner_step(
    loss: Tensor, params: Params, names: Sequence[str], adaptation: Adaptation, second_order: bool = False
) -> tuple[Params, Tensor]:
    """One gradient step on the self-supervised loss: phi <- phi - alpha * clip(grad).

    Returns the new parameters, of which only those in `names` differ, and the gradient's norm. With `second_order` the
    step stays differentiable, so that the meta-gradient is exact. Losses (S,) of stacked parameters give each member
    its own step. With momentum the parameters carry their velocities along.
    """
    gradients = _gradients(loss, params, names, second_order)
    clipped, norm = clip_gradients(gradients, adaptation.clip, adaptation.clip_each, stacked=loss.dim() == 1)
    if not adaptation.momentum:
        return _move(params, names, clipped, adaptation.lr), norm
    velocities = [
        adaptation.momentum * params[VELOCITY + name] + g if VELOCITY + name in params else g
        for name, g in zip(names, clipped, strict=True)
    ]
    kept = {VELOCITY + name: v for name, v in zip(names, velocities, strict=True)}
    return _move(params, names, velocities, adaptation.lr) | kept, norm


def climb(loss: Tensor, params: Params, names: Sequence[str], radius: float) -> Params:
    """Parameters `radius` up the slope of the loss, where a sharpness-aware step takes its gradient."""
    gradients = _gradients(loss, params, names)
    _, norm = clip_gradients(gradients, None, stacked=loss.dim() == 1)
    return _move(params, names, _scaled(gradients, [1 / (norm + TINY)] * len(gradients)), -radius)


def _gradients(loss: Tensor, params: Params, names: Sequence[str], second_order: bool = False) -> Sequence[Tensor]:
    # weights that a network of any kind does not use have a gradient of 0
    adapted = [params[name] for name in names]
    return torch.autograd.grad(loss.sum(), adapted, create_graph=second_order, materialize_grads=True)


def _move(params: Params, names: Sequence[str], directions: Sequence[Tensor], lr: float) -> Params:
    return params | {name: params[name] - lr * g for name, g in zip(names, directions, strict=True)}


class Inner(NamedTuple):
    """What the inner loop gives."""

    params: Params  # phi
    loss: Tensor  # self-supervised, before the first step
    grad_norm: Tensor  # of the first step, before clipping
    outputs: Outputs  # of the meta-model for the first views
    last_loss: Tensor  # what the last step took its gradient of


def inner_loop(
    model: Network,
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
    Along a stream the views of several images are a stack, too, but the parameters are one set, and the step is shared.
    """
    assert adaptation.objective is not None
    objective = get_objective(adaptation.objective, adaptation.variant)
    names = model.adapted_names(adaptation.layers, objective)
    shared = adaptation.carry == "stream"

    def ask(params: Params, images: Tensor) -> Outputs:
        if shared:
            return call_together(model, params, images, adaptation.statistics)
        return call(model, params, images, statistics=adaptation.statistics)

    phi, target = theta, None
    views: Views | None = None
    first: tuple[Tensor, Tensor, Outputs] | None = None
    for step in range(max(adaptation.steps, 1)):
        before, views = views, draw(step)
        outputs = ask(phi, views.images)
        # phi gives the targets as well: one pass serves both
        if previous or not objective.has_target or (step == 0 and source is None):
            target = objective.target(outputs)
        elif views is not before:
            with torch.no_grad():
                target = objective.target(ask(theta if source is None else source, views.images))
        each = loss = objective.loss(outputs, views, target)
        if adaptation.radius:
            above = climb(each.nanmean() if shared else each, phi, names, adaptation.radius)
            loss = objective.loss(ask(above, views.images), views, target)
        loss = loss.nanmean() if shared else loss  # images that a loss leaves out have none
        stepped, norm = inner_step(loss, phi, names, adaptation, second_order)
        if first is None:
            first = (each.detach(), norm.detach(), outputs)
        if adaptation.steps and (not shared or loss.isfinite()):  # a stream does not carry on what is not a number
            phi = stepped
    assert first is not None
    return Inner(phi, *first, loss.detach())
