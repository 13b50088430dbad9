"""Entropies of the answers: they need no heads, so they adapt any classifier.

The mean over the images (TENT), over those of which the model is sure enough (SAR), and of the mean answer to copies of
one image (MEMO).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mt3.networks.backbone import Backbone
from mt3.objectives.augment import crop_and_flip
from mt3.objectives.augmix import augmix
from mt3.objectives.objective import Outputs, Views

MARGIN = 0.4  # of the largest entropy, ln C: "E_0 = 0.4 ln C", above which an answer is not reliable
PAD = 4  # pixels of 32, the standard augmentation


def entropy(logits: Tensor) -> Tensor:
    """Of each answer, in nats."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def marginal_entropy(logits: Tensor) -> Tensor:
    """The entropy of the mean answer to copies (..., copies, classes)."""
    log_p = logits.log_softmax(-1).logsumexp(-2) - math.log(logits.shape[-2])
    return -(log_p.exp() * log_p).sum(-1)


class NoHeads(nn.Module):
    def forward(self, trunk: Tensor, shared: Tensor) -> dict[str, Tensor]:
        return {}


class Entropy:
    """The mean entropy of the answers to the images themselves."""

    feeds: tuple[str, ...] = ("early", "late", "hidden", "classify")
    images_per_view = 1
    draws_views = False
    has_target = False
    shows_images = True
    of_one_image = False

    def __init__(self, variant: str) -> None:
        self.variant = variant

    def heads(self, backbone: Backbone, hidden: int, projection: int) -> nn.Module:
        return NoHeads()

    def train_views(
        self, raw: Tensor, x: Tensor, shift: Callable[[Tensor], Tensor], generator: torch.Generator
    ) -> tuple[Tensor, Views]:
        x = shift(x)
        return x, Views(x)

    def test_views(self, image: Tensor, count: int, generator: torch.Generator) -> Views:
        return Views(image.unsqueeze(0))

    def target(self, outputs: Outputs) -> Tensor | None:
        return None

    def loss(self, outputs: Outputs, views: Views, target: Tensor | None) -> Tensor:
        return entropy(outputs.logits).mean(-1)


class ReliableEntropy(Entropy):
    """The mean over the images whose entropy is below the margin; where there is none, NaN without a gradient.

    The target says which images were below it where a step starts: a sharpness-aware one asks again, up the slope.
    """

    def target(self, outputs: Outputs) -> Tensor:
        logits = outputs.logits.detach()
        return entropy(logits) < MARGIN * math.log(logits.shape[-1])

    def loss(self, outputs: Outputs, views: Views, target: Tensor | None) -> Tensor:
        assert target is not None
        reliable = target & self.target(outputs)
        count = reliable.sum(-1)
        each = torch.where(reliable, entropy(outputs.logits), 0.0)
        return torch.where(count > 0, each.sum(-1) / count.clamp(min=1), math.nan)


class MarginalEntropy(Entropy):
    """The entropy of the mean answer to shifted and mirrored copies of an image; in training these are its crops."""

    draws_views = True
    of_one_image = True

    def test_views(self, image: Tensor, count: int, generator: torch.Generator) -> Views:
        return Views(crop_and_flip(image.expand(count, -1, -1, -1), generator, PAD, flip=True))

    def loss(self, outputs: Outputs, views: Views, target: Tensor | None) -> Tensor:
        return marginal_entropy(outputs.logits)


class AugmixEntropy(MarginalEntropy):
    """The same with copies as AugMix makes them."""

    shows_images = False

    def train_views(
        self, raw: Tensor, x: Tensor, shift: Callable[[Tensor], Tensor], generator: torch.Generator
    ) -> tuple[Tensor, Views]:
        x, copies = super().train_views(raw, x, shift, generator)
        return x, Views(augmix(copies.images, generator))

    def test_views(self, image: Tensor, count: int, generator: torch.Generator) -> Views:
        return Views(augmix(super().test_views(image, count, generator).images, generator))
