"""Streams: the order in which images meet an adapter that keeps its steps, and its state between their pieces."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mt3.config.streams import ANEW
from mt3.evaluation.pieces import Piece, Source, path_of
from mt3.evaluation.protocol import TestImages
from mt3.models.store import tensors_hash
from mt3.support.files import atomic_path

Labels = NDArray[np.int64]
Order = NDArray[np.int64]  # (answers, 2): the number of a source, and of one of its images


class Stream(NamedTuple):
    """The units of a stream: each begins with the model as it is, and is done as a whole and in order."""

    units: dict[Source, Order]  # one for each source, or one in all

    labels: dict[Source, Labels]

    def take(self, images: TestImages, piece: Piece) -> tuple[NDArray[np.uint8], Labels, Order]:
        """The piece's images (N, H, H, 3) and their labels, in the order of the stream, and that order."""
        order = self.units[piece.source][piece.start : piece.stop]
        places = [(list(self.labels)[source], i) for source, i in order.tolist()]
        pictures = np.concatenate([images.take(source, i, i + 1) for source, i in places])
        return pictures, np.array([self.labels[source][i] for source, i in places]), order


def make_stream(kind: str, labels: Mapping[Source, Labels], seed: int) -> Stream:
    """The stream of a kind over the images of some sources, which come in the order given.

    The seed decides the order of the images, or of classes and the images of each. It is the same for all sources that
    have the same labels.
    """
    parts = [_order_of(kind, n, own, seed) for n, own in enumerate(labels.values())]
    if kind in ANEW:
        return Stream(dict(zip(labels, parts, strict=True)), dict(labels))
    whole = np.concatenate(parts)
    if kind == "mixed":
        whole = _generator(seed).permutation(whole)
    return Stream({(kind, 0): whole}, dict(labels))


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng((seed, zlib.crc32(b"stream")))


def _order_of(kind: str, number: int, labels: Labels, seed: int) -> Order:
    """The images of one source."""
    generator = _generator(seed)
    images = generator.permutation(len(labels))
    if kind == "correlated":
        turn = generator.permutation(int(labels.max()) + 1)  # of the classes
        images = images[np.argsort(turn[labels[images]], kind="stable")]
    return np.stack([np.full(len(images), number), images], axis=1)


def missing_along(pieces: list[Piece], missing: list[Piece], folder: Path) -> list[Piece]:
    """The pieces of a stream that are to be done: a unit goes on at the first that is missing, if its state is whole.

    Pieces that are there and rest on one that is not are removed, so that they are done again.
    """
    found = []
    for unit in dict.fromkeys(piece.source for piece in pieces):
        own = [piece for piece in pieces if piece.source == unit]
        done = next((n for n, piece in enumerate(own) if piece in missing), len(own))
        if done < len(own) and read_state(folder, own[done]) is None:
            done = 0
        found += own[done:]
    for piece in found:
        path_of(folder, piece).unlink(missing_ok=True)
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
    """Keep the adapter's state after a piece, which is the one before the next."""
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    with atomic_path(_state_path(folder, piece._replace(start=piece.stop))) as temporary:
        try:
            save_file(whole, temporary, {"hash": tensors_hash(whole)})
        except SafetensorError as error:  # how it words a full disk
            raise OSError(str(error)) from error


def drop_state(folder: Path, piece: Piece) -> None:
    """Forget the state before a piece that is kept."""
    _state_path(folder, piece).unlink(missing_ok=True)
