"""Augmentation A: this package's batched tensor code against kornia's building blocks.

Both make two views of each image with the same kinds of operation: square crop and resize, vertical flip, brightness,
contrast, saturation, hue, grey. The numbers differ: kornia's contrast scales around 0, not around the mean.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.floor import machine
from benchmarks.peers import load_peers
from benchmarks.timing import OURS, alternate, compared, spread
from benchmarks.words import absent_words, spread_cell
from mt3.objectives.augment import make_views, seeded_generator
from mt3.results.tables import Cell, Line, Table, markdown
from mt3.support.errors import InputError

Augment = Callable[[Tensor], Tensor]


def load_pipeline() -> Augment:
    """Kornia's augmentation classes, chained."""
    from kornia import augmentation as K

    pipeline: Augment = K.AugmentationSequential(
        K.RandomResizedCrop((32, 32), scale=(0.39, 1.0), ratio=(1.0, 1.0)),
        K.RandomVerticalFlip(p=0.5),
        K.ColorJitter(0.16, 0.16, 0.16, 0.04, p=0.8),
        K.RandomGrayscale(p=0.2),
    )
    return pipeline


def load_functions() -> Augment:
    """Kornia's functions on the same random numbers, without its classes."""
    from kornia import enhance
    from kornia.color import rgb_to_grayscale
    from kornia.geometry.transform import crop_and_resize

    generator = seeded_generator("kornia")

    def apply(x: Tensor) -> Tensor:
        u = torch.rand(len(x), 8, generator=generator)
        size = 20 + (13 * u[:, 0]).floor()
        left, top = ((33 - size) * u[:, 1]).floor(), ((33 - size) * u[:, 2]).floor()
        right, bottom = left + size - 1, top + size - 1
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        boxes = torch.stack([torch.stack(c, 1) for c in corners], 1)  # (N, 4, 2)
        x = crop_and_resize(x, boxes, (32, 32))
        x = torch.where((u[:, 3] < 0.5).view(-1, 1, 1, 1), x.flip(2), x)
        x = enhance.adjust_brightness(x, 0.32 * (u[:, 4] - 0.5))
        x = enhance.adjust_contrast(x, 1 + 0.32 * (u[:, 5] - 0.5))
        x = enhance.adjust_saturation(x, 1 + 0.32 * (u[:, 6] - 0.5))
        x = enhance.adjust_hue(x, 0.08 * torch.pi * (u[:, 7] - 0.5))
        return torch.where((u[:, 0] < 0.2).view(-1, 1, 1, 1), rgb_to_grayscale(x).expand_as(x), x)

    return apply


PEERS: dict[str, Callable[[], Augment]] = {"kornia pipeline": load_pipeline, "kornia functions": load_functions}


def bench_augment(images: int = 32, rounds: int = 15, repeats: int = 20) -> dict[str, Any]:
    """Seconds of `repeats` times two views of each image, and ratios to the peers."""
    if min(images, repeats) < 1:
        raise InputError(f"Expected at least one image and one repeat, got {images} and {repeats}; raise them.")
    about = machine()
    generator = seeded_generator("bench")
    batch = torch.rand(images, 3, 32, 32, generator=generator)
    both = torch.cat([batch, batch])
    found, absent = load_peers(PEERS)

    def repeated(call: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(repeats):
                call()

        return run

    calls = {OURS: repeated(lambda: make_views(batch, generator))}
    calls |= {name: repeated(lambda augment=augment: augment(both)) for name, augment in found.items()}  # type: ignore[misc]
    seconds = alternate(calls, rounds)
    candidates = compared(seconds)
    for entry in candidates:
        entry["views_per_second"] = spread([repeats * len(both) / t for t in seconds[entry["name"]]])
    return {
        "benchmark": "augment",
        "setting": {"images": images, "views": len(both), "repeats": repeats},
        "rounds": rounds,
        "clock": "time on the clock",
        "candidates": candidates,
        "absent": [peer._asdict() for peer in absent],
        "machine": about,
    }


def augment_summary(result: dict[str, Any]) -> str:
    """The table of `bench_augment`."""
    s = result["setting"]
    lines = tuple(
        Line(e["name"], (Cell(e["views_per_second"]["median"], digits=0), spread_cell(e.get("ratio"), 2)))
        for e in result["candidates"]
    )
    title = (
        f"{s['views']} views of 32x32, {s['repeats']} times, {result['machine']['threads']} threads: median (min..max) "
        f"of {result['rounds']} rounds"
    )
    table = Table("augment", "", "candidate", ("views/s", "times ours"), lines)
    return "\n".join([title, "", markdown(table), *absent_words(result["absent"])])
