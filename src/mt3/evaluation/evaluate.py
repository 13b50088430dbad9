"""One pass over the corrupted test images gives the row before and the row after adapting, and the view average.

The controls cost no further adaptation: the model adapted to an image also predicts its neighbour, once under the
same corruption and, adapted to the clean image, under every corruption.
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
from mt3.models.classifier import MT3Model
from mt3.results.facts import Evaluation, facts, read_evaluation
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
                job = _Job(model, adapter, images, protocol, open_folder(out))
                _evaluate_missing(job, described, out)
    shutil.rmtree(folder_of(out), ignore_errors=True)  # also that of a process killed after its last file
    return read_evaluation(out)


class _Job(NamedTuple):
    """What every piece of an evaluation needs."""

    model: MT3Model
    adapter: Adapter | None
    images: TestImages
    protocol: Protocol
    folder: Path


def _evaluate_missing(job: _Job, described: dict[str, Any], out: Path) -> None:
    """Evaluate the pieces that are not there, and write what all of them say."""
    sources = ([CLEAN] if described["clean"] else []) + job.protocol.sources
    counts = {source: job.protocol.count(job.images, source) for source in sources}
    pieces = pieces_of(counts)
    there = {piece: read_piece(job.folder, piece, job.model.num_classes) for piece in pieces}
    kept = {piece: results for piece, results in there.items() if results is not None}
    done = sum(piece.stop - piece.start for piece in kept)
    with Progress("evaluate", sum(counts.values()), "images", done) as progress:
        for piece in [piece for piece in pieces if piece not in kept]:
            kept[piece] = _predict_piece(job, piece)
            write_piece(job.folder, piece, kept[piece], described)
            progress.advance(piece.stop - piece.start)
    rows = {source: _join([kept[piece] for piece in pieces if piece.source == source]) for source in sources}
    if job.protocol.controls:
        for source in job.protocol.sources:
            rows[source]["clean_other"] = rows[CLEAN].pop(_clean_key(source))
    labels = {source: job.images.labels_of(source)[:count] for source, count in counts.items()}
    arrays: dict[str, Any] = {f"{_key(source)}/{row}": p for source, r in rows.items() for row, p in r.items()}
    if job.images.shifted is None:
        arrays["labels"] = next(iter(labels.values()))  # the same images under every corruption
    else:
        arrays |= {f"{_key(source)}/labels": some for source, some in labels.items()}
    write_npz(out.with_suffix(".npz"), arrays)
    found = {source: facts(r, labels[source]) for source, r in rows.items()}
    entries = [{"name": s[0], "severity": s[1], "images": counts[s], "rows": found[s]} for s in job.protocol.sources]
    write_json(out, {"protocol": described, "clean": found.get(CLEAN), "corruptions": entries})


def _predict_piece(job: _Job, piece: Piece) -> Results:
    """Probabilities of the piece's images, by row."""
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


def _clean_key(source: Source) -> str:
    """Where the clean piece keeps a corruption's clean control."""
    return f"clean_other/{_key(source)}"


def _key(source: Source) -> str:
    """What the arrays of a source are called by."""
    return f"{source[0]}-{source[1]}"


def _join(parts: list[Results]) -> Results:
    return {row: np.concatenate([part[row] for part in parts]) for row in parts[0]}
