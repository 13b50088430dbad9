"""Spatter: drops of water or of mud on the lens.

Water needs operations of OpenCV (Canny, distance transform, equalisation, filters); they are restated here in whole
numbers, so that they give its bytes, and for whole batches.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from mt3.corruptions.blur import gaussian
from mt3.corruptions.pixels import Bytes, Floats, Generators, to_bytes, to_unit

WATER = np.array([175, 238, 238]) / 255.0
MUD = np.array([63, 42, 20]) / 255.0
UNIT = 10_000  # to the pixel: with whole numbers, no rounding decides where a distance is truncated
FAR = 20 * UNIT  # distances to an edge are cut here
# the moves (rows, columns) of the distance transform: a step, a diagonal and a knight's move in every direction
MOVES = {
    (row, column): np.int32(round(length * UNIT))
    for row in range(-2, 3)
    for column in range(-2, 3)
    for shape, length in (((0, 1), 1.0), ((1, 1), 1.4), ((1, 2), 2.1969))
    if tuple(sorted((abs(row), abs(column)))) == shape
}
# 3 x 3 filters: Sobel's of the slope to the right, and light from the lower right
SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
BOX = np.ones((3, 3), dtype=np.int64)
LIGHT = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
NEIGHBOURS = np.zeros((3, 3, 3), dtype=bool)
NEIGHBOURS[1] = True  # the eight in the same image, none in another

Whole = npt.NDArray[np.int64]  # (N, side, side)
Marks = npt.NDArray[np.bool_]  # (N, side, side)
Parameters = tuple[float, float, float, float, float, Literal["water", "mud"]]


def spatter(images: Bytes, spatter_parameters: Parameters, generators: Generators) -> Bytes:
    """Smooth normal noise of `(mean, std)` by `smoothness`; where it reaches `threshold` there is `water` or `mud`.

    `amount` is the largest share of the colour of water, or the softness in pixels of drops of mud.
    """
    mean, std, smoothness, threshold, amount, liquid = spatter_parameters
    noise = np.stack([generator.normal(mean, std, images.shape[1:3]) for generator in generators])
    layer = gaussian(noise, smoothness)
    layer[layer < threshold] = 0
    if liquid == "water":
        share = amount * _water(layer)[..., None]
        return to_bytes(to_unit(images) + share * WATER)
    share = gaussian((layer > threshold).astype(np.float64), amount)[..., None]
    share[share < 0.8] = 0
    return to_bytes(to_unit(images) * (1 - share) + share * MUD)


def _water(layer: Floats) -> Floats:
    """Shade the drops of `layer` by their distance to the rims, as if lit from one side; the brightest has 1."""
    levels = (layer * 255).astype(np.int64) % 256  # as a cast to bytes does, which wraps
    depth = _correlate(distance(canny(levels)), BOX) // (9 * UNIT)
    relief = np.clip(_correlate(equalise(depth), LIGHT), 0, 255)
    water = levels * (
        (2 * _correlate(relief, BOX) + 9) // 18
    )  # a sum of whole numbers over 9, rounded: there are no ties
    shade: Floats = water / np.maximum(water.max(axis=(1, 2), keepdims=True), 1)
    return shade


def canny(levels: Whole, low: int = 50, high: int = 150) -> Marks:
    """Mark the edges of byte images: maxima of the slope above `high`, and those above `low` that touch them."""
    across, down = _correlate(levels, SOBEL, "nearest"), _correlate(levels, SOBEL.T, "nearest")
    slope = np.abs(across) + np.abs(down)
    candidates = _is_peak(slope, across, down) & (slope > low)
    groups, count = ndimage.label(candidates, NEIGHBOURS)
    kept = np.zeros(count + 1, dtype=bool)
    kept[groups[candidates & (slope > high)]] = True
    edges: Marks = kept[groups]
    return edges


def _is_peak(slope: Whole, across: Whole, down: Whole) -> Marks:
    """Tell where the slope exceeds that on both sides along the gradient, whose direction is one of four."""
    padded = np.pad(slope, ((0, 0), (1, 1), (1, 1)))
    side = slope.shape[1]

    def beside(row: int, column: int) -> Whole:
        return padded[:, 1 + row : 1 + row + side, 1 + column : 1 + column + side]

    # the tangents of 22.5 and 67.5 degrees, which are 2 apart, in units of 2^-15
    x, y = np.abs(across), np.abs(down) << 15
    is_flat, is_steep = y < 13573 * x, y > (13573 + (2 << 15)) * x
    has_one_sign = (across ^ down) >= 0  # the gradient runs along the main diagonal
    return np.select(
        [is_flat, is_steep, has_one_sign],
        [
            (slope > beside(0, -1)) & (slope >= beside(0, 1)),  # of two equal neighbours the first is the peak
            (slope > beside(-1, 0)) & (slope >= beside(1, 0)),
            (slope > beside(-1, -1)) & (slope > beside(1, 1)),
        ],
        (slope > beside(-1, 1)) & (slope > beside(1, -1)),
    )


def distance(edges: Marks) -> Whole:
    """Measure the shortest way to an edge by `MOVES`, in 1 / `UNIT` pixels, cut at `FAR`."""
    side = edges.shape[1]
    padded = np.pad(np.where(edges, 0, FAR), ((0, 0), (2, 2), (2, 2)), constant_values=FAR).astype(np.int32)
    away = padded[:, 2:-2, 2:-2]
    while True:  # every way grows by one move, until none gets shorter
        nearer = away.copy()
        for (row, column), length in MOVES.items():
            shifted = padded[:, 2 + row : 2 + row + side, 2 + column : 2 + column + side]
            np.minimum(nearer, shifted + length, out=nearer)
        if np.array_equal(nearer, away):
            return nearer.astype(np.int64)
        away[...] = nearer


def equalise(levels: Whole) -> Whole:
    """Spread the levels (0..255) of each image so that 0..255 rise with the share of pixels above the lowest level.

    An image of one level stays as it is.
    """
    return np.stack([_equalise(image) for image in levels])


def _equalise(levels: Whole) -> Whole:
    counts = np.bincount(levels.ravel(), minlength=256)
    risen = np.cumsum(counts) - counts[levels.min()]  # pixels from the second level up to each
    if not risen[-1]:
        return levels
    # in single precision and rounded to even, as OpenCV does
    spread = np.rint(risen.astype(np.float32) * (np.float32(255) / np.float32(risen[-1]))).astype(np.int64)
    return np.take(spread, levels)


def _correlate(x: Whole, kernel: Whole, border: Literal["mirror", "nearest"] = "mirror") -> Whole:
    """Correlate with a 3 x 3 kernel; `mirror` does not repeat the border's pixel (reflect-101), `nearest` does."""
    filtered: Whole = ndimage.correlate(x, kernel[None], mode=border)
    return filtered
