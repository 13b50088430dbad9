"""Evaluation: predict, adapt, predict, discard, image by image; resumable.

One pass over the corrupted test images gives the row before and the row after adapting, and the view-averaged row.
The controls cost no further adaptation: the model adapted to an image also predicts its neighbour, once under the
same corruption and, adapted to the clean image, under every corruption.
"""

import hashlib
import platform
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mt3 import corruptions
from mt3.adaptation.adapter import Adapter
from mt3.adaptation.averages import averaged_logits, view_average
from mt3.data import CorruptedSet, Dataset
from mt3.data.dataset import check_labels
from mt3.models.classifier import MT3Model, as_float
from mt3.models.store import tensors_hash
from mt3.results import facts
from mt3.support.errors import InputError, name_list
from mt3.support.files import atomic_path, own_directory, read_json, remove_leftovers, write_json
from mt3.support.progress import Progress
from mt3.support.version import __version__

PIECE = 50  # images whose results are kept together; an interruption loses at most this many
CLEAN = ("clean", 0)
DERIVED = ("default_adaptation",)  # follows from the rest of the protocol and is missing from older files
ADDED = {"adapt_layers": "all"}  # fields that older files lack, and what they mean there
Source = tuple[str, int]  # corruption and severity
Results = dict[str, NDArray[np.float32]]  # row -> probabilities (images, classes)


@dataclass(frozen=True)
class TestImages:
    """The images to evaluate on: a data set's test split, corrupted on the fly or taken from a -C directory."""

    __test__ = False  # not a test case, whatever its name says

    dataset: Dataset | None  # gives the clean images
    corrupted: CorruptedSet | None = None  # None: corruptions are generated, each image seeded by its index
    seed: int = 0  # of the generated corruptions
    first: int = 0  # index of the first image; those before it are left out

    def __post_init__(self) -> None:
        if self.dataset is None and self.corrupted is None:
            raise InputError("Expected a data set or a directory of corrupted images, got neither.")
        if len(self.labels) < 1:
            raise InputError(f"Expected the first image to be one of the test images, got {self.first}; lower --first.")
        if self.dataset is None or self.corrupted is None:
            return
        if not np.array_equal(self.dataset.test_labels[: self.corrupted.images], self.corrupted.labels):
            raise InputError(
                f"The labels in {self.corrupted.directory} are not those of {self.dataset.name}'s test split; "
                "give the corrupted version of the same data."
            )

    @property
    def labels(self) -> NDArray[np.int64]:
        every = self.corrupted.labels if self.corrupted is not None else self._clean.test_labels
        return every[self.first :]

    def origin(self, sources: list[Source], count: int) -> dict[str, Any]:
        """Where the corrupted images come from, for the protocol; those of a directory are known by their bytes."""
        if self.corrupted is None:
            return {"kind": "generated", "version": __version__, "seed": self.seed}
        digest = hashlib.blake2b(digest_size=16)
        for source in sources:
            digest.update(np.ascontiguousarray(self.corrupted.images_of(*source)[self.first :][:count]).data)
        return {"kind": "directory", "name": self.corrupted.directory.resolve().name, "hash": digest.hexdigest()}

    def take(self, source: Source, start: int, stop: int) -> NDArray[np.uint8]:
        """Images start..stop-1 (N, 32, 32, 3), counted from `first`, under a corruption and severity, or clean."""
        start, stop = start + self.first, stop + self.first
        if source != CLEAN and self.corrupted is not None:
            return np.array(self.corrupted.images_of(*source)[start:stop])  # a copy in memory
        images = self._clean.test_images[start:stop]
        return images if source == CLEAN else corruptions.apply(images, *source, seed=self.seed, first_index=start)

    @property
    def _clean(self) -> Dataset:
        assert self.dataset is not None
        return self.dataset


