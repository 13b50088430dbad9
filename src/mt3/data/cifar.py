"""CIFAR-10 and CIFAR-100 in their official layouts.

A file is read whole and checked, or refused with one sentence. Python-layout files are pickles: they are read by an
unpickler that admits arrays and plain values only.
"""

import codecs
import hashlib
import io
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt3.data.dataset import Dataset, Images, Labels, check_labels
from mt3.support.errors import InputError, name_list, shown

PIXELS = 3 * 32 * 32  # bytes of one image: its red, green and blue plane
AGAIN = "download it again with --download"

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_CLASSES = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm""".split()  # noqa: SIM905
)


class _Layout(NamedTuple):
    folder: str  # what the official archive unpacks to
    files: dict[str, str]  # with their MD5, empty where none is published; the last one is the test set
    label_bytes: int = 0  # binary layout: before each image, the last one counts
    label_key: str = ""  # python layout: where the labels are


def _with_md5s(names: str, md5s: str) -> dict[str, str]:
    return dict(zip(names.split(), md5s.split(), strict=True))


CIFAR10_LAYOUTS = (
    _Layout(
        "cifar-10-batches-bin",
        _with_md5s(
            "data_batch_1.bin data_batch_2.bin data_batch_3.bin data_batch_4.bin data_batch_5.bin test_batch.bin",
            """5dd7e06a14cb22eb9f671a540d1b7c25 5ea93a67294ea407fff1d09f752e9692 942cd6a4bcdd0dd3c604fbe906cb4421
            ae636b3ba5c66a11e91e8cb52e771fcb 53f37980c15c3d472c316c40844f3f0d 803d5f7f4d78ea53de84dbe85f74fb6d""",
        ),
        label_bytes=1,
    ),
    _Layout(
        "cifar-10-batches-py",
        _with_md5s(
            "data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch",
            """c99cafc152244af753f735de768cd75f d4bba439e000b95fd0a9bffe97cbabec 54ebc095f3ab1f0389bbae665268c751
            634d18415352ddfa80567beed471001a 482c414d41f54cd18b22e5b47cb7c3cb 40351d587109b95175f43aff81a1287e""",
        ),
        label_key="labels",
    ),
)
CIFAR100_LAYOUTS = (
    _Layout(
        "cifar-100-binary",
        {"train.bin": "", "test.bin": ""},
        label_bytes=2,  # coarse, then fine
    ),
    _Layout(
        "cifar-100-python",
        _with_md5s("train test", "16019d7e3df5f24257cddd939b257f8d f0ef6b0ae62326f3e7ffdfab6717acfc"),
        label_key="fine_labels",
    ),
)


def load_cifar10(data_dir: str | Path, verify: bool = True) -> Dataset:
    """Load CIFAR-10 from its binary or python layout; `data_dir` is the layout's directory or the one above it.

    Without `verify`, files of any number of images are accepted and no MD5 is compared.
    """
    return _load("CIFAR-10", CIFAR10_LAYOUTS, CIFAR10_CLASSES, Path(data_dir), verify)


def load_cifar100(data_dir: str | Path, verify: bool = True) -> Dataset:
    """Load CIFAR-100 with its fine labels; otherwise as `load_cifar10`."""
    return _load("CIFAR-100", CIFAR100_LAYOUTS, CIFAR100_CLASSES, Path(data_dir), verify)


LOADERS = {"cifar10": load_cifar10, "cifar100": load_cifar100}


def _load(title: str, layouts: tuple[_Layout, ...], classes: tuple[str, ...], data_dir: Path, verify: bool) -> Dataset:
    layout, directory = _find_layout(title, layouts, data_dir)
    parts = [_read_file(layout, directory / name, md5 if verify else "") for name, md5 in layout.files.items()]
    for name, (_, labels) in zip(layout.files, parts, strict=True):
        check_labels(labels, len(classes), directory / name)
    *train, (test_images, test_labels) = parts
    train_images = np.concatenate([images for images, _ in train])
    train_labels = np.concatenate([labels for _, labels in train])
    if verify and (len(train_images), len(test_images)) != (50_000, 10_000):
        found = f"{len(train_images)} images for training and {len(test_images)} for testing"
        raise InputError(f"{directory} has {found}, expected 50000 and 10000; {AGAIN}.")
    name = title.replace("-", "").lower()
    return Dataset(name, train_images, train_labels, test_images, test_labels, classes)


def _find_layout(title: str, layouts: tuple[_Layout, ...], data_dir: Path) -> tuple[_Layout, Path]:
    """Return the first layout that has all its files, and their directory."""
    incomplete = ""
    for layout in layouts:
        for directory in (data_dir / layout.folder, data_dir):
            missing = [name for name in layout.files if not (directory / name).is_file()]
            if not missing:
                return layout, directory
            if len(missing) < len(layout.files):
                incomplete = incomplete or f"{directory} lacks {name_list(missing)}"
    if incomplete:
        raise InputError(f"{title} is incomplete: {incomplete}; {AGAIN}.")
    raise InputError(
        f"No {title} in {data_dir.absolute()} (looked for {' and '.join(layout.folder for layout in layouts)}): "
        "pass --data-dir with the directory that holds it, or --download to fetch it."
    )


def _read_file(layout: _Layout, path: Path, md5: str) -> tuple[Images, Labels]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 and digest != md5:
        raise InputError(f"{path} is damaged: its MD5 is {digest}, expected {md5}; {AGAIN}.")
    try:
        planes, labels = _parse(layout, content)
    except Exception as error:  # damaged bytes can raise anything
        raise InputError(f"{path} is not a whole CIFAR file of this layout ({shown(error)}); {AGAIN}.") from error
    images = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # (N, 3072) to (N, 32, 32, 3)
    return np.ascontiguousarray(images), labels.astype(np.int64)


def _parse(layout: _Layout, content: bytes) -> tuple[Images, NDArray[Any]]:
    """The planes (N, 3072) and the labels (N,) in a file of either layout; a ValueError where they are not that."""
    if layout.label_bytes:
        records = np.frombuffer(content, np.uint8).reshape(-1, layout.label_bytes + PIXELS)
        planes, labels = records[:, layout.label_bytes :], records[:, layout.label_bytes - 1]
    else:
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
        planes, labels = np.asarray(batch["data"]), np.asarray(batch[layout.label_key])
    if planes.dtype != np.uint8 or planes.shape[1:] != (PIXELS,) or not len(planes):
        raise ValueError(f"it has images of {planes.dtype} {planes.shape}")
    if labels.dtype.kind not in "iu" or labels.shape != planes.shape[:1]:
        raise ValueError(f"it has labels of {labels.dtype} {labels.shape} for images of {planes.dtype} {planes.shape}")
    return planes, labels


class _ArrayUnpickler(pickle.Unpickler):
    """Builds arrays and plain values; any other name in the file is refused before it is imported."""

    reconstruct = np.empty(0).__reduce__()[0]  # its module's name depends on NumPy's version
    admitted = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.admitted:
            raise pickle.UnpicklingError(f"it wants to run code: {module}.{name}")
        return self.admitted[module, name]
