"""The self-supervised losses: what is minimised without labels."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mt3.objectives.augment import apply_views, crop_and_flip, draw_views, rotate

ROTATION_PAD = 4  # pixels, Sun et al.'s standard augmentation
COPY_PAD = 2  # pixels, as x in training


class Outputs(NamedTuple):
    """What one forward pass gives; a head that the model does not have gives None."""

    logits: Tensor  # (N, classes), before the softmax
    projection: Tensor | None  # z, (N, 128)
    prediction: Tensor | None  # r, (N, 128)
    rotation: Tensor | None  # (N, 4)


class Views(NamedTuple):
    """Images for the self-supervised loss: all a then all a-tilde for byol, turned copies for rotation."""

    images: Tensor  # (N, 3, 32, 32), or a stack of such
    quarters: Tensor | None = None  # the rotations to be recognised, in quarter turns


def stack_views(views: Sequence[Views]) -> Views:
    """Views of several tasks as one stack."""
    quarters = None if views[0].quarters is None else torch.stack([v.quarters for v in views if v.quarters is not None])
    return Views(torch.stack([v.images for v in views]), quarters)


def byol_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean over the K pairs of L(r, z~) + L(r~, z), with L(a, b) = 2 - 2 cos(a, b).

    Rows are a_1..a_K, a~_1..a~_K in both arguments; each prediction meets the other view's projection. The caller
    stops the gradient of the target. A stack of rows gives a loss for each of its members.
    """
    a, a_tilde = target.chunk(2, dim=-2)
    cosine = (F.normalize(prediction, dim=-1) * F.normalize(torch.cat([a_tilde, a], dim=-2), dim=-1)).sum(-1)
    return 2 * (2 - 2 * cosine).mean(-1)


def rotation_loss(logits: Tensor, quarters: Tensor) -> Tensor:
    """Cross-entropy of recognising by how many quarter turns each image was rotated; one for each of a stack."""
    each = F.cross_entropy(logits.flatten(0, -2), quarters.flatten(), reduction="none")
    return each.view(quarters.shape).mean(-1)


def selfsup_loss(outputs: Outputs, views: Views, target: Tensor | None) -> Tensor:
    """The loss of the model's task; `target` are the projections that byol compares with."""
    if views.quarters is not None:
        assert outputs.rotation is not None
        return rotation_loss(outputs.rotation, views.quarters)
    assert outputs.prediction is not None
    assert target is not None
    return byol_loss(outputs.prediction, target)


def draw_test_views(
    image: Tensor, task: str, count: int, generator: torch.Generator, crop_max: int
) -> tuple[Views, Tensor]:
    """Views of one image (3, H, W) for adapting, and the same views upright for the view-averaged prediction."""
    if task == "rotation":
        copies = image.expand(count, -1, -1, -1)
        upright = crop_and_flip(copies, generator, ROTATION_PAD, flip=True)
        quarters = torch.randint(4, (count,), generator=generator, device=generator.device).to(image.device)
        return Views(rotate(upright, quarters), quarters), upright
    views = apply_views(image.expand(2 * count, -1, -1, -1), draw_views(2 * count, generator), crop_max)
    return Views(views), views


def draw_copies(image: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The image (3, H, W) itself and `count` slightly shifted or mirrored copies, (1 + count, 3, H, W)."""
    copies = crop_and_flip(image.expand(count, -1, -1, -1), generator, COPY_PAD, flip=True)
    return torch.cat([image[None], copies])
