"""The whole reproduction on 1, 8 and 64 GPUs, on paper; and a training with slow ranks and failures, simulated.

Only the first number is a GPU's, and it is the paper's; the others of a GPU follow from it by counting operations.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt3.results.tables import Cell, Line, Table, markdown

PAPER_HOURS = 48.0  # "48 hours for 200 epochs" of MT3 on an RTX 2080 Ti
IMAGES, SEEDS = 50_000, 3
TESTED = 16 * 10_000  # fifteen corruptions and the clean images
PARAMETERS = 1_596_842  # of the paper's network with its heads, width 32
MESSAGE = 4 * PARAMETERS  # bytes that each step adds up over the ranks
GPUS = (1, 8, 64)
LINKS = {"PCIe 3.0 x16, 10 GB/s": 10e9, "10 Gbit/s Ethernet, 1.1 GB/s": 1.1e9, "1 Gbit/s Ethernet, 0.11 GB/s": 0.11e9}


@dataclass(frozen=True)
class Training:
    """A training of the paper's tables: how much it computes, and into how many parts a step can be split."""

    name: str
    passes: float  # forward passes of the paper's network that an image takes in a step, all derivatives included
    epochs: int
    images: int  # of a step
    parts: int  # tasks of a meta-batch, or images of a batch
    runs: int  # data sets times seeds
    adapted: float = 0.0  # forward passes of adapting to a test image; 0: it does not
    drawing: float = 0.0  # seconds for which every rank draws the whole batch's augmentation, on one core (measured)

    @property
    def hours(self) -> float:
        return PAPER_HOURS * self.passes * self.epochs / (META_PASSES * 200)

    @property
    def steps(self) -> int:
        return self.epochs * (IMAGES // self.images)

    def on(self, gpus: int, bandwidth: float) -> float:
        """Hours on so many GPUs: the largest share of a step's parts, what is not shared, and the messages."""
        alone = self.steps * self.drawing / 3600
        shared = (self.hours - alone) * math.ceil(self.parts / gpus) / self.parts
        return shared + alone + self.steps * message_seconds(gpus, bandwidth) / 3600


META_PASSES = 862 / 32  # of an image of a meta-step (docs/performance.md)
SMALL = 109.4 / 436.1  # the operations of Sun et al.'s network, width 16, beside the paper's
TURNED = 144.8 / 436.1  # with its branch for rotation
TRAININGS = (
    Training("mt3", META_PASSES, 200, 32, 4, 2 * SEEDS, 193),
    Training("jt", 11, 200, 128, 128, 2 * SEEDS, 193, drawing=0.035),
    Training("baseline", 3, 200, 128, 128, 2 * SEEDS, drawing=0.004),
    Training("jt-rotation", 12 * TURNED, 150, 128, 128, SEEDS, 10 * 32 * 3 * TURNED, 0.004),
    Training("baseline-sun", 3 * SMALL, 150, 128, 128, SEEDS, drawing=0.004),
)


def message_seconds(gpus: int, bandwidth: float, latency: float = 20e-6) -> float:
    """Of adding up a step's gradients in a ring: every rank sends 2 (W - 1) parts of a W-th of them, one by one."""
    return 2 * (gpus - 1) * (MESSAGE / gpus / bandwidth + latency)


def evaluation_hours() -> float:
    """Of adapting to all test images, on one GPU, at the rate of the meta-steps."""
    a_pass = PAPER_HOURS / (200 * IMAGES * META_PASSES)
    return sum(t.runs * TESTED * t.adapted * a_pass for t in TRAININGS)


def makespan(jobs: Iterable[tuple[float, int]], gpus: int) -> float:
    """When the last of the jobs (hours, GPUs) ends, each started in this order as soon as enough GPUs are free."""
    free = [0.0] * gpus
    for hours, count in jobs:
        end = free[count - 1] + hours
        free = sorted([*[end] * count, *free[count:]])
    return free[-1]


def best_plan(gpus: int, bandwidth: float) -> tuple[float, dict[str, int]]:
    """The hours until all trainings are done, long ones first, and how many GPUs each then has."""
    plans = []
    for most in (1, 2, 4, 8):
        counts = {
            t.name: max(1, min(most, t.parts, gpus, round(most * t.hours / TRAININGS[0].hours))) for t in TRAININGS
        }
        jobs = [job for t in TRAININGS for job in repeat((t.on(counts[t.name], bandwidth), counts[t.name]), t.runs)]
        plans.append((makespan(sorted(jobs, reverse=True), gpus), counts))
    return min(plans, key=lambda plan: plan[0])


SHARED = (1, 2, 4, 8, 64)  # GPUs of one training


@dataclass(frozen=True)
class Faults:
    """What goes wrong in a training, and what saving and starting again cost, in seconds."""

    between: float = 30 * 86400.0  # failures of one rank, on average
    restart: float = 40.0  # until ranks that were started again take a step; 31 to 43 measured, on a busy machine
    checkpoint: float = 0.3  # 0.22 to 0.29 measured for the paper's network, on the same
    every: int = 100  # steps from one checkpoint to the next
    spread: float = 0.05  # of the logarithm of a rank's time for its share of a step


CASES = ((TRAININGS[0], 1), (TRAININGS[0], 4), (TRAININGS[1], 8), (TRAININGS[1], 64))
FAULTS = (Faults(), Faults(between=6 * 3600.0))  # of one's own machines, and of machines that are taken away


def step_times(steps: int, seconds: float, ranks: int, faults: Faults, generator: np.random.Generator) -> NDArray[Any]:
    """Of each step: all wait for the slowest rank."""
    slowest: NDArray[Any] = np.exp(faults.spread * generator.standard_normal((steps, ranks))).max(1)
    return seconds * slowest


def time_with_failures(
    steps: Sequence[float] | NDArray[Any], faults: Faults, gaps: Iterator[float]
) -> tuple[float, int]:
    """Seconds until all steps are done, those that a failure costs again, and the failures: one after each gap."""
    saving = np.arange(1, len(steps) + 1) % faults.every == 0
    done = np.concatenate([[0.0], np.cumsum(np.asarray(steps) + faults.checkpoint * saving)])
    total, place, failures = 0.0, 0, 0
    for gap in gaps:
        if done[place] + gap >= done[-1]:
            break
        reached = int(np.searchsorted(done, done[place] + gap, side="right")) - 1
        total += gap + faults.restart
        place, failures = max(place, reached // faults.every * faults.every), failures + 1
    return total + float(done[-1] - done[place]), failures


def simulate(training: Training, gpus: int, faults: Faults, seed: int = 0, bandwidth: float = 10e9) -> dict[str, float]:
    """Hours of a training: without trouble, with slow ranks, and with failures as well."""
    generator = np.random.default_rng(seed)
    ideal = training.on(gpus, bandwidth)
    times = step_times(training.steps, ideal * 3600 / training.steps, gpus, faults, generator)
    gaps = iter(lambda: generator.exponential(faults.between / gpus), None)
    total, failures = time_with_failures(times, faults, gaps)
    return {"ideal": ideal, "slow": float(times.sum()) / 3600, "hours": total / 3600, "failures": failures}


def best_interval(step: float, ranks: int, faults: Faults) -> int:
    """Steps between checkpoints that cost least, by Young's rule: root of (2 x saving x time between failures)."""
    return max(1, round(math.sqrt(2 * faults.checkpoint * faults.between / ranks) / step))


def scaling_summary() -> str:
    """The tables of docs/scaling.md."""
    spent, tested = sum(t.runs * t.hours for t in TRAININGS), evaluation_hours()
    adapted = sum(t.runs * TESTED for t in TRAININGS if t.adapted)
    costs = [[t.name, t.runs, f"{t.hours:.1f}", f"{t.runs * t.hours:.0f}", t.parts] for t in TRAININGS]
    plans = [
        _plan_row(gpus, link, tested, spent + tested)
        for gpus in GPUS
        for link in (LINKS if gpus > 1 else list(LINKS)[:1])
    ]
    shares = [
        [f"{t.name}, {link}", *(f"{t.on(g, LINKS[link]):.1f}" for g in SHARED)] for t in TRAININGS[:2] for link in LINKS
    ]
    troubles = [_trouble_row(*case, faults) for faults in FAULTS for case in CASES]
    return "\n\n".join(
        [
            _table(["training", "runs", "hours each", "GPU-hours", "most GPUs that help"], costs),
            f"trainings {spent:.0f} GPU-hours; {adapted / 1e6:.2f} million adapted images {tested:.0f} GPU-hours",
            _table(
                ["GPUs", "link", "trainings", "evaluations", "all, hours", "GPU-hours", "used", "mt3, jt on"], plans
            ),
            _table(["one training, hours on", *map(str, SHARED)], shares),
            _table(["hours, mean of 20", "failure a rank", "no trouble", "slow ranks", "all", "failures"], troubles),
        ]
    )


def _plan_row(gpus: int, link: str, tested: float, work: float) -> list[Any]:
    hours, counts = best_plan(gpus, LINKS[link])
    total = hours + tested / gpus
    used = f"{100 * work / (gpus * total):.0f} %"
    ends = [f"{value:.1f}" for value in (hours, tested / gpus, total)]
    return [gpus, link, *ends, f"{gpus * total:.0f}", used, f"{counts['mt3']}, {counts['jt']}"]


def _trouble_row(training: Training, gpus: int, faults: Faults) -> list[Any]:
    runs = [simulate(training, gpus, faults, seed) for seed in range(20)]
    mean = {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}
    told = [f"{mean[key]:.2f}" for key in ("ideal", "slow", "hours")]
    return [f"{training.name} on {gpus}", f"in {faults.between / 3600:.0f} h", *told, f"{mean['failures']:.1f}"]


def _table(heads: list[str], rows: list[list[Any]]) -> str:
    lines = tuple(Line(str(first), tuple(Cell(text=str(value)) for value in rest)) for first, *rest in rows)
    return markdown(Table("scaling", "", heads[0], tuple(heads[1:]), lines))


if __name__ == "__main__":
    print(scaling_summary())
