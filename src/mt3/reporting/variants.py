"""Variations: other settings at test time, and ablations of the training. Needs no torch."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np

from mt3.config.methods import METHODS
from mt3.reporting.collect import Results, is_alike
from mt3.reporting.figures import Figure, Sweep, draw_sweep
from mt3.reporting.rows import INTERVALS, NO_CONTROLS, NOTHING, Row, controlled_runs, gain_cell, row_with
from mt3.results.facts import CONTROLS, ROWS, Evaluation, Setting
from mt3.results.tables import DASH, Cell, Line, Table, count, make_table
from mt3.support.errors import name_list

NAMES = CONTROLS | {"view_average": "views averaged"}  # of rows, where a column has another


class _Sample(NamedTuple):
    """Runs of one training that were adapted in one way."""

    row: Row  # after adapting
    title: str
    setting: Setting


class _Swept(NamedTuple):
    """What is varied: its words, its value, and what a curve holds fixed meanwhile."""

    words: str
    value: Callable[[Setting], float]
    fixed: Callable[[Setting], str]


SWEPT = {
    "steps": _Swept("number of inner steps", lambda s: s.steps, lambda s: f"{s.views} views, lr {s.lr:g}"),
    "views": _Swept("number of views", lambda s: s.views, lambda s: f"steps {s.steps}, lr {s.lr:g}"),
    "lr": _Swept("test learning rate", lambda s: s.lr, lambda s: f"steps {s.steps}, {s.views} views"),
    "cost": _Swept("adaptation cost (steps x views)", lambda s: s.steps * s.views, lambda s: f"lr {s.lr:g}"),
}


def _samples(results: Results) -> tuple[list[_Sample], str]:
    """All settings in which models were adapted, if there are others than the models' own, and what was left out."""
    chosen, note, others = list(results.others), "", results.others
    for runs in results.groups if others else []:
        if any((e.run.method, e.label) == (runs[0].run.method, runs[0].label) for e in others):
            if is_alike(runs[0], others[0]):
                chosen += runs
            elif any(e.protocol["sweep"] for e in others):  # these hold the models' own settings, too
                note = f" All of these are on {others[0].protocol['images']} images."
            else:
                note = " The models' own settings were evaluated under another protocol and are left out here."

    def key(e: Evaluation) -> tuple[int, str, Setting]:
        return list(METHODS).index(e.run.method), e.label, e.setting

    samples = []
    chosen = [e for e in chosen if e.has("after")]
    for (_, label, setting), found in groupby(sorted(chosen, key=key), key):
        runs = list(found)
        row = Row(runs[0].method.after or runs[0].method.before, runs, "after")
        samples.append(_Sample(row, row.name + (f", {label}" if label else "") + runs[0].run.mark, setting))
    return samples, note


def sweep_blocks(results: Results) -> list[Table | Figure]:
    """Tables and figures of accuracy against steps, views, learning rate and cost, where these were varied."""
    samples, left_out = _samples(results)
    if not samples or not samples[0].row.runs[0].corruptions:
        return []
    severity = samples[0].row.runs[0].severities[-1]
    lines = []
    for s in samples:
        steps, views, lr = s.setting
        numbers = {"steps": steps, "views": views, "lr": lr, "steps x views": steps * views}
        cells = {column: Cell(number, digits=None) for column, number in numbers.items()}
        cells |= {"before": s.row._replace(key="before").mean(severity), "after": s.row.mean(severity)}
        cells |= {"gain": gain_cell(s.row.runs, "gain", severity), "runs": count(len(s.row.runs))}
        lines.append((f"{s.title}: steps {steps}, views {views}, lr {lr:g}", cells))
    if not all(controlled_runs(s.row.runs) for s in samples):
        left_out += f" {NO_CONTROLS.format('some or all of these settings')}"
    title = f"Average accuracy in % by how the models were adapted, severity {severity}"
    blocks: list[Table | Figure] = [*make_table("settings", title, "method", lines, INTERVALS + left_out)]
    for name, swept in SWEPT.items():
        curves = _curves(samples, swept, severity)
        if curves and name != "cost":  # whose table is the one above
            at = [dict(curve.points) for curve in curves]
            found = [Line(f"{x:g}", tuple(c.get(x, DASH) for c in at)) for x in sorted({x for c in at for x in c})]
            titles = tuple(curve.title for curve in curves)
            title = f"Accuracy after adapting by {swept.words}"
            blocks.append(Table(f"sweep-{name}", title, name, titles, tuple(found)))
        if curves:
            caption = f"Average accuracy after adapting against the {swept.words}, severity {severity}."
            blocks.append(Figure(f"sweep-{name}", caption, partial(draw_sweep, sweeps=curves, label=swept.words)))
    return blocks


