"""Image files to square RGB arrays, with a note of what had to be converted. Needs no torch."""

import io
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from mt3.support.errors import InputError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")
KINDS = "PNG, JPEG, WebP, BMP, TIFF or GIF"
# memory is bounded by all three: a decoded pixel takes up to 4 bytes, a row a pointer, and WebP is read whole
MAX_PIXELS = 50_000_000
MAX_SIDE = 20_000
MAX_BYTES = 8 * MAX_PIXELS
DRAFT = 8  # a JPEG is decoded at a half, a quarter or an eighth if its sides stay so many times as long as needed
FIRST_FRAME = "only the first frame is read"  # the note on animated files and on those of several pages
ORIENTATION, ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # of EXIF


class TooLargeError(InputError):
    """An image has more pixels or bytes than are read."""


def read_image(path: str | Path, size: int) -> tuple[NDArray[np.uint8], list[str]]:
    """Read an image file of the common formats as uint8 (size, size, 3); the notes say what was converted for that."""
    with _one_sentence(str(path)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own size warning; the limit here is stricter
        _check_file(Path(path))
        return _read(Path(path), size, MAX_PIXELS)


def read_image_bytes(
    content: bytes, size: int, name: str, max_pixels: int = MAX_PIXELS
) -> tuple[NDArray[np.uint8], list[str]]:
    """As `read_image`, from a file's content; any number of threads may do this at a time."""
    with _one_sentence(name, max_pixels):
        return _read(io.BytesIO(content), size, max_pixels)


@contextmanager
def _one_sentence(name: str, max_pixels: int = MAX_PIXELS) -> Iterator[None]:
    """Say in one sentence what is wrong with an image."""
    try:
        yield
    except InputError:
        raise
    except Image.DecompressionBombError:
        raise TooLargeError(
            f"{name} has more than the {max_pixels / 10**6:g} megapixels or the sides of {MAX_SIDE} pixels that are "
            "read; scale it down first."
        ) from None
    except UnidentifiedImageError:
        raise InputError(f"{name} is not an image that can be read; give a {KINDS}.") from None
    except MemoryError:
        raise InputError(f"There is not enough memory to read {name}; scale it down first.") from None
    except Exception as error:  # damaged bytes can raise anything in Pillow's readers
        told = isinstance(error, OSError | SyntaxError | ValueError)
        reason = getattr(error, "strerror", None) or (str(error) if told else "") or "it is damaged"
        raise InputError(f"Cannot read {name} as an image ({reason}); give a whole {KINDS}.") from None


@contextmanager
def silent_readers() -> Iterator[None]:
    """Keep off stderr what C libraries print there by themselves, as libtiff does; for a process of one thread."""
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _check_file(path: Path) -> None:
    """Refuse what is no file, of which a pipe would never end, and what is too long to be one of these images."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        what = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
        raise OSError(f"it is {what}, not a file")
    if status.st_size > MAX_BYTES:
        raise TooLargeError(f"{path} is longer than the {MAX_BYTES // 10**6} MB that are read; scale it down first.")


def _read(source: Path | BinaryIO, size: int, max_pixels: int) -> tuple[NDArray[np.uint8], list[str]]:
    """Cut, turn upright and scale the first frame before what is left is converted: that needs the least memory."""
    with Image.open(source, formats=FORMATS) as file:
        width, height = file.size
        if width * height > max_pixels or max(file.size) > MAX_SIDE:
            raise Image.DecompressionBombError
        file.draft(None, (DRAFT * size, DRAFT * size))
        file.load()
        # the centre square, and a pixel more where its middle would lie between two pixels
        left, top = ((side - min(file.size)) // 2 for side in file.size)
        square = file.crop((left, top, file.width - left, file.height - top))
        notes = [FIRST_FRAME] if _has_more_frames(file) else []
    if square.getexif().get(ORIENTATION) in ON_ITS_SIDE:
        width, height = height, width
    ImageOps.exif_transpose(square, in_place=True)
    deep = square.mode.startswith("I") or square.mode == "F"  # more than 8 bits a value
    image = square.convert("F") if deep else _in_scalable_mode(square)
    high = cast(float, image.getextrema()[1]) if deep else 255.0
    if image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.LANCZOS)
    if deep:
        white = 65535.0 if square.mode != "F" or high > 255 else 255.0 if high > 1 else 1.0
        image = _to_eight_bits(image, white)
        notes.append(f"scaled from 0..{white:g} to 8 bits")
    if image.mode in ("RGBA", "LA"):
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        notes.append("transparency laid on white")
    elif image.mode == "L":
        notes.append("grey repeated in three channels")
    elif square.mode != "RGB":
        notes.append(f"converted from {square.mode}")
    if (width, height) != (size, size):
        notes.append(f"{width}x{height} cut to its centre square and scaled to {size}x{size}")
    return np.asarray(image.convert("RGB"), dtype=np.uint8), notes


def _has_more_frames(file: Image.Image) -> bool:
    if file.format == "MPO":  # a camera's JPEG: what follows the photo is its preview
        return False
    try:
        return bool(getattr(file, "is_animated", False))
    except Exception:  # the second frame is damaged
        return True


def _in_scalable_mode(image: Image.Image) -> Image.Image:
    """The image in a mode whose values can be averaged, with its transparency in a channel of its own."""
    if image.has_transparency_data:
        return image if image.mode in ("RGBA", "LA") else image.convert("RGBA")
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _to_eight_bits(image: Image.Image, white: float) -> Image.Image:
    values = np.asarray(image, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("some of its values are not numbers")
    return Image.fromarray((values.clip(0, white) * (255.0 / white)).astype(np.uint8))
