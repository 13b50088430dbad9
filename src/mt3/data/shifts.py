"""Photos under shifts: `PATH/<shift>/<class>/*`, or `PATH/<shift>/<severity>/<class>/*` as in Tiny-ImageNet-C.

Needs no torch.
"""

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mt3.data.dataset import Images, Labels
from mt3.data.folder import MAX_SIZE, MIN_SIZE, Photo, kept_labels, list_class, list_entries, rank, tell_others
from mt3.data.photo_cache import Wanted, open_photos
from mt3.support.errors import InputError, check_number, is_name, name_list, shown, suggest

SEVERITIES = ("1", "2", "3", "4", "5")  # names of folders
STRONGEST = 5  # which is taken unless others are asked for
ONLY = 1  # the severity of a shift without any


class Shifted(NamedTuple):
    """The photos under one shift."""

    images: Images  # (N, size, size, 3), mapped
    labels: Labels
    names: tuple[str, ...]  # class and stem


@dataclass(frozen=True, eq=False)
class ShiftedSet:
    """Photos under some shifts: sets of their own, which may differ in number and in classes."""

    directory: Path
    found: dict[tuple[str, int], Shifted]  # by shift and severity

    @property
    def severities(self) -> tuple[int, ...]:
        return tuple(sorted({severity for _, severity in self.found}))

    @property
    def paired(self) -> bool:
        """Whether all shifts have photos of the same names, which then are the same photos."""
        return len({shifted.names for shifted in self.found.values()}) == 1

    @property
    def labels(self) -> Labels:
        """Of the shift that has the most photos."""
        return max((shifted.labels for shifted in self.found.values()), key=len)

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.found))

    def images_of(self, corruption: str, severity: int) -> Images:
        return self.found[corruption, severity].images


class Asked(NamedTuple):
    """Which photos are read, and how."""

    classes: Sequence[str]  # of a model, in its order
    size: int  # to which photos are cut and scaled
    skip_broken: bool = False
    workers: int = 1  # processes that decode


def open_shifts(
    directory: str | Path, asked: Asked, names: Sequence[str] = (), severities: Sequence[int] = ()
) -> ShiftedSet:
    """Open the photos under the named shifts, by default all, decoded once as those of `mt3.data.load_folder` are.

    Shifts that have folders of severities are read at these, by default at 5. Classes are those of a model, of which a
    shift may lack some.
    """
    directory = Path(directory)
    check_number("the size", asked.size, MIN_SIZE, MAX_SIZE)
    there = list_shifts(directory)
    for name in names:
        if name not in there:
            close = suggest(name, there)
            raise InputError(f"{directory} has no shift {shown(name)}{close}: it has {name_list(there)}.")
    found = {}
    for name in dict.fromkeys(names or there):
        for severity in severities or ((STRONGEST,) if there[name] else (ONLY,)):
            if severity not in (there[name] or (ONLY,)):
                has = f"severities {name_list(there[name])}" if there[name] else "none; drop --severity"
                raise InputError(f"{directory / name} has no severity {severity}: it has {has}.")
            found[name, severity] = _open(directory / name / (str(severity) if there[name] else ""), asked)
    opened = ShiftedSet(directory, found)
    if len(found) != len(opened.severities) * len(opened.names()):
        raise InputError(f"Some shifts in {directory} have severities and others have none; name some of one kind.")
    return opened


def list_shifts(directory: Path) -> dict[str, tuple[int, ...]]:
    """The shifts in a directory and the severities of each, if it has folders for these."""
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "does not exist"
        raise InputError(f"{directory} {what}, expected a folder of shifted photos; give one with <shift>/<class>/*.")
    shifts = {}
    for name in list_entries(directory).folders:
        inside = list_entries(directory / name)
        if not inside.folders and inside.photos:
            raise InputError(f"{directory / name} has photos without classes; put them into a folder for each class.")
        if inside.folders:
            if not is_name(name):
                raise InputError(f"{directory / name} is no name of a shift; give one of up to 255 printable letters.")
            # a class may be called 5, too, but it holds photos
            below = {level: list_entries(directory / name / level) for level in inside.folders if level in SEVERITIES}
            levels = [int(level) for level, found in below.items() if found.folders and not found.photos]
            shifts[name] = tuple(levels) if len(levels) == len(inside.folders) else ()
    if not shifts:
        raise InputError(
            f"{directory.absolute()} holds no <corruption>.npy and no <shift>/<class>/*: give a directory of corrupted "
            "images in one of these layouts."
        )
    return shifts


def _open(folder: Path, asked: Asked) -> Shifted:
    """Read one shift, in an order that depends on the photos' names alone."""
    listing, photos = list_entries(folder), []
    others = listing.photos + listing.others
    for kind in listing.folders:
        known = unicodedata.normalize("NFC", kind)
        if known not in asked.classes:
            some = name_list(asked.classes[:3]) + (" and so on" if len(asked.classes) > 3 else "")
            raise InputError(
                f"{folder} has the class {shown(kind, 200)}, but the model knows {some}; rename or remove it."
            )
        inside = list_class(folder / kind)
        photos += [Photo(f"{kind}/{name}", asked.classes.index(known)) for name in inside.photos]
        others += [f"{kind}/{other}" for other in inside.others + inside.folders]
    tell_others(folder, others)
    photos.sort(key=lambda photo: (rank("order", _stem(photo)), photo.name))  # the first few show all classes
    names = [photo.name for photo in photos]
    decoded = open_photos(Wanted(folder, "test", names, asked.size, asked.skip_broken), asked.workers)
    labels = kept_labels(decoded, photos, f"photos in {folder}")
    if not len(labels):
        raise InputError(f"No photo in {folder} can be read; add some, or leave this shift out.")
    broken = set(decoded.broken)
    return Shifted(decoded.images, labels, tuple(_stem(photo) for photo in photos if photo.name not in broken))


def _stem(photo: Photo) -> str:
    return os.path.splitext(photo.name)[0]
