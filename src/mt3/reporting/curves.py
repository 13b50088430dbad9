"""Training accuracy against the epoch, of runs on disk and of the authors'. Needs no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt3.reporting.published import training_curve
from mt3.results.runs import Run, read_run
from mt3.results.tables import Cell, Table, count, make_table
from mt3.support.errors import name_list
from mt3.support.files import RUN_FILE, parse_json

MIN_EPOCHS, FINE_POINTS = 10, 20  # a training of fewer epochs is shown in this many points
QUANTITIES = {  # of a run's metrics: the authors' column, what to multiply by, the title, digits
    "loss": ("loss", 1, "loss", 3),
    "ce": ("ce_loss", 1, "cross-entropy", 3),
    "selfsup": ("byol_loss", 1, "BYOL loss", 3),
    "accuracy_before": ("train_accuracy_before", 100, "accuracy before the inner step, %", 1),
    "accuracy_after": ("train_accuracy_after", 100, "accuracy after it, %", 1),
}
COLUMNS = ("here", "authors, lowest", "authors, highest", "lowest - range", "highest + range")
SHOWN = (1, 2, 5, 10, 20, 50, 100, 200)  # epochs of which a table is made


@dataclass(frozen=True)
class Curves:
    """Metrics of MT3 runs that were trained alike."""

    paths: tuple[Path, ...] = ()
    run: Run | None = None  # the training of the first
    start: str | None = None  # the method that was trained before it
    whole: bool = True  # whether the trainings are finished


def find_curves(files: Sequence[Path], notes: list[str], root: Path | None) -> Curves:
    """The metrics of the MT3 runs without a label; an unfinished run has no part beside finished ones."""
    found: dict[Path, tuple[Run, dict[str, Any]]] = {}
    for path in files:
        about = read_run(path.with_name(RUN_FILE)) if path.with_name(RUN_FILE).exists() else None
        if about is not None and (about[0].method, about[0].label) == ("mt3", ""):
            found[path] = about
    if not found:
        return Curves()
    first, (run, value) = next(iter(found.items()))
    for path, (other, _) in found.items():
        if fields := run.unlike(other):
            told = f"the trainings of {_shown(first, root)} and {_shown(path, root)} differ in {name_list(fields)}"
            notes.append(f"No training curve: {told}; give one of them a --label.")
            return Curves()
    finished = tuple(path for path, (run, _) in found.items() if not run.unfinished)
    if finished and len(finished) < len(found):
        left_out = name_list(_shown(path, root) for path in found if path not in finished)
        notes.append(f"Not in the training curve, since the training is not finished: {left_out}.")
    config = value.get("config")
    start = config.get("start") if isinstance(config, dict) else None
    return Curves(finished or tuple(found), run, start, bool(finished))


def _shown(path: Path, root: Path | None) -> Path:
    return path if root is None else path.relative_to(root)


class Curve(NamedTuple):
    """Accuracy in percent before and after the inner step: (runs, points), NaN where a run has none."""

    epochs: NDArray[np.float64]  # (points,)
    before: NDArray[np.float64]
    after: NDArray[np.float64]


def read_curves(paths: Sequence[Path]) -> Curve | None:
    """Training accuracies as means over each epoch, or over a twentieth of the training if it is below 10 epochs."""
    keys = ("epoch", "accuracy_before", "accuracy_after")
    runs = [[[float(r[k]) for k in keys] for r in _read_metrics(path) if all(k in r for k in keys)] for path in paths]
    arrays = [np.array(run) for run in runs if run]  # (lines, 3)
    if not arrays:
        return None
    last = max(float(a[-1, 0]) for a in arrays)
    width = 1.0 if last >= MIN_EPOCHS else last / FINE_POINTS
    points = round(np.ceil(last / width - 1e-9))
    means = np.full((2, len(arrays), points), np.nan)
    for run, a in enumerate(arrays):
        place = np.clip(np.ceil(a[:, 0] / width - 1e-9).astype(int) - 1, 0, points - 1)
        count = np.bincount(place, minlength=points)
        for row in (0, 1):
            total = np.bincount(place, weights=100 * a[:, row + 1], minlength=points)
            means[row, run, count > 0] = total[count > 0] / count[count > 0]
    used = ~np.isnan(means[0]).all(0)
    epochs = width * np.arange(1, points + 1)
    return Curve(epochs[used], means[0][:, used], means[1][:, used])


def _read_metrics(path: Path) -> Iterable[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = parse_json(line)
        except ValueError:
            return  # cut short by a kill
        if isinstance(record, dict):
            yield record


def authors_curve() -> Curve:
    """The authors' three runs on CIFAR-10."""
    columns = training_curve()
    before, after = (100 * columns[f"train_accuracy_{row}"] for row in ("before", "after"))
    return Curve(np.arange(1.0, before.shape[1] + 1), before, after)


def count_epochs(number: float) -> str:
    return f"{number:g} epoch" + ("" if number == 1 else "s")


def epoch_table(paths: Sequence[Path], length: str) -> list[Table]:
    """Means over whole epochs of training beside the authors' three runs; none before the first epoch's end.

    `length` says how long the runs were trained.
    """
    records = [list(_read_metrics(path)) for path in paths]
    authors = training_curve()
    lines = []
    for epoch in SHOWN:
        runs = [run for run in records if run and float(run[-1].get("epoch", 0)) >= epoch]
        for name, (column, scale, title, digits) in QUANTITIES.items():
            values = [[float(r[name]) for r in run if name in r and 0 <= epoch - r["epoch"] < 1] for run in runs]
            found = [scale * float(np.mean(v)) for v in values if v]
            if not found:
                continue
            low, high = (float(f(scale * authors[column][:, epoch - 1])) for f in (np.min, np.max))
            numbers = (float(np.mean(found)), low, high, low - (high - low), high + (high - low))
            cells = {c: Cell(number, digits=digits) for c, number in zip(COLUMNS, numbers, strict=True)}
            lines.append((f"epoch {epoch}, {title}", cells | {"runs": count(len(found))}))
    note = (
        "Means over the logged steps of an epoch, and over runs; of the authors' three runs the range, and that range "
        "widened by its own width on either side."
    )
    title = f"Training of MT3, {length}, beside the authors', {count_epochs(authors['loss'].shape[1])}"
    return make_table("epochs", title, "mean over", lines, note)
