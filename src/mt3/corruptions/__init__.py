"""The CIFAR-10-C corruptions of Hendrycks and Dietterich (2019) for 32 x 32 images.

`corruptions.apply(images, "fog", severity=3)` corrupts a batch of bytes (N, 32, 32, 3). SciPy is imported when it is
first needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mt3.corruptions.names import HELD_OUT, PAPER

if TYPE_CHECKING:
    from mt3.corruptions.registry import CORRUPTIONS, Corruption, apply, available, resolve

__all__ = ["CORRUPTIONS", "HELD_OUT", "PAPER", "Corruption", "apply", "available", "resolve"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("mt3.corruptions.registry"), name)
    raise AttributeError(f"module 'mt3.corruptions' has no attribute '{name}'")
