"""The CIFAR-10-C corruptions of Hendrycks and Dietterich (2019) for 32 x 32 images.

`corruptions.apply(images, "fog", severity=3)` corrupts a batch of bytes (N, 32, 32, 3).
"""

from mt3.corruptions.registry import CORRUPTIONS, HELD_OUT, PAPER, Corruption, apply, available, resolve

__all__ = ["CORRUPTIONS", "HELD_OUT", "PAPER", "Corruption", "apply", "available", "resolve"]
