"""The only place where a network meets other parameters than its own.

`call` never changes the model, so any number of threads may call one. It has two ways for stacked parameters (S, ...):
our own layers compute the whole stack at once; any other network is called for one member after the other. Whatever
mode the model is in, it is called as in `eval()`: dropout is off, statistics of batch normalisation are frozen.
"""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from mt3.models.classifier import MT3Model
from mt3.networks.attention import PLAIN_ATTENTION
from mt3.networks.bind import bind
from mt3.objectives.objective import Outputs

Params = dict[str, Tensor]


def parameters_of(model: nn.Module) -> Params:
    """The model's own parameters, theta."""
    return dict(model.named_parameters())


def call(model: MT3Model, params: Mapping[str, Tensor], images: Tensor, heads: bool = True) -> Outputs:
    """The outputs of the model with these parameters in place of its own; without `heads` the logits alone.

    Images are (N, 3, H, H); with stacked parameters (S, N, 3, H, H), and the outputs are stacked, too.
    """
    if images.dim() == 4:
        with PLAIN_ATTENTION if torch.is_grad_enabled() and not model.stacks else nullcontext():
            return bind(model, params).outputs(images, heads)
    if model.stacks:
        return bind(model, params).outputs(images.transpose(0, 1).flatten(1, 2), heads)  # (N, S 3, H, H)
    members = [call(model, {n: p[i] for n, p in params.items()}, part, heads) for i, part in enumerate(images)]
    found = {name: torch.stack([m.heads[name] for m in members]) for name in members[0].heads}
    return Outputs(torch.stack([m.logits for m in members]), found)


def stack_params(params: Params, count: int) -> Params:
    """The same parameters `count` times, as a stack; no copy."""
    return {name: p.expand(count, *p.shape) for name, p in params.items()}
