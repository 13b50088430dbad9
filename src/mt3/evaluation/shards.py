"""An evaluation in several processes that need not know of each other: each does its shard, the last one merges.

They share a directory, not a process group: they may run at different times, on different hosts, or twice. Needs no
torch.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mt3.evaluation.pieces import (
    CLEAN,
    PROTOCOL,
    Kept,
    Piece,
    Source,
    all_pieces,
    corrupted_sources,
    folder_of,
    is_whole,
    path_of,
    read_piece,
    source_key,
    units_of,
    write_npz,
)
from mt3.results.facts import facts
from mt3.results.statistics import pack_positions
from mt3.support.errors import InputError, shown
from mt3.support.files import made_directory, own_file, read_json, remove_leftovers, write_json

MERGE = "merge.lock"


class Shard(NamedTuple):
    """One process's share of an evaluation: of its units those whose number leaves `number` when divided by `of`."""

    number: int = 0
    of: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def pieces(self, protocol: dict[str, Any]) -> list[Piece]:
        return [piece for unit in units_of(protocol)[self.number :: self.of] for piece in unit]

    def file(self, folder: Path, ending: str) -> Path:
        return folder / f"shard-{self.number}-of-{self.of}.{ending}"


WHOLE = Shard()


def parse_shard(text: str) -> Shard:
    """The shard `I/N`, of 0/N to N-1/N."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    shard = Shard(int(found[1]), int(found[2])) if found else None
    if shard is None or shard.number >= shard.of:
        raise InputError(f"Expected a shard I/N from 0/N to N-1/N, such as 0/4, got '{shown(text)}'.")
    return shard


def rank_shard(environment: Mapping[str, str] = os.environ) -> Shard:
    """The share of this process among those that torchrun started, or all."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return WHOLE
    return parse_shard(f"{environment['RANK']}/{environment['WORLD_SIZE']}")


@contextmanager
def own_shard(out: Path, shard: Shard) -> Iterator[Path]:
    """The folder for the pieces, and nobody else at this shard for the block; one that fails at once leaves nothing."""
    folder = folder_of(out)
    who = "" if shard == WHOLE else f" as shard {shard}"
    refusal = f"Another process is writing to {folder}{who}; wait until it ends, or choose another --out."
    with made_directory(folder), own_file(shard.file(folder, "lock"), refusal):
        try:
            yield folder
        finally:
            if not (folder / PROTOCOL).exists():  # no piece was ever done, so that there is nothing to go on with
                shard.file(folder, "json").unlink(missing_ok=True)


def clean_key(source: Source) -> str:
    """Where the clean piece keeps a corruption's clean control."""
    return f"clean_other/{source_key(source)}"


def has_all(out: Path, protocol: dict[str, Any]) -> bool:
    """Whether every piece of the evaluation has been written."""
    return all(path_of(folder_of(out), piece).exists() for piece in all_pieces(protocol))


def merge(out: Path) -> bool:
    """Write the results from all pieces, unless that is done; says whether this call did it.

    Where several processes call this at the same time, one does it and the others wait. On a file system without locks
    they may all do it, and write the same bytes.
    """
    folder = folder_of(out)
    if not is_whole(out) and not (folder / PROTOCOL).exists():
        raise InputError(f"There are no pieces of {out}; `mt3 evaluate RUN --shard 0/2 --out {out}` makes some.")
    try:
        with own_file(folder / MERGE, None):
            if is_whole(out):
                return False
            protocol = read_json(folder / PROTOCOL)
            _write_results(out, protocol, _read_all(out, protocol))
    except InputError:
        if is_whole(out):  # by a process that no lock kept out, and which removed the pieces
            return False
        raise
    return True


def remove_pieces(out: Path) -> None:
    """Delete the pieces of results that are written, also those of a process killed after its last file."""
    if is_whole(out):
        shutil.rmtree(folder_of(out), ignore_errors=True)


def _read_all(out: Path, protocol: dict[str, Any]) -> dict[Piece, Kept]:
    there = {piece: read_piece(folder_of(out), piece, protocol) for piece in all_pieces(protocol)}
    kept = {piece: found for piece, found in there.items() if found is not None}
    missing = [piece for piece in there if piece not in kept]
    if missing:
        raise InputError(
            f"{out} is not whole: {len(missing)} of {len(there)} pieces are missing, the first of them "
            f"{missing[0]}; run the shards that did not finish again."
        )
    return kept


def _write_results(out: Path, protocol: dict[str, Any], kept: dict[Piece, Kept]) -> None:
    """Join the pieces and write what they say."""
    sources = corrupted_sources(protocol)
    by_source: dict[Source, list[Kept]] = {}
    for piece, found in kept.items():
        by_source.setdefault(piece.source, []).append(found)
    joined = {source: _join(parts) for source, parts in by_source.items()}
    positions: dict[str, str] = {}
    if "stream" in protocol:
        joined, positions = _sort(_join(list(joined.values())), sources or [CLEAN])
    rows = {source: found.rows for source, found in joined.items()}
    labels = {source: found.labels for source, found in joined.items()}
    arrays: dict[str, Any] = {}
    if "counts" in protocol["source"]:  # of shifts, whose images are their own
        arrays |= {f"{source_key(source)}/labels": some for source, some in labels.items()}
    else:
        arrays["labels"] = next(iter(labels.values()))
        if any(not np.array_equal(arrays["labels"], some) for some in labels.values()):
            raise InputError(f"The shards of {out} had images with different labels; give all of them the same data.")
    if protocol["controls"]:
        for source in sources:
            rows[source]["clean_other"] = rows[CLEAN].pop(clean_key(source))
    remove_leftovers(out)
    remove_leftovers(out.with_suffix(".npz"))
    each = {f"{source_key(source)}/{row}": p for source, r in rows.items() for row, p in r.items()}
    write_npz(out.with_suffix(".npz"), each | arrays)
    told = {source: facts(r, labels[source]) for source, r in rows.items()}
    entries = [{"name": s[0], "severity": s[1], "images": len(labels[s]), "rows": told[s]} for s in sources]
    value = {"protocol": protocol, "clean": told.get(CLEAN), "corruptions": entries}
    write_json(out, value | ({"positions": positions} if positions else {}))


def _join(parts: list[Kept]) -> Kept:
    rows = {row: np.concatenate([part.rows[row] for part in parts]) for row in parts[0].rows}
    orders = [part.order for part in parts if part.order is not None]
    return Kept(rows, np.concatenate([part.labels for part in parts]), np.concatenate(orders) if orders else None)


def _sort(along: Kept, sources: list[Source]) -> tuple[dict[Source, Kept], dict[str, str]]:
    """What was answered along a stream, source by source in the order of the images, and where each came."""
    assert along.order is not None
    found, positions = {}, {}
    for number, (name, severity) in enumerate(sources):
        own = np.flatnonzero(along.order[:, 0] == number)
        own = own[along.order[own, 1].argsort()]
        found[name, severity] = Kept({row: p[own] for row, p in along.rows.items()}, along.labels[own])
        positions[f"{name}-{severity}"] = pack_positions(own)
    return found, positions
