"""The inner loop once more instead of its graph: less memory for an exact meta-gradient, at the price of time.

The graph of the inner steps is made only when the outer loss has been differentiated and its own graph is gone. So the
two are never in memory together; the inner steps are computed twice.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from mt3.adaptation.step import Inner
from mt3.models.call import Params

Loop = Callable[[Params, bool], Inner]  # theta, and whether the steps are to stay differentiable


def recomputed(loop: Loop, theta: Params) -> Inner:
    """`loop(theta, True)`; its gradient is the same to rounding."""
    names = tuple(theta)
    held: list[Inner] = []
    phi = _Recomputed.apply(loop, names, held, *theta.values())  # type: ignore[no-untyped-call]
    return held[0]._replace(params=dict(zip(names, phi, strict=True)))


class _Recomputed(Function):
    @staticmethod
    def forward(ctx: Any, loop: Loop, names: tuple[str, ...], held: list[Inner], *theta: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*theta)
        ctx.loop, ctx.names = loop, names
        with torch.enable_grad():
            inner = loop(_leaves(names, theta), False)
        outputs = inner.outputs._replace(
            logits=inner.outputs.logits.detach(), heads={n: t.detach() for n, t in inner.outputs.heads.items()}
        )
        held.append(inner._replace(outputs=outputs))
        return tuple(inner.params[name].detach() for name in names)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        theta = _leaves(ctx.names, ctx.saved_tensors)
        with torch.enable_grad():
            phi = ctx.loop(theta, True).params
        outputs = [phi[name] for name in ctx.names]
        found = torch.autograd.grad(outputs, list(theta.values()), gradients, allow_unused=True)
        return None, None, None, *found


def _leaves(names: tuple[str, ...], theta: tuple[Tensor, ...]) -> Params:
    return {name: p.detach().requires_grad_() for name, p in zip(names, theta, strict=True)}
