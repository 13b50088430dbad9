"""Motion blur as ImageMagick defines it, for `motion_blur` and for falling `snow`."""

from math import ceil

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mt3.corruptions.pixels import SIZE, Bytes, Floats

__all__ = ["smear"]


def smear(images: Bytes, radius: float, std: float, degrees: Floats) -> Bytes:
    """Blur bytes (N, 32, 32, channels) along one ray per image and round to bytes; the border repeats its pixel.

    Tap i lies i pixels along the ray, rounded to whole pixels, and weighs exp(-i^2 / (2 std^2)); there are
    2 ceil(radius) + 1 taps. 0 degrees point right, 90 degrees down.
    """
    taps = np.arange(2 * ceil(radius) + 1)
    weights = np.exp(-(taps**2) / (2.0 * std**2))
    weights /= weights.sum()
    reach = len(taps) - 1
    angles = np.radians(degrees)[:, None]
    rows = reach + np.ceil(taps * np.sin(angles) - 0.5).astype(np.intp)  # (N, taps)
    columns = reach + np.ceil(taps * np.cos(angles) - 0.5).astype(np.intp)
    padded = np.pad(images, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    windows = np.moveaxis(sliding_window_view(padded, (SIZE, SIZE), axis=(1, 2)), 3, 5)  # (N, rows, columns, 32, 32, C)
    every = np.arange(len(images))
    total = np.zeros(images.shape)
    for tap, weight in enumerate(weights):
        total += weight * windows[every, rows[:, tap], columns[:, tap]]
    # ImageMagick rounds to 16 bits and then to 8, which is rounding halves up once: the steps of 16 bits are 257ths
    return (total + 0.5).astype(np.uint8)
