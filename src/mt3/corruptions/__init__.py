"""The corruptions of Hendrycks and Dietterich (2019), as in CIFAR-10-C, Tiny-ImageNet-C or ImageNet-C by the size.

`corruptions.apply(images, "fog", severity=3)` corrupts a batch of bytes (N, side, side, 3).
"""

from mt3.corruptions.parameters import parameter_set
from mt3.corruptions.registry import CORRUPTIONS, HELD_OUT, PAPER, Corruption, apply, available, resolve

__all__ = ["CORRUPTIONS", "HELD_OUT", "PAPER", "Corruption", "apply", "available", "parameter_set", "resolve"]
