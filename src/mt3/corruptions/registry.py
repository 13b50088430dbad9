"""The 19 corruptions of the -C benchmarks: which there are, and how to apply one.

SciPy is imported when the first corruption is applied: many only need the names.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeVar

import numpy as np

from mt3.corruptions.parameters import LARGEST, SETS, SMALLEST, parameter_set
from mt3.corruptions.pixels import Bytes
from mt3.support.errors import InputError, check_number, one_of

Found = TypeVar("Found")

CHUNK = 128  # images of 32 pixels at a time: about 3 MB of doubles, so that temporaries stay in the cache


@dataclass(frozen=True)
class Corruption:
    """One corruption, and the file of its kind, which holds its function."""

    name: str
    kind: Literal["noise", "blur", "weather", "digital"]
    random: bool = False

    @property
    def parameters(self) -> dict[int, tuple[Any, ...]]:
        """The five parameters of each set, severity 1 first; `parameter_set` says which set a size takes."""
        return {side: of_set[self.name] for side, of_set in SETS.items()}

    @property
    def function(self) -> Callable[..., Bytes]:
        """It takes bytes (N, side, side, 3), one of the parameters and, if `random`, one generator per image."""
        function: Callable[..., Bytes] = getattr(import_module(f"mt3.corruptions.{self.kind}"), self.name)
        return function


# in the benchmark's order
_ALL = (
    Corruption("gaussian_noise", "noise", random=True),
    Corruption("shot_noise", "noise", random=True),
    Corruption("impulse_noise", "noise", random=True),
    Corruption("defocus_blur", "blur"),
    Corruption("glass_blur", "blur", random=True),
    Corruption("motion_blur", "blur", random=True),
    Corruption("zoom_blur", "blur"),
    Corruption("snow", "weather", random=True),
    Corruption("frost", "weather", random=True),
    Corruption("fog", "weather", random=True),
    Corruption("brightness", "weather"),
    Corruption("contrast", "digital"),
    Corruption("elastic_transform", "digital", random=True),
    Corruption("pixelate", "digital"),
    Corruption("jpeg_compression", "digital"),
    Corruption("speckle_noise", "noise", random=True),
    Corruption("gaussian_blur", "blur"),
    Corruption("spatter", "weather", random=True),
    Corruption("saturate", "digital"),
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
    """Corrupt a batch of bytes (N, side, side, 3) and return it as a new array.

    The side, from 16 to 512 pixels, chooses the parameters (`parameter_set`).

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
    side = images.shape[1]
    parameter = corruption.parameters[parameter_set(side)][severity - 1]
    chunk = max(CHUNK * 32**2 // side**2, 1)
    for start in range(0, len(images), chunk):
        part = images[start : start + chunk]
        arguments: list[Any] = [part, parameter]
        if corruption.random:
            first = first_index + start
            arguments.append([_generator(seed, name, severity, first + i) for i in range(len(part))])
        corrupted[start : start + chunk] = corruption.function(*arguments)
    return corrupted


def _find(name: str, table: Mapping[str, Found]) -> Found:
    if isinstance(name, str) and name in table:
        return table[name]
    raise InputError(one_of("corruption", name, table))


def check_images(images: Bytes) -> None:
    """Refuse what is not a batch of square images in bytes."""
    if images.dtype != np.uint8:
        raise InputError(f"Expected images of dtype uint8, got {images.dtype}: scale to 0..255 and convert them.")
    side = images.shape[1] if images.ndim == 4 else 0
    if images.shape[1:] != (side, side, 3) or not SMALLEST <= side <= LARGEST:
        raise InputError(
            f"Expected images of shape (N, side, side, 3), the side from {SMALLEST} to {LARGEST}, got {images.shape}: "
            "give a batch, the channels last, scaled or cut to squares of such a side."
        )


def _generator(seed: int, name: str, severity: int, index: int) -> np.random.Generator:
    return np.random.default_rng((seed, zlib.crc32(name.encode()), severity, index))
