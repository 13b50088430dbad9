"""All benchmarks one after the other: the paper's network with its growth, a small one, augmentation, corruptions."""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import adapt, batch_step, meta_step
from benchmarks.augment import augment_summary, bench_augment
from benchmarks.corruptions import bench_corruptions, corruptions_summary
from benchmarks.methods import bench_methods, methods_summary
from benchmarks.ranks import bench_ranks, ranks_summary
from mt3.data import load_digits
from mt3.models.store import load

SHIPPED, METHOD_IMAGES = "cifar10-mt3", 16
META_STEPS = (meta_step.Setting(), meta_step.Setting(width=8, depth=8))  # the first one with its growth
RANKED = meta_step.Setting(width=8, depth=8)
BATCHES = (batch_step.Setting(), batch_step.Setting(width=32))
ADAPTATIONS = (adapt.Setting(), adapt.Setting(width=8, depth=8, images=256))

SUMMARIES: dict[str, Callable[[dict[str, Any]], str]] = {
    "meta-step": meta_step.summary,
    "batch-step": batch_step.summary,
    "ranks": ranks_summary,
    "adapt": adapt.summary,
    "methods": methods_summary,
    "augment": augment_summary,
    "corruptions": corruptions_summary,
}


def bench_all(rounds: int = 5, scaling: bool = True) -> Iterator[dict[str, Any]]:
    """Yield each result when it is there."""
    for number, step in enumerate(META_STEPS):
        yield meta_step.bench(step, rounds, scaling and number == 0)
    for batch in BATCHES:
        yield batch_step.bench(batch, rounds)
    yield bench_ranks(RANKED, rounds)
    for number, adaptation in enumerate(ADAPTATIONS):
        yield adapt.bench(adaptation, rounds, scaling and number == 0)
    yield bench_methods(load(SHIPPED), METHOD_IMAGES, rounds)
    yield bench_augment(rounds=rounds)
    yield bench_corruptions(load_digits(), rounds=rounds)


def summary(result: dict[str, Any]) -> str:
    """The tables of any benchmark's result."""
    return SUMMARIES[result["benchmark"]](result)
