"""Between the bytes of an image and the unit range that corruptions are defined on."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["SIZE", "Bytes", "Floats", "Generators", "to_bytes", "to_unit"]

SIZE = 32  # side in pixels; every parameter of the registry is made for it

Bytes = npt.NDArray[np.uint8]  # (N, 32, 32, 3)
Floats = npt.NDArray[np.float64]
Generators = Sequence[np.random.Generator]  # one per image


def to_unit(images: Bytes) -> Floats:
    """Map 0..255 to [0, 1] in double precision."""
    return images / 255.0


def to_bytes(x: Floats) -> Bytes:
    """Clip to [0, 1] and truncate to bytes, as the published data was: 254.9 becomes 254."""
    return (np.clip(x, 0.0, 1.0) * 255.0).astype(np.uint8)
