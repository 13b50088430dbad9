"""Blurs: out of focus, through frosted glass, in motion, while zooming."""

from functools import lru_cache
from math import ceil

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from scipy import fft, ndimage, sparse

from mt3.corruptions.pixels import Bytes, Floats, Generators, to_bytes, to_unit

FEW = 24  # weights of a kernel, up to which a sum over them is faster than Fourier's transform


def defocus_blur(images: Bytes, disk_parameters: tuple[float, float]) -> Bytes:
    """Filter with the disk of `(radius, softness)`; the border mirrors without repeating its pixel (reflect-101)."""
    kernel = disk(*disk_parameters)
    if np.count_nonzero(kernel > 1e-9) <= FEW:
        return to_bytes(ndimage.correlate(to_unit(images), kernel[None, :, :, None], mode="mirror"))
    return to_bytes(np.stack([_filter(image, kernel) for image in to_unit(images)]))


def _filter(x: Floats, kernel: npt.NDArray[np.float32]) -> Floats:
    """Filter one image (side, side, channels) with a symmetric kernel by Fourier's transform, the border mirrored."""
    side, reach = len(x), len(kernel) // 2
    padded = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    shape = [fft.next_fast_len(len(padded), real=True)] * 2
    weights = fft.rfft2(kernel.astype(np.float64), shape)[..., None]
    filtered: Floats = fft.irfft2(fft.rfft2(padded, shape, axes=(0, 1)) * weights, shape, axes=(0, 1))
    return filtered[2 * reach :, 2 * reach :][:side, :side]


def disk(radius: float, softness: float) -> npt.NDArray[np.float32]:
    """Build the disk kernel: pixels within `radius`, smoothed by a Gaussian of std `softness`.

    Up to a radius of 8 it has 17 x 17 pixels and the Gaussian 3 x 3, beyond `2 radius + 1` and 5 x 5. A radius below 1
    leaves the centre pixel alone, so there the Gaussian is the whole blur. Single precision is the published
    generator's: its rounding decides on which side of a whole number a flat area is truncated.
    """
    reach, soft_reach = (8, 1) if radius <= 8 else (int(radius), 2)
    line = np.arange(-reach, reach + 1)
    kernel = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float32)
    kernel /= kernel.sum()
    gauss = np.exp(-(np.arange(-soft_reach, soft_reach + 1) ** 2) / (2 * softness**2))
    gauss = (gauss / gauss.sum()).astype(np.float32)
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, gauss, axis=axis, mode="mirror")
    return kernel


def gaussian_blur(images: Bytes, std: float) -> Bytes:
    """Filter with a Gaussian of `std` pixels, cut at 4 std; the border repeats its pixel."""
    return to_bytes(gaussian(to_unit(images), std))


def gaussian(x: Floats, std: float) -> Floats:
    """Filter rows and columns of (N, side, side, ...) as `gaussian_blur` does."""
    filtered: Floats = ndimage.gaussian_filter(x, std, mode="nearest", truncate=4.0, axes=(1, 2))
    return filtered


def glass_blur(images: Bytes, glass_parameters: tuple[float, int, int], generators: Generators) -> Bytes:
    """Blur by `std`, replace pixels by ones up to `reach` away `passes` times, and blur again.

    A pass leaves the first `reach + 1` and the last `reach - 1` rows and columns alone. Every other pixel takes over
    one from `reach` above to `reach - 1` below, and as far to the left and right, all alike. The published generator
    goes from the last pixel to the first and means to swap, but its assignment of views copies one way.
    """
    std, reach, passes = glass_parameters
    side = images.shape[1]
    inner = slice(reach + 1, side - reach + 1)
    shape = (passes, 2, side - 2 * reach, side - 2 * reach)
    up_and_left = np.stack([generator.integers(0, 2 * reach, shape) for generator in generators]) - (reach - 1)
    source = np.broadcast_to(np.arange(side * side), (len(images), side * side))  # of each pixel, (N, pixels)
    for up, left in up_and_left.transpose(1, 2, 0, 3, 4):
        step = np.zeros((len(images), side, side), dtype=np.intp)
        step[:, inner, inner] = side * up + left
        source = np.take_along_axis(source, _taken(step.reshape(len(images), -1)), axis=1)
    pixels = to_bytes(gaussian(to_unit(images), std)).reshape(len(images), -1, 3)  # (N, pixels, 3)
    shuffled = np.take_along_axis(pixels, source[..., None], axis=1).reshape(images.shape)
    return to_bytes(gaussian(to_unit(shuffled), std))


