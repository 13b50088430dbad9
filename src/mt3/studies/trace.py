"""What happens to the step along a training: accuracies of each snapshot with controls, and its steps' directions."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mt3.adaptation.adapter import Adapter
from mt3.evaluation.evaluate import evaluate
from mt3.evaluation.predict import as_tensor
from mt3.evaluation.protocol import CLEAN, Protocol, TestImages
from mt3.models.classifier import MT3Model
from mt3.models.store import load
from mt3.reporting.figures import drawing, import_pyplot
from mt3.results.facts import Evaluation
from mt3.results.tables import Cell, Line, Table, markdown
from mt3.support.errors import InputError
from mt3.support.files import check_can_write, write_json

COMPARED = 16  # clean images whose steps are compared
CURVES = {"before": "#009E73", "clean_other": "#999999", "after": "#D55E00"}
WORDS = {"before": "before the step", "clean_other": "step on an unrelated image", "after": "step on the image itself"}


class Snapshot(NamedTuple):
    """A model along a training, and after how many steps of it."""

    step: int
    path: Path


def find_snapshots(run: Path, start: Path | None) -> list[Snapshot]:
    """What the run kept along the way, in order; `start` is the model that it began with."""
    found = [] if start is None else [Snapshot(0, start)]
    named = {path: re.fullmatch(r"step-([0-9]+)", path.name) for path in run.glob("snapshots/step-*")}
    found += sorted(Snapshot(int(match[1]), path) for path, match in named.items() if match)
    if len(found) < 2:
        raise InputError(f"Expected at least two snapshots in {run}/snapshots; train with --snapshot-every.")
    return found


def trace(
    snapshots: Sequence[Snapshot], images: TestImages, protocol: Protocol, out: Path, device: torch.device | str = "cpu"
) -> list[dict[str, Any]]:
    """Evaluate every snapshot with controls; write the points to `out` and their curves beside it as PNG.

    The evaluations lie in a folder of that name; those that are there are not done again.
    """
    if out.suffix != ".json":
        raise InputError(f"Expected a name ending in .json for the points, got {out}; the PNG goes beside it.")
    import_pyplot()  # before the long work: without it there is no figure
    check_can_write(out)
    points = []
    for step, path in snapshots:
        model = load(path).to(device)
        if model.objective is None:
            raise InputError(f"{path} has nothing of its own to adapt with, so that there is no step to follow.")
        asked = replace(protocol, adaptation=model.adaptation, controls=True)
        found = evaluate(model, images, asked, out.with_suffix("") / f"step-{step:08d}.json")
        pictures = as_tensor(images.take(CLEAN, 0, min(COMPARED, len(images.labels))), model.device)
        points.append(_point(step, found) | _cosines(model, pictures))
    write_json(out, {"points": points})
    draw_trace([out.with_suffix(".png")], points)
    return points


def _point(step: int, found: Evaluation) -> dict[str, Any]:
    accuracies = {row: found.accuracy(row) for row in CURVES}
    gains = {name: list(found.gain(name)) for name in ("gain", "adaptation")}
    return {"step": step, "accuracy": accuracies, **gains}


def _cosines(model: MT3Model, images: Tensor) -> dict[str, float]:
    """Mean cosines of the steps: of two different images, and of two draws of views of one image."""
    first, second = (_directions(Adapter(model, seed=seed), images) for seed in (0, 1))
    among = first @ first.mT
    others = among[~torch.eye(len(among), dtype=torch.bool, device=among.device)]
    return {"cosine_images": float(others.mean()), "cosine_draws": float((first * second).sum(1).mean())}


def _directions(adapter: Adapter, images: Tensor) -> Tensor:
    """The steps (N, parameters) that are taken on images, of length 1."""
    own = dict(adapter.model.named_parameters())
    names = adapter.model.adapted_names(adapter.adaptation.layers, adapter.objective)
    moved = [torch.cat([(a.params[n] - own[n]).flatten() for n in names]).detach() for a in adapter.adapt(images)]
    return torch.nn.functional.normalize(torch.stack(moved), dim=1)


def trace_table(points: Sequence[dict[str, Any]]) -> str:
    """The points as Markdown."""
    columns = ("before", "unrelated image", "after", "gain", "adaptation", "cosine of images", "cosine of draws")
    lines = []
    for point in points:
        cells = [Cell(point["accuracy"][row]) for row in CURVES]
        for name in ("gain", "adaptation"):
            mean, low, high = point[name]
            cells.append(Cell(mean, interval=(low, high), signed=True))
        cells += [Cell(point[name], digits=2) for name in ("cosine_images", "cosine_draws")]
        lines.append(Line(str(point["step"]), tuple(cells)))
    return markdown(Table("trace", "", "step", columns, tuple(lines)))


def draw_trace(paths: Sequence[Path], points: Sequence[dict[str, Any]]) -> None:
    """Accuracies against the training's steps, and below them the cosines."""
    steps = [point["step"] for point in points]
    with drawing(*paths, width=6.4, height=5.0, rows=2, share=False) as (_, (upper, lower)):
        for row, colour in CURVES.items():
            upper.plot(steps, [point["accuracy"][row] for point in points], "o-", color=colour, label=WORDS[row])
        upper.set_ylabel("accuracy in %")
        upper.legend()
        for name, words, colour in (
            ("cosine_images", "of two images", "#0072B2"),
            ("cosine_draws", "of two draws of views of one image", "#CC79A7"),
        ):
            lower.plot(steps, [point[name] for point in points], "o-", color=colour, label=words)
        lower.set_ylabel("cosine of the steps")
        lower.set_xlabel("steps of training")
        lower.legend()
