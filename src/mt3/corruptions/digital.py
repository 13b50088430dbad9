"""Digital processing: contrast, saturation, geometry, resolution, compression."""

from io import BytesIO
from typing import Literal

import numpy as np
from PIL import Image
from scipy import ndimage

from mt3.corruptions.pixels import Bytes, Floats, Generators, from_hsv, to_bytes, to_hsv, to_unit


def contrast(images: Bytes, factor: float) -> Bytes:
    """Scale each value's distance to its image's channel mean by `factor`."""
    # whole numbers sum without rounding, so the mean does not depend on the size of the batch
    mean = images.sum(axis=(1, 2), keepdims=True, dtype=np.int64) / (255.0 * images.shape[1] * images.shape[2])
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
    side = images.shape[1]
    strength, smoothness, shear = (side * share for share in elastic_parameters)
    near, far = side // 2 - side // 3, side // 2 + side // 3
    corners = np.array([[far, far], [far, near], [near, near]], dtype=np.float64)  # as (x, y)
    shifts = np.stack([generator.uniform(-shear, shear, (3, 2)) for generator in generators])
    # (x, y, 1) of a moved point times this matrix is where it came from
    moved = np.pad(corners + shifts, ((0, 0), (0, 0), (0, 1)), constant_values=1.0)
    back = np.linalg.solve(moved, np.broadcast_to(corners, shifts.shape))  # (N, 3, 2)
    y, x = np.mgrid[:side, :side].astype(np.float64)
    by_x, by_y, offset = back.transpose(1, 2, 0)[..., None, None]  # each (2, N, 1, 1), for x and y
    from_x, from_y = x * by_x + y * by_y + offset
    warped = _sample(to_unit(images), from_y, from_x, "reflect")
    if strength == 0:
        return to_bytes(warped)
    noise = np.stack([generator.uniform(-1, 1, (2, side, side)) for generator in generators])
    right, down = strength * _smooth(noise, smoothness).transpose(1, 0, 2, 3)
    return to_bytes(_sample(warped, y + down, x + right, "symmetric"))


def _smooth(noise: Floats, std: float) -> Floats:
    """Filter the last two axes with a Gaussian cut at 3 std; the border mirrors and repeats its pixel."""
    side = noise.shape[-1]
    filtered: Floats
    if 3 * std < side:
        filtered = ndimage.gaussian_filter(noise, std, mode="reflect", truncate=3.0, axes=(2, 3))
    else:  # a longer kernel folds back on the line, so that a matrix takes less work
        lines = ndimage.gaussian_filter1d(np.eye(side), std, axis=0, mode="reflect", truncate=3.0)
        filtered = lines @ noise @ lines.T
    return filtered


def _sample(images: Floats, y: Floats, x: Floats, border: Literal["reflect", "symmetric"]) -> Floats:
    """Interpolate (N, side, side, 3) linearly at (y, x), each (N, side, side); outside, `border` is `np.pad`'s."""
    side = images.shape[1]
    # which pixel of a line the border repeats, over one period
    inside = np.pad(np.arange(side), (0, side - 2 if border == "reflect" else side), mode=border)
    above, left = np.floor(y).astype(np.intp), np.floor(x).astype(np.intp)
    down, right = (y - above)[..., None], (x - left)[..., None]
    image = np.arange(len(images))[:, None, None]
    first, second = inside[left % len(inside)], inside[(left + 1) % len(inside)]
    upper, lower = (
        images[image, row, first] * (1 - right) + images[image, row, second] * right  # (N, side, side, 3)
        for row in (inside[above % len(inside)], inside[(above + 1) % len(inside)])
    )
    return upper * (1 - down) + lower * down


def pixelate(images: Bytes, scale: float) -> Bytes:
    """Shrink to `int(side * scale)` pixels by box averaging and enlarge again, both as Pillow does on bytes."""
    side = images.shape[1]
    return np.stack([_resize(_resize(image, int(side * scale)), side) for image in images])


def _resize(image: Bytes, side: int) -> Bytes:
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BOX))


def jpeg_compression(images: Bytes, quality: int) -> Bytes:
    """Encode as JPEG at Pillow's `quality` and decode; the bytes depend on the JPEG library Pillow was built with."""
    return np.stack([_through_jpeg(image, quality) for image in images])


def _through_jpeg(image: Bytes, quality: int) -> Bytes:
    stream = BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream))
