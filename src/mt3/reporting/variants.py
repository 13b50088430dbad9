"""Variations: other settings at test time, and ablations of the training. Needs no torch."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np

from mt3.config.methods import METHODS
from mt3.reporting.compare import INTERVALS, NO_CONTROLS, Row, controlled_runs, difference_cell, gain_cell, over_runs
from mt3.reporting.figures import Figure, Point, Sweep, draw_sweep
from mt3.reporting.table import Cell, Line, Table
from mt3.results.collect import Results, is_alike
from mt3.results.record import CONTROLS, Evaluation, Setting
from mt3.support.errors import name_list


class _Sample(NamedTuple):
    """Runs of one training that were adapted in one way."""

    method: str
    label: str
    setting: Setting
    runs: list[Evaluation]

    @property
    def row(self) -> str:
        method = METHODS[self.method]
        return method.after or method.before

    @property
    def title(self) -> str:
        return (f"{self.row}, {self.label}" if self.label else self.row) + self.runs[0].mark


def _samples(results: Results) -> tuple[list[_Sample], str]:
    """All settings in which models were adapted, if there are others than the models' own."""
    if not results.others:
        return [], ""
    chosen, note = list(results.others), ""
    defaults = [*results.main.items(), *((name, runs) for (name, _), runs in results.ablations.items())]
    for name, runs in defaults:
        if any(e.method.name == name and e.label == runs[0].label for e in results.others):
            if is_alike(runs[0], results.others[0]):
                chosen += runs
            elif any(e.protocol.get("sweep") for e in results.others):  # these hold the models' own settings, too
                note = f" All of these are on {results.others[0].protocol['images']} images."
            else:
                note = " The models' own settings were evaluated under another protocol and are left out here."

    def key(e: Evaluation) -> tuple[int, str, int, int, float]:
        return list(METHODS).index(e.method.name), e.label, e.setting.steps, e.setting.views, e.setting.lr

    samples = []
    for _, found in groupby(sorted(chosen, key=key), key):
        group = list(found)
        samples.append(_Sample(group[0].method.name, group[0].label, group[0].setting, group))
    return samples, note


class _Swept(NamedTuple):
    """What is varied: its words, its value, and what a curve holds fixed meanwhile."""

    words: str
    value: Callable[[Setting], float]
    fixed: Callable[[Setting], str]


SWEPT = {
    "steps": _Swept("number of inner steps", lambda s: s.steps, lambda s: f"{s.views} views, lr {s.lr:g}"),
    "views": _Swept("number of views", lambda s: s.views, lambda s: f"steps {s.steps}, lr {s.lr:g}"),
    "lr": _Swept("test learning rate", lambda s: s.lr, lambda s: f"steps {s.steps}, {s.views} views"),
    "cost": _Swept("adaptation cost (steps x views)", lambda s: s.cost, lambda s: f"lr {s.lr:g}"),
}


def sweep_blocks(results: Results) -> list[Table | Figure]:
    """Tables and figures of accuracy against steps, views, learning rate and cost, where these were varied."""
    samples, left_out = _samples(results)
    if not samples or not samples[0].runs[0].corruptions:
        return []
    severity = [samples[0].runs[0].severities[-1]]
    lines = []
    for s in samples:
        cells = (
            Cell(s.setting.steps, digits=None),
            Cell(s.setting.views, digits=None),
            Cell(s.setting.lr, digits=None),
            Cell(s.setting.cost, digits=None),
            over_runs([run.average("before", severity) for run in s.runs]),
            over_runs([run.average("after", severity) for run in s.runs]),
            gain_cell(s.runs, "gain", severity),
            Cell(len(s.runs), digits=0),
        )
        words = f"{s.title}: steps {s.setting.steps}, views {s.setting.views}, lr {s.setting.lr:g}"
        lines.append(Line(words, cells))
    if not all(controlled_runs(s.runs) for s in samples):
        left_out += f" {NO_CONTROLS.format('some or all of these settings')}"
    columns = ("steps", "views", "lr", "steps x views", "before", "after", "gain", "runs")
    title = f"Average accuracy in % by how the models were adapted, severity {severity[0]}"
    blocks: list[Table | Figure] = [Table("settings", title, "method", columns, tuple(lines), INTERVALS + left_out)]
    for name, swept in SWEPT.items():
        curves = _curves(samples, swept, severity)
        if not curves:
            continue
        if name != "cost":  # whose table is the one above
            xs = sorted({p.x for curve in curves for p in curve.points})
            at = [{p.x: Cell(p.mean, p.std) for p in curve.points} for curve in curves]
            found = tuple(Line(f"{x:g}", tuple(cells.get(x, Cell(text="-")) for cells in at)) for x in xs)
            titles = tuple(curve.title for curve in curves)
            blocks.append(Table(f"sweep-{name}", f"Accuracy after adapting by {swept.words}", name, titles, found))
        caption = f"Average accuracy after adapting against the {swept.words}, severity {severity[0]}."
        blocks.append(Figure(f"sweep-{name}", caption, partial(draw_sweep, sweeps=curves, label=swept.words)))
    return blocks


