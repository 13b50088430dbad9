"""Sun et al.'s objective: recognise by how many quarter turns an image was rotated."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mt3.networks.backbone import Backbone
from mt3.networks.layers import Linear
from mt3.objectives.augment import crop_and_flip, rotate
from mt3.objectives.objective import Outputs, Views

PAD = 4  # pixels of 32, Sun et al.'s standard augmentation


def rotation_loss(logits: Tensor, quarters: Tensor) -> Tensor:
    """Cross-entropy of the number of quarter turns; one for each of a stack."""
    each = F.cross_entropy(logits.flatten(0, -2), quarters.flatten(), reduction="none")
    return each.view(quarters.shape).mean(-1)


class Heads(nn.Module):
    """A last stage of its own, which branches off the trunk, and four outputs."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.branch = backbone.branch()
        self.turn = Linear(backbone.features, 4)

    def forward(self, trunk: Tensor, shared: Tensor) -> dict[str, Tensor]:
        return {"turn": self.turn(self.branch(trunk))}


class Rotation:
    """Views are turned copies."""

    feeds: tuple[str, ...] = ("early", "heads")
    images_per_view = 1
    draws_views = True
    has_target = False
    shows_images = True
    of_one_image = False

    def __init__(self, variant: str) -> None:
        self.variant = variant

    def heads(self, backbone: Backbone, hidden: int, projection: int) -> nn.Module:
        return Heads(backbone)

    def train_views(
        self, raw: Tensor, x: Tensor, shift: Callable[[Tensor], Tensor], generator: torch.Generator
    ) -> tuple[Tensor, Views]:
        """Every image by all four angles, upright first."""
        x = shift(x)
        quarters = torch.arange(4, device=x.device).repeat_interleave(len(x))
        return x, Views(rotate(x.repeat(4, 1, 1, 1), quarters), quarters)

    def test_views(self, image: Tensor, count: int, generator: torch.Generator) -> Views:
        upright = crop_and_flip(image.expand(count, -1, -1, -1), generator, PAD, flip=True)
        quarters = torch.randint(4, (count,), generator=generator, device=generator.device).to(image.device)
        return Views(rotate(upright, quarters), quarters, upright)

    def target(self, outputs: Outputs) -> None:
        return None

    def loss(self, outputs: Outputs, views: Views, target: Tensor | None) -> Tensor:
        assert views.labels is not None
        return rotation_loss(outputs.heads["turn"], views.labels)
