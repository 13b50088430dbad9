"""Rows of the paper's tables: runs of one training before or after adapting, their means and differences."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt3.config.methods import METHODS
from mt3.results.facts import CONTROLS, Evaluation
from mt3.results.statistics import GAINS, Difference, mean_interval, paired_interval
from mt3.results.tables import DASH, Cell

INTERVALS = (
    "Differences are of the averages over corruptions, in points, with a 95 % interval: Student's t over the runs' own "
    "differences; where there is one run or one seed in common, the paired normal interval over its images."
)
NO_CONTROLS = (
    "Of {} no controls were evaluated, so that it is not known how much of the gain is due to a step that helps "
    "whatever the image; `mt3 evaluate --controls` tells."
)


class Row(NamedTuple):
    """Runs of one training, maybe none, and which of their answers (before, after, a control) are meant."""

    name: str
    runs: list[Evaluation]
    key: str

    @property
    def title(self) -> str:
        """The name, marked if the training was not finished."""
        return self.name + (self.runs[0].run.mark if self.runs else "")

    def means(self, severity: int | None, corruption: str | None = None, quantity: str = "accuracy") -> list[float]:
        return [run.mean(quantity, self.key, corruption, severity) for run in self.runs]

    def mean(self, severity: int | None) -> Cell:
        """The accuracy over the runs."""
        return over_runs(self.means(severity)) if self.runs else DASH

    def minus(self, other: "Row", severity: int | None) -> Cell:
        """The difference over the seeds that both have, else of the means and without an interval.

        For one such seed the interval is over images.
        """
        if not self.runs or not other.runs:
            return DASH
        a, b = (dict(zip((e.run.seed for e in row.runs), row.means(severity), strict=True)) for row in (self, other))
        common = [a[seed] - b[seed] for seed in a if seed in b]
        if not common:
            return Cell(float(np.mean(list(a.values())) - np.mean(list(b.values()))), signed=True)
        return self.paired(other, severity) if len(common) == 1 else interval_cell(mean_interval(common))

    def paired(self, other: "Row", severity: int | None) -> Cell:
        """The difference image by image, over the seeds that both have."""
        a, b = ({e.run.seed: e.per_image(row.key, None, severity) for e in row.runs} for row in (self, other))
        found = [100 * a[seed] - 100 * b[seed] for seed in a if seed in b]
        return interval_cell(paired_interval(np.mean(found, axis=0))) if found else DASH


NOTHING = Row("", [], "")  # from which no difference can be had


def rows_of(main: Mapping[str, list[Evaluation]]) -> list[Row]:
    """The paper's rows that the evaluations give, in the paper's order."""
    rows = []
    for method in METHODS.values():
        runs = main.get(method.name, [])
        if runs:
            rows.append(Row(method.before, runs, "before"))
            if method.after is not None and all(run.has("after") for run in runs):
                rows.append(Row(method.after, runs, "after"))
    return rows


def pairs_of(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """The before and the after row of each training that adapts."""
    return [(a, b) for a, b in pairwise(rows) if a.runs is b.runs]


def row_with(runs: Sequence[Evaluation], key: str) -> Row:
    """Of the runs that have these answers."""
    return Row("", [run for run in runs if run.has(key)], key)


def controlled_runs(runs: Sequence[Evaluation]) -> list[Evaluation]:
    return [run for run in runs if all(run.has(row) for row in CONTROLS)]


def joint_row(rows: Sequence[Row]) -> Row:
    """MT3's fair rival; without runs if it was not evaluated."""
    name = METHODS["jt"].before
    return next((row for row in rows if row.name == name), Row(name, [], "before"))


def baseline_row(rows: Sequence[Row]) -> Row:
    """The baseline that others are measured by, ours before Sun et al.'s; without runs if there is none."""
    found = [row for name in ("baseline", "baseline-sun") for row in rows if row.name == METHODS[name].before]
    return found[0] if found else Row("a baseline", [], "before")


def over_runs(values: Sequence[float] | NDArray[np.float64], digits: int = 1) -> Cell:
    """Mean and sample standard deviation; a single run has none."""
    array = np.asarray(values, dtype=float)
    std = float(array.std(ddof=1)) if len(array) > 1 else None
    return Cell(float(array.mean()), std, digits=digits)


def gain_cell(runs: Sequence[Evaluation], name: str, severity: int | None) -> Cell:
    """A difference of two rows, as `GAINS` names it, over the runs that have both."""
    high, low = (row_with(runs, key) for key in GAINS[name])
    return high.minus(low, severity)


def interval_cell(difference: Difference) -> Cell:
    return Cell(difference.mean, interval=(difference.low, difference.high), signed=True)
