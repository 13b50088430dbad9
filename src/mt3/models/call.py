"""The only place where a network meets other parameters than its own.

`call` never changes the model, so any number of threads may call one. It has two ways for stacked parameters (S, ...):
our own layers compute the whole stack at once; any other network is called for one member after the other. Whatever
mode the model is in, it is called as in `eval()`: dropout is off, and statistics of batch normalisation are frozen
unless `statistics` says which share of them a batch gives itself.
"""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from mt3.models.classifier import MT3Model
from mt3.models.plain import Plain
from mt3.networks.attention import PLAIN_ATTENTION
from mt3.networks.bind import bind
from mt3.networks.norms import take_batch_statistics
from mt3.objectives.objective import Outputs

Network = MT3Model | Plain
Params = dict[str, Tensor]


def parameters_of(model: nn.Module) -> Params:
    """The model's own parameters, theta."""
    return dict(model.named_parameters())


def call(
    model: Network, params: Mapping[str, Tensor], images: Tensor, heads: bool = True, statistics: float = 0.0
) -> Outputs:
    """The outputs of the model with these parameters in place of its own; without `heads` the logits alone.

    Images are (N, 3, H, H); with stacked parameters (S, N, 3, H, H), and the outputs are stacked, too.
    """
    if images.dim() == 4:
        with PLAIN_ATTENTION if torch.is_grad_enabled() and not model.stacks else nullcontext():
            twin = bind(model, params)
            if statistics:
                take_batch_statistics(twin, statistics)
            return twin.outputs(images, heads)
    if model.stacks:
        return bind(model, params).outputs(images.transpose(0, 1).flatten(1, 2), heads)  # (N, S 3, H, H)
    own = [{name: p[i] for name, p in params.items()} for i in range(len(images))]
    members = [call(model, phi, part, heads, statistics) for phi, part in zip(own, images, strict=True)]
    found = {name: torch.stack([m.heads[name] for m in members]) for name in members[0].heads}
    return Outputs(torch.stack([m.logits for m in members]), found)


def call_together(model: Network, params: Mapping[str, Tensor], images: Tensor, statistics: float = 0.0) -> Outputs:
    """The outputs for a stack of images (S, N, 3, H, H), all by the same parameters, from one pass."""
    outputs = call(model, params, images.flatten(0, 1), statistics=statistics)
    logits, heads = outputs.logits, outputs.heads
    return Outputs(
        logits.view(*images.shape[:2], *logits.shape[1:]),
        {name: t.view(*images.shape[:2], *t.shape[1:]) for name, t in heads.items()},
    )


def stack_params(params: Params, count: int) -> Params:
    """The same parameters `count` times, as a stack; no copy."""
    return {name: p.expand(count, *p.shape) for name, p in params.items()}
