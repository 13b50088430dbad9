"""Image files to 32x32 RGB arrays, with a note of what had to be converted. Needs no torch."""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from mt3.errors import InputError

SIZE = 32
MAX_PIXELS = 50_000_000


def read_image(path: str | Path) -> tuple[NDArray[np.uint8], list[str]]:
    """Read any image file as uint8 (32, 32, 3); the notes say what was converted on the way."""
    path = Path(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own size warning; the limit here is stricter
            with Image.open(path) as file:
                if file.width * file.height > MAX_PIXELS:
                    raise InputError(
                        f"{path} has {file.width} x {file.height} pixels, more than the {MAX_PIXELS // 10**6} "
                        "megapixels that are read; scale it down first."
                    )
                file.load()
                return _convert(file)
    except Image.DecompressionBombError:
        raise InputError(
            f"{path} has more than the {MAX_PIXELS // 10**6} megapixels that are read; scale it down first."
        ) from None
    except UnidentifiedImageError:
        raise InputError(f"{path} is not an image that can be read; give a PNG, JPEG or the like.") from None
    except (OSError, SyntaxError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"Cannot read {path} as an image ({reason}); give a whole PNG, JPEG or the like.") from None


def _convert(file: Image.Image) -> tuple[NDArray[np.uint8], list[str]]:
    notes = []
    if getattr(file, "n_frames", 1) > 1:
        notes.append("only the first frame is read")
    image: Image.Image = ImageOps.exif_transpose(file)
    if image.mode.startswith("I") or image.mode == "F":  # more than 8 bits a value
        values = np.asarray(image, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("some of its values are not numbers")
        high = values.max(initial=0.0)
        top = 65535.0 if image.mode != "F" or high > 255 else 255.0 if high > 1 else 1.0
        image = Image.fromarray((values.clip(0, top) * (255.0 / top)).astype(np.uint8))
        notes.append(f"scaled from 0..{top:g} to 8 bits")
    if image.has_transparency_data:
        background = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(background, image.convert("RGBA"))
        notes.append("transparency laid on white")
    if image.mode in ("1", "L", "LA"):
        notes.append("grey repeated in three channels")
    elif image.mode not in ("RGB", "RGBA"):
        notes.append(f"converted from {image.mode}")
    image = image.convert("RGB")
    if image.size != (SIZE, SIZE):
        notes.append(f"{image.width}x{image.height} cut to its centre square and scaled to {SIZE}x{SIZE}")
        image = ImageOps.fit(image, (SIZE, SIZE), Image.Resampling.LANCZOS)
    return np.asarray(image, dtype=np.uint8), notes
