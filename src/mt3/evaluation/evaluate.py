"""One pass over the corrupted test images gives the row before and the row after adapting, and the view average.

The controls cost no further adaptation: the model adapted to an image also predicts its neighbour, once under the
same corruption and, adapted to the clean image, under every corruption. Along a stream an adapter keeps its steps: a
piece goes on from the state that the piece before it left on disk, after an interruption as without one.
"""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mt3.adaptation.adapter import Adapter
from mt3.data.dataset import check_labels
from mt3.evaluation.pieces import (
    Piece,
    Results,
    folder_of,
    open_folder,
    pieces_of,
    read_piece,
    share_done,
    write_npz,
    write_piece,
)
from mt3.evaluation.predict import as_tensor, probabilities
from mt3.evaluation.protocol import CLEAN, Protocol, Source, TestImages, describe
from mt3.evaluation.streams import Stream, chained, drop_state, make_stream, read_state, write_state
from mt3.models.classifier import MT3Model
from mt3.results.facts import Evaluation, facts, read_evaluation
from mt3.results.statistics import pack_positions
from mt3.support.errors import InputError
from mt3.support.files import own_directory, write_json
from mt3.support.progress import Progress
from mt3.support.threads import undisturbed


def evaluate(model: MT3Model, images: TestImages, protocol: Protocol, out: Path) -> Evaluation:
    """Evaluate the model before and after adapting; write `out` (JSON) and the probabilities beside it (NPZ).

    What was evaluated before an interruption, under the same protocol, is not evaluated again. One process at a time
    writes `out`.
    """
    if out.suffix != ".json":
        raise InputError(f"Expected a name ending in .json for the results, got {out}; the NPZ goes beside it.")
    model.eval()
    check_labels(images.labels, model.num_classes, "The test split")
    adapter = None if protocol.adaptation is None else Adapter(model, protocol.adaptation, seed=protocol.seed)
    described = describe(protocol, model, images)
    if share_done(out, described) < 1:
        with own_directory(folder_of(out)):
            if share_done(out, described) < 1:  # else another process has finished it just now
                job = _Job(model, adapter, images, protocol, open_folder(out), _stream(protocol, images))
                _evaluate_missing(job, described, out)
    shutil.rmtree(folder_of(out), ignore_errors=True)  # also that of a process killed after its last file
    return read_evaluation(out)


def _stream(protocol: Protocol, images: TestImages) -> Stream | None:
    if protocol.stream is None or protocol.adaptation is None:
        return None
    labels, batch = images.labels[: protocol.count(images)], protocol.adaptation.batch
    return make_stream(protocol.stream, protocol.sources or [CLEAN], labels, protocol.seed, batch)


class _Job(NamedTuple):
    """What every piece of an evaluation needs."""

    model: MT3Model
    adapter: Adapter | None
    images: TestImages
    protocol: Protocol
    folder: Path
    stream: Stream | None


def _evaluate_missing(job: _Job, described: dict[str, Any], out: Path) -> None:
    """Evaluate the pieces that are not there, and write what all of them say."""
    count: int = described["images"]
    sources = ([CLEAN] if described["clean"] else []) + job.protocol.sources
    pieces = pieces_of(sources, count) if job.stream is None else job.stream.pieces()
    there = {piece: read_piece(job.folder, piece, job.model.num_classes) for piece in pieces}
    kept = {piece: results for piece, results in there.items() if results is not None}
    if job.stream is not None:
        kept = chained(kept, pieces, job.folder)
    done = sum(piece.stop - piece.start for piece in kept)
    with Progress("evaluate", count * len(sources), "images", done) as progress:
        for piece in [piece for piece in pieces if piece not in kept]:
            kept[piece] = _predict_piece(job, piece)
            write_piece(job.folder, piece, kept[piece], described)
            drop_state(job.folder, piece)
            progress.advance(piece.stop - piece.start)
    units = dict.fromkeys(piece.source for piece in pieces)
    rows = {unit: _join([kept[piece] for piece in pieces if piece.source == unit]) for unit in units}
    if job.stream is not None:
        rows = job.stream.sort(rows)
    if job.protocol.controls:
        for source in job.protocol.sources:
            rows[source]["clean_other"] = rows[CLEAN].pop(_clean_key(source))
    labels = job.images.labels[:count]
    arrays = {f"{name}-{severity}/{row}": p for (name, severity), r in rows.items() for row, p in r.items()}
    write_npz(out.with_suffix(".npz"), arrays | {"labels": labels})
    found = {source: facts(r, labels) for source, r in rows.items()}
    entries = [{"name": s[0], "severity": s[1], "rows": found[s]} for s in job.protocol.sources]
    value = {"protocol": described, "clean": found.get(CLEAN), "corruptions": entries}
    if job.stream is not None:
        places = zip(job.stream.sources, job.stream.positions(), strict=True)
        value["positions"] = {f"{name}-{severity}": pack_positions(p) for (name, severity), p in places}
    write_json(out, value)


def _predict_piece(job: _Job, piece: Piece) -> Results:
    """Probabilities of the piece's images, by row."""
    if job.stream is not None:
        return _predict_along(job, job.stream, piece)
    model, adapter, controls = job.model, job.adapter, job.protocol.controls
    batch = as_tensor(job.images.take(*piece), model.device)
    with undisturbed(model.device), torch.no_grad():
        results: Results = {"before": probabilities(model(batch))}
    if adapter is None:
        return results
    # what the model adapted to image i predicts: the image itself and, as controls, its neighbour
    wanted: list[tuple[str, Tensor, int]] = [("after", batch, 0)]  # (row, images, distance)
    if controls and piece.source == CLEAN:
        for other in job.protocol.sources:
            pictures = as_tensor(job.images.take(other, piece.start, piece.stop), model.device)
            wanted.append((_clean_key(other), pictures, 1))
    elif controls:
        wanted.append(("same_corruption", batch, 1))
    others = torch.stack([pictures.roll(distance, 0) for _, pictures, distance in wanted], dim=1)
    answers = adapter.answer(batch, others)
    results["view_average"] = answers.view_average.float().cpu().numpy()
    adapted = probabilities(answers.logits)
    for number, (row, _, distance) in enumerate(wanted):
        results[row] = np.roll(adapted[:, number], -distance, axis=0)
    return results


def _predict_along(job: _Job, stream: Stream, piece: Piece) -> Results:
    """As `_predict_piece`, by an adapter that goes on where the piece before left it, and leaves its state behind."""
    adapter = job.adapter
    assert adapter is not None
    state = read_state(job.folder, piece) if piece.start else None
    if state is None:
        adapter.reset()
    else:
        adapter.load_state_dict(state)
    batch = as_tensor(stream.take(job.images, piece), job.model.device)
    results = {"before": probabilities(adapter.unadapted(batch)), "after": probabilities(adapter(batch))}
    if piece.stop < len(stream.units[piece.source]):
        write_state(job.folder, piece._replace(start=piece.stop), adapter.state_dict())
    return results


def _clean_key(source: Source) -> str:
    """Where the clean piece keeps a corruption's clean control."""
    return f"clean_other/{source[0]}-{source[1]}"


def _join(parts: list[Results]) -> Results:
    return {row: np.concatenate([part[row] for part in parts]) for row in parts[0]}
