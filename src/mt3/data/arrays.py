"""Data sets from what a program already has: arrays, or any torch data set of images and labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mt3.data.dataset import Dataset, Images, Labels, check_labels
from mt3.data.folder import MAX_SIZE, MIN_SIZE, SPLIT_SEED, TEST_SHARE
from mt3.support.errors import InputError, check_number, is_name, shown


def from_arrays(
    images: NDArray[Any],
    labels: Any,
    classes: Sequence[str] | None = None,
    test: tuple[NDArray[Any], Any] | None = None,
    name: str = "arrays",
) -> Dataset:
    """A data set of uint8 images (N, size, size, 3), which may be a memory map, and their labels from 0 on.

    Without `test` (images and labels, too) a fifth of each class is for testing; the split is always the same.
    """
    if not is_name(name):
        raise InputError(f"Expected a name of 1 to 255 printable characters, got '{shown(name)}'.")
    given = [_checked(images, labels, "images"), *([] if test is None else [_checked(*test, "test images")])]
    count = int(given[0][1].max()) + 1 if classes is None else len(classes)
    classes = tuple(str(i) for i in range(count)) if classes is None else tuple(classes)
    if count < 2:
        raise InputError(f"Expected labels of at least two classes, got {count}.")
    for _, some in given:
        check_labels(some, count, name)
    if test is None:
        given = _split(*given[0])
    (train_images, train_labels), (test_images, test_labels) = given
    if train_images.shape[1:] != test_images.shape[1:]:
        raise InputError(f"Expected all images in one size, got {train_images.shape[1]} and {test_images.shape[1]}.")
    missing = sorted(set(range(count)) - set(train_labels.tolist()))
    if missing:
        raise InputError(f"No image to train on is of the class {classes[missing[0]]}; add some or leave it out.")
    return Dataset(name, train_images, train_labels, test_images, test_labels, classes)


def from_torch(dataset: Any, size: int, test: Any = None, name: str = "torch") -> Dataset:
    """Read a torch data set of (image, label) whole into memory, cut to centre squares and scaled to `size` pixels.

    An image is PIL's, a uint8 tensor (channels, height, width), or a float one in [0, 1]; the names of the classes are
    its `classes`, if it has any. `test` and the split are as of `from_arrays`.
    """
    check_number("the size", size, MIN_SIZE, MAX_SIZE)
    train = _read_torch(dataset, int(size))
    classes = getattr(dataset, "classes", None)
    return from_arrays(*train, classes, None if test is None else _read_torch(test, int(size)), name)


def as_dataset(data: Any, size: int | None = None) -> Dataset:
    """One of our data sets as it is; or made of a pair of arrays (images, labels), or of a torch data set.

    A torch data set whose images are not all of one size needs the `size` to scale them to.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], np.ndarray):
        return from_arrays(*data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, tuple | list | str | dict):
        side = min(np.asarray(data[0][0]).shape[-2:]) if size is None and len(data) else size or MIN_SIZE
        return from_torch(data, int(side))
    raise InputError(
        f"Expected a data set of mt3.data, a pair of arrays (images uint8 NHWC, labels) or a torch Dataset, got a "
        f"{type(data).__name__}."
    )


def _checked(images: Any, labels: Any, what: str) -> tuple[Images, Labels]:
    shape: tuple[int, ...] = getattr(images, "shape", ())
    square = len(shape) == 4 and shape[1] == shape[2] and shape[3] == 3
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or not square or not len(images):
        got = f"{images.dtype} {shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise InputError(f"Expected {what} as a uint8 array (N, size, size, 3), got {got}; convert them.")
    check_number(f"the side of the {what}", int(shape[1]), MIN_SIZE, MAX_SIZE)
    numbers = np.asarray(labels)
    if numbers.dtype.kind not in "iu" or numbers.shape != (len(images),):
        raise InputError(f"Expected {len(images)} whole numbers as labels, got {numbers.dtype} {numbers.shape}.")
    return images if images.flags.c_contiguous else np.ascontiguousarray(images), numbers.astype(np.int64)


def _split(images: Images, labels: Labels) -> list[tuple[Images, Labels]]:
    """Training and test images: of each class a fifth, but at least one, is for testing."""
    # RandomState's stream is frozen for good, default_rng's may change with NumPy
    order = np.random.RandomState(SPLIT_SEED).permutation(len(images))
    tested = np.zeros(len(images), dtype=bool)
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        tested[rows[: max(1, round(TEST_SHARE * len(rows)))]] = True
    return [(images[rows], labels[rows]) for rows in (order[~tested[order]], order[tested[order]])]


def _read_torch(dataset: Any, size: int) -> tuple[Images, Labels]:
    try:
        count = len(dataset)
    except TypeError:
        raise InputError("Expected a torch data set with a length, got one without; read it into arrays.") from None
    images, labels = np.empty((count, size, size, 3), dtype=np.uint8), np.empty(count, dtype=np.int64)
    for i in range(count):
        image, label = dataset[i]
        images[i] = np.asarray(_picture(image, i, size))
        labels[i] = int(label)
    return images, labels


def _picture(image: Any, index: int, size: int) -> Image.Image:
    """An item of a torch data set as a square RGB picture."""
    import torch  # not with this room: images need none

    if isinstance(image, torch.Tensor):
        if image.ndim != 3 or image.shape[0] not in (1, 3):
            raise InputError(f"Expected image {index} as (3, height, width) or (1, ...), got {tuple(image.shape)}.")
        if image.is_floating_point():
            if not bool(((image >= 0) & (image <= 1)).all()):
                raise InputError(f"Expected image {index} to have values in [0, 1]; leave out its normalisation.")
            image = (image * 255).round().to(torch.uint8)
        if image.dtype != torch.uint8:
            raise InputError(f"Expected image {index} in uint8 or float, got {image.dtype}; convert it.")
        image = Image.fromarray(image.cpu().expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    if not isinstance(image, Image.Image):
        raise InputError(f"Expected image {index} to be a picture of PIL or a tensor, got {type(image).__name__}.")
    if image.size == (size, size):
        return image.convert("RGB")
    return ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.LANCZOS)
