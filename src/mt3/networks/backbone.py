"""What a backbone is: it maps images to features, in two parts, so that another head can branch off between them."""

import re
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from mt3.networks.foreign import Foreign
from mt3.networks.norms import refuse_training_statistics
from mt3.networks.resnet import ResNet
from mt3.support.errors import InputError, shown

MAX_WEIGHTS = 10**9  # of a network; 4 GB
NAME = re.compile(r"resnet([0-9]{1,4})x([0-9]{1,4})(?:g([0-9]{1,4}))?")


@runtime_checkable
class Backbone(Protocol):
    """Images (N, 3, H, H) to features (N, F): `late(early(images))`."""

    features: int  # F
    stacks: bool  # whether its layers compute a stack of networks at once, as ours do
    early: nn.Module
    late: nn.Module

    def branch(self) -> nn.Module:
        """A further module like `late`, with weights of its own."""

    def largest(self, size: int) -> int:
        """Values of the largest activation for an image of `size` pixels."""

    def kept(self, size: int) -> int:
        """Values that surely lie in memory for the gradient of a pass over an image."""

    def __call__(self, images: Tensor) -> Tensor: ...


def as_backbone(backbone: str | nn.Module | None, size: int | None) -> Backbone:
    """One of ours by its name, or any module that maps images to features."""
    if isinstance(backbone, str):
        return make_backbone(backbone)
    if backbone is None:
        raise InputError("This model has a backbone of your own; load it with mt3.load(path, backbone=...).")
    if not isinstance(backbone, nn.Module):
        raise InputError(f"Expected a backbone's name or a module, got a {type(backbone).__name__}.")
    refuse_training_statistics(backbone)
    return backbone if isinstance(backbone, Backbone) else Foreign(backbone, size)


def make_backbone(name: str) -> ResNet:
    """One of ours by its name: `resnet26x32` has 26 layers and 32 filters, `resnet26x32g8` norms of 8 groups."""
    found = NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise InputError(f"Expected a backbone named as resnet26x32, or resnet26x32g8, got '{shown(name)}'.")
    depth, width, groups = (None if part is None else int(part) for part in found.groups())
    assert depth is not None
    assert width is not None
    if not 8 <= depth <= 1202 or (depth - 2) % 6:
        raise InputError(f"Expected a depth of 6n+2 layers from 8 to 1202 (8, 14, 20, 26, ...), got {depth}.")
    groups = max(1, min(16, width // 2)) if groups is None else groups
    if width < 1 or groups < 1 or width % groups:
        raise InputError(f"Expected a width that {groups} groups divide, got {width}; choose other groups.")
    if 63 * (depth - 2) * width**2 > MAX_WEIGHTS:
        raise InputError(f"Expected a network of at most {MAX_WEIGHTS} weights, got {name}; lower its depth or width.")
    return ResNet(depth, width, groups)
