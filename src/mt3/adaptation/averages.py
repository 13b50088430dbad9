"""What is asked of single images without adapting to them: checked input, seeded draws, averaged predictions."""

from collections.abc import Callable

import torch
from torch import Tensor

from mt3.models.classifier import BOUNDS, MT3Model, as_float
from mt3.objectives.augment import seeded_generator
from mt3.objectives.selfsup import draw_copies, draw_test_views
from mt3.support.errors import InputError, check_number
from mt3.support.threads import undisturbed

UNADAPTED = 100  # images in a pass before adapting
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_images(images: Tensor) -> Tensor:
    """Require a tensor (N, 3, 32, 32), uint8 or float in [0, 1]."""
    if not isinstance(images, Tensor):
        raise InputError(f"Expected images as a torch tensor, got {type(images).__name__}; use torch.from_numpy.")
    if images.ndim != 4 or tuple(images.shape[1:]) != (3, 32, 32):
        raise InputError(f"Expected images of shape (N, 3, 32, 32), got {tuple(images.shape)}; resize or permute them.")
    if images.dtype == torch.uint8:
        return images
    if images.dtype not in FLOATS:
        raise InputError(f"Expected uint8 images or floats in [0, 1], got {images.dtype}.")
    if len(images):
        low, high = images.aminmax()
        if not (low >= 0 and high <= 1):
            raise InputError(f"Expected float images in [0, 1], got values from {low:.4g} to {high:.4g}; scale them.")
    return images


def image_generator(image: Tensor, seed: int) -> torch.Generator:
    """A generator seeded by (seed, content): the content is taken to 16 bits, the same for uint8 and float images."""
    content = (as_float(image.cpu(), torch.float64) * 65535).round().to(torch.int32)
    return seeded_generator("views", seed, content.numpy().tobytes())


def averaged_logits(
    network: Callable[[Tensor], Tensor], images: Tensor, scaled: Tensor, copies: int, seed: int
) -> Tensor:
    """Logits of images (..., N, 3, 32, 32), each averaged over itself and shifted or mirrored copies.

    `images` are as they were given, and seed the copies; `scaled` are the same as floats on the network's device.
    """
    check_number("average", copies, *BOUNDS["adapt_average"])
    with undisturbed(scaled.device):
        if not copies or not scaled.numel():
            return network(scaled)
        size = max(1, UNADAPTED // (1 + copies))
        parts = zip(torch.split(images, size, -4), torch.split(scaled, size, -4), strict=True)
        return torch.cat([_averaged(network, *part, copies, seed) for part in parts], dim=-2)


def _averaged(network: Callable[[Tensor], Tensor], images: Tensor, scaled: Tensor, copies: int, seed: int) -> Tensor:
    """As `averaged_logits`, in one pass where the copies are not many."""
    drawn = [
        draw_copies(image, copies, image_generator(given, seed))
        for given, image in zip(images.flatten(0, -4), scaled.flatten(0, -4), strict=True)
    ]
    batch = torch.stack(drawn).view(*scaled.shape[:-4], -1, *scaled.shape[-3:])
    logits = torch.cat([network(part) for part in torch.split(batch, UNADAPTED, -4)], dim=-2)
    return logits.view(*scaled.shape[:-3], 1 + copies, -1).softmax(-1).mean(-2).log()


def view_average(model: MT3Model, images: Tensor, seed: int = 0, views: int | None = None) -> Tensor:
    """Probabilities (N, classes) averaged over each image's views without adapting, for a model of any task."""
    task = "rotation" if model.hidden is None else "byol"  # Sun et al.'s network meets its own kind of views
    views = views or model.adapt_views
    check_number("views", views, *BOUNDS["adapt_views"])
    averages = []
    with undisturbed(model.stem.weight.device), torch.no_grad():
        for part in torch.split(check_images(images), max(1, UNADAPTED // views)):
            scaled = as_float(part.to(model.stem.weight.device), model.stem.weight.dtype)
            upright = [
                draw_test_views(image, task, views, image_generator(given, seed), model.crop_max)[1]
                for given, image in zip(part, scaled, strict=True)
            ]
            averages.append(model(torch.cat(upright)).view(len(part), len(upright[0]), -1).softmax(-1).mean(1))
    return torch.cat(averages)
