"""Own photos: `PATH/train/<class>/*` and `PATH/test/<class>/*`, or `PATH/<class>/*`, split here. Needs no torch."""

import hashlib
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mt3.data.dataset import Dataset, Labels
from mt3.data.photo_cache import Decoded, Wanted, open_photos
from mt3.support.errors import InputError, check_number, is_name, name_list, shown

KIND = "folder:"  # before the path, on the command line
SIZE = 64  # pixels, the side of the images unless another one is asked for
MIN_SIZE, MAX_SIZE = 16, 512  # of the networks
TEST_SHARE = 0.2  # of the photos of each class, where they are not split
SPLIT_SEED = 0
PARTS = ("train", "test")
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")


class Photo(NamedTuple):
    name: str  # below the folder, with slashes
    label: int


class Listing(NamedTuple):
    """A directory's entries that are not hidden, sorted."""

    folders: list[str]
    photos: list[str]
    others: list[str]


def load_folder(path: str | Path, size: int = SIZE, skip_broken: bool = False, workers: int = 1) -> Dataset:
    """Load photos, cut to their centre squares and scaled to `size` pixels, as a data set in mapped files.

    Photos in `path/<class>` are split: of each class a fifth is for testing, by its names. A photo that cannot be read
    is refused, or left out with `skip_broken`. They are decoded once, by so many worker processes (a script that
    asks for several needs `if __name__ == "__main__":`), and kept in `path/.mt3-cache`.
    """
    check_number("the size", size, MIN_SIZE, MAX_SIZE)
    folder, size = Path(path), int(size)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}, expected a folder of photos; give one with a folder for each class.")
    classes, photos = _list_photos(folder)
    found = {}
    for part in PARTS:
        names = [photo.name for photo in photos[part]]
        decoded = open_photos(Wanted(folder, part, names, size, skip_broken), workers)
        labels = kept_labels(decoded, photos[part], f"photos to {part} on")
        lost = sorted(set(range(len(classes))) - set(labels.tolist()))
        if lost:
            raise InputError(f"No photo of the class {classes[lost[0]]} to {part} on can be read; add some or drop it.")
        found[part] = decoded.images, labels
    return Dataset(folder_name(folder), *found["train"], *found["test"], classes)


def folder_name(path: str | Path) -> str:
    """What a folder is called as a data set: by its own name, since where it lies differs between machines."""
    name = unicodedata.normalize("NFC", Path(path).resolve().name)
    return KIND + (name if is_name(name) else "photos")


def kept_labels(decoded: Decoded, photos: Sequence[Photo], what: str) -> Labels:
    """The labels of the photos that could be read; says how many of `what` could not."""
    broken = set(decoded.broken)
    if broken:
        left_out = f"left out {len(broken)} of {len(photos)} {what} that cannot be read"
        print(f"{left_out}, the first is {shown(decoded.broken[0], 200)}", file=sys.stderr)
    return np.array([photo.label for photo in photos if photo.name not in broken], dtype=np.int64)


def _list_photos(folder: Path) -> tuple[tuple[str, ...], dict[str, list[Photo]]]:
    """The classes and, in an order that depends on their names alone, the photos to train and to test on."""
    inside = {part: list_entries(folder / part).folders for part in PARTS if (folder / part).is_dir()}
    if any(inside.values()):
        missing = [part for part in PARTS if not inside.get(part)]
        if missing:
            raise InputError(
                f"{folder} has classes to {'test' if missing == ['train'] else 'train'} on, but none in "
                f"{folder / missing[0]}; add them, or put the classes into {folder} itself."
            )
        parts = {part: _list_classes(folder, part) for part in PARTS}
        differing = sorted(parts["train"].keys() ^ parts["test"].keys())
        if differing:
            where, other = PARTS if differing[0] in parts["train"] else PARTS[::-1]
            raise InputError(
                f"{folder / where} has the class {differing[0]}, {folder / other} has not; give both the same classes."
            )
    else:
        found = _list_classes(folder, "")
        if set(found) == set(PARTS):
            raise InputError(f"{folder} has photos in train and test without classes; put them into a folder for each.")
        parts = _split(found)
    classes = tuple(sorted(parts["train"]))
    listed = {}
    for part in PARTS:
        photos = [Photo(name, label) for label, kind in enumerate(classes) for name in parts[part][kind]]
        listed[part] = sorted(photos, key=lambda photo: rank("order", photo.name))  # the first few show all classes
    return classes, listed


