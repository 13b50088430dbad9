"""Copies as AugMix makes them: a mixture of an image with chains of mild operations on it.

The operations and their strengths are those of MEMO's experiments on CIFAR-10, severity 1 of 10: every draw of a level
is uniform from 0.1 to 1. All images go through every operation at once, and each keeps the one that it drew.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mt3.objectives.augment import DRAWN

CHAINS, LONGEST = 3, 3  # "three chains" of one to three operations
LEVELS = 256  # of a pixel
TURN, SHEAR, SHIFT, SOLAR, BITS = 3.0, 0.03, 1 / 30, 25.6, 4  # at level 1: degrees, slope, share of the side, values
GREY = 128 / 255  # what comes in from outside of the image


def augmix(images: Tensor, generator: torch.Generator) -> Tensor:
    """One mixture for each of the images (N, 3, H, W) in [0, 1]."""
    count = len(images)
    u = torch.rand(count, 1 + CHAINS * (2 + 3 * LONGEST), generator=generator, device=generator.device, dtype=DRAWN)
    u = u.to(images.device)
    own, weights, u = u[:, 0], -(1 - u[:, 1 : 1 + CHAINS]).log(), u[:, 1 + CHAINS :]  # Beta(1, 1), Dirichlet(1, 1, 1)
    weights = (weights / weights.sum(1, keepdim=True)).to(images.dtype)
    u = u.reshape(count * CHAINS, -1)  # of each chain
    length = (u[:, 0] * LONGEST).floor().clamp(max=LONGEST - 1) + 1
    chained = images.repeat_interleave(CHAINS, 0)
    for step in range(LONGEST):
        kind, level, sign = u[:, 1 + 3 * step : 4 + 3 * step].unbind(1)
        changed = _operate(chained, kind, 0.1 + 0.9 * level, torch.where(sign < 0.5, -1.0, 1.0))
        chained = torch.where((step < length).view(-1, 1, 1, 1), changed, chained)
    mixed = (chained.view(count, CHAINS, *images.shape[1:]) * weights.view(count, CHAINS, 1, 1, 1)).sum(1)
    own = own.to(images.dtype).view(-1, 1, 1, 1)
    return (own * images + (1 - own) * mixed).clamp(0.0, 1.0)


def _operate(x: Tensor, kind: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """The operation that each image drew, at its level."""
    signed = level * sign
    choices: list[Callable[[], Tensor]] = [
        lambda: _autocontrast(x),
        lambda: _equalize(x),
        lambda: _solarize(x, level),
        lambda: _posterize(x),
        lambda: _warp(x, turn=signed.mul(TURN).trunc()),
        lambda: _warp(x, shear_x=SHEAR * signed),
        lambda: _warp(x, shear_y=SHEAR * signed),
        lambda: _warp(x, shift_x=_whole_pixels(signed, x)),
        lambda: _warp(x, shift_y=_whole_pixels(signed, x)),
    ]
    number = (kind * len(choices)).floor().clamp(max=len(choices) - 1)
    out = x
    for i, choice in enumerate(choices):
        mine = number == i
        if mine.any():
            out = torch.where(mine.view(-1, 1, 1, 1), choice(), out)
    return out


def _autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel over [0, 1]; a plain one stays."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def _equalize(x: Tensor) -> Tensor:
    """Spread the values of each channel evenly, by the look-up table that Pillow makes of its histogram."""
    values = _as_bytes(x).flatten(2)  # (N, 3, H W)
    counts = torch.zeros(*values.shape[:2], LEVELS, dtype=torch.long, device=x.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    last = LEVELS - 1 - (counts.flip(2) > 0).long().argmax(2, keepdim=True)  # the highest value that occurs
    step = (values.shape[2] - counts.gather(2, last)) // (LEVELS - 1)
    before = counts.cumsum(2) - counts
    table = ((before + step // 2) // step.clamp(min=1)).clamp(max=LEVELS - 1)
    spread = table.gather(2, values).view_as(x).to(x.dtype) / (LEVELS - 1)
    return torch.where((step > 0).unsqueeze(-1), spread, x)


def _solarize(x: Tensor, level: Tensor) -> Tensor:
    """Turn the brightest values into their negatives."""
    threshold = (LEVELS - (SOLAR * level).trunc()).view(-1, 1, 1, 1)
    return torch.where(_as_bytes(x) < threshold, x, 1 - x)


def _posterize(x: Tensor) -> Tensor:
    """Keep the highest bits of each value."""
    step = LEVELS >> BITS
    return (_as_bytes(x) // step * step).to(x.dtype) / (LEVELS - 1)


def _as_bytes(x: Tensor) -> Tensor:
    return (x * (LEVELS - 1)).round().long()


def _whole_pixels(signed: Tensor, x: Tensor) -> Tensor:
    """A shift in units of half the side, by whole pixels."""
    side = x.shape[-1]
    return (signed * (SHIFT * side)).trunc() * 2 / side


def _warp(
    x: Tensor,
    turn: Tensor | None = None,  # degrees
    shear_x: Tensor | None = None,
    shear_y: Tensor | None = None,
    shift_x: Tensor | None = None,
    shift_y: Tensor | None = None,
) -> Tensor:
    """Turn, shear or shift bilinearly; grey comes in from outside."""
    zero = x.new_zeros(len(x))
    angle = zero if turn is None else turn.to(x.dtype) * (math.pi / 180)
    slope_x, slope_y, right, down = (zero if t is None else t.to(x.dtype) for t in (shear_x, shear_y, shift_x, shift_y))
    rows = (angle.cos(), slope_x - angle.sin(), right, slope_y + angle.sin(), angle.cos(), down)
    grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x - GREY, grid, align_corners=False) + GREY
