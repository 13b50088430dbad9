"""Activation checkpointing: activations inside a part are not kept for the gradient, but computed again."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def recomputed(part: Callable[[Tensor], Any], x: Tensor) -> Any:
    """`part(x)`; of what lies inside it only x is kept. Twice differentiable, and the gradients are the same."""
    return checkpoint(part, x, use_reentrant=False, preserve_rng_state=False) if torch.is_grad_enabled() else part(x)


def set_recompute(model: nn.Module, on: bool) -> None:
    """Let a model's parts that can compute their activations again do so, or not."""
    for module in model.modules():
        if hasattr(module, "recompute"):
            module.recompute = on
