"""Channels that keep the mean and deviation they had in training: one pass, no gradient, any network with norms.

Under a corruption the values behind a network's norms shift and shrink, channel by channel. Batch normalisation can
take its statistics anew from the test images (Schneider et al., 2020); group and layer norms have none. Here every
channel behind a norm is given back the mean and deviation that it has on training images. So the norm's affine map
changes: with mean m and deviation s in training, m' and s' now, its weight becomes w s/s', its bias (b - m') s/s' + m.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mt3.networks.bind import bind
from mt3.networks.norms import BATCH_NORM
from mt3.support.errors import InputError

EPSILON = 1e-5  # beside a variance, as PyTorch's norms have
AT_ONCE = 100  # training images in a pass

Moments = dict[str, Tensor]  # by the name of a norm: (2, C), of each channel behind it the mean and the mean square


def source_moments(model: nn.Module, images: Tensor, ask: Callable[[nn.Module, Tensor], Tensor]) -> Moments:
    """The moments behind every norm on training images (N, 3, H, W); `ask` calls a network with some of them."""
    total: Moments = {}

    def add(name: str, values: Tensor, axis: int) -> Tensor:
        share = moments(values, axis) * (len(part) / len(images))
        total[name] = total[name] + share if name in total else share
        return values

    for part in torch.split(images, AT_ONCE):
        ask(_watched(model, add), part)
    if not total:
        raise InputError("The network has no norm with weights (batch, group or layer norm) behind which to align.")
    return total


def align(
    model: nn.Module, ask: Callable[[nn.Module], Tensor], source: Moments, now: Mapping[str, Tensor], rate: float
) -> tuple[Tensor, Moments]:
    """What `ask` gets from the aligned network, and the moments after it.

    `now` are the moments so far, at first none: then they are the source's. Those of the images that `ask` calls the
    network with count by `rate`, in the same pass, norm after norm, so that each sees what is aligned before it.
    """
    after = dict(source) | dict(now)

    def move(name: str, values: Tensor, axis: int) -> Tensor:
        found = torch.lerp(after[name], moments(values, axis), rate)
        after[name] = torch.where(found.isfinite().all(), found, after[name])
        return _matched(values, after[name], source[name], axis)

    return ask(_watched(model, move)), after


def moments(values: Tensor, axis: int) -> Tensor:
    """The mean and the mean square (2, C) of the channels, which lie along the axis; in float32 at least."""
    exact = values.float() if values.dtype.itemsize < 4 else values
    rest = [other for other in range(values.dim()) if other != axis % values.dim()]
    return torch.stack([exact.mean(rest), exact.square().mean(rest)])


def _matched(values: Tensor, now: Tensor, source: Tensor, axis: int) -> Tensor:
    shape = [1] * values.dim()
    shape[axis] = -1
    (mean, square), (wanted, wanted_square) = now, source
    deviation = ((wanted_square - wanted**2).clamp(min=0) + EPSILON).sqrt()
    scale = deviation / ((square - mean**2).clamp(min=0) + EPSILON).sqrt()
    matched: Tensor = (values - mean.view(shape)) * scale.view(shape) + wanted.view(shape)
    return matched.to(values.dtype)


def _watched(model: nn.Module, see: Callable[[str, Tensor, int], Tensor]) -> nn.Module:
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
