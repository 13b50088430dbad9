"""Rounds that alternate over the candidates, medians with their spread, and ratios round by round. Needs no torch."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mt3.support.errors import InputError
from mt3.support.progress import Progress

Spread = dict[str, float]  # median, min and max over the rounds

OURS = "mt3"  # the candidate that the others are compared with


def alternate(
    candidates: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each candidate in each round; a first round warms up and is not counted.

    A machine's speed drifts: compare within a round. `time.process_time` as clock leaves out waiting for other
    processes, but not that they slow down memory and core.
    """
    if rounds < 1:
        raise InputError(f"Expected at least one round, got {rounds}; raise --rounds.")
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    with Progress("bench", (rounds + 1) * len(candidates), "calls") as progress:
        for number in range(rounds + 1):
            for name, call in candidates.items():
                began = clock()
                call()
                took = clock() - began
                if number:
                    seconds[name].append(max(took, 1e-9))
                progress.advance(1, name)
    return seconds


def spread(values: Sequence[float]) -> Spread:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(seconds: Sequence[float], of: Sequence[float]) -> Spread:
    """How many times as long, round by round."""
    return spread([a / b for a, b in zip(seconds, of, strict=True)])


def compared(seconds: Mapping[str, Sequence[float]], work: float | None = None, best: float = 1.0) -> list[Any]:
    """Each candidate's seconds, and how many times as long as ours it takes.

    With the operations that the `work` needs and the `best` rate of the machine also the share of it that is reached.
    """
    entries: list[Any] = []
    for name, times in seconds.items():
        entry: dict[str, Any] = {"name": name, "seconds": spread(times)}
        if name != OURS:
            entry["ratio"] = ratio(times, seconds[OURS])
        if work is not None:
            entry["share_of_floor"] = spread([work / t / best for t in times])
        entries.append(entry)
    return entries
