"""Between the bytes of an image and what corruptions are defined on: the unit range, and HSV in it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]  # (N, side, side, 3)
Floats = npt.NDArray[np.float64]
Generators = Sequence[np.random.Generator]  # one per image


def to_unit(images: Bytes) -> Floats:
    """Map 0..255 to [0, 1] in double precision."""
    return images / 255.0


def to_bytes(x: Floats) -> Bytes:
    """Clip to [0, 1] and truncate to bytes, as the published data was: 254.9 becomes 254."""
    return (np.clip(x, 0.0, 1.0) * 255.0).astype(np.uint8)


def to_hsv(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Split RGB (..., 3) into hue, saturation and value, each (...) in [0, 1]; greys have hue 0, black saturation 0.

    The order of arithmetic is scikit-image's, so that truncation gives the published bytes.
    """
    red, green, blue = np.moveaxis(x, -1, 0).copy()
    value = np.maximum(np.maximum(red, green), blue)
    chroma = value - np.minimum(np.minimum(red, green), blue)
    divisor = np.where(chroma == 0, 1.0, chroma)
    sixth = np.select(
        [blue == value, green == value],  # of equal channels the last one decides
        [4.0 + (red - green) / divisor, 2.0 + (blue - red) / divisor],
        (green - blue) / divisor,
    )
    hue = np.where(chroma == 0, 0.0, (sixth / 6.0) % 1.0)
    return hue, chroma / np.where(value == 0, 1.0, value), value


def from_hsv(hue: Floats, saturation: Floats, value: Floats) -> Floats:
    """Join hue, saturation and value to RGB (..., 3)."""
    sector = np.floor(hue * 6.0)
    part = hue * 6.0 - sector
    low = value * (1.0 - saturation)
    falling = value * (1.0 - part * saturation)
    rising = value * (1.0 - (1.0 - part) * saturation)
    which = sector.astype(np.intp) % 6
    return np.stack(
        [
            np.choose(which, (value, falling, low, low, rising, value)),
            np.choose(which, (rising, value, value, falling, low, low)),
            np.choose(which, (low, low, rising, value, value, falling)),
        ],
        axis=-1,
    )
