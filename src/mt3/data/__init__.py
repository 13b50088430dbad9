"""Images as uint8 arrays: the embedded digits, CIFAR-10, CIFAR-100, corrupted test sets and image files.

Needs no torch.
"""

from pathlib import Path

from mt3.data.cifar import LOADERS, load_cifar10, load_cifar100
from mt3.data.corrupted import CorruptedSet, open_corrupted
from mt3.data.dataset import DATASETS, Dataset
from mt3.data.digits import load_digits
from mt3.data.download import fetch
from mt3.support.errors import InputError, one_of

__all__ = [
    "DATASETS",
    "CorruptedSet",
    "Dataset",
    "fetch",
    "load_cifar10",
    "load_cifar100",
    "load_dataset",
    "load_digits",
    "open_corrupted",
]

DEFAULT_DATA_DIR = Path("data")  # in the working directory


def load_dataset(name: str, data_dir: Path | None = None, download: bool = False) -> Dataset:
    """Load one of `DATASETS`, looking below `data_dir` (by default `data`).

    With `download`, what is missing or damaged there is fetched first. The digits take neither, so that nobody gets
    them who meant images of theirs.
    """
    if name not in DATASETS:
        raise InputError(one_of("data set", name, DATASETS))
    if name == "digits":
        if data_dir is not None or download:
            given = f"--data-dir {data_dir}" if data_dir is not None else "--download"
            raise InputError(f"The digits do not come from {given}: give --data cifar10 or cifar100, or drop this.")
        return load_digits()
    data_dir = DEFAULT_DATA_DIR if data_dir is None else Path(data_dir)
    if download:
        fetch(name, data_dir)
    return LOADERS[name](data_dir)
