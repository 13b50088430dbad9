"""Digital processing: contrast, saturation, geometry, resolution, compression."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from mt3.corruptions.hsv import from_hsv, to_hsv
from mt3.corruptions.pixels import SIZE, Bytes, Floats, Generators, to_bytes, to_unit

__all__ = ["contrast", "elastic_transform", "jpeg_compression", "pixelate", "saturate"]

Indices = npt.NDArray[np.intp]


def contrast(images: Bytes, factor: float) -> Bytes:
    """Scale each value's distance to its image's channel mean by `factor`."""
    # whole numbers sum without rounding, so the mean does not depend on the size of the batch
    mean = images.sum(axis=(1, 2), keepdims=True, dtype=np.int64) / (255.0 * SIZE * SIZE)
    return to_bytes((to_unit(images) - mean) * factor + mean)


def saturate(images: Bytes, line: tuple[float, float]) -> Bytes:
    """Replace S of HSV by `slope * S + offset`, clipped to [0, 1]; grey has the hue 0, so an offset turns it red."""
    slope, offset = line
    hue, saturation, value = to_hsv(to_unit(images))
    return to_bytes(from_hsv(hue, np.clip(saturation * slope + offset, 0.0, 1.0), value))


def elastic_transform(images: Bytes, elastic_parameters: tuple[float, float, float], generators: Generators) -> Bytes:
    """Shift three points by up to `shear` each way, bend the image along, then displace every pixel by smooth noise.

    The noise is uniform, filtered by `smoothness` and times `strength`. All three are shares of the image's side.
    """
    strength, smoothness, shear = (SIZE * share for share in elastic_parameters)
    corners = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])  # as (x, y)
    shifts = np.stack([generator.uniform(-shear, shear, (3, 2)) for generator in generators])
    # (x, y, 1) of a moved point times this matrix is where it came from
    back = np.linalg.solve(_with_one(corners + shifts), np.broadcast_to(corners, shifts.shape))  # (N, 3, 2)
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float64)
    by_x, by_y, offset = back.transpose(1, 2, 0)[..., None, None]  # each (2, N, 1, 1), for x and y
    from_x, from_y = x * by_x + y * by_y + offset
    warped = _sample(to_unit(images), from_y, from_x, _mirror)
    if strength == 0:
        return to_bytes(warped)
    noise = np.stack([generator.uniform(-1, 1, (2, SIZE, SIZE)) for generator in generators])
    smooth = ndimage.gaussian_filter(noise, smoothness, mode="reflect", truncate=3.0, axes=(2, 3))
    right, down = strength * smooth.transpose(1, 0, 2, 3)
    return to_bytes(_sample(warped, y + down, x + right, _reflect))


def _with_one(points: Floats) -> Floats:
    return np.concatenate([points, np.ones((*points.shape[:-1], 1))], axis=-1)


def _sample(images: Floats, y: Floats, x: Floats, fold: Callable[[Indices], Indices]) -> Floats:
    """Interpolate (N, 32, 32, 3) linearly at pixels (y, x), each (N, 32, 32); `fold` leads outside indices inside."""
    top, left = np.floor(y), np.floor(x)
    below, beside = (y - top)[..., None], (x - left)[..., None]
    rows, columns = top.astype(np.intp), left.astype(np.intp)
    first = SIZE * SIZE * np.arange(len(images))[:, None, None]
    pixels = images.reshape(-1, 3)

    def at(row: Indices, column: Indices) -> Floats:
        return np.take(pixels, row + column, axis=0)  # (N, 32, 32, 3)

    above_row, below_row = first + SIZE * fold(rows), first + SIZE * fold(rows + 1)
    left_column, right_column = fold(columns), fold(columns + 1)
    upper = at(above_row, left_column) * (1 - beside) + at(above_row, right_column) * beside
    lower = at(below_row, left_column) * (1 - beside) + at(below_row, right_column) * beside
    return upper * (1 - below) + lower * below


def _mirror(index: Indices) -> Indices:
    """Fold at the border pixels, which are not repeated: -1 is 1."""
    index = index % (2 * SIZE - 2)
    return np.minimum(index, 2 * SIZE - 2 - index)


def _reflect(index: Indices) -> Indices:
    """Fold at the outer sides of the border pixels: -1 is 0."""
    index = index % (2 * SIZE)
    return np.minimum(index, 2 * SIZE - 1 - index)


def pixelate(images: Bytes, scale: float) -> Bytes:
    """Shrink to `int(32 * scale)` pixels by box averaging and enlarge again, both as Pillow does on bytes."""
    small = (int(SIZE * scale), int(SIZE * scale))
    return np.stack([_resize(_resize(image, small), (SIZE, SIZE)) for image in images])


def _resize(image: Bytes, size: tuple[int, int]) -> Bytes:
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX))


def jpeg_compression(images: Bytes, quality: int) -> Bytes:
    """Encode as JPEG at Pillow's `quality` and decode; the bytes depend on the JPEG library Pillow was built with."""
    return np.stack([_through_jpeg(image, quality) for image in images])


def _through_jpeg(image: Bytes, quality: int) -> Bytes:
    stream = BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream))
