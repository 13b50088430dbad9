"""Streams: the order in which images meet an adapter that keeps its steps, and its state on disk."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mt3.config.streams import ANEW
from mt3.evaluation.pieces import PIECE, Piece, Results, path_of
from mt3.evaluation.protocol import Source, TestImages
from mt3.models.store import tensors_hash
from mt3.support.files import atomic_path

Order = NDArray[np.int64]  # (answers, 2): which source, and which of its images


@dataclass(frozen=True, eq=False)
class Stream:
    """The order of a stream, and its units: parts that each begin with the model as it is."""

    kind: str
    sources: tuple[Source, ...]
    order: Order
    batch: int  # images that share a step

    @cached_property
    def units(self) -> dict[Source, Order]:
        """One for each corruption, or one in all; whoever evaluates a unit evaluates all of it, in order."""
        if self.kind not in ANEW:
            return {(self.kind, 0): self.order}
        return dict(zip(self.sources, np.split(self.order, len(self.sources)), strict=True))

    def pieces(self) -> list[Piece]:
        """The units one after the other, in pieces of whole steps; a piece goes on from the state after the last."""
        size = -(-PIECE // self.batch) * self.batch
        return [
            Piece(unit, start, min(start + size, len(order)))
            for unit, order in self.units.items()
            for start in range(0, len(order), size)
        ]

    def take(self, images: TestImages, piece: Piece) -> NDArray[np.uint8]:
        """The piece's images (N, H, H, 3), in the order of the stream."""
        order = self.units[piece.source][piece.start : piece.stop]
        return np.concatenate([images.take(self.sources[s], i, i + 1) for s, i in order.tolist()])

    def sort(self, along: Mapping[Source, Results]) -> dict[Source, Results]:
        """Answers along the units as answers of each source, in the order of its images."""
        rows = next(iter(along.values()))
        whole = {row: np.concatenate([along[unit][row] for unit in self.units]) for row in rows}
        places = self.positions()
        return {s: {row: p[places[n]] for row, p in whole.items()} for n, s in enumerate(self.sources)}

    def positions(self) -> NDArray[np.int64]:
        """Where in the stream each image of each source comes: (sources, images)."""
        places = np.empty((len(self.sources), len(self.order) // len(self.sources)), np.int64)
        places[self.order[:, 0], self.order[:, 1]] = np.arange(len(self.order))
        return places


def make_stream(kind: str, sources: Sequence[Source], labels: NDArray[np.int64], seed: int, batch: int) -> Stream:
    """The stream of a kind over the images of these labels; every source shows its images in the same order.

    Sources come in the order given. What the seed decides: the order of images, or of classes and of images within.
    """
    generator = np.random.default_rng((seed, zlib.crc32(b"stream")))
    images = generator.permutation(len(labels))
    if kind == "correlated":
        turn = generator.permutation(int(labels.max()) + 1)
        images = images[np.argsort(turn[labels[images]], kind="stable")]
    order = np.stack([np.repeat(np.arange(len(sources)), len(images)), np.tile(images, len(sources))], axis=1)
    if kind == "mixed":
        order = generator.permutation(order)
    return Stream(kind, tuple(sources), order, batch)


def chained(kept: Mapping[Piece, Results], pieces: Sequence[Piece], folder: Path) -> dict[Piece, Results]:
    """Of the pieces that were kept, those from which their unit can go on: all up to a state that is whole."""
    found: dict[Piece, Results] = {}
    for unit in dict.fromkeys(piece.source for piece in pieces):
        own = [piece for piece in pieces if piece.source == unit]
        done = list(takewhile(lambda piece: piece in kept, own))
        if done == own or (done and read_state(folder, own[len(done)]) is not None):
            found |= {piece: kept[piece] for piece in done}
    return found


def _state_path(folder: Path, piece: Piece) -> Path:
    return path_of(folder, piece).with_suffix(".safetensors")


def read_state(folder: Path, piece: Piece) -> dict[str, Tensor] | None:
    """The adapter's state before a piece; none where there is no whole one."""
    try:
        with safe_open(_state_path(folder, piece), framework="pt") as file:
            state = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            told = (file.metadata() or {}).get("hash")
    except (SafetensorError, OSError):
        return None
    return state if told == tensors_hash(state) else None


def write_state(folder: Path, piece: Piece, state: Mapping[str, Tensor]) -> None:
    """Keep the state before a piece."""
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    with atomic_path(_state_path(folder, piece)) as temporary:
        try:
            save_file(whole, temporary, {"hash": tensors_hash(whole)})
        except SafetensorError as error:  # how it words a full disk
            raise OSError(str(error)) from error


def drop_state(folder: Path, piece: Piece) -> None:
    """Forget the state before a piece that is whole."""
    _state_path(folder, piece).unlink(missing_ok=True)
