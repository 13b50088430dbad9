"""CIFAR-10 and CIFAR-100 in their official layouts, and the corrupted sets CIFAR-10-C and CIFAR-100-C.

A file is read whole and checked, or refused with one sentence. Python-layout files are pickles: they are read by an
unpickler that admits arrays and plain values only.
"""

import codecs
import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt3.data.dataset import CLASS_COUNTS, DATASETS, Dataset, Images, Labels, check_labels
from mt3.support.errors import WORD, InputError, name_list, one_of, shown, suggest
from mt3.support.files import read_json

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


class _File(NamedTuple):
    name: str
    rows: int
    md5: str = ""  # empty where no sum of the single file is published


class _Layout(NamedTuple):
    folder: str  # what the official archive unpacks to
    names_file: str  # class names; may be absent
    files: tuple[_File, ...]  # the last one is the test set
    label_bytes: int = 0  # binary layout: before each image, the last one counts
    label_key: str = ""  # python layout: where the labels are
    names_key: str = ""  # python layout: where the class names are


def _ten_thousand_each(names: str, md5s: str) -> tuple[_File, ...]:
    return tuple(_File(name, 10_000, md5) for name, md5 in zip(names.split(), md5s.split(), strict=True))


CIFAR10_LAYOUTS = (
    _Layout(
        "cifar-10-batches-bin",
        "batches.meta.txt",
        _ten_thousand_each(
            "data_batch_1.bin data_batch_2.bin data_batch_3.bin data_batch_4.bin data_batch_5.bin test_batch.bin",
            """5dd7e06a14cb22eb9f671a540d1b7c25 5ea93a67294ea407fff1d09f752e9692 942cd6a4bcdd0dd3c604fbe906cb4421
            ae636b3ba5c66a11e91e8cb52e771fcb 53f37980c15c3d472c316c40844f3f0d 803d5f7f4d78ea53de84dbe85f74fb6d""",
        ),
        label_bytes=1,
    ),
    _Layout(
        "cifar-10-batches-py",
        "batches.meta",
        _ten_thousand_each(
            "data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch",
            """c99cafc152244af753f735de768cd75f d4bba439e000b95fd0a9bffe97cbabec 54ebc095f3ab1f0389bbae665268c751
            634d18415352ddfa80567beed471001a 482c414d41f54cd18b22e5b47cb7c3cb 40351d587109b95175f43aff81a1287e""",
        ),
        label_key="labels",
        names_key="label_names",
    ),
)
CIFAR100_LAYOUTS = (
    _Layout(
        "cifar-100-binary",
        "fine_label_names.txt",
        (_File("train.bin", 50_000), _File("test.bin", 10_000)),
        label_bytes=2,  # coarse, then fine
    ),
    _Layout(
        "cifar-100-python",
        "meta",
        (
            _File("train", 50_000, "16019d7e3df5f24257cddd939b257f8d"),
            _File("test", 10_000, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
        ),
        label_key="fine_labels",
        names_key="fine_label_names",
    ),
)


def load_cifar10(data_dir: str | Path, verify: bool = True) -> Dataset:
    """Load CIFAR-10 from its binary or python layout; `data_dir` is the layout's directory or the one above it.

    Without `verify`, files of any number of images are accepted and no MD5 is compared.
    """
    return _load("cifar10", "CIFAR-10", CIFAR10_LAYOUTS, CIFAR10_CLASSES, Path(data_dir), verify)


def load_cifar100(data_dir: str | Path, verify: bool = True) -> Dataset:
    """Load CIFAR-100 with its fine labels; otherwise as `load_cifar10`."""
    return _load("cifar100", "CIFAR-100", CIFAR100_LAYOUTS, CIFAR100_CLASSES, Path(data_dir), verify)


def _load(
    name: str, title: str, layouts: tuple[_Layout, ...], classes: tuple[str, ...], data_dir: Path, verify: bool
) -> Dataset:
    layout, directory = _find_layout(title, layouts, data_dir)
    parts = [_read_file(layout, file, directory / file.name, verify) for file in layout.files]
    for file, (_, labels) in zip(layout.files, parts, strict=True):
        check_labels(labels, len(classes), directory / file.name)
    *train, (test_images, test_labels) = parts
    train_images = np.concatenate([images for images, _ in train])
    train_labels = np.concatenate([labels for _, labels in train])
    classes = _class_names(layout, directory / layout.names_file, classes)
    return Dataset(name, train_images, train_labels, test_images, test_labels, classes)


def _find_layout(title: str, layouts: tuple[_Layout, ...], data_dir: Path) -> tuple[_Layout, Path]:
    """Return the first layout that has all its files, and their directory."""
    incomplete = ""
    for layout in layouts:
        for directory in (data_dir / layout.folder, data_dir):
            missing = [file.name for file in layout.files if not (directory / file.name).is_file()]
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


def _read_file(layout: _Layout, file: _File, path: Path, verify: bool) -> tuple[Images, Labels]:
    content = _read_bytes(path)
    record = layout.label_bytes + PIXELS
    if layout.label_bytes and verify and len(content) != file.rows * record:
        raise InputError(f"{path} is {len(content)} bytes long, expected {file.rows * record}; {AGAIN}.")
    if layout.label_bytes and (not content or len(content) % record):
        raise InputError(f"{path} is {len(content)} bytes long, expected a multiple of {record}; copy it again.")
    if verify and file.md5:
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if digest != file.md5:
            raise InputError(f"{path} is damaged: its MD5 is {digest}, expected {file.md5}; {AGAIN}.")
    if layout.label_bytes:
        records = np.frombuffer(content, np.uint8).reshape(-1, record)
        planes, labels = records[:, layout.label_bytes :], records[:, layout.label_bytes - 1]
    else:
        planes, labels = _batch_arrays(_unpickle(content, path), layout.label_key, path)
    images = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # (N, 3072) to (N, 32, 32, 3)
    return np.ascontiguousarray(images), labels.astype(np.int64)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error


def _batch_arrays(batch: dict[str, Any], label_key: str, path: Path) -> tuple[Images, NDArray[Any]]:
    """Take the planes (N, 3072) and the N labels out of an unpickled batch, checking all that could differ."""
    missing = [key for key in ("data", label_key) if key not in batch]
    if missing:
        raise InputError(f"{path} has no entry {name_list(missing)}: it is not a CIFAR file of this layout; {AGAIN}.")
    planes = batch["data"]
    if not isinstance(planes, np.ndarray) or planes.dtype != np.uint8 or planes.shape[1:] != (PIXELS,):
        raise InputError(f"{path} has data of {_describe(planes)}, expected uint8 (N, {PIXELS}); {AGAIN}.")
    try:
        labels = np.asarray(batch[label_key])
    except ValueError:  # nested lists of unequal length
        labels = np.empty(0)
    if labels.dtype.kind not in "iu" or labels.shape != planes.shape[:1] or not labels.size:
        raise InputError(
            f"{path} has labels of {_describe(labels)}, expected integers ({len(planes)},), one per image; {AGAIN}."
        )
    return planes, labels


def _describe(value: object) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else f"type {type(value).__name__}"


def _class_names(layout: _Layout, path: Path, default: tuple[str, ...]) -> tuple[str, ...]:
    if not path.is_file():
        return default
    if layout.names_key:
        names = _unpickle(_read_bytes(path), path).get(layout.names_key)
    else:
        names = _read_bytes(path).decode("latin1").split()
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or len(names) != len(default):
        raise InputError(f"{path} does not list {len(default)} class names; delete it or {AGAIN}.")
    return tuple(names)


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

    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content), encoding="latin1")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.admitted:
            raise InputError(f"{self.path} wants to run code ({shown(f'{module}.{name}')}) and is refused; {AGAIN}.")
        return self.admitted[module, name]


