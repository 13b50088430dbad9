"""The 19 corruptions of CIFAR-10-C: which there are, their five parameters, and how to apply one."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mt3.corruptions import blur, digital, noise, spatter, weather
from mt3.corruptions.names import HELD_OUT, PAPER
from mt3.corruptions.pixels import SIZE, Bytes
from mt3.support.errors import InputError, one_of

__all__ = ["CORRUPTIONS", "HELD_OUT", "PAPER", "Corruption", "apply", "available", "resolve"]

CHUNK = 128  # images at a time: about 3 MB of doubles, so that temporaries stay in the cache


@dataclass(frozen=True)
class Corruption:
    """One corruption: bytes (N, 32, 32, 3) in and out.

    `function` takes the images, one of the five `parameters` (severity 1 first) and, if `random`, one generator per
    image.
    """

    name: str
    function: Callable[..., Bytes]
    parameters: tuple[Any, Any, Any, Any, Any]
    kind: Literal["noise", "blur", "weather", "digital"]
    random: bool = False


# the parameters for 32 x 32 images of Hendrycks and Dietterich (2019), in the benchmark's order
_ALL = (
    Corruption("gaussian_noise", noise.gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10), "noise", random=True),
    Corruption("shot_noise", noise.shot_noise, (500, 250, 100, 75, 50), "noise", random=True),
    Corruption("impulse_noise", noise.impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07), "noise", random=True),
    Corruption("defocus_blur", blur.defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)), "blur"),
    Corruption(
        "glass_blur", blur.glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)), "blur", random=True
    ),
    Corruption("motion_blur", blur.motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)), "blur", random=True),
    # the first two were to end at 1.05 and 1.10, but rounding in `np.arange` lets them take one step more
    Corruption("zoom_blur", blur.zoom_blur, (1.06, 1.11, 1.15, 1.20, 1.25), "blur"),
    Corruption(
        "snow",
        weather.snow,
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
    Corruption(
        "frost", weather.frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)), "weather", random=True
    ),
    Corruption("fog", weather.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)), "weather", random=True),
    Corruption("brightness", weather.brightness, (0.05, 0.1, 0.15, 0.2, 0.3), "weather"),
    Corruption("contrast", digital.contrast, (0.75, 0.5, 0.4, 0.3, 0.15), "digital"),
    Corruption(
        "elastic_transform",
        digital.elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        "digital",
        random=True,
    ),
    Corruption("pixelate", digital.pixelate, (0.95, 0.9, 0.85, 0.75, 0.65), "digital"),
    Corruption("jpeg_compression", digital.jpeg_compression, (80, 65, 58, 50, 40), "digital"),
    Corruption("speckle_noise", noise.speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2), "noise", random=True),
    Corruption("gaussian_blur", blur.gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0), "blur"),
    Corruption(
        "spatter",
        spatter.spatter,
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
    Corruption("saturate", digital.saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)), "digital"),
)
CORRUPTIONS: dict[str, Corruption] = {corruption.name: corruption for corruption in _ALL}


def available() -> tuple[str, ...]:
    """Name the corruptions that can run here, in the benchmark's order: all 19, or 18 without the photos for frost."""
    return tuple(name for name in CORRUPTIONS if name != "frost" or weather.frost_photos() is not None)


def resolve(names: Sequence[str]) -> tuple[str, ...]:
    """Expand the groups among `names` and drop repetitions, keeping the order.

    The groups: `all` of the paper's 15, `held-out` for the other four, `every` for both. What cannot run here is
    refused, before long work starts; `available()` gives what can.
    """
    groups = {"all": PAPER, "held-out": HELD_OUT, "every": tuple(CORRUPTIONS)}
    expanded: dict[str, None] = {}  # a dict keeps the order of insertion
    for name in names:
        members = groups[name] if name in groups else (_find(name, tuple(groups)).name,)
        expanded.update(dict.fromkeys(members))
    if "frost" in expanded and "frost" not in available():
        raise InputError(weather.NO_PHOTOS)
    return tuple(expanded)


def apply(images: Bytes, name: str, severity: int = 5, seed: int = 0, first_index: int = 0) -> Bytes:
    """Corrupt a batch of bytes (N, 32, 32, 3) and return it as a new array.

    Image i draws from a generator seeded with `(seed, name, severity, first_index + i)`, so a data set may be corrupted
    in parts: give each part the index of its first image.
    """
    corruption = _find(name)
    images = np.asarray(images)
    _check(images, severity, seed, first_index)
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


def _find(name: str, groups: tuple[str, ...] = ()) -> Corruption:
    if isinstance(name, str) and name in CORRUPTIONS:
        return CORRUPTIONS[name]
    raise InputError(one_of("corruption", name, (*CORRUPTIONS, *groups)))


def _check(images: Bytes, severity: int, seed: int, first_index: int) -> None:
    if images.dtype != np.uint8:
        raise InputError(f"Expected images of dtype uint8, got {images.dtype}: scale to 0..255 and convert them.")
    if images.ndim != 4 or images.shape[1:] != (SIZE, SIZE, 3):
        raise InputError(
            f"Expected images of shape (N, {SIZE}, {SIZE}, 3), got {images.shape}: {_advise(images.shape)}."
        )
    if not is_whole(severity) or severity not in range(1, 6):
        raise InputError(f"Expected a severity from 1 to 5, got {severity}: choose a whole number in this range.")
    for what, number in (("seed", seed), ("first index", first_index)):
        check_from_zero(what, number)


def _advise(shape: tuple[int, ...]) -> str:
    """What to do with images of a wrong shape."""
    steps = []
    if len(shape) == 3 and 3 in (shape[0], shape[2]):
        steps.append("put a single image into a batch with image[None]")
        shape = (1, *shape)
    if len(shape) != 4 or 3 not in (shape[1], shape[3]):
        return "give a batch of images with three channels, the channels last"
    if shape[3] != 3:
        steps.append("put the channels last with images.transpose(0, 2, 3, 1)")
        shape = (shape[0], *shape[2:], shape[1])
    if shape[1:3] != (SIZE, SIZE):
        steps.append(f"scale or cut to {SIZE} x {SIZE} pixels")
    return ", and ".join(steps)


def is_whole(number: object) -> bool:
    """Whether this is a whole number, Python's or NumPy's; a truth value is not."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def check_from_zero(what: str, number: object) -> int:
    """Require a whole number from 0 on, and give it as Python's."""
    if not is_whole(number) or int(number) < 0:  # type: ignore[call-overload]
        raise InputError(f"Expected a {what} of at least 0, got {number}: choose a whole number from 0 on.")
    return int(number)  # type: ignore[call-overload, no-any-return]


def _generator(seed: int, name: str, severity: int, index: int) -> np.random.Generator:
    return np.random.default_rng((seed, zlib.crc32(name.encode()), severity, index))
