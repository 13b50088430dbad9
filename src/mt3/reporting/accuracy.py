"""Accuracy under corruption and beside the paper's, over severities and on clean images; likelihood and calibration."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from mt3.config.config import make_config, preset_names
from mt3.config.methods import METHODS
from mt3.reporting import published as paper
from mt3.reporting.published import OVERLAPPING, published_table
from mt3.reporting.rows import NOTHING, Row, baseline_row, joint_row, over_runs, pairs_of
from mt3.results.show import CLEAN
from mt3.results.statistics import Z95
from mt3.results.tables import AVERAGE, DASH, OVERLAP_MARK, Cell, Line, Table, count, make_table, mark_best
from mt3.support.errors import name_list

APART = f"average without {OVERLAP_MARK}"
ALL_SEVERITIES = [1, 2, 3, 4, 5]
WITH_B = METHODS["supervised"].before  # a row that the paper does not have

Columns = dict[str, dict[str, Cell]]  # row -> corruption, AVERAGE or APART -> cell


def columns_of(rows: Sequence[Row], severity: int | None) -> Columns:
    """Accuracies of the rows over their runs; each run is averaged over corruptions before the runs are."""
    columns: Columns = {}
    for row in rows:
        names = row.runs[0].corruptions
        numbers = np.array([row.means(severity, name) for name in names]).T  # (runs, corruptions)
        cells = {name: over_runs(numbers[:, i]) for i, name in enumerate(names)}
        cells[AVERAGE] = over_runs(numbers.mean(1))
        apart = [i for i, name in enumerate(names) if name not in OVERLAPPING]
        if 0 < len(apart) < len(names):
            cells[APART] = over_runs(numbers[:, apart].mean(1))
        columns[row.title] = cells
    return columns


def published_columns(data: str | None, names: Sequence[str]) -> Columns:
    """The paper's numbers for these corruptions; over fewer than its 15 the average is of its printed means."""
    columns: Columns = {}
    for row, numbers in (published_table(data) or {}).items():
        cells = {name: Cell(*numbers[name]) for name in names if name in numbers}
        columns[row] = cells
        if len(cells) < len(names):  # an average over others than the paper's could not be compared
            continue
        apart = [numbers[name].mean for name in names if name not in OVERLAPPING]
        if 0 < len(apart) < len(names):
            cells[APART] = Cell(float(np.mean(apart)))
        whole = len(names) == len(numbers) - 1
        cells[AVERAGE] = Cell(*numbers[AVERAGE] if whole else [float(np.mean([numbers[n].mean for n in names]))])
    return columns


def corruption_lines(columns: Columns, names: Sequence[str], beside: Columns | None = None) -> list[Line]:
    """Corruptions as lines, methods as columns, the best of a line in bold; `beside` holds the paper's numbers."""
    lines, wins = [], dict.fromkeys(columns, 0)
    averages = [key for key in (AVERAGE, APART) if all(key in cells for cells in columns.values())]
    for key in [*names, *averages]:
        cells = mark_best([columns[row][key] for row in columns])
        for row, cell in zip(columns, cells, strict=True):
            wins[row] += cell.best and key not in averages
        if beside:
            cells = tuple(with_published(cells, [beside.get(row, {}).get(key) for row in columns]))
        lines.append(Line(key, cells, key in OVERLAPPING, rule=key == AVERAGE))
    if len(columns) > 1:
        lines.append(Line(f"best on, of {len(names)}", tuple(count(wins[row]) for row in columns), rule=True))
    return lines


def with_published(cells: Sequence[Cell], theirs: Sequence[Cell | None]) -> list[Cell]:
    return [replace(cell, published=their) for cell, their in zip(cells, theirs, strict=True)]


def reading_words(deviation: str, rows: Sequence[str] = ()) -> str:
    """How a table of accuracies is read, and which of its rows know the corruptions that are marked."""
    b = f"{WITH_B}, " if any(row.startswith(WITH_B) for row in rows) else ""
    return (
        f"Mean ± {deviation} over runs. The average is over corruptions for each run first, then over runs. "
        "Bold is the best of a line, and what is printed alike. "
        f"{OVERLAP_MARK} overlaps with the batch augmentation B of {b}JT, TTT (ours), MT and MT3."
    )


def run_line(rows: Sequence[Row]) -> Line:
    return Line("runs", tuple(count(len(row.runs)) for row in rows), rule=len(rows) == 1)


def training_lines(rows: Sequence[Row], beside: bool) -> list[Line]:
    """How long the rows were trained and with which network; `beside` the paper's."""
    epochs, networks = [], []
    for row in rows:
        run = row.runs[0].run
        words = f"part of {run.epoch_words}" if run.unfinished else run.epoch_words
        epochs.append(Cell(text=words) if run.unfinished or run.epochs_before else Cell(run.epochs[-1], digits=None))
        networks.append(Cell(text=re.sub(r"^resnet(\d+)x(\d+)$", r"\1 x \2", run.network)))
    if beside:
        theirs = [make_config(row.runs[0].run.method, "cifar10", "paper") for row in rows]
        epochs = with_published(epochs, [Cell(their.epochs, digits=None) for their in theirs])
        networks = with_published(networks, [Cell(text=f"{their.depth} x {their.width}") for their in theirs])
    return [Line("epochs", tuple(epochs)), Line("layers x width", tuple(networks))]


