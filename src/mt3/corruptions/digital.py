"""Digital processing: contrast, saturation, resolution, compression."""

from io import BytesIO

import numpy as np
from PIL import Image

from mt3.corruptions.pixels import SIZE, Bytes, to_bytes, to_unit

__all__ = ["contrast", "jpeg_compression", "pixelate", "saturate"]


def contrast(images: Bytes, factor: float) -> Bytes:
    """Scale each value's distance to its image's channel mean by `factor`."""
    # whole numbers sum without rounding, so the mean does not depend on the size of the batch
    mean = images.sum(axis=(1, 2), keepdims=True, dtype=np.int64) / (255.0 * SIZE * SIZE)
    return to_bytes((to_unit(images) - mean) * factor + mean)


def saturate(images: Bytes, line: tuple[float, float]) -> Bytes:
    """Replace S of HSV by `slope * S + offset`, clipped to [0, 1].

    At fixed hue and value a channel's distance to the largest is proportional to S. Grey has the hue 0, so an offset
    turns it red.
    """
    slope, offset = line
    x = to_unit(images)
    value = x.max(axis=3, keepdims=True)
    chroma = value - x.min(axis=3, keepdims=True)
    saturation = np.divide(chroma, value, out=np.zeros_like(value), where=value > 0)
    wanted = np.clip(slope * saturation + offset, 0.0, 1.0)
    red = np.broadcast_to(np.array([0.0, 1.0, 1.0]), x.shape)  # distances to the largest channel, in units of chroma
    distance = np.divide(value - x, chroma, out=red.copy(), where=chroma > 0)
    return to_bytes(value - value * wanted * distance)


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
