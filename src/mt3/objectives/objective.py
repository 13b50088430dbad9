"""What an objective is: its heads, its views and its loss."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from mt3.networks.backbone import Backbone


class Outputs(NamedTuple):
    """What one pass through a network gives; those of a stack have one dimension more in front."""

    logits: Tensor  # (N, classes), before the softmax
    heads: dict[str, Tensor]  # what the objective's heads give, by name, (N, values) each


class Views(NamedTuple):
    """Images for an objective's loss, and what it knows of them."""

    images: Tensor  # (N, 3, H, H), or a stack of such
    labels: Tensor | None = None  # what is to be recognised, such as by how much an image was turned
    plain: Tensor | None = None  # the views as the classifier should see them; none: they are these images


class Objective(Protocol):
    """Heads, views and loss. It is made with the variant of the method, `paper` or `official`."""

    feeds: tuple[str, ...]  # parts of the model whose weights its loss depends on: early, late, hidden, heads, classify
    images_per_view: int  # 2 where views come in pairs
    draws_views: bool  # whether its test views are made from an image, in [0, 1]; if not, they are the image itself
    has_target: bool  # whether its loss compares with what another network gives for the same views
    shows_images: bool  # whether the first of its training views are the classified images themselves
    of_one_image: bool  # whether its loss is of copies of one image, so that a task of meta-training has only one

    def heads(self, backbone: Backbone, hidden: int, projection: int) -> nn.Module:
        """A module that is called with the trunk and the shared features, and gives `Outputs.heads`.

        With our own layers alone it is called for whole stacks, with trunks (N, S C, H, H) and features (S, N, F); with
        any other it is called for one member after the other.
        """

    def train_views(
        self, raw: Tensor, x: Tensor, shift: Callable[[Tensor], Tensor], generator: torch.Generator
    ) -> tuple[Tensor, Views]:
        """A task's classified images and its views, both under the shift B; x are the raw images, cropped.

        The views are some of each image, in the images' order: all first ones, then all second ones.
        """

    def test_views(self, image: Tensor, count: int, generator: torch.Generator) -> Views:
        """`count` views of one image (3, H, H)."""

    def target(self, outputs: Outputs) -> Tensor | None:
        """What the loss compares with, without a gradient; None if with nothing."""

    def loss(self, outputs: Outputs, views: Views, target: Tensor | None) -> Tensor:
        """The mean over the views; of a stack, one for each member."""


def stack_views(views: Sequence[Views]) -> Views:
    """Views of several tasks as one stack."""
    columns = ([column for column in columns if column is not None] for columns in zip(*views, strict=True))
    return Views(*(torch.stack(column) if column else None for column in columns))  # type: ignore[arg-type]
