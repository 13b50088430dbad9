"""Weather: fog and the light of the day."""

import numpy as np

from mt3.corruptions.pixels import SIZE, Bytes, Floats, Generators, to_bytes, to_unit

__all__ = ["brightness", "fog", "plasma"]


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
    """Add `shift` to V of HSV.

    At fixed hue and saturation all channels are proportional to V, the largest of them; black turns grey.
    """
    x = to_unit(images)
    value = x.max(axis=3, keepdims=True)
    shape = np.divide(x, value, out=np.ones_like(x), where=value > 0)
    return to_bytes(shape * np.minimum(value + shift, 1.0))
