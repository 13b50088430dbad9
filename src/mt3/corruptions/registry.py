"""The 19 corruptions of CIFAR-10-C: which there are, their five parameters, and how to apply one.

SciPy is imported when the first corruption is applied: many only need the names.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeVar

import numpy as np

from mt3.corruptions.pixels import SIZE, Bytes
from mt3.support.errors import InputError, check_number, one_of

Found = TypeVar("Found")

CHUNK = 128  # images at a time: about 3 MB of doubles, so that temporaries stay in the cache


@dataclass(frozen=True)
class Corruption:
    """One corruption: its five parameters, severity 1 first, and the file of its kind, which holds its function."""

    name: str
    parameters: tuple[Any, Any, Any, Any, Any]
    kind: Literal["noise", "blur", "weather", "digital"]
    random: bool = False

    @property
    def function(self) -> Callable[..., Bytes]:
        """It takes bytes (N, 32, 32, 3), one of the parameters and, if `random`, one generator per image."""
        function: Callable[..., Bytes] = getattr(import_module(f"mt3.corruptions.{self.kind}"), self.name)
        return function


# the parameters for 32 x 32 images of Hendrycks and Dietterich (2019), in the benchmark's order
_ALL = (
    Corruption("gaussian_noise", (0.04, 0.06, 0.08, 0.09, 0.10), "noise", random=True),
    Corruption("shot_noise", (500, 250, 100, 75, 50), "noise", random=True),
    Corruption("impulse_noise", (0.01, 0.02, 0.03, 0.05, 0.07), "noise", random=True),
    Corruption("defocus_blur", ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)), "blur"),
    Corruption("glass_blur", ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)), "blur", random=True),
    Corruption("motion_blur", ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)), "blur", random=True),
    # the first two were to end at 1.05 and 1.10, but rounding in `np.arange` lets them take one step more
    Corruption("zoom_blur", (1.06, 1.11, 1.15, 1.20, 1.25), "blur"),
    Corruption(
        "snow",
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "weather",
        random=True,
    ),
    Corruption("frost", ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)), "weather", random=True),
    Corruption("fog", ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)), "weather", random=True),
    Corruption("brightness", (0.05, 0.1, 0.15, 0.2, 0.3), "weather"),
    Corruption("contrast", (0.75, 0.5, 0.4, 0.3, 0.15), "digital"),
    Corruption(
        "elastic_transform",
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        "digital",
        random=True,
    ),
    Corruption("pixelate", (0.95, 0.9, 0.85, 0.75, 0.65), "digital"),
    Corruption("jpeg_compression", (80, 65, 58, 50, 40), "digital"),
    Corruption("speckle_noise", (0.06, 0.1, 0.12, 0.16, 0.2), "noise", random=True),
    Corruption("gaussian_blur", (0.4, 0.6, 0.7, 0.8, 1.0), "blur"),
    Corruption(
        "spatter",
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, "water"),
            (0.65, 0.1, 0.8, 0.7, 0.5, "water"),
            (0.65, 0.3, 1, 0.69, 0.5, "water"),
            (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
            (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
        ),
        "weather",
        random=True,
    ),
    Corruption("saturate", ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)), "digital"),
)
CORRUPTIONS: dict[str, Corruption] = {corruption.name: corruption for corruption in _ALL}
PAPER = tuple(CORRUPTIONS)[:15]  # what the paper reports
HELD_OUT = tuple(CORRUPTIONS)[15:]  # the benchmark's other four, kept for tuning


def available() -> tuple[str, ...]:
    """Name the corruptions that can run here, in the benchmark's order: all 19, or 18 without the photos for frost."""
    from mt3.corruptions import weather

    return tuple(name for name in CORRUPTIONS if name != "frost" or weather.frost_photos() is not None)


def resolve(names: Sequence[str]) -> tuple[str, ...]:
    """Expand the groups among `names` and drop repetitions, keeping the order.

    The groups: `all` of the paper's 15, `held-out` for the other four, `every` for both. What cannot run here is
    refused, before long work starts; `available()` gives what can.
    """
    groups: dict[str, tuple[str, ...]] = {name: (name,) for name in CORRUPTIONS}
    groups |= {"all": PAPER, "held-out": HELD_OUT, "every": tuple(CORRUPTIONS)}
    expanded = dict.fromkeys(member for name in names for member in _find(name, groups))  # in order, each once
    if "frost" in expanded and "frost" not in available():
        from mt3.corruptions.weather import NO_PHOTOS

        raise InputError(NO_PHOTOS)
    return tuple(expanded)


def apply(images: Bytes, name: str, severity: int = 5, seed: int = 0, first_index: int = 0) -> Bytes:
    """Corrupt a batch of bytes (N, 32, 32, 3) and return it as a new array.

    Image i draws from a generator seeded with `(seed, name, severity, first_index + i)`, so a data set may be corrupted
    in parts: give each part the index of its first image.
    """
    corruption = _find(name, CORRUPTIONS)
    images = np.asarray(images)
    check_images(images)
    check_number("the severity", severity, 1, 5)
    check_number("the seed", seed, 0)
    check_number("the first index", first_index, 0)
    severity, seed, first_index = int(severity), int(seed), int(first_index)  # a small NumPy integer would overflow
    corrupted = np.empty(images.shape, dtype=np.uint8)
    for start in range(0, len(images), CHUNK):
        part = images[start : start + CHUNK]
        arguments: list[Any] = [part, corruption.parameters[severity - 1]]
        if corruption.random:
            first = first_index + start
            arguments.append([_generator(seed, name, severity, first + i) for i in range(len(part))])
        corrupted[start : start + CHUNK] = corruption.function(*arguments)
    return corrupted


def _find(name: str, table: Mapping[str, Found]) -> Found:
    if isinstance(name, str) and name in table:
        return table[name]
    raise InputError(one_of("corruption", name, table))


def check_images(images: Bytes) -> None:
    """Refuse what is not a batch of 32 x 32 bytes."""
    if images.dtype != np.uint8:
        raise InputError(f"Expected images of dtype uint8, got {images.dtype}: scale to 0..255 and convert them.")
    if images.shape[1:] != (SIZE, SIZE, 3):
        raise InputError(
            f"Expected images of shape (N, {SIZE}, {SIZE}, 3), got {images.shape}: give a batch, the channels last, "
            f"scaled or cut to {SIZE} x {SIZE} pixels."
        )


def _generator(seed: int, name: str, severity: int, index: int) -> np.random.Generator:
    return np.random.default_rng((seed, zlib.crc32(name.encode()), severity, index))
