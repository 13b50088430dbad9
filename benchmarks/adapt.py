"""Adapting to single images, alternately with peers."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.floor import MATRIX, adapt_flops, alternate_with_floor, layer_flops, machine, peak_memory
from benchmarks.growth import measure_growth
from benchmarks.timing import OURS, compared, spread
from benchmarks.words import comparison_words
from mt3.adaptation.adapter import Adapter
from mt3.adaptation.views import image_generator
from mt3.config.adaptation import Adaptation
from mt3.models.classifier import MT3Model
from mt3.objectives.augment import as_float, seeded_generator
from mt3.support.errors import InputError

CLASSES = 10
CLOSE = 1e-4  # difference of the logits up to which a peer computes the same, in float32
CLIP = 1e6  # a norm that nothing reaches: ours does the work of clipping, and peers without it compute the same
SCALING: dict[str, tuple[int, ...]] = {"views": (8, 16, 32), "images": (1, 2, 4, 8), "width": (8, 16, 32)}


@dataclass(frozen=True)
class Setting:
    """What is computed; the defaults are the paper's."""

    width: int = 32
    depth: int = 26
    views: int = 32  # K_T
    images: int = 4  # in a call
    precision: str = "float32"


def prepare(setting: Setting) -> tuple[MT3Model, Tensor]:
    """A fresh model and random images."""
    if setting.images < 1:
        raise InputError(f"Expected at least one image to measure on, got {setting.images}; raise --images.")
    adaptation = Adaptation(views=setting.views, clip=CLIP)
    backbone = f"resnet{setting.depth}x{setting.width}"
    model = MT3Model(backbone, CLASSES, adaptation=adaptation, precision=setting.precision)
    model.reset_parameters(seeded_generator("weights"))
    shape = (setting.images, 3, 32, 32)
    return model.eval(), torch.randint(256, shape, generator=seeded_generator("images"), dtype=torch.uint8)


def our_answer(setting: Setting, stacks: bool = True) -> Callable[[], Tensor]:
    """A call that adapts to every image with this package and gives their logits.

    Without `stacks` members are called one after the other, as those of a network that is not ours.
    """
    model, images = prepare(setting)
    model.stacks = stacks
    adapter = Adapter(model)
    return lambda: adapter(images)


def peer_answer(setting: Setting, adapt: peers.Adapt) -> Callable[[], Tensor]:
    """A call that computes the same with a peer, one image after the other; views are drawn in the same way."""
    ours, images = prepare(setting)
    model, objective = peers.torch_layers(ours), ours.objective
    assert objective is not None

    def answer(image: Tensor) -> Tensor:
        scaled = as_float(image)
        return adapt(model, scaled[None], objective.test_views(scaled, setting.views, image_generator(image, 0)))

    return lambda: torch.cat([answer(image) for image in images])


def bench(setting: Setting, rounds: int = 5, scaling: bool = False) -> dict[str, Any]:
    """Seconds, ratios to the peers, share of the floor and peak memory; with `scaling` how they grow."""
    about = machine()
    found, absent = peers.load_peers(peers.ADAPT)
    calls = {OURS: our_answer(setting)}
    calls |= {name: peer_answer(setting, adapt) for name, adapt in found.items()}
    calls[f"{OURS} loop"] = our_answer(setting, stacks=False)
    rounded = f"{OURS} bfloat16"
    calls[rounded] = our_answer(replace(setting, precision="bfloat16"))
    exact = calls[OURS]()
    errors = {name: float((calls[name]() - exact).abs().max()) for name in list(calls)[1:]}
    for name, error in errors.items():
        if name != rounded and not error <= CLOSE * max(1.0, float(exact.abs().max())):
            del calls[name]
            absent.append(peers.Absent(name, f"its logits differ by {error:.2g}", install=""))

    seconds, best = alternate_with_floor(calls, rounds)
    flops = _flops(setting)
    candidates = compared(seconds, flops, best)
    for entry in candidates:
        entry["images_per_second"] = spread([setting.images / t for t in seconds[entry["name"]]])
        if entry["name"] in errors:
            entry["logits_error"] = errors[entry["name"]]
    return {
        "benchmark": "adapt",
        "setting": asdict(setting),
        "rounds": rounds,
        "clock": "time on the clock",
        "flops": flops,
        "forward_passes": flops / sum(layer_flops(prepare(setting)[0]).values()),
        "floor": {"matrix": MATRIX, "gflops": best / 1e9},
        "candidates": candidates,
        "peak_mb": {
            OURS: peak_memory(our_answer, setting),
            "plain": peak_memory(peer_answer, setting, peers.plain_adapt),
        },
        "scaling": measure_growth(setting, SCALING, our_answer, _flops, rounds) if scaling else [],
        "absent": [peer._asdict() for peer in absent],
        "machine": about,
    }


def _flops(setting: Setting) -> int:
    return setting.images * adapt_flops(prepare(setting)[0], setting.views)


def summary(result: dict[str, Any]) -> str:
    """The tables of `bench`."""
    s = result["setting"]
    rate = result["candidates"][0]["images_per_second"]["median"]
    title = (
        f"Adapting to {s['images']} images, width {s['width']}, depth {s['depth']}, {s['views']} pairs of views, "
        f"{result['machine']['threads']} threads: median (min..max) of {result['rounds']} rounds; {rate:.3g} images/s"
    )
    return "\n".join([title, "", *comparison_words(result, "a call")])
