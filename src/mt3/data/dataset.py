"""What a data set is: square images and labels in memory, split into training and test."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mt3.support.errors import InputError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

DATASETS = ("digits", "cifar10", "cifar100")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images (N, size, size, 3) as C-contiguous uint8, and their labels as indices into `classes`."""

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


def check_labels(labels: Labels, num_classes: int, source: object) -> None:
    """Refuse labels outside 0..num_classes-1; `source` is the file named in the error."""
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if bad.size:
        raise InputError(
            f"{source} has label {labels[bad[0]]} at index {bad[0]}, but labels must be in 0..{num_classes - 1}; "
            "the file is damaged or belongs to another data set."
        )
