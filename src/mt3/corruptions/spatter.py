"""Spatter: drops of water or of mud on the lens.

Water needs four of OpenCV's byte operations (Canny, distance transform, equalisation, filters); they are restated here
in whole numbers, so that they agree to the bit, and for whole batches.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from scipy import ndimage

from mt3.corruptions.blur import gaussian
from mt3.corruptions.pixels import SIZE, Bytes, Floats, Generators, to_bytes, to_unit

__all__ = ["canny", "distance", "equalise", "spatter"]

WATER = np.array([175, 238, 238]) / 255.0
MUD = np.array([63, 42, 20]) / 255.0
FAR = 20  # pixels at which the distance to an edge is cut
UNIT = 1 << 16  # of OpenCV's distances, which are whole numbers
# the moves of the distance transform and their lengths: a step, a diagonal and a knight's move
MOVES = {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}
SMOOTH = np.array([1, 2, 1])
SLOPE = np.array([-1, 0, 1])
LIGHT = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])  # a relief lit from the lower right

Whole = npt.NDArray[np.int64]  # (N, 32, 32)
Marks = npt.NDArray[np.bool_]  # (N, 32, 32)
Parameters = tuple[float, float, float, float, float, Literal["water", "mud"]]


def spatter(images: Bytes, spatter_parameters: Parameters, generators: Generators) -> Bytes:
    """Smooth normal noise of `(mean, std)` by `smoothness`; where it reaches `threshold` there is `water` or `mud`.

    `amount` is the largest share of the colour of water, or the softness in pixels of drops of mud.
    """
    mean, std, smoothness, threshold, amount, liquid = spatter_parameters
    noise = np.stack([generator.normal(mean, std, (SIZE, SIZE)) for generator in generators])
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
    levels = (layer * 255).astype(np.int64) % 256  # a cast to bytes that wraps
    shade = np.clip(_correlate(equalise(_box_sum(distance(canny(levels))) // (9 * UNIT)), LIGHT), 0, 255)
    # no ninth lies halfway between whole numbers
    water = levels * ((2 * _box_sum(shade) + 9) // 18)
    brightest = water.max(axis=(1, 2), keepdims=True)
    return water / np.maximum(brightest, 1)


def canny(levels: Whole, low: int = 50, high: int = 150) -> Marks:
    """Mark the edges of byte images: maxima of the slope above `high`, and those above `low` that touch them."""
    padded = np.pad(levels, ((0, 0), (1, 1), (1, 1)), mode="edge")
    across = _filter(padded, SMOOTH[:, None] * SLOPE)
    down = _filter(padded, SLOPE[:, None] * SMOOTH)
    steep = np.pad(np.abs(across) + np.abs(down), ((0, 0), (1, 1), (1, 1)))
    centre = steep[:, 1:-1, 1:-1]

    def at(row: int, column: int) -> Whole:
        return steep[:, 1 + row : 1 + row + SIZE, 1 + column : 1 + column + SIZE]

    # the tangent of 22.5 degrees in units of 2^-15; that of 67.5 degrees is 2 more
    x, y = np.abs(across), np.abs(down) << 15
    flat, upright = y < 13573 * x, y > (13573 + (2 << 15)) * x
    falling = (across ^ down) >= 0  # both slopes have one sign: the gradient runs along the main diagonal
    # of two equal neighbours along an axis the later one counts as the maximum
    peak = np.select(
        [flat, upright, falling],
        [
            (centre > at(0, -1)) & (centre >= at(0, 1)),
            (centre > at(-1, 0)) & (centre >= at(1, 0)),
            (centre > at(-1, -1)) & (centre > at(1, 1)),
        ],
        (centre > at(-1, 1)) & (centre > at(1, -1)),
    )
    candidate = peak & (centre > low)
    within_images = np.zeros((3, 3, 3), dtype=bool)
    within_images[1] = True  # all eight neighbours in the image, none in another
    groups, count = ndimage.label(candidate, within_images)
    kept = np.zeros(count + 1, dtype=bool)
    kept[groups[candidate & (centre > high)]] = True
    kept[0] = False
    return kept[groups]


def distance(edges: Marks) -> Whole:
    """Measure the shortest way to an edge by `MOVES`, in units of 2^-16 pixels, cut at `FAR`."""
    away = np.where(edges, 0, FAR * UNIT)
    moves = {
        (sy * row, sx * column): round(length * UNIT)
        for shape, length in MOVES.items()
        for row, column in (shape, shape[::-1])
        for sy in (-1, 1)
        for sx in (-1, 1)
    }
    while True:  # every way grows by one move, until none gets shorter
        padded = np.pad(away, ((0, 0), (2, 2), (2, 2)), constant_values=FAR * UNIT)
        nearer = away
        for (row, column), length in moves.items():
            shifted = padded[:, 2 + row : 2 + row + SIZE, 2 + column : 2 + column + SIZE]
            nearer = np.minimum(nearer, shifted + length)
        if np.array_equal(nearer, away):
            return away
        away = nearer


def equalise(levels: Whole) -> Whole:
    """Spread the levels of each image (0..255) so that their cumulative counts rise evenly from 0 to 255.

    An image of one level stays as it is.
    """
    every = np.arange(len(levels))[:, None]
    counts = np.bincount((levels.reshape(len(levels), -1) + 256 * every).ravel(), minlength=256 * len(levels))
    counts = counts.reshape(-1, 256)
    lowest = levels.min(axis=(1, 2))[:, None]
    above = np.cumsum(counts, axis=1) - np.take_along_axis(counts, lowest, axis=1)  # pixels from the second level on
    # single precision and rounding to even, as in OpenCV
    scale = np.float32(255) / np.maximum(above[:, -1:], 1).astype(np.float32)
    table = np.rint(above.astype(np.float32) * scale).astype(np.int64)
    table = np.where(above[:, -1:] == 0, lowest, table)
    return table[every[:, :, None], levels]


def _box_sum(x: Whole) -> Whole:
    """Add up the 3 x 3 neighbourhood."""
    return _correlate(x, np.ones((3, 3), dtype=np.int64))


def _correlate(x: Whole, kernel: npt.NDArray[Any]) -> Whole:
    """Correlate with a 3 x 3 kernel; the border mirrors without repeating its pixel (reflect-101)."""
    return _filter(np.pad(x, ((0, 0), (1, 1), (1, 1)), mode="reflect"), kernel)


def _filter(padded: Whole, kernel: npt.NDArray[Any]) -> Whole:
    result: Whole = np.einsum("nyxij,ij->nyx", sliding_window_view(padded, (3, 3), axis=(1, 2)), kernel)
    return result