def _curves(samples: Sequence[_Sample], swept: _Swept, severity: int) -> list[Sweep]:
    """The samples that differ in what is swept and share the rest; those with a single value give no curve."""
    groups: dict[tuple[str, str], list[_Sample]] = {}
    for s in samples:
        groups.setdefault((s.title, swept.fixed(s.setting)), []).append(s)
    curves = []
    for (title, rest), found in groups.items():
        found.sort(key=lambda s: (swept.value(s.setting), s.setting))
        points = [(swept.value(s.setting), s.row.mean(severity)) for s in found]
        if points[0][0] != points[-1][0]:
            before = float(np.mean([run.accuracy("before", None, severity) for s in found for run in s.row.runs]))
            curves.append(Sweep(f"{title} ({rest})", found[0].row.name, points, before))
    return curves


def ablation_table(results: Results) -> list[Table]:
    """Trainings that depart from the reference, each beside it and beside joint training of the same label."""
    severities = next(iter(results.ablations.values()))[0].severities if results.ablations else []
    if not severities:
        return []
    rivals = {label: Row("", runs, "before") for (name, label), runs in results.ablations.items() if name == "jt"}
    used = [rivals[label] for name, label in results.ablations if name != "jt" and label in rivals]
    joint = METHODS["jt"].before
    against = f"minus {joint}" + name_list(dict.fromkeys(row.title for row in used if row.title))
    severity, lines, missing, unfinished = severities[-1], [], [], []
    for method in METHODS.values():
        groups = {label: runs for (name, label), runs in results.ablations.items() if name == method.name}
        default = results.main.get(method.name, [])
        if not groups or not default or not is_alike(default[0], next(iter(groups.values()))[0]):
            default = []
        title = method.after or method.before
        if groups and not default:
            missing.append(title)
        for label, runs in [*([("default", default)] if default else []), *groups.items()]:
            last = "after" if all(run.has("after") for run in (*runs, *default)) else "before"
            own, reference = Row("", runs, last), Row("", default if runs is not default else [], last)
            rival = rivals.get(label if method.name != "jt" else "", NOTHING)
            cells = {NAMES.get(key, key): row_with(runs, key).mean(severity) for key in ROWS}
            cells |= {part: gain_cell(runs, part, severity) for part in ("gain", "adaptation")}
            cells |= {"minus default": own.minus(reference, severity), against: own.minus(rival, severity)}
            shown = title if any(run.has("after") for run in runs) else method.before
            lines.append((f"{shown}: {label}{runs[0].run.mark}", cells | {"runs": count(len(runs))}))
            unfinished += [lines[-1][0]] if runs[0].run.unfinished else []
    note = f"{INTERVALS} Adaptation: after adapting minus after adapting on an unrelated clean image. "
    note += "Minus default: after adapting if both adapt, over the seeds that both have. "
    note += f"Minus {joint}: after adapting, from the one of the same name that does not adapt."
    if unfinished:
        note += f" Differences from a training that is not finished are not fair: {name_list(unfinished)}."
    if missing:
        note += f" The default {name_list(missing)} was not evaluated under this protocol."
    return make_table("ablations", f"Average accuracy in %, severity {severity}", "training", lines, note)