def _curves(samples: Sequence[_Sample], swept: _Swept, severity: Sequence[int]) -> list[Sweep]:
    """The samples that differ in what is swept and share the rest; those with a single value give no curve."""
    groups: dict[tuple[str, str], list[_Sample]] = {}
    for s in samples:
        groups.setdefault((s.title, swept.fixed(s.setting)), []).append(s)
    curves = []
    for (title, rest), found in groups.items():
        found.sort(key=lambda s: (swept.value(s.setting), s.setting))
        points = []
        for s in found:
            cell = over_runs([run.average("after", severity) for run in s.runs])
            assert cell.value is not None
            points.append(Point(swept.value(s.setting), cell.value, cell.std))
        if points[0].x != points[-1].x:
            before = float(np.mean([run.average("before", severity) for s in found for run in s.runs]))
            curves.append(Sweep(f"{title} ({rest})", found[0].row, points, before))
    return curves


def ablation_table(results: Results) -> Table | None:
    """Trainings that depart from the default, each beside it."""
    if not results.ablations:
        return None
    severity: list[int] = next(iter(results.ablations.values()))[0].severities[-1:]
    if not severity:
        return None
    answered = ("before", "view_average", *CONTROLS, "after")
    lines, missing, unfinished = [], [], []

    def rival(name: str, label: str, runs: list[Evaluation], last: str) -> Cell:
        """Minus joint training with the same label, if that was evaluated."""
        other = results.ablations.get(("jt", label)) if name != "jt" else None
        return difference_cell(Row("", runs, last), Row("", other, "before") if other else None, severity)

    for name in METHODS:
        groups = {label: runs for (method, label), runs in results.ablations.items() if method == name}
        if not groups:
            continue
        default = results.main.get(name)
        title = METHODS[name].after or METHODS[name].before
        if default is not None and not is_alike(default[0], next(iter(groups.values()))[0]):
            default = None
        if default is None:
            missing.append(title)
        for label, runs in [*([("default", default)] if default else []), *groups.items()]:
            cells = []
            for row in answered:
                values = [run.average(row, severity) for run in runs if run.has(row)]
                cells.append(over_runs(values) if values else Cell(text="-"))
            last = "after" if all(run.has("after") for run in (*runs, *(default or []))) else "before"
            against = Cell(text="-")
            if default is not None and runs is not default:
                against = difference_cell(Row(title, runs, last), Row(title, default, last), severity)
            cells += [gain_cell(runs, part, severity) for part in ("gain", "adaptation")]
            cells += [against, rival(name, label, runs, last)]
            cells.append(Cell(len(runs), digits=0))
            shown = title if any(run.has("after") for run in runs) else METHODS[name].before
            lines.append(Line(f"{shown}: {label}{runs[0].mark}", tuple(cells)))
            if runs[0].unfinished:
                unfinished.append(lines[-1].label)
    columns = (
        "before",
        "views averaged",
        *CONTROLS.values(),
        "after",
        "gain",
        "adaptation",
        "minus default",
        f"minus {METHODS['jt'].before}",
        "runs",
    )
    note = f"{INTERVALS} Adaptation: after adapting minus after adapting on an unrelated clean image. "
    note += "Minus default: after adapting if both adapt, over the seeds that both have. "
    note += f"Minus {METHODS['jt'].before}: after adapting, from the one of the same name that does not adapt."
    if unfinished:
        note += f" Differences from a training that is not finished are not fair: {name_list(unfinished)}."
    if missing:
        note += f" The default {name_list(missing)} was not evaluated under this protocol."
    title = f"Average accuracy in %, severity {severity[0]}"
    return Table("ablations", title, "training", columns, tuple(lines), note)
