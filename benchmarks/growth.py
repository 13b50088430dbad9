"""How time and memory grow with each field of a setting, the others held."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from benchmarks.floor import alternate_with_floor, peak_memory
from benchmarks.timing import OURS, compared

Setting = TypeVar("Setting")  # a frozen dataclass


def measure_growth(
    base: Setting,
    fields: Mapping[str, Sequence[int]],
    make: Callable[[Setting], Callable[[], object]],
    flops: Callable[[Setting], int],
    rounds: int,
) -> list[dict[str, Any]]:
    """Seconds, ratio to the base, share of the floor and peak memory at each value; values of a field alternate."""
    entries: list[dict[str, Any]] = []
    for field, values in fields.items():
        own = getattr(base, field)
        settings = {v: replace(base, **{field: v}) for v in sorted({*values, own})}  # type: ignore[type-var]
        names = {v: OURS if v == own else str(v) for v in settings}
        seconds, best = alternate_with_floor({names[v]: make(s) for v, s in settings.items()}, rounds)
        by_name = {entry.pop("name"): entry for entry in compared(seconds)}
        for value, setting in settings.items():
            entry = by_name[names[value]]
            share = flops(setting) / entry["seconds"]["median"] / best
            growth = {"share_of_floor": share, "peak_mb": peak_memory(make, setting)}
            entries.append({"field": field, "value": value} | entry | growth)
    return entries
