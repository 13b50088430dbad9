"""Every test-time method alternately with the plain forward pass: what an answer costs on the clock."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.floor import machine
from benchmarks.timing import alternate, ratio, spread
from benchmarks.words import absent_words, spread_cell
from mt3.adaptation.adapter import Adapter
from mt3.config.rivals import RIVALS
from mt3.config.streams import PER_IMAGE
from mt3.evaluation.settle import method_name, passes, settle
from mt3.models.classifier import MT3Model
from mt3.models.store import tensors_hash
from mt3.objectives.augment import seeded_generator
from mt3.results.tables import Cell, Line, Table, markdown
from mt3.support.errors import InputError

PLAIN = "forward pass"
WAYS = {PER_IMAGE: None, "online": "continual"}  # what stands in a table, and a stream


def bench_methods(model: MT3Model, images: int = 16, rounds: int = 5) -> dict[str, Any]:
    """Seconds an image of every method that goes with this model, per image and online, and ratios to a plain pass.

    A method that shares a step among more images than there are shares it among these.
    """
    about = machine()
    if images < 2:
        raise InputError(f"Expected at least two images to measure on, got {images}; raise --images.")
    side = model.size or 32
    shape = (images, 3, side, side)
    pictures = torch.randint(256, shape, generator=seeded_generator("images"), dtype=torch.uint8).to(model.device)
    calls, costs, absent = _calls(model.eval(), pictures)
    seconds = alternate(calls, rounds)
    candidates = [
        {
            "name": name,
            "passes": costs[name],
            "seconds": spread([s / images for s in seconds[name]]),
            "ratio": ratio(seconds[name], seconds[PLAIN]),
        }
        for name in calls
    ]
    return {
        "benchmark": "methods",
        "model_hash": tensors_hash(model.state_dict()),
        "images": images,
        "rounds": rounds,
        "candidates": candidates,
        "absent": absent,
        "machine": about,
    }


def _calls(
    model: MT3Model, images: Tensor
) -> tuple[dict[str, Callable[[], Tensor]], dict[str, float], list[dict[str, str]]]:
    """What is measured by name, its cost by the rule, and which methods do not go with this model."""
    calls: dict[str, Callable[[], Tensor]] = {PLAIN: _Plain(model, images)}
    costs, absent = {PLAIN: 1.0}, []
    for method in dict.fromkeys(method_name(name) for name in RIVALS):
        for way, stream in WAYS.items():
            name = f"{method}, {way}"
            try:
                usual = settle(model, method, stream, {})
                if usual is None:
                    raise InputError("This model has nothing of its own to adapt with.")
                source = images if usual.rule == "align" else None
                adapter = Adapter(model, replace(usual, batch=min(usual.batch, len(images))), source=source)
            except InputError as error:
                absent.append({"name": name, "reason": str(error).rstrip("."), "install": ""})
                continue
            calls[name], costs[name] = _Answer(adapter, images), passes(adapter.adaptation)
    return calls, costs, absent


class _Plain:
    """The model as it is on all images at once."""

    def __init__(self, model: MT3Model, images: Tensor) -> None:
        self.model, self.images = model, images

    def __call__(self) -> Tensor:
        with torch.no_grad():
            return self.model(self.images)  # type: ignore[no-any-return]


class _Answer:
    """An adapter on the images; along a stream, from the model as it is."""

    def __init__(self, adapter: Adapter, images: Tensor) -> None:
        self.adapter, self.images = adapter, images

    def __call__(self) -> Tensor:
        self.adapter.reset()
        return self.adapter(self.images)  # type: ignore[no-any-return]


def methods_summary(result: dict[str, Any]) -> str:
    """The table of `bench_methods`."""
    lines = tuple(
        Line(
            entry["name"],
            (
                Cell(entry["passes"], digits=None),
                spread_cell({end: 1000 * s for end, s in entry["seconds"].items()}, 2),
                spread_cell(entry["ratio"], 1),
            ),
        )
        for entry in result["candidates"]
    )
    columns = ("passes by the rule", "ms an image", "times the forward pass")
    title = (
        f"Methods on {result['images']} images in a call, {result['machine']['threads']} threads: median (min..max) "
    )
    title += f"of {result['rounds']} rounds, all in turn"
    return "\n".join(
        [title, "", markdown(Table("methods", "", "method", columns, lines)), *absent_words(result["absent"])]
    )
