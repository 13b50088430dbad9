"""Blurs: out of focus, through frosted glass, in motion, while zooming."""

from functools import cache
from math import ceil

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from scipy import ndimage, sparse

from mt3.corruptions.pixels import SIZE, Bytes, Floats, Generators, to_bytes, to_unit


def defocus_blur(images: Bytes, disk_parameters: tuple[float, float]) -> Bytes:
    """Filter with the disk of `(radius, softness)`; the border mirrors without repeating its pixel (reflect-101)."""
    kernel = disk(*disk_parameters)
    return to_bytes(ndimage.correlate(to_unit(images), kernel[None, :, :, None], mode="mirror"))


def disk(radius: float, softness: float) -> npt.NDArray[np.float32]:
    """Build the 17 x 17 disk kernel: pixels within `radius` (up to 8), smoothed by a 3 x 3 Gaussian of std `softness`.

    A radius below 1 leaves the centre pixel alone, so there the Gaussian is the whole blur. Single precision is the
    published generator's: its rounding decides on which side of a whole number a flat area is truncated.
    """
    line = np.arange(-8, 9)
    kernel = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float32)
    kernel /= kernel.sum()
    gauss = np.exp(-(np.arange(-1, 2) ** 2) / (2 * softness**2))
    gauss = (gauss / gauss.sum()).astype(np.float32)
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, gauss, axis=axis, mode="mirror")
    return kernel


def gaussian_blur(images: Bytes, std: float) -> Bytes:
    """Filter with a Gaussian of `std` pixels, cut at 4 std; the border repeats its pixel."""
    return to_bytes(gaussian(to_unit(images), std))


def gaussian(x: Floats, std: float) -> Floats:
    """Filter rows and columns of (N, 32, 32, ...) as `gaussian_blur` does."""
    filtered: Floats = ndimage.gaussian_filter(x, std, mode="nearest", truncate=4.0, axes=(1, 2))
    return filtered


def glass_blur(images: Bytes, glass_parameters: tuple[float, int], generators: Generators) -> Bytes:
    """Blur by `std`, replace pixels by near ones `passes` times, and blur again.

    In a pass every pixel but those of the first two rows and columns becomes the one 0 or 1 above and 0 or 1 to the
    left, each with probability one half. The published generator goes from the last pixel to the first and means to
    swap, but its assignment of views copies one way. So a source is always a pixel not yet visited, and a pass is one
    parallel gather.
    """
    std, passes = glass_parameters
    inner = (SIZE - 2, SIZE - 2)
    up_and_left = np.stack([generator.integers(0, 2, (passes, 2, *inner)) for generator in generators])
    source = np.broadcast_to(np.arange(SIZE * SIZE), (len(images), SIZE * SIZE))  # of each pixel, (N, 1024)
    for up, left in up_and_left.transpose(1, 2, 0, 3, 4):
        step = np.zeros((len(images), SIZE, SIZE), dtype=np.intp)
        step[:, 2:, 2:] = SIZE * up + left
        source = np.take_along_axis(source, np.arange(SIZE * SIZE) - step.reshape(len(images), -1), axis=1)
    pixels = to_bytes(gaussian(to_unit(images), std)).reshape(len(images), -1, 3)  # (N, 1024, 3)
    shuffled = np.take_along_axis(pixels, source[..., None], axis=1).reshape(images.shape)
    return to_bytes(gaussian(to_unit(shuffled), std))


def motion_blur(images: Bytes, motion_parameters: tuple[float, float], generators: Generators) -> Bytes:
    """Smear by `(radius, std)` in a direction within 45 degrees of the rows."""
    radius, std = motion_parameters
    return smear(images, radius, std, np.array([generator.uniform(-45, 45) for generator in generators]))


def smear(images: Bytes, radius: float, std: float, degrees: Floats) -> Bytes:
    """Blur bytes (N, 32, 32, channels) along one ray per image as ImageMagick does; the border repeats its pixel.

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


def zoom_blur(images: Bytes, largest: float) -> Bytes:
    """Average the image with its centre zooms by 1, 1.01, ... up to `largest`; the zoom by 1 is one more copy of it."""
    x = to_unit(images)
    columns = x.transpose(1, 2, 0, 3).reshape(SIZE * SIZE, -1)  # (pixels, N * channels)
    blurred = (_zoom_operator(largest) @ columns).reshape(SIZE, SIZE, len(images), 3)
    return to_bytes(blurred.transpose(2, 0, 1, 3))


@cache
def _zoom_operator(largest: float) -> sparse.csr_array:
    """Assemble `zoom_blur` as one sparse matrix over the pixels, (1024, 1024)."""
    total = sparse.identity(SIZE * SIZE)
    factors = np.arange(1, largest + 0.005, 0.01)  # half a step more keeps `largest` in, whatever the steps' rounding
    for factor in factors:
        lines = sparse.csr_array(zoom_lines(factor))
        total = total + sparse.kron(lines, lines)  # a zoom treats rows and columns alike
    return sparse.csr_array(total / (len(factors) + 1))


def zoom_lines(factor: float) -> Floats:
    """Express the zoom of one line of pixels, cropped to its centre, as a matrix (32, 32)."""
    crop = ceil(SIZE / factor)
    top = (SIZE - crop) // 2
    zoomed: Floats = ndimage.zoom(np.eye(SIZE)[top : top + crop], (factor, 1), order=1)
    trim = (len(zoomed) - SIZE) // 2
    return zoomed[trim : trim + SIZE]
