"""What a data set is: square images and labels, in memory or in mapped files, split into training and test."""

import mmap
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt3.support.errors import InputError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

DATASETS = ("digits", "photos", "cifar10", "cifar100")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images (N, size, size, 3) as C-contiguous uint8, and their labels as indices into `classes`.

    The images may be memory maps of files: read the rows that you need.
    """

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def size(self) -> int:
        """The side of the images in pixels."""
        return int(self.test_images.shape[1])

    def some_training_images(self, count: int) -> Images:
        """So many of them, or all, spread over the whole split, since it may be sorted by class."""
        rows = np.linspace(0, max(0, len(self.train_images) - 1), count).astype(int)
        return np.array(self.train_images[np.unique(rows)]) if len(self.train_images) else self.train_images

    def __reduce__(self) -> tuple[Any, ...]:
        """To other processes go the names of mapped files, not their bytes."""
        return _rebuild, tuple(_pack(getattr(self, field.name)) for field in fields(self))


@dataclass(frozen=True)
class _MappedFile:
    path: str


def _pack(value: Any) -> Any:
    whole = isinstance(value, np.memmap) and isinstance(value.base, mmap.mmap)  # the base of a slice is a map
    return _MappedFile(str(value.filename)) if whole and value.filename is not None else value


def _rebuild(*values: Any) -> Dataset:
    return Dataset(*(np.load(v.path, mmap_mode="r") if isinstance(v, _MappedFile) else v for v in values))


def check_labels(labels: Labels, num_classes: int, source: object) -> None:
    """Refuse labels outside 0..num_classes-1; `source` is the file named in the error."""
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if bad.size:
        raise InputError(
            f"{source} has label {labels[bad[0]]} at index {bad[0]}, but labels must be in 0..{num_classes - 1}; "
            "the file is damaged or belongs to another data set."
        )
