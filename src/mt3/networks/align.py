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

AGAIN = "/"  # between a norm's name and the number of its call, from the second on

Moments = dict[str, Tensor]  # by the name of a norm: (2, C), of each channel behind it the mean and the mean square
MIX = "/mix"  # in a file and a state, beside them; no norm has this name


class Source(NamedTuple):
    """What plus goes back to: the moments on training images, by the classes that the model answers."""

    moments: dict[str, Tensor]  # by the name of a norm: (classes, 2, C)
    mix: Tensor  # (classes,) the share of each among the answers; one of 1 where classes are not kept apart

    def wanted(self, mix: Tensor) -> Moments:
        """The moments of images that are answered in this mix."""
        return {name: (mix.to(t) @ t.flatten(1)).view(t.shape[1:]) for name, t in self.moments.items()}

    def tensors(self) -> dict[str, Tensor]:
        return self.moments | {MIX: self.mix}

    def to(self, device: torch.device) -> "Source":
        return Source({name: t.to(device) for name, t in self.moments.items()}, self.mix.to(device))


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
    exact = values if values.dtype == scale.dtype else values.to(scale.dtype)
    return torch.addcmul((wanted - mean * scale).view(shape), exact, scale.view(shape)).to(values.dtype)


def fits(model: nn.Module, given: Source) -> bool:
    """Whether these can be moments behind the norms of this network."""
    norms = {name: part for name, part in model.named_modules() if _axis(part) is not None}
    known = ((norms.get(name.partition(AGAIN)[0]), tuple(t.shape)) for name, t in given.moments.items())
    return all(part is not None and shape[1:] == (2, len(part.weight)) for part, shape in known)


def watched(model: Module, see: Callable[[str, Tensor, int], Tensor]) -> Module:
    """A twin of the model, for one pass, in which `see(name, values, axis)` has the last word on what each norm gives.

    A norm that is used again in the pass has another name there.
    """
    twin = bind(model, {})
    for name, part in twin.named_modules():
        axis = _axis(part)
        if axis is not None:
            part.__dict__["_forward_hooks"] = part._forward_hooks.copy()  # the twin's own, not shared with the model
            part.register_forward_hook(_Seen(name, axis, see))
    return twin


class _Seen:
    """A hook that counts the calls of its norm."""

    def __init__(self, name: str, axis: int, see: Callable[[str, Tensor, int], Tensor]) -> None:
        self.name, self.axis, self.see, self.calls = name, axis, see, 0

    def __call__(self, norm: nn.Module, given: tuple[Tensor, ...], values: Tensor) -> Tensor:
        self.calls += 1
        name = self.name if self.calls == 1 else f"{self.name}{AGAIN}{self.calls}"
        return self.see(name, values, self.axis)


def _axis(part: nn.Module) -> int | None:
    """Along which axis a norm's channels lie; none for what is no norm, or has no weight for each channel."""
    if isinstance(part, nn.GroupNorm | BATCH_NORM) and part.affine:
        return 1
    if not isinstance(part, nn.LayerNorm) or not part.elementwise_affine or len(part.normalized_shape) > 1:
        return None
    return 1 if type(part).forward is not nn.LayerNorm.forward and _takes_images(part) else -1


def _takes_images(part: nn.LayerNorm) -> bool:
    """Whether a norm that calls itself a layer norm takes channels first, as in networks of convolutions."""
    channels = part.normalized_shape[0]
    try:
        with torch.no_grad():
            part(part.weight.new_zeros(1, channels, channels + 1, channels + 2))
    except RuntimeError:
        return False
    return True
