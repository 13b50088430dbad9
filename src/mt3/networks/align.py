"""Channels that keep the mean and deviation they had in training: one pass, no gradient, any network with norms.

Under a corruption the values behind a network's norms shift and shrink, channel by channel. Batch normalisation can
take its statistics anew from the test images (Schneider et al., 2020); group and layer norms have none. Here every
channel behind a norm is given back the mean and deviation that it has on training images. So the norm's affine map
changes: with mean m and deviation s in training, m' and s' now, its weight becomes w s/s', its bias (b - m') s/s' + m.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mt3.networks.bind import Module, bind
from mt3.networks.norms import BATCH_NORM

EPSILON = 1e-5  # beside a variance, as PyTorch's norms have

Moments = dict[str, Tensor]  # by the name of a norm: (2, C), of each channel behind it the mean and the mean square


def moments(values: Tensor, axis: int) -> Tensor:
    """The mean and the mean square (2, C) of the channels, which lie along the axis; in float32 at least."""
    exact = values.float() if values.dtype.itemsize < 4 else values
    rest = [other for other in range(values.dim()) if other != axis % values.dim()]
    return torch.stack([exact.mean(rest), exact.square().mean(rest)])


def matched(values: Tensor, now: Tensor, source: Tensor, axis: int) -> Tensor:
    """Values whose moments are `now`, shifted and scaled so that they would be the source's."""
    shape = [1] * values.dim()
    shape[axis] = -1
    (mean, square), (wanted, wanted_square) = now, source
    deviation = ((wanted_square - wanted**2).clamp(min=0) + EPSILON).sqrt()
    scale = deviation / ((square - mean**2).clamp(min=0) + EPSILON).sqrt()
    matched: Tensor = (values - mean.view(shape)) * scale.view(shape) + wanted.view(shape)
    return matched.to(values.dtype)


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Of the moments behind each norm."""
    return {name: (2, part.weight.shape[-1]) for name, part in model.named_modules() if _axis(part) is not None}


def watched(model: Module, see: Callable[[str, Tensor, int], Tensor]) -> Module:
    """A twin of the model in which `see(name, values, axis)` has the last word on what each norm gives."""
    twin = bind(model, {})
    for name, part in twin.named_modules():
        axis = _axis(part)
        if axis is not None:
            part.__dict__["_forward_hooks"] = part._forward_hooks.copy()  # the twin's own, not shared with the model
            part.register_forward_hook(_Seen(name, axis, see))
    return twin


class _Seen(NamedTuple):
    name: str
    axis: int
    see: Callable[[str, Tensor, int], Tensor]

    def __call__(self, norm: nn.Module, given: tuple[Tensor, ...], values: Tensor) -> Tensor:
        return self.see(self.name, values, self.axis)


def _axis(part: nn.Module) -> int | None:
    """Along which axis a norm's channels lie; none for what is no norm, or has no weights."""
    if isinstance(part, nn.GroupNorm | BATCH_NORM) and part.affine:
        return 1
    last = isinstance(part, nn.LayerNorm) and part.elementwise_affine and len(part.normalized_shape) == 1
    return -1 if last else None
