"""Near copies of an image: its mirror image and its shifts by one pixel, to which a sure answer should be the same."""

import torch
from torch import Tensor

SHIFTS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # down and to the right, in pixels


def near_copies(images: Tensor, mirror: bool = True) -> Tensor:
    """Each image itself, mirrored, and shifted by one pixel four ways with its edge repeated: (N, copies, 3, H, W)."""
    height, width = (torch.arange(side, device=images.device) for side in images.shape[-2:])
    shifted = [
        images[..., (height + down).clamp(0, len(height) - 1), :][..., (width + right).clamp(0, len(width) - 1)]
        for down, right in SHIFTS
    ]
    return torch.stack([images, *([images.flip(-1)] if mirror else []), *shifted], dim=1)


def mean_answer(logits: Tensor) -> Tensor:
    """Probabilities (N, classes) averaged over copies whose logits are (N, copies, classes)."""
    return logits.softmax(-1).mean(1)
