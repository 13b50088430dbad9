"""The pieces of an evaluation on disk: an interruption loses at most the one under way. Needs no torch."""

import hashlib
import json
import zipfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt3.support.errors import InputError, name_list
from mt3.support.files import atomic_path, read_json, write_json

PROTOCOL = "protocol.json"
PIECE = 50  # images whose results are kept together
CLEAN = ("clean", 0)
Source = tuple[str, int]  # corruption and severity
Results = dict[str, NDArray[np.float32]]  # row -> probabilities (images, classes)


class Piece(NamedTuple):
    """Some images under one corruption."""

    source: Source
    start: int
    stop: int

    def __str__(self) -> str:
        name, severity = self.source
        return f"images {self.start} to {self.stop - 1}, {name}" + (f" {severity}" if severity else "")


class Kept(NamedTuple):
    """What is kept of a piece."""

    rows: Results
    labels: NDArray[np.int64]
    order: NDArray[np.int64] | None = None  # of a stream: (images, 2), which source each image is of, and which of its


def source_key(source: Source) -> str:
    """What the arrays of a source are called by."""
    return f"{source[0]}-{source[1]}"


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


def corrupted_sources(protocol: dict[str, Any]) -> list[Source]:
    """The corruptions and severities of an evaluation, in the order of its results."""
    return [(name, severity) for severity in protocol["severities"] for name in protocol["corruptions"]]


def all_pieces(protocol: dict[str, Any]) -> list[Piece]:
    """Of an evaluation, in the order in which one process evaluates them.

    Those of a stream are its units one after the other, in whole steps: each goes on where the one before it ended.
    """
    if "stream" in protocol:
        batch = protocol["adaptation"]["batch"]
        return [piece for unit in protocol["stream"]["units"] for piece in _along(unit, batch)]
    told = protocol.get("source", {}).get("counts", {})  # shifts have images of their own
    sources = [CLEAN] * protocol["clean"] + corrupted_sources(protocol)
    return pieces_of({source: told.get(source_key(source), protocol["images"]) for source in sources})


def _along(unit: dict[str, Any], batch: int) -> list[Piece]:
    """The pieces of a unit; a last image that would be alone goes to the piece before: some methods compare images."""
    source, count, size = (unit["name"], unit["severity"]), unit["images"], -(-PIECE // batch) * batch
    edges = [*range(0, max(1, count - 1), size), count]
    return [Piece(source, start, stop) for start, stop in pairwise(edges)]


def units_of(protocol: dict[str, Any]) -> list[list[Piece]]:
    """What cannot be split between processes: a piece, or all pieces of one of a stream's units."""
    pieces = all_pieces(protocol)
    if "stream" not in protocol:
        return [[piece] for piece in pieces]
    return [[piece for piece in pieces if piece.source == unit] for unit in dict.fromkeys(p.source for p in pieces)]


def folder_of(out: Path) -> Path:
    """Where the pieces of an evaluation lie until it is whole."""
    return out.with_name(out.name + ".partial")


def path_of(folder: Path, piece: Piece) -> Path:
    return folder / f"{piece.start:06d}-{source_key(piece.source)}.npz"


def is_whole(out: Path) -> bool:
    """Whether the results are written; the NPZ is written first."""
    return out.exists() and out.with_suffix(".npz").exists()


def share_done(out: Path, protocol: dict[str, Any]) -> float:
    """How much of the evaluation is there, from 0 to 1; one under another protocol is refused."""
    if out.exists():
        _require_same(read_json(out).get("protocol"), protocol, out)
        if is_whole(out):
            return 1.0
    folder = folder_of(out)
    if not (folder / PROTOCOL).exists():
        return 0.0
    _require_same(read_json(folder / PROTOCOL), protocol, folder)
    pieces = all_pieces(protocol)
    return min(0.99, sum(path_of(folder, piece).exists() for piece in pieces) / len(pieces))


def _require_same(old: Any, new: dict[str, Any], where: Path) -> None:
    if not isinstance(old, dict):
        raise InputError(f"{where} does not hold an evaluation; choose another --out, or delete it.")
    changed = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
    if changed:
        raise InputError(
            f"{where} holds an evaluation under another protocol, which differs in {name_list(changed)}; "
            "choose another --out, or delete it."
        )


def _mark(protocol: dict[str, Any]) -> NDArray[np.uint8]:
    """What a piece is known by; nobody takes it for one of another protocol, whatever lies in its folder."""
    text = json.dumps(protocol, sort_keys=True).encode()
    return np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), np.uint8)


def read_piece(folder: Path, piece: Piece, protocol: dict[str, Any]) -> Kept | None:
    """What was kept of a piece; one that is damaged, or of another protocol, is evaluated again."""
    try:
        with np.load(path_of(folder, piece), allow_pickle=False) as file:
            rows = {name: file[name] for name in file.files}
        mark, labels, shape = rows.pop("protocol"), rows.pop("labels"), rows["before"].shape
        order = rows.pop("order") if "stream" in protocol else None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError):
        return None
    alike = len(shape) == 2 and all(p.shape == shape for p in rows.values())
    count = piece.stop - piece.start
    whole = alike and shape[0] == count and labels.shape == (count,) and np.array_equal(mark, _mark(protocol))
    return Kept(rows, labels, order) if whole else None


def write_piece(folder: Path, piece: Piece, kept: Kept, protocol: dict[str, Any]) -> None:
    """Keep a piece; the first one comes with the protocol, so that an evaluation that fails at once leaves nothing."""
    if not (folder / PROTOCOL).exists():
        write_json(folder / PROTOCOL, protocol)
    _require_same(read_json(folder / PROTOCOL), protocol, folder)  # another process may have begun with another one
    order = {} if kept.order is None else {"order": kept.order}
    write_npz(path_of(folder, piece), {**kept.rows, **order, "labels": kept.labels, "protocol": _mark(protocol)})


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)
