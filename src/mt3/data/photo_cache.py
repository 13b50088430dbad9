"""Photos decoded once, into a file of pixels that later starts map into memory. Needs no torch."""

import hashlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mt3.data.corrupted import map_images
from mt3.data.dataset import Images
from mt3.data.image_files import FIRST_FRAME, read_image, silent_readers
from mt3.support.errors import InputError
from mt3.support.files import atomic_path, check_can_write, one_at_a_time, read_json, remove_leftovers, write_json
from mt3.support.processes import run_apart
from mt3.support.progress import Progress

CACHE = ".mt3-cache"  # in the folder of the photos
VERSION = 1  # of how a photo is cut and scaled; a cache of another one is not used
WORTH = 256  # photos for which a process is worth its start
BLOCK = 1 << 20  # bytes that are copied at a time


class Wanted(NamedTuple):
    """Photos, by their names below a folder, that become one array of images with sides of `size` pixels."""

    folder: Path
    part: str  # "train" or "test"
    names: Sequence[str]
    size: int
    skip_broken: bool  # leave out what cannot be read, instead of refusing it


class Decoded(NamedTuple):
    """The photos' pixels in a mapped file, without those that could not be read."""

    images: Images  # (N, size, size, 3)
    broken: list[str]  # names


def open_photos(wanted: Wanted, workers: int = 1) -> Decoded:
    """The pixels of the photos, from the cache or, where a file is new or has changed, decoded by `workers` processes.

    The cache lies in the folder or, where that cannot be written, in the user's own. Who starts while another process
    decodes the same photos waits for it.
    """
    name = f"{wanted.part}-{wanted.size}-{_key(wanted)}.npy"
    beside, apart = wanted.folder / CACHE, _user_cache(wanted.folder)
    found = _find(beside / name, wanted) or _find(apart / name, wanted)
    if found is None:
        directory = beside
        try:
            check_can_write(beside / name)
        except InputError:
            directory = apart
            check_can_write(apart / name)
            print(f"{wanted.folder} cannot be written, so its decoded photos are kept in {apart}.", file=sys.stderr)
        with one_at_a_time(directory, "another process decodes these photos; waiting for it") as alone:
            if alone:
                _remove_leftovers(directory, name)
            found = _find(directory / name, wanted) or _decode(directory / name, wanted, workers)
            _remove_older(directory, name, wanted)
    if found.broken and not wanted.skip_broken:
        _read_photo(wanted.folder / found.broken[0], wanted.size)  # says again what is wrong with it
    return found


def _key(wanted: Wanted) -> str:
    """What the pixels depend on: the photos' names, sizes and times, and how they are read."""
    digest = hashlib.blake2b(repr((VERSION, wanted.size)).encode(), digest_size=10)
    for name in wanted.names:
        told: tuple[int, ...] = ()
        with suppress(OSError):  # a link to nothing is a broken photo
            status = os.stat(wanted.folder / name)
            told = status.st_size, status.st_mtime_ns
        digest.update(f"{name!r} {told}\n".encode())
    return digest.hexdigest()


def _user_cache(folder: Path) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    where = os.fsencode(folder.resolve())
    return root / "mt3" / f"folder-{hashlib.blake2b(where, digest_size=10).hexdigest()}"


def _find(path: Path, wanted: Wanted) -> Decoded | None:
    """What is in the cache; None where it is missing or damaged."""
    try:
        broken = read_json(path.with_suffix(".json"))["broken"]
        images = map_images(path)
    except (InputError, KeyError):
        return None
    if not isinstance(broken, list) or not set(broken) <= set(wanted.names):
        return None
    expected = (len(wanted.names) - len(broken), wanted.size, wanted.size, 3)
    return Decoded(images, broken) if images.shape == expected else None


def _remove_leftovers(directory: Path, name: str) -> None:
    """Delete what a process that was killed left behind."""
    for folder in directory.glob(".parts-*"):
        shutil.rmtree(folder, ignore_errors=True)
    remove_leftovers(directory / name)


def _remove_older(directory: Path, name: str, wanted: Wanted) -> None:
    """Delete what these photos were before they changed; who has it mapped keeps it."""
    for path in directory.glob(f"{wanted.part}-{wanted.size}-*"):
        if path.stem != Path(name).stem:
            with suppress(OSError):
                path.unlink()


class _Share(NamedTuple):
    """What one process decodes."""

    wanted: Wanted
    names: Sequence[str]
    out: Path  # of the pixels; beside it, the names of broken photos as JSON


def _decode(path: Path, wanted: Wanted, workers: int) -> Decoded:
    """Decode all photos in processes that write a file each, and join these."""
    workers = max(1, min(workers, len(wanted.names) // WORTH))
    bounds = [len(wanted.names) * i // workers for i in range(workers + 1)]
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".parts-") as temporary:
        shares = [
            _Share(wanted, wanted.names[start:stop], Path(temporary) / f"{start}.bin")
            for start, stop in pairwise(bounds)
        ]
        try:
            run_apart(_decode_share, shares, [f"photos {i + 1}" for i in range(workers)], workers)
        except InputError as error:
            for name in (name for share in shares for name in _broken(share)):
                _read_photo(wanted.folder / name, wanted.size)  # the same sentence, without the process's name
            raise error
        broken = [name for share in shares for name in _broken(share)]
        shape = (len(wanted.names) - len(broken), wanted.size, wanted.size, 3)
        write_json(path.with_suffix(".json"), {"photos": len(wanted.names), "broken": broken})
        with atomic_path(path) as whole, whole.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            for share in shares:
                with share.out.open("rb") as pixels:
                    shutil.copyfileobj(pixels, file, BLOCK)
                share.out.unlink()
            file.flush()
            os.fsync(file.fileno())  # the bytes are on the disk before the file gets its name
    return Decoded(map_images(path), broken)


def _broken(share: _Share) -> list[str]:
    path = share.out.with_suffix(".json")
    return list(read_json(path)["broken"]) if path.exists() else []


def _decode_share(share: _Share) -> None:
    wanted, broken = share.wanted, []
    label = f"decode {wanted.part} photos"
    with share.out.open("wb") as file, Progress(label, len(share.names), "photos") as progress:
        for name in share.names:
            try:
                file.write(_read_photo(wanted.folder / name, wanted.size).data)
            except InputError:
                broken.append(name)
                if not wanted.skip_broken:
                    write_json(share.out.with_suffix(".json"), {"broken": broken})
                    raise
            progress.advance()
    write_json(share.out.with_suffix(".json"), {"broken": broken})


def _read_photo(path: Path, size: int) -> Images:
    """The pixels of a photo; one that cannot be read, or holds several, is refused."""
    # what C libraries print can be kept back only where no other thread prints
    alone = multiprocessing.parent_process() is not None or threading.active_count() == 1
    try:
        with silent_readers() if alone else nullcontext():
            image, notes = read_image(path, size)
        if FIRST_FRAME in notes:
            raise InputError(f"{path} holds several frames, expected one photo; save one of them.")
    except InputError as error:
        raise InputError(f"{str(error)[:-1]}, or leave out what cannot be read with --skip-broken.") from None
    return np.ascontiguousarray(image)