def make_protocol(
    model: MT3Model,
    images: TestImages,
    sources: list[Source],
    limit: int | None,
    adapter: Adapter | None,
    controls: bool,
    seed: int,
    views: int | None,
    about: dict[str, Any],
    average: int | None = None,
) -> dict[str, Any]:
    """Everything that the numbers depend on; what departs from the model's own way to answer is named as a variant."""
    count = len(images.labels) if limit is None else min(limit, len(images.labels))
    if count < 1:
        raise InputError(f"Expected at least one image to evaluate, got a limit of {limit}.")
    if controls and adapter is None:
        raise InputError("Controls compare adapted models, but this model has nothing to adapt with; drop --controls.")
    if controls and images.dataset is None:
        raise InputError("The clean control needs the clean test images; give --data-dir, or drop --controls.")
    if controls and count < 2:
        raise InputError("Controls adapt on another image, so they need at least 2 images; raise --limit.")
    average = model.adapt_average if average is None else average
    own = {"adapt_layers": model.adapt_layers, "average": model.adapt_average, "gate": model.adapt_gate}
    now = own | {"average": average}
    if adapter is not None:
        now |= {"adapt_layers": adapter.layers, "gate": adapter.gate}
    told = [f"{name}={value}" for name, value in now.items() if value != own[name]]
    if told and "ablation" not in about:
        about = about | {"ablation": f"{name_list(told)} when evaluated"}
    return about | {
        "split": "test",
        "source": images.origin(sources, count),
        "corruptions": list(dict.fromkeys(name for name, _ in sources)),
        "severities": sorted({severity for _, severity in sources}),
        "images": count,
        **({"first": images.first} if images.first else {}),
        "clean": images.dataset is not None,
        "adapts": adapter is not None,
        "steps": adapter.steps if adapter else 0,
        "lr": adapter.lr if adapter else None,
        "views": adapter.views if adapter else model.adapt_views if views is None else views,
        "default_adaptation": adapter is None
        or (adapter.steps, adapter.lr, adapter.views) == (model.adapt_steps, model.adapt_lr, model.adapt_views),
        "adapt_layers": adapter.layers if adapter else None,
        "clip": model.adapt_clip if adapter else None,
        "clip_mode": model.clip_mode,
        "crop_max": model.crop_max,
        "fresh_views": model.fresh_views,
        "seed": seed,
        "controls": controls,
        **({"average": average} if average else {}),
        **({"gate": adapter.gate} if adapter and adapter.gate < 1 else {}),
        **({"precision": model.precision} if model.precision != "float32" else {}),
        "model_hash": tensors_hash(model.state_dict()),
        "versions": {
            "mt3": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def evaluate(
    model: MT3Model,
    images: TestImages,
    names: list[str],
    severities: list[int],
    out: Path,
    limit: int | None = None,
    steps: int | None = None,
    lr: float | None = None,
    views: int | None = None,
    seed: int = 0,
    controls: bool = False,
    about: dict[str, Any] | None = None,
    adapt_layers: str | None = None,
    average: int | None = None,
    gate: float | None = None,
    unadapted: bool = False,
) -> dict[str, Any]:
    """Evaluate the model before and after adapting; write `out` (JSON) and the probabilities beside it (NPZ).

    What was evaluated before an interruption, under the same protocol, is not evaluated again. `unadapted` leaves out
    adapting and the average over views. One process at a time writes `out`.
    """
    if out.suffix != ".json":
        raise InputError(f"Expected a name ending in .json for the results, got {out}; the NPZ goes beside it.")
    model.eval()
    check_labels(images.labels, model.num_classes, "The test split")
    if model.selfsup == "none" and any(v is not None for v in (steps, lr, adapt_layers, gate)):
        raise InputError("This model has nothing to adapt with; drop --steps, --lr, --adapt-layers and --gate.")
    if unadapted:
        if controls or any(v is not None for v in (steps, lr, views, adapt_layers, gate)):
            raise InputError("Without adapting there are no views, steps, gate or controls; drop these or --unadapted.")
        views = 0
    adapter = None
    if model.selfsup != "none" and not unadapted:
        adapter = Adapter(model, steps, lr, views, seed, adapt_layers, average=average, gate=gate)
    sources = [(name, severity) for severity in severities for name in names]
    protocol = make_protocol(model, images, sources, limit, adapter, controls, seed, views, about or {}, average)
    pieces = _pieces_of(out)
    if share_done(out, protocol) < 1:
        with own_directory(pieces):
            if share_done(out, protocol) < 1:  # else another process has finished it just now
                job = _Job(model, adapter, images, sources, controls, seed, views, protocol.get("average", 0), pieces)
                _remove_leftovers(out)
                _open_pieces(pieces, protocol)
                _evaluate_missing(job, protocol, out)
    shutil.rmtree(pieces, ignore_errors=True)  # also those of a process killed after its last file
    return read_json(out)


def share_done(out: Path, protocol: dict[str, Any]) -> float:
    """How much of the evaluation is there, from 0 to 1; one under another protocol is refused."""
    if out.exists():
        _require_same(read_json(out).get("protocol"), protocol, out)
        if out.with_suffix(".npz").exists():
            return 1.0
    pieces = _pieces_of(out)
    if not (pieces / "protocol.json").exists():
        return 0.0
    _require_same(read_json(pieces / "protocol.json"), protocol, pieces)
    sources = int(protocol["clean"]) + len(protocol["corruptions"]) * len(protocol["severities"])
    total = sources * len(list(_bounds(protocol["images"])))
    return min(0.99, len(list(pieces.glob("*.npz"))) / total)


def _pieces_of(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


class _Job(NamedTuple):
    """What every piece of an evaluation needs."""

    model: MT3Model
    adapter: Adapter | None
    images: TestImages
    sources: list[Source]
    controls: bool
    seed: int
    views: int | None
    average: int
    pieces: Path


Piece = tuple[Source, int, int]  # source, first image, one past the last


def _piece_path(pieces: Path, source: Source, start: int) -> Path:
    return pieces / f"{start:06d}-{source[0]}-{source[1]}.npz"


def _bounds(count: int) -> Iterator[tuple[int, int]]:
    """Split 0..count evenly into pieces of at most PIECE images; none has a single image unless count is 1."""
    edges = np.linspace(0, count, -(-count // PIECE) + 1).round().astype(int).tolist()
    yield from pairwise(edges)


def _tensor(images: NDArray[np.uint8], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).contiguous().to(device)


def _probabilities(logits: Tensor) -> NDArray[np.float32]:
    p = np.asarray(logits.float().softmax(-1).cpu().numpy())
    if not np.isfinite(p).all():
        raise InputError("The model's answer is not finite; lower --lr, or train it again.")
    return p


def _evaluate_missing(job: _Job, protocol: dict[str, Any], out: Path) -> None:
    """Evaluate the pieces that are not there, and write what all of them say."""
    everything = ([CLEAN] if job.images.dataset is not None else []) + job.sources
    bounds = list(_bounds(protocol["images"]))
    todo = [(source, start, stop) for start, stop in bounds for source in everything]
    classes = job.model.num_classes
    missing = [piece for piece in todo if not _is_whole(_piece_path(job.pieces, *piece[:2]), piece, classes)]
    done = sum(stop - start for _, start, stop in todo) - sum(stop - start for _, start, stop in missing)
    with Progress("evaluate", protocol["images"] * len(everything), "images", done) as progress:
        for piece in missing:
            progress.advance(_evaluate_piece(job, piece))
    rows = _collect(job.pieces, everything, bounds, job.controls, job.sources)
    labels = job.images.labels[: protocol["images"]]
    result = summarise(protocol, rows, labels)
    arrays = {f"{name}-{severity}/{row}": p for (name, severity), r in rows.items() for row, p in r.items()}
    _write_npz(out.with_suffix(".npz"), arrays | {"labels": labels})
    write_json(out, result)


def _evaluate_piece(job: _Job, piece: Piece) -> int:
    """Evaluate a piece and write its results; returns its number of images."""
    source, start, stop = piece
    _write_npz(_piece_path(job.pieces, source, start), _predict_piece(job, source, start, stop))
    return stop - start


def _predict_piece(job: _Job, source: Source, start: int, stop: int) -> Results:
    """Probabilities of the piece's images, by row."""
    model, adapter = job.model, job.adapter
    device = model.stem.weight.device
    batch = _tensor(job.images.take(source, start, stop), device)
    with torch.no_grad():
        scaled = as_float(batch, model.stem.weight.dtype)
        results: Results = {"before": _probabilities(averaged_logits(model, batch, scaled, job.average, job.seed))}
    if job.views == 0:
        return results
    if adapter is None:
        return results | {"view_average": view_average(model, batch, job.seed, job.views).float().cpu().numpy()}
    # what the model adapted to image i predicts: the image itself and, as controls, its neighbour
    wanted: list[tuple[str, Tensor, int]] = [("after", batch, 0)]  # (row, images, distance)
    if job.controls and source == CLEAN:
        for other in job.sources:
            wanted.append((_clean_key(other), _tensor(job.images.take(other, start, stop), device), 1))
    elif job.controls:
        wanted.append(("same_corruption", batch, 1))
    others = torch.stack([pictures.roll(distance, 0) for _, pictures, distance in wanted], dim=1)
    answers = adapter.answer(batch, others)
    results["view_average"] = answers.view_average.float().cpu().numpy()
    probabilities = _probabilities(answers.logits)
    for number, (row, _, distance) in enumerate(wanted):
        results[row] = np.roll(probabilities[:, number], -distance, axis=0)
    return results


def _clean_key(source: Source) -> str:
    """Where the clean piece keeps a corruption's clean control."""
    return f"clean_other/{source[0]}-{source[1]}"


def _collect(
    pieces: Path, everything: list[Source], bounds: list[tuple[int, int]], controls: bool, sources: list[Source]
) -> dict[Source, Results]:
    """Join the pieces of each source, and give the clean control to the corruption it belongs to."""
    rows: dict[Source, Results] = {}
    for source in everything:
        parts = [_read_npz(_piece_path(pieces, source, start)) for start, _ in bounds]
        rows[source] = {row: np.concatenate([p[row] for p in parts]) for row in parts[0]}
    if controls:
        for source in sources:
            rows[source]["clean_other"] = rows[CLEAN].pop(_clean_key(source))
    return rows


def summarise(protocol: dict[str, Any], rows: dict[Source, Results], labels: NDArray[np.int64]) -> dict[str, Any]:
    """The facts of every corruption and of the clean images."""
    return {
        "protocol": protocol,
        "clean": facts(rows[CLEAN], labels) if CLEAN in rows else None,
        "corruptions": [
            {"name": source[0], "severity": source[1], "rows": facts(rows[source], labels)}
            for source in rows
            if source != CLEAN
        ],
    }


def _remove_leftovers(out: Path) -> None:
    """Delete what an evaluation that was killed had not yet renamed; nobody else may be writing `out`."""
    remove_leftovers(out)
    remove_leftovers(out.with_suffix(".npz"))
    for path in _pieces_of(out).glob(".*.tmp"):
        path.unlink(missing_ok=True)


def _open_pieces(directory: Path, protocol: dict[str, Any]) -> None:
    path = directory / "protocol.json"
    if path.exists():
        return  # it is the same, or `share_done` would have refused it
    for piece in directory.glob("*.npz"):  # nobody knows under which protocol
        piece.unlink()
    write_json(path, protocol)


def _require_same(old: Any, new: dict[str, Any], where: Path) -> None:
    if not isinstance(old, dict):
        raise InputError(f"{where} does not hold an evaluation; choose another --out, or delete it.")
    if old.get("adapts"):
        old = ADDED | old
    if new.get("trained_steps") == new.get("total_steps"):  # older files lack both, which means finished
        old = {key: new[key] for key in ("trained_steps", "total_steps") if key in new} | old
    changed = [k for k in old.keys() | new.keys() if k not in DERIVED and old.get(k) != new.get(k)]
    if changed:
        raise InputError(
            f"{where} holds an evaluation under another protocol ({name_list(sorted(changed))} differ); "
            "choose another --out, or delete it."
        )


def _is_whole(path: Path, piece: Piece, classes: int) -> bool:
    """Whether a piece is there and complete; a damaged one counts as missing and is evaluated again."""
    try:
        results = _read_npz(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError):
        return False
    shape = (piece[2] - piece[1], classes)
    return "before" in results and all(p.shape == shape for p in results.values())


def _write_npz(path: Path, arrays: dict[str, Any]) -> None:
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def _read_npz(path: Path) -> Results:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
