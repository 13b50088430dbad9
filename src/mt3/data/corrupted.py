"""Corrupted test sets in the layout of CIFAR-10-C, of square images of any size: one .npy array for each corruption."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt3.data.dataset import Images, Labels, check_labels
from mt3.support.errors import WORD, InputError, name_list, shown, suggest
from mt3.support.files import read_json

AGAIN = "copy or download it again"


@dataclass(frozen=True, eq=False)
class CorruptedSet:
    """A directory in the layout of CIFAR-10-C: in each `<corruption>.npy`, `images` images for every severity."""

    directory: Path
    severities: tuple[int, ...]
    images: int
    size: int  # pixels, the side of the images
    labels: Labels  # (images,), the same for every corruption and severity

    def names(self) -> list[str]:
        """List the corruptions that are there, sorted."""
        return _corruption_names(self.directory)

    def images_of(self, corruption: str, severity: int) -> Images:
        """Return the (images, size, size, 3) test images at one severity: a read-only, memory-mapped view."""
        names = self.names()
        if corruption not in names:
            close = suggest(corruption, names)
            raise InputError(f"No {shown(corruption)}.npy in {self.directory}{close}: it has {name_list(names)}.")
        if severity not in self.severities:
            raise InputError(f"{self.directory} has no severity {severity}: it has {name_list(self.severities)}.")
        path = self.directory / f"{corruption}.npy"
        array = map_images(path)
        expected = (len(self.severities) * self.images, self.size, self.size, 3)
        if array.shape != expected:
            raise InputError(
                f"{path} has the shape {array.shape}, expected {expected} "
                f"({len(self.severities)} severities of {self.images} images); {AGAIN}."
            )
        start = self.severities.index(severity) * self.images
        return array[start : start + self.images]


def open_corrupted(directory: str | Path, num_classes: int | None = None) -> CorruptedSet:
    """Open a corrupted test set without reading its images.

    Severities are 1 to 5, or those of `protocol.json` beside the arrays (`severities` rising). With `num_classes`, the
    labels must be below it.
    """
    directory = Path(directory)
    names = _corruption_names(directory)
    if not names:
        raise InputError(f"{directory.absolute()} holds no <corruption>.npy: pass a directory laid out as CIFAR-10-C.")
    severities = _read_severities(directory / "protocol.json")
    first = directory / f"{names[0]}.npy"
    array = map_images(first)
    images, rest = divmod(len(array), len(severities))
    if rest or not images:
        raise InputError(f"{first} cannot be split into {len(severities)} equal severities; {AGAIN}.")
    labels = _read_labels(directory / "labels.npy", len(severities), images)
    if num_classes is not None:
        check_labels(labels, num_classes, directory / "labels.npy")
    return CorruptedSet(directory, severities, images, array.shape[1], labels)


def _corruption_names(directory: Path) -> list[str]:
    return sorted(p.stem for p in directory.glob("[!.]*.npy") if p.name != "labels.npy")


def _read_severities(path: Path) -> tuple[int, ...]:
    severities = (read_json(path) if path.exists() else {}).get("severities", [1, 2, 3, 4, 5])
    whole = isinstance(severities, list) and all(type(s) is int and s > 0 for s in severities)
    if not whole or not severities or severities != sorted(set(severities)):
        raise InputError(f"{path}: severities must be rising whole numbers such as [1, 3, 5], got {shown(severities)}.")
    return tuple(severities)


def _read_labels(path: Path, severities: int, images: int) -> Labels:
    labels = _map_array(path)
    if labels.dtype.kind not in "iu" or labels.shape not in ((images,), (severities * images,)):
        raise InputError(
            f"{path} has labels of {labels.dtype} {labels.shape}, expected {images} or {severities * images} integers; "
            f"{AGAIN}."
        )
    rounds: Labels = labels.astype(np.int64).reshape(-1, images)  # (1 or severities, images)
    if (rounds != rounds[0]).any():
        raise InputError(f"{path} gives the same {images} images other labels at other severities; {AGAIN}.")
    return np.asarray(rounds[0])


def map_images(path: Path) -> Images:
    """The images (N, side, side, 3) of a file, memory-mapped."""
    array = _map_array(path)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1] != array.shape[2] or array.shape[3] != 3:
        raise InputError(f"{path} holds {array.dtype} {array.shape}, expected uint8 (N, side, side, 3); {AGAIN}.")
    return array


def _map_array(path: Path) -> NDArray[Any]:
    if not path.is_file():  # a pipe would never end
        raise InputError(f"{path} is not a file; {AGAIN}.")
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # damaged bytes can raise anything
        reason = shown(error, WORD) or "its header is damaged"
        raise InputError(f"Cannot read {path} as a whole .npy file ({reason}); {AGAIN}.") from error