def _list_classes(folder: Path, part: str) -> dict[str, list[str]]:
    """The photos of each class, by their names below `folder`."""
    directory = folder / part
    listing = list_entries(directory)
    others = [os.path.join(part, name) for name in listing.others]
    if len(listing.folders) < 2:
        found = f"only {shown(listing.folders[0], 200)}" if listing.folders else "none"
        raise InputError(f"{directory} has {found}, expected a folder for each of at least two classes; add them.")
    _refuse_twins(directory, listing.folders)
    classes: dict[str, list[str]] = {}
    for name in listing.folders:
        inside = list_class(directory / name)
        below = name if not part else f"{part}/{name}"
        classes[unicodedata.normalize("NFC", name)] = [f"{below}/{photo}" for photo in inside.photos]
        others += [f"{below}/{other}" for other in inside.others + inside.folders]
    tell_others(folder, others)
    return classes


def list_class(directory: Path) -> Listing:
    """A class's folder, which must have a name for it, and photos in it."""
    inside = list_entries(directory)
    if not inside.photos:
        raise InputError(
            f"{directory} holds no photos, expected files that end in {name_list(ENDINGS)}; add some or remove it."
        )
    if not is_name(directory.name):
        raise InputError(f"{directory} is no name of a class; give it one of up to 255 printable letters.")
    _refuse_twins(directory, inside.photos)
    return inside


def tell_others(folder: Path, others: Sequence[str]) -> None:
    """Say how many entries, by their names below the folder, are no photos."""
    if others:
        count = f"{len(others)} entries" if len(others) > 1 else "1 entry"
        print(f"{folder}: left out {count} without the ending of a photo, the first is {others[0]}", file=sys.stderr)


def list_entries(directory: Path) -> Listing:
    """What is in a folder."""
    listing = Listing([], [], [])
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    listing.folders.append(entry.name)
                else:
                    is_photo = entry.name.lower().endswith(ENDINGS)
                    (listing.photos if is_photo else listing.others).append(entry.name)
    except OSError as error:
        raise InputError(f"Cannot read {directory}: {error.strerror}; give a folder that you may read.") from error
    for names in listing:
        names.sort()
    return listing


def _refuse_twins(directory: Path, names: Iterable[str]) -> None:
    """Refuse names that are one and the same on other machines, whose split and order would then be others."""
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(_plain(name), name)
        if first != name:
            raise InputError(
                f"{directory} has {first} and {name}, whose names differ only in capitals or in how their letters are "
                "encoded; rename one."
            )


def _split(classes: dict[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    """Part the photos of each class; `a.jpg` and `a.png`, probably the same photo twice, stay together."""
    parts: dict[str, dict[str, list[str]]] = {part: {} for part in PARTS}
    for kind, names in classes.items():
        stems = sorted({_plain(os.path.splitext(name)[0]) for name in names}, key=lambda stem: rank("split", stem))
        if len(stems) < 2:
            raise InputError(
                f"The class {kind} has a single photo, expected at least two, one of them for testing; add some."
            )
        tested = set(stems[: max(1, round(TEST_SHARE * len(stems)))])
        for name in names:
            part = "test" if _plain(os.path.splitext(name)[0]) in tested else "train"
            parts[part].setdefault(kind, []).append(name)
    return parts


def rank(use: str, name: str) -> bytes:
    """A place in a seeded order that is the same on every machine."""
    words = f"{SPLIT_SEED}/{use}/{_plain(name)}"
    return hashlib.blake2b(words.encode("utf-8", "surrogateescape"), digest_size=8).digest()


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
