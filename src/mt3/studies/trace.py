"""What happens to the step along a training: accuracies of each snapshot with controls, and its steps' directions."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mt3.adaptation.adapter import Adapter
from mt3.config.adaptation import Adaptation
from mt3.evaluation.evaluate import evaluate
from mt3.evaluation.predict import as_tensor
from mt3.evaluation.protocol import CLEAN, Protocol, TestImages
from mt3.models.classifier import MT3Model
from mt3.models.store import find_model, load, read_run
from mt3.reporting.figures import import_pyplot
from mt3.reporting.trace import KEY, Trace, draw_trace, read_trace
from mt3.results.runs import about_run
from mt3.support.errors import InputError
from mt3.support.files import check_can_write, made_directory, write_json

COMPARED = 16  # clean images whose steps are compared


class Snapshot(NamedTuple):
    """A model along a training, and after how many steps of it."""

    step: int
    path: Path


def find_snapshots(run: Path) -> list[Snapshot]:
    """What the run kept along the way, in order, from the model that it began with."""
    if not run.is_dir():
        raise InputError(f"Expected a run, but {run} is not there; train one with `mt3 train --snapshot-every`.")
    named = {path: re.fullmatch(r"step-([0-9]+)", path.name) for path in run.glob("snapshots/step-*")}
    found = sorted(Snapshot(int(match[1]), path) for path, match in named.items() if match)
    if len(found) < 2:
        raise InputError(f"Expected at least two snapshots in {run}/snapshots; train with --snapshot-every.")
    return found


def trace(
    snapshots: Sequence[Snapshot], images: TestImages, protocol: Protocol, out: Path, device: torch.device | str = "cpu"
) -> Trace:
    """Evaluate every snapshot with controls, all by one step; write the points to `out`, curves beside it.

    It is the protocol's step, or that of the last snapshot. The evaluations lie in a folder of that name; those that
    are there are not done again.
    """
    if out.suffix != ".json":
        raise InputError(f"Expected a name ending in .json for the points, got {out}; the PNG goes beside it.")
    import_pyplot()  # before the long work: without it there is no figure
    last = load(snapshots[-1].path)
    if last.objective is None:
        raise InputError(
            f"{snapshots[-1].path} has nothing of its own to adapt with, so that there is no step to follow."
        )
    own = protocol.adaptation or last.adaptation
    if not (own.steps and own.lr):
        raise InputError(f"Expected a step to follow, got steps={own.steps} and lr={own.lr:g}; raise what is 0.")
    asked = replace(protocol, adaptation=own, controls=True)
    points = []
    with made_directory(out.parent):  # settings that are refused leave nothing behind
        for file in (out, out.with_suffix(".png")):
            check_can_write(file)
        for step, path in snapshots:
            model = load(path).to(device)
            if _network(model) != _network(last):
                raise InputError(f"{path} is another network than {snapshots[-1].path}: they are not of one training.")
            kept = out.with_suffix("") / f"step-{step:08d}.json"
            folder = find_model(path)
            evaluate(model, images, replace(asked, run=about_run(read_run(folder), folder)), kept)
            pictures = as_tensor(images.take(CLEAN, 0, min(COMPARED, len(images.labels))), model.device)
            points.append({"step": step, "evaluation": kept.name} | _cosines(model, asked.adaptation, pictures))
        write_json(out, {KEY: points})
    found = read_trace(out)
    draw_trace([out.with_suffix(".png")], found)
    return found


def _network(model: MT3Model) -> tuple[object, ...]:
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if name.startswith("backbone.")}
    return shapes, model.size, model.num_classes, model.classes


def _cosines(model: MT3Model, adaptation: Adaptation | None, images: Tensor) -> dict[str, float]:
    """Mean cosines of the steps: of two different images, and of two draws of views of one image."""
    first, second = (_directions(Adapter(model, adaptation, seed=seed), images) for seed in (0, 1))
    among = first @ first.mT
    others = among[~torch.eye(len(among), dtype=torch.bool, device=among.device)]
    return {"cosine_images": float(others.mean()), "cosine_draws": float((first * second).sum(1).mean())}


def _directions(adapter: Adapter, images: Tensor) -> Tensor:
    """The steps (N, parameters) that are taken on images, of length 1."""
    own = dict(adapter.model.named_parameters())
    names = adapter.model.adapted_names(adapter.adaptation.layers, adapter.objective)
    moved = [torch.cat([(a.params[n] - own[n]).flatten() for n in names]).detach() for a in adapter.adapt(images)]
    return torch.nn.functional.normalize(torch.stack(moved), dim=1)
