"""Twice the filters, the same answers: a trained ResNet as the start of a wider one (Net2Net, Chen et al., 2016)."""

import torch
from torch import Tensor

LEAST_GROUPS = (
    8  # of the narrow network's norms: with fewer, a group of the last stage is longer than the padding of the first
)


def widen_weights(weights: dict[str, Tensor], width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The weights of our ResNet of `width`, under its own names, for one of twice the width with the same features.

    Every channel is there twice. A filter that reads a pair of copies has half the old weight for each, plus and minus
    a random difference: the sum is as before, but the copies' gradients differ, so that training tells them apart.
    """
    maps = channel_maps(width)
    wide = {}
    for name, tensor in weights.items():
        rows = tensor[maps[len(tensor)]]
        wide[name] = widen_inputs(rows, width, generator) if tensor.dim() > 1 else rows
    return wide


def widen_inputs(weight: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """The weights of a layer that reads twice the channels; a layer that reads the image stays as it is."""
    maps = channel_maps(width)
    if weight.shape[1] not in maps:
        return weight
    chosen = maps[weight.shape[1]]
    second = torch.zeros(len(chosen), dtype=torch.bool)
    seen: set[int] = set()
    for place, channel in enumerate(chosen.tolist()):
        second[place] = channel in seen
        seen.add(channel)
    drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    apart = drawn * (weight.std() / 2)  # so long that a filter keeps its length, by which a norm scales its gradient
    sign = torch.where(second, -1.0, 1.0).view(-1, *(1,) * (weight.dim() - 2))
    return weight[:, chosen] / 2 + sign * apart[:, chosen]


def channel_maps(width: int) -> dict[int, Tensor]:
    """For each stage's number of channels: which narrow channel every wide one is a copy of.

    The shortcut from one stage to the next adds zero channels, half on each side; so the copies of the inner channels
    stand inside again. Groups of the norms stay whole where there are at least 8, as from width 16 on.
    """
    chosen = torch.arange(width).repeat(2)
    maps = {width: chosen}
    for channels in (width, 2 * width):
        half = channels // 2
        outer = torch.cat([torch.arange(half), torch.arange(channels + half, 2 * channels)])
        chosen = torch.cat([outer, half + chosen, outer])
        maps[2 * channels] = chosen
    return maps