def _unpickle(content: bytes, path: Path) -> dict[str, Any]:
    try:
        value = _ArrayUnpickler(content, path).load()
    except InputError:
        raise
    except Exception as error:  # damaged bytes can raise anything
        raise InputError(f"{path} is not a whole pickle file ({error}); {AGAIN}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a {type(value).__name__}, expected a dict; {AGAIN}.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): entry for key, entry in value.items()}


@dataclass(frozen=True, eq=False)
class CorruptedSet:
    """A directory in the layout of CIFAR-10-C: in each `<corruption>.npy`, `images` images for every severity."""

    directory: Path
    severities: tuple[int, ...]
    images: int
    labels: Labels  # (images,), the same for every severity

    def names(self) -> list[str]:
        """List the corruptions that are there, sorted."""
        return _corruption_names(self.directory)

    def images_of(self, corruption: str, severity: int) -> Images:
        """Return the (images, 32, 32, 3) test images at one severity: a read-only, memory-mapped view."""
        names = self.names()
        if corruption not in names:
            close = suggest(corruption, names)
            raise InputError(f"No {shown(corruption)}.npy in {self.directory}{close}: it has {name_list(names)}.")
        if severity not in self.severities:
            raise InputError(f"{self.directory} has no severity {severity}: it has {name_list(self.severities)}.")
        path = self.directory / f"{corruption}.npy"
        array = _map_images(path)
        rows = len(self.severities) * self.images
        if len(array) != rows:
            raise InputError(
                f"{path} has {len(array)} images, expected {rows} "
                f"({len(self.severities)} severities of {self.images}); copy or download it again."
            )
        start = self.severities.index(severity) * self.images
        return array[start : start + self.images]


def open_corrupted(directory: str | Path, dataset_name: str | None = None) -> CorruptedSet:
    """Open a corrupted test set without reading its images.

    Severities are 1 to 5, or those of `protocol.json` beside the arrays (`severities` rising, `images` for each).
    With `dataset_name`, the labels must fit that data set's classes.
    """
    directory = Path(directory)
    if dataset_name is not None and dataset_name not in DATASETS:
        raise InputError(one_of("data set", dataset_name, DATASETS))
    if not directory.is_dir():
        raise InputError(f"No directory {directory.absolute()}: pass the one that holds <corruption>.npy files.")
    names = _corruption_names(directory)
    if not names:
        raise InputError(f"{directory.absolute()} holds no <corruption>.npy: pass a directory laid out as CIFAR-10-C.")
    severities, images = _read_protocol(directory / "protocol.json")
    if images is None:
        first = directory / f"{names[0]}.npy"
        images, rest = divmod(len(_map_images(first)), len(severities))
        if rest or not images:
            raise InputError(f"{first} cannot be split into {len(severities)} equal severities; copy it again.")
    labels = _read_labels(directory / "labels.npy", len(severities), images)
    if dataset_name is not None:
        check_labels(labels, CLASS_COUNTS[dataset_name], directory / "labels.npy")
    return CorruptedSet(directory, severities, images, labels)


def _corruption_names(directory: Path) -> list[str]:
    return sorted(p.stem for p in directory.glob("[!.]*.npy") if p.name != "labels.npy")


def _read_protocol(path: Path) -> tuple[tuple[int, ...], int | None]:
    """Return the severities and the images of each, or None where the file does not say."""
    protocol = read_json(path) if path.exists() else {}
    severities, images = protocol.get("severities", [1, 2, 3, 4, 5]), protocol.get("images")
    whole = isinstance(severities, list) and all(type(s) is int and s > 0 for s in severities)
    if not whole or not severities or severities != sorted(set(severities)):
        raise InputError(f"{path}: severities must be rising whole numbers such as [1, 3, 5], got {shown(severities)}.")
    if images is not None and (type(images) is not int or images < 1):
        raise InputError(f"{path}: images must be a whole number above 0, got {shown(images)}.")
    return tuple(severities), images


def _read_labels(path: Path, severities: int, images: int) -> Labels:
    labels = np.array(_map_array(path))
    if labels.dtype.kind not in "iu" or labels.shape not in ((images,), (severities * images,)):
        raise InputError(
            f"{path} has labels of {_describe(labels)}, expected {images} or {severities * images} integers; "
            "copy or download it again."
        )
    rounds: Labels = labels.astype(np.int64).reshape(-1, images)  # (1 or severities, images)
    if (rounds != rounds[0]).any():
        raise InputError(
            f"{path} gives the same {images} images other labels at other severities; copy or download it again."
        )
    first: Labels = rounds[0]
    return first


def _map_images(path: Path) -> Images:
    array = _map_array(path)
    if array.dtype != np.uint8 or array.shape[1:] != (32, 32, 3):
        raise InputError(f"{path} holds {_describe(array)}, expected uint8 (N, 32, 32, 3); copy or download it again.")
    return array


def _map_array(path: Path) -> NDArray[Any]:
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a directory, a pipe or a device, not a file; copy or download it again.")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}; copy or download it again.") from error
    except Exception as error:  # damaged bytes can raise anything
        reason = shown(error, WORD) or "its header is damaged"
        raise InputError(f"{path} is not a whole .npy file ({reason}); copy or download it again.") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} is an .npz archive, expected a single .npy array; copy or download it again.")
    return array
