"""Fetch the official archives: resumable, verified by MD5, unpacked whole or not at all."""

import hashlib
import os
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from mt3.data.cifar import LOADERS
from mt3.data.corrupted import open_corrupted
from mt3.support.errors import InputError, one_of
from mt3.support.progress import Progress

STALL_SECONDS = 30.0  # without a byte, after which the connection counts as lost
CHUNK = 1 << 18  # bytes per read
MB = 1_000_000
PUBLISHED_CORRUPTIONS = 19  # files in CIFAR-10-C and CIFAR-100-C besides labels.npy


class Archive(NamedTuple):
    url: str
    md5: str
    folder: str  # the directory it unpacks to


ARCHIVES = {
    "cifar10": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
    ),
    "cifar100": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
    ),
    "cifar10-c": Archive(
        "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499", "CIFAR-10-C"
    ),
    "cifar100-c": Archive(
        "https://zenodo.org/records/3555552/files/CIFAR-100-C.tar", "11f0ed0f1191edbf9fa23466ae6021d3", "CIFAR-100-C"
    ),
}


def fetch(name: str, data_dir: str | Path, archives: Mapping[str, Archive] = ARCHIVES, verify: bool = True) -> Path:
    """Make one of `ARCHIVES` available below `data_dir`, and return the directory to hand to its loader.

    Does nothing where a complete copy is found; replaces the files of a damaged one. An archive that lies in
    `data_dir` already is unpacked and kept; one that is downloaded is removed afterwards. `verify` is the loaders'.
    """
    if name not in archives:
        raise InputError(one_of("data set", name, archives))
    data_dir, archive = Path(data_dir), archives[name]
    folder = data_dir / archive.folder
    if (folder / "protocol.json").exists():
        raise InputError(f"{folder} holds a generated set, not the published one; choose another --data-dir.")
    if not _is_complete(name, data_dir, folder, verify):
        path = data_dir / archive.url.rpartition("/")[2]
        kept = path.is_file() and _md5(path) == archive.md5
        if not kept:
            download_archive(archive.url, path, archive.md5)
        _unpack(path, folder)
        if not kept:
            path.unlink()
    return data_dir if name in LOADERS else folder


def _is_complete(name: str, data_dir: Path, folder: Path, verify: bool) -> bool:
    try:
        if name in LOADERS:
            LOADERS[name](data_dir, verify)
            return True
        corrupted = open_corrupted(folder)
        names = corrupted.names()
        for corruption in names:
            corrupted.images_of(corruption, corrupted.severities[0])
        return not verify or (len(names) == PUBLISHED_CORRUPTIONS and corrupted.images == 10_000)
    except InputError:
        return False


def download_archive(url: str, path: str | Path, md5: str) -> None:
    """Download `url` to `path`, which appears only once its MD5 is right.

    What has arrived lies in `<path>.part`. A lost connection keeps it, and the next call asks for the rest; a wrong
    MD5 removes it.
    """
    path = Path(path)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _receive(url, part)
        digest = _md5(part)
        if digest != md5:
            part.unlink()
            raise InputError(
                f"{url} arrived with MD5 {digest}, expected {md5}, and was discarded; run the same command again."
            )
        os.replace(part, path)
    except (OSError, HTTPException) as error:
        reason = error.reason if type(error) is URLError else error
        raise InputError(
            f"Could not download {url}: {reason}; run the same command again to resume, "
            f"or place the files in {path.parent.absolute()} by hand."
        ) from error


def _receive(url: str, part: Path) -> None:
    """Append to `part` what it lacks, or write it anew if the server does not resume."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "mt3"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=STALL_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code == 416 and done:  # nothing lies beyond what we have; the MD5 will tell
            return
        raise
    with response:
        if response.headers.get_content_type() == "text/html":
            raise OSError("a web page came instead of the archive")
        if response.status != 206:
            done = 0
        size = done + int(response.headers.get("Content-Length") or 0)
        with (
            part.open("ab" if done else "wb") as file,
            Progress(f"Downloading {part.stem}", _megabytes(size), "MB", start=_megabytes(done)) as progress,
        ):
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress.total = _megabytes(max(size, done))  # the server may not have told the size
                progress.advance(_megabytes(done) - progress.done)
    if done < size:
        raise OSError(f"the connection closed after {done} of {size} bytes")


def _megabytes(count: int) -> int:
    return -(-count // MB)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _unpack(path: Path, folder: Path) -> None:
    """Unpack beside `folder`, then rename the files into place."""
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpack-") as temporary:
            with tarfile.open(path) as tar:
                tar.extractall(temporary, filter="data")
            unpacked = Path(temporary) / folder.name
            if not unpacked.is_dir():
                raise InputError(f"{path} does not contain {folder.name}; delete it and run the same command again.")
            folder.mkdir(exist_ok=True)
            for file in unpacked.iterdir():
                os.replace(file, folder / file.name)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InputError(
            f"Cannot unpack {path} ({error}); make room or delete it, and run the same command again."
        ) from error
