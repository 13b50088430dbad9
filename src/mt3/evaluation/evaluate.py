"""One pass over the corrupted test images gives the row before and the row after adapting, and the view average.

The controls cost no further adaptation: the model adapted to an image also predicts its neighbour, once under the
same corruption and, adapted to the clean image, under every corruption. Along a stream an adapter keeps its steps: a
piece goes on from the state that the piece before it left on disk, after an interruption as without one.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mt3.adaptation.adapter import Adapter
from mt3.adaptation.copies import mean_answer, near_copies
from mt3.data.dataset import check_labels
from mt3.evaluation.pieces import Kept, Piece, Results, is_whole, read_piece, share_done, write_piece
from mt3.evaluation.predict import as_tensor, probabilities
from mt3.evaluation.protocol import CLEAN, Protocol, TestImages, describe
from mt3.evaluation.shards import WHOLE, Shard, clean_key, has_all, merge, own_shard, remove_pieces
from mt3.evaluation.streams import Stream, drop_state, make_stream, missing_along, read_state, write_state
from mt3.models.call import Network
from mt3.results.facts import NEAR_COPIES, Evaluation, read_evaluation
from mt3.support.errors import InputError
from mt3.support.progress import Progress
from mt3.support.threads import undisturbed


def evaluate(model: Network, images: TestImages, protocol: Protocol, out: Path) -> Evaluation:
    """Evaluate the model before and after adapting; write `out` (JSON) and the probabilities beside it (NPZ).

    What was evaluated before an interruption, under the same protocol, is not evaluated again.
    """
    evaluate_shard(model, images, protocol, out, WHOLE)
    return read_evaluation(out)


def evaluate_shard(model: Network, images: TestImages, protocol: Protocol, out: Path, shard: Shard) -> bool:
    """Do one shard of an evaluation, and write the results if all others are done; says whether this call did that.

    One process at a time does a shard.
    """
    if out.suffix != ".json":
        raise InputError(f"Expected a name ending in .json for the results, got {out}; the NPZ goes beside it.")
    model.eval()
    check_labels(images.labels, model.num_classes, "The test split")
    described = describe(protocol, model, images)
    adapter = _adapter(model, images, protocol)
    wrote = False
    if share_done(out, described) < 1:
        with own_shard(out, shard) as folder:
            if share_done(out, described) < 1:  # else another process has finished it just now
                job = _Job(model, adapter, images, protocol, folder, _stream(protocol, images))
                _evaluate_missing(job, described, out, shard)
                wrote = has_all(out, described) and merge(out)
    remove_pieces(out)
    return wrote


def _stream(protocol: Protocol, images: TestImages) -> Stream | None:
    if protocol.stream is None:
        return None
    labels = {source: images.labels_of(source)[: protocol.limit] for source in protocol.sources or [CLEAN]}
    return make_stream(protocol.stream, labels, protocol.seed)


class _Job(NamedTuple):
    """What every piece of an evaluation needs."""

    model: Network
    adapter: Adapter | None
    images: TestImages
    protocol: Protocol
    folder: Path
    stream: Stream | None


def _evaluate_missing(job: _Job, described: dict[str, Any], out: Path, shard: Shard) -> None:
    """Evaluate the shard's pieces that are not there."""
    pieces = shard.pieces(described)
    missing = [piece for piece in pieces if read_piece(job.folder, piece, described) is None]
    if job.stream is not None:
        missing = missing_along(pieces, missing, job.folder)
    total, left = (sum(piece.stop - piece.start for piece in some) for some in (pieces, missing))
    label = "evaluate" if shard == WHOLE else f"evaluate shard {shard}"
    with Progress(label, total, "images", total - left, file=shard.file(job.folder, "json")) as progress:
        for piece in missing:
            # another process may do the same pieces, if it counts the shards otherwise
            if not is_whole(out) and read_piece(job.folder, piece, described) is None:
                kept = _predict_piece(job, piece) if job.stream is None else _predict_along(job, job.stream, piece)
                try:
                    write_piece(job.folder, piece, kept, described)
                    drop_state(job.folder, piece)
                except InputError:
                    if not is_whole(out):  # else that process has finished, and removed the folder
                        raise
            progress.advance(piece.stop - piece.start)


def _adapter(model: Network, images: TestImages, protocol: Protocol) -> Adapter | None:
    """What adapts; a method that compares with training images gets some, unless the model knows what it needs."""
    adaptation = protocol.adaptation
    if adaptation is None:
        return None
    wants = adaptation.rule == "align" and not getattr(model, "moments", None)
    source = as_tensor(images.source_images(), model.device) if wants else None
    return Adapter(model, adaptation, seed=protocol.seed, source=source)


def _predict_along(job: _Job, stream: Stream, piece: Piece) -> Kept:
    """A piece of a stream, by an adapter that goes on where the one before left it, and leaves its own state behind."""
    adapter = job.adapter
    assert adapter is not None
    adapter.reset()
    if piece.start:
        state = read_state(job.folder, piece)
        if state is None:  # another process, which counts the shards otherwise, has gone on from it
            raise InputError(f"Another process evaluates the same stream in {job.folder}; run this again when it ends.")
        adapter.load_state_dict(state)
    images, labels, order = stream.take(job.images, piece)
    batch = as_tensor(images, job.model.device)
    rows = {"before": probabilities(adapter.unadapted(batch)), "after": probabilities(adapter(batch))}
    if piece.stop < len(stream.units[piece.source]):
        write_state(job.folder, piece, adapter.state_dict())
    return Kept(rows, labels, order)


def _predict_piece(job: _Job, piece: Piece) -> Kept:
    """Probabilities of the piece's images, by row."""
    model, adapter, controls = job.model, job.adapter, job.protocol.controls
    batch, labels = (
        as_tensor(job.images.take(*piece), model.device),
        job.images.labels_of(piece.source)[piece.start : piece.stop],
    )
    with undisturbed(model.device), torch.no_grad():
        results: Results = {"before": probabilities(model(batch))}
    if adapter is None:
        return Kept(results, labels)
    # what the model adapted to image i predicts: the image itself and, as controls, its neighbour
    wanted: list[tuple[str, Tensor, int]] = [("after", batch, 0)]  # (row, images, distance)
    if controls and piece.source == CLEAN:
        for other in job.protocol.sources:
            pictures = as_tensor(job.images.take(other, piece.start, piece.stop), model.device)
            wanted.append((clean_key(other), pictures, 1))
    elif controls:
        wanted.append(("same_corruption", batch, 1))
    others = torch.stack([pictures.roll(distance, 0) for _, pictures, distance in wanted], dim=1)
    copies = near_copies(batch) if job.protocol.confidence else others[:, :0]
    answers = adapter.answer(batch, torch.cat([others, copies], dim=1))
    if adapter.objective is not None and adapter.objective.draws_views:
        results["view_average"] = answers.view_average.float().cpu().numpy()
    adapted = probabilities(answers.logits)
    for number, (row, _, distance) in enumerate(wanted):
        results[row] = np.roll(adapted[:, number], -distance, axis=0)
    if job.protocol.confidence:
        after = answers.logits[:, len(wanted) :]
        before = adapter.unadapted(copies.flatten(0, 1)).view_as(after)
        for row, logits in zip(NEAR_COPIES.values(), (before, after), strict=True):
            results[row] = mean_answer(logits).float().cpu().numpy()
    return Kept(results, labels)