def _taken(step: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Tell which pixel's value each takes over, (N, pixels), if pixel i takes over i - step one after the other.

    A pixel further on has been visited before, so it hands on what it took itself; a pixel before has its own value.
    """
    taken = np.arange(step.shape[1]) - step
    waits = step < 0
    while waits.any():
        image, pixel = np.nonzero(waits)
        giver = taken[image, pixel]
        taken[image, pixel], waits[image, pixel] = taken[image, giver], waits[image, giver]
    return taken


def motion_blur(images: Bytes, motion_parameters: tuple[float, float], generators: Generators) -> Bytes:
    """Smear by `(radius, std)` in a direction within 45 degrees of the rows."""
    radius, std = motion_parameters
    return smear(images, radius, std, np.array([generator.uniform(-45, 45) for generator in generators]))


def smear(images: Bytes, radius: float, std: float, degrees: Floats) -> Bytes:
    """Blur bytes (N, side, side, channels) along one ray per image as ImageMagick does; the border repeats its pixel.

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
    # (N, rows, columns, side, side, channels)
    windows = np.moveaxis(sliding_window_view(padded, images.shape[1:3], axis=(1, 2)), 3, 5)
    every = np.arange(len(images))
    total = np.zeros(images.shape)
    for tap, weight in enumerate(weights):
        total += weight * windows[every, rows[:, tap], columns[:, tap]]
    # ImageMagick rounds to 16 bits and then to 8, which is rounding halves up once: the steps of 16 bits are 257ths
    return (total + 0.5).astype(np.uint8)


def zoom_blur(images: Bytes, zoom_parameters: tuple[float, float]) -> Bytes:
    """Average the image with its centre zooms from 1 to `largest` in steps of `step`; that by 1 is a second copy."""
    largest, step = zoom_parameters
    side = images.shape[1]
    factors = np.arange(1, largest + step / 2, step)  # half a step more keeps `largest` in, whatever the rounding
    x = to_unit(images)
    columns = x.transpose(1, 2, 0, 3).reshape(side * side, -1)  # (pixels, N * channels)
    blurred = (_zoom_operator(tuple(factors), side) @ columns).reshape(side, side, len(images), 3)
    return to_bytes(blurred.transpose(2, 0, 1, 3))


@lru_cache(maxsize=2)  # at 512 pixels a matrix takes up to 154 MB
def _zoom_operator(factors: tuple[float, ...], side: int) -> sparse.csr_array:
    """Assemble `zoom_blur` as one sparse matrix over the pixels, (pixels, pixels)."""
    total = sparse.identity(side * side)
    for factor in factors:
        lines = sparse.csr_array(zoom_lines(factor, side))
        total = total + sparse.kron(lines, lines)  # a zoom treats rows and columns alike
    return sparse.csr_array(total / (len(factors) + 1))


def zoom_lines(factor: float, side: int) -> Floats:
    """Express the zoom of one line of pixels, cropped to its centre, as a matrix (side, side)."""
    crop = ceil(side / factor)
    top = (side - crop) // 2
    zoomed: Floats = ndimage.zoom(np.eye(side)[top : top + crop], (factor, 1), order=1)
    trim = (len(zoomed) - side) // 2
    return zoomed[trim : trim + side]
