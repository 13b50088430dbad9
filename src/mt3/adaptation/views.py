"""The views of test images: drawn from the seed and an image's own content."""

import torch
from torch import Tensor

from mt3.config.adaptation import Adaptation
from mt3.models.call import Network
from mt3.objectives.augment import as_float, seeded_generator
from mt3.objectives.objective import Views, stack_views
from mt3.objectives.registry import get_objective


class DrawnViews:
    """Draws the views of a stack of images, for each step or once; the first ones are kept."""

    def __init__(self, model: Network, adaptation: Adaptation, images: Tensor, seed: int) -> None:
        assert adaptation.objective is not None
        self.objective = get_objective(adaptation.objective, adaptation.variant)
        self.adaptation = adaptation
        self.generators = [image_generator(image, seed) for image in images] if self.objective.draws_views else []
        self.images = as_float(images.to(model.device), model.dtype)
        self.first: Views | None = None

    def __call__(self, step: int) -> Views:
        if self.first is not None and not self.adaptation.fresh_views:
            return self.first
        if not self.objective.draws_views:
            views = Views(self.images.unsqueeze(1))
        else:
            drawn = zip(self.images, self.generators, strict=True)
            count = self.adaptation.views
            views = stack_views([self.objective.test_views(image, count, generator) for image, generator in drawn])
        self.first = views if self.first is None else self.first
        return views


def image_generator(image: Tensor, seed: int) -> torch.Generator:
    """A generator seeded by (seed, content): the content is taken to 16 bits, the same for uint8 and float images."""
    content = (as_float(image.cpu(), torch.float64) * 65535).round().to(torch.int32)
    return seeded_generator("views", seed, content.numpy().tobytes())
