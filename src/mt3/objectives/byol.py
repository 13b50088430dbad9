"""BYOL as the paper has it: predict, from one view, what another network makes of the other view (Eq. 1)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mt3.config.methods import HIDDEN
from mt3.networks.backbone import Backbone
from mt3.networks.layers import Linear
from mt3.objectives.augment import apply_views, draw_views, make_views
from mt3.objectives.objective import Outputs, Views


def byol_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean over the K pairs of L(r, z~) + L(r~, z), with L(a, b) = 2 - 2 cos(a, b).

    Rows are a_1..a_K, a~_1..a~_K in both arguments; each prediction meets the other view's projection. The caller
    stops the gradient of the target. A stack of rows gives a loss for each of its members.
    """
    a, a_tilde = target.chunk(2, dim=-2)
    cosine = (F.normalize(prediction, dim=-1) * F.normalize(torch.cat([a_tilde, a], dim=-2), dim=-1)).sum(-1)
    return 2 * (2 - 2 * cosine).mean(-1)


class Heads(nn.Module):
    """The projector p, which shares the classifier's hidden layer or, where there is none, has its own; predictor q."""

    def __init__(self, features: int, hidden: int, projection: int, variant: str) -> None:
        super().__init__()
        if hidden and variant == "paper":
            self.project: nn.Module = Linear(hidden, projection)
        else:
            self.project = _mlp(hidden or features, hidden or HIDDEN, projection)
        self.predict = _mlp(projection, hidden or HIDDEN, projection)

    def forward(self, trunk: Tensor, shared: Tensor) -> dict[str, Tensor]:
        z = self.project(shared)
        return {"z": z, "r": self.predict(z)}


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(Linear(inputs, hidden), nn.ReLU(), Linear(hidden, outputs))


class Byol:
    """Views are A's: all a, then all a-tilde."""

    feeds: tuple[str, ...] = ("early", "late", "hidden", "heads")  # all but the class layer
    images_per_view = 2
    draws_views = True
    has_target = True
    shows_images = False
    of_one_image = False

    def __init__(self, variant: str) -> None:
        self.variant = variant

    def heads(self, backbone: Backbone, hidden: int, projection: int) -> nn.Module:
        return Heads(backbone.features, hidden, projection, self.variant)

    def train_views(
        self, raw: Tensor, x: Tensor, shift: Callable[[Tensor], Tensor], generator: torch.Generator
    ) -> tuple[Tensor, Views]:
        both = shift(torch.cat([x, make_views(raw, generator, self._whole)]))
        return both[: len(x)], Views(both[len(x) :])

    def test_views(self, image: Tensor, count: int, generator: torch.Generator) -> Views:
        pairs = image.expand(2 * count, -1, -1, -1)
        return Views(apply_views(pairs, draw_views(2 * count, generator), self._whole))

    def target(self, outputs: Outputs) -> Tensor:
        return outputs.heads["z"].detach()

    def loss(self, outputs: Outputs, views: Views, target: Tensor | None) -> Tensor:
        assert target is not None
        return byol_loss(outputs.heads["r"], target)

    @property
    def _whole(self) -> bool:
        """Whether a crop may be the whole image; in the authors' code the upper end is exclusive."""
        return self.variant == "paper"
