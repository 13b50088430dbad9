"""Activation checkpointing: activations inside a part are not kept for the gradient, but computed again."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mt3.networks.attention import plain_attention


def recomputed(part: Callable[[Tensor], Any], x: Tensor) -> Any:
    """`part(x)`; of what lies inside it only x is kept. Twice differentiable, and the gradients are the same."""
    if not torch.is_grad_enabled():
        return part(x)
    return checkpoint(part, x, use_reentrant=False, preserve_rng_state=False, context_fn=_contexts)


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Around the first pass and around the one again, which has to compute attention as `call` did."""
    return nullcontext(), plain_attention()


def set_recompute(model: nn.Module, on: bool) -> None:
    """Let a model's parts that can compute their activations again do so, or not."""
    for module in model.modules():
        if isinstance(getattr(module, "recompute", None), bool):
            module.__dict__["recompute"] = on