def accuracy_table(rows: Sequence[Row], severity: int, published: bool) -> Table:
    """The main table; with `published` the paper's numbers stand beside, where it has some."""
    protocol, names = rows[0].runs[0].protocol, rows[0].runs[0].corruptions
    theirs = published_columns(protocol["data"], names) if severity == paper.SEVERITY and published else {}
    beside = {row.title: theirs[row.name] for row in rows if row.name in theirs}
    columns = columns_of(rows, severity)
    lines = [*corruption_lines(columns, names, beside), run_line(rows), *training_lines(rows, bool(beside))]
    fewest, _ = image_range(protocol)
    reach = 100 * Z95 * sqrt(0.25 / fewest)
    note = f"{reading_words('sample standard deviation', list(columns))} With {fewest:,} images a "
    note += f"corruption's accuracy is uncertain by up to {reach:.1f} points (95 %), whatever the seeds; differences "
    note += f"are known more closely, from intervals paired over images. {departure_words(rows)}".rstrip()
    if published:
        note += " " + _published_words(protocol, names, beside)
    note += " Epochs: passes over the training images, those of a training that came first before the plus."
    title = f"Accuracy in % on {protocol['data']} under corruption, severity {severity}, {image_words(protocol)}"
    return Table("accuracy", title, "corruption", tuple(columns), tuple(lines), note)


def image_range(protocol: dict[str, Any]) -> tuple[int, int]:
    """The fewest and the most images under a corruption; shifts of one's own may differ in their number."""
    counts = protocol["source"].get("images") or [protocol["images"]]
    return min(counts), max(counts)


def image_words(protocol: dict[str, Any]) -> str:
    """How many images, and which if not the first ones."""
    first, (fewest, most) = protocol["first"], image_range(protocol)
    number = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return f"{number} images" + (f" from number {first:,} on" if first else "")


def source_words(source: dict[str, Any]) -> str:
    """Where corrupted images come from."""
    if source.get("kind") == "generated":
        return f"generated by mt3 {source.get('version')} with seed {source.get('seed')}"
    return f"the directory {source.get('name')}"


def _published_words(protocol: dict[str, Any], names: Sequence[str], beside: Columns) -> str:
    if not beside:
        if published_table(protocol["data"]) is None:
            return f"The paper has no numbers for {protocol['data']}."
        if max(protocol["severities"]) == paper.SEVERITY:
            return "The paper has no numbers for these rows."
        return f"The paper's numbers are for severity {paper.SEVERITY}, so none stand here."
    text = "In brackets the paper's number: 3 runs, 10,000 images of the published -C data; these images: "
    text += f"{source_words(protocol['source'])}."
    if any("Sun" in row for row in beside):
        text += " Those of Sun et al. it quotes, without runs."
    if not set(names) <= set(paper.corruption_order()):
        text += " It has no average over these corruptions."
    elif len(names) < len(paper.corruption_order()):
        text += f" Its averages here are of its printed means over these {len(names)} corruptions."
    return text


def published_tables() -> list[Table]:
    """The paper's two results tables."""
    tables = []
    for data, title in (("cifar10", "CIFAR-10-C"), ("cifar100", "CIFAR-100-C")):
        names = paper.corruption_order()
        columns = published_columns(data, names)
        methods = [m.name for row in columns for m in METHODS.values() if row in (m.before, m.after)]
        runs = tuple(DASH if "Sun" in row else count(paper.RUNS) for row in columns)
        epochs = tuple(Cell(make_config(name, "cifar10", "paper").epochs, digits=None) for name in methods)
        lines = (*corruption_lines(columns, names), Line("runs", runs), Line("epochs", epochs))
        note = f"{reading_words('standard deviation')} The paper has no average without {OVERLAP_MARK}: "
        note += f"it is of its printed means. {paper.BOLD_NOTES[data]}"
        if data == "cifar10":
            note += " The columns of Sun et al. are quoted by the paper, without runs."
        heading = f"The paper's accuracy in % on {title}, severity {paper.SEVERITY}"
        tables.append(Table(f"published-{data}", heading, "corruption", tuple(columns), lines, note))
    return tables


def corruption_errors(rows: Sequence[Row]) -> tuple[list[Cell], str]:
    """mCE of each row, and what it is relative to; nothing and why if it cannot be had.

    Hendrycks and Dietterich (2019): for each corruption the sum of errors over severities, divided by the baseline's
    sum; then the mean over corruptions. The baseline's errors are the mean of its runs.
    """
    reference = baseline_row(rows)
    if not reference.runs:
        return [], "mCE cannot be had: it is relative to a baseline, and none was evaluated."
    names, severities = reference.runs[0].corruptions, reference.runs[0].severities
    base = np.mean(_errors(reference, names), axis=0)
    if not base.all():
        return [], "mCE cannot be had: the baseline makes no error under some corruption."
    cells = [over_runs(100 * (_errors(row, names) / base).mean(1)) for row in rows]
    note = "mCE: for each corruption the sum of errors over severities divided by that of "
    note += f"{reference.title} (mean of its runs), then the mean over corruptions, in %; lower is better."
    if severities != ALL_SEVERITIES:
        note += f" Here over severity {name_list(severities)} only, so not the benchmark's, which has all five."
    return cells, note


