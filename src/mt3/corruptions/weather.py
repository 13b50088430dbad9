"""Weather: snow, frost, fog and the light of the day."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from mt3.corruptions.blur import smear, zoom_lines
from mt3.corruptions.pixels import SIZE, Bytes, Floats, Generators, from_hsv, to_bytes, to_hsv, to_unit
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
    noise = np.stack([generator.normal(mean, std, (SIZE, SIZE)) for generator in generators])
    degrees = np.array([generator.uniform(-135, -45) for generator in generators])
    lines = zoom_lines(zoom)
    flakes = lines @ noise @ lines.T
    flakes[flakes < threshold] = 0
    layer = to_unit(smear(to_bytes(flakes)[..., None], radius, smear_std, degrees))  # (N, 32, 32, 1)
    x = to_unit(images)
    grey = 0.299 * x[..., :1] + 0.587 * x[..., 1:2] + 0.114 * x[..., 2:]
    whitened = kept * x + (1 - kept) * np.maximum(x, grey * 1.5 + 0.5)
    return to_bytes(whitened + layer + layer[:, ::-1, ::-1])


def frost(images: Bytes, frost_parameters: tuple[float, float], generators: Generators) -> Bytes:
    """Add `own` times the image and `ice` times a random crop of one of five photos."""
    own, ice = frost_parameters
    folder = frost_photos()
    if folder is None:
        raise InputError(NO_PHOTOS)
    photos = _shrunk_photos(folder)
    crops = np.stack([_crop(photos[generator.integers(len(photos))], generator) for generator in generators])
    return np.clip(own * images + ice * crops, 0, 255).astype(np.uint8)


def frost_photos() -> Path | None:
    """Find the folder of the photos inside `imagecorruptions` without importing it; None if they are not there."""
    spec = find_spec("imagecorruptions")
    for folder in (spec and spec.submodule_search_locations) or ():
        photos = Path(folder) / "frost"
        if all((photos / name).is_file() for name in FROST_PHOTOS):
            return photos
    return None


@cache
def _shrunk_photos(folder: Path) -> tuple[Bytes, ...]:
    """Read the photos at a fifth of their size: OpenCV's linear resize, which does not average, takes pixel 5i + 2."""
    photos = []
    for name in FROST_PHOTOS:
        with Image.open(folder / name) as image:
            photo = np.asarray(image.convert("RGB"))
        rows, columns = (round(side * 0.2) for side in photo.shape[:2])
        photos.append(photo[2::5, 2::5][:rows, :columns].copy())
    return tuple(photos)


def _crop(photo: Bytes, generator: np.random.Generator) -> Bytes:
    top, left = (int(generator.integers(side - SIZE)) for side in photo.shape[:2])
    return photo[top : top + SIZE, left : left + SIZE]


def fog(images: Bytes, fog_parameters: tuple[float, float], generators: Generators) -> Bytes:
    """Add `thickness` times a plasma of `decay`, then scale so that no value exceeds the image's former maximum."""
    thickness, decay = fog_parameters
    x = to_unit(images)
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    fogged = x + thickness * plasma(generators, decay)[..., None]
    return to_bytes(fogged * brightest / (brightest + thickness))


def plasma(generators: Generators, decay: float, size: int = SIZE) -> Floats:
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
