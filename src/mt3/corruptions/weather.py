"""Weather: snow, frost, fog and the light of the day."""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from mt3.corruptions.blur import smear, zoom_lines
from mt3.corruptions.pixels import Bytes, Floats, Generators, from_hsv, to_bytes, to_hsv, to_unit
from mt3.corruptions.spatter import spatter as spatter  # it is weather, too, but long
from mt3.support.errors import InputError

# the first five of the photos that the package `imagecorruptions` carries; the benchmark never draws the sixth
FROST_PHOTOS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
INSTALL_PHOTOS = (
    "run `pip install --no-deps imagecorruptions` "
    "(the flag spares OpenCV and scikit-image, which only its functions need)"
)
NO_PHOTOS = f"Corruption 'frost' needs photos: {INSTALL_PHOTOS}, or leave 'frost' out."


def snow(images: Bytes, snow_parameters: tuple[float, ...], generators: Generators) -> Bytes:
    """Whiten the image, and add a layer of flakes and the same layer turned by half a turn.

    The flakes: normal noise of `(mean, std)`, zoomed, cut off below `threshold` and smeared by `(radius, smear_std)`
    upwards within 45 degrees. Of the whitened image, 1 - `kept` is the larger of the image and a light grey version.
    """
    mean, std, zoom, threshold, radius, smear_std, kept = snow_parameters
    side = images.shape[1]
    noise = np.stack([generator.normal(mean, std, (side, side)) for generator in generators])
    degrees = np.array([generator.uniform(-135, -45) for generator in generators])
    lines = zoom_lines(zoom, side)
    flakes = lines @ noise @ lines.T
    flakes[flakes < threshold] = 0
    layer = to_unit(smear(to_bytes(flakes)[..., None], radius, smear_std, degrees))  # (N, side, side, 1)
    x = to_unit(images)
    grey = 0.299 * x[..., :1] + 0.587 * x[..., 1:2] + 0.114 * x[..., 2:]
    whitened = kept * x + (1 - kept) * np.maximum(x, grey * 1.5 + 0.5)
    return to_bytes(whitened + layer + layer[:, ::-1, ::-1])


def frost(images: Bytes, frost_parameters: tuple[float, float, float], generators: Generators) -> Bytes:
    """Add `own` times the image and `ice` times a random crop of one of five photos, which are scaled by `scale`."""
    own, ice, scale = frost_parameters
    folder = frost_photos()
    if folder is None:
        raise InputError(NO_PHOTOS)
    side = images.shape[1]
    photos = _scaled_photos(folder, scale, side)
    crops = np.stack([_crop(photos[generator.integers(len(photos))], side, generator) for generator in generators])
    return np.clip(own * images + ice * crops, 0, 255).astype(np.uint8)


def frost_photos() -> Path | None:
    """Find the folder of the photos inside `imagecorruptions` without importing it; None if they are not there."""
    spec = find_spec("imagecorruptions")
    for folder in (spec and spec.submodule_search_locations) or ():
        photos = Path(folder) / "frost"
        if all((photos / name).is_file() for name in FROST_PHOTOS):
            return photos
    return None


@lru_cache(maxsize=2)
def _scaled_photos(folder: Path, scale: float, side: int) -> tuple[Bytes, ...]:
    """Read the photos and scale each; one without room for a crop gets 1.1 times the `side` instead."""
    photos = []
    for name in FROST_PHOTOS:
        with Image.open(folder / name) as image:
            photo = np.asarray(image.convert("RGB"))
        short = min(photo.shape[:2])
        photos.append(scale_linear(photo, scale if round(short * scale) > side else 1.1 * side / short))
    return tuple(photos)


def scale_linear(photo: Bytes, scale: float) -> Bytes:
    """Scale as OpenCV's linear resize, which does not average, in its whole numbers: weights are in 2048ths."""
    (top, below, high, low), (left, right, near, far) = (_between(side, scale) for side in photo.shape[:2])
    whole = photo.astype(np.int32)
    lines = whole[:, left] * near[:, None] + whole[:, right] * far[:, None]  # (rows, new columns, 3)
    quarters = ((lines[top] >> 4) * high[:, None, None] >> 16) + ((lines[below] >> 4) * low[:, None, None] >> 16)
    return (quarters + 2 >> 2).astype(np.uint8)


def _between(side: int, scale: float) -> tuple[npt.NDArray[np.int32], ...]:
    """For each pixel of a scaled line: the two pixels that it lies between, and their weights in 2048ths."""
    middle = (np.arange(round(side * scale)) + 0.5) / scale - 0.5
    first = np.clip(np.floor(middle), 0, side - 1)
    weight = np.rint(2048 * np.clip(middle - first, 0, 1))
    numbers = np.stack([first, np.minimum(first + 1, side - 1), 2048 - weight, weight])
    return tuple(numbers.astype(np.int32))


def _crop(photo: Bytes, side: int, generator: np.random.Generator) -> Bytes:
    top, left = (int(generator.integers(room - side)) for room in photo.shape[:2])
    return photo[top : top + side, left : left + side]


def fog(images: Bytes, fog_parameters: tuple[float, float], generators: Generators) -> Bytes:
    """Add `thickness` times the corner of a plasma of `decay`, whose side is the next power of two.

    Then scale so that no value exceeds the image's former maximum.
    """
    thickness, decay = fog_parameters
    side = images.shape[1]
    x = to_unit(images)
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    fogged = x + thickness * plasma(generators, decay, 1 << (side - 1).bit_length())[:, :side, :side, None]
    return to_bytes(fogged * brightest / (brightest + thickness))


def plasma(generators: Generators, decay: float, size: int) -> Floats:
    """Draw one fractal height map per generator by diamond-square on a torus, scaled to [0, 1]: (N, size, size).

    `size` is a power of two. The published generator multiplies a draw from (-w, w) by w once more and divides w by
    `decay` at each halving, so the height of the bumps falls with the square of `decay`; its start cancels out.
    """
    draws = np.stack([generator.uniform(-1, 1, size * size - 1) for generator in generators])
    height = np.zeros((len(draws), size, size))
    bump, step, used = 1.0, size, 0
    while step > 1:
        half, points = step // 2, size // step
        noise = bump * draws[:, used : used + 3 * points**2].reshape(-1, 3, points, points)
        corner = height[:, ::step, ::step]  # (N, points, points)
        right, below = np.roll(corner, -1, axis=2), np.roll(corner, -1, axis=1)
        centre = (corner + right + below + np.roll(below, -1, axis=2)) / 4 + noise[:, 0]
        height[:, half::step, half::step] = centre
        height[:, ::step, half::step] = (corner + right + centre + np.roll(centre, 1, axis=1)) / 4 + noise[:, 1]
        height[:, half::step, ::step] = (corner + below + centre + np.roll(centre, 1, axis=2)) / 4 + noise[:, 2]
        bump, step, used = bump / decay**2, half, used + 3 * points**2
    height -= height.min(axis=(1, 2), keepdims=True)
    height /= height.max(axis=(1, 2), keepdims=True)
    return height


def brightness(images: Bytes, shift: float) -> Bytes:
    """Add `shift` to V of HSV; black turns grey."""
    hue, saturation, value = to_hsv(to_unit(images))
    return to_bytes(from_hsv(hue, saturation, np.minimum(value + shift, 1.0)))