def _errors(row: Row, names: Sequence[str]) -> Any:
    """Mean errors over severities in %: (runs, corruptions)."""
    return 100 - np.array([row.means(None, name) for name in names]).T


def severity_blocks(rows: Sequence[Row]) -> list[Table | str]:
    """The mean over severities if there are several, and mCE; or why it cannot be had."""
    severities, names = rows[0].runs[0].severities, rows[0].runs[0].corruptions
    blocks: list[Table | str] = []
    lines, title = [], "Mean corruption error"
    if len(severities) > 1:
        columns = columns_of(rows, None)
        every = (*corruption_lines(columns, names), run_line(rows))
        told = f"Accuracy in %, mean over severities {name_list(severities)}"
        note = reading_words("sample standard deviation", list(columns))
        blocks.append(Table("severities", told, "corruption", tuple(columns), every, note))
        lines = [Line(f"severity {s}", mark_best([row.mean(s) for row in rows])) for s in severities]
        title = "Average accuracy in % by severity"
    errors, note = corruption_errors(rows)
    if errors:
        lines.append(Line("mCE", mark_best(errors, lowest=True), rule=bool(lines)))
    titles = tuple(row.title for row in rows)
    return [*blocks, Table("mce", title, "", titles, tuple(lines), note) if lines else note]


def calibration_table(rows: Sequence[Row], severity: int) -> list[Table]:
    """How likely the truth is held to be, and how far confidence is from accuracy."""
    lines = []
    for row in rows:
        nll = over_runs(row.means(severity, None, "nll"), digits=3)
        error = over_runs(row.means(severity, None, "calibration_error"))
        cells = {"NLL in nats": nll, "calibration error in %": error, "runs": count(len(row.runs))}
        lines.append((row.title, cells))
    note = "Averaged over corruptions; mean ± sample standard deviation over runs. Lower is better. The calibration "
    note += "error is the expected one over 15 equal-width bins of the confidence."
    return make_table("calibration", f"Severity {severity}", "method", lines, note)


def clean_table(rows: Sequence[Row]) -> list[Table]:
    """What training and adapting cost on clean images."""
    rows = [row for row in rows if all(run.has(row.key, CLEAN) for run in row.runs)]
    base, joint = baseline_row(rows), joint_row(rows)
    befores = {after.title: before for before, after in pairs_of(rows)}
    lines = []
    for row in rows:
        before = befores.get(row.title, NOTHING)
        cells = {"clean accuracy": row.mean(CLEAN), "minus before adapting": row.minus(before, CLEAN)}
        for other in (base, joint):
            cells[f"minus {other.title}"] = DASH if row is other else row.minus(other, CLEAN)
        lines.append((row.title, cells | {"runs": count(len(row.runs))}))
    note = "Mean ± sample standard deviation over runs. Differences are over the seeds that both have, which may be "
    note += "fewer than a row has runs, with a 95 % interval: Student's t over these, or over images if there is one "
    note += "such seed; without common seeds they are of the means."
    if not base.runs:
        note += " No baseline was evaluated on clean images."
    return make_table("clean", "Accuracy in % on clean images", "method", lines, note)


def departure_words(rows: Sequence[Row]) -> str:
    """Which rows have the batch augmentation B unlike the paper's."""
    odd: dict[bool, list[str]] = {True: [], False: []}
    for row in rows:
        run, usual = row.runs[0].run, row.runs[0].method.batch_aug
        preset = make_config(run.method, run.data, run.preset) if run.preset in preset_names() else None
        has = run.overrides.get("batch_aug", preset.batch_aug if preset else usual)
        if has != usual:
            odd[has].append(row.name)
    told = [f"trained {'with' if has else 'without'} B here: {name_list(names)}" for has, names in odd.items() if names]
    return " ".join(f"Unlike the paper's, {words}." for words in told)


def component_table(rows: Sequence[Row] = ()) -> list[Table]:
    """Which method is made of what, as the paper lists it, and where `rows` depart from that."""
    words = {None: "-", "byol": "BYOL", "rotation": "rotation", "ce": "CE", "joint": "joint", "meta": "meta"}
    columns = ("self-supervision", "B", "training", "test-time adaption", "--method")
    there = {row.name for row in rows}
    lines = []
    for m in METHODS.values():
        for title, adapts in ((m.before, "-"), (m.after, "yes")):
            if title is not None and (m.paper or m.before in there):
                texts = (words[m.objective], "yes" if m.batch_aug else "-", words[m.training], adapts, f"`{m.name}`")
                lines.append((title, {c: Cell(text=text) for c, text in zip(columns, texts, strict=True)}))
    return make_table("components", "What the methods are made of", "method", lines, departure_words(rows))
