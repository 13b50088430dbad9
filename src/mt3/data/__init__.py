"""Images as uint8 arrays: the embedded digits and photos, CIFAR, own photos, corrupted test sets and image files.

Needs no torch.
"""

from pathlib import Path

from mt3.data.arrays import as_dataset, from_arrays, from_torch
from mt3.data.cifar import LOADERS, load_cifar10, load_cifar100
from mt3.data.corrupted import CorruptedSet, open_corrupted
from mt3.data.dataset import DATASETS, Dataset
from mt3.data.digits import load_digits
from mt3.data.download import fetch
from mt3.data.folder import KIND, SIZE, load_folder
from mt3.data.image_files import read_image
from mt3.data.photos import load_photos
from mt3.data.shifts import Asked, ShiftedSet, open_shifts
from mt3.support.errors import InputError, one_of
from mt3.support.processes import count_cores

__all__ = [
    "DATASETS",
    "EMBEDDED",
    "Asked",
    "CorruptedSet",
    "Dataset",
    "ShiftedSet",
    "as_dataset",
    "fetch",
    "from_arrays",
    "from_torch",
    "load_cifar10",
    "load_cifar100",
    "load_dataset",
    "load_digits",
    "load_folder",
    "load_photos",
    "open_corrupted",
    "open_shifts",
    "read_image",
]

EMBEDDED = {"digits": load_digits, "photos": load_photos}
DEFAULT_DATA_DIR = Path("data")  # in the working directory


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    download: bool = False,
    size: int | None = None,
    skip_broken: bool = False,
) -> Dataset:
    """Load one of `DATASETS`, looking below `data_dir` (by default `data`), or own photos.

    With `download`, what is missing or damaged there is fetched first. What is embedded takes neither, so that nobody
    gets it who meant images of theirs. Own photos are `folder:PATH`, or in `data_dir`, whatever follows `folder:`
    then; they alone take a size and can be skipped. All cores decode them.
    """
    if name.startswith(KIND):
        if download:
            raise InputError("Own photos are not downloaded; drop --download.")
        folder = Path(name.removeprefix(KIND)) if data_dir is None else Path(data_dir)
        return load_folder(folder, SIZE if size is None else size, skip_broken, count_cores())
    if name not in DATASETS:
        raise InputError(one_of("data set", name, (*DATASETS, f"{KIND}PATH")))
    if size is not None or skip_broken:
        given = "--skip-broken" if size is None else f"--size {size}"
        raise InputError(f"{given} is for own photos, not for {name}; give --data {KIND}PATH, or drop this.")
    if name in EMBEDDED:
        if data_dir is not None or download:
            given = f"--data-dir {data_dir}" if data_dir is not None else "--download"
            raise InputError(f"The {name} do not come from {given}: give --data cifar10 or cifar100, or drop this.")
        return EMBEDDED[name]()
    data_dir = DEFAULT_DATA_DIR if data_dir is None else Path(data_dir)
    if download:
        fetch(name, data_dir)
    return LOADERS[name](data_dir)
