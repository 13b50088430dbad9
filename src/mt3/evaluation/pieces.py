"""The pieces of an evaluation on disk: an interruption loses at most the one under way."""

import zipfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt3.evaluation.protocol import Source
from mt3.support.errors import InputError, name_list
from mt3.support.files import atomic_path, read_json, remove_leftovers, write_json

PROTOCOL = "protocol.json"
PIECE = 50  # images whose results are kept together
Results = dict[str, NDArray[np.float32]]  # row -> probabilities (images, classes)


class Piece(NamedTuple):
    """Some images under one corruption."""

    source: Source
    start: int
    stop: int


def pieces_of(counts: Mapping[Source, int]) -> list[Piece]:
    """The images of each source, from 0 to its count, split evenly into pieces, the first of every source before more.

    No piece has a single image, unless a count is 1 or counts differ: a control adapts on another one.
    """
    most = max(counts.values())
    edges = np.linspace(0, most, -(-most // PIECE) + 1).round().astype(int).tolist()
    return [
        Piece(source, start, min(stop, count))
        for start, stop in pairwise(edges)
        for source, count in counts.items()
        if start < count
    ]


def folder_of(out: Path) -> Path:
    """Where the pieces of an evaluation lie until it is whole."""
    return out.with_name(out.name + ".partial")


def path_of(folder: Path, piece: Piece) -> Path:
    return folder / f"{piece.start:06d}-{piece.source[0]}-{piece.source[1]}.npz"


def open_folder(out: Path) -> Path:
    """The folder for pieces, without what a kill left; nobody else may be writing `out`."""
    folder = folder_of(out)
    remove_leftovers(out)
    remove_leftovers(out.with_suffix(".npz"))
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)
    if not (folder / PROTOCOL).exists():  # else it is the same, or `share_done` would have refused it
        for piece in folder.glob("*.npz"):  # nobody knows under which protocol
            piece.unlink()
    return folder


def share_done(out: Path, protocol: dict[str, Any]) -> float:
    """How much of the evaluation is there, from 0 to 1; one under another protocol is refused."""
    if out.exists():
        _require_same(read_json(out).get("protocol"), protocol, out)
        if out.with_suffix(".npz").exists():
            return 1.0
    folder = folder_of(out)
    if not (folder / PROTOCOL).exists():
        return 0.0
    _require_same(read_json(folder / PROTOCOL), protocol, folder)
    sources = int(protocol["clean"]) + len(protocol["corruptions"]) * len(protocol["severities"])
    total: int = sources * -(-protocol["images"] // PIECE)
    return min(0.99, len(list(folder.glob("*.npz"))) / total)


def _require_same(old: Any, new: dict[str, Any], where: Path) -> None:
    if not isinstance(old, dict):
        raise InputError(f"{where} does not hold an evaluation; choose another --out, or delete it.")
    changed = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
    if changed:
        raise InputError(
            f"{where} holds an evaluation under another protocol, which differs in {name_list(changed)}; "
            "choose another --out, or delete it."
        )


def read_piece(folder: Path, piece: Piece, classes: int) -> Results | None:
    """What was kept of a piece; a damaged one counts as missing and is evaluated again."""
    try:
        with np.load(path_of(folder, piece), allow_pickle=False) as file:
            results = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError):
        return None
    shape = (piece.stop - piece.start, classes)
    return results if "before" in results and all(p.shape == shape for p in results.values()) else None


def write_piece(folder: Path, piece: Piece, results: Results, protocol: dict[str, Any]) -> None:
    """Keep a piece; the first one comes with the protocol, so that an evaluation that fails at once leaves nothing."""
    if not (folder / PROTOCOL).exists():
        write_json(folder / PROTOCOL, protocol)
    write_npz(path_of(folder, piece), results)


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)
